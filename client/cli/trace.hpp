// Allocation traces: what `NUMACRE_TRACE=FILE` writes and `numacre bench replay` reads. README.md describes the format.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace numacre::cli {

struct Allocation {
    static constexpr std::uint64_t kForEver = std::numeric_limits<std::uint64_t>::max();
    static constexpr std::uint32_t kUnnamed = 0;

    std::uint64_t time_ns = 0;  // since an arbitrary start
    std::uint64_t size_bytes = 0;
    std::uint64_t lifetime_ns = kForEver;
    std::uint32_t block = kUnnamed;  // identifies the address: the block's number in BlockNames

    // The time of the free; kForEver: never.
    std::uint64_t end_ns() const { return lifetime_ns == kForEver ? kForEver : time_ns + lifetime_ns; }
};

// Blocks' names in the trace, numbered from 1. Traces of processes that share a pool share these numbers.
using BlockNames = std::unordered_map<std::string, std::uint32_t>;

// Returns the allocations in the order of the file, which is the order of allocation. Throws ArgumentError with the
// source, the line, the fault and the remedy.
std::vector<Allocation> read_trace(std::istream &in, std::string_view source, BlockNames &names);

// Joins the traces of processes that share a pool into one. A block that one process hands to another stands in both
// traces; in the result it is one allocation, from the first line's time to the last line's end.
std::vector<Allocation> join_traces(std::vector<std::vector<Allocation>> traces);

// Opens and reads each trace; joins them if there is more than one.
std::vector<Allocation> read_trace_files(const std::vector<std::string> &paths);

}  // namespace numacre::cli
