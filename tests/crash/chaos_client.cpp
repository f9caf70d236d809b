// A client whose threads work at random, while its main thread does what kill_test.py tells it to. Every block that it
// holds carries a stamp that only its owner writes: a stamp that changed means a block owned twice, exit 2. Passes
// references to whoever reads the shared file's ring. Not a test by itself: kill_test.py runs many of them.
//
// usage: chaos_client RUNTIME_DIR SHARED_FILE SEED THREADS        orders: letters on stdin, each answered by a line
//   q  free all, print the pauses, end          e  exit(0), blocks held, threads at work
//   d  detach with blocks held, attach anew     x  exec this program anew      o  exec another one, that sleeps
//   t  each thread ends with a full cache, another goes on with its blocks
//   f  fork: the child must be refused the handle, and lives on for a while
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "numacre/inline.h"

namespace {

constexpr std::size_t kRingSlots = 64;
constexpr std::size_t kHeldMax = 200;
constexpr std::size_t kHeldBytesMax = 6 << 20;  // of a thread: memory runs out now and then, not always
constexpr std::size_t kManyMax = 40;
constexpr unsigned kBurst = 4;  // blocks that change hands in one call
constexpr std::size_t kMoreThanCached = 300;
constexpr std::size_t kStampEvery = 4096;
constexpr std::size_t kLargeBytes = 4 << 20;
constexpr unsigned kWaitMillisecondsMax = 30;

// The shared file.
struct Shared {
    std::atomic<std::uint64_t> ring[kRingSlots];
    // Forked children; read by kill_test.py.
    std::atomic<std::uint64_t> refused;
    std::atomic<std::uint64_t> not_refused;
};

std::atomic<bool> stop{false};

std::uint64_t nanoseconds_of(clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

// How long single calls took, by the clock, and on the CPU: with more threads than CPUs each waits for its turn.
class Pauses {
public:
    void add(std::uint64_t nanoseconds, std::uint64_t on_cpu) {
        longest_ = std::max(longest_, nanoseconds);
        longest_on_cpu_ = std::max(longest_on_cpu_, on_cpu);
        // Four buckets an octave.
        const auto octave = static_cast<unsigned>(std::bit_width(nanoseconds | 4)) - 3;
        ++buckets_[octave * 4 + (nanoseconds >> octave & 3)];
    }
    void add(const Pauses &other) {
        longest_ = std::max(longest_, other.longest_);
        longest_on_cpu_ = std::max(longest_on_cpu_, other.longest_on_cpu_);
        for (std::size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
    }
    void print() const {
        std::uint64_t calls = 0;
        for (const std::uint64_t in_bucket : buckets_) calls += in_bucket;
        std::uint64_t below = 0;
        std::size_t median = 0;
        while (median + 1 < buckets_.size() && (below += buckets_[median]) * 2 < calls) ++median;
        const std::uintmax_t nanoseconds = std::uintmax_t{4 + median % 4} << median / 4;
        std::printf("pauses %ju %ju %ju\n", longest_, longest_on_cpu_, nanoseconds);
    }

private:
    std::uint64_t longest_ = 0;
    std::uint64_t longest_on_cpu_ = 0;
    std::array<std::uint64_t, 4 * 64> buckets_{};
};

struct Held {
    void *address;
    std::size_t bytes;
    std::uint64_t stamp;
};

// The places of a block's stamps: its first word, some words in between, and its last one.
template <class Visit>
void at_each_stamp(const Held &held, Visit visit) {
    const std::size_t last = held.bytes - sizeof held.stamp;
    for (std::size_t at = 0; at < last; at += kStampEvery) visit(at);
    visit(last);
}
void write_stamps(const Held &held) {
    at_each_stamp(held, [&](std::size_t at) {
        *reinterpret_cast<std::uint64_t *>(static_cast<char *>(held.address) + at) = held.stamp + at;
    });
}
void check_stamps(const Held &held) {
    at_each_stamp(held, [&](std::size_t at) {
        const std::uint64_t found = *reinterpret_cast<std::uint64_t *>(static_cast<char *>(held.address) + at);
        if (found == held.stamp + at) return;
        std::fprintf(stderr, "chaos_client %d: block %p + %zu has stamp %#llx instead of %#llx: owned twice\n",
                     getpid(), held.address, at, static_cast<unsigned long long>(found),
                     static_cast<unsigned long long>(held.stamp + at));
        _exit(2);
    });
}
[[noreturn]] void die(const char *what) {
    std::fprintf(stderr, "chaos_client %d: %s: %s\n", getpid(), what, numacre_last_error());
    _exit(3);
}

std::uint64_t largest_block_bytes(numacre_pool *pool) {
    numacre_pool_info info{};
    info.struct_size = sizeof info;
    if (numacre_get_info(pool, &info) != 0) die("get_info");
    return info.largest_block_bytes;
}

// What a thread does, every way there is: cached, past the cache, many at once, handed over. One thread after the other
// may do it.
class Worker {
public:
    Worker(numacre_pool *pool, Shared &shared, std::uint64_t seed)
        : pool_(pool), ring_(shared.ring), random_(seed), largest_bytes_(largest_block_bytes(pool)) {}

    // Until `stop`; then the thread's cache is full.
    void run() {
        while (!stop.load(std::memory_order_relaxed)) {
            const unsigned dice = random_() % 100;
            // Seldom: it may take as long as a thousand others, and who sleeps is killed asleep.
            if (random_() % 512 == 0)
                wait();
            else if (dice < 40)
                allocate();
            else if (dice < 48)
                allocate_many();
            else if (dice < 80)
                free_one();
            else if (dice < 88)
                free_many();
            else if (dice < 94)
                give();
            else
                take();
        }
        fill_cache();
    }
    void free_all() {
        while (!held_.empty()) free_one();
    }
    const Pauses &pauses() const { return pauses_; }

private:
    void hold(void *address, std::size_t bytes) {
        held_.push_back({address, bytes, random_()});
        held_bytes_ += bytes;
        write_stamps(held_.back());
    }
    Held let_go() {
        std::swap(held_[random_() % held_.size()], held_.back());
        const Held held = held_.back();
        check_stamps(held);
        held_.pop_back();
        held_bytes_ -= held.bytes;
        return held;
    }

    // In an object pool all sizes are that of an object.
    std::size_t fitting(std::size_t bytes) const { return std::min(bytes, largest_bytes_); }
    std::size_t small_size() { return fitting(std::size_t{4096} << random_() % 4); }
    std::size_t some_size() {
        return random_() % 16 == 0 ? fitting(std::size_t{4096} << random_() % 11) : small_size();
    }

    enum class Way : std::uint8_t { uncached, cached, inlined };
    Way some_way() { return static_cast<Way>(random_() % 3); }

    void allocate() {
        if (held_.size() >= kHeldMax || held_bytes_ >= kHeldBytesMax) return;
        // Sizes come in runs, as the shortest way through the cache wants them.
        if (random_() % 32 == 0) bytes_ = some_size();
        const std::size_t bytes = fitting(bytes_);
        const Way way = some_way();
        void *block = nullptr;
        const int error = timed([&] {
            return way == Way::uncached  ? numacre_alloc_on(pool_, -1, bytes, NUMACRE_UNCACHED, &block)
                   : way == Way::inlined ? numacre_alloc_inline(pool_, bytes, &block)
                                         : numacre_alloc(pool_, bytes, &block);
        });
        if (error == -ENOMEM) return;
        if (error != 0) die("alloc");
        hold(block, bytes);
    }
    // For what there may be none of for a while: then for what others release. Half of them for a large block.
    void wait() {
        if (held_.size() >= kHeldMax) return;
        const std::size_t bytes = random_() % 2 == 0 ? fitting(kLargeBytes) : some_size();
        void *block = nullptr;
        const unsigned flags = NUMACRE_UNCACHED | NUMACRE_WAIT_MS(1 + random_() % kWaitMillisecondsMax);
        const int error = numacre_alloc_on(pool_, -1, bytes, flags, &block);
        if (error == -ETIMEDOUT) return;
        if (error != 0) die("waiting alloc");
        hold(block, bytes);
    }
    void allocate_many() {
        const auto count = static_cast<unsigned>(1 + random_() % kManyMax);
        if (held_.size() + count > kHeldMax || held_bytes_ >= kHeldBytesMax) return;
        const std::size_t bytes = small_size();
        void *blocks[kManyMax];
        const int error = numacre_alloc_bulk(pool_, bytes, blocks, count);
        if (error == -ENOMEM) return;
        if (error != 0) die("alloc_bulk");
        for (unsigned i = 0; i < count; ++i) hold(blocks[i], bytes);
    }
    void free_one() {
        if (held_.empty()) return;
        const Held held = let_go();
        const Way way = some_way();
        const int error = timed([&] {
            return way == Way::uncached  ? numacre_free_uncached(pool_, held.address)
                   : way == Way::inlined ? numacre_free_inline(pool_, held.address)
                                         : numacre_free(pool_, held.address);
        });
        if (error != 0) die("free");
    }
    void free_many() {
        void *blocks[kManyMax];
        unsigned count = 0;
        while (count < kManyMax && !held_.empty()) blocks[count++] = let_go().address;
        if (numacre_free_bulk(pool_, blocks, count) != 0) die("free_bulk");
    }
    // Into the ring; what lay there is taken, by whoever comes first, or goes stale with its giver.
    void give() {
        if (random_() % 2 == 0) {
            give_newborn();
            return;
        }
        if (held_.empty()) return;
        const numacre_ref given = numacre_ref_of(pool_, let_go().address);
        if (given == NUMACRE_REF_NULL) die("ref_of");
        ring_[random_() % kRingSlots].exchange(given, std::memory_order_acq_rel);
    }
    void give_newborn() {
        void *blocks[kBurst];
        numacre_ref refs[kBurst];
        const int error = numacre_alloc_ref_bulk(pool_, small_size(), blocks, refs, kBurst);
        if (error == -ENOMEM) return;
        if (error != 0) die("alloc_ref_bulk");
        for (const numacre_ref given : refs) {
            const numacre_ref older = ring_[random_() % kRingSlots].exchange(given, std::memory_order_acq_rel);
            if (older != 0) drop(older);
        }
    }
    void drop(numacre_ref ref) {
        const int error = numacre_free_ref(pool_, ref);
        if (error != 0 && error != -ESTALE) die("free_ref");  // stale: its giver died
    }
    void take() {
        void *blocks[kBurst];
        numacre_ref offered[kBurst];
        unsigned count = 0;
        for (unsigned i = random_() % 2 == 0 ? kBurst - 1 : 0; i < kBurst; ++i) {  // one, or a burst
            offered[count] = ring_[random_() % kRingSlots].exchange(0, std::memory_order_acq_rel);
            if (offered[count] != 0) ++count;
        }
        if (random_() % 8 == 0) {
            for (unsigned i = 0; i < count; ++i) drop(offered[i]);
            return;
        }
        if (count == 1) {
            blocks[0] = nullptr;
            const int error = numacre_take(pool_, offered[0], blocks);
            if (error != 0 && error != -ESTALE) die("take");  // stale: as in drop()
        } else {
            const int error = numacre_take_bulk(pool_, offered, blocks, count);
            if (error != 0 && error != -ESTALE) die("take_bulk");
        }
        for (unsigned i = 0; i < count; ++i)
            if (blocks[i] != nullptr) hold(blocks[i], numacre_usable_size(pool_, blocks[i]));
    }

    void fill_cache() {
        std::array<void *, kMoreThanCached> blocks{};
        std::size_t count = 0;
        while (count < blocks.size() && numacre_alloc_inline(pool_, fitting(4096), &blocks[count]) == 0) ++count;
        while (count > 0)
            if (numacre_free_inline(pool_, blocks[--count]) != 0) die("free");
    }
    template <class Call>
    int timed(Call call) {
        const std::uint64_t cpu_begin = nanoseconds_of(CLOCK_THREAD_CPUTIME_ID);
        const std::uint64_t begin = nanoseconds_of(CLOCK_MONOTONIC);
        const int error = call();
        const std::uint64_t took = nanoseconds_of(CLOCK_MONOTONIC) - begin;
        pauses_.add(took, nanoseconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu_begin);
        return error;
    }

    numacre_pool *pool_;
    std::atomic<std::uint64_t> *ring_;
    std::mt19937_64 random_;
    std::size_t largest_bytes_;
    std::size_t bytes_ = 4096;  // of the present run
    std::vector<Held> held_;
    std::size_t held_bytes_ = 0;
    Pauses pauses_;
};

// A process's time with a handle: from attach to detach.
class Session {
public:
    Session(const char *runtime_dir, Shared &shared, std::uint64_t seed, int threads) {
        if (numacre_attach(runtime_dir, nullptr, &pool_) != 0) die("attach");
        if (const int error = numacre_alloc(pool_, std::min<std::size_t>(4096, largest_block_bytes(pool_)), &own_);
            error != 0 && error != -ENOMEM)
            die("alloc");
        for (int i = 0; i < threads; ++i)
            workers_.push_back(std::make_unique<Worker>(pool_, shared, seed + static_cast<std::uint64_t>(i)));
        start();
    }
    // With whatever is held.
    ~Session() {
        if (!threads_.empty()) join();
        numacre_detach(pool_);
    }
    void start() {
        stop = false;
        for (const auto &worker : workers_) threads_.emplace_back([&worker = *worker] { worker.run(); });
    }
    void join() {
        stop = true;
        for (std::thread &thread : threads_) thread.join();
        threads_.clear();
    }
    void free_all() {
        for (const auto &worker : workers_) worker->free_all();
        if (own_ != nullptr && numacre_free(pool_, own_) != 0) die("free");
    }
    void print_pauses() const {
        Pauses all;
        for (const auto &worker : workers_) all.add(worker->pauses());
        all.print();
    }
    // In a forked child: nothing of this handle is its own.
    bool is_refused() const {
        void *block = nullptr;
        return numacre_alloc(pool_, 4096, &block) == -ECHILD &&
               numacre_alloc_on(pool_, -1, 4096, NUMACRE_UNCACHED, &block) == -ECHILD &&
               numacre_alloc_bulk(pool_, 4096, &block, 1) == -ECHILD && numacre_free(pool_, own_) == -ECHILD &&
               numacre_free_uncached(pool_, own_) == -ECHILD && numacre_take(pool_, 1, &block) == -ECHILD &&
               numacre_ref_of(pool_, own_) == NUMACRE_REF_NULL;
    }
    void detach_in_child() { numacre_detach(pool_); }

private:
    numacre_pool *pool_ = nullptr;
    void *own_ = nullptr;
    std::vector<std::unique_ptr<Worker>> workers_;
    std::vector<std::thread> threads_;
};

void say(const char *line) {
    std::puts(line);
    std::fflush(stdout);
}

// The child may outlive its parent. It keeps nothing open that somebody might wait for.
void fork_one(Session &session, Shared &shared, std::uint64_t seed) {
    const pid_t child = fork();
    if (child < 0) die("fork");
    if (child > 0) return say("forked");
    (session.is_refused() ? shared.refused : shared.not_refused).fetch_add(1, std::memory_order_relaxed);
    for (const int fd : {0, 1, 2}) close(fd);
    usleep(static_cast<useconds_t>(seed % 200'000));
    session.detach_in_child();
    _exit(0);
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: %s RUNTIME_DIR SHARED_FILE SEED THREADS\n", argv[0]);
        return 64;
    }
    signal(SIGCHLD, SIG_IGN);
    const int fd = open(argv[2], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(Shared)) != 0) die("shared file");
    void *const mapped = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) die("shared map");
    Shared &shared = *static_cast<Shared *>(mapped);
    std::mt19937_64 random{std::strtoull(argv[3], nullptr, 0)};
    const auto new_session = [&] {
        auto session = std::make_unique<Session>(argv[1], shared, random(), std::atoi(argv[4]));
        say("attached");
        return session;
    };
    auto session = new_session();
    char order = 0;
    while (read(0, &order, 1) == 1) {
        switch (order) {
            case 'q':
                session->join();
                session->print_pauses();
                session->free_all();
                return 0;
            case 'e':
                std::exit(0);
            case 'd':
                session.reset();
                say("detached");
                session = new_session();
                break;
            case 'x': {
                // Other seeds than before, but told by the first.
                std::string seed = std::to_string(random());
                char *again[] = {argv[0], argv[1], argv[2], seed.data(), argv[4], nullptr};
                execv("/proc/self/exe", again);
                die("exec");
            }
            case 'o':
                say("sleeps");
                execlp("sleep", "sleep", "1000000", nullptr);
                die("exec");
            case 't':
                session->join();
                session->start();
                say("threads ended");
                break;
            case 'f':
                fork_one(*session, shared, random());
                break;
            default:
                die("unknown order");
        }
    }
    _exit(5);  // nobody is there to give orders
}
