// What the hot path executes, counted instruction by instruction (PTRACE_SINGLESTEP) in the library as it is built:
// locked read-modify-writes, branches, calls and all instructions of one allocation and one free in steady state. A
// count, not a time: it is the same on every run of the same binary. Built without sanitizers only.
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <vector>

#include "numacre/inline.h"

namespace {

#if !defined(__x86_64__)
#error "hot_path_test decodes x86-64; exclude it from this target's build"
#endif

volatile int marks_passed = 0;
[[gnu::noinline]] void mark() {
    marks_passed = marks_passed + 1;
}

struct Tally {
    unsigned locked = 0;
    unsigned instructions = 0;
    unsigned branches = 0;  // conditional ones
    unsigned calls = 0;
};

bool is_locked(pid_t child, unsigned long long at) {
    errno = 0;
    const long bytes = ptrace(PTRACE_PEEKTEXT, child, at, nullptr);
    for (unsigned i = 0; i < 4; ++i) {
        const auto byte = static_cast<unsigned char>(bytes >> (8 * i));
        if (byte == 0xf0) return true;
        if (byte == 0x86 || byte == 0x87)  // xchg with memory locks by itself; its operand byte has mod != 3
            return (static_cast<unsigned char>(bytes >> (8 * (i + 1))) >> 6) != 3;
        const bool prefix = byte == 0x66 || byte == 0xf2 || byte == 0xf3 || (byte & 0xf0) == 0x40;
        if (!prefix) return false;
    }
    return false;
}

void classify(pid_t child, unsigned long long at, Tally &tally) {
    errno = 0;
    const auto bytes = static_cast<unsigned long>(ptrace(PTRACE_PEEKTEXT, child, at, nullptr));
    const unsigned prefix = (bytes & 0xf0) == 0x40 ? 8 : 0;  // a call by one of the upper registers has one
    const auto first = static_cast<unsigned char>(bytes >> prefix);
    const auto second = static_cast<unsigned char>(bytes >> (prefix + 8));
    if ((first & 0xf0) == 0x70 || (first == 0x0f && (second & 0xf0) == 0x80)) ++tally.branches;
    if (first == 0xe8 || (first == 0xff && (second >> 3 & 7) == 2)) ++tally.calls;
}

// Runs prepare() freely, then steps through part(0), part(1), ...; returns a tally for each.
std::vector<Tally> step_through(void (*prepare)(), void (*const parts[])(), unsigned part_count) {
    const pid_t child = fork();
    if (child == 0) {
        prepare();
        ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
        raise(SIGSTOP);
        mark();
        for (unsigned i = 0; i < part_count; ++i) {
            parts[i]();
            mark();
        }
        _exit(0);
    }
    std::vector<Tally> tallies(part_count + 2);
    int status = 0;
    waitpid(child, &status, 0);
    unsigned segment = 0;
    const auto mark_address = reinterpret_cast<unsigned long long>(&mark);
    while (WIFSTOPPED(status) && segment <= part_count) {
        user_regs_struct registers{};
        ptrace(PTRACE_GETREGS, child, nullptr, &registers);
        if (registers.rip == mark_address) ++segment;
        ++tallies[segment].instructions;
        if (is_locked(child, registers.rip)) ++tallies[segment].locked;
        classify(child, registers.rip, tallies[segment]);
        ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr);
        waitpid(child, &status, 0);
    }
    if (WIFSTOPPED(status)) {
        ptrace(PTRACE_KILL, child, nullptr, nullptr);
        waitpid(child, &status, 0);
    }
    EXPECT_EQ(segment, part_count + 1) << "the child did not come to its end";
    return {tallies.begin() + 1, tallies.begin() + 1 + part_count};
}

numacre_pool *pool;
std::size_t size_bytes;
void *block;
void *keep;
void *many[32];
numacre_ref names[32];
numacre_ref ref;

void open_pool(std::uint64_t bytes = 64 << 20) {
    const numacre_private_options options{sizeof options, bytes, 4096, 4 << 20, 0, 0, 0};
    if (numacre_open_private(&options, &pool) != 0) _exit(1);
}
void allocate() {
    if (numacre_alloc(pool, size_bytes, &block) != 0) _exit(1);
}
void free_it() {
    if (numacre_free(pool, block) != 0) _exit(1);
}
void allocate_inline() {
    if (numacre_alloc_inline(pool, size_bytes, &block) != 0) _exit(1);
}
void free_inline() {
    if (numacre_free_inline(pool, block) != 0) _exit(1);
}
void allocate_uncached() {
    if (numacre_alloc_on(pool, -1, size_bytes, NUMACRE_UNCACHED, &block) != 0) _exit(1);
}
void free_uncached() {
    if (numacre_free_uncached(pool, block) != 0) _exit(1);
}
void allocate_many() {
    if (numacre_alloc_bulk(pool, size_bytes, many, 32) != 0) _exit(1);
}
void free_many() {
    if (numacre_free_bulk(pool, many, 32) != 0) _exit(1);
}
void take() {
    if (numacre_take(pool, ref, &keep) != 0) _exit(1);
}

