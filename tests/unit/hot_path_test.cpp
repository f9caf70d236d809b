// What the hot path executes, counted instruction by instruction (PTRACE_SINGLESTEP) in the library as it is built: locked
// read-modify-writes and all instructions of one allocation and one free in steady state. A count, not a time: it is the
// same on every run of the same binary. Built without sanitizers only.
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <vector>

#include "numacre/numacre.h"

namespace {

#if !defined(__x86_64__)
#error "hot_path_test decodes x86-64; exclude it from this target's build"
#endif

volatile int marks_passed = 0;
[[gnu::noinline]] void mark() { marks_passed = marks_passed + 1; }

struct Tally {
    unsigned locked = 0;
    unsigned instructions = 0;
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
        ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr);
        waitpid(child, &status, 0);
    }
    if (WIFSTOPPED(status)) {
        ptrace(PTRACE_KILL, child, nullptr, nullptr);
        waitpid(child, &status, 0);
    }
    return {tallies.begin() + 1, tallies.begin() + 1 + part_count};
}

numacre_pool *pool;
std::size_t size_bytes;
void *block;
void *keep;
numacre_ref ref;

void prepare() {
    const numacre_private_options options{sizeof options, 64 << 20, 4096, 4 << 20, 0};
    if (numacre_open_private(&options, &pool) != 0) _exit(1);
    for (int i = 0; i < 4; ++i) {
        if (numacre_alloc(pool, size_bytes, &block) != 0 || numacre_free(pool, block) != 0) _exit(1);
    }
    if (numacre_alloc(pool, size_bytes, &keep) != 0) _exit(1);
    ref = numacre_ref_of(pool, keep);
}
void allocate() {
    if (numacre_alloc(pool, size_bytes, &block) != 0) _exit(1);
}
void free_it() {
    if (numacre_free(pool, block) != 0) _exit(1);
}
void take() {
    if (numacre_take(pool, ref, &keep) != 0) _exit(1);
}

TEST(HotPath, executes_one_locked_instruction_to_allocate_two_to_free_and_one_to_take) {
    void (*const parts[])() = {allocate, free_it, take};
    struct Row {
        std::size_t size;
        unsigned allocate, free, take;
    };
    // 2 MiB blocks lie in an upper word; free is the ownership CAS and the word itself.
    const Row table[] = {{4096, 1, 2, 1}, {32768, 1, 2, 1}, {131072, 1, 2, 1}};
    for (const Row &row : table) {
        size_bytes = row.size;
        const auto tallies = step_through(prepare, parts, 3);
        std::printf("%7zu bytes: locked instructions allocate %u free %u take %u; all instructions %u %u %u\n", row.size,
                    tallies[0].locked, tallies[1].locked, tallies[2].locked, tallies[0].instructions,
                    tallies[1].instructions, tallies[2].instructions);
        EXPECT_EQ(tallies[0].locked, row.allocate) << row.size;
        EXPECT_EQ(tallies[1].locked, row.free) << row.size;
        EXPECT_EQ(tallies[2].locked, row.take) << row.size;
    }
}

}  // namespace
