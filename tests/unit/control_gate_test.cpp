// What passes between a caller and gRPC, and how fast.
#include "control/control_gate.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <vector>

namespace numacre::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr TokenBucket::Time kStart{};

std::string frame(std::size_t payload_bytes) {
    std::string bytes;
    for (const unsigned shift : {16U, 8U, 0U}) bytes += static_cast<char>(payload_bytes >> shift & 0xff);
    return bytes + std::string(6, '\6') + std::string(payload_bytes, 'x');
}

std::optional<std::size_t> admit(FrameMeter &meter, const std::string &bytes, TokenBucket::Time now = kStart) {
    return meter.admit(bytes.data(), bytes.size(), now);
}

TEST(FrameMeter, admits_so_many_frames_at_once_and_then_at_its_rate) {
    ControlLimits limits;
    limits.frames_at_once = 3;
    limits.frames_per_second = 10;
    FrameMeter meter(limits, kStart);
    const std::string four = frame(8) + frame(0) + frame(300) + frame(8);
    const std::size_t three_bytes = four.size() - frame(8).size();
    EXPECT_EQ(admit(meter, kPreface + four), kPreface.size() + three_bytes);
    EXPECT_EQ(admit(meter, frame(8)), 0U);
    EXPECT_EQ(admit(meter, frame(8) + frame(8), kStart + milliseconds(101)), frame(8).size());
}

