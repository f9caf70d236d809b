// Payloads of the systems that bring none of their own.
#pragma once

#include <cstddef>
#include <vector>

#include "adaptor.hpp"
#include "processes.hpp"

namespace numacre::bench {

// As many blocks as may be under way, in memory that both processes share: a message is the address of one.
class SharedBlocks {
public:
    explicit SharedBlocks(const Shape &shape) : memory_(shape.capacity * kPayloadBytes, shape.hugepages) {}
    void *at(std::size_t index) const { return memory_.get() + index * kPayloadBytes; }

private:
    SharedMemory memory_;
};

// A burst of payloads in a process of its own: a message is a copy.
class OwnPayloads {
public:
    OwnPayloads() : lines_(kBurstMax * kPayloadBytes / kLineBytes) {}
    std::byte *get() { return lines_.front().bytes; }
    std::byte *at(std::size_t index) { return get() + index * kPayloadBytes; }

private:
    struct alignas(kLineBytes) Line {
        std::byte bytes[kLineBytes];
    };
    std::vector<Line> lines_;
};

}  // namespace numacre::bench
