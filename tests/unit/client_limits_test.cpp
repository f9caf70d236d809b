// What a client does at a limit, and near one: on a private pool, in which the test writes the words of a daemon.
#include <gtest/gtest.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <semaphore>
#include <thread>
#include <utility>
#include <vector>

#include "numacre/numacre.h"
#include "numacre/shm/chunks.hpp"
#include "pool.hpp"
#include "support/cached_blocks.hpp"

namespace numacre::client {

using namespace engine;
using test::cached_blocks;
namespace {

class Limits : public ::testing::Test {
protected:
    static constexpr std::uint64_t kFrames = 4096;  // of the pool

    void SetUp() override {
        const numacre_private_options options{sizeof options, kFrames * 4096, 4096, 4 << 20, 0, 0, 0};
        ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
    }
    void TearDown() override { numacre_detach(pool); }

    void set_quota(std::uint64_t frames) {
        pool->view.processes[pool->process.value].quota_frames = frames;
        pool->view.header->accounting = Accounting::kCount;
    }
    // All that there is, to somebody who is not here.
    void reserve_everything() {
        pool->view.header->online_frames = kFrames;
        pool->view.header->seats = pool->view.process_slots;
        pool->view.accounts[kPoolAccount + 1].reserved_frames = kFrames;
        pool->view.header->accounting = Accounting::kCount | Accounting::kShared | Accounting::kReservations;
    }
    // Of some thread that waits; none: it is empty.
    WaitWord wish() const {
        for (std::uint32_t thread = 1; thread < pool->view.threads_in_use_bound(); ++thread)
            if (const WaitWord word{pool->view.threads[thread].waiting}; word.is_waiting()) return word;
        return {};
    }
    void until_somebody_waits() const {
        while (wish() == WaitWord{}) std::this_thread::yield();
    }
    // All of the pool, in its largest blocks.
    static constexpr std::size_t kChunk = 4 << 20;
    static constexpr std::uint64_t kInChunk = kChunk / 4096;
    using Chunks = std::array<void *, kFrames / kInChunk>;
    Chunks allocate_everything() const {
        Chunks chunks{};
        EXPECT_EQ(numacre_alloc_bulk(pool, kChunk, chunks.data(), chunks.size()), 0) << numacre_last_error();
        return chunks;
    }
    void free_all(const Chunks &chunks) const {
        for (void *const chunk : chunks) EXPECT_EQ(numacre_free(pool, chunk), 0) << numacre_last_error();
    }
    int allocate() const {
        void *block = nullptr;
        return numacre_alloc(pool, 4096, &block);
    }
    // How often the pool's threads have been asked to give back what they cache.
    std::uint64_t asked() const {
        constexpr std::uint64_t kTimes = (std::uint64_t{1} << Attention::kAgeShift) - Attention::kPressureStep;
        return (pool->view.header->attention & kTimes) / Attention::kPressureStep;
    }
    // How many blocks of this order are cached after all the calling thread's have been freed. Many more than that are.
    unsigned cached_of(Order order) const {
        std::vector<void *> blocks(kFrames / 4 >> order.value);
        EXPECT_EQ(numacre_alloc_bulk(pool, 4096U << order.value, blocks.data(), static_cast<unsigned>(blocks.size())),
                  0)
            << numacre_last_error();
        for (void *const block : blocks) EXPECT_EQ(numacre_free(pool, block), 0) << numacre_last_error();
        return cached_blocks(pool, order);
    }
    // How often the process's count has been changed (account.hpp).
    std::uint64_t changes() const { return pool->view.processes[pool->process.value].held << 1 >> 45; }

