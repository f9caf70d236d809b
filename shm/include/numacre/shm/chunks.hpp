// Online and offline chunks of one numa node: the units in which the daemon grows and shrinks a pool. An offline chunk
// is a largest block that kOfflineOwner owns, in the words and by the claim of any block: the allocator has no special
// case for it. One caller at a time. If the caller dies inside, Recovery::resume() undoes or completes the step.
#pragma once

#include <cstdint>

#include "numacre/shm/buddy.hpp"
#include "numacre/shm/walk.hpp"

namespace numacre::engine {

template <class Env>
class Chunks {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;

    Chunks(const NodeView<Env> &view, const PoolView<Env> &pool) : view_(view), pool_(pool), buddy_(view, pool) {}

    // The chunk's memory must be populated already: clients may allocate from it before this returns. False: there is
    // no such chunk, or it is not offline.
    bool bring_online(std::uint64_t chunk) {
        if (chunk >= view_.geometry.chunk_count()) return false;
        const Block block = block_of(chunk);
        const IndexEntry entry{view_.index_entry(block).load(std::memory_order_acquire)};
        if (!entry.is_owned() || entry.owner() != kOfflineOwner) return false;
        return buddy_.free_entry(kSelf, block, entry, false) == Errc::ok;
    }

    // True: nobody has a block in the chunk and nobody can get one; its memory may be given back to the system. False:
    // the chunk is in use, or offline already.
    bool try_take_offline(std::uint64_t chunk) {
        if (chunk >= view_.geometry.chunk_count()) return false;
        const Block block = block_of(chunk);
        if (!buddy_.claim_exactly(kSelf, block)) {
            // Perhaps only marks of freed blocks are in the way.
            if (!buddy_.clean_below(kSelf, block) || !buddy_.claim_exactly(kSelf, block)) return false;
        }
        buddy_.commit(layer_of(block.order), block, IndexEntry::owned(kOfflineOwner, block.order, 0, {}));
        buddy_.end(kSelf);
        return true;
    }

    bool is_offline(std::uint64_t chunk) const {
        if (chunk >= view_.geometry.chunk_count()) return false;
        const IndexEntry entry{view_.index_entry(block_of(chunk)).load(std::memory_order_acquire)};
        return entry.is_owned() && entry.owner() == kOfflineOwner;
    }

    // Begins or ends the draining of a chunk: a draining chunk gets no new allocations; frees go on. The call has no
    // effect in pools whose largest block is 64 frames or less: their chunks have no drain bit.
    void set_drain(std::uint64_t chunk, bool drain) {
        if (view_.top_layer == 0 || chunk >= view_.geometry.chunk_count()) return;
        const unsigned layer = view_.top_layer;
        const Block block = block_of(chunk);
        const unsigned child_order = word_order(layer - 1);
        const std::uint8_t group = upper::group(static_cast<unsigned>(block.base.value >> child_order) % kUpperFanOut,
                                                block.order.value - child_order);
        const std::uint64_t word = block.base.value >> word_order(layer);
        Word &state = view_.upper[layer][word];
        const auto change = [&] {
            std::uint64_t bits = state.load(std::memory_order_relaxed);  // relaxed: only a guess, the CAS decides
            // seq_cst: a claim below either sees DRAIN on its climb, or its mark is seen by the claim of the whole
            // chunk.
            for (unsigned rounds = 0; rounds < kCasRoundsMax; ++rounds) {
                const UpperWord now = drain ? UpperWord{bits}.with_drain(group) : UpperWord{bits}.without_drain(group);
                if (state.compare_exchange_weak(bits, now.bits(), std::memory_order_seq_cst)) break;
            }
        };
        Search<Env> search = buddy_.searcher(kSelf);
        if (drain) {
            change();
            search.lower(layer, word);
        } else {
            search.raise_after(layer, word, change);
        }
    }

    bool is_draining(std::uint64_t chunk) const { return buddy_.is_draining(block_of(chunk)); }

    // Frames of a chunk: held ones, and those taken by operations under way.
    struct Used {
        std::uint64_t held = 0, taken = 0;
    };
    Used used(std::uint64_t chunk) const {
        struct InChunk {
            std::uint64_t first, end;
            Used used;
            std::uint64_t inside(std::uint64_t base, std::uint64_t frames) const {
                return base >= first && base < end ? frames : 0;
            }
            void owned(Block block, IndexEntry) { used.held += inside(block.base.value, block.order.frames()); }
            void taken(FrameIndex base, std::uint64_t frames) { used.taken += inside(base.value, frames); }
            void free(Block) {}
            void offline(Block) {}
            void damaged(Block) {}
        };
        const Block block = block_of(chunk);
        InChunk visitor{block.base.value, block.base.value + block.order.frames(), {}};
        walk_frames(view_, block.base, block.order.frames(), visitor);
        return visitor.used;
    }
    std::uint64_t used_frames(std::uint64_t chunk) const {
        const Used found = used(chunk);
        return found.held + found.taken;
    }

private:
    static constexpr Actor kSelf{kDaemonThread, kDaemonProcess};

    Block block_of(std::uint64_t chunk) const {
        return {FrameIndex{chunk << view_.geometry.largest_order}, view_.geometry.largest()};
    }

    NodeView<Env> view_;
    PoolView<Env> pool_;
    Buddy<Env> buddy_;
};

}  // namespace numacre::engine
