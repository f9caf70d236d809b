// How long it takes until a thread that waits for memory goes on with the block that another process releases, beside a
// pointer handed over by a process-shared mutex and condition variable, and beside a bare futex: what the kernel takes
// for its part. With one waiter, and with several: then also how many are woken for one block (the herd). Prints
// figures; asserts nothing about time. What is checked is that each block arrives, and once.
//
// The pool is full: this process holds all of it. A child is a client of its own that waits; it goes on only when told,
// and the next block is released when all are asleep again.
//
// usage: wait_bench [--rounds N] [--ms N] [--waiters N,...]      on a live daemon: $NUMACRE_RUNTIME_DIR
// (with_daemon.py)
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "numacre/numacre.h"

namespace {

constexpr std::size_t kFrame = 4096;
constexpr unsigned kWaitersMax = 32;
constexpr std::uint64_t kPatience = 60'000'000'000;

enum class Kind : unsigned { futex, cond_signal, cond_broadcast, numacre };
constexpr Kind kKinds[] = {Kind::futex, Kind::cond_signal, Kind::cond_broadcast, Kind::numacre};
const char *name_of(Kind kind) {
    switch (kind) {
        case Kind::futex:
            return "futex";
        case Kind::cond_signal:
            return "cond_signal";
        case Kind::cond_broadcast:
            return "cond_broadcast";
        case Kind::numacre:
            return "numacre";
    }
    return "?";
}

std::uint64_t now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);  // the same in all processes
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

// Between the processes.
struct Shared {
    Kind kind;
    bool over;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    std::uint64_t handed;  // under the mutex
    std::atomic<std::uint32_t> futex;
    sem_t begin[kWaitersMax];                         // wait once more
    std::atomic<std::uint64_t> entered[kWaitersMax];  // how often it has begun to wait
    sem_t arrived;
    // Of who has it.
    unsigned who;
    numacre_ref reference;
    std::uint64_t returned_at;
};
Shared *shared;

[[noreturn]] void give_up(const char *what) {
    std::fprintf(stderr, "wait_bench: %s: %s\n", what, numacre_last_error());
    std::_Exit(1);
}

// --- who waits -------------------------------------------------------------------------------------------------------

std::uint64_t wait_for(Kind kind, numacre_pool *pool) {
    if (kind == Kind::numacre) {
        void *block = nullptr;
        if (numacre_alloc_on(pool, -1, kFrame, NUMACRE_UNCACHED | NUMACRE_WAIT, &block) != 0) give_up("wait");
        return reinterpret_cast<std::uint64_t>(block);
    }
    if (kind == Kind::futex) {
        std::uint32_t handed = 0;
        while ((handed = shared->futex.load()) == 0 || !shared->futex.compare_exchange_strong(handed, 0))
            syscall(SYS_futex, &shared->futex, FUTEX_WAIT, 0, nullptr, nullptr, 0);
        return handed;
    }
    pthread_mutex_lock(&shared->mutex);
    while (shared->handed == 0) pthread_cond_wait(&shared->changed, &shared->mutex);
    const std::uint64_t handed = std::exchange(shared->handed, 0);
    pthread_mutex_unlock(&shared->mutex);
    return handed;
}

[[noreturn]] void be_waiter(unsigned index) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up("prctl");
    numacre_pool *pool = nullptr;
    if (numacre_attach(nullptr, nullptr, &pool) != 0) give_up("attach");
    for (;;) {
        while (sem_wait(&shared->begin[index]) != 0) {
        }
        if (shared->over) break;
        const Kind kind = shared->kind;
        shared->entered[index].fetch_add(1);
        const std::uint64_t handed = wait_for(kind, pool);
        shared->returned_at = now();
        shared->who = index;
        if (kind == Kind::numacre) shared->reference = numacre_ref_of(pool, reinterpret_cast<void *>(handed));
        sem_post(&shared->arrived);
    }
    numacre_detach(pool);
    std::_Exit(0);
}

// --- who releases ----------------------------------------------------------------------------------------------------

struct Sample {
    std::uint64_t latency;  // from just before the release until the waiter has returned
    std::uint64_t release;  // what that took who released
    std::uint64_t woken;    // how often a waiter was
};

