// The states that a search has seen.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include "die.hpp"
#include "hash.hpp"

namespace numacre::model {

// Open addressing, 16 bytes a state: 112 bits of hash and the lowest cost at which the state was reached.
class StateSet {
public:
    enum class Seen : std::uint8_t { never, dearer, before };

    StateSet() { reserve(1 << 16); }
    ~StateSet() { std::free(slots_); }
    StateSet(const StateSet &) = delete;
    StateSet &operator=(const StateSet &) = delete;

    std::uint64_t size() const { return size_; }

    Seen insert(Hash hash, std::uint64_t cost) {
        if (size_ * 10 > capacity_ * 7) reserve(capacity_ * 2);
        Slot &slot = find(slots_, capacity_, pack(hash));
        const std::uint64_t kept_cost = cost < kCostMask ? cost : kCostMask;
        if (slot.a == 0) {
            slot = pack(hash);
            slot.b |= kept_cost;
            ++size_;
            return Seen::never;
        }
        if ((slot.b & kCostMask) <= kept_cost) return Seen::before;
        slot.b = (slot.b & ~kCostMask) | kept_cost;
        return Seen::dearer;
    }

    bool contains(Hash hash) const { return find(slots_, capacity_, pack(hash)).a != 0; }

    // As a map: the cost that was set last.
    bool get(Hash hash, std::uint64_t &cost) const {
        const Slot &slot = find(slots_, capacity_, pack(hash));
        cost = slot.b & kCostMask;
        return slot.a != 0;
    }
    void set(Hash hash, std::uint64_t cost) {
        insert(hash, cost);
        Slot &slot = find(slots_, capacity_, pack(hash));
        slot.b = (slot.b & ~kCostMask) | cost;
    }

private:
    struct Slot {
        std::uint64_t a;  // 0: empty
        std::uint64_t b;
    };
    static constexpr std::uint64_t kCostMask = 0xffff;

    static Slot pack(Hash hash) { return {hash.a != 0 ? hash.a : 1, hash.b & ~kCostMask}; }

    static Slot &find(Slot *slots, std::uint64_t capacity, Slot wanted) {
        std::uint64_t at = wanted.a & (capacity - 1);
        while (slots[at].a != 0 && (slots[at].a != wanted.a || (slots[at].b & ~kCostMask) != wanted.b))
            at = (at + 1) & (capacity - 1);
        return slots[at];
    }

    void reserve(std::uint64_t capacity) {
        auto *const slots = static_cast<Slot *>(std::calloc(capacity, sizeof(Slot)));
        if (slots == nullptr) die("no memory for " + std::to_string(capacity) + " states: lower states_max");
        for (std::uint64_t at = 0; at < capacity_; ++at) {
            if (slots_[at].a == 0) continue;
            find(slots, capacity, {slots_[at].a, slots_[at].b & ~kCostMask}) = slots_[at];
        }
        std::free(slots_);
        slots_ = slots;
        capacity_ = capacity;
    }

    Slot *slots_ = nullptr;
    std::uint64_t capacity_ = 0;
    std::uint64_t size_ = 0;
};

}  // namespace numacre::model
