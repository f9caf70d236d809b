// A snapshot of free memory and of the holders of blocks, read beside running clients: a bounded walk over the marked
// parts of the tree, plain loads only. It is exact while nobody allocates; otherwise each word is right for some moment
// of the walk. Nothing read is trusted: an impossible entry is counted as damaged and passed over.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "numacre/shm/fragmentation.hpp"
#include "numacre/shm/layout.hpp"
#include "numacre/shm/walk.hpp"

namespace numacre::engine {

// For walk_all(): the frames that one process holds.
struct OwnFrames {
    ProcessSlot process;
    std::uint64_t frames = 0;
    void owned(Block block, IndexEntry entry) {
        if (entry.owner() == process) frames += block.order.frames();
    }
    void free(Block) {}
    void taken(FrameIndex, std::uint64_t) {}
    void offline(Block) {}
    void damaged(Block) {}
};

struct OwnerUsage {
    std::uint64_t blocks = 0;         // in use
    std::uint64_t frames = 0;         // in use or cached
    std::uint64_t cached_frames = 0;  // in its threads' caches
    PoolAge oldest;                   // the age code of its oldest block in use, if any
    void add(Block block, IndexEntry entry) {
        frames += block.order.frames();
        if (entry.is_cached()) {
            cached_frames += block.order.frames();
            return;
        }
        const PoolAge since = entry.note().since();
        if (blocks == 0 || since.code() < oldest.code()) oldest = since;
        ++blocks;
    }
};

// Frames marked as taken and held by no block: nearly always an operation under way.
struct Unheld {
    FrameIndex first;
    std::uint64_t frames = 0;  // 1, or those of an upper word's child
    unsigned layer() const {
        return frames == 1 ? 0 : (static_cast<unsigned>(std::countr_zero(frames)) - kLeafOrder) / kUpperLevels + 1;
    }
};

struct NodeSnapshot {
    std::uint64_t capacity_frames = 0;
    std::uint64_t offline_frames = 0;
    std::uint64_t used_frames = 0;    // marked as taken, in-flight ones included
    std::uint64_t free_frames = 0;    // online and not used
    BlocksByOrder free_blocks{};      // maximal free blocks
    std::uint64_t cached_frames = 0;  // of the used ones: in clients' thread caches
    // Of the used ones: freed by their owners, and held by others (holds.hpp).
    std::uint64_t lingering_frames = 0;
    BlocksByOrder live_blocks{};      // owned blocks, without cached ones
    std::uint64_t granted_bytes = 0;  // in live blocks
    std::uint64_t requested_bytes = 0;
    std::uint64_t damaged_entries = 0;  // entries that no correct client can have written
    std::uint64_t lost_blocks = 0;      // held blocks that have lost frames: no correct client clears their bits
    std::array<Unheld, 16> unheld{};    // the first few
    std::size_t unheld_count = 0;

    std::uint64_t online_frames() const { return capacity_frames - offline_frames; }
    // 0 when nothing is free.
    std::uint64_t largest_free_frames() const {
        for (unsigned order = kMaxOrder + 1; order-- > 0;)
            if (free_blocks[order] != 0) return std::uint64_t{1} << order;
        return 0;
    }
};

struct CellUsage {
    std::uint64_t frames = 0;
    std::uint64_t used_frames = 0;
    std::uint64_t offline_frames = 0;
};

namespace detail {

struct NoUse {
    void operator()(FrameIndex, std::uint64_t) const {}
};

template <class OnUse>
struct NodeScan {
    NodeSnapshot &out;
    std::span<OwnerUsage> by_process;
    const Geometry &geometry;
    const OnUse &on_use;

