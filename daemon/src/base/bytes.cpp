#include "base/bytes.hpp"

#include <array>
#include <cctype>
#include <charconv>
#include <limits>

namespace numacre::daemon {

namespace {

struct Unit {
    char letter;
    unsigned shift;
};
constexpr std::array<Unit, 5> kUnits{{{'K', 10}, {'M', 20}, {'G', 30}, {'T', 40}, {'P', 50}}};

Unexpected<Failure> refuse(std::string_view text, std::string_view why) {
    return Unexpected{
        Failure{Errc::bad_argument, "\"" + std::string(text) + "\" " + std::string(why) +
                                        ": write a whole number with K, M, G or T, such as 4096, 4K or 1G"}};
}

bool same_letters(std::string_view text, std::string_view upper) {
    if (text.size() != upper.size()) return false;
    for (std::size_t i = 0; i < text.size(); ++i)
        if (std::toupper(static_cast<unsigned char>(text[i])) != std::toupper(static_cast<unsigned char>(upper[i])))
            return false;
    return true;
}

}  // namespace

Answer<std::uint64_t> parse_bytes(std::string_view text) {
    std::uint64_t amount = 0;
    const auto [rest, fault] = std::from_chars(text.data(), text.data() + text.size(), amount);
    if (fault == std::errc::result_out_of_range) return refuse(text, "is too large");
    if (fault != std::errc{}) return refuse(text, "is not a byte count");

    const std::string_view suffix(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
    if (suffix.empty() || same_letters(suffix, "B")) return amount;
    for (const Unit unit : kUnits) {
        const std::string letter(1, unit.letter);
        if (!same_letters(suffix, letter) && !same_letters(suffix, letter + "B") &&
            !same_letters(suffix, letter + "iB"))
            continue;
        if (amount > std::numeric_limits<std::uint64_t>::max() >> unit.shift) return refuse(text, "is too large");
        return amount << unit.shift;
    }
    return refuse(text, "has an unknown unit");
}

std::string format_bytes(std::uint64_t bytes) {
    for (std::size_t i = kUnits.size(); i-- > 0;) {
        const std::uint64_t unit = std::uint64_t{1} << kUnits[i].shift;
        if (bytes != 0 && bytes % unit == 0) return std::to_string(bytes / unit) + kUnits[i].letter;
    }
    return std::to_string(bytes);
}

Answer<std::vector<std::uint64_t>> parse_node_bytes(std::string_view text) {
    std::vector<std::uint64_t> sizes;
    for (;;) {
        const std::size_t slash = text.find('/');
        const auto size = parse_bytes(text.substr(0, slash));
        if (!size) return Unexpected{size.error()};
        sizes.push_back(*size);
        if (slash == std::string_view::npos) return sizes;
        text.remove_prefix(slash + 1);
    }
}

}  // namespace numacre::daemon
