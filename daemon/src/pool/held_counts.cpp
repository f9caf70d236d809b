#include "pool/held_counts.hpp"

#include <algorithm>
#include <utility>

#include "numacre/shm/account.hpp"

namespace numacre::daemon {

void HeldCounts::correct(const Use &use, std::span<const ProcessSlot> slots, std::span<const std::uint64_t> under_way) {
    for (const ProcessSlot slot : slots) {
        const std::uint64_t unsure = use.under_way[slot.value] + under_way[slot.value];
        correct(slot, use, unsure);
    }
}

// A difference may be what the client's threads say to be under way. One beyond that is an error, and corrected, if it
// is still the same at the next look; so is the least difference that several looks have agreed on: a client that works
// on never stands still.
void HeldCounts::correct(ProcessSlot slot, const Use &use, std::uint64_t unsure) {
    auto &word = shared_.processes[slot.value].held;
    std::uint64_t bits = use.counts[slot.value];
    const HeldFrames seen{bits};
    const std::uint64_t found = use.used_frames[slot.value];
    const Wrong before = std::exchange(wrong_[slot.value], {});
    if (!seen.is_counted()) {
        word.compare_exchange_strong(bits, HeldFrames::of(found).bits(), std::memory_order_seq_cst);
        return;
    }
    const std::uint64_t off = std::max(seen.frames(), found) - std::min(seen.frames(), found);
    if (off > unsure && before.bits == bits) {
        // By what is certain: the rest when its threads have done with it.
        const std::uint64_t sure = off - unsure;
        word.compare_exchange_strong(bits,
                                     (found > seen.frames() ? seen.with_more(sure) : seen.with_fewer(sure)).bits(),
                                     std::memory_order_seq_cst);
        return;
    }
    // A thread that stands still between the tree and the count: what it holds in the tree is taken, and would be
    // counted nowhere for as long as it stands. When it goes on the count is too high for a while, which breaks no
    // promise.
    if (found > seen.frames() && before.bits == bits && before.unsure == unsure) {
        word.compare_exchange_strong(bits, seen.with_more(found - seen.frames()).bits(), std::memory_order_seq_cst);
        return;
    }
    // It was counted before the scan, and again after it.
    bits = word.load(std::memory_order_relaxed);
    const auto [least, most] = std::minmax({seen.frames(), HeldFrames{bits}.frames()});
    Wrong now{seen.bits(), 0, 0, 1, unsure};
    if (least > found + unsure) now.too_many = least - found - unsure;
    if (most + unsure < found) now.too_few = found - most - unsure;
    if (now.too_many == 0 && now.too_few == 0) {
        if (found > most) wrong_[slot.value] = {seen.bits(), 0, 0, 0, unsure};
        return;
    }
    if ((now.too_many != 0) == (before.too_many != 0) && (now.too_few != 0) == (before.too_few != 0)) {
        now.too_many = std::min(now.too_many, before.too_many);
        now.too_few = std::min(now.too_few, before.too_few);
        now.looks = before.looks + 1;
    }
    constexpr unsigned kLooksThatAgree = 4;
    if (now.looks < kLooksThatAgree) {
        wrong_[slot.value] = now;
        return;
    }
    for (unsigned round = 0; round < kCasRoundsMax && HeldFrames{bits}.is_counted(); ++round)
        if (word.compare_exchange_weak(bits, HeldFrames{bits}.with_more(now.too_few).with_fewer(now.too_many).bits()))
            return;
}

}  // namespace numacre::daemon
