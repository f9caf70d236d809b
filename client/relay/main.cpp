// relay: packets from one process to another through a numacre pool. See README.md.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <initializer_list>
#include <system_error>

#include "options.hpp"

namespace {

using relay::Options;

int guarded(const char *side, const std::function<int()> &run) {
    try {
        return run();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "relay %s: %s\n", side, error.what());
        return relay::kFailed;
    }
}

sigset_t signals(std::initializer_list<int> numbers) {
    sigset_t set;
    ::sigemptyset(&set);
    for (const int number : numbers) ::sigaddset(&set, number);
    return set;
}

// Runs one side in a new process, which ends when this process ends.
pid_t start(const char *side, const std::function<int()> &run) {
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child < 0) throw std::system_error(errno, std::generic_category(), "cannot start a process");
    if (child != 0) return child;
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(relay::kFailed);
    ::_exit(guarded(side, run));
}

// Runs both sides, each as a process of its own, joined by a socket pair instead of a path.
int run_both(const Options &options) {
    int sockets[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
        throw std::system_error(errno, std::generic_category(), "cannot make a socket pair");
    const sigset_t awaited = signals({SIGCHLD, SIGINT, SIGTERM});
    sigset_t before;
    ::sigprocmask(SIG_BLOCK, &awaited, &before);

    const pid_t flows = start("flows", [&] {
        ::close(sockets[0]);
        // Ctrl-C reaches every process of the terminal: the capturer stops, and this side counts the remaining packets
        // and ends after it.
        ::signal(SIGINT, SIG_IGN);
        ::sigprocmask(SIG_SETMASK, &before, nullptr);
        return relay::run_flows(options, relay::Link(relay::Fd(sockets[1])));
    });
    const pid_t capture = start("capture", [&] {
        ::close(sockets[1]);
        ::sigprocmask(SIG_SETMASK, &before, nullptr);
        return relay::run_capture(options, relay::Link(relay::Fd(sockets[0])));
    });
    // Ends that stay open here would hide the death of the process that they belong to.
    ::close(sockets[0]);
    ::close(sockets[1]);

    int result = relay::kDone;
    for (int running = 2; running > 0;) {
        const int signal = ::sigwaitinfo(&awaited, nullptr);
        if (signal == SIGINT || signal == SIGTERM) ::kill(capture, SIGTERM);
        int status = 0;
        while (running > 0) {
            const pid_t ended = ::waitpid(-1, &status, WNOHANG);
            if (ended != flows && ended != capture) break;
            --running;
            const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
            // kPeerLost is the less informative code: the peer's own exit code has the reason.
            if (code != relay::kDone && (result == relay::kDone || result == relay::kPeerLost)) result = code;
        }
    }
    return result;
}

std::string default_socket(const Options &options) {
    const char *const from_environment = std::getenv("NUMACRE_RUNTIME_DIR");
    std::string directory = options.runtime_dir;
    if (directory.empty())
        directory = from_environment != nullptr && *from_environment != 0 ? from_environment : "/run/numacre";
    return directory + "/relay.sock";
}

}  // namespace

int main(int argc, char **argv) {
    Options options;
    CLI::App app{"Packets from one process to another through a numacre pool."};
    app.require_subcommand(1);
    auto *const capture = app.add_subcommand("capture", "capture packets into blocks and pass their references on");
    auto *const flows = app.add_subcommand("flows", "take the blocks, count flows, free the blocks");
    auto *const both = app.add_subcommand("run", "start both, each as a process of its own");
    for (auto *const command : {capture, flows, both}) {
        command->add_option("--pool", options.pool, "pool to use")->capture_default_str();
        command->add_option("--runtime-dir", options.runtime_dir,
                            "numacred's ($NUMACRE_RUNTIME_DIR, else /run/numacre)");
        command->add_flag("--json", options.json, "print one JSON object a side, on one line");
    }
    for (auto *const command : {capture, flows})
        command->add_option("--socket", options.socket, "where the two meet (<runtime dir>/relay.sock)");
    for (auto *const command : {capture, both}) {
        auto *const pcap =
            command->add_option("--pcap", options.pcap, "packets from this capture file")->check(CLI::ExistingFile);
        auto *const interface =
            command->add_option("--interface", options.interface, "packets live from here; needs CAP_NET_RAW");
        interface->capture_default_str()->excludes(pcap);
        command->add_option("--loop", options.loops, "replay the file so many times")
            ->capture_default_str()
            ->needs(pcap);
        command->add_option("--limit", options.packets_max, "stop after so many packets; 0: never")
            ->capture_default_str();
        command->add_option("--seconds", options.seconds_max, "stop after so long; 0: never")
            ->capture_default_str()
            ->check(CLI::NonNegativeNumber);
        command->add_option("--ring-slots", options.ring_slots, "references in flight, a power of two")
            ->capture_default_str()
            ->check([](const std::string &text) {
                const bool digits =
                    !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos;
                return digits && relay::valid_ring_slots(std::stoull(text))
                           ? std::string()
                           : text + " is not a power of two from 2 to 16777216";
            });
        auto *const af_xdp =
            command
                ->add_flag("--af-xdp", options.af_xdp,
                           "live by AF_XDP: the kernel writes packets into blocks, and does not see them any more")
                ->excludes(pcap)
                ->needs(interface);
        command->add_option("--queue", options.queue, "AF_XDP: the interface's queue")
            ->capture_default_str()
            ->needs(af_xdp);
        command->add_option("--snap-bytes", options.snap_bytes, "live: keep so much of each packet")
            ->capture_default_str()
            ->excludes(af_xdp)
            ->check(CLI::Range(64, 65552));
    }
    for (auto *const command : {flows, both}) {
        command->add_option("--flows-max", options.flows_max, "tell so many flows apart")->capture_default_str();
        command->add_option("--top", options.top, "show so many flows")->capture_default_str();
    }
    CLI11_PARSE(app, argc, argv);
    if (options.socket.empty()) options.socket = default_socket(options);

    relay::stop_on_signals();
    if (*capture) return guarded("capture", [&] { return relay::run_capture(options); });
    if (*flows) return guarded("flows", [&] { return relay::run_flows(options); });
    return guarded("run", [&] { return run_both(options); });
}
