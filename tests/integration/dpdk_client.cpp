// A DPDK program on mempools of the driver numacre: dpdk_client MODE [EAL options]. Ends with 0, or with a line that
// says what was wrong. The modes are in main().
#include <poll.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_memzone.h>
#include <rte_ring.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "rte_mempool_numacre.h"

namespace {

[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    std::vfprintf(stderr, format, values);
    va_end(values);
    std::fputc('\n', stderr);
    std::_Exit(1);
}
#define EXPECT(condition) \
    if (!(condition)) fail("%s:%d: not so: %s", __FILE__, __LINE__, #condition)

// The first word of each object: who has it, 0 for nobody.
std::atomic<std::uint32_t> &holder_of(void *object) {
    return *static_cast<std::atomic<std::uint32_t> *>(object);
}

void begin_object(rte_mempool *, void *, void *object, unsigned) {
    new (object) std::atomic<std::uint32_t>(0);
}

rte_mempool *make(const char *name, unsigned count, unsigned cache = 0, unsigned bytes = 2048, unsigned flags = 0,
                  int socket = SOCKET_ID_ANY) {
    rte_mempool *const mempool = rte_mempool_create_empty(name, count, bytes, cache, 0, socket, flags);
    if (mempool == nullptr) fail("no mempool %s: %s", name, rte_strerror(rte_errno));
    if (rte_mempool_set_ops_byname(mempool, "numacre", nullptr) != 0) fail("the driver numacre is not loaded");
    const int populated = rte_mempool_populate_default(mempool);
    if (populated < 0) fail("mempool %s is not populated: %s", name, rte_strerror(-populated));
    EXPECT(static_cast<unsigned>(populated) == count);
    rte_mempool_obj_iter(mempool, begin_object, nullptr);
    return mempool;
}

// One by one, until the mempool is empty.
std::vector<void *> take_all(rte_mempool *mempool) {
    std::vector<void *> all;
    void *object = nullptr;
    while (rte_mempool_get(mempool, &object) == 0) all.push_back(object);
    return all;
}
void give_all(rte_mempool *mempool, const std::vector<void *> &all) {
    for (void *object : all) rte_mempool_put(mempool, object);
}

void expect_exactly(rte_mempool *mempool, std::size_t count) {
    const std::vector<void *> all = take_all(mempool);
    if (all.size() != count) fail("mempool %s gives %zu objects, not %zu", mempool->name, all.size(), count);
    const std::set<void *> different(all.begin(), all.end());
    EXPECT(different.size() == count);
    for (void *object : all) EXPECT(rte_mempool_from_obj(object) == mempool);
    EXPECT(rte_mempool_avail_count(mempool) == mempool->size - count);
    give_all(mempool, all);
}

unsigned worker() {
    const unsigned lcore = rte_get_next_lcore(-1, 1, 0);
    if (lcore == RTE_MAX_LCORE) fail("give two lcores (-l 0,1)");
    return lcore;
}

// --- exact: no object is out of reach, also not those in another lcore's stash
// ----------------------------------------

// Takes so many objects and puts them back.
template <unsigned kMoved>
int move_objects(void *argument) {
    auto *const mempool = static_cast<rte_mempool *>(argument);
    constexpr unsigned kStep = 50;
    void *objects[kMoved];
    for (unsigned at = 0; at < kMoved; at += kStep)
        if (rte_mempool_get_bulk(mempool, objects + at, kStep) != 0) return -1;
    for (unsigned at = 0; at < kMoved; at += kStep) rte_mempool_put_bulk(mempool, objects + at, kStep);
    return 0;
}
constexpr auto fill_stash = move_objects<400>;
constexpr auto fill_depot = move_objects<2000>;  // the stash is full, and the depot has objects as well

void test_exact() {
    for (const unsigned count : {1U, 7U, 64U, 1000U, 4096U, 50000U}) {
        rte_mempool *const mempool = make(("exact " + std::to_string(count)).c_str(), count, 0, 64);
        for (int round = 0; round < 3; ++round) {
            if (count >= 1000) {
                rte_eal_remote_launch(fill_stash, mempool, worker());
                EXPECT(rte_eal_wait_lcore(worker()) == 0);
            }
            EXPECT(rte_mempool_full(mempool) == 1);
            expect_exactly(mempool, count);
            void *object = nullptr;
            EXPECT(rte_mempool_avail_count(mempool) == count);
            if (count == 1) continue;
            // A burst larger than the rest fails and leaves the table as it was.
            std::vector<void *> table(count, &object);
            EXPECT(rte_mempool_get(mempool, &object) == 0);
            void *const before = table[0];
            EXPECT(rte_mempool_get_bulk(mempool, table.data(), count) < 0);
            EXPECT(table[0] == before && table[count - 1] == before);
            rte_mempool_put(mempool, object);
        }
        rte_mempool_free(mempool);
    }
}

// --- children
// ---------------------------------------------------------------------------------------------------------

// What a child tells its parent, in memory that both have.
struct Told {
    std::atomic<unsigned> count;
    void *objects[4096];
    numacre_ref refs[4096];
    std::atomic<int> failed;
};
Told *tell() {
    void *const memory = mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    return new (memory) Told{};
}

template <class Steps>
pid_t begin_child(const Steps &steps) {
    const pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        steps();
        for (;;) pause();
    }
    return child;
}
void end_child(pid_t child) {
    kill(child, SIGKILL);
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}
void wait_for(const std::atomic<unsigned> &count, unsigned wanted) {
    while (count.load() < wanted) usleep(1000);
}

// --- chaos: two lcores, random bursts, an empty mempool at times
// ------------------------------------------------------

struct Chaos {
    rte_mempool *mempool;
    unsigned rounds;
};

int run_chaos(void *argument) {
    const Chaos &chaos = *static_cast<Chaos *>(argument);
    const std::uint32_t self = rte_lcore_id() + 1;
    std::mt19937 random(self);
    std::vector<void *> held;
    void *burst[200];
    for (unsigned round = 0; round < chaos.rounds; ++round) {
        const unsigned n = 1 + random() % (random() % 4 == 0 ? 200 : 40);
        if (random() % 2 == 0 && rte_mempool_get_bulk(chaos.mempool, burst, n) == 0) {
            for (unsigned i = 0; i < n; ++i) {
                const std::uint32_t before = holder_of(burst[i]).exchange(self);
                if (before != 0) fail("lcore %u got an object that lcore %u has", self - 1, before - 1);
                held.push_back(burst[i]);
            }
        } else if (held.size() >= n) {
            for (unsigned i = 0; i < n; ++i) {
                burst[i] = held.back();
                held.pop_back();
                if (holder_of(burst[i]).exchange(0) != self) fail("lcore %u lost an object", self - 1);
            }
            rte_mempool_put_bulk(chaos.mempool, burst, n);
        }
    }
    for (void *object : held) {
        holder_of(object).store(0);
        rte_mempool_put(chaos.mempool, object);
    }
    return 0;
}

void test_chaos() {
    for (const unsigned cache : {0U, 64U}) {
        Chaos chaos{make(("chaos " + std::to_string(cache)).c_str(), 1500, cache, 64), 100000};
        rte_eal_remote_launch(run_chaos, &chaos, worker());
        run_chaos(&chaos);
        rte_eal_wait_lcore(worker());
        EXPECT(rte_mempool_avail_count(chaos.mempool) == 1500);
        if (cache == 0) expect_exactly(chaos.mempool, 1500);
        rte_mempool_free(chaos.mempool);
    }
}

// --- one-way: one lcore takes, the other one puts, so that objects cross in batches
// -----------------------------------------------------------------------------

struct OneWay {
    rte_mempool *mempool;
    rte_ring *ring;
    std::atomic<bool> has_ended;
};
constexpr std::uint32_t kTravels = 5;

int put_what_comes(void *argument) {
    OneWay &way = *static_cast<OneWay *>(argument);
    std::mt19937 random(2);
    void *burst[300];
    for (bool is_last = false;;) {
        const unsigned n = rte_ring_sc_dequeue_burst(way.ring, burst, 1 + random() % 300, nullptr);
        for (unsigned i = 0; i < n; ++i)
            if (holder_of(burst[i]).exchange(0) != kTravels) fail("an object that was not sent has come");
        if (n != 0) rte_mempool_put_bulk(way.mempool, burst, n);
        if (n == 0 && is_last) return 0;
        is_last = n == 0 && way.has_ended.load();
    }
}

void test_one_way() {
    for (const unsigned count : {600U, 6000U, 20000U})
        for (const unsigned cache : {0U, 32U, 512U}) {
            // A cache is larger than the mempool allows, or the ring is never full.
            if (cache * 3 / 2 > count) continue;
            const std::string name = "way " + std::to_string(count) + " " + std::to_string(cache);
            OneWay way{make(name.c_str(), count, cache, 64),
                       rte_ring_create(name.c_str(), 1024, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ), false};
            EXPECT(way.ring != nullptr);
            rte_eal_remote_launch(put_what_comes, &way, worker());
            std::mt19937 random(1);
            void *burst[300];
            for (unsigned round = 0; round < 20000; ++round) {
                const unsigned n = 1 + random() % (random() % 4 == 0 ? 300 : 40);
                if (rte_mempool_get_bulk(way.mempool, burst, n) != 0) continue;
                for (unsigned i = 0; i < n; ++i)
                    if (holder_of(burst[i]).exchange(kTravels) != 0) fail("an object on its way was given out");
                for (unsigned sent = 0; sent < n;)
                    sent += rte_ring_sp_enqueue_burst(way.ring, burst + sent, n - sent, nullptr);
            }
            way.has_ended = true;
            EXPECT(rte_eal_wait_lcore(worker()) == 0);
            EXPECT(rte_mempool_avail_count(way.mempool) == count);
            if (cache == 0) expect_exactly(way.mempool, count);
            rte_ring_free(way.ring);
            rte_mempool_free(way.mempool);
        }
}

// --- layout: objects of all sizes and in many pieces
// ------------------------------------------------------------------

void test_layout() {
    unsigned number = 0;
    for (const unsigned bytes : {1U, 64U, 100U, 2048U, 2176U, 9000U})
        for (const int flags : {0, RTE_MEMPOOL_F_NO_SPREAD, RTE_MEMPOOL_F_NO_CACHE_ALIGN, RTE_MEMPOOL_F_NO_IOVA_CONTIG,
                                RTE_MEMPOOL_F_SP_PUT | RTE_MEMPOOL_F_SC_GET}) {
            rte_mempool *const mempool =
                make(("layout " + std::to_string(number++)).c_str(), 300, 0, bytes, static_cast<unsigned>(flags));
            expect_exactly(mempool, 300);
            rte_mempool_free(mempool);
        }
    // In pieces, which come in another order than that of their addresses.
    rte_mempool *const mempool = rte_mempool_create_empty("pieces", 1000, 200, 0, 0, SOCKET_ID_ANY, 0);
    EXPECT(mempool != nullptr && rte_mempool_set_ops_byname(mempool, "numacre", nullptr) == 0);
    std::vector<char *> pieces;
    for (int i = 0; i < 60; ++i) pieces.push_back(static_cast<char *>(rte_malloc(nullptr, 8000 + 320 * i, 64)));
    std::shuffle(pieces.begin(), pieces.end(), std::mt19937(1));
    unsigned there = 0;
    for (char *const piece : pieces) {
        std::size_t bytes = 0;
        EXPECT(rte_malloc_validate(piece, &bytes) == 0);
        const int more =
            rte_mempool_populate_iova(mempool, piece, rte_malloc_virt2iova(piece), bytes, nullptr, nullptr);
        if (more == -ENOSPC) break;
        EXPECT(more > 0);
        there += static_cast<unsigned>(more);
        // Objects that do not exist yet are not given out.
        if (there < 1000) {
            const std::vector<void *> all = take_all(mempool);
            EXPECT(all.size() == there);
            give_all(mempool, all);
        }
    }
    EXPECT(there == 1000 && mempool->nb_mem_chunks > 10);
    rte_mempool_obj_iter(mempool, begin_object, nullptr);
    expect_exactly(mempool, 1000);
    // No objects begin there: a burst that goes past the stash says so in the log, and the mempool stays as it is.
    std::vector<void *> all = take_all(mempool);
    std::vector<void *> wrong;
    for (unsigned i = 0; i < 300; ++i) wrong.push_back(static_cast<char *>(all[i]) + 8);
    EXPECT(rte_mempool_ops_enqueue_bulk(mempool, wrong.data(), 300) != 0);
    give_all(mempool, all);
    expect_exactly(mempool, 1000);
    rte_mempool_free(mempool);
}

// --- heap, extbuf: memory of numacre
// ----------------------------------------------------------------------------------

void expect_mbufs(rte_mempool *mempool, unsigned count) {
    std::vector<rte_mbuf *> all;
    while (rte_mbuf *const mbuf = rte_pktmbuf_alloc(mempool)) {
        EXPECT(rte_pktmbuf_append(mbuf, 100) != nullptr);
        std::memset(rte_pktmbuf_mtod(mbuf, void *), static_cast<int>(all.size()), 100);
        all.push_back(mbuf);
    }
    EXPECT(all.size() == count);
    for (unsigned i = 0; i < count; ++i) {
        const auto *const bytes = rte_pktmbuf_mtod(all[i], const unsigned char *);
        EXPECT(bytes[0] == static_cast<unsigned char>(i) && bytes[99] == static_cast<unsigned char>(i));
    }
    for (rte_mbuf *const mbuf : all) rte_pktmbuf_free(mbuf);
    EXPECT(rte_mempool_avail_count(mempool) == count);
}

void test_heap() {
    const int socket = rte_mempool_numacre_heap("packets", nullptr, -1, 8 << 20);
    EXPECT(socket >= 0);
    EXPECT(rte_malloc_heap_get_socket("packets") == socket);
    rte_mempool *const mempool = rte_pktmbuf_pool_create_by_ops("in heap", 2000, 0, 0, 2176, socket, "numacre");
    if (mempool == nullptr) fail("no mempool in the heap: %s", rte_strerror(rte_errno));
    rte_mbuf *const mbuf = rte_pktmbuf_alloc(mempool);
    EXPECT(mbuf != nullptr && rte_mem_virt2memseg_list(mbuf) != nullptr &&
           rte_mem_virt2memseg_list(mbuf)->external == 1);
    EXPECT(rte_mbuf_data_iova_default(mbuf) == reinterpret_cast<std::uintptr_t>(mbuf->buf_addr) + RTE_PKTMBUF_HEADROOM);
    rte_pktmbuf_free(mbuf);
    expect_mbufs(mempool, 2000);
    rte_mempool_free(mempool);
    EXPECT(rte_mempool_numacre_heap("packets", nullptr, -1, std::size_t{1} << 40) == -ENOMEM ||
           rte_mempool_numacre_heap("packets", nullptr, -1, std::size_t{1} << 40) == -EINVAL);
    EXPECT(rte_mempool_numacre_heap("packets", "nosuchpool", -1, 1) == -ENOENT);
    EXPECT(rte_mempool_numacre_heap("", nullptr, -1, 1) == -EINVAL);
}

void test_moved() {
    rte_mempool *const mempool = rte_pktmbuf_pool_create_by_ops("moved", 3000, 64, 0, 2176, SOCKET_ID_ANY, "numacre");
    if (mempool == nullptr) fail("no mempool: %s", rte_strerror(rte_errno));
    rte_mbuf *const mbuf = rte_pktmbuf_alloc(mempool);
    EXPECT(mbuf != nullptr && rte_mem_virt2memseg_list(mbuf)->external == 1);
    EXPECT(rte_malloc_heap_get_socket("numacre") == mempool->socket_id);
    rte_pktmbuf_free(mbuf);
    expect_mbufs(mempool, 3000);
    rte_mempool_free(mempool);
    // The next one has the same memory.
    rte_mempool *const next = rte_pktmbuf_pool_create_by_ops("moved", 3000, 0, 0, 2176, SOCKET_ID_ANY, "numacre");
    EXPECT(next != nullptr);
    expect_mbufs(next, 3000);
    // A child of fork() does not inherit the memory, and maps it where its parent has it.
    Told &told = *tell();
    const pid_t child = begin_child([&] {
        void *object = nullptr;
        if (rte_mempool_get(next, &object) != 0) fail("the child gets nothing");
        static_cast<rte_mbuf *>(object)->dynfield1[0] = 4711;
        told.objects[0] = object;
        told.count = 1;
    });
    wait_for(told.count, 1);
    rte_mbuf *const from_child = static_cast<rte_mbuf *>(told.objects[0]);
    EXPECT(from_child->dynfield1[0] == 4711);
    end_child(child);
    rte_mempool_put(next, from_child);
}

void test_extbuf() {
    rte_pktmbuf_extmem memory{};
    EXPECT(rte_mempool_numacre_extmem(nullptr, -1, 2176, 1000, &memory) == 0);
    EXPECT(memory.elt_size == 2176 && memory.buf_len >= 1000 * 2176);
    rte_mempool *const mempool = rte_pktmbuf_pool_create_extbuf("pinned", 1000, 0, 0, 2176, SOCKET_ID_ANY, &memory, 1);
    if (mempool == nullptr) fail("no mempool of pinned buffers: %s", rte_strerror(rte_errno));
    EXPECT(std::string_view(rte_mempool_get_ops(mempool->ops_index)->name) == "numacre");
    rte_mbuf *const mbuf = rte_pktmbuf_alloc(mempool);
    EXPECT(mbuf != nullptr && RTE_MBUF_HAS_PINNED_EXTBUF(mbuf));
    EXPECT(mbuf->buf_addr >= memory.buf_ptr && mbuf->buf_addr < static_cast<char *>(memory.buf_ptr) + memory.buf_len);
    rte_pktmbuf_free(mbuf);
    expect_mbufs(mempool, 1000);
    EXPECT(rte_mempool_numacre_extmem(nullptr, -1, 2175, 1000, &memory) == -EINVAL);
}

// --- deaths
// -----------------------------------------------------------------------------------------------------------

// What recovery gives back after a death is there a moment later.
std::vector<void *> take_eventually(rte_mempool *mempool, std::size_t wanted) {
    std::vector<void *> all = take_all(mempool);
    for (int i = 0; i < 400 && all.size() < wanted; ++i) {
        usleep(10000);
        for (void *object : take_all(mempool)) all.push_back(object);
    }
    return all;
}
void expect_eventually(rte_mempool *mempool, std::size_t count) {
    std::vector<void *> all = take_eventually(mempool, count);
    usleep(50000);  // more would come by now
    for (void *object : take_all(mempool)) all.push_back(object);
    if (all.size() != count) fail("mempool %s gives %zu objects, not %zu", mempool->name, all.size(), count);
    EXPECT((std::set<void *>(all.begin(), all.end()).size() == count));
    give_all(mempool, all);
}

void test_quarantine() {
    constexpr unsigned kCount = 1000, kTaken = 100;
    rte_mempool *const mempool = make("quarantine", kCount);
    Told &told = *tell();
    // A child takes objects, frees some, and passes some by plain pointers.
    const pid_t child = begin_child([&] {
        if (rte_mempool_get_bulk(mempool, told.objects, 2 * kTaken) != 0) fail("the child gets nothing");
        rte_mempool_put_bulk(mempool, told.objects + kTaken, kTaken);
        told.count = kTaken;
    });
    wait_for(told.count, kTaken);
    end_child(child);
    // What it had is quarantined, and only that.
    expect_eventually(mempool, kCount - kTaken);
    // A survivor that has the pointers frees them.
    rte_mempool_put_bulk(mempool, told.objects, kTaken / 2);
    expect_eventually(mempool, kCount - kTaken / 2);
    // Another child of the world may do that as well.
    std::atomic<unsigned> &count = told.count;
    const pid_t second = begin_child([&] {
        rte_mempool_put_bulk(mempool, told.objects + kTaken / 2, kTaken / 2);
        count = 2 * kTaken;
    });
    wait_for(count, 2 * kTaken);
    end_child(second);
    expect_eventually(mempool, kCount);
    // A living process's objects are freed by another one.
    const pid_t third = begin_child([&] {
        if (rte_mempool_get_bulk(mempool, told.objects, kTaken) != 0) fail("the child gets nothing");
        count = 3 * kTaken;
    });
    wait_for(count, 3 * kTaken);
    rte_mempool_put_bulk(mempool, told.objects, kTaken);
    expect_eventually(mempool, kCount);
    end_child(third);
    expect_eventually(mempool, kCount);
}

void test_give() {
    constexpr unsigned kCount = 500, kGiven = 100;
    rte_mempool *const mempool = make("give", kCount);
    Told &told = *tell();
    const pid_t giver = begin_child([&] {
        if (rte_mempool_get_bulk(mempool, told.objects, kGiven) != 0 ||
            rte_mempool_numacre_give_burst(mempool, told.objects, told.refs, kGiven) != 0)
            fail("the child cannot give");
        told.count = kGiven;
    });
    wait_for(told.count, kGiven);
    void *taken[kGiven];
    EXPECT(rte_mempool_numacre_take_burst(mempool, told.refs, taken, kGiven) == kGiven);
    for (unsigned i = 0; i < kGiven; ++i) EXPECT(taken[i] == told.objects[i]);
    void *again[kGiven];
    EXPECT(rte_mempool_numacre_take_burst(mempool, told.refs, again, kGiven) == 0 && again[0] == nullptr);
    end_child(giver);
    expect_eventually(mempool, kCount - kGiven);
    rte_mempool_put_bulk(mempool, taken, kGiven);
    expect_eventually(mempool, kCount);
    // The taker dies.
    EXPECT(rte_mempool_get_bulk(mempool, taken, kGiven) == 0);
    EXPECT(rte_mempool_numacre_give_burst(mempool, taken, told.refs, kGiven) == 0);
    const pid_t taker = begin_child([&] {
        if (rte_mempool_numacre_take_burst(mempool, told.refs, told.objects, kGiven) != kGiven)
            fail("the child cannot take");
        told.count = 2 * kGiven;
    });
    wait_for(told.count, 2 * kGiven);
    end_child(taker);
    expect_eventually(mempool, kCount - kGiven);
    rte_mempool_put_bulk(mempool, taken, kGiven);
    expect_eventually(mempool, kCount);
    EXPECT(rte_mempool_numacre_give_burst(nullptr, taken, told.refs, 1) == -EINVAL);
}

// A second process has come, and an lcore that has a full stash does nothing any more.
void test_idle() {
    constexpr unsigned kCount = 4096, kHeld = 10;
    rte_mempool *const mempool = make("idle", kCount, 0, 64);
    Told &told = *tell();
    rte_eal_remote_launch(fill_depot, mempool, worker());
    EXPECT(rte_eal_wait_lcore(worker()) == 0);
    const pid_t child = begin_child([&] {
        if (rte_mempool_get_bulk(mempool, told.objects, kHeld) != 0) fail("the child gets nothing");
        told.count = 1;
    });
    wait_for(told.count, 1);
    expect_eventually(mempool, kCount - kHeld);
    end_child(child);
    rte_mempool_put_bulk(mempool, told.objects, kHeld);
    expect_eventually(mempool, kCount);
}

// The first process dies, and its stash is full.
void test_orphan() {
    constexpr unsigned kCount = 4096, kHeld = 30;
    Told &told = *tell();
    rte_mempool *const mempool = make("orphan", kCount);
    const pid_t parent = getpid();
    EXPECT(fill_depot(mempool) == 0);
    EXPECT(rte_mempool_get_bulk(mempool, told.objects, kHeld) == 0);
    const pid_t child = begin_child([&] {
        void *object = nullptr;
        if (rte_mempool_get(mempool, &object) != 0) fail("the child gets nothing");
        rte_mempool_put(mempool, object);
        told.count = 1;
        while (getppid() == parent) usleep(1000);
        expect_eventually(mempool, kCount - kHeld);
        rte_mempool_put_bulk(mempool, told.objects, kHeld);
        expect_eventually(mempool, kCount);
        std::puts("the child has all objects");
        std::fflush(stdout);
        std::_Exit(0);
    });
    EXPECT(child > 0);
    wait_for(told.count, 1);
    kill(parent, SIGKILL);
}

constexpr unsigned kBurst = 32;

// Gets, puts and sends objects until it is killed.
[[noreturn]] void work_for_ever(rte_mempool *mempool, rte_ring *ring, Told &told, unsigned seed) {
    const auto self = static_cast<std::uint32_t>(getpid());
    std::mt19937 choose(seed);
    std::vector<void *> held;
    void *burst[kBurst];
    for (;;) {
        const unsigned n = 1 + choose() % kBurst;
        const unsigned what = choose() % 3;
        if (what == 0 || held.size() < n) {
            if (held.size() > 300 || rte_mempool_get_bulk(mempool, burst, n) != 0) {
                for (void *object : held) {
                    holder_of(object).store(0);
                    rte_mempool_put(mempool, object);
                }
                held.clear();
                continue;
            }
            for (unsigned k = 0; k < n; ++k) {
                if (holder_of(burst[k]).exchange(self) != 0) told.failed = 1;
                held.push_back(burst[k]);
            }
        } else {
            std::copy_n(held.end() - n, n, burst);
            held.resize(held.size() - n);
            if (what == 1 && rte_ring_sp_enqueue_bulk(ring, burst, n, nullptr) == n) continue;
            for (unsigned k = 0; k < n; ++k)
                if (holder_of(burst[k]).exchange(0) != self) told.failed = 2;
            rte_mempool_put_bulk(mempool, burst, n);
        }
        if (told.count.load() == 0) told.count.store(1);
    }
}

// Puts what another process has sent, and works as well.
void work_once(rte_mempool *mempool, rte_ring *ring, Told &told, std::uint32_t sender) {
    void *burst[kBurst];
    while (const unsigned n = rte_ring_sc_dequeue_burst(ring, burst, kBurst, nullptr)) {
        for (unsigned k = 0; k < n; ++k)
            if (holder_of(burst[k]).exchange(0) != sender) told.failed = 3;
        rte_mempool_put_bulk(mempool, burst, n);
    }
    // The parent works as well.
    if (rte_mempool_get_bulk(mempool, burst, kBurst) != 0) return;
    for (void *object : burst)
        if (holder_of(object).exchange(1) != 0) told.failed = 4;
    for (void *object : burst)
        if (holder_of(object).exchange(0) != 1) told.failed = 5;
    rte_mempool_put_bulk(mempool, burst, kBurst);
}

// A survivor knows by the first word what a dead process had, and puts it. Returns the number of objects.
unsigned put_for(rte_mempool *mempool, std::uint32_t holder) {
    struct Look {
        rte_mempool *mempool;
        std::uint32_t holder;
        unsigned returned;
    } look{mempool, holder, 0};
    rte_mempool_obj_iter(
        mempool,
        [](rte_mempool *, void *argument, void *object, unsigned) {
            auto &there = *static_cast<Look *>(argument);
            if (holder_of(object).load() != there.holder) return;
            holder_of(object).store(0);
            rte_mempool_put(there.mempool, object);
            ++there.returned;
        },
        &look);
    return look.returned;
}

// Children that are killed at any instruction.
void test_kill(unsigned kills) {
    constexpr unsigned kCount = 2000;
    rte_mempool *const mempool = make("kill", kCount);
    Told &told = *tell();
    const char *const seed_text = std::getenv("NUMACRE_TEST_SEED");
    std::mt19937 random(seed_text == nullptr ? 7 : static_cast<unsigned>(std::strtoul(seed_text, nullptr, 10)));
    unsigned returned = 0;
    for (unsigned i = 0; i < kills; ++i) {
        char name[RTE_RING_NAMESIZE];
        std::snprintf(name, sizeof name, "to parent %u", i);
        rte_ring *const ring = rte_ring_create(name, 256, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
        EXPECT(ring != nullptr);
        told.count = 0;
        const unsigned seed = random();
        const pid_t child = begin_child([&] {
            prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is cut off leaves nobody at work
            work_for_ever(mempool, ring, told, seed);
        });
        wait_for(told.count, 1);
        const auto childs = static_cast<std::uint32_t>(child);
        const auto drain = [&] { work_once(mempool, ring, told, childs); };
        for (unsigned rounds = random() % 3000; rounds > 0; --rounds) drain();
        if (random() % 3 == 0) {  // stopped at any instruction for a while: nobody waits for it
            kill(child, SIGSTOP);
            for (unsigned rounds = random() % 3000; rounds > 0; --rounds) drain();
            kill(child, SIGCONT);
        }
        end_child(child);
        // Some deaths are looked at at once, others when recovery has seen them.
        for (unsigned rounds = i % 3 * 10; rounds > 0; --rounds) {
            drain();
            usleep(1000);
        }
        drain();
        // Nothing of what the child had is given to anybody.
        const std::vector<void *> free_ones = take_all(mempool);
        for (void *object : free_ones)
            if (holder_of(object).load() != 0) told.failed = 6;
        give_all(mempool, free_ones);
        if (told.failed != 0) fail("kill %u: an object had two owners (%d)", i, told.failed.load());
        returned += put_for(mempool, childs);
        rte_ring_free(ring);
    }
    std::vector<void *> all = take_eventually(mempool, kCount);
    EXPECT((std::set<void *>(all.begin(), all.end()).size() == all.size()));
    // In quarantine: what a child had been given but not seen, or had freed but not quite.
    const std::size_t quarantined = kCount - all.size();
    std::printf("%u kills, %u objects freed by the survivor, %zu in quarantine\n", kills, returned, quarantined);
    EXPECT(quarantined <= std::size_t{kills} * 2 * kBurst);
    give_all(mempool, all);
}

// --- processes that are not forked
// ------------------------------------------------------------------------------------

// The primary makes mempools and waits for a line on its standard input; then it wants all objects.
void test_primary() {
    rte_mempool *const mempool = make("of primary", 1000, 128);
    rte_ring *const ring = rte_ring_create("objects", 1024, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
    EXPECT(ring != nullptr);
    void *objects[600];
    EXPECT(rte_mempool_get_bulk(mempool, objects, 600) == 0);
    EXPECT(rte_ring_enqueue_bulk(ring, objects, 600, nullptr) == 600);
    std::puts("ready");
    std::fflush(stdout);
    char line[64];
    while (std::fgets(line, sizeof line, stdin) != nullptr) {
        void *object = nullptr;
        while (rte_ring_dequeue(ring, &object) == 0) rte_mempool_put(mempool, object);
        std::vector<void *> all = take_eventually(mempool, static_cast<std::size_t>(std::atoi(line)));
        EXPECT((std::set<void *>(all.begin(), all.end()).size() == all.size()));
        std::printf("%zu\n", all.size());
        std::fflush(stdout);
        give_all(mempool, all);
    }
}

// A secondary takes the primary's objects out of the ring, frees some and holds 100 of its own; then it waits for its
// end.
void test_secondary() {
    rte_mempool *const mempool = rte_mempool_lookup("of primary");
    rte_ring *const ring = rte_ring_lookup("objects");
    EXPECT(mempool != nullptr && ring != nullptr);
    void *objects[300];
    for (int i = 0; i < 2; ++i) {
        EXPECT(rte_ring_dequeue_bulk(ring, objects, 300, nullptr) == 300);
        for (int at = 0; at < 300; at += 30) rte_mempool_put_bulk(mempool, objects + at, 30);
    }
    EXPECT(rte_mempool_get_bulk(mempool, objects, 100) == 0);
    std::puts("holds 100");
    std::fflush(stdout);
    for (;;) pause();
}

constexpr std::uint32_t kCached = 77;  // in an object's first word: it is in DPDK's cache of a dead process's lcore

// The primary leaves objects in the cache of lcore 1, and says so. A secondary keeps the world alive, without lcore 1.
int fill_lcore_cache(void *argument) {
    auto *const mempool = static_cast<rte_mempool *>(argument);
    void *objects[64];
    if (rte_mempool_get_bulk(mempool, objects, 64) != 0) return -1;
    for (void *object : objects) holder_of(object) = kCached;
    rte_mempool_put_bulk(mempool, objects, 64);
    return 0;
}
void test_cache_primary() {
    rte_mempool *const mempool = make("cached", 1000, 128);
    EXPECT(worker() == 1);
    rte_eal_remote_launch(fill_lcore_cache, mempool, 1);
    EXPECT(rte_eal_wait_lcore(1) == 0 && mempool->local_cache[1].len >= 64);
    std::puts("ready");
    std::fflush(stdout);
    for (;;) pause();
}
void test_cache_witness() {
    EXPECT(rte_mempool_lookup("cached") != nullptr);
    std::puts("ready");
    std::fflush(stdout);
    for (;;) pause();
}
// A secondary has lcore 1, which was the dead primary's.
void test_cache_successor() {
    rte_mempool *const mempool = rte_mempool_lookup("cached");
    EXPECT(mempool != nullptr && rte_lcore_id() == 1);
    unsigned cached = 0;
    const std::vector<void *> all = take_eventually(mempool, 700);
    for (void *object : all) cached += holder_of(object).load() == kCached ? 1 : 0;
    std::printf("%zu objects, %u of them from a dead process's cache\n", all.size(), cached);
    std::fflush(stdout);
    give_all(mempool, all);
}

// Another pool has the name of the one that the first mempool came from.
void test_anew() {
    rte_mempool_free(make("before", 100));
    std::puts("ready");
    std::fflush(stdout);
    (void)std::getchar();
    expect_exactly(make("behind", 100), 100);
}

constexpr unsigned kChaosObjects = 2000;
constexpr char kChaosRing[] = "to primary";

// Works while secondaries come and are killed. Lines on the standard input: "dead PID", then "end".
void test_chaos_primary() {
    rte_mempool *const mempool = make("chaos", kChaosObjects, 64);
    const rte_memzone *const zone = rte_memzone_reserve("told", sizeof(Told), SOCKET_ID_ANY, 0);
    EXPECT(zone != nullptr);
    Told &told = *new (zone->addr) Told{};
    rte_ring *ring = rte_ring_create(kChaosRing, 256, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
    EXPECT(ring != nullptr);
    std::puts("ready");
    std::fflush(stdout);
    for (;;) {
        work_once(mempool, ring, told, told.count.load());
        pollfd input{STDIN_FILENO, POLLIN, 0};
        if (poll(&input, 1, 0) == 0) continue;
        char line[64];
        EXPECT(std::fgets(line, sizeof line, stdin) != nullptr);
        if (std::strncmp(line, "dead ", 5) != 0) break;
        const auto dead = static_cast<std::uint32_t>(std::atoi(line + 5));
        for (int round = 0; round < 20; ++round) {
            work_once(mempool, ring, told, dead);
            usleep(1000);
        }
        if (told.failed != 0) fail("an object had two owners (%d)", told.failed.load());
        std::printf("%u\n", put_for(mempool, dead));
        std::fflush(stdout);
        // A ring may be half-written.
        rte_ring_free(ring);
        ring = rte_ring_create(kChaosRing, 256, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
        EXPECT(ring != nullptr);
    }
    const std::vector<void *> all = take_eventually(mempool, kChaosObjects);
    EXPECT((std::set<void *>(all.begin(), all.end()).size() == all.size()));
    if (told.failed != 0) fail("an object had two owners (%d)", told.failed.load());
    std::printf("%zu\n", all.size());
    std::fflush(stdout);
    give_all(mempool, all);
}

void test_chaos_secondary() {
    rte_mempool *const mempool = rte_mempool_lookup("chaos");
    rte_ring *const ring = rte_ring_lookup(kChaosRing);
    const rte_memzone *const zone = rte_memzone_lookup("told");
    EXPECT(mempool != nullptr && ring != nullptr && zone != nullptr);
    Told &told = *static_cast<Told *>(zone->addr);
    std::puts("works");
    std::fflush(stdout);
    told.count = static_cast<unsigned>(getpid());
    work_for_ever(mempool, ring, told, static_cast<unsigned>(getpid()));
}

}  // namespace

int main(int argc, char **argv) {
    if (argc < 2) fail("give a mode");
    const std::string_view mode = argv[1];
    if (rte_eal_init(argc - 1, argv + 1) < 0) fail("EAL does not start: %s", rte_strerror(rte_errno));
    if (mode == "exact") {
        test_exact();
    } else if (mode == "chaos") {
        test_chaos();
    } else if (mode == "one-way") {
        test_one_way();
    } else if (mode == "layout") {
        test_layout();
    } else if (mode == "heap") {
        test_heap();
    } else if (mode == "moved") {
        test_moved();
    } else if (mode == "extbuf") {
        test_extbuf();
    } else if (mode == "quarantine") {
        test_quarantine();
    } else if (mode == "give") {
        test_give();
    } else if (mode == "orphan") {
        test_orphan();
    } else if (mode == "kill") {
        const char *const kills = std::getenv("NUMACRE_TEST_KILLS");
        test_kill(kills == nullptr ? 60 : static_cast<unsigned>(std::strtoul(kills, nullptr, 10)));
    } else if (mode == "idle") {
        test_idle();
    } else if (mode == "anew") {
        test_anew();
    } else if (mode == "cache-primary") {
        test_cache_primary();
    } else if (mode == "cache-witness") {
        test_cache_witness();
    } else if (mode == "cache-successor") {
        test_cache_successor();
    } else if (mode == "primary") {
        test_primary();
    } else if (mode == "secondary") {
        test_secondary();
    } else if (mode == "chaos-primary") {
        test_chaos_primary();
    } else if (mode == "chaos-secondary") {
        test_chaos_secondary();
    } else if (mode == "make") {
        (void)make("made", 1000);
    } else if (mode == "big") {
        (void)make("big", 50000);  // 100 MiB
    } else if (mode == "many") {
        (void)make("too many", 0xf0000000U);
    } else if (mode == "hold") {
        EXPECT(rte_mempool_numacre_heap("held", nullptr, -1, 32 << 20) >= 0);
        std::puts("ready");
        std::fflush(stdout);
        (void)std::getchar();
    } else {
        fail("no such mode: %s", argv[1]);
    }
    rte_eal_cleanup();
    return 0;
}
