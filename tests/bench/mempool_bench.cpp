// mempool_perf's loop (get objects by bursts, then put all of them back) over the driver numacre and DPDK's own, all of
// them in one run: each round measures each driver once, so that what disturbs the machine disturbs all alike. Prints
// cycles an object (get and put), the median of the rounds, and ratios to ring_mp_mc.
//
// Behind these: a pipeline (one core gets objects, and another puts them; with three lines of each object written on
// the first, and without), and, if there are more lcores than two, all lcores at once (--lcores 0@0,1@1,2@0,3@1: two on
// a core, which the kernel preempts anywhere).
//
//     mempool_bench [EAL options] [-- rounds]
//
// needs a daemon (NUMACRE_RUNTIME_DIR), two CPUs, and -d librte_mempool_numacre.so.
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <rte_mempool.h>
#include <rte_ring.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr const char *kOps[] = {"ring_mp_mc", "numacre", "ring_mt_hts", "stack", "lf_stack"};
constexpr unsigned kDrivers = std::size(kOps);
constexpr unsigned kCaches[] = {0, 512};
constexpr unsigned kBursts[] = {1, 8, 32, 64};
constexpr unsigned kKeeps[] = {128, 512};
constexpr unsigned kMostKept = 512;
constexpr unsigned kObjects = 8191, kElementBytes = 2048;  // for two cores' caches and what they keep, and more
constexpr unsigned kObjectsMoved = 1 << 17;                // a measurement

struct Work {
    rte_mempool *mempool;
    unsigned burst, keep, cores;
    std::atomic<unsigned> ready, done;
    double cycles[2];
    int error;
};

template <unsigned kBurst>
int move(rte_mempool *mempool, rte_mempool_cache *cache, unsigned keep, unsigned times) {
    alignas(64) void *table[kMostKept];
    for (unsigned i = 0; i < times; ++i) {
        for (unsigned at = 0; at < keep; at += kBurst)
            if (rte_mempool_generic_get(mempool, &table[at], kBurst, cache) < 0) return -1;
        for (unsigned at = 0; at < keep; at += kBurst) rte_mempool_generic_put(mempool, &table[at], kBurst, cache);
    }
    return 0;
}

int move_by(unsigned burst, rte_mempool *mempool, rte_mempool_cache *cache, unsigned keep, unsigned times) {
    switch (burst) {
        case 1:
            return move<1>(mempool, cache, keep, times);
        case 8:
            return move<8>(mempool, cache, keep, times);
        case 32:
            return move<32>(mempool, cache, keep, times);
        default:
            return move<64>(mempool, cache, keep, times);
    }
}

int measure(void *argument) {
    Work &work = *static_cast<Work *>(argument);
    const unsigned lcore = rte_lcore_id();
    rte_mempool_cache *const cache = rte_mempool_default_cache(work.mempool, lcore);
    const unsigned times = kObjectsMoved / work.keep;
    if (move_by(work.burst, work.mempool, cache, work.keep, 4) != 0) work.error = 1;  // fills caches
    work.ready.fetch_add(1);
    while (work.ready.load() < work.cores) rte_pause();
    const std::uint64_t begin = rte_rdtsc_precise();
    if (move_by(work.burst, work.mempool, cache, work.keep, times) != 0) work.error = 1;
    const std::uint64_t end = rte_rdtsc_precise();
    // The other core goes on while one is measured.
    work.done.fetch_add(1);
    while (work.done.load() < work.cores)
        if (move_by(work.burst, work.mempool, cache, work.keep, 4) != 0) work.error = 1;
    work.cycles[lcore == rte_get_main_lcore() ? 0 : 1] =
        static_cast<double>(end - begin) / (static_cast<double>(times) * work.keep);
    return 0;
}

double cycles_of(rte_mempool *mempool, unsigned cores, unsigned burst, unsigned keep) {
    Work work{};
    work.mempool = mempool;
    work.burst = burst;
    work.keep = keep;
    work.cores = cores;
    unsigned worker = RTE_MAX_LCORE;
    if (cores == 2) {
        worker = rte_get_next_lcore(-1, 1, 0);
        rte_eal_remote_launch(measure, &work, worker);
    }
    measure(&work);
    if (cores == 2) rte_eal_wait_lcore(worker);
    if (work.error != 0) {
        std::fprintf(stderr, "mempool %s has run out of objects\n", mempool->name);
        std::exit(1);
    }
    return cores == 2 ? (work.cycles[0] + work.cycles[1]) / 2 : work.cycles[0];
}

