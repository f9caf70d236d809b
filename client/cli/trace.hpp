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

    std::uint64_t time_ns = 0;  // since whatever start
    std::uint64_t size_bytes = 0;
    std::uint64_t lifetime_ns = kForEver;
    std::uint32_t block = kUnnamed;  // which address, by its number in Trace::blocks

    // When it is freed; kForEver: never.
    std::uint64_t end_ns() const { return lifetime_ns == kForEver ? kForEver : time_ns + lifetime_ns; }
};

// Blocks' names in the trace, numbered from 1. Traces of processes that share a pool share these numbers.
using BlockNames = std::unordered_map<std::string, std::uint32_t>;

// In the order of the file, which is that of the allocations. Throws ArgumentError: source, line, what is wrong with it
// and what to do.
std::vector<Allocation> read_trace(std::istream &in, std::string_view source, BlockNames &names);

// The traces of processes that share a pool, as one. A block that one process hands to another stands in both traces;
// it is one allocation, from the first line's time to the last one's end.
std::vector<Allocation> join_traces(std::vector<std::vector<Allocation>> traces);

// Opens and reads each; joins them if there is more than one.
std::vector<Allocation> read_trace_files(const std::vector<std::string> &paths);

}  // namespace numacre::cli
