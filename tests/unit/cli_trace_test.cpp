// Traces: what is read, what is refused and in which words, and how small a pool completes a few that can be followed
// by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "bytes.hpp"
#include "replay.hpp"
#include "support/refusal.hpp"
#include "trace.hpp"

namespace numacre::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<Allocation> read(const std::string &text, BlockNames &names) {
    std::istringstream in(text);
    return read_trace(in, "t.csv", names);
}
std::vector<Allocation> read(const std::string &text) {
    BlockNames names;
    return read(text, names);
}
const std::string kHead = "time_ns,size_bytes,lifetime_ns\n";

auto is_allocation(std::uint64_t time, std::uint64_t size, std::uint64_t lifetime) {
    return AllOf(::testing::Field(&Allocation::time_ns, time), ::testing::Field(&Allocation::size_bytes, size),
                 ::testing::Field(&Allocation::lifetime_ns, lifetime));
}

TEST(Trace, is_read_with_blanks_comments_and_columns_that_are_not_ours) {
    EXPECT_THAT(read("# recorded by hand\n size_bytes , cpu, time_ns,lifetime_ns\r\n\n7,0,5, 10 \r\n8,1,5,never   \n"),
                ElementsAre(is_allocation(5, 7, 10), is_allocation(5, 8, Allocation::kForEver)));
}

TEST(Trace, without_a_last_end_of_line_is_whole) {
    EXPECT_THAT(read(kHead + "1,2,3"), ElementsAre(is_allocation(1, 2, 3)));
}

TEST(Trace, refuses_a_bad_line_by_its_number_and_says_what_to_do) {
    struct Row {
        std::string text;
        const char *where, *what, *remedy;
    };
    const Row rows[] = {
        {"", "t.csv, line 1:", "the trace is empty", "begin with the head 'time_ns,size_bytes,lifetime_ns'"},
        {"1,2,3\n", "t.csv, line 1:", "no column 'time_ns'", "begin with the head"},
        {"time_ns,size_bytes\n1,2\n", "t.csv, line 1:", "no column 'lifetime_ns'", "begin with the head"},
        {kHead, "t.csv, line 1:", "a head and no allocation", "record a program"},
        {kHead + "1,2,3\n1,2\n", "t.csv, line 3:", "2 fields instead of 3", "complete the line or delete it"},
        {kHead + "1,2,3,4\n", "t.csv, line 2:", "4 fields instead of 3", "complete the line or delete it"},
        {kHead + "# as of the third line\n\nx,2,3\n", "t.csv, line 4:", "time_ns is 'x'", "whole nanoseconds"},
        {kHead + "-1,2,3\n", "t.csv, line 2:", "time_ns is '-1'", "whole nanoseconds"},
        {kHead + "1.5,2,3\n", "t.csv, line 2:", "time_ns is '1.5'", "whole nanoseconds"},
        {kHead + "1,,3\n", "t.csv, line 2:", "size_bytes is ''", "whole bytes, 1 or more"},
        {kHead + "1,0,3\n", "t.csv, line 2:", "size_bytes is 0", "whole bytes, 1 or more"},
        {kHead + "1,4K,3\n", "t.csv, line 2:", "size_bytes is '4K'", "whole bytes, 1 or more"},
        {kHead + "1,99999999999999999999,3\n", "t.csv, line 2:", "size_bytes is '999", "whole bytes"},
        {kHead + "1,2,forever\n", "t.csv, line 2:", "lifetime_ns is 'forever'", "or never for what is not freed"},
        {kHead + "1,2,18446744073709551615\n", "t.csv, line 2:", "more than 64 bits hold", "write never"},
        {kHead + "5,2,3\n4,2,3\n", "t.csv, line 3:", "time 4 is before that of the line above, 5", "sort the lines"},
        {kHead + "1,\x1b[2J,3\n", "t.csv, line 2:", "size_bytes is '?[2J'", "whole bytes"},
    };
    for (const Row &row : rows) {
        EXPECT_THAT(refusal_of([&] { (void)read(row.text); }),
                    AllOf(HasSubstr(row.where), HasSubstr(row.what), HasSubstr(row.remedy)))
            << row.text;
    }
}

TEST(Trace, that_is_not_there_is_named) {
    EXPECT_THAT(refusal_of([] { (void)read_trace_files({"/nonexistent/t.csv"}); }),
                AllOf(HasSubstr("/nonexistent/t.csv"), HasSubstr("No such file or directory")));
}

