#include "control/printable.hpp"

#include <cstdint>

namespace numacre::daemon {
namespace {

unsigned char byte_at(std::string_view text, std::size_t at) {
    return static_cast<unsigned char>(text[at]);
}

// Length of the well-formed UTF-8 character at the front of text; 0 if there is none (Unicode standard, table 3-7).
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

// Characters that change the direction of the text behind them, or begin a line: U+061C, U+200E, U+200F, U+2028 ..
// U+202E, U+2066 .. U+2069.
bool is_direction(std::string_view character) {
    const unsigned char last = byte_at(character, character.size() - 1);
    if (character.size() == 2) return byte_at(character, 0) == 0xd8 && last == 0x9c;
    if (character.size() != 3 || byte_at(character, 0) != 0xe2) return false;
    if (byte_at(character, 1) == 0x80) return last == 0x8e || last == 0x8f || (last >= 0xa8 && last <= 0xae);
    return byte_at(character, 1) == 0x81 && last >= 0xa6 && last <= 0xa9;
}

}  // namespace

std::string printable(std::string_view text, std::size_t bytes_max) {
    std::string clean;
    clean.reserve(text.size() < bytes_max ? text.size() : bytes_max);
    while (!text.empty()) {
        const std::size_t length = character_bytes(text);
        const std::string_view character = text.substr(0, length);
        const bool keep = length != 0 && !is_control(character) && !is_direction(character);
        if (clean.size() + (keep ? length : 1) > bytes_max) return clean + "...";
        if (keep) {
            clean += character;
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
