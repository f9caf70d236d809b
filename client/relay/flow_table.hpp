// A hash table of packets and bytes per flow: open addressing, one cache line per entry. Not thread-safe.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "packet.hpp"

namespace relay {

class FlowTable {
public:
    struct alignas(64) Entry {
        FlowKey key;
        std::uint64_t packets = 0;  // 0: the entry is empty
        std::uint64_t bytes = 0;
        std::uint64_t hash = 0;
    };
    static_assert(sizeof(Entry) == 64);

    // seed must be unknown to the senders of the packets, or they can choose keys that all collide. flows_max bounds
    // the memory: at most 256 bytes per flow, while the table grows.
    explicit FlowTable(std::uint64_t seed, std::size_t flows_max)
        : seed_(seed), flows_max_(flows_max), entries_(kInitialEntries) {}

    std::uint64_t hash(const FlowKey &key) const {
        std::uint64_t words[sizeof(FlowKey) / 8];
        std::memcpy(words, &key, sizeof key);
        std::uint64_t state = seed_;
        for (const std::uint64_t word : words) state = mix(state ^ word, kMultiplier);
        return state;
    }

    void prefetch(std::uint64_t hash) const { __builtin_prefetch(&entries_[hash & (entries_.size() - 1)], 1); }

    // Counts one packet. Returns false, and counts nothing, if this would be flow number flows_max + 1. hash is
    // hash(key).
    bool count(const FlowKey &key, std::uint64_t hash, std::uint64_t bytes) {
        Entry *entry = &find(entries_, key, hash);
        if (entry->packets == 0) {
            if (flows_ == flows_max_) return false;
            if ((flows_ + 1) * 4 > entries_.size() * 3) {
                grow();
                entry = &find(entries_, key, hash);
            }
            entry->key = key;
            entry->hash = hash;
            ++flows_;
        }
        ++entry->packets;
        entry->bytes += bytes;
        return true;
    }

    std::size_t flows() const { return flows_; }

    template <class Visit>
    void for_each(Visit visit) const {
        for (const Entry &entry : entries_)
            if (entry.packets != 0) visit(entry);
    }

private:
    static constexpr std::size_t kInitialEntries = 1024;  // a power of two; every later size is one, too
    static constexpr std::uint64_t kMultiplier = 0x9e37'79b9'7f4a'7c15;

    // Folds both halves of the 128-bit product: every input bit reaches the low bits that choose the entry.
    static std::uint64_t mix(std::uint64_t value, std::uint64_t multiplier) {
        __extension__ using Wide = unsigned __int128;
        const Wide product = static_cast<Wide>(value ^ std::rotl(value, 32)) * multiplier;
        return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
    }

    // Returns the key's entry, or the empty entry where the key belongs. The search ends because a quarter of the
    // entries is empty.
    static Entry &find(std::vector<Entry> &entries, const FlowKey &key, std::uint64_t hash) {
        std::size_t index = hash & (entries.size() - 1);
        while (entries[index].packets != 0 && !(entries[index].hash == hash && entries[index].key == key))
            index = (index + 1) & (entries.size() - 1);
        return entries[index];
    }

    void grow() {
        std::vector<Entry> larger(entries_.size() * 2);
        for (const Entry &entry : entries_)
            if (entry.packets != 0) find(larger, entry.key, entry.hash) = entry;
        entries_ = std::move(larger);
    }

    std::uint64_t seed_;
    std::size_t flows_max_;
    std::size_t flows_ = 0;
    std::vector<Entry> entries_;
};

}  // namespace relay