class Bench {
public:
    explicit Bench(unsigned waiters) : entered_(waiters) {
        // Before the children attach: whoever waits must not be given what is still free.
        if (numacre_attach(nullptr, nullptr, &pool_) != 0) give_up("attach");
        void *block = nullptr;
        while (numacre_alloc_on(pool_, -1, kFrame, NUMACRE_UNCACHED, &block) == 0) block_ = block;
        if (block_ == nullptr) give_up("nothing is free");
        for (unsigned index = 0; index < waiters; ++index) {
            sem_init(&shared->begin[index], 1, 0);
            shared->entered[index] = 0;
            const pid_t child = fork();
            if (child < 0) give_up("fork");
            if (child == 0) be_waiter(index);
            children_.push_back(child);
        }
    }
    ~Bench() {
        shared->over = true;
        for (unsigned index = 0; index < children_.size(); ++index) sem_post(&shared->begin[index]);
        for (const pid_t child : children_) {
            int status = 0;
            if (waitpid(child, &status, 0) != child || status != 0) give_up("a waiter did not end well");
        }
        shared->over = false;
        numacre_detach(pool_);
    }

    std::vector<Sample> measure(Kind kind, std::uint64_t milliseconds) {
        shared->kind = kind;
        for (unsigned index = 0; index < children_.size(); ++index) begin(index);
        std::vector<Sample> samples;
        const std::uint64_t end = now() + milliseconds * 1'000'000;
        do {
            samples.push_back(hand_one_over(kind));
            begin(shared->who);
        } while (now() < end);
        // Those who wait still are let go.
        for (std::size_t left = children_.size(); left > 0; --left) hand_one_over(kind);
        return samples;
    }

private:
    void begin(unsigned index) {
        ++entered_[index];
        sem_post(&shared->begin[index]);
    }
    Sample hand_one_over(Kind kind) {
        for (unsigned index = 0; index < children_.size(); ++index) wait_until_asleep(index);
        const std::uint64_t sleeps = all_sleeps();
        Sample sample{};
        const std::uint64_t before = now();
        release(kind);
        sample.release = now() - before;
        while (sem_wait(&shared->arrived) != 0) {
        }
        sample.latency = shared->returned_at - before;
        if (kind == Kind::numacre && numacre_take(pool_, shared->reference, &block_) != 0) give_up("take");
        // Who was woken for nothing sleeps again, and who was not has slept all the time.
        for (unsigned index = 0; index < children_.size(); ++index) wait_until_asleep(index);
        sample.woken = all_sleeps() - sleeps;
        return sample;
    }
    void release(Kind kind) {
        switch (kind) {
            case Kind::futex:
                shared->futex.store(1);
                syscall(SYS_futex, &shared->futex, FUTEX_WAKE, 1, nullptr, nullptr, 0);
                break;
            case Kind::cond_signal:
            case Kind::cond_broadcast:
                // Told after the mutex is free: otherwise who is woken sleeps once more, for that.
                pthread_mutex_lock(&shared->mutex);
                shared->handed = 1;
                pthread_mutex_unlock(&shared->mutex);
                if (kind == Kind::cond_signal)
                    pthread_cond_signal(&shared->changed);
                else
                    pthread_cond_broadcast(&shared->changed);
                break;
            case Kind::numacre:
                if (numacre_free_uncached(pool_, block_) != 0) give_up("free");
                break;
        }
    }

    // Has begun what it was told to, and is in a system call that sleeps: there is no other on its way there.
    void wait_until_asleep(unsigned index) const {
        const std::uint64_t begin = now();
        while (shared->entered[index].load() != entered_[index] || state_of(children_[index]) != 'S') {
            if (now() - begin > kPatience) give_up("a waiter does not go to sleep, or was not woken");
            sched_yield();
        }
    }
    static char state_of(pid_t pid) {
        char text[512] = {};
        read_proc(pid, "stat", text, sizeof text);
        const char *const after_name = std::strrchr(text, ')');
        return after_name == nullptr ? '?' : after_name[2];
    }
    std::uint64_t all_sleeps() const {
        std::uint64_t all = 0;
        for (const pid_t child : children_) {
            char text[4096] = {};
            read_proc(child, "status", text, sizeof text);
            const char *const found = std::strstr(text, "\nvoluntary_ctxt_switches:");
            if (found == nullptr) give_up("/proc does not tell how often a process slept");
            all += std::strtoull(found + std::strlen("\nvoluntary_ctxt_switches:"), nullptr, 10);
        }
        return all;
    }
    static void read_proc(pid_t pid, const char *file, char *text, std::size_t room) {
        const std::string path = "/proc/" + std::to_string(pid) + "/" + file;
        const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0 || read(fd, text, room - 1) <= 0) give_up(path.c_str());
        close(fd);
    }

    numacre_pool *pool_ = nullptr;
    void *block_ = nullptr;
    std::vector<pid_t> children_;
    std::vector<std::uint64_t> entered_;
};

