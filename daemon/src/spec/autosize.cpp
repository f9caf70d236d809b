#include "spec/autosize.hpp"

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/bytes.hpp"

namespace numacre::daemon {

namespace {

constexpr std::uint64_t kAfterMaxSeconds = 3600;
constexpr std::uint64_t kPercent = 100;

std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    for (;;) {
        const std::size_t at = text.find(separator);
        parts.push_back(text.substr(0, at));
        if (at == std::string_view::npos) return parts;
        text.remove_prefix(at + 1);
    }
}

// Parses a whole number that is followed by that unit.
std::optional<std::uint64_t> number_of(std::string_view text, char unit, std::uint64_t most) {
    if (!text.ends_with(unit)) return std::nullopt;
    text.remove_suffix(1);
    std::uint64_t value = 0;
    const auto [rest, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (fault != std::errc{} || rest != text.data() + text.size() || value > most) return std::nullopt;
    return value;
}

Unexpected<Failure> refuse(std::string_view text, const std::string &why) {
    return Unexpected{Failure{Errc::bad_argument,
                              "\"" + std::string(text) + "\": " + why +
                                  ": use off, or LOW-HIGH:MIN-MAX[:STEP[:AFTER]] such as 10%-50%:64M-1G:64M:30s"}};
}

}  // namespace

Answer<Autosize> parse_autosize(std::string_view text) {
    if (text == "off") return Autosize{};
    const auto parts = split(text, ':');
    if (parts.size() < 2 || parts.size() > 4) return refuse(text, "not two to four parts with colons between them");
    Autosize autosize;
    autosize.is_on = true;
    const auto shares = split(parts[0], '-');
    if (shares.size() != 2) return refuse(text, "no low and high share of free memory");
    const auto low = number_of(shares[0], '%', kPercent), high = number_of(shares[1], '%', kPercent);
    if (!low || !high || *low >= *high)
        return refuse(text, "the low share of free memory must be less than the high one, both of 0% to 100%");
    autosize.low_percent = static_cast<std::uint32_t>(*low);
    autosize.high_percent = static_cast<std::uint32_t>(*high);
    const auto sizes = split(parts[1], '-');
    if (sizes.size() != 2) return refuse(text, "no least and greatest size");
    const auto min = parse_bytes(sizes[0]), max = parse_bytes(sizes[1]);
    if (!min || !max || *min > *max) return refuse(text, "the least size must be at most the greatest");
    autosize.min_bytes = *min;
    autosize.max_bytes = *max;
    if (parts.size() > 2) {
        const auto step = parse_bytes(parts[2]);
        if (!step || *step == 0) return refuse(text, "the step is no number of bytes");
        autosize.step_bytes = *step;
    }
    if (parts.size() > 3) {
        const auto after = number_of(parts[3], 's', kAfterMaxSeconds);
        if (!after) return refuse(text, "the time to wait is not of 0s to 3600s");
        autosize.after = std::chrono::seconds(*after);
    }
    return autosize;
}

std::string format_autosize(const Autosize &autosize) {
    if (!autosize.is_on) return "off";
    return std::to_string(autosize.low_percent) + "%-" + std::to_string(autosize.high_percent) +
           "%:" + format_bytes(autosize.min_bytes) + "-" + format_bytes(autosize.max_bytes) + ":" +
           format_bytes(autosize.step_bytes) + ":" + std::to_string(autosize.after.count()) + "s";
}

void remember(std::deque<AutosizeSample> &history, const AutosizeSample &sample, std::chrono::seconds after) {
    constexpr int kPartsOfAfter = 1024;
    AutosizeSample *const last = history.empty() ? nullptr : &history.back();
    if (last != nullptr && last->online_bytes == sample.online_bytes &&
        sample.time - last->time < std::chrono::duration_cast<std::chrono::nanoseconds>(after) / kPartsOfAfter) {
        last->free_bytes = sample.free_bytes;
        last->least_free_bytes = std::min(last->least_free_bytes, sample.least_free_bytes);
        last->most_free_bytes = std::max(last->most_free_bytes, sample.most_free_bytes);
    } else {
        history.push_back(sample);
    }
    // A bound for a pool whose size changes with each sample, so that no sample is of use: an operator resizes all the
    // time.
    constexpr std::size_t kSamplesMax = 8192;
    // One sample that is old enough is kept.
    while (history.size() > 1 && (history.back().time - history[1].time >= after || history.size() > kSamplesMax))
        history.pop_front();
}

std::optional<std::uint64_t> autosize_wants(const Autosize &autosize, std::span<const AutosizeSample> history,
                                            std::uint64_t unit_bytes) {
    if (!autosize.is_on || history.empty()) return std::nullopt;
    const AutosizeSample &now = history.back();
    // Rounded down; 100 percent are all bytes.
    const auto share = [](std::uint64_t percent, std::uint64_t bytes) {
        return bytes / kPercent * percent + bytes % kPercent * percent / kPercent;
    };
    const auto is_short = [&](const AutosizeSample &sample) {
        return sample.most_free_bytes < share(autosize.low_percent, sample.online_bytes) || sample.most_free_bytes == 0;
    };
    const auto is_ample = [&](const AutosizeSample &sample) {
        return sample.least_free_bytes > share(autosize.high_percent, sample.online_bytes);
    };
    // True if the condition holds in all samples back to `after` ago, and in one that is at least so old.
    const auto lasts = [&](const auto &holds) {
        for (auto sample = history.rbegin(); sample != history.rend(); ++sample) {
            if (sample->online_bytes != now.online_bytes || !holds(*sample)) return false;
            if (now.time - sample->time >= autosize.after) return true;
        }
        return false;
    };
    // Sizes near 2^64 mean the same as kMost. They must not round up to 0, or add up to little.
    constexpr std::uint64_t kMost = std::uint64_t{1} << 60;
    const std::uint64_t step = round_up(std::min(autosize.step_bytes, kMost), unit_bytes);
    // Whole units within the limits: the size never passes the ceiling or the floor.
    const std::uint64_t ceiling = autosize.max_bytes / unit_bytes * unit_bytes;
    const std::uint64_t floor = round_up(std::min(autosize.min_bytes, kMost), unit_bytes);
    if (now.online_bytes < ceiling && lasts(is_short)) return std::min(now.online_bytes + step, ceiling);
    if (now.online_bytes <= floor || !lasts(is_ample)) return std::nullopt;
    const std::uint64_t smaller = std::max(now.online_bytes - std::min(now.online_bytes, step), floor);
    const std::uint64_t gone = now.online_bytes - smaller;
    const std::uint64_t halfway = (std::uint64_t{autosize.low_percent} + autosize.high_percent) / 2;
    if (smaller == 0 || now.free_bytes < gone || now.free_bytes - gone <= share(halfway, smaller)) return std::nullopt;
    return smaller;
}

std::vector<AutosizeWish> autosize_wishes(const Autosize &autosize,
                                          std::span<const std::deque<AutosizeSample>> histories,
                                          std::span<const std::uint64_t> unit_bytes, LastShrink &last) {
    std::vector<AutosizeWish> wishes;
    const std::size_t first = last.time ? last.numa_node + 1 : 0;
    bool has_shrunk = false;
    for (std::size_t i = 0; i < histories.size(); ++i) {
        const std::size_t numa_node = (first + i) % histories.size();
        const std::vector<AutosizeSample> samples(histories[numa_node].begin(), histories[numa_node].end());
        const auto wanted = autosize_wants(autosize, samples, unit_bytes[numa_node]);
        if (!wanted) continue;
        const AutosizeSample &now = samples.back();
        if (*wanted < now.online_bytes) {
            // Not by a sample of the look that the last shrink came from, even if `after` is 0.
            const bool is_due = !last.time || (now.time > *last.time && now.time - *last.time >= autosize.after);
            if (has_shrunk || !is_due) continue;
            has_shrunk = true;
            last = {numa_node, now.time};
        }
        wishes.push_back({numa_node, now.online_bytes, *wanted});
    }
    return wishes;
}

}  // namespace numacre::daemon
