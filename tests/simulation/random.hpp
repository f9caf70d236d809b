// Numbers that are the same for the same seed on every machine.
#pragma once

#include <cstdint>

namespace numacre::simulation {

// splitmix64: each stream of its own, so that a change of one part of a plan leaves the others as they are.
class Random {
public:
    explicit Random(std::uint64_t seed = 0, std::uint64_t stream = 0)
        : state_(seed * 0x9e37'79b9'7f4a'7c15 + stream * 0xd1b5'4a32'd192'ed03 + 1) {
        next();
    }
    std::uint64_t next() {
        std::uint64_t bits = state_ += 0x9e37'79b9'7f4a'7c15;
        bits = (bits ^ bits >> 30) * 0xbf58'476d'1ce4'e5b9;
        bits = (bits ^ bits >> 27) * 0x94d0'49bb'1331'11eb;
        return bits ^ bits >> 31;
    }
    std::uint64_t below(std::uint64_t limit) { return limit == 0 ? 0 : next() % limit; }
    std::uint64_t between(std::uint64_t least, std::uint64_t most) { return least + below(most - least + 1); }
    bool one_in(std::uint64_t count) { return below(count) == 0; }
    bool percent(unsigned chance) { return below(100) < chance; }
    // Small values are as likely as large ones, by magnitude.
    std::uint64_t scaled(std::uint64_t most) {
        const unsigned bits = 64 - static_cast<unsigned>(__builtin_clzll(most | 1));
        const std::uint64_t limit = std::uint64_t{1} << between(0, bits);
        return between(0, limit < most ? limit : most);
    }

private:
    std::uint64_t state_;
};

}  // namespace numacre::simulation
