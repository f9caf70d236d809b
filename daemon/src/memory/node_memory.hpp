// One numa node's part of a pool: the frames, the allocator's metadata over them, and the resize units that have memory
// behind them. A private bitmap and the ledger say which units are online. NodeMemory writes that to the shared memory
// and never asks the shared memory about it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/failure.hpp"
#include "engine.hpp"
#include "memory/hugepages.hpp"
#include "memory/ledger.hpp"
#include "memory/pins.hpp"
#include "memory/region.hpp"
#include "memory/topology.hpp"
#include "numacre/shm/chunks.hpp"
#include "numacre/shm/layout.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

using View = NodeView<ProductionEnv>;
using SharedPool = PoolView<ProductionEnv>;

// A resize unit: one or more whole chunks that are whole pages as well; numbered from the start of the data region. The
// only unit of an object pool is the whole pool, whose last page may have room that no object uses.
struct UnitRange {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
};

// The units that one resize has brought online so far, so that they can be taken back together.
struct Growth {
    std::vector<std::uint64_t> units;  // in the order in which they came online
    std::uint64_t reserved_pages = 0;  // hugepages by which the kernel's pool was raised for them
    std::uint64_t ahead_bytes = 0;     // the part of the growth that was reserved at the pool's creation
};

// Checks that the machine and the cgroup have memory left for the metadata of the pool's whole capacity on all numa
// nodes, with other_bytes beside it. out_of_frames: they have not.
Answer<void> check_metadata_left(const PoolSpec &spec, const Geometry &geometry, std::uint32_t thread_slots,
                                 const Topology &topology, std::uint64_t other_bytes);

class NodeMemory {
public:
    struct Plan {
        PoolSpec spec;
        Geometry geometry;
        NumaNode numa_node;
        std::uint64_t instance_id = 0;
        std::uint32_t thread_slots = 0;
        SharedPool pool;
        const PoolLedger *ledger = nullptr;  // outlives the NodeMemory; says at any moment what to do with a unit
        const Pins *pins = nullptr;          // outlives the NodeMemory, too
    };

    // Makes the numa node's part with everything offline. Chooses the backing: the best that the spec wants and of
    // which the machine has enough for online_bytes.
    static Answer<std::unique_ptr<NodeMemory>> create(const Plan &plan, Topology &topology, Hugepages &hugepages);
    // Takes over the part as an earlier daemon has left it. Units in the middle of a step are neither online nor
    // offline until finish_units(). Does not touch the metadata.
    static Answer<std::unique_ptr<NodeMemory>> adopt(const Plan &plan, Topology &topology, Hugepages &hugepages,
                                                     Fd metadata, Fd data);
    NodeMemory(const NodeMemory &) = delete;
    NodeMemory &operator=(const NodeMemory &) = delete;
    // For a pool that is deleted: gives all pages of the frames back to the kernel, whichever processes have them
    // mapped. Pages that are pinned stay until nobody has them mapped or registered.
    void give_back_frames();
    // Gives reserved hugepages back. Clients that still map the memory keep it until they unmap it.
    ~NodeMemory();

