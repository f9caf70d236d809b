// DPDK's mempool with three of its stores, each with and without a cache a thread, and rte_malloc. No device, no
// hugepages.
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_malloc.h>
#include <rte_mempool.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "batches.hpp"
#include "measure.hpp"

namespace numacre::bench {
namespace {

// The directory where the library keeps what processes share, the heap's free lists among it. Nobody looks for the
// files by their names: they go as soon as they are mapped. In memory, so that no disk is written to meanwhile.
class RuntimeDirectory {
public:
    RuntimeDirectory() {
        if (mkdtemp(path_.data()) == nullptr) throw Unavailable("cannot make " + path_);
        setenv("RUNTIME_DIRECTORY", path_.c_str(), 1);
    }
    ~RuntimeDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    RuntimeDirectory(const RuntimeDirectory &) = delete;
    RuntimeDirectory &operator=(const RuntimeDirectory &) = delete;

private:
    std::string path_ = "/dev/shm/allocators-dpdk-XXXXXX";
};

// The library's memory is a memfd: what is forked later shares it.
void start_eal(const Run &run, std::uint64_t memory_bytes) {
    std::vector<std::string> arguments{"allocators_dpdk",
                                       "--no-huge",
                                       "--no-pci",
                                       "--no-telemetry",
                                       "--log-level=*:error",
                                       "-m",
                                       std::to_string(memory_bytes >> 20),
                                       "-l",
                                       std::to_string(sched_getcpu())};
    std::optional<RuntimeDirectory> directory;
    if (run.processes == 0)
        arguments.push_back("--no-shconf");
    else
        directory.emplace();
    std::vector<char *> argv;
    for (std::string &argument : arguments) argv.push_back(argument.data());
    if (rte_eal_init(static_cast<int>(argv.size()), argv.data()) < 0)
        throw Unavailable(std::string("rte_eal_init: ") + rte_strerror(rte_errno));
}

// A registered thread has a number, and with it a cache in every pool. The numbers are counted in private memory: a
// forked process gets its worker's.
class Registration {
public:
    Registration(bool forked, std::uint64_t number) : forked_(forked) {
        static_assert(kWorkersMax <= RTE_MAX_LCORE);
        if (forked)
            RTE_PER_LCORE(_lcore_id) = static_cast<unsigned>(number);
        else if (rte_thread_register() != 0)
            give_up("rte_thread_register", -rte_errno);
    }
    ~Registration() {
        if (!forked_) rte_thread_unregister();
    }
    Registration(const Registration &) = delete;
    Registration &operator=(const Registration &) = delete;

private:
    bool forked_;
};

enum class Store { ring, stack, lock_free_stack };

constexpr const char *ops_of(Store store) {
    switch (store) {
        case Store::ring:
            return "ring_mp_mc";
        case Store::stack:
            return "stack";
        case Store::lock_free_stack:
            return "lf_stack";
    }
    return nullptr;
}

// An element stands for a block: it is a cache line wherever its block is, so that a pool of any size can be had. The
// calls never look at the rest of an element.
template <Store kStore, bool kCache>
class MempoolOf {
public:
    static constexpr Traits kTraits{.fixed_size = true, .sharing = Sharing::by_fork};
    explicit MempoolOf(const Run &run) : forked_(run.processes != 0) {
        constexpr unsigned kElementBytes = 64;
        constexpr std::uint64_t kBookkeepingBytes = 192;
        const auto blocks = static_cast<unsigned>(run.pool_bytes / run.size_bytes);
        start_eal(run, (std::uint64_t{64} << 20) + blocks * (kElementBytes + kBookkeepingBytes));
        // The library demands that one cache holds no more than two thirds of the pool.
        const unsigned cache = kCache ? std::min(512U, blocks * 2 / 3) : 0;
        pool_ = rte_mempool_create_empty("blocks", blocks, kElementBytes, cache, 0, SOCKET_ID_ANY, 0);
        if (pool_ == nullptr) throw Unavailable(std::string("no mempool: ") + rte_strerror(rte_errno));
        int result = rte_mempool_set_ops_byname(pool_, ops_of(kStore), nullptr);
        if (result == 0) result = rte_mempool_populate_default(pool_);
        if (result < 0) throw Unavailable(std::string("the mempool cannot be filled: ") + rte_strerror(-result));
    }
    ~MempoolOf() { rte_mempool_free(pool_); }
    MempoolOf(const MempoolOf &) = delete;
    MempoolOf &operator=(const MempoolOf &) = delete;

protected:
    class User {
    public:
        User(MempoolOf &adaptor, std::uint64_t number) : pool_(adaptor.pool_), registration_(adaptor.forked_, number) {}
        // What stays in the cache of a thread that ends is lost to the others.
        ~User() { rte_mempool_cache_flush(nullptr, pool_); }
        User(const User &) = delete;
        User &operator=(const User &) = delete;

