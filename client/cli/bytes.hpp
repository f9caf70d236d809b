// Sizes and times as people type and read them. Binary units only: K is 1024.
#pragma once

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace numacre::cli {

// A bad argument of the command line. The message names the value and the right form; the exit code is 2.
struct ArgumentError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// "4096", "4K", "512M", "1G", "2T"; an "iB" or "B" behind the letter is allowed.
std::uint64_t parse_bytes(std::string_view text);

// One size for all numa nodes, or several with slashes between them: "256M/128M".
std::vector<std::uint64_t> parse_node_bytes(std::string_view text);

// The size argument of `resize`: a size to reach, or a step up or down from the online size.
struct SizeChange {
    enum class Kind { absolute, grow, shrink };
    Kind kind = Kind::absolute;
    std::uint64_t bytes = 0;
    // The size to reach from current_bytes. Throws ArgumentError if the result is below zero or does not fit 64 bits.
    std::uint64_t apply(std::uint64_t current_bytes) const;
};
SizeChange parse_size_change(std::string_view text);

// "5s", "250ms", "2m", "1h"; a bare number is seconds, which may have a fraction.
std::chrono::milliseconds parse_duration(std::string_view text);

// The largest unit that leaves at least 1, with one decimal if it is not whole: "4 KiB", "1.5 GiB".
std::string format_bytes(std::uint64_t bytes);
// The size of format_bytes() as one short word: "4K", "1.5G". For column heads.
std::string format_bytes_short(std::uint64_t bytes);
// "45 s", "3 min 5 s", "2 h 10 min", "4 d 3 h".
std::string format_duration(std::chrono::seconds duration);
// Rounded up to whole seconds.
std::string format_duration(std::chrono::duration<double> duration);
// The share of used in total: "12 %"; "-" if the total is 0. Never "0 %" for a share above 0, nor "100 %" for less than
// all.
std::string format_share(std::uint64_t used, std::uint64_t total);
// "2031-04-05T06:07:08Z"
std::string format_time(std::int64_t unix_seconds);

// Text that came from outside (process names, notes) made safe for a terminal: control characters become '?'.
std::string printable(std::string_view text);

}  // namespace numacre::cli