// --- the report ------------------------------------------------------------------------------------------------------

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}
template <class Value>
std::vector<double> each(const std::vector<Sample> &samples, Value value) {
    std::vector<double> values;
    for (const Sample &sample : samples) values.push_back(static_cast<double>(value(sample)));
    return values;
}

struct Figures {
    std::vector<double> latency, release;  // medians of the rounds
    std::vector<double> ratio;             // of a round's median to that of cond_signal in the same round
    std::uint64_t woken = 0, samples = 0;
};

void compare(unsigned waiters, unsigned rounds, std::uint64_t milliseconds) {
    std::map<Kind, Figures> figures;
    Bench bench{waiters};
    for (unsigned round = 0; round < rounds; ++round) {
        for (std::size_t i = 0; i < std::size(kKinds); ++i) {
            const Kind kind = kKinds[(i + round) % std::size(kKinds)];  // the next round begins with another
            const std::vector<Sample> samples = bench.measure(kind, milliseconds);
            Figures &of_kind = figures[kind];
            of_kind.latency.push_back(median(each(samples, [](const Sample &s) { return s.latency; })));
            of_kind.release.push_back(median(each(samples, [](const Sample &s) { return s.release; })));
            for (const Sample &sample : samples) of_kind.woken += sample.woken;
            of_kind.samples += samples.size();
        }
        for (auto &[kind, of_kind] : figures)
            of_kind.ratio.push_back(of_kind.latency.back() / figures[Kind::cond_signal].latency.back());
    }
    std::printf("%u waiting\n  %-15s %8s %17s %10s %7s %15s %8s %8s\n", waiters, "KIND", "NS", "LEAST .. MOST",
                "RELEASE NS", "x COND", "LEAST .. MOST", "WOKEN", "SAMPLES");
    for (const Kind kind : kKinds) {
        const Figures &of_kind = figures[kind];
        const auto [least, most] = std::minmax_element(of_kind.latency.begin(), of_kind.latency.end());
        const auto [smallest, largest] = std::minmax_element(of_kind.ratio.begin(), of_kind.ratio.end());
        std::printf("  %-15s %8.0f %7.0f .. %6.0f %10.0f %7.2f %6.2f .. %5.2f %8.2f %8llu\n", name_of(kind),
                    median(of_kind.latency), *least, *most, median(of_kind.release), median(of_kind.ratio), *smallest,
                    *largest, static_cast<double>(of_kind.woken) / static_cast<double>(of_kind.samples),
                    static_cast<unsigned long long>(of_kind.samples));
    }
    std::fflush(stdout);
}

void make_shared() {
    void *const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) give_up("mmap");
    shared = new (memory) Shared{};
    pthread_mutexattr_t for_mutex;
    pthread_mutexattr_init(&for_mutex);
    pthread_mutexattr_setpshared(&for_mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&shared->mutex, &for_mutex);
    pthread_condattr_t for_cond;
    pthread_condattr_init(&for_cond);
    pthread_condattr_setpshared(&for_cond, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&shared->changed, &for_cond);
    sem_init(&shared->arrived, 1, 0);
}

}  // namespace

int main(int argc, char **argv) {
    CLI::App app{"Hand-off of a released block to who waits for it, beside a condition variable"};
    unsigned rounds = 5;
    std::uint64_t milliseconds = 500;
    std::vector<unsigned> waiters{1, 8};
    app.add_option("--rounds", rounds, "How often everything is measured")->check(CLI::Range(1, 1000));
    app.add_option("--ms", milliseconds, "How long, each time")->check(CLI::Range(1, 60'000));
    app.add_option("--waiters", waiters, "How many wait at once")->delimiter(',')->check(CLI::Range(1U, kWaitersMax));
    CLI11_PARSE(app, argc, argv);
    make_shared();
    double load[1] = {};
    (void)getloadavg(load, 1);
    std::printf("%ld CPUs, load %.1f; %u rounds of %llu ms each, medians of the rounds' medians\n",
                sysconf(_SC_NPROCESSORS_ONLN), load[0], rounds, static_cast<unsigned long long>(milliseconds));
    for (const unsigned count : waiters) compare(count, rounds, milliseconds);
}
