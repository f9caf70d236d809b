// The workloads of tests/bench/allocators, on virtual cores. All that a core remembers lies outside its fiber's stack,
// since a core is abandoned wherever it stands.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "allocators.hpp"
#include "simulator.hpp"

namespace numacre::contention {

inline constexpr std::array<std::string_view, 6> kWorkloads{"cache", "linux", "thread", "larson", "co50", "co90"};
inline constexpr unsigned kLargestSimulatedOrder = 9;  // of all contenders

// Who has each frame, as the workload was told. Never wrong: cores change places only at accesses to Atomics, and
// nothing of this is one.
class OwnerMap {
public:
    explicit OwnerMap(std::uint64_t frame_count) : owned_(frame_count) {}
    void take(std::uint64_t frame, unsigned order) {
        const std::uint64_t end = frame + (std::uint64_t{1} << order);
        if (end > owned_.size() || frame % (std::uint64_t{1} << order) != 0) {
            ++overlaps_;
            return;
        }
        bool overlap = false;
        for (std::uint64_t at = frame; at < end; ++at)
            overlap = std::exchange(owned_[at], std::uint8_t{1}) != 0 || overlap;
        overlaps_ += overlap ? 1 : 0;
    }
    void release(std::uint64_t frame, unsigned order) {
        for (std::uint64_t at = frame; at < frame + (std::uint64_t{1} << order) && at < owned_.size(); ++at)
            owned_[at] = 0;
    }
    // Blocks handed out that were outside the pool, misaligned, or partly somebody's already.
    std::uint64_t overlaps() const { return overlaps_; }

private:
    std::vector<std::uint8_t> owned_;
    std::uint64_t overlaps_ = 0;
};

struct Task {
    std::string workload;
    std::uint64_t frame_count;
    unsigned order;  // of the blocks, or of the smallest ones
    unsigned cores;
    std::uint64_t seed;
};

class Workload {
public:
    static std::unique_ptr<Workload> make(const Task &task, Allocator &allocator);
    virtual ~Workload() = default;
    // Before the simulation: what the cores have taken already.
    virtual void prepare() {}
    // A core's endless loop.
    virtual void run(unsigned core) = 0;
    // Of one core, until everything has happened once.
    virtual std::uint64_t operations_per_round() const = 0;

    std::uint64_t overlaps() const { return owners_.overlaps(); }
    std::uint64_t refused() const { return refused_; }

protected:
    static constexpr std::uint64_t kNoFrame = ~std::uint64_t{0};

    Workload(const Task &task, Allocator &allocator) : task_(task), allocator_(allocator), owners_(task.frame_count) {}
    // kNoFrame: refused.
    std::uint64_t allocate(unsigned core, unsigned order);
    void free(unsigned core, std::uint64_t frame, unsigned order);
    // Of `wanted` blocks a core's own share: all cores' together take half of the pool at most.
    std::uint64_t burst(std::uint64_t wanted) const;

    const Task task_;

private:
    Allocator &allocator_;
    OwnerMap owners_;
    std::uint64_t refused_ = 0;
};

}  // namespace numacre::contention