    protected:
        rte_mempool *pool_;

    private:
        Registration registration_;
    };

private:
    bool forked_;
    rte_mempool *pool_ = nullptr;
};

template <Store kStore, bool kCache>
class Mempool : public MempoolOf<kStore, kCache> {
public:
    using MempoolOf<kStore, kCache>::MempoolOf;
    class Thread : MempoolOf<kStore, kCache>::User {
    public:
        Thread(Mempool &adaptor, std::uint64_t number) : MempoolOf<kStore, kCache>::User(adaptor, number) {}
        void *allocate(std::size_t) {
            void *block = nullptr;
            return rte_mempool_get(this->pool_, &block) == 0 ? block : nullptr;
        }
        void free(void *block) { rte_mempool_put(this->pool_, block); }
    };
};

// The calls for many elements at once, of a mempool with a cache.
template <Store kStore>
class MempoolBulk : public MempoolOf<kStore, true> {
public:
    explicit MempoolBulk(const Run &run) : MempoolOf<kStore, true>(run), held_bytes_(run.pool_bytes / 256) {}
    class Thread : MempoolOf<kStore, true>::User {
    public:
        Thread(MempoolBulk &adaptor, std::uint64_t number)
            : MempoolOf<kStore, true>::User(adaptor, number), batches_({this->pool_}, adaptor.held_bytes_) {}
        [[gnu::always_inline]] void *allocate(std::size_t bytes) { return batches_.allocate(bytes); }
        [[gnu::always_inline]] void free(void *block) { batches_.free(block); }

    private:
        struct BulkCalls {
            rte_mempool *pool;
            bool take(void **blocks, unsigned count, std::size_t) const {
                return rte_mempool_get_bulk(pool, blocks, count) == 0;
            }
            void give_back(void *const *blocks, unsigned count) const { rte_mempool_put_bulk(pool, blocks, count); }
        };
        Batches<BulkCalls> batches_;
    };

private:
    std::size_t held_bytes_;
};

class RteMalloc {
public:
    static constexpr Traits kTraits{.sharing = Sharing::by_fork, .writes_into_blocks = true};
    // Two cache lines of header a block: an eighth more than the pool, so that it holds as many blocks as the others.
    // rte_free wipes the block: all of the pool is wiped once here, or the first frees would measure page faults.
    explicit RteMalloc(const Run &run) : forked_(run.processes != 0) {
        start_eal(run, (std::uint64_t{64} << 20) + run.pool_bytes + run.pool_bytes / 8);
        void *const whole = rte_malloc(nullptr, run.pool_bytes + run.pool_bytes / 16, 0);
        if (whole == nullptr) throw Unavailable("it cannot allocate its whole pool");
        rte_free(whole);
    }
    class Thread {
    public:
        Thread(RteMalloc &adaptor, std::uint64_t number) : registration_(adaptor.forked_, number) {}
        void *allocate(std::size_t bytes) { return rte_malloc(nullptr, bytes, 0); }
        void free(void *block) { rte_free(block); }

    private:
        Registration registration_;
    };

private:
    bool forked_;
};

const Registered ring{"dpdk-ring", measure<Mempool<Store::ring, false>>};
const Registered ring_cache{"dpdk-ring-cache", measure<Mempool<Store::ring, true>>};
const Registered ring_bulk{"dpdk-ring-bulk", measure<MempoolBulk<Store::ring>>};
const Registered stack{"dpdk-stack", measure<Mempool<Store::stack, false>>};
const Registered stack_cache{"dpdk-stack-cache", measure<Mempool<Store::stack, true>>};
const Registered lock_free{"dpdk-lf-stack", measure<Mempool<Store::lock_free_stack, false>>};
const Registered lock_free_cache{"dpdk-lf-stack-cache", measure<Mempool<Store::lock_free_stack, true>>};
const Registered dpdk_malloc{"dpdk-malloc", measure<RteMalloc>};

}  // namespace
}  // namespace numacre::bench
