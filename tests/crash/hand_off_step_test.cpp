// Kills who gives a block to a waiter, and who waits for one, at every single instruction of it. A child attaches to
// the pool of a live numacred and is traced through one call of the real library, as in single_step_test.cpp. The pool
// is full but for one frame: there is one chunk that the waiters can get, and it is the child's, or goes to it.
// Whatever instant the child dies at, those who wait get it, one after the other; nobody else does, and nobody's bytes
// change. While the child stands still, a bystander gets on.
//
//   give           the child frees what two others wait for: it goes to one directly, then to the other
//   serve          the same past the cache: into the tree, and from there to who waits
//   serve-two      ... and two wait for halves of it
//   wait           it waits, and is given the chunk by another as soon as it sleeps; a third waits behind it
//   wait-asleep    killed while it sleeps, then the chunk is released
//
// usage: hand_off_step_test [--every] [--seed N] [--only OPERATION [--at N]]
// Of each operation kDrawn instructions are drawn by the seed; --every takes them all. Needs $NUMACRE_RUNTIME_DIR
// (with_daemon.py) and leave to trace its children, else it says so and exits with 77.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "numacre/numacre.h"
#include "support/observer.hpp"
#include "support/step_failure.hpp"
#include "support/traced.hpp"

namespace {

using numacre::test::fail;
using numacre::test::now_at;
using numacre::test::Observer;
using numacre::test::Traced;
using numacre::test::wait_until;
using Way = Traced::Way;

constexpr std::size_t kFrame = 4096;
constexpr std::size_t kLargest = 4 << 20;
// Far beyond the second after which a waiter looks again by itself.
constexpr unsigned kWaitMilliseconds = 120'000;  // the other steps through a whole operation meanwhile
constexpr std::uint64_t kDrawn = 60;

bool is_asleep(pid_t pid) {
    const std::string path = "/proc/" + std::to_string(pid) + "/stat";
    char text[512] = {};
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    const char *const after_name = got > 0 ? std::strrchr(text, ')') : nullptr;
    return after_name != nullptr && after_name[2] == 'S';
}

void *allocate(numacre_pool *pool, std::size_t bytes, unsigned flags = 0) {
    void *block = nullptr;
    if (numacre_alloc_on(pool, -1, bytes, NUMACRE_UNCACHED | flags, &block) != 0)
        fail("no block of %zu bytes: %s", bytes, numacre_last_error());
    return block;
}
// In each frame the address of that frame and who wrote it.
struct Stamp {
    const char *at;
    pid_t pid;
};
void stamp(char *block, std::size_t bytes) {
    for (char *at = block; at < block + bytes; at += kFrame) {
        const Stamp mine{at, getpid()};
        std::memcpy(at, &mine, sizeof mine);
    }
}
void check_stamp(const char *block, std::size_t bytes) {
    for (const char *at = block; at < block + bytes; at += kFrame) {
        Stamp found{};
        std::memcpy(&found, at, sizeof found);
        if (found.at != at || found.pid != getpid())
            fail("process %d wrote into a block of %zu bytes that process %d holds", found.pid, bytes, getpid());
    }
}

// A client that lives as long as the test and does what it is told: waits for a block, frees it.
class Helper {
public:
    Helper() {
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_) != 0) fail("socketpair");
        pid_ = fork();
        if (pid_ == 0) be_helper();
        close(ends_[1]);
        if (hear() != 'a') fail("a helper could not attach");
    }
    ~Helper() {
        close(ends_[0]);
        waitpid(pid_, nullptr, 0);
    }
    // Comes back when it sleeps, or has it.
    void begin_to_wait(std::size_t bytes, const Observer &observer) {
        tell('w', bytes);
        wait_until("a helper waits",
                   [&] { return has_block() || (observer.wait_word_of(pid_).is_waiting() && is_asleep(pid_)); });
    }
    bool has_block() {
        char answer = 0;
        return recv(ends_[0], &answer, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
    }
    void expect_block() {
        const char answer = hear();
        if (answer != 'g') fail("a waiter, pid %d, was not served: its wait has timed out", pid_);
    }
    void get(std::size_t bytes) {
        tell('w', bytes);
        expect_block();
    }
    void free_block() {
        tell('f', 0);
        expect_freed();
    }
    // As soon as that process sleeps, or is no more.
    void free_when_asleep(pid_t pid) { tell('s', static_cast<std::size_t>(pid)); }
    void expect_freed() {
        if (hear() != 'f') fail("a helper could not free");
    }

private:
    struct Order {
        char what;
        std::size_t argument;
    };
    void tell(char what, std::size_t argument) const {
        const Order order{what, argument};
        if (write(ends_[0], &order, sizeof order) != sizeof order) fail("a helper is gone");
    }
    char hear() const {
        char answer = 0;
        if (read(ends_[0], &answer, 1) != 1) fail("a helper is gone");
        return answer;
    }
    [[noreturn]] void be_helper() const {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends_[0]);
        numacre_pool *pool = nullptr;
        if (numacre_attach(nullptr, nullptr, &pool) != 0) fail("attach: %s", numacre_last_error());
        char *block = nullptr;
        std::size_t bytes = 0;
        char answer = 'a';
        Order order{};
        while (write(ends_[1], &answer, 1) == 1 && read(ends_[1], &order, sizeof order) == sizeof order) {
            if (order.what == 'w') {
                void *got = nullptr;
                bytes = order.argument;
                const unsigned flags = NUMACRE_UNCACHED | NUMACRE_WAIT_MS(kWaitMilliseconds);
                answer = numacre_alloc_on(pool, -1, bytes, flags, &got) == 0 ? 'g' : 't';
                block = static_cast<char *>(got);
                if (answer == 'g') stamp(block, bytes);
                continue;
            }
            if (order.what == 's') {
                // Stopped by its tracer it does not sleep.
                const auto pid = static_cast<pid_t>(order.argument);
                while (kill(pid, 0) == 0 && !is_asleep(pid)) usleep(50);
            }
            check_stamp(block, bytes);
            answer = numacre_free_uncached(pool, block) == 0 ? 'f' : 'e';
        }
        numacre_detach(pool);
        _exit(0);
    }

    int ends_[2];
    pid_t pid_ = 0;
};

