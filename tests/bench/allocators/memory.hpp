// Zeroed memory; processes that are forked later may share it, at the same address.
#pragma once

#include <cstddef>

namespace numacre::bench {

class Memory {
public:
    enum class With { threads, processes };
    // Reserves; pages come when they are touched. Throws std::runtime_error.
    Memory(std::size_t bytes, With with);
    ~Memory();
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    std::byte *get() const { return memory_; }

private:
    std::size_t bytes_;
    std::byte *memory_ = nullptr;
};

}  // namespace numacre::bench
