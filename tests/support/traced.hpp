// A child process whose every instruction is its tracer's to allow. Knows x86-64's registers only.
#pragma once

#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace numacre::test {

// The child did not do what it was to do.
struct TraceFailed : std::runtime_error {
    using std::runtime_error::runtime_error;
};
// Nothing is wrong but the machine: a test that cannot trace has to say so and be skipped.
struct CannotTrace : std::runtime_error {
    explicit CannotTrace(const char *what)
        : std::runtime_error(std::string(what) + ": " + std::strerror(errno) +
                             " (a container without CAP_SYS_PTRACE, or a seccomp filter?)") {}
};
inline constexpr int kSkipped = 77;  // the exit status by which a test says so

// All calls from the thread that made it. The child dies with its tracer.
class Traced {
public:
    using Way = std::vector<std::uintptr_t>;

    // body: what the child does. It stands still, and the constructor returns, where it calls pause().
    template <class Body>
    explicit Traced(Body body) {
        const pid_t parent = getpid();
        pid_ = fork();
        if (pid_ == 0) {
            // Also when it is traced no more: nobody would ever wake one that was left stopped.
            if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(kSkipped);
            if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(kSkipped);
            body();
            _exit(0);
        }
        const int status = wait();
        if (WIFEXITED(status) && WEXITSTATUS(status) == kSkipped) {
            errno = EPERM;
            throw CannotTrace("PTRACE_TRACEME");
        }
        if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP) fail("the child did not begin", status);
        if (ptrace(PTRACE_SETOPTIONS, pid_, nullptr, PTRACE_O_EXITKILL) != 0) throw CannotTrace("PTRACE_SETOPTIONS");
    }
    static void pause() { ::kill(getpid(), SIGSTOP); }

    pid_t pid() const { return pid_; }

    // Steps to its next pause. way: where it was before each instruction.
    void walk(Way &way) {
        way.push_back(place());
        while (goes_on(PTRACE_SINGLESTEP, "PTRACE_SINGLESTEP"))
            if (place() != way.back()) way.push_back(place());  // a string instruction is stepped part by part
    }
    // To where `way` was after so many instructions. False: it did not come by there, and is at its next pause.
    bool go(const Way &way, std::size_t instructions) {
        set_breakpoint(way[instructions]);
        const auto end = way.begin() + static_cast<std::ptrdiff_t>(instructions) + 1;
        for (auto times = std::count(way.begin() + 1, end, way[instructions]); times > 0; --times)
            if (!goes_on(PTRACE_CONT, "PTRACE_CONT")) return false;
        if (place() != way[instructions]) fail("stopped elsewhere than at the breakpoint", 0);
        return true;
    }
    // Steps until the first instruction after which the condition holds. False: it came to its next pause before.
    template <class Condition>
    bool step_until(Condition &&condition) {
        while (goes_on(PTRACE_SINGLESTEP, "PTRACE_SINGLESTEP"))
            if (condition()) return true;
        return false;
    }
    // Runs, or sleeps, until it is killed.
    void let_run() {
        if (ptrace(PTRACE_CONT, pid_, nullptr, nullptr) != 0) throw CannotTrace("PTRACE_CONT");
    }
    // Traced no more, and stopped as by an operator's `kill -STOP`: SIGCONT lets it go on.
    void leave_stopped() {
        // Pending before it is let go: it is stopped before its next instruction.
        if (::kill(pid_, SIGSTOP) != 0 || ptrace(PTRACE_DETACH, pid_, nullptr, nullptr) != 0)
            throw CannotTrace("PTRACE_DETACH");
        int status = 0;
        if (waitpid(pid_, &status, WUNTRACED) != pid_ || !WIFSTOPPED(status)) fail("the child is not stopped", status);
    }
    void kill() {
        ::kill(pid_, SIGKILL);
        if (const int status = wait(); !WIFSIGNALED(status)) fail("the child was not killed", status);
    }
    // Waits for its end. One that has been left stopped must have been let go before.
    void wait_for_good_end() {
        if (const int status = wait(); !WIFEXITED(status) || WEXITSTATUS(status) != 0)
            fail("the child did not end well", status);
    }

private:
    [[noreturn]] void fail(const char *what, int status) const {
        throw TraceFailed(std::string(what) + ": pid " + std::to_string(pid_) + ", status " + std::to_string(status));
    }
    // False: it has paused.
    bool goes_on(decltype(PTRACE_CONT) request, const char *name) {
        if (ptrace(request, pid_, nullptr, nullptr) != 0) throw CannotTrace(name);
        const int status = wait();
        if (!WIFSTOPPED(status)) fail("the child ended", status);
        if (WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != SIGSTOP) fail("the child got a signal", status);
        return WSTOPSIG(status) == SIGTRAP;
    }
    std::uintptr_t place() const {
        errno = 0;
        const long value = ptrace(PTRACE_PEEKUSER, pid_, offsetof(user, regs.rip), nullptr);
        if (errno != 0) throw CannotTrace("PTRACE_PEEKUSER");
        return static_cast<std::uintptr_t>(value);
    }
    // In the processor's debug registers: the code stays as it is.
    void set_breakpoint(std::uintptr_t address) const {
        constexpr long kExecuteFirst = 1;  // DR7: address 0 is on, for execution
        if (ptrace(PTRACE_POKEUSER, pid_, offsetof(user, u_debugreg[0]), address) != 0 ||
            ptrace(PTRACE_POKEUSER, pid_, offsetof(user, u_debugreg[7]), kExecuteFirst) != 0)
            throw CannotTrace("PTRACE_POKEUSER");
    }
    int wait() const {
        int status = 0;
        if (waitpid(pid_, &status, 0) != pid_) throw TraceFailed(std::string("waitpid: ") + std::strerror(errno));
        return status;
    }
    pid_t pid_;
};

// What the tests take that kill at each of a call's instructions.
struct StepOptions {
    bool every = false;  // all of them, and not a sample
    std::uint64_t seed = std::random_device{}();
    std::string only;  // one operation, by name
    bool has_at = false;
    std::uint64_t at = 0;  // one instruction
};

inline StepOptions step_options_of(int argc, char **argv) {
    StepOptions options;
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        if (name == "--every") {
            options.every = true;
            continue;
        }
        const char *const value = ++i < argc ? argv[i] : "";
        if (name == "--seed") options.seed = std::strtoull(value, nullptr, 0);
        if (name == "--only") options.only = value;
        if (name == "--at") options.has_at = true, options.at = std::strtoull(value, nullptr, 0);
    }
    return options;
}

}  // namespace numacre::test
