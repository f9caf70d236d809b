#include "spec/reclaim.hpp"

#include <charconv>
#include <optional>
#include <string>
#include <system_error>

namespace numacre::daemon {

namespace {

constexpr std::uint64_t kHoldMaxSeconds = 24ULL * 3600;

// "30s", "5m", "24h", in seconds. Nothing: the text is no such time. A time above the longest may come out as that and
// one second more.
std::optional<std::uint64_t> parse_seconds(std::string_view time) {
    std::uint64_t count = 0;
    const auto [unit, fault] = std::from_chars(time.data(), time.data() + time.size(), count);
    const std::string_view rest(unit, static_cast<std::size_t>(time.data() + time.size() - unit));
    const std::uint64_t seconds_each = rest == "s" ? 1 : rest == "m" ? 60 : rest == "h" ? 3600 : 0;
    if (fault == std::errc::invalid_argument || seconds_each == 0) return std::nullopt;
    if (fault != std::errc{} || count > kHoldMaxSeconds / seconds_each) return kHoldMaxSeconds + 1;
    return count * seconds_each;
}

bool is_hold(std::uint64_t seconds) {
    return seconds != 0 && seconds <= kHoldMaxSeconds;
}

// Nothing: the text is no such time, or none of 1 s to 24 h.
std::optional<std::chrono::seconds> parse_hold(std::string_view time) {
    const auto seconds = parse_seconds(time);
    return seconds && is_hold(*seconds) ? std::optional(std::chrono::seconds(*seconds)) : std::nullopt;
}

}  // namespace

Answer<std::chrono::seconds> parse_pin_quarantine(std::string_view text) {
    const auto seconds = parse_seconds(text);
    if (seconds && is_hold(*seconds)) return std::chrono::seconds(*seconds);
    return Unexpected{Failure{Errc::bad_argument, "\"" + std::string(text) +
                                                      (seconds ? "\" is not within 1s to 24h: use a time such as 5s"
                                                               : "\" is no time: use one from 1s to 24h, such as 5s")}};
}

Answer<Reclaim> parse_reclaim(std::string_view text) {
    constexpr std::string_view kQuarantine = "quarantine:";
    if (text == "fast") return Reclaim{Reclaim::Kind::fast, {}};
    if (text == "zero") return Reclaim{Reclaim::Kind::zero, {}};
    if (text.starts_with(kQuarantine)) {
        if (const auto hold = parse_hold(text.substr(kQuarantine.size())))
            return Reclaim{Reclaim::Kind::quarantine, *hold};
    }
    return Unexpected{Failure{
        Errc::bad_argument,
        "\"" + std::string(text) +
            "\" is no way to reclaim: use fast, zero, or quarantine and a time from 1s to 24h: quarantine:30s"}};
}

std::string format_reclaim(const Reclaim &reclaim) {
    switch (reclaim.kind) {
        case Reclaim::Kind::fast:
            return "fast";
        case Reclaim::Kind::zero:
            return "zero";
        case Reclaim::Kind::quarantine:
            return "quarantine:" + std::to_string(reclaim.hold.count()) + "s";
    }
    return "unknown";
}

}  // namespace numacre::daemon