// Holds all but the chunk that everything is about, and one frame with which it works meanwhile.
class Bystander {
public:
    Bystander() {
        if (numacre_attach(nullptr, nullptr, &pool_) != 0) fail("attach: %s", numacre_last_error());
        hold(kLargest);
        for (std::size_t bytes = kLargest / 2; bytes >= kFrame; bytes /= 2) hold(bytes);
    }
    ~Bystander() {
        for (const Held &held : held_) numacre_free_uncached(pool_, held.address);
        numacre_detach(pool_);
    }
    std::uint64_t held_frames() const {
        std::uint64_t bytes = 0;
        for (const Held &held : held_) bytes += held.bytes;
        return bytes / kFrame;
    }
    void work() {
        void *const frame = allocate(pool_, kFrame);
        for (const Held &held : held_) check_stamp(held.address, held.bytes);
        if (numacre_free_uncached(pool_, frame) != 0) fail("the bystander cannot free: %s", numacre_last_error());
    }
    // The chunk is free, and whole.
    void check_chunk_is_free() {
        if (numacre_free_uncached(pool_, allocate(pool_, kLargest)) != 0) fail("%s", numacre_last_error());
    }

private:
    struct Held {
        char *address;
        std::size_t bytes;
    };
    void hold(std::size_t bytes) {
        held_.push_back({static_cast<char *>(allocate(pool_, bytes)), bytes});
        stamp(held_.back().address, bytes);
    }
    numacre_pool *pool_ = nullptr;
    std::vector<Held> held_;
};

// --- the one that dies -----------------------------------------------------------------------------------------------

enum class Role { give, serve, serve_two, wait, wait_asleep };

void be_child(Role role) {
    const bool waits = role == Role::wait || role == Role::wait_asleep;
    numacre_pool *pool = nullptr;
    if (numacre_attach(nullptr, nullptr, &pool) != 0) fail("the child's attach: %s", numacre_last_error());
    void *block = nullptr;
    // The way there without the dynamic linker, and a thread slot. The bystander's frame: all else is taken.
    if (numacre_free_uncached(pool, allocate(pool, kFrame)) != 0 || numacre_free(pool, nullptr) == 0)
        fail("the child's warm-up: %s", numacre_last_error());
    if (!waits) block = allocate(pool, kLargest);
    Traced::pause();
    const int error = waits ? numacre_alloc_on(pool, -1, kLargest, NUMACRE_UNCACHED | NUMACRE_WAIT, &block)
                      : role == Role::give ? numacre_free(pool, block)
                                           : numacre_free_uncached(pool, block);
    if (error != 0) fail("the child: %s", numacre_last_error());
    Traced::pause();
}

struct Operation {
    const char *name;
    Role role;
    std::size_t waited_for = kLargest;
};
constexpr Operation kOperations[] = {
    {"give", Role::give},
    {"serve", Role::serve},
    {"serve-two", Role::serve_two, kLargest / 2},
    {"wait", Role::wait},
    {"wait-asleep", Role::wait_asleep},  // it is no instruction at which this one is killed
};

// --- the test --------------------------------------------------------------------------------------------------------

class Test {
public:
    explicit Test(const numacre::test::StepOptions &options) : options_(options), alone_(observer_.clients()) {}