TEST(FrameMeter, counts_frames_that_come_byte_by_byte_once) {
    ControlLimits limits;
    limits.frames_at_once = 2;
    FrameMeter meter(limits, kStart);
    std::size_t admitted = 0;
    for (const char byte : kPreface + frame(70'000) + frame(5)) admitted += *admit(meter, std::string(1, byte));
    EXPECT_EQ(admitted, kPreface.size() + 9 + 70'000 + 9 + 5);
    EXPECT_EQ(admit(meter, frame(0)), 0U);
}

TEST(FrameMeter, refuses_what_is_no_http_2_at_the_first_wrong_byte) {
    FrameMeter meter({}, kStart);
    EXPECT_EQ(admit(meter, "PRI "), 4U);
    EXPECT_EQ(admit(meter, "/ HTTP/1.1"), std::nullopt);
}

// Without the acknowledgement gRPC does not limit streams: sixteen connections took gigabytes of the daemon's memory.
TEST(FrameMeter, refuses_streams_of_a_caller_that_does_not_acknowledge_the_servers_settings) {
    const auto typed = [](char type, char flags) {
        std::string bytes = frame(0);
        bytes[3] = type;
        bytes[4] = flags;
        return bytes;
    };
    const std::string headers = typed(1, 4), settings = typed(4, 0), acknowledgement = typed(4, 1);
    for (const bool acknowledges : {true, false}) {
        ControlLimits limits;
        limits.frames_at_once = 1000;
        FrameMeter meter(limits, kStart);
        EXPECT_TRUE(admit(meter, kPreface + settings));
        for (int i = 0; i < 16; ++i) EXPECT_TRUE(admit(meter, headers)) << i;
        EXPECT_TRUE(admit(meter, acknowledges ? acknowledgement : settings));
        for (int i = 0; i < 100; ++i) EXPECT_EQ(admit(meter, headers).has_value(), acknowledges) << i;
    }
}

// gRPC keeps a header's value until it is whole: sixteen connections took 300 MB of the daemon's memory.
TEST(FrameMeter, refuses_a_header_block_that_goes_on_and_on) {
    const auto typed = [](char type, std::uint32_t payload_bytes) {
        std::string bytes = frame(payload_bytes);
        bytes[3] = type;
        bytes[4] = 0;
        return bytes;
    };
    const std::string headers = typed(1, 16 * 1024), more = typed(9, 16 * 1024);
    ControlLimits limits;
    limits.frames_at_once = 1000;
    FrameMeter meter(limits, kStart);
    EXPECT_TRUE(admit(meter, kPreface));
    for (int block = 0; block < 10; ++block) {
        EXPECT_TRUE(admit(meter, headers));
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(admit(meter, more));
    }
    EXPECT_EQ(admit(meter, more), std::nullopt);
    FrameMeter another(limits, kStart);
    EXPECT_EQ(admit(another, kPreface + typed(1, 64 * 1024 + 1)), std::nullopt);
}

TEST(FrameMeter, admits_calls_and_cancelled_calls_of_a_user_at_rates_of_their_own) {
    ControlLimits limits;
    limits.calls_per_second = 10;
    limits.calls_at_once = 6;
    limits.resets_per_second = 1;
    limits.resets_at_once = 2;
    CallAllowance of_user(limits, kStart);
    FrameMeter one(limits, kStart, &of_user), other(limits, kStart, &of_user), of_root(limits, kStart);
    const auto typed = [](char type, char flags, std::size_t payload_bytes) {
        std::string bytes = frame(payload_bytes);
        bytes[3] = type;
        bytes[4] = flags;
        return bytes;
    };
    const std::string settings = typed(4, 1, 0), call = typed(1, 4, 0), reset = typed(3, 0, 4),
                      cancelled = call + reset;
    // The type is the fourth byte of a frame: what goes before has passed.
    EXPECT_EQ(admit(one, kPreface + settings + cancelled + cancelled + cancelled),
              kPreface.size() + settings.size() + 2 * cancelled.size() + call.size() + 3);
    EXPECT_EQ(admit(other, kPreface + settings + call + call + call + call),
              kPreface.size() + settings.size() + 3 * call.size() + 3)
        << "on all connections together";
    EXPECT_EQ(admit(other, call.substr(3), kStart + milliseconds(101)), call.size() - 3);
    EXPECT_EQ(admit(one, reset.substr(3), kStart + milliseconds(500)), 0U);
    EXPECT_EQ(admit(one, reset.substr(3), kStart + milliseconds(1001)), reset.size() - 3);
    std::string many = kPreface + settings;
    for (int i = 0; i < 20; ++i) many += cancelled;
    EXPECT_EQ(admit(of_root, many), many.size());
}

// A gate whose server is this test.
class ControlGateTest : public testing::Test {
protected:
    void SetUp() override {
        folder_ = std::filesystem::temp_directory_path() / ("numacre-gate-" + std::to_string(::getpid()));
        std::filesystem::create_directory(folder_);
        address_.sun_family = AF_UNIX;
        const std::string path = folder_ / "socket";
        path.copy(address_.sun_path, sizeof address_.sun_path - 1);
    }
    void TearDown() override {
        gate_.reset();
        std::filesystem::remove_all(folder_);
    }
    const sockaddr *address() const { return reinterpret_cast<const sockaddr *>(&address_); }
    void open(const ControlLimits &limits) {
        Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        ASSERT_EQ(::bind(listener.get(), address(), sizeof address_), 0);
        ASSERT_EQ(::listen(listener.get(), 16), 0);
        gate_ =
            std::make_unique<ControlGate>(std::move(listener), [this](int fd, bool) { served_.set_value(fd); }, limits);
    }
    Fd call() const {
        Fd caller(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        EXPECT_EQ(::connect(caller.get(), address(), sizeof address_), 0);
        return caller;
    }
    // Until something can be read; then as much as there is, "" at the end.
    static std::string read(const Fd &from) {
        pollfd wait{from.get(), POLLIN, 0};
        EXPECT_EQ(::poll(&wait, 1, 60'000), 1);
        std::array<char, 65536> bytes{};
        const ssize_t got = ::recv(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
        return {bytes.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
    }

    std::filesystem::path folder_;
    sockaddr_un address_{};
    std::promise<int> served_;
    std::unique_ptr<ControlGate> gate_;
};

TEST_F(ControlGateTest, bytes_pass_both_ways_and_the_last_words_after_the_server_has_closed) {
    open({});
    const Fd caller = call();
    Fd server(served_.get_future().get());
    const std::string asked = kPreface + frame(100);
    ASSERT_EQ(::send(caller.get(), asked.data(), asked.size(), 0), static_cast<ssize_t>(asked.size()));
    std::string arrived;
    while (arrived.size() < asked.size()) arrived += read(server);
    EXPECT_EQ(arrived, asked);
    ASSERT_EQ(::send(server.get(), "answer", 6, 0), 6);
    server.reset();
    EXPECT_EQ(read(caller), "answer");
    EXPECT_EQ(read(caller), "");
}

TEST_F(ControlGateTest, of_a_caller_who_does_not_read_nothing_more_is_read) {
    open({});
    const Fd caller = call();
    const Fd server(served_.get_future().get());
    ASSERT_EQ(::send(caller.get(), kPreface.data(), kPreface.size(), 0), static_cast<ssize_t>(kPreface.size()));
    EXPECT_EQ(read(server), kPreface);
    // The server answers until nobody takes more for a while.
    const std::string answer(65536, 'a');
    pollfd takes{server.get(), POLLOUT, 0};
    while (::poll(&takes, 1, 300) == 1) (void)::send(server.get(), answer.data(), answer.size(), MSG_DONTWAIT);
    const std::string more = frame(8);
    ASSERT_EQ(::send(caller.get(), more.data(), more.size(), 0), static_cast<ssize_t>(more.size()));
    pollfd comes{server.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&comes, 1, 100), 0) << "what it sends stays in its socket";
    // It reads all: then what it has sent arrives.
    std::array<pollfd, 2> either{comes, pollfd{caller.get(), POLLIN, 0}};
    while (::poll(either.data(), either.size(), 60'000) > 0 && (either[0].revents & POLLIN) == 0) (void)read(caller);
    EXPECT_EQ(read(server), more);
}

double processor_seconds(clockid_t of) {
    timespec spent{};
    EXPECT_EQ(::clock_gettime(of, &spent), 0);
    return static_cast<double>(spent.tv_sec) + static_cast<double>(spent.tv_nsec) / 1e9;
}

// What the server has said before it ended waits for the caller, and nobody works meanwhile. A thread that spins beside
// the gate is the measure, for a busy machine charges a process for what others do: a gate that spins takes as much.
TEST_F(ControlGateTest, a_caller_who_does_not_read_what_an_ended_server_has_said_costs_nothing) {
    open({});
    const Fd caller = call();
    Fd server(served_.get_future().get());
    ASSERT_EQ(::send(caller.get(), kPreface.data(), kPreface.size(), 0), static_cast<ssize_t>(kPreface.size()));
    EXPECT_EQ(read(server), kPreface);
    const std::string answer(65536, 'a');
    pollfd takes{server.get(), POLLOUT, 0};
    while (::poll(&takes, 1, 300) == 1) (void)::send(server.get(), answer.data(), answer.size(), MSG_DONTWAIT);
    server.reset();
    const double before = processor_seconds(CLOCK_PROCESS_CPUTIME_ID);
    const auto end = std::chrono::steady_clock::now() + milliseconds(900);
    while (std::chrono::steady_clock::now() < end) continue;
    const double spun = processor_seconds(CLOCK_THREAD_CPUTIME_ID);
    EXPECT_LT(processor_seconds(CLOCK_PROCESS_CPUTIME_ID) - before, 1.5 * spun);
}

TEST_F(ControlGateTest, who_says_nothing_or_does_not_read_is_cut_off) {
    ControlLimits limits;
    limits.silence = limits.stall = milliseconds(50);
    open(limits);
    const Fd silent = call();
    const Fd server(served_.get_future().get());
    EXPECT_EQ(read(silent), "");
    EXPECT_EQ(read(server), "") << "the server hears of it";
}

TEST_F(ControlGateTest, after_stop_accepting_nobody_is_served_and_the_others_go_on) {
    open({});
    const Fd caller = call();
    const Fd server(served_.get_future().get());
    gate_->stop_accepting();
    const Fd late = call();
    ASSERT_EQ(::send(caller.get(), kPreface.data(), kPreface.size(), 0), static_cast<ssize_t>(kPreface.size()));
    EXPECT_EQ(read(server), kPreface);
    // It waits, or was hung up on: a second promise would have been an exception.
    pollfd answered{late.get(), POLLIN, 0};
    if (::poll(&answered, 1, 0) != 0) {
        EXPECT_EQ(read(late), "");
    }
}

TEST_F(ControlGateTest, finish_waits_no_longer_than_it_may_for_who_does_not_end) {
    open({});
    const Fd caller = call();
    const Fd server(served_.get_future().get());
    gate_->finish(milliseconds(20));
    EXPECT_EQ(read(caller), "");
}

}  // namespace
}  // namespace numacre::daemon
