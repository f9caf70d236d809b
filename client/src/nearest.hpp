// Which numa node of a pool is nearest to each of the machine's that the pool has not (CPUs without memory), worked out
// from the text of /sys. No system call here, nothing but text: whatever it says, nothing but a place in the table is
// written.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine.hpp"
#include "numacre/shm/owner.hpp"

namespace numacre::client {

// The machine's numa nodes that clients tell apart are numbered below this.
inline constexpr std::size_t kMaxOsNumaNodes = 1024;

constexpr bool is_digit(char character) {
    return character >= '0' && character <= '9';
}

// Takes a decimal number off the front of a text; one that is too large for use here stays just that. False: there is
// none.
constexpr bool take_number(const char *&text, std::uint32_t &number) {
    constexpr std::uint32_t kTooLarge = 1'000'000;
    if (!is_digit(*text)) return false;
    for (number = 0; is_digit(*text); ++text)
        if (number < kTooLarge) number = number * 10 + static_cast<std::uint32_t>(*text - '0');
    return true;
}

// Visits the numbers in a list such as "0-2,5", which ascend: it ends before the first thing that does not belong into
// such a list, and before the first number beyond those that count.
template <class Visit>
constexpr void for_each_os_numa_node(const char *list, Visit visit) {
    std::uint32_t least = 0;
    std::uint32_t first = 0;
    while (take_number(list, first)) {
        std::uint32_t last = first;
        if (*list == '-' && !take_number(++list, last)) last = first;
        if (first < least || last < first) return;
        for (std::uint32_t os_node = first; os_node <= last; ++os_node) {
            if (os_node >= kMaxOsNumaNodes) return;
            visit(os_node);
        }
        least = last + 1;
        if (*list != ',') return;
        ++list;
    }
}

// Takes the next distance off the front of such a line as "10 20 255\n". 0: there is none, or it may have been cut off.
// 255, which stands for "no way", is a distance like any other: a place must be found.
constexpr std::uint32_t take_distance(const char *&line) {
    while (*line == ' ') ++line;
    std::uint32_t distance = 0;
    return take_number(line, distance) && (*line == ' ' || *line == '\n') ? distance : 0;
}

// The pool's numa nodes, as the machine numbers them, in the pool's order.
struct PoolNodes {
    const std::int32_t *os_nodes;
    std::uint32_t count;

    // What the pool calls a numa node of the machine's; `count` where the pool has not got it.
    constexpr std::uint32_t dense(std::uint32_t os_node) const {
        std::uint32_t node = 0;
        while (node < count && os_nodes[node] != static_cast<std::int32_t>(os_node)) ++node;
        return node;
    }
};

// online: the list of the machine's numa nodes. distances_of(os_node): a line with the distance to each of those in
// that list, or nullptr. For each node that the pool has not, dense_node_of becomes what the pool calls the nearest (of
// two, the one that comes first in the list); entries that nothing is known about stay.
template <class DistancesOf>
constexpr void place_by_distance(const char *online, DistancesOf distances_of, PoolNodes pool,
                                 std::uint8_t (&dense_node_of)[kMaxOsNumaNodes]) {
    for_each_os_numa_node(online, [&](std::uint32_t os_node) {
        if (pool.dense(os_node) < pool.count) return;
        const char *line = distances_of(os_node);
        if (line == nullptr) return;
        std::uint32_t least = 0;  // none yet
        for_each_os_numa_node(online, [&](std::uint32_t other) {
            const std::uint32_t distance = take_distance(line);
            const std::uint32_t dense = pool.dense(other);
            if (distance == 0 || dense == pool.count || (least != 0 && distance >= least)) return;
            least = distance;
            dense_node_of[os_node] = static_cast<std::uint8_t>(dense);
        });
    });
}

// All numa nodes of the pool by distance from one of the machine's, as its line has them; of two the one that comes
// first in the pool; those that the line does not tell of come last.
constexpr void rank_by_distance(const char *online, const char *line, PoolNodes pool, std::uint8_t *by_distance) {
    constexpr std::uint32_t kUnknown = ~std::uint32_t{0};
    std::uint32_t distances[kMaxNumaNodes];
    for (std::uint32_t node = 0; node < pool.count; ++node) distances[node] = kUnknown;
    for_each_os_numa_node(online, [&](std::uint32_t os_node) {
        const std::uint32_t distance = take_distance(line);
        for (std::uint32_t node = 0; distance != 0 && node < pool.count; ++node)
            if (pool.os_nodes[node] == static_cast<std::int32_t>(os_node)) distances[node] = distance;
    });
    for (std::uint32_t node = 0; node < pool.count; ++node) {
        std::uint32_t rank = node;
        for (; rank > 0 && distances[by_distance[rank - 1]] > distances[node]; --rank)
            by_distance[rank] = by_distance[rank - 1];
        by_distance[rank] = static_cast<std::uint8_t>(node);
    }
}

}  // namespace numacre::client
