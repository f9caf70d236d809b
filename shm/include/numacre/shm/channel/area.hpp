// The area in which the channels of a pool lie: which part of it is free.
#pragma once

#include <cstdint>
#include <span>

#include "numacre/shm/channel/layout.hpp"

namespace numacre::engine {

// A part of the area; bytes 0: none.
struct ChannelExtent {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
};

inline constexpr std::uint64_t kChannelStep = 4096;  // channels begin on pages

// The lowest place for `bytes` that overlaps none of `taken`; kChannelAreaBytes: there is none.
constexpr std::uint64_t find_channel_place(std::span<const ChannelExtent> taken, std::uint64_t bytes) {
    std::uint64_t offset = 0;
    while (bytes <= kChannelAreaBytes && offset <= kChannelAreaBytes - bytes) {
        const ChannelExtent *in_the_way = nullptr;
        for (const ChannelExtent &other : taken)
            if (other.bytes != 0 && offset < other.offset + other.bytes && other.offset < offset + bytes)
                in_the_way = &other;
        if (in_the_way == nullptr) return offset;
        offset = round_up(in_the_way->offset + in_the_way->bytes, kChannelStep);
    }
    return kChannelAreaBytes;
}

}  // namespace numacre::engine
