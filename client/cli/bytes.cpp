#include "bytes.hpp"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <limits>

namespace numacre::cli {
namespace {

constexpr std::string_view kUnitLetters = "KMGTPE";

std::string quoted(std::string_view text) {
    return "'" + printable(text) + "'";
}

// Takes the number at the front of text, and removes it from text.
bool take_digits(std::string_view &text, std::uint64_t &value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{}) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return true;
}

struct Scaled {
    std::uint64_t whole = 0;
    unsigned tenth = 0;
    int unit = -1;  // index into kUnitLetters; -1: bytes
};

// Truncates, so that a size just below a GiB reads as "1023.9 MiB" and never as a GiB.
Scaled scale(std::uint64_t bytes) {
    Scaled result;
    std::uint64_t unit_bytes = 1;
    while (result.unit + 1 < static_cast<int>(kUnitLetters.size()) && bytes / unit_bytes >= 1024) {
        unit_bytes *= 1024;
        ++result.unit;
    }
    result.whole = bytes / unit_bytes;
    // The remainder is below 2^60, so ten times the remainder still fits.
    result.tenth = static_cast<unsigned>(bytes % unit_bytes * 10 / unit_bytes);
    return result;
}

}  // namespace

std::uint64_t parse_bytes(std::string_view text) {
    const auto refuse = [&](const char *why) -> std::uint64_t {
        throw ArgumentError("bad size " + quoted(text) + ": " + why +
                            "; write whole bytes or a whole number with K, M, G or T, as in 512M");
    };
    std::string_view rest = text;
    std::uint64_t value = 0;
    if (!take_digits(rest, value)) return refuse(rest.empty() ? "it is empty" : "not a number that fits 64 bits");
    if (rest.empty()) return value;
    unsigned shift = 0;
    const char letter = static_cast<char>(std::toupper(static_cast<unsigned char>(rest.front())));
    if (const auto unit = kUnitLetters.find(letter); unit != std::string_view::npos) {
        shift = 10 * (static_cast<unsigned>(unit) + 1);
        rest.remove_prefix(1);
    }
    if (!rest.empty() && rest != "B" && !(shift != 0 && rest == "iB")) return refuse("unknown unit");
    if (shift != 0 && value > (std::numeric_limits<std::uint64_t>::max() >> shift)) return refuse("too large");
    return value << shift;
}

std::vector<std::uint64_t> parse_node_bytes(std::string_view text) {
    std::vector<std::uint64_t> sizes;
    for (;;) {
        const auto slash = text.find('/');
        sizes.push_back(parse_bytes(text.substr(0, slash)));
        if (slash == std::string_view::npos) return sizes;
        text.remove_prefix(slash + 1);
    }
}

SizeChange parse_size_change(std::string_view text) {
    SizeChange change;
    if (!text.empty() && (text.front() == '+' || text.front() == '-')) {
        change.kind = text.front() == '+' ? SizeChange::Kind::grow : SizeChange::Kind::shrink;
        text.remove_prefix(1);
    }
    change.bytes = parse_bytes(text);
    return change;
}

std::uint64_t SizeChange::apply(std::uint64_t current_bytes) const {
    switch (kind) {
        case Kind::absolute:
            break;
        case Kind::grow:
            if (bytes > std::numeric_limits<std::uint64_t>::max() - current_bytes) {
                throw ArgumentError("cannot grow by " + format_bytes(bytes) + ": the sum does not fit 64 bits");
            }
            return current_bytes + bytes;
        case Kind::shrink:
            if (bytes > current_bytes) {
                throw ArgumentError("cannot shrink by " + format_bytes(bytes) + ": only " +
                                    format_bytes(current_bytes) +
                                    " are online; ask for a size of 0 to take all offline");
            }
            return current_bytes - bytes;
    }
    return bytes;
}

