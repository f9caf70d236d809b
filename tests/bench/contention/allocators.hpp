// The allocators as a workload sees them: blocks of frames, a core's number.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "simulator.hpp"

namespace numacre::contention {

inline constexpr unsigned kFrameShift = 12;
inline constexpr unsigned kPoolLargestOrder = 10;  // 4 MiB of 4 KiB frames, as the benchmarks in real time have it

class Allocator {
public:
    virtual ~Allocator() = default;
    virtual std::optional<std::uint64_t> allocate(unsigned core, unsigned order) = 0;
    virtual void free(unsigned core, std::uint64_t frame, unsigned order) = 0;
};

struct Contender {
    std::string name;
    std::string what;
    bool ours;
    bool safe;  // hands no frame out twice: asserted. The papers' lock-free ones do (tests/papers)
    std::size_t arena_bytes_per_frame;
    std::function<std::unique_ptr<Allocator>(Arena &, std::uint64_t frame_count, unsigned cores)> make;
};

const std::vector<Contender> &contenders();

}  // namespace numacre::contention
