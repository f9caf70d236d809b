// A signal handler that calls the library, at each instruction of another call of its thread: the flow of the test runs
// in steps of one instruction (the trap flag), and the handler of the n-th trap makes its calls, for every n.
#include <gtest/gtest.h>
#include <signal.h>
#include <ucontext.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "numacre/numacre.h"
#include "support/sanitizer.hpp"

namespace {

#if defined(__x86_64__) && !defined(UNDER_SANITIZER)

constexpr std::size_t kFrame = 4096;
constexpr std::size_t kCapacity = std::size_t{64} << 20;
constexpr std::size_t kLargest = std::size_t{4} << 20;
constexpr unsigned kMany = 32;
// Of a long call positions are left out, evenly, other ones for each kind of handler: what leads up to a position goes
// in steps, and each takes a signal.
constexpr std::uint64_t kStepsMax = 400;

struct Kind {
    const char *name;
    std::size_t size_bytes;
    unsigned flags;
    unsigned count;  // more than one: by the calls for many
};
constexpr Kind kCached{"cached", kFrame, 0, 1};
constexpr Kind kUncached{"uncached", kFrame, NUMACRE_UNCACHED, 1};
constexpr Kind kLarge{"large", std::size_t{2} << 20, NUMACRE_UNCACHED, 1};
constexpr Kind kBulk{"bulk", kFrame, 0, kMany};

struct Pool {
    numacre_pool *handle;
    std::byte *first_frame;
    // The holders of a frame as far as this test knows: 0 nobody, else a bit for each that has been told so.
    std::uint8_t holders[kCapacity / kFrame];
};
Pool first;
Pool second;

struct Blocks {
    Pool *pool = nullptr;
    const Kind *kind = nullptr;  // nullptr: none
    void *at[kMany] = {};
};

// Calls change(holders of a block's first frame, frames) for each block.
template <class Change>
void for_each_block(const Blocks &blocks, Change &&change) {
    for (unsigned i = 0; i < blocks.kind->count; ++i) {
        const auto offset = static_cast<std::size_t>(static_cast<std::byte *>(blocks.at[i]) - blocks.pool->first_frame);
        change(blocks.pool->holders + offset / kFrame, blocks.kind->size_bytes / kFrame);
    }
}
// False: somebody has it already.
bool note_held(const Blocks &blocks, std::uint8_t who) {
    bool alone = true;
    for_each_block(blocks, [&](std::uint8_t *holders, std::size_t frames) {
        for (std::size_t frame = 0; frame < frames; ++frame) {
            alone = alone && holders[frame] == 0;
            holders[frame] |= who;
        }
    });
    return alone;
}
void note_gone(const Blocks &blocks) {
    for_each_block(blocks, [](std::uint8_t *holders, std::size_t frames) { std::memset(holders, 0, frames); });
}

int allocate(Pool &pool, const Kind &kind, Blocks &blocks) {
    const int error = kind.count > 1    ? numacre_alloc_bulk(pool.handle, kind.size_bytes, blocks.at, kind.count)
                      : kind.flags == 0 ? numacre_alloc(pool.handle, kind.size_bytes, blocks.at)
                                        : numacre_alloc_on(pool.handle, -1, kind.size_bytes, kind.flags, blocks.at);
    if (error == 0) {
        blocks.pool = &pool;
        blocks.kind = &kind;
    }
    return error;
}
int release(Blocks &blocks) {
    numacre_pool *const handle = blocks.pool->handle;
    return blocks.kind->count > 1    ? numacre_free_bulk(handle, blocks.at, blocks.kind->count)
           : blocks.kind->flags == 0 ? numacre_free(handle, blocks.at[0])
                                     : numacre_free_uncached(handle, blocks.at[0]);
}

// What the handler does. Results are looked at afterwards: nothing is to be asserted in there.
enum class Act : std::uint8_t { allocates, frees, allocates_and_frees, frees_and_allocates };
constexpr const char *kActs[] = {"allocates", "frees", "allocates and frees", "frees and allocates"};

struct Handler {
    Pool *pool;
    const Kind *kind;
    Act act;
    Blocks before;  // what it may free
    Blocks got;
    unsigned traps_left;
    bool has_run;
    int worst;      // the first result that is neither 0 nor -EBUSY
    unsigned busy;  // how often it was -EBUSY
    bool alone;
};
Handler handler;

int judge(int result) {
    if (result == -EBUSY)
        ++handler.busy;
    else if (result != 0 && handler.worst == 0)
        handler.worst = result;
    return result;
}
void handler_allocates() {
    if (judge(allocate(*handler.pool, *handler.kind, handler.got)) == 0)
        handler.alone = note_held(handler.got, 2) && handler.alone;
}
void handler_frees(Blocks &blocks) {
    if (blocks.kind == nullptr) return;
    note_gone(blocks);  // whoever gets it inside may have it
    if (judge(release(blocks)) == 0)
        blocks.kind = nullptr;
    else
        handler.alone = note_held(blocks, 2) && handler.alone;
}

void on_trap(int, siginfo_t *, void *context) {
    if (--handler.traps_left != 0) return;
    constexpr greg_t kTrapFlag = 0x100;
    static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_EFL] &= ~kTrapFlag;
    handler.has_run = true;
    const int saved = errno;
    if (handler.act == Act::frees || handler.act == Act::frees_and_allocates) handler_frees(handler.before);
    if (handler.act != Act::frees) handler_allocates();
    if (handler.act == Act::allocates_and_frees) handler_frees(handler.got);
    errno = saved;
}