std::chrono::milliseconds parse_duration(std::string_view text) {
    const auto refuse = [&]() -> std::chrono::milliseconds {
        throw ArgumentError("bad duration " + quoted(text) + ": write it as 5s, 250ms, 2m or 1h");
    };
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
    if (error != std::errc{} || !std::isfinite(value) || value < 0) return refuse();
    const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
    double milliseconds_per_unit = 0;
    if (unit.empty() || unit == "s") {
        milliseconds_per_unit = 1000;
    } else if (unit == "ms") {
        milliseconds_per_unit = 1;
    } else if (unit == "m" || unit == "min") {
        milliseconds_per_unit = 60e3;
    } else if (unit == "h") {
        milliseconds_per_unit = 3600e3;
    } else {
        return refuse();
    }
    // A century: far from every overflow in the code that uses it, and longer than anyone means.
    if (value * milliseconds_per_unit > 3.2e12) return refuse();
    return std::chrono::milliseconds(std::llround(value * milliseconds_per_unit));
}

std::string format_bytes(std::uint64_t bytes) {
    const Scaled scaled = scale(bytes);
    std::string text = std::to_string(scaled.whole);
    if (scaled.tenth != 0) text += "." + std::to_string(scaled.tenth);
    if (scaled.unit < 0) return text + " B";
    return text + " " + kUnitLetters[static_cast<std::size_t>(scaled.unit)] + "iB";
}

std::string format_bytes_short(std::uint64_t bytes) {
    const Scaled scaled = scale(bytes);
    std::string text = std::to_string(scaled.whole);
    if (scaled.tenth != 0) text += "." + std::to_string(scaled.tenth);
    return text + (scaled.unit < 0 ? 'B' : kUnitLetters[static_cast<std::size_t>(scaled.unit)]);
}

std::string format_duration(std::chrono::seconds duration) {
    const auto pair = [](long long large, const char *large_unit, long long small, const char *small_unit) {
        std::string text = std::to_string(large) + " " + large_unit;
        if (small != 0) text += " " + std::to_string(small) + " " + small_unit;
        return text;
    };
    const long long seconds = duration.count() < 0 ? 0 : duration.count();
    if (seconds < 60) return std::to_string(seconds) + " s";
    if (seconds < 3600) return pair(seconds / 60, "min", seconds % 60, "s");
    if (seconds < 86400) return pair(seconds / 3600, "h", seconds % 3600 / 60, "min");
    return pair(seconds / 86400, "d", seconds % 86400 / 3600, "h");
}

std::string format_duration(std::chrono::duration<double> duration) {
    return format_duration(std::chrono::ceil<std::chrono::seconds>(duration));
}

std::string format_share(std::uint64_t used, std::uint64_t total) {
    if (total == 0) return "-";
    const double percent = 100.0 * static_cast<double>(used) / static_cast<double>(total);
    if (used != 0 && percent < 1) return "<1 %";
    if (used < total && percent > 99) return ">99 %";
    return std::to_string(std::lround(percent)) + " %";
}

std::string format_time(std::int64_t unix_seconds) {
    const std::time_t time = unix_seconds;
    std::tm broken_down{};
    if (gmtime_r(&time, &broken_down) == nullptr) return "-";
    std::array<char, 40> text{};
    if (std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &broken_down) == 0) return "-";
    return text.data();
}

std::string printable(std::string_view text) {
    std::string result(text);
    for (char &character : result) {
        const auto byte = static_cast<unsigned char>(character);
        if (byte < 0x20 || byte == 0x7f) character = '?';
    }
    // C1 controls come as two bytes in UTF-8; a terminal obeys U+009B just as it obeys ESC [.
    for (std::size_t i = 0; i + 1 < result.size(); ++i) {
        const auto second = static_cast<unsigned char>(result[i + 1]);
        if (static_cast<unsigned char>(result[i]) == 0xc2 && second >= 0x80 && second < 0xa0) result.replace(i, 2, "?");
    }
    return result;
}

}  // namespace numacre::cli