TEST(JoinedTraces, have_a_block_once_that_was_handed_over) {
    const std::string head = "time_ns,size_bytes,lifetime_ns,block\n";
    BlockNames names;
    // a: handed over at 10, freed there at 20; the giver meets the address again at 50. b: the giver's alone.
    // c: the taker's, after the giver's has ended.
    auto giver = read(head + "1,100,49,a\n2,200,8,b\n3,300,7,c\n50,101,never,a\n", names);
    auto taker = read(head + "10,128,10,a\n11,333,1,c\n30,128,5,a\n", names);
    EXPECT_THAT(join_traces({giver, taker}),
                ElementsAre(is_allocation(1, 100, 19), is_allocation(2, 200, 8), is_allocation(3, 300, 7),
                            is_allocation(11, 333, 1), is_allocation(30, 128, 5),
                            is_allocation(50, 101, Allocation::kForEver)));
}

TEST(JoinedTraces, let_a_block_go_on_to_a_third_process_and_back) {
    const std::string head = "time_ns,size_bytes,lifetime_ns,block\n";
    BlockNames names;
    auto first = read(head + "1,100,8,a\n9,128,never,a\n", names);
    auto second = read(head + "3,128,never,a\n", names);
    auto third = read(head + "5,128,never,a\n", names);
    EXPECT_THAT(join_traces({first, second, third}), ElementsAre(is_allocation(1, 100, Allocation::kForEver)));
}

TEST(JoinedTraces, keep_blocks_without_a_name_apart) {
    auto one = read(kHead + "1,2,3\n");
    EXPECT_THAT(join_traces({one, one}), ElementsAre(is_allocation(1, 2, 3), is_allocation(1, 2, 3)));
}

constexpr PoolShape kFourFrames{4096, 16384};

// All engines need so many largest blocks.
void expect_chunks(const std::string &lines, std::uint64_t chunks) {
    const Workload workload = make_workload(read(kHead + lines), kFourFrames);
    for (const Engine &engine : product_engines()) {
        EXPECT_EQ(find_smallest_pool(workload, engine).smallest_pool_bytes, chunks * kFourFrames.largest_block_bytes)
            << engine.name;
    }
}

TEST(Replay, finds_the_smallest_pool) {
    // Four frames, the first pair freed: a block of two frames fits where they were.
    expect_chunks("0,4096,10\n1,4096,10\n2,4096,never\n3,4096,never\n20,8192,never\n", 1);
    // One of each pair freed: as much is free, but not in one piece.
    expect_chunks("0,4096,never\n1,4096,10\n2,4096,never\n3,4096,10\n20,8192,never\n", 2);
    // Five frames at once.
    expect_chunks("0,1,9\n0,1,9\n0,1,9\n0,1,9\n0,1,9\n", 2);
    // Freed at the very moment of the next allocation, and one that lives for no time.
    expect_chunks("0,16384,5\n5,16384,0\n5,16384,never\n", 1);
}

TEST(Replay, counts_what_is_asked_for_and_what_is_granted) {
    const Workload workload =
        make_workload(read(kHead + "0,5000,10\n1,100,never\n10,9000,never\n10,1,1\n"), kFourFrames);
    EXPECT_EQ(workload.peak_requested_bytes, 9101U);
    EXPECT_EQ(workload.peak_granted_bytes, 24576U);
    EXPECT_EQ(workload.never_freed, 2U);
    const Outcome outcome = find_smallest_pool(workload, product_engines().front());
    EXPECT_EQ(outcome.smallest_pool_bytes, 32768U);
    EXPECT_DOUBLE_EQ(outcome.utilisation(workload), 9101.0 / 32768.0);
}

TEST(Replay, refuses_a_shape_that_does_not_suit_and_says_what_would) {
    EXPECT_THAT(refusal_of([] { (void)make_workload(read(kHead + "0,1,1\n0,16385,1\n"), kFourFrames); }),
                AllOf(HasSubstr("allocation 2 of the trace has 16385 bytes"), HasSubstr("--largest 32K or more")));
    for (const PoolShape shape : {PoolShape{0, 4096}, {4096, 0}, {5000, 16384}, {4096, 12288}, {8192, 4096}}) {
        EXPECT_THAT(refusal_of([&] { (void)make_workload(read(kHead + "0,1,1\n"), shape); }),
                    HasSubstr("powers of two"));
    }
    // What only the engine itself knows.
    const Workload tiny = make_workload(read(kHead + "0,1,1\n"), {32, 4096});
    EXPECT_THAT(refusal_of([&] { (void)find_smallest_pool(tiny, product_engines().front()); }),
                HasSubstr("frame_bytes is not within 64 .. 2097152"));
}

}  // namespace
}  // namespace numacre::cli