void prepare_cached() {
    open_pool();
    if (numacre_alloc(pool, size_bytes, &keep) != 0) _exit(1);
    for (int i = 0; i < 64; ++i) {
        allocate();
        free_it();
    }
    ref = numacre_ref_of(pool, keep);
}
void prepare_uncached() {
    open_pool();
    for (int i = 0; i < 4; ++i) {
        allocate_uncached();
        free_uncached();
    }
}
void prepare_large() {
    open_pool();
    for (int i = 0; i < 4; ++i) {
        allocate();
        free_it();
    }
}
void allocate_another_size() {
    size_bytes ^= 4096 ^ 8192;
    allocate();
}
void prepare_sizes_in_turn() {
    open_pool();
    for (int i = 0; i < 64; ++i) {
        allocate_another_size();
        free_it();
    }
}
// Hints have been lowered by then, and are never again what they were.
void prepare_nearly_full() {
    open_pool();
    for (void *each; numacre_alloc_on(pool, -1, size_bytes, NUMACRE_UNCACHED, &each) == 0;) block = each;
    for (int i = 0; i < 4; ++i) {
        free_uncached();
        allocate_uncached();
    }
}
// So that the tree is what is counted and not the cache: nothing is cached yet after the first, and when the second
// frees, the cache is full.
void prepare_bulk() {
    open_pool();
    allocate_many();
}
void prepare_full_cache() {
    static void *filling[4096];
    open_pool(32 << 20);  // its cache has room for 512 frames
    if (numacre_alloc_bulk(pool, size_bytes, filling, 4096) != 0) _exit(1);
    for (void *each : filling)
        if (numacre_free(pool, each) != 0) _exit(1);
    // What the cache has goes first.
    if (numacre_alloc_bulk(pool, size_bytes, filling, 1024) != 0) _exit(1);
    allocate_many();
    if (numacre_free_bulk(pool, filling, 1024) != 0) _exit(1);
}

std::vector<Tally> expect_locked(const char *what, void (*prepare)(), void (*const parts[])(), unsigned part_count,
                                 const std::vector<unsigned> &locked) {
    const std::vector<Tally> tallies = step_through(prepare, parts, part_count);
    for (unsigned part = 0; part < part_count; ++part) {
        std::printf("%7zu bytes, %s, call %u: %u locked, %u instructions, %u branches, %u calls\n", size_bytes, what,
                    part, tallies[part].locked, tallies[part].instructions, tallies[part].branches,
                    tallies[part].calls);
        EXPECT_EQ(tallies[part].locked, locked[part]) << what << ", call " << part << ", " << size_bytes << " bytes";
    }
    return tallies;
}

TEST(HotPath, the_thread_cache_executes_no_locked_instruction_and_take_executes_one) {
    void (*const parts[])() = {allocate, free_it, take};
    for (const std::size_t size : {std::size_t{4096}, std::size_t{32768}, std::size_t{131072}}) {
        size_bytes = size;
        const std::vector<Tally> tallies =
            expect_locked("cached: allocate, free, take", prepare_cached, parts, 3, {0, 0, 1});
        // What the compiler makes of it today, with room for another compiler; who makes it longer should know.
        EXPECT_LE(tallies[0].instructions, 72U);
        EXPECT_LE(tallies[1].instructions, 62U);
        EXPECT_LE(tallies[0].branches + tallies[1].branches, 18U);
        EXPECT_LE(tallies[0].calls + tallies[1].calls, 6U) << "the calls of this test itself and through its PLT";
    }
}

TEST(HotPath, sizes_in_turn_stay_in_the_thread_cache) {
    void (*const parts[])() = {allocate_another_size, free_it, allocate_another_size, free_it};
    size_bytes = 4096;
    const std::vector<Tally> tallies =
        expect_locked("sizes in turn: allocate, free, twice", prepare_sizes_in_turn, parts, 4, {0, 0, 0, 0});
    for (const unsigned call : {0U, 2U}) {
        EXPECT_LE(tallies[call].instructions, 115U);
        EXPECT_LE(tallies[call + 1].instructions, 90U);
        EXPECT_LE(tallies[call].branches + tallies[call + 1].branches, 24U);
    }
}

TEST(HotPath, what_callers_compile_in_calls_nothing) {
    void (*const parts[])() = {allocate_inline, free_inline};
    for (const std::size_t size : {std::size_t{4096}, std::size_t{131072}}) {
        size_bytes = size;
        const std::vector<Tally> tallies = expect_locked("inline: allocate, free", prepare_cached, parts, 2, {0, 0});
        for (const Tally &tally : tallies) {
            EXPECT_LE(tally.instructions, 60U);
            EXPECT_LE(tally.calls, 2U) << "of this test itself: the part, the mark";
        }
    }
}

