#include "peers.hpp"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "child.hpp"
#include "daemon.hpp"

namespace numacre::bench {
namespace {

class Pipe {
public:
    Pipe() {
        if (pipe(ends_.data()) != 0) throw std::runtime_error(std::string("pipe: ") + strerror(errno));
    }
    ~Pipe() {
        close(ends_[0]);
        close_writer();
    }
    Pipe(const Pipe &) = delete;
    Pipe &operator=(const Pipe &) = delete;
    int reader() const { return ends_[0]; }
    int writer() const { return ends_[1]; }
    void close_writer() {
        if (ends_[1] >= 0) close(ends_[1]);
        ends_[1] = -1;
    }

private:
    std::array<int, 2> ends_;
};

std::vector<char *> pointers_to(std::vector<std::string> &texts) {
    std::vector<char *> pointers;
    for (std::string &text : texts) pointers.push_back(text.data());
    pointers.push_back(nullptr);
    return pointers;
}

// The linker looks a bare name up where it looks for every library.
pid_t start(const std::string &program, const Peer &peer, const Run &run, const Pipe &output) {
    std::vector<std::string> arguments = child_arguments(run);
    arguments.insert(arguments.begin(), program);
    std::vector<std::string> environment;
    for (char **variable = environ; *variable != nullptr; ++variable) environment.emplace_back(*variable);
    if (!peer.preload.empty()) environment.push_back("LD_PRELOAD=" + peer.preload);

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, output.writer(), STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, output.reader());
    posix_spawn_file_actions_addclose(&actions, output.writer());
    pid_t child = -1;
    const int error = posix_spawn(&child, program.c_str(), &actions, nullptr, pointers_to(arguments).data(),
                                  pointers_to(environment).data());
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) throw std::runtime_error("cannot start " + program + ": " + strerror(error));
    return child;
}

// Everything that comes out of it; false: it took too long.
bool read_all(int from, std::uint64_t seconds, std::string &text) {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + std::chrono::seconds(seconds);
    for (;;) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
        pollfd readable{.fd = from, .events = POLLIN, .revents = 0};
        if (left.count() <= 0 || poll(&readable, 1, static_cast<int>(left.count())) == 0) return false;
        std::array<char, 4096> part;
        const ssize_t length = read(from, part.data(), part.size());
        if (length < 0 && errno == EINTR) continue;
        if (length <= 0) return true;
        text.append(part.data(), static_cast<std::size_t>(length));
    }
}

// The last line: a library may have said something before it.
Answer parse(const std::string &text) {
    const std::size_t begin = text.rfind("{");
    const nlohmann::json line =
        begin == std::string::npos ? nlohmann::json() : nlohmann::json::parse(text.substr(begin), nullptr, false);
    Answer answer;
    if (!line.is_object()) {
        answer.problem = "its answer is not JSON: '" + text + "'";
    } else if (line.contains("skip")) {
        answer.skip = line["skip"];
    } else {
        answer.outcome = {.pairs = line["pairs"],
                          .wall_ns = line["wall_ns"],
                          .cpu_ns = line["cpu_ns"],
                          .failed = line["failed"],
                          .filled = line["filled"],
                          .overlaps = line["overlaps"],
                          .checked_pairs = line["checked_pairs"],
                          .alone = line["alone"]};
        if (answer.outcome.pairs == 0) answer.problem = "it did not finish a single step in time";
    }
    return answer;
}

}  // namespace

const char *name_of(Kind kind) {
    switch (kind) {
        case Kind::floor:
            return "floor";
        case Kind::shared:
            return "shared";
        case Kind::cached:
            return "cached";
    }
    return "";
}

const std::vector<Peer> &peers() {
    static const std::vector<Peer> list{
        {.name = "empty", .kind = Kind::floor},
        {.name = "rmw", .kind = Kind::floor},
        {.name = "numacre-tree", .kind = Kind::shared, .ours = true},
        {.name = "numacre", .kind = Kind::cached, .ours = true},
        {.name = "numacre-inline", .kind = Kind::cached, .ours = true},
        {.name = "numacre-bulk", .kind = Kind::cached, .ours = true, .holds_back = true},
        {.name = "glibc", .kind = Kind::cached},
        {.name = "jemalloc", .kind = Kind::cached, .preload = "libjemalloc.so.2"},
        {.name = "mimalloc", .kind = Kind::cached, .preload = "libmimalloc.so.2"},
        {.name = "tcmalloc", .kind = Kind::cached, .preload = "libtcmalloc_minimal.so.4"},
        {.name = "nbbs-1lvl", .kind = Kind::shared, .known_faults = true},
        {.name = "nbbs-4lvl", .kind = Kind::shared, .known_faults = true},
        {.name = "nbbs-1lvl-lock", .kind = Kind::shared},
        {.name = "nbbs-4lvl-lock", .kind = Kind::shared},
        {.name = "buddy-lock", .kind = Kind::shared},
        {.name = "boost", .kind = Kind::shared},
        {.name = "dpdk-ring", .kind = Kind::shared, .program = "allocators_dpdk"},
        {.name = "dpdk-stack", .kind = Kind::shared, .program = "allocators_dpdk"},
        {.name = "dpdk-lf-stack", .kind = Kind::shared, .program = "allocators_dpdk"},
        {.name = "dpdk-malloc", .kind = Kind::shared, .program = "allocators_dpdk"},
        {.name = "dpdk-ring-cache", .kind = Kind::cached, .program = "allocators_dpdk"},
        {.name = "dpdk-stack-cache", .kind = Kind::cached, .program = "allocators_dpdk"},
        {.name = "dpdk-lf-stack-cache", .kind = Kind::cached, .program = "allocators_dpdk"},
        {.name = "dpdk-ring-bulk", .kind = Kind::cached, .holds_back = true, .program = "allocators_dpdk"},
    };
    return list;
}

Answer measure_in_child(const Peer &peer, const Run &wanted, std::uint64_t seconds) {
    const std::filesystem::path program =
        std::filesystem::read_symlink("/proc/self/exe").replace_filename(peer.program);
    Answer answer;
    if (!std::filesystem::exists(program)) {
        answer.skip = peer.program + " was not built: the headers of its library were missing at configure time";
        return answer;
    }
    Run run = wanted;
    std::optional<Daemon> daemon;  // ends after the measuring process
    if (peer.ours && run.processes != 0 && run.attach.empty()) {
        try {
            run.attach = daemon.emplace(run.pool_bytes).runtime_dir();
        } catch (const Unavailable &why) {
            answer.skip = why.what();
            return answer;
        }
    }
    Pipe output;
    const pid_t child = start(program, peer, run, output);
    output.close_writer();
    std::string text;
    const bool in_time = read_all(output.reader(), seconds, text);
    if (!in_time) kill(child, SIGKILL);
    answer.too_slow = !in_time;
    int status = 0;
    waitpid(child, &status, 0);
    if (!in_time)
        answer.problem = "it had not ended after " + std::to_string(seconds) + " s";
    else if (WIFSIGNALED(status))
        answer.problem = std::string("it died of: ") + strsignal(WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0)
        answer.problem = "it gave up, see above";
    else
        return parse(text);
    return answer;
}

}  // namespace numacre::bench
