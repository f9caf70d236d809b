// From objects to tokens and back.
#include <rte_malloc.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "driver.hpp"

namespace numacre::dpdk {
namespace {

// Of an odd number, modulo 2^64: each step doubles the number of right bits, and odd * odd is right in three.
std::uint64_t inverse_of(std::uint64_t odd) {
    std::uint64_t inverse = odd;
    for (int step = 0; step < 5; ++step) inverse *= 2 - odd * inverse;
    return inverse;
}

// Adds an empty place to the runs. False: EAL has no memory.
bool grow(Shared &shared) {
    if (shared.run_count < shared.run_room) return true;
    const std::uint32_t room = shared.run_room == 0 ? 16 : 2 * shared.run_room;
    auto *const runs = static_cast<Run *>(rte_realloc(shared.runs, room * sizeof(Run), 0));
    if (runs == nullptr) return false;
    shared.runs = runs;
    auto *const order =
        static_cast<std::uint32_t *>(rte_realloc(shared.by_address, room * sizeof *shared.by_address, 0));
    if (order == nullptr) return false;
    shared.by_address = order;
    shared.run_room = room;
    return true;
}

}  // namespace

Run Run::of(char *base, std::uint64_t stride, std::uint32_t first, std::uint32_t count) {
    const auto shift = static_cast<std::uint32_t>(std::countr_zero(stride));
    return {base, stride, inverse_of(stride >> shift), shift - std::countr_zero(kTokenBytes), first, count};
}

bool add_object(Shared &shared, void *object, std::size_t bytes_with_header, bool is_behind) {
    char *const at = static_cast<char *>(object);
    if (shared.run_count != 0) {
        Run &last = shared.runs[shared.run_count - 1];
        // A run of one object has no distance yet.
        const std::uint64_t stride = last.count == 1 ? static_cast<std::uint64_t>(at - last.base) : last.stride;
        // No other object lies in between: runs must not overlap (token_offset_of() looks in one).
        const bool are_neighbours = is_behind || stride == bytes_with_header;
        if (are_neighbours && at > last.base && at == last.base + stride * last.count) {
            last = Run::of(last.base, stride, last.first, last.count + 1);
            shared.run = shared.runs[0];
            return true;
        }
    }
    if (!grow(shared)) return false;
    const Run *const before = shared.runs;
    shared.runs[shared.run_count] = Run::of(at, kTokenBytes, shared.populated_runs_end(), 1);
    std::uint32_t *const end = shared.by_address + shared.run_count;
    std::uint32_t *const place = std::upper_bound(
        shared.by_address, end, at, [before](const char *a, std::uint32_t r) { return a < before[r].base; });
    std::memmove(place + 1, place, static_cast<std::size_t>(end - place) * sizeof *place);
    *place = shared.run_count++;
    shared.run = shared.runs[0];
    return true;
}

void keep_objects(Shared &shared, std::uint32_t first_ones) {
    std::uint32_t runs = shared.run_count;
    while (runs != 0 && shared.runs[runs - 1].first >= first_ones) --runs;
    std::uint32_t *const end = shared.by_address + shared.run_count;
    if (end != nullptr) (void)std::remove_if(shared.by_address, end, [runs](std::uint32_t run) { return run >= runs; });
    shared.run_count = runs;
    if (runs == 0) return;
    Run &last = shared.runs[runs - 1];
    last.count = std::min(last.count, first_ones - last.first);
    shared.run = shared.runs[0];
}

void *object_of(const Shared &shared, std::uint64_t token_offset) {
    const std::uint64_t number = token_offset / kTokenBytes;
    const Run *const run = std::upper_bound(shared.runs, shared.runs + shared.run_count, number,
                                            [](std::uint64_t n, const Run &r) { return n < r.first; });
    return run[-1].object(token_offset);
}

std::uint64_t token_offset_of(const Shared &shared, const void *object) {
    const Run *const runs = shared.runs;
    const std::uint32_t *const place =
        std::upper_bound(shared.by_address, shared.by_address + shared.run_count, static_cast<const char *>(object),
                         [runs](const char *a, std::uint32_t r) { return a < runs[r].base; });
    if (place == shared.by_address) return kNoToken;
    const Run &run = runs[place[-1]];
    const std::uint64_t offset = run.offset_in_run(object);
    return run.contains(offset) && Run::is_token(offset) ? offset + std::uint64_t{run.first} * kTokenBytes : kNoToken;
}

}  // namespace numacre::dpdk