    numacre_pool *pool = nullptr;
};

// Measures what a slow machine is allowed more often.
class Seconds {
public:
    std::uint64_t begun() const {
        const auto passed = std::chrono::steady_clock::now() - start_;
        return static_cast<std::uint64_t>(std::chrono::ceil<std::chrono::seconds>(passed).count());
    }

private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

TEST_F(Limits, who_stays_at_its_quota_asks_the_others_for_their_caches_once_a_second) {
    constexpr std::uint64_t kQuota = 64;
    set_quota(kQuota);
    const Seconds seconds;
    for (std::uint64_t i = 0; i < kQuota; ++i) ASSERT_EQ(allocate(), 0) << i << ": " << numacre_last_error();
    EXPECT_EQ(asked(), 0U);
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(allocate(), -EDQUOT) << i;
    EXPECT_GE(asked(), 1U);
    EXPECT_LE(asked(), seconds.begun());
}

TEST_F(Limits, who_waits_for_what_is_reserved_asks_the_others_for_their_caches_once_a_second) {
    constexpr unsigned kMilliseconds = 400;
    reserve_everything();
    const Seconds seconds;
    void *block = nullptr;
    EXPECT_EQ(numacre_alloc_on(pool, -1, 4096, NUMACRE_UNCACHED | NUMACRE_WAIT | kMilliseconds << 8, &block),
              -ETIMEDOUT);
    EXPECT_GE(asked(), 1U);
    EXPECT_LE(asked(), 1 + seconds.begun()) << "once before it waits";
}

// It stays in a handler, which runs while the thread sleeps, for as long as it likes.
sem_t has_stopped, may_go_on;
void stand_still(int) {
    const int error = errno;
    sem_post(&has_stopped);
    while (sem_wait(&may_go_on) != 0) {
    }
    errno = error;
}

TEST_F(Limits, a_block_on_its_way_to_who_waits_is_counted) {
    set_quota(kFrames);
    const Chunks chunks = allocate_everything();
    const auto counted = [&] { return counted_frames(pool->view.processes[pool->process.value]); };
    EXPECT_EQ(counted(), kFrames);
    sem_init(&has_stopped, 0, 0);
    sem_init(&may_go_on, 0, 0);
    struct sigaction action{}, before{};
    action.sa_handler = stand_still;
    ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
    pool->view.processes[pool->process.value].quota_frames = kFrames + kInChunk;
    int result = -1;
    void *block = nullptr;
    std::thread waiter([&] { result = numacre_alloc_on(pool, -1, kChunk, NUMACRE_WAIT, &block); });
    until_somebody_waits();
    pthread_kill(waiter.native_handle(), SIGUSR1);
    sem_wait(&has_stopped);
    EXPECT_EQ(numacre_free(pool, chunks[1]), 0) << numacre_last_error();
    EXPECT_EQ(counted(), kFrames) << "on its way";
    sem_post(&may_go_on);
    waiter.join();
    EXPECT_EQ(result, 0);
    EXPECT_EQ(block, chunks[1]);
    EXPECT_EQ(counted(), kFrames);
    free_all(chunks);
    EXPECT_EQ(counted(), 0U);
    sigaction(SIGUSR1, &before, nullptr);
}

// A giver that is stopped, or killed, between its count and its gift.
TEST_F(Limits, what_is_on_its_way_and_never_arrives_is_not_counted_for_ever) {
    constexpr std::uint64_t kQuota = 64;
    set_quota(kQuota);
    auto &process = pool->view.processes[pool->process.value];
    const auto era = add_on_the_way(pool->view, pool->process, kQuota);
    ASSERT_TRUE(era);
    EXPECT_EQ(allocate(), -EDQUOT) << "it may be about to arrive";
    // For as long as it takes: a test that fails never ends.
    for (const timespec moment{0, 1'000'000}; allocate() != 0;) nanosleep(&moment, nullptr);
    EXPECT_EQ(OnTheWay{process.on_the_way}.frames(), 0U);
    // The giver runs again, and takes back what it has counted.
    const std::uint64_t before = counted_frames(process);
    ASSERT_TRUE(add_on_the_way(pool->view, pool->process, 3));
    remove_on_the_way(pool->view, pool->process, kQuota, *era);
    EXPECT_EQ(counted_frames(process), before + 3) << "by another giver, since";
}

// It waits with what would be all of its quota, and its own wish is what a giver has counted for.
TEST_F(Limits, who_waits_waits_on_when_its_giver_stands_still) {
    set_quota(kFrames);
    const Chunks chunks = allocate_everything();
    pool->view.processes[pool->process.value].quota_frames = kFrames + kInChunk;
    int result = -1;
    void *block = nullptr;
    std::thread waiter([&] { result = numacre_alloc_on(pool, -1, kChunk, NUMACRE_WAIT, &block); });
    until_somebody_waits();
    const WaitWord first = wish();
    ASSERT_TRUE(add_on_the_way(pool->view, pool->process, kInChunk));
    while (wish() == first || wish() == WaitWord{}) std::this_thread::yield();
    EXPECT_EQ(result, -1) << "it wishes anew";
    EXPECT_EQ(numacre_free(pool, chunks[1]), 0) << numacre_last_error();
    waiter.join();
    EXPECT_EQ(result, 0);
    EXPECT_EQ(counted_frames(pool->view.processes[pool->process.value]), kFrames);
    free_all(chunks);
}

// Handlers run while a thread waits, and may fork there.
volatile sig_atomic_t is_child;
void fork_once(int) {
    const int error = errno;
    struct sigaction none{};
    none.sa_handler = SIG_IGN;
    sigaction(SIGUSR2, &none, nullptr);
    if (fork() == 0) is_child = 1;
    errno = error;
}
TEST_F(Limits, a_child_that_a_handler_forks_in_a_wait_is_refused) {
    const Chunks chunks = allocate_everything();
    struct sigaction action{};
    action.sa_handler = fork_once;
    ASSERT_EQ(sigaction(SIGUSR2, &action, nullptr), 0);
    const pthread_t waiter = pthread_self();
    std::thread sender([&] {
        until_somebody_waits();
        pthread_kill(waiter, SIGUSR2);
    });
    void *block = nullptr;
    const int error = numacre_alloc_on(pool, -1, kChunk, NUMACRE_WAIT_MS(2000), &block);
    // Not by _exit(): ThreadSanitizer would miss the parent's threads there.
    if (is_child != 0) syscall(SYS_exit_group, error == -ECHILD ? 0 : 1);
    sender.join();
    EXPECT_EQ(error, -ETIMEDOUT);
    int status = -1;
    EXPECT_GT(wait(&status), 0);
    EXPECT_EQ(status, 0);
    free_all(chunks);
    signal(SIGUSR2, SIG_DFL);
}

// A batch that is charged for a moment is what others may be refused meanwhile.
TEST_F(Limits, a_cache_that_is_refused_a_batch_does_not_ask_for_it_again_at_each_call) {
    constexpr std::uint64_t kQuota = 20;  // less than a batch
    set_quota(kQuota);
    ASSERT_EQ(allocate(), 0) << numacre_last_error();
    const std::uint64_t before = changes();
    for (std::uint64_t i = 1; i < kQuota; ++i) ASSERT_EQ(allocate(), 0) << i << ": " << numacre_last_error();
    EXPECT_EQ(changes(), before + kQuota - 1) << "its own block each time, and nothing else";
    EXPECT_EQ(allocate(), -EDQUOT);
}

TEST_F(Limits, a_cache_that_was_refused_a_batch_is_filled_again_later) {
    set_quota(20);
    ASSERT_EQ(allocate(), 0) << numacre_last_error();
    set_quota(kFrames);
    constexpr int kCalls = 1000;
    int unchanged = 0;
    for (int i = 0; i < kCalls; ++i) {
        const std::uint64_t before = changes();
        ASSERT_EQ(allocate(), 0) << i << ": " << numacre_last_error();
        unchanged += changes() == before ? 1 : 0;
    }
    EXPECT_GT(unchanged, kCalls / 2) << "blocks out of a cache have been counted before";
}

// What is cached has been charged for: many blocks of it change no count, and need no more than the quota leaves.
TEST_F(Limits, many_blocks_come_from_the_cache_and_the_rest_within_the_quota) {
    constexpr unsigned kBlocks = 8;
    set_quota(64);
    void *blocks[64] = {};
    for (unsigned i = 0; i < kBlocks; ++i) ASSERT_EQ(numacre_alloc(pool, 4096, &blocks[i]), 0);
    for (unsigned i = 0; i < kBlocks; ++i) ASSERT_EQ(numacre_free(pool, blocks[i]), 0);
    const unsigned cached = cached_blocks(pool, Order{0});
    ASSERT_GE(cached, kBlocks);
    const std::uint64_t before = changes();
    ASSERT_EQ(numacre_alloc_bulk(pool, 4096, blocks, kBlocks), 0) << numacre_last_error();
    EXPECT_EQ(cached_blocks(pool, Order{0}), cached - kBlocks);
    EXPECT_EQ(changes(), before);
    ASSERT_EQ(numacre_alloc_bulk(pool, 4096, blocks + kBlocks, 64 - kBlocks), 0) << numacre_last_error();
    EXPECT_EQ(cached_blocks(pool, Order{0}), 0U);
    void *further[2] = {};
    EXPECT_EQ(numacre_alloc_bulk(pool, 4096, further, 2), -EDQUOT);
    ASSERT_EQ(numacre_free_uncached(pool, blocks[0]), 0);
    EXPECT_EQ(numacre_alloc_bulk(pool, 4096, further, 2), -EDQUOT) << "all or none";
    EXPECT_EQ(numacre_alloc_bulk(pool, 4096, further, 1), 0) << numacre_last_error();
}

// As when other threads or processes have taken them all: none of these errors says that the block is bad.
TEST_F(Limits, a_thread_that_gets_no_slot_can_free_and_take_nothing_and_changes_nothing) {
    void *block = nullptr;
    ASSERT_EQ(numacre_alloc(pool, 4096, &block), 0) << numacre_last_error();
    const numacre_ref reference = numacre_ref_of(pool, block);
    ASSERT_NE(reference, NUMACRE_REF_NULL);
    pool->view.processes[pool->process.value].thread_limit = 1;
    std::thread{[&] {
        void *other = nullptr;
        EXPECT_EQ(numacre_free(pool, block), -EUSERS);
        EXPECT_EQ(numacre_free_uncached(pool, block), -EUSERS);
        EXPECT_EQ(numacre_free_bulk(pool, &block, 1), -EUSERS);
        EXPECT_EQ(numacre_take(pool, reference, &other), -EUSERS);
    }}.join();
    void *taken = nullptr;
    EXPECT_EQ(numacre_take(pool, reference, &taken), 0) << numacre_last_error();
    EXPECT_EQ(taken, block);
    EXPECT_EQ(numacre_free(pool, block), 0) << numacre_last_error();
}

// One size is what most threads use; one that has been used must not keep the next from its cache.
TEST_F(Limits, an_order_caches_a_sixteenth_of_the_pool_and_half_of_that_beside_others) {
    // A full one gives back some at a time before it takes more.
    const auto expect_about = [](unsigned cached, std::uint64_t most) {
        EXPECT_LE(cached, most);
        EXPECT_GT(cached, most / 2);
    };
    expect_about(cached_of(Order{0}), kFrames / 16);
    const unsigned pairs = cached_of(Order{1});
    expect_about(pairs, kFrames / 32 / 2);
    expect_about(cached_of(Order{0}), kFrames / 16 - std::uint64_t{2} * pairs);
}

// The free by which a thread learns that memory is short keeps nothing back: it may be the thread's last call.
TEST(CacheLimits, what_is_freed_when_memory_is_short_is_not_cached) {
    const numacre_private_options options{sizeof options, 64 << 20, 4096, 4 << 20, 0, 0, 0};
    numacre_pool *pool = nullptr;
    ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
    void *blocks[4];
    for (void *&block : blocks) ASSERT_EQ(numacre_alloc(pool, 4096, &block), 0);
    ASSERT_EQ(numacre_free(pool, blocks[0]), 0);
    ASSERT_GT(cached_blocks(pool, Order{0}), 0U);
    pool->view.header->attention.fetch_add(Attention::kPressureStep);
    ASSERT_EQ(numacre_free(pool, blocks[1]), 0);
    EXPECT_EQ(cached_blocks(pool, Order{0}), 0U);
    pool->view.header->attention.fetch_add(Attention::kPressureStep);
    ASSERT_EQ(numacre_free_bulk(pool, blocks + 2, 2), 0);
    EXPECT_EQ(cached_blocks(pool, Order{0}), 0U) << "many at once are no other";
    numacre_detach(pool);
}

// Nothing of a chunk that the daemon wants empty goes into a cache; all else does, as ever.
TEST(CacheLimits, what_is_freed_of_a_draining_chunk_is_not_cached) {
    constexpr unsigned kChunkFrames = 1024;
    const numacre_private_options options{sizeof options, 64 << 20, 4096, kChunkFrames * 4096, 0, 0, 0};
    numacre_pool *pool = nullptr;
    ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
    std::vector<void *> blocks(2 * kChunkFrames);
    ASSERT_EQ(numacre_alloc_bulk(pool, 4096, blocks.data(), static_cast<unsigned>(blocks.size())), 0);
    const auto frame_of = [&](const void *block) {
        return FrameIndex{static_cast<std::uint64_t>(static_cast<const std::byte *>(block) - pool->nodes[0].data) /
                          4096};
    };
    const NodeView<Env> &view = pool->nodes[0].buddy().view();
    const auto is_cached = [&](const void *block) {
        return IndexEntry{view.index_entry({frame_of(block), Order{0}}).load()}.is_cached();
    };
    const std::uint64_t chunk = frame_of(blocks[0]).value / kChunkFrames;
    const auto of_chunk = [&](bool inside) {
        for (void *&block : blocks)
            if (block != nullptr && (frame_of(block).value / kChunkFrames == chunk) == inside)
                return std::exchange(block, nullptr);
        return static_cast<void *>(nullptr);
    };
    void *const before = of_chunk(true);
    ASSERT_EQ(numacre_free(pool, before), 0);
    ASSERT_TRUE(is_cached(before));

    // As the daemon begins a drain.
    Chunks<Env>{view, pool->view}.set_drain(chunk, true);
    auto &attention = pool->view.header->attention;
    attention.fetch_or(Attention::kDraining);
    attention.fetch_add(Attention::kPressureStep);
    ASSERT_EQ(numacre_free(pool, of_chunk(true)), 0);
    EXPECT_FALSE(is_cached(before)) << "what had been cached";
    // Past the calls that go by after memory has been short.
    void *block = nullptr;
    for (int i = 0; i < 1000; ++i) {
        ASSERT_EQ(numacre_alloc(pool, 4096, &block), 0);
        ASSERT_EQ(numacre_free(pool, block), 0);
    }
    for (int i = 0; i < 100; ++i) {
        void *const inside = of_chunk(true);
        ASSERT_EQ(numacre_free(pool, inside), 0);
        EXPECT_FALSE(is_cached(inside)) << i;
        void *const outside = of_chunk(false);
        ASSERT_EQ(numacre_free(pool, outside), 0);
        EXPECT_TRUE(is_cached(outside)) << i;
        ASSERT_EQ(numacre_alloc(pool, 4096, &block), 0);
        EXPECT_EQ(block, outside) << "from the cache";
        ASSERT_EQ(numacre_free(pool, block), 0);
    }

    // As it ends one.
    Chunks<Env>{view, pool->view}.set_drain(chunk, false);
    attention.fetch_and(~Attention::kDraining);
    void *const after = of_chunk(true);
    ASSERT_EQ(numacre_free(pool, after), 0);
    EXPECT_TRUE(is_cached(after));
    numacre_detach(pool);
}

// A block on top that is none of ours any more (two threads freed it in one moment, one of them has given it back
// since; or somebody scribbled) does not make a full cache one to be filled: it would end up beyond its memory.
TEST(CacheLimits, one_that_only_seems_empty_is_not_filled) {
    constexpr unsigned kFull = 1024;
    const numacre_private_options options{sizeof options, std::uint64_t{1} << 30, 4096, 4 << 20, 0, 0, 0};
    numacre_pool *pool = nullptr;
    ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
    std::vector<void *> blocks(kFull);
    ASSERT_EQ(numacre_alloc_bulk(pool, 4096, blocks.data(), kFull), 0);
    for (void *const block : blocks) ASSERT_EQ(numacre_free(pool, block), 0);
    const NodeView<Env> &view = pool->nodes[0].buddy().view();
    const auto entry_of = [&](const void *block) -> auto & {
        const auto offset = static_cast<const std::byte *>(block) - pool->nodes[0].data;
        return view.index_entry({FrameIndex{static_cast<std::uint64_t>(offset) / 4096}, Order{0}});
    };
    ASSERT_EQ(cached_blocks(pool, Order{0}), kFull) << "all of them are in the cache, which has no room for more";
    entry_of(blocks.back()).store(0);
    void *block = nullptr;
    EXPECT_EQ(numacre_alloc_on(pool, -1, 4096, 0, &block), 0) << numacre_last_error();
    EXPECT_EQ(block, blocks[kFull - 2]) << "the next one";
    EXPECT_EQ(cached_blocks(pool, Order{0}), kFull - 2);
    // Also where many come out at once: the fourth from the top; and then the third, so that the rest is the tree's.
    for (const unsigned none : {kFull - 6, kFull - 9}) entry_of(blocks[none]).store(0);
    void *many[8] = {};
    ASSERT_EQ(numacre_alloc_bulk(pool, 4096, many, 8), 0) << numacre_last_error();
    for (void *const each : many) {
        EXPECT_NE(each, blocks[kFull - 6]);
        EXPECT_NE(each, blocks[kFull - 9]);
    }
    EXPECT_EQ(cached_blocks(pool, Order{0}), kFull - 9) << "five of them, and what were none";
    numacre_detach(pool);
}

// Each time, also if the last time is less than a second ago: it has helped.
TEST_F(Limits, a_quota_is_used_whole_beside_idle_caches_of_its_own_process) {
    if (!pool->shares_caches) GTEST_SKIP() << "SKIP: membarrier is not permitted here";
    constexpr unsigned kQuota = 2048, kFramesOfBlock = 16;
    set_quota(kQuota);
    std::binary_semaphore go{0}, done{0};
    std::atomic<bool> over = false;
    std::thread other([&] {
        for (;;) {
            go.acquire();
            if (over) return;
            std::vector<void *> blocks(500);
            for (void *&block : blocks) EXPECT_EQ(numacre_alloc(pool, 4096, &block), 0) << numacre_last_error();
            for (void *const block : blocks) EXPECT_EQ(numacre_free(pool, block), 0);
            done.release();
        }
    });
    for (int round = 0; round < 3; ++round) {
        go.release();
        done.acquire();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than the time between two barriers
        std::vector<void *> blocks(kQuota / kFramesOfBlock);
        for (void *&block : blocks)
            EXPECT_EQ(numacre_alloc_on(pool, -1, kFramesOfBlock * 4096, NUMACRE_UNCACHED, &block), 0)
                << "round " << round;
        for (void *const block : blocks)
            if (block != nullptr) {
                EXPECT_EQ(numacre_free_uncached(pool, block), 0);
            }
    }
    over = true;
    go.release();
    other.join();
}

}  // namespace
}  // namespace numacre::client