// --- a pipeline ------------------------------------------------------------------------------------------------------

constexpr unsigned kPipelineBurst = 32, kInPipeline = 1024, kLinesWritten = 3;

struct Pipeline {
    rte_mempool *mempool;
    rte_ring *ring;
    bool writes;
    std::uint64_t begin, end;
};

int put_what_comes(void *argument) {
    Pipeline &pipeline = *static_cast<Pipeline *>(argument);
    void *table[kPipelineBurst];
    for (unsigned done = 0; done < kObjectsMoved;) {
        const unsigned got = rte_ring_sc_dequeue_burst(pipeline.ring, table, kPipelineBurst, nullptr);
        if (got == 0) {
            rte_pause();
            continue;
        }
        rte_mempool_put_bulk(pipeline.mempool, table, got);
        done += got;
    }
    pipeline.end = rte_rdtsc_precise();
    return 0;
}

double cycles_of_pipeline(rte_mempool *mempool, rte_ring *ring, bool writes) {
    Pipeline pipeline{mempool, ring, writes, 0, 0};
    rte_eal_remote_launch(put_what_comes, &pipeline, rte_get_next_lcore(-1, 1, 0));
    pipeline.begin = rte_rdtsc_precise();
    void *table[kPipelineBurst];
    for (unsigned done = 0; done < kObjectsMoved; done += kPipelineBurst) {
        while (rte_mempool_get_bulk(mempool, table, kPipelineBurst) != 0) rte_pause();  // they are with the other core
        if (writes)
            for (void *object : table)
                for (unsigned line = 0; line < kLinesWritten; ++line)
                    static_cast<volatile char *>(object)[line * RTE_CACHE_LINE_SIZE] = 1;
        for (unsigned sent = 0; sent < kPipelineBurst;) {
            const unsigned now = rte_ring_sp_enqueue_burst(ring, table + sent, kPipelineBurst - sent, nullptr);
            if (now == 0) rte_pause();
            sent += now;
        }
    }
    rte_eal_wait_lcore(rte_get_next_lcore(-1, 1, 0));
    return static_cast<double>(pipeline.end - pipeline.begin) / kObjectsMoved;
}

// --- all lcores at once ----------------------------------------------------------------------------------------------

constexpr unsigned kKeptByAll = 128;

int move_much(void *argument) {
    rte_mempool *const mempool = static_cast<rte_mempool *>(argument);
    rte_mempool_cache *const cache = rte_mempool_default_cache(mempool, rte_lcore_id());
    return move<32>(mempool, cache, kKeptByAll, kObjectsMoved / kKeptByAll);
}

// Wall-clock cycles of one object, of all that all lcores move.
double cycles_of_all(rte_mempool *mempool) {
    const std::uint64_t begin = rte_rdtsc_precise();
    rte_eal_mp_remote_launch(move_much, mempool, CALL_MAIN);
    rte_eal_mp_wait_lcore();
    return static_cast<double>(rte_rdtsc_precise() - begin) / (static_cast<double>(kObjectsMoved) * rte_lcore_count());
}

rte_mempool *make(const char *ops, unsigned cache) {
    char name[RTE_MEMPOOL_NAMESIZE];
    std::snprintf(name, sizeof name, "%s %u", ops, cache);
    rte_mempool *const mempool = rte_mempool_create_empty(name, kObjects, kElementBytes, cache, 0, SOCKET_ID_ANY, 0);
    if (mempool == nullptr || rte_mempool_set_ops_byname(mempool, ops, nullptr) != 0 ||
        rte_mempool_populate_default(mempool) < 0) {
        std::fprintf(stderr, "cannot make a mempool of driver %s (load it by -d)\n", ops);
        std::exit(1);
    }
    return mempool;
}

enum Scene : unsigned { kWritten, kUntouched, kAllAtOnce, kScenes };
constexpr const char *kSceneNames[kScenes] = {"pipeline, 3 lines", "pipeline, untouched", "all lcores, by 32"};
std::vector<double> of_scene[std::size(kCaches)][kScenes][kDrivers];
std::vector<double> measured[std::size(kCaches)][2][std::size(kBursts)][std::size(kKeeps)][kDrivers];

