// Suggested sizes of a pool, derived from the observed use of the pool.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "control.hpp"
#include "json.hpp"

namespace numacre::cli {

struct Advice {
    std::string pool;
    v1::Backing backing = v1::BACKING_UNSPECIFIED;     // the backing that was asked for
    std::uint64_t capacity_bytes = 0;                  // the pool's present value
    std::uint64_t frame_bytes = 0;                     // the pool's present value
    std::uint64_t online_bytes = 0;                    // the present value of the numa node that has most online
    std::uint64_t largest_block_bytes = 0;             // the pool's present value
    std::uint64_t low_watermark_bytes = 0;             // the pool's present value
    std::uint64_t peak_used_bytes = 0;                 // of the busiest numa node, as far as any look has found
    std::uint64_t peak_client_bytes = 0;               // of the client that held most, as far as any look has found
    std::uint64_t object_bytes = 0, object_count = 0;  // the pool's present values; 0: a pool of blocks
    std::uint64_t suggested_object_count = 0;
    std::uint64_t suggested_online_bytes = 0;
    std::uint64_t suggested_low_watermark_bytes = 0;
    std::uint64_t suggested_largest_block_bytes = 0;
    std::vector<std::string> reasons;
};

// peak_used_bytes is the most used on any one numa node while we looked. The pool has the daemon's high-water marks
// from earlier looks. A peak between two looks is unknown, but counted failures are a sign of it.
Advice advise(const v1::Pool &pool, const v1::GetStatsResponse &stats, std::uint64_t peak_used_bytes);

Json advice_json(const Advice &advice);
void print_advice(std::ostream &out, const Advice &advice);
// The size in the config file's notation, without loss: "256M", never "255.9M".
std::string config_size(std::uint64_t bytes);

}  // namespace numacre::cli