    // Any thread, from here on.
    const View &view() const { return view_; }
    const MetadataRegion &metadata() const { return metadata_; }
    const DataRegion &data() const { return data_; }
    NumaNode numa_node() const { return plan_.numa_node; }
    int os_numa_node() const { return topology_.numa_nodes()[plan_.numa_node.value].os_numa_node; }
    std::string backing_note() const;
    std::uint64_t unit_bytes() const { return unit_bytes_; }
    std::uint64_t unit_count() const { return online_.size(); }
    std::uint64_t chunks_in_unit() const { return unit_bytes_ / plan_.geometry.chunk_bytes(); }
    std::uint64_t unit_of_chunk(std::uint64_t chunk) const { return chunk / chunks_in_unit(); }
    // relaxed: a figure for people and for planning; only the worker changes it.
    std::uint64_t online_bytes() const { return online_units_.load(std::memory_order_relaxed) * unit_bytes_; }
    // The memory behind them: whole pages.
    std::uint64_t online_memory_bytes() const {
        return online_units_.load(std::memory_order_relaxed) * unit_memory_bytes_;  // relaxed: as above
    }
    // Number of offline chunks whose entries were not as the daemon had written them: a client damaged the metadata.
    std::uint64_t overwritten_chunks() const { return overwritten_chunks_.load(std::memory_order_relaxed); }  // a count
    // Frames that belong to the daemon until they may be used again.
    std::uint64_t quarantined_frames() const { return quarantined_frames_.load(std::memory_order_relaxed); }  // a count
    void count_quarantined(std::int64_t frames) {
        quarantined_frames_.fetch_add(static_cast<std::uint64_t>(frames), std::memory_order_relaxed);  // a count
    }
    // A part of the unit has to stay where it is (pins.hpp).
    bool is_pinned(std::uint64_t unit) const {
        return plan_.pins != nullptr && plan_.pins->covers(plan_.numa_node, unit * unit_bytes_, unit_bytes_);
    }
    // Adds the hugepages behind the frames to `pages`, if the frames lie on hugepages.
    void count_hugepages(Hugepages::Pages &pages) const;
    // True: more memory is behind the frames than is online. A growth is under way, or a client has put memory there.
    bool is_overfull() const { return data_.backed_bytes() > online_memory_bytes(); }
    // An odd number while chunks go online or offline, another one after each such change.
    std::uint64_t online_changes() const { return online_changes_.load(std::memory_order_acquire); }
    // True: a unit is draining.
    bool is_draining() const { return draining_units_.load(std::memory_order_relaxed) != 0; }  // a count
    // True: chunks have a bit that keeps allocations out. False where the largest block is no larger than a word of the
    // leaves.
    bool keeps_allocations_out() const { return view_.top_layer != 0; }
    // The frames of units that an operator or a shrink drains.
    struct DrainingFrames {
        std::uint64_t free = 0, used = 0;
        // The part of `used` that nobody frees any more without noting it (DrainingHeld).
        std::uint64_t noted = 0;
    };
    DrainingFrames draining_frames() const;  // a walk over the metadata of these units
    std::uint64_t draining_bytes() const;    // free and used together, without a walk
    // Counts each time that units come, go, or begin or end to drain. A caller that reads one number before and after a
    // look at the metadata has seen all units as they were.
    std::uint64_t unit_changes() const {
        return online_changes_.load(std::memory_order_seq_cst) + drain_changes_.load(std::memory_order_seq_cst);
    }
    // False: somebody has overwritten the header of the metadata.
    bool header_is_ours() const;
    // Checks that so many bytes could be brought online now; the failure says what is short.
    Answer<void> check_growth(std::uint64_t bytes) const;
    // The memory that a growth by so many bytes takes and that is no hugepage: metadata, and the frames if they are not
    // on hugepages.
    std::uint64_t plain_bytes_for(std::uint64_t bytes) const;
    // The part of check_growth() that concerns plain memory, which comes out of the machine's memory and the daemon's
    // cgroups as it is used: without this check the kernel would kill, not refuse. own_bytes: what the caller has
    // booked (Topology::InGrowth).
    Answer<void> check_memory_left(std::uint64_t bytes, std::uint64_t own_bytes = 0) const;