double middle(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
}
double middle_of(unsigned cache, unsigned cores, unsigned burst, unsigned driver) {
    double product = 1;
    for (unsigned keep = 0; keep < std::size(kKeeps); ++keep)
        product *= middle(measured[cache][cores][burst][keep][driver]);
    return std::pow(product, 1.0 / std::size(kKeeps));
}

}  // namespace

int main(int argc, char **argv) {
    const int used = rte_eal_init(argc, argv);
    if (used < 0) return 1;
    const int rounds = used + 1 < argc ? std::atoi(argv[used + 1]) : 7;
    if (rte_lcore_count() < 2) {
        std::fprintf(stderr, "give two lcores (-l 0,1)\n");
        return 1;
    }
    rte_mempool *mempools[std::size(kCaches)][kDrivers];
    for (unsigned cache = 0; cache < std::size(kCaches); ++cache)
        for (unsigned driver = 0; driver < kDrivers; ++driver)
            mempools[cache][driver] = make(kOps[driver], kCaches[cache]);
    rte_ring *const ring = rte_ring_create("pipeline", kInPipeline, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
    if (ring == nullptr) return 1;
    for (int round = 0; round < rounds; ++round)
        for (unsigned cache = 0; cache < std::size(kCaches); ++cache)
            for (unsigned driver = 0; driver < kDrivers; ++driver) {
                rte_mempool *const mempool = mempools[cache][driver];
                of_scene[cache][kWritten][driver].push_back(cycles_of_pipeline(mempool, ring, true));
                of_scene[cache][kUntouched][driver].push_back(cycles_of_pipeline(mempool, ring, false));
                if (rte_lcore_count() > 2) of_scene[cache][kAllAtOnce][driver].push_back(cycles_of_all(mempool));
            }
    for (int round = 0; round < rounds; ++round)
        for (unsigned cache = 0; cache < std::size(kCaches); ++cache)
            for (unsigned cores = 0; cores < 2; ++cores)
                for (unsigned burst = 0; burst < std::size(kBursts); ++burst)
                    for (unsigned keep = 0; keep < std::size(kKeeps); ++keep)
                        for (unsigned driver = 0; driver < kDrivers; ++driver) {
                            measured[cache][cores][burst][keep][driver].push_back(
                                cycles_of(mempools[cache][driver], cores + 1, kBursts[burst], kKeeps[keep]));
                        }
    std::printf("%-22s", "cycles an object");
    for (const char *ops : kOps) std::printf(" %12s", ops);
    std::printf(" %18s\n", "numacre/ring_mp_mc");
    for (unsigned cache = 0; cache < std::size(kCaches); ++cache)
        for (unsigned cores = 0; cores < 2; ++cores) {
            double logs = 0;
            for (unsigned burst = 0; burst < std::size(kBursts); ++burst) {
                std::printf("cache %3u %u core%s by %2u", kCaches[cache], cores + 1, cores == 0 ? " " : "s",
                            kBursts[burst]);
                for (unsigned driver = 0; driver < kDrivers; ++driver)
                    std::printf(" %12.2f", middle_of(cache, cores, burst, driver));
                const double ratio = middle_of(cache, cores, burst, 1) / middle_of(cache, cores, burst, 0);
                logs += std::log(ratio);
                std::printf(" %18.2f\n", ratio);
            }
            std::printf("cache %3u %u core%s geometric mean %62.2f\n", kCaches[cache], cores + 1,
                        cores == 0 ? " " : "s", std::exp(logs / std::size(kBursts)));
        }
    for (unsigned cache = 0; cache < std::size(kCaches); ++cache)
        for (unsigned scene = 0; scene < kScenes; ++scene) {
            const auto &of_drivers = of_scene[cache][scene];
            if (of_drivers[0].empty()) continue;
            std::printf("cache %3u %-20s ", kCaches[cache], kSceneNames[scene]);
            for (unsigned driver = 0; driver < kDrivers; ++driver) std::printf(" %12.2f", middle(of_drivers[driver]));
            std::printf(" %18.2f\n", middle(of_drivers[1]) / middle(of_drivers[0]));
        }
    rte_eal_cleanup();
    return 0;
}