    void owned(Block block, IndexEntry entry) {
        on_use(block.base, block.order.frames());
        const std::uint64_t granted = geometry.bytes_of(block.order.frames());
        const std::uint64_t slack = geometry.slack_bytes(block.order, entry.note());
        out.used_frames += block.order.frames();
        if (entry.is_cached()) {
            out.cached_frames += block.order.frames();
        } else {
            ++out.live_blocks[block.order.value];
            out.granted_bytes += granted;
            out.requested_bytes += slack < granted ? granted - slack : 0;
        }
        if (entry.owner().value < by_process.size())
            by_process[entry.owner().value].add(block, entry);
        else if (entry.owner() == kLingeringOwner)
            out.lingering_frames += block.order.frames();
        else if (!by_process.empty() && entry.owner() != kHandOffOwner)
            ++out.damaged_entries;  // no such process slot
    }
    void free(Block block) {
        out.free_frames += block.order.frames();
        ++out.free_blocks[block.order.value];
    }
    void taken(FrameIndex first, std::uint64_t frames) {
        on_use(first, frames);
        out.used_frames += frames;
        if (out.unheld_count < out.unheld.size()) out.unheld[out.unheld_count++] = {first, frames};
    }
    void offline(Block block) { out.offline_frames += block.order.frames(); }
    void damaged(Block) { ++out.damaged_entries; }
    void lost(Block) { ++out.lost_blocks; }
};

struct HolderScan {
    FrameIndex first;
    std::uint64_t frames;
    std::span<OwnerUsage> by_process;

    void owned(Block block, IndexEntry entry) {
        if (block.base.value >= first.value + frames || block.base.value + block.order.frames() <= first.value) return;
        if (entry.owner().value < by_process.size()) by_process[entry.owner().value].add(block, entry);
    }
    void free(Block) {}
    void taken(FrameIndex, std::uint64_t) {}
    void offline(Block) {}
    void damaged(Block) {}
};

struct OccupancyScan {
    std::uint64_t frames_per_cell;
    std::span<CellUsage> cells;

    void spread(FrameIndex base, std::uint64_t frames, std::uint64_t CellUsage::*field) {
        std::uint64_t at = base.value;
        const std::uint64_t end = base.value + frames;
        while (at < end && at / frames_per_cell < cells.size()) {
            const std::uint64_t cell_end = (at / frames_per_cell + 1) * frames_per_cell;
            const std::uint64_t part = (end < cell_end ? end : cell_end) - at;
            CellUsage &cell = cells[at / frames_per_cell];
            cell.frames += part;
            if (field != &CellUsage::frames) cell.*field += part;
            at += part;
        }
    }
    void owned(Block block, IndexEntry) { spread(block.base, block.order.frames(), &CellUsage::used_frames); }
    void free(Block block) { spread(block.base, block.order.frames(), &CellUsage::frames); }
    void taken(FrameIndex first, std::uint64_t frames) { spread(first, frames, &CellUsage::used_frames); }
    void offline(Block block) { spread(block.base, block.order.frames(), &CellUsage::offline_frames); }
    void damaged(Block) {}
};

}  // namespace detail

// by_process_slot: one entry for each process slot, to which the scan adds; may be empty. on_use(FrameIndex first,
// frames): called for all frames that the scan counts as used, in pieces that do not cross a chunk's end.
template <class Env, class OnUse = detail::NoUse>
void scan_node(const NodeView<Env> &view, NodeSnapshot &out, std::span<OwnerUsage> by_process_slot,
               const OnUse &on_use = {}) {
    out.capacity_frames = view.geometry.frame_count;
    detail::NodeScan<OnUse> scan{out, by_process_slot, view.geometry, on_use};
    walk_all(view, scan);
}

// Adds up, by holder, the blocks that touch the given frames.
template <class Env>
void scan_holders(const NodeView<Env> &view, FrameIndex first, std::uint64_t frames,
                  std::span<OwnerUsage> by_process_slot) {
    detail::HolderScan scan{first, frames, by_process_slot};
    walk_frames(view, first, frames, scan);
}

// cells[i] covers `frames_per_cell` frames from frame i * frames_per_cell on. Frames beyond the last cell are left out.
template <class Env>
void scan_occupancy(const NodeView<Env> &view, std::uint64_t frames_per_cell, std::span<CellUsage> cells) {
    detail::OccupancyScan scan{frames_per_cell, cells};
    walk_all(view, scan);
}

}  // namespace numacre::engine
