// relay: packets from one process to another through a numacre pool. See README.md.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
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

// Runs one side in a new process.
pid_t start(const char *side, const std::function<int()> &run) {
    const pid_t child = ::fork();
    if (child < 0) throw std::system_error(errno, std::generic_category(), "cannot start a process");
    if (child != 0) return child;
    ::_exit(guarded(side, run));
}

// Removes the channel of a run, if a side that failed has left packets in it: nobody else knows its name.
void remove_channel(const Options &options) {
    numacre_pool *pool = nullptr;
    const char *const runtime_dir = options.runtime_dir.empty() ? nullptr : options.runtime_dir.c_str();
    if (numacre_attach(runtime_dir, options.pool.c_str(), &pool) != 0) return;
    (void)numacre_channel_remove(pool, options.channel.c_str());
    numacre_detach(pool);
}

// Runs both sides, each as a process of its own, with a channel of their own.
int run_both(Options options) {
    const pid_t parent = ::getpid();
    options.channel = "relay-" + std::to_string(parent);
    const sigset_t awaited = signals({SIGCHLD, SIGINT, SIGTERM});
    sigset_t before;
    ::sigprocmask(SIG_BLOCK, &awaited, &before);

    pid_t capture = start("capture", [&] {
        // The capture ends with this process, and the other side with the capture's stream.
        ::prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (::getppid() != parent) return relay::kFailed;
        ::sigprocmask(SIG_SETMASK, &before, nullptr);
        return relay::run_capture(options);
    });
    const relay::Fd capture_process(static_cast<int>(::syscall(SYS_pidfd_open, capture, 0)));
    if (capture_process.get() < 0)
        throw std::system_error(errno, std::generic_category(), "cannot watch the capture's process");
    const pid_t flows = start("flows", [&] {
        // Ctrl-C reaches every process of the terminal: the capture stops, and this side counts the remaining packets
        // and ends after it.
        ::signal(SIGINT, SIG_IGN);
        ::sigprocmask(SIG_SETMASK, &before, nullptr);
        return relay::run_flows(options, capture_process);
    });

    int result = relay::kDone;
    for (int running = 2; running > 0;) {
        const int signal = ::sigwaitinfo(&awaited, nullptr);
        bool stops = signal == SIGINT || signal == SIGTERM;
        int status = 0;
        while (running > 0) {
            const pid_t ended = ::waitpid(-1, &status, WNOHANG);
            if (ended <= 0) break;
            --running;
            const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
            // kPeerLost is the less informative code: the peer's own exit code has the reason.
            if (code != relay::kDone && (result == relay::kDone || result == relay::kPeerLost)) result = code;
            if (ended == capture) capture = 0;
            // Nobody is there to read, or ever was.
            if (ended == flows && code != relay::kDone) stops = true;
        }
        if (stops && capture != 0) ::kill(capture, SIGTERM);
    }
    remove_channel(options);
    return result;
}

}  // namespace

int main(int argc, char **argv) {
    Options options;
    CLI::App app{"Packets from one process to another through a numacre pool."};
    app.require_subcommand(1);
    auto *const capture = app.add_subcommand("capture", "capture packets into blocks and send the blocks");
    auto *const flows = app.add_subcommand("flows", "receive the blocks, count flows, free the blocks");
    auto *const both = app.add_subcommand("run", "start both, each as a process of its own");
    for (auto *const command : {capture, flows, both}) {
        command->add_option("--pool", options.pool, "pool to use")->capture_default_str();
        command->add_option("--runtime-dir", options.runtime_dir,
                            "numacred's ($NUMACRE_RUNTIME_DIR, else /run/numacre)");
        command->add_flag("--json", options.json, "print one JSON object a side, on one line");
        command->add_option("--capacity", options.capacity, "packets on their way; 0: as the channel is, 1024 if new")
            ->capture_default_str()
            ->check(CLI::Range(0, 4096));
    }
    for (auto *const command : {capture, flows})
        command->add_option("--channel", options.channel, "where the two meet")->capture_default_str();
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

    relay::stop_on_signals();
    if (*capture) return guarded("capture", [&] { return relay::run_capture(options); });
    if (*flows) return guarded("flows", [&] { return relay::run_flows(options); });
    return guarded("run", [&] { return run_both(options); });
}
