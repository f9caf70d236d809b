// Finds the pool's nearest numa node for each numa node of the machine that the pool does not have (CPUs without
// memory), from the text of /sys. This file makes no system call and only reads text: for any text, the functions write
// nothing but places of the table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine.hpp"
#include "numacre/shm/owner.hpp"

namespace numacre::client {

// Clients tell apart the machine's numa nodes with numbers below this one.
inline constexpr std::size_t kMaxOsNumaNodes = 1024;

constexpr bool is_digit(char character) {
    return character >= '0' && character <= '9';
}

// Takes a decimal number off the front of a text. A number that is too large for use here stays too large. False: there
// is no number.
constexpr bool take_number(const char *&text, std::uint32_t &number) {
    constexpr std::uint32_t kTooLarge = 1'000'000;
    if (!is_digit(*text)) return false;
    for (number = 0; is_digit(*text); ++text)
        if (number < kTooLarge) number = number * 10 + static_cast<std::uint32_t>(*text - '0');
    return true;
}

// Visits the ascending numbers of a list such as "0-2,5". Stops before the first text that does not belong into such a
// list, and before the first number from kMaxOsNumaNodes on.
template <class Visit>
constexpr void for_each_os_numa_node(const char *list, Visit visit) {
    std::uint32_t least = 0;
    std::uint32_t first = 0;
    while (take_number(list, first)) {
        std::uint32_t last = first;
        if (*list == '-') {
            ++list;
            if (!take_number(list, last)) last = first;
        }
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

// Takes the next distance off the front of a line such as "10 20 255
// ". 0: there is none, or the line may have been cut off. 255, which means "no way", is a distance like any other: a
// node must be found.
constexpr std::uint32_t take_distance(const char *&line) {
    while (*line == ' ') ++line;
    std::uint32_t distance = 0;
    return take_number(line, distance) && (*line == ' ' || *line == '\n') ? distance : 0;
}

// The pool's numa nodes, as the machine numbers them, in the pool's order.
struct PoolNodes {
    const std::int32_t *os_nodes;
    std::uint32_t count;

    // The pool's number of a numa node of the machine; `count` if the pool does not have that node.
    constexpr std::uint32_t dense(std::uint32_t os_node) const {
        std::uint32_t node = 0;
        while (node < count && os_nodes[node] != static_cast<std::int32_t>(os_node)) ++node;
        return node;
    }
};

// online: the list of the machine's numa nodes. distances_of(os_node): a line with the distance to each of those in
// that list, or nullptr. For each node that the pool does not have, dense_node_of becomes the pool's number of the
// nearest node (of two equally near, the one that comes first in the list). Entries of nodes without known distances
// stay.
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

// Ranks all numa nodes of the pool by distance from one of the machine's, by that node's line. Of two equally near, the
// first in the pool comes first. Nodes without a distance in the line come last.
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
