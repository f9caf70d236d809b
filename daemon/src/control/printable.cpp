#include "control/printable.hpp"

#include <cstdint>

namespace numacre::daemon {
namespace {

unsigned char byte_at(std::string_view text, std::size_t at) {
    return static_cast<unsigned char>(text[at]);
}

// Length of the well-formed UTF-8 character that text begins with; 0: none (Unicode standard, table 3-7).
std::size_t character_bytes(std::string_view text) {
    const unsigned char first = byte_at(text, 0);
    if (first < 0x80) return 1;
    const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
    for (std::size_t at = 1; at < length; ++at)
        if ((byte_at(text, at) & 0xc0) != 0x80) return 0;
    const unsigned char second = byte_at(text, 1);
    const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
    const bool surrogate = first == 0xed && second > 0x9f;
    const bool beyond_unicode = first == 0xf4 && second > 0x8f;
    return overlong || surrogate || beyond_unicode ? 0 : length;
}

// C0, DEL, and C1 (U+0080 .. U+009F), which some terminals obey as well.
bool is_control(std::string_view character) {
    const unsigned char first = byte_at(character, 0);
    if (character.size() == 1) return first < 0x20 || first == 0x7f;
    return character.size() == 2 && first == 0xc2 && byte_at(character, 1) < 0xa0;
}

}  // namespace

std::string printable(std::string_view text, std::size_t bytes_max) {
    std::string clean;
    clean.reserve(text.size() < bytes_max ? text.size() : bytes_max);
    while (!text.empty()) {
        const std::size_t length = character_bytes(text);
        const bool keep = length != 0 && !is_control(text.substr(0, length));
        if (clean.size() + (keep ? length : 1) > bytes_max) return clean + "...";
        if (keep) {
            clean += text.substr(0, length);
        } else {
            clean += '?';
        }
        text.remove_prefix(length == 0 ? 1 : length);
    }
    return clean;
}

std::string quoted(std::string_view text) {
    return '"' + printable(text, 80) + '"';
}

}  // namespace numacre::daemon
