// The hash by which the explorer knows a state: two words of 64 bits, each the sum or the fold of the state's parts.
#pragma once

#include <cstdint>

namespace numacre::model {

struct Hash {
    std::uint64_t a = 0;
    std::uint64_t b = 0;
    friend bool operator==(const Hash &, const Hash &) = default;
};

constexpr std::uint64_t scramble(std::uint64_t x) {
    x = (x ^ (x >> 32)) * 0xd6e8'feb8'6659'fd93;
    x = (x ^ (x >> 32)) * 0xd6e8'feb8'6659'fd93;
    return x ^ (x >> 32);
}

// The halves of a 128-bit product, folded: the hash functions' one step.
inline std::uint64_t fold(std::uint64_t x, std::uint64_t y) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(x) * y;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

}  // namespace numacre::model