TEST(HotPath, the_shared_tree_executes_one_locked_instruction_to_allocate_and_one_to_free) {
    void (*const parts[])() = {allocate_uncached, free_uncached};
    // 2 MiB blocks lie in an upper word.
    for (const std::size_t size : {std::size_t{4096}, std::size_t{32768}, std::size_t{262144}, std::size_t{2} << 20}) {
        size_bytes = size;
        expect_locked("uncached: allocate, free", prepare_uncached, parts, 2, {1, 1});
    }
}

// Who does not say so, where all blocks are such.
TEST(HotPath, what_is_never_cached_takes_the_same_short_ways) {
    void (*const parts[])() = {allocate, free_it};
    for (const std::size_t size : {std::size_t{524288}, std::size_t{2} << 20}) {
        size_bytes = size;
        const std::vector<Tally> tallies = expect_locked("not cached: allocate, free", prepare_large, parts, 2, {1, 1});
        EXPECT_LE(tallies[0].instructions, 270U);
        EXPECT_LE(tallies[1].instructions, 215U);
    }
}

// But for a look at the word: hints need not promise all, only what is there.
TEST(HotPath, a_pool_that_is_nearly_full_takes_the_same_short_ways) {
    void (*const parts[])() = {free_uncached, allocate_uncached};
    for (const std::size_t size : {std::size_t{4096}, std::size_t{32768}, std::size_t{262144}}) {
        size_bytes = size;
        const std::vector<Tally> tallies =
            expect_locked("nearly full: free, allocate", prepare_nearly_full, parts, 2, {1, 1});
        EXPECT_LE(tallies[0].instructions, 140U);
        EXPECT_LE(tallies[1].instructions, 215U);
    }
}

numacre_pool *second_pool;
void allocate_of_first() {
    if (numacre_alloc(pool, size_bytes, &keep) != 0) _exit(1);
}
void allocate_of_second() {
    if (numacre_alloc(second_pool, size_bytes, &block) != 0) _exit(1);
}
void free_of_first() {
    if (numacre_free(pool, keep) != 0) _exit(1);
}
void free_of_second() {
    if (numacre_free(second_pool, block) != 0) _exit(1);
}
void prepare_pools_in_turn() {
    open_pool();
    second_pool = pool;
    open_pool();
    for (int i = 0; i < 64; ++i) {
        allocate_of_first();
        allocate_of_second();
        free_of_first();
        free_of_second();
    }
}
TEST(HotPath, who_uses_two_pools_in_turn_has_a_cache_in_each) {
    void (*const parts[])() = {allocate_of_first, allocate_of_second, free_of_first, free_of_second};
    size_bytes = 4096;
    const std::vector<Tally> tallies =
        expect_locked("pools in turn: allocate, allocate, free, free", prepare_pools_in_turn, parts, 4, {0, 0, 0, 0});
    for (const Tally &tally : tallies) EXPECT_LE(tally.instructions, 190U) << "a change of pools, and the short way";
}

void publish() {
    ref = numacre_ref_of(pool, block);
    if (ref == NUMACRE_REF_NULL) _exit(1);
}
// What each block that goes from one process to another costs besides: its first reference one, take one. (Two threads
// of a process may make the first reference: a CAS decides, or a late store would take the block back from its taker.)
TEST(HotPath, a_block_changes_hands_by_two_locked_instructions) {
    void (*const parts[])() = {allocate, publish, take, free_it};
    for (const std::size_t size : {std::size_t{4096}, std::size_t{131072}}) {
        size_bytes = size;
        const std::vector<Tally> tallies =
            expect_locked("allocate, publish, take, free", prepare_cached, parts, 4, {0, 1, 1, 0});
        // Some twenty of each for a name that does not come round for a minute (reference.hpp).
        EXPECT_LE(tallies[1].instructions, 95U);
        EXPECT_LE(tallies[2].instructions, 150U);
        EXPECT_LE(tallies[1].calls + tallies[2].calls, 6U);
    }
}

TEST(HotPath, a_second_reference_to_a_block_executes_no_locked_instruction) {
    void (*const parts[])() = {allocate_uncached, publish, publish, publish};
    for (const std::size_t size : {std::size_t{4096}, std::size_t{2} << 20}) {
        size_bytes = size;
        const std::vector<Tally> tallies =
            expect_locked("uncached: allocate, publish, publish, publish", prepare_uncached, parts, 4, {1, 1, 0, 0});
        EXPECT_LE(tallies[3].instructions, size == 4096 ? 95U : 265U);
    }
}