    // The worker's thread only, from here on.
    bool is_online(std::uint64_t unit) const { return online_[unit]; }
    // The first run of offline units; count 0: all units are online.
    UnitRange next_offline(std::uint64_t max_units) const;
    // Undoes or completes the steps that an earlier daemon was in the middle of. That daemon's intent must have been
    // resolved.
    void finish_units();
    // Populates all memory and metadata of the range, then brings its chunks online. All or nothing, including the
    // hugepages that were reserved for it. Adds the new units and pages to `growth`.
    Answer<void> bring_online(UnitRange units, Growth &growth);
    // Claims the units in one pass, and gives their pages back in runs as long as they come. Returns how many went: the
    // others are in use, pinned, or offline already.
    std::uint64_t take_offline(std::span<const std::uint64_t> units);
    // Takes the last of the growth's units offline again, up to units_max, and gives back the hugepages that were
    // reserved for them and no others. Units in use stay online, and leave `growth`. Returns how many units went.
    std::uint64_t undo(Growth &growth, std::uint64_t units_max);
    // Sets the drain of all of the unit's chunks. The ledger keeps it across the daemon's death.
    void set_drain(std::uint64_t unit, Drain drain);
    Drain drain_of(std::uint64_t unit) const;
    std::uint64_t used_frames(std::uint64_t unit) const;
    // Moves pages back that the kernel has moved to other numa nodes (a client's cpuset was narrowed, or somebody
    // called migratepages), but for pinned ones. Returns how many pages moved.
    Answer<std::uint64_t> bring_home() const;
    // Gives pages back to the machine that a client has put behind offline frames (fallocate(), or a touch without the
    // guard). Returns how many bytes.
    std::uint64_t punch_strays() const;
    // Overwrites a block's bytes. Leaves a block alone that lies in an offline unit (somebody has scribbled).
    Answer<void> zero(Block block) const;

private:
    NodeMemory(Plan plan, Topology &topology, Hugepages &hugepages, MetadataRegion metadata, DataRegion data);
    static Answer<DataRegion> choose_backing(const Plan &plan, Topology &topology, Hugepages &hugepages,
                                             std::string &note);
    // Returns how many hugepages were reserved for the range.
    // own_bytes: what the caller has booked (Topology::InGrowth).
    Answer<std::uint64_t> populate_data(std::uint64_t offset, std::uint64_t bytes, std::uint64_t own_bytes);
    Answer<std::uint64_t> populate_in_pieces(std::uint64_t offset, std::uint64_t bytes, std::uint64_t own_bytes);
    Answer<std::uint64_t> populate_hugepages(std::uint64_t offset, std::uint64_t bytes);
    std::uint64_t close_and_punch(std::span<const std::uint64_t> units);
    bool close(std::uint64_t unit);
    void punch(UnitRange closed);
    bool is_gone(std::uint64_t unit) const;
    struct FrameRange {
        std::uint64_t first = 0;
        std::uint64_t count = 0;
    };
    FrameRange frames_of(UnitRange units) const;
    Answer<void> populate_metadata(FrameRange frames);
    // Populates the parts of the metadata that belong to threads, for all slots. The first thread of a slot must not
    // have to: it may be confined (cpuset) to memory of other numa nodes, which the region's policy yields to, and it
    // cannot be told of a shortage.
    Answer<void> populate_thread_parts();
    void give_back_pages(wire::Backing backing, std::uint64_t bytes);
    void set_state(UnitRange units, UnitState state);
    void count_online(UnitRange units);
    std::uint64_t open_chunks(UnitRange units, bool only_closed);

    Plan plan_;
    Topology &topology_;
    Hugepages &hugepages_;
    MetadataRegion metadata_;
    DataRegion data_;
    View view_;
    Chunks<ProductionEnv> chunks_;
    std::uint64_t unit_bytes_;
    std::uint64_t unit_memory_bytes_;  // whole pages
    std::vector<bool> online_;
    std::uint64_t search_from_ = 0;           // no unit below this one is offline
    std::uint64_t reserved_ahead_bytes_ = 0;  // hugepages that were reserved at creation and are not populated yet
    std::set<std::uint64_t> draining_;        // the worker's thread only
    std::atomic<std::uint64_t> draining_units_{0};
    std::atomic<std::uint64_t> drain_changes_{0};
    std::atomic<unsigned> opening_{0};  // drains that are just being ended
    std::atomic<std::uint64_t> online_units_{0};
    std::atomic<std::uint64_t> overwritten_chunks_{0};
    std::atomic<std::uint64_t> quarantined_frames_{0};
    std::atomic<std::uint64_t> online_changes_{0};
    mutable std::mutex note_mutex_;
    std::string note_;  // guarded by note_mutex_
};

}  // namespace numacre::daemon