// NOLINTBEGIN(hicpp-no-assembler)
[[gnu::always_inline]] inline void begin_steps() {
    asm volatile("pushfq\n\torq $0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
}
[[gnu::always_inline]] inline void end_steps() {
    asm volatile("pushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
}
// NOLINTEND(hicpp-no-assembler)

[[gnu::noinline]] int step_allocate(const Kind &kind, Blocks &blocks) {
    begin_steps();
    const int error = allocate(first, kind, blocks);
    end_steps();
    return error;
}
[[gnu::noinline]] int step_release(Blocks &blocks) {
    begin_steps();
    const int error = release(blocks);
    end_steps();
    return error;
}

class ClientSignal : public ::testing::Test {
protected:
    void SetUp() override {
        struct sigaction action{};
        action.sa_sigaction = on_trap;
        action.sa_flags = SA_SIGINFO;
        ASSERT_EQ(sigaction(SIGTRAP, &action, &before_), 0);
    }
    void TearDown() override { sigaction(SIGTRAP, &before_, nullptr); }

    static void open(Pool &pool) {
        const numacre_private_options options{sizeof options, kCapacity, kFrame, kLargest, 0, 0, 0};
        ASSERT_EQ(numacre_open_private(&options, &pool.handle), 0) << numacre_last_error();
        void *base = nullptr;
        std::size_t bytes = 0;
        ASSERT_EQ(numacre_region(pool.handle, 0, &base, &bytes), 0);
        pool.first_frame = static_cast<std::byte *>(base);
        std::memset(pool.holders, 0, sizeof pool.holders);
        Blocks warm;
        for (const Kind *kind : {&kCached, &kUncached, &kLarge, &kBulk})
            for (int i = 0; i < 20; ++i) {
                ASSERT_EQ(allocate(pool, *kind, warm), 0);
                ASSERT_EQ(release(warm), 0);
            }
    }
    // All of it is free, in whole largest blocks: nothing has been lost.
    static void close(const Pool &pool) {
        for (std::size_t bytes = 0; bytes < kCapacity; bytes += kLargest) {
            void *block = nullptr;
            ASSERT_EQ(numacre_alloc(pool.handle, kLargest, &block), 0) << "memory is lost: " << numacre_last_error();
        }
        numacre_detach(pool.handle);
    }

    // A call on the first pool, the handler's calls at each of its instructions. Returns how often they were told
    // -EBUSY.
    static unsigned interrupt(const Kind &outer, bool outer_frees, Pool &pool, const Kind &inner, Act act) {
        SCOPED_TRACE(std::string(outer.name) + (outer_frees ? " free" : " allocation") + ", the handler " +
                     kActs[static_cast<unsigned>(act)] + " " + inner.name);
        static unsigned turn = 0;
        unsigned busy = 0;
        unsigned stride = 1;
        for (unsigned position = 0; !HasFailure(); position += stride) {
            SCOPED_TRACE("at instruction " + std::to_string(position));
            Blocks mine;
            handler = {};
            handler.pool = &pool;
            handler.kind = &inner;
            handler.act = act;
            handler.alone = true;
            // The first time only to count.
            handler.traps_left = position == 0 ? ~0U : position;
            if (act == Act::frees || act == Act::frees_and_allocates) {
                EXPECT_EQ(allocate(pool, inner, handler.before), 0);
                EXPECT_TRUE(note_held(handler.before, 2));
            }
            if (outer_frees) {
                EXPECT_EQ(allocate(first, outer, mine), 0);
                EXPECT_EQ(step_release(mine), 0) << numacre_last_error();
            } else {
                EXPECT_EQ(step_allocate(outer, mine), 0) << numacre_last_error();
                EXPECT_TRUE(note_held(mine, 1)) << "owned twice";
                note_gone(mine);
                if (handler.got.kind != nullptr) (void)note_held(handler.got, 2);
                EXPECT_EQ(release(mine), 0) << numacre_last_error();
            }
            EXPECT_TRUE(handler.alone) << "owned twice";
            EXPECT_EQ(handler.worst, 0);
            busy += handler.busy;
            for (Blocks *left : {&handler.before, &handler.got})
                if (left->kind != nullptr) {
                    note_gone(*left);
                    EXPECT_EQ(release(*left), 0) << numacre_last_error();
                }
            const std::uint64_t steps = ~0U - handler.traps_left;
            if (position != 0 && !handler.has_run) break;
            if (position == 0) {
                stride = static_cast<unsigned>(std::max<std::uint64_t>(1, steps * steps / 2 / kStepsMax));
                position = ++turn % stride + 1 - stride;  // wraps; the first one is turn % stride + 1
            }
        }
        return busy;
    }

private:
    struct sigaction before_{};
};

TEST_F(ClientSignal, a_free_past_the_cache_is_done_or_told_that_its_thread_is_inside) {
    unsigned busy = 0;
    open(first);
    for (const Kind *outer : {&kCached, &kUncached, &kLarge, &kBulk})
        for (const bool outer_frees : {false, true})
            for (const Kind *inner : {&kUncached, &kLarge})
                busy += interrupt(*outer, outer_frees, first, *inner, Act::frees);
    close(first);
    EXPECT_GT(busy, 0U);
}

// But not for programs to rely on: where memory is short it gives back what the thread has cached.
TEST_F(ClientSignal, an_allocation_past_the_cache_is_done_or_told_that_its_thread_is_inside) {
    unsigned busy = 0;
    open(first);
    for (const Kind *outer : {&kUncached, &kLarge})
        for (const bool outer_frees : {false, true})
            for (const Kind *inner : {&kUncached, &kLarge})
                busy += interrupt(*outer, outer_frees, first, *inner, Act::allocates_and_frees);
    close(first);
    EXPECT_GT(busy, 0U);
}

TEST_F(ClientSignal, with_a_handle_of_its_own_it_may_make_any_call) {
    open(first);
    open(second);
    for (const Kind *outer : {&kCached, &kUncached, &kLarge, &kBulk})
        for (const bool outer_frees : {false, true})
            for (const Kind *inner : {&kCached, &kLarge, &kBulk})
                EXPECT_EQ(interrupt(*outer, outer_frees, second, *inner,
                                    outer_frees ? Act::frees_and_allocates : Act::allocates),
                          0U);
    close(second);
    close(first);
}

#else

TEST(ClientSignal, past_the_cache_and_with_a_handle_of_its_own) {
    GTEST_SKIP() << "stepping by the trap flag is for x86-64 without a sanitizer";
}

#endif

}  // namespace