    void run() {
        std::printf("replay: hand_off_step_test --seed %ju%s\n", options_.seed, options_.every ? " --every" : "");
        for (const Operation &operation : kOperations)
            if (options_.only.empty() || options_.only == operation.name) kill_in(operation);
        if (kills_ == 0) fail("there is no operation '%s'", options_.only.c_str());
        std::printf("%ju kills: who waited got it, nobody else did, and everything came back\n", kills_);
    }

private:
    void kill_in(const Operation &operation) {
        Way way;
        way.reserve(1 << 16);
        if (operation.role == Role::wait_asleep) {
            for (int i = 0; i < 5; ++i) kill_at(operation, 0, way);
            std::printf("%-12s killed 5 times\n", operation.name);
            return;
        }
        for (int child = 0; child < 3; ++child) {  // until nothing grows any more
            way.clear();
            kill_at(operation, 0, way);
        }
        const std::uint64_t length = way.size();
        const std::uint64_t places = options_.every ? length : std::min(length, kDrawn);
        elsewhere_ = 0;
        std::mt19937_64 random{options_.seed};
        for (std::uint64_t part = 0; part < places; ++part) {
            const std::uint64_t first = part * length / places;
            const std::uint64_t drawn = first + random() % ((part + 1) * length / places - first);
            kill_at(operation, options_.has_at ? std::min(options_.at, length - 1) : drawn, way);
            if (options_.has_at) return;
        }
        std::printf("%-12s %6ju instructions, killed at %5ju of them, %ju times another way was taken\n",
                    operation.name, length, places, elsewhere_);
        std::fflush(stdout);
    }

    void kill_at(const Operation &operation, std::uint64_t instructions, Way &way) {
        std::snprintf(now_at, sizeof now_at, "--only %s --at %ju", operation.name, instructions);
        if (operation.role == Role::wait || operation.role == Role::wait_asleep)
            kill_waiter(operation.role, instructions, way);
        else
            kill_giver(operation, instructions, way);
        wait_until("the dead child is reaped", [&] { return observer_.clients() == alone_; });
        if (const std::uint64_t damage = observer_.damage(); damage != 0) fail("%ju words are damaged", damage);
        if (const std::uint64_t used = observer_.snapshot().used_frames; used != bystander_.held_frames())
            fail("%ju frames are taken, %ju of them the bystander's", used, bystander_.held_frames());
        bystander_.check_chunk_is_free();
        bystander_.work();
        ++kills_;
    }

    void kill_giver(const Operation &operation, std::uint64_t instructions, Way &way) {
        Traced child{[&] { be_child(operation.role); }};
        first_.begin_to_wait(operation.waited_for, observer_);
        second_.begin_to_wait(operation.waited_for, observer_);
        go(child, way, instructions);
        bystander_.work();
        child.kill();
        bystander_.work();
        first_.expect_block();
        if (operation.role != Role::serve_two) {
            // There is one block for two: while one has it, the other has not.
            if (second_.has_block()) fail("both waiters have the chunk");
            first_.free_block();
            second_.expect_block();
        } else {
            second_.expect_block();
            first_.free_block();
        }
        second_.free_block();
    }

    void kill_waiter(Role role, std::uint64_t instructions, Way &way) {
        first_.get(kLargest);
        Traced child{[&] { be_child(role); }};
        if (role == Role::wait_asleep) {
            child.let_run();
            wait_until("the child sleeps",
                       [&] { return observer_.wait_word_of(child.pid()).is_waiting() && is_asleep(child.pid()); });
            second_.begin_to_wait(kLargest, observer_);
            child.kill();
            first_.free_block();
        } else {
            first_.free_when_asleep(child.pid());
            go(child, way, instructions);
            // Stands still before it sleeps, or after; the chunk is on its way to it, or its, or the helper's still.
            second_.begin_to_wait(kLargest, observer_);
            bystander_.work();
            child.kill();
            first_.expect_freed();
        }
        bystander_.work();
        second_.expect_block();
        second_.free_block();
    }

    void go(Traced &child, Way &way, std::uint64_t instructions) {
        if (way.empty())
            child.walk(way);
        else
            elsewhere_ += !child.go(way, instructions);
    }

    numacre::test::StepOptions options_;
    Helper first_, second_;
    Bystander bystander_;
    Observer observer_{"default"};
    unsigned alone_;
    std::uint64_t kills_ = 0;
    std::uint64_t elsewhere_ = 0;  // of one operation: kills behind its end, which was reached otherwise
};

}  // namespace

int main(int argc, char **argv) {
    try {
        Test test{numacre::test::step_options_of(argc, argv)};
        test.run();
    } catch (const numacre::test::CannotTrace &reason) {
        std::printf("SKIP: %s\n", reason.what());
        std::exit(numacre::test::kSkipped);
    } catch (const numacre::test::TraceFailed &reason) {
        fail("%s", reason.what());
    }
    return 0;
}
