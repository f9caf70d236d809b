// Replays a trace through allocators: finds the smallest pool in which each completes the trace, and its utilisation.
// The measure is that of T. Johnson and T. Davis, "Space Efficient Parallel Buddy Memory Management" (TR 92-008,
// University of Florida), Table 1: the most that was ever requested at once, divided by the size of the smallest pool.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "json.hpp"
#include "trace.hpp"

namespace numacre::cli {

struct PoolShape {
    std::uint64_t frame_bytes = 0, largest_block_bytes = 0;  // powers of two

    unsigned largest_order() const;
};

// The steps of a trace, in order.
struct Workload {
    struct Step {
        std::uint32_t allocation;
        bool frees;
    };
    PoolShape shape;
    std::vector<unsigned> orders;  // one for each allocation
    std::vector<Step> steps;
    std::uint64_t never_freed = 0;
    std::uint64_t peak_requested_bytes = 0;
    std::uint64_t peak_granted_bytes = 0;  // with every block rounded up to a power of two of frames
};

// At equal times, frees come before allocations. Throws ArgumentError if an allocation is above the largest block, or
// the shape is invalid.
Workload make_workload(const std::vector<Allocation> &trace, PoolShape shape);

// One pool of some allocator, for one replay. Its metadata is real; the frames are not needed.
class ReplayPool {
public:
    ReplayPool() = default;
    ReplayPool(const ReplayPool &) = delete;
    ReplayPool &operator=(const ReplayPool &) = delete;
    virtual ~ReplayPool() = default;
    // False: the pool has no such block. `where` is the allocator's own name of the block.
    virtual bool allocate(unsigned order, std::uint64_t &where) = 0;
    virtual void release(std::uint64_t where, unsigned order) = 0;
};

struct Engine {
    std::string name;
    // Makes a pool of that many largest blocks.
    std::function<std::unique_ptr<ReplayPool>(PoolShape shape, std::uint64_t chunks)> make;
};

// Our engine, past the cache, in three variants, and the two of the textbook.
std::vector<Engine> product_engines();

struct Outcome {
    std::string engine;
    std::uint64_t smallest_pool_bytes = 0;

    double utilisation(const Workload &workload) const {
        return static_cast<double>(workload.peak_requested_bytes) / static_cast<double>(smallest_pool_bytes);
    }
};

bool completes(const Workload &workload, ReplayPool &pool);
// Tries every multiple of the largest block, from the one that the peak needs upwards: more memory may be worse for a
// buddy system than less, so a binary search would not find the smallest.
Outcome find_smallest_pool(const Workload &workload, const Engine &engine);

Json replay_json(const Workload &workload, const std::vector<Outcome> &outcomes);
void print_replay(std::ostream &out, const Workload &workload, const std::vector<Outcome> &outcomes);

}  // namespace numacre::cli