// Whoever might take it: a CAS decides.
TEST(HotPath, a_published_block_takes_two_locked_instructions_to_free) {
    void (*const parts[])() = {allocate_uncached, publish, free_uncached};
    for (const std::size_t size : {std::size_t{4096}, std::size_t{2} << 20}) {
        size_bytes = size;
        expect_locked("uncached: allocate, publish, free", prepare_uncached, parts, 3, {1, 1, 2});
    }
}
// One to publish, and the one that says that nobody has taken it; after that it is fit for the cache.
TEST(HotPath, a_published_block_goes_into_the_thread_cache_by_one_locked_instruction) {
    void (*const parts[])() = {allocate, publish, free_it, allocate};
    size_bytes = 4096;
    expect_locked("allocate, publish, free, allocate", prepare_cached, parts, 4, {0, 1, 1, 0});
}

void prepare_full_pool() {
    open_pool();
    void *frame = nullptr;
    while (numacre_alloc(pool, 4096, &frame) == 0) {
    }
    if (numacre_alloc(pool, 8192, &block) != -ENOMEM) _exit(1);
}
void fail_to_allocate() {
    if (numacre_alloc(pool, 8192, &block) != -ENOMEM) _exit(1);
}

// Whether there is enough, but not in one piece, takes a look at every word of the pool.
TEST(HotPath, failures_in_a_row_do_not_look_at_the_whole_pool_each) {
    void (*const parts[])() = {fail_to_allocate};
    const std::vector<Tally> tallies = step_through(prepare_full_pool, parts, 1);
    std::printf("  8192 bytes, refused again: %u instructions\n", tallies[0].instructions);
    EXPECT_GT(tallies[0].instructions, 100U) << "the child did not do it";
    EXPECT_LE(tallies[0].instructions, 10000U);
}

TEST(HotPath, many_blocks_of_a_leaf_word_share_a_locked_instruction) {
    void (*const parts[])() = {allocate_many};
    size_bytes = 4096;
    expect_locked("bulk of 32: allocate", prepare_bulk, parts, 1, {1});
    void (*const free_parts[])() = {free_many};
    expect_locked("bulk of 32: free", prepare_full_cache, free_parts, 1, {1});
}

void *of_one_word[64];
void allocate_one_word() {
    for (void *&each : of_one_word)
        if (numacre_alloc_on(pool, -1, size_bytes, NUMACRE_UNCACHED, &each) != 0) _exit(1);
}
void prepare_more_than_the_cache_takes() {
    prepare_full_cache();
    if (numacre_alloc_bulk(pool, size_bytes, of_one_word, 64) != 0) _exit(1);  // from the cache
    // What the cache gives back first is of one word as well.
    allocate_one_word();
    if (numacre_free_bulk(pool, of_one_word, 64) != 0) _exit(1);
    allocate_one_word();
}
void free_more_than_the_cache_takes() {
    for (void *each : of_one_word)
        if (numacre_free(pool, each) != 0) _exit(1);
}

void prepare_many_cached() {
    open_pool();
    for (int i = 0; i < 4; ++i) {
        allocate_many();
        free_many();
    }
}
// A hand-over of blocks that are born with their names: one locked instruction each, the take.
void allocate_many_named() {
    if (numacre_alloc_ref_bulk(pool, size_bytes, many, names, 32) != 0) _exit(1);
}
void take_many() {
    if (numacre_take_bulk(pool, names, many, 32) != 0) _exit(1);
}
TEST(HotPath, a_hand_over_of_many_costs_a_locked_instruction_each) {
    void (*const parts[])() = {allocate_many_named, take_many, free_many};
    size_bytes = 4096;
    const std::vector<Tally> tallies =
        expect_locked("bulk of 32, handed over: allocate, take, free", prepare_many_cached, parts, 3, {0, 32, 0});
    EXPECT_LE(tallies[0].instructions, 32 * 44U + 150);
    EXPECT_LE(tallies[1].instructions, 32 * 78U + 120);
}
// Who never frees one by one, too, has a cache.
TEST(HotPath, many_blocks_at_once_come_from_the_thread_cache_and_go_there) {
    void (*const parts[])() = {allocate_many, free_many};
    size_bytes = 4096;
    const std::vector<Tally> tallies =
        expect_locked("bulk of 32, cached: allocate, free", prepare_many_cached, parts, 2, {0, 0});
    EXPECT_LE(tallies[0].instructions, 32 * 20U + 150);
    EXPECT_LE(tallies[1].instructions, 32 * 21U + 120);
}
TEST(HotPath, what_a_full_cache_does_not_take_goes_back_many_at_a_time) {
    void (*const parts[])() = {free_more_than_the_cache_takes};
    size_bytes = 4096;
    expect_locked("64 frees, cache full", prepare_more_than_the_cache_takes, parts, 1, {2});
}

}  // namespace
