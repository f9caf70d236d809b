// Which numa node of a pool the CPUs of nodes without memory belong to, from the text of /sys as machines have it, and
// as none should.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "nearest.hpp"

namespace numacre::client {
namespace {

struct ListRow {
    const char *name;
    std::string list;
    std::vector<std::uint32_t> nodes;
};
void PrintTo(const ListRow &row, std::ostream *out) {
    *out << row.list;
}

std::string name_of(const auto &info) {
    return info.param.name;
}

class NodeLists : public testing::TestWithParam<ListRow> {};

TEST_P(NodeLists, name_these_nodes) {
    std::vector<std::uint32_t> visited;
    for_each_os_numa_node(GetParam().list.c_str(), [&](std::uint32_t os_node) { visited.push_back(os_node); });
    EXPECT_EQ(visited, GetParam().nodes);
}

const ListRow kLists[] = {
    {"one", "0", {0}},
    {"one_as_in_sys", "0\n", {0}},
    {"range_and_one", "0-2,5\n", {0, 1, 2, 5}},
    {"begins_late", "3,7-8\n", {3, 7, 8}},
    {"empty", "", {}},
    {"line_end_alone", "\n", {}},
    {"cut_off_after_comma", "0-2,", {0, 1, 2}},
    {"cut_off_in_range", "0,2-", {0, 2}},
    {"cut_off_before_line_end", "0-2,5", {0, 1, 2, 5}},
    {"last_that_counts", "1023\n", {1023}},
    {"first_beyond", "0,1024\n", {0}},
    {"range_over_the_end", "1022-1030\n", {1022, 1023}},
    {"far_beyond_32_bits", "1,99999999999999999999\n", {1}},
    {"wraps_to_small_in_32_bits", "4294967297\n", {}},
    {"huge_range", "1023-18446744073709551615\n", {1023}},
    {"backwards", "5-2,7\n", {}},
    {"not_ascending", "0-2,1,5\n", {0, 1, 2}},
    {"twice", "3,3\n", {3}},
    {"garbage", "none\n", {}},
    {"garbage_within", "0,x,2\n", {0}},
    {"negative", "-1\n", {}},
    {"range_of_range", "0-2-4,6\n", {0, 1, 2}},
    {"space", "0, 1\n", {0}},
};
INSTANTIATE_TEST_SUITE_P(Rows, NodeLists, testing::ValuesIn(kLists), name_of<testing::TestParamInfo<ListRow>>);

struct PlaceRow {
    const char *name;
    std::string online;
    std::map<std::uint32_t, std::string> distances;  // by node; those not here cannot be read
    std::vector<std::int32_t> pool;                  // the machine's numbers, in the pool's order
    std::map<std::uint32_t, std::uint32_t> placed;   // node -> the pool's number; all others are not touched
};
void PrintTo(const PlaceRow &row, std::ostream *out) {
    *out << row.online;
}

class Placement : public testing::TestWithParam<PlaceRow> {};

TEST_P(Placement, is_the_nearest_of_the_pool) {
    const PlaceRow &row = GetParam();
    constexpr std::uint8_t kUntouched = 0xff;
    std::uint8_t dense_node_of[kMaxOsNumaNodes];
    std::fill(std::begin(dense_node_of), std::end(dense_node_of), kUntouched);
    const auto distances_of = [&](std::uint32_t os_node) -> const char * {
        EXPECT_EQ(std::count(row.pool.begin(), row.pool.end(), static_cast<std::int32_t>(os_node)), 0)
            << "node " << os_node << " needs no place";
        const auto found = row.distances.find(os_node);
        return found == row.distances.end() ? nullptr : found->second.c_str();
    };
    place_by_distance(row.online.c_str(), distances_of, {row.pool.data(), static_cast<std::uint32_t>(row.pool.size())},
                      dense_node_of);
    std::map<std::uint32_t, std::uint32_t> placed;
    for (std::uint32_t os_node = 0; os_node < kMaxOsNumaNodes; ++os_node)
        if (dense_node_of[os_node] != kUntouched) placed[os_node] = dense_node_of[os_node];
    EXPECT_EQ(placed, row.placed);
}

INSTANTIATE_TEST_SUITE_P(
    Rows, Placement,
    testing::Values(
        PlaceRow{"one_node", "0\n", {}, {0}, {}}, PlaceRow{"all_have_memory", "0-2\n", {}, {0, 1, 2}, {}},
        PlaceRow{"memoryless", "0-2\n", {{1, "20 10 12\n"}}, {0, 2}, {{1, 1}}},
        PlaceRow{"memoryless_is_first", "0-2\n", {{0, "10 30 20\n"}}, {1, 2}, {{0, 1}}},
        PlaceRow{"several", "0-3\n", {{1, "11 10 21 31\n"}, {3, "31 21 11 10\n"}}, {0, 2}, {{1, 0}, {3, 1}}},
        // The columns are of the nodes that are online.
        PlaceRow{"gap_in_numbers", "0-2,5\n", {{2, "20 21 10 12\n"}}, {0, 1, 5}, {{2, 2}}},
        // Node 1 is nearer, but has no memory either.
        PlaceRow{"beside_another_memoryless",
                 "0-3\n",
                 {{0, "10 11 40 30\n"}, {1, "11 10 30 40\n"}},
                 {2, 3},
                 {{0, 1}, {1, 0}}},
        PlaceRow{"order_of_the_pool", "0-2\n", {{1, "20 10 12\n"}}, {2, 0}, {{1, 0}}},
        PlaceRow{"equally_far", "0-2\n", {{1, "20 10 20\n"}}, {0, 2}, {{1, 0}}},
        PlaceRow{"padded", "0-2\n", {{1, "  20  10   12\n"}}, {0, 2}, {{1, 1}}},
        PlaceRow{"no_way_to_one", "0-2\n", {{1, "255 10 254\n"}}, {0, 2}, {{1, 1}}},
        PlaceRow{"no_way_to_any", "0-2\n", {{0, "10 255 255\n"}}, {1, 2}, {{0, 0}}},
        PlaceRow{"no_file", "0-2\n", {}, {0, 2}, {}},
        PlaceRow{"one_file_of_two", "0-3\n", {{3, "31 21 11 10\n"}}, {0, 2}, {{3, 1}}},
        PlaceRow{"empty_line", "0-2\n", {{1, ""}}, {0, 2}, {}},
        PlaceRow{"too_few_distances", "0-2\n", {{1, "20 10\n"}}, {0, 2}, {{1, 0}}},
        // 12 that was 120.
        PlaceRow{"cut_off_in_a_number", "0-2\n", {{1, "20 10 12"}}, {0, 2}, {{1, 0}}},
        PlaceRow{"garbage_distances", "0-2\n", {{1, "far away\n"}}, {0, 2}, {}},
        PlaceRow{"garbage_after_one", "0-2\n", {{1, "20 x 12\n"}}, {0, 2}, {{1, 0}}},
        PlaceRow{"negative_distance", "0-2\n", {{1, "-1 10 12\n"}}, {0, 2}, {}},
        PlaceRow{"zero_says_nothing", "0-2\n", {{1, "0 10 12\n"}}, {0, 2}, {{1, 1}}},
        // Not 1.
        PlaceRow{"distance_beyond_32_bits", "0-2\n", {{1, "4294967297 10 12\n"}}, {0, 2}, {{1, 1}}},
        PlaceRow{"last_number", "0,1023\n", {{1023, "20 10\n"}}, {0}, {{1023, 0}}},
        PlaceRow{"beyond_the_table", "0-1,1024\n", {{1, "20 10 11\n"}, {1024, "20 11 10\n"}}, {0}, {{1, 0}}},
        // The pool's own node beyond the table is none of those that can be found.
        PlaceRow{"pool_beyond_the_table", "0-1,1024\n", {{1, "20 10 11\n"}}, {0, 1024}, {{1, 0}}},
        // Of a private pool, or a daemon that does not know.
        PlaceRow{"pool_without_numbers", "0-1\n", {{0, "10 20\n"}, {1, "20 10\n"}}, {-1, -1}, {}},
        PlaceRow{"pool_of_none", "0\n", {{0, "10\n"}}, {}, {}},
        PlaceRow{"garbage_online", "?\n", {{0, "10 20\n"}}, {1}, {}},
        PlaceRow{"online_cut_off", "0-2,", {{1, "20 10 12 9\n"}}, {0, 2}, {{1, 1}}}),
    name_of<testing::TestParamInfo<PlaceRow>>);

std::vector<int> ranking(const char *online, const char *line, const std::vector<std::int32_t> &pool) {
    std::vector<std::uint8_t> by_distance(pool.size());
    rank_by_distance(online, line, {pool.data(), static_cast<std::uint32_t>(pool.size())}, by_distance.data());
    return {by_distance.begin(), by_distance.end()};
}

TEST(Ranking, is_of_all_that_the_pool_has_by_distance_from_the_node_itself) {
    EXPECT_EQ(ranking("0-3\n", "30 10 20 15\n", {0, 2, 3}), (std::vector{2, 1, 0}));
    EXPECT_EQ(ranking("0-3\n", "20 10 20 15\n", {0, 2, 3}), (std::vector{2, 0, 1})) << "of two the first";
    EXPECT_EQ(ranking("0-2,5\n", "20 21 10 12\n", {0, 1, 5}), (std::vector{2, 0, 1})) << "a gap in the numbers";
    EXPECT_EQ(ranking("0-3\n", "30 10 20\n", {0, 2, 3}), (std::vector{1, 0, 2})) << "one that nothing is known about";
    EXPECT_EQ(ranking("0-3\n", "garbage", {0, 2, 3}), (std::vector{0, 1, 2}));
}

}  // namespace
}  // namespace numacre::client
