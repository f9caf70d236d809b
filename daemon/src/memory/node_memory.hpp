// One numa node's part of a pool: the frames, the allocator's metadata over them, and which resize units have memory
// behind them. What is online is known here from a private bitmap and the ledger; the shared memory is written, never
// asked about it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/failure.hpp"
#include "engine.hpp"
#include "memory/hugepages.hpp"
#include "memory/ledger.hpp"
#include "memory/region.hpp"
#include "memory/topology.hpp"
#include "numacre/shm/chunks.hpp"
#include "numacre/shm/layout.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

using View = NodeView<ProductionEnv>;
using SharedPool = PoolView<ProductionEnv>;

// A resize unit: one or more whole chunks that are whole pages as well; numbered from the start of the data region.
struct UnitRange {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
};

// What one resize has brought online so far, so that it can be taken back as a whole.
struct Growth {
    std::vector<std::uint64_t> units;  // in the order in which they came
    std::uint64_t reserved_pages = 0;  // hugepages by which the kernel's pool was raised for them
    std::uint64_t ahead_bytes = 0;     // of what was reserved at the pool's creation
};

// out_of_frames: the machine or the cgroup has not that much memory left as the metadata of a pool's whole capacity
// takes on all numa nodes, with other_bytes beside it.
Answer<void> check_metadata_left(const PoolSpec &spec, const Geometry &geometry, std::uint32_t thread_slots,
                                 std::uint64_t numa_nodes, std::uint64_t other_bytes);

class NodeMemory {
public:
    struct Plan {
        PoolSpec spec;
        Geometry geometry;
        NumaNode numa_node;
        std::uint64_t instance_id = 0;
        std::uint32_t thread_slots = 0;
        SharedPool pool;
        const PoolLedger *ledger = nullptr;  // outlives the node; says at any moment what to do with a unit
    };

    // Everything offline. Chooses the backing: the best of what the spec wants that the machine has for online_bytes.
    static Answer<std::unique_ptr<NodeMemory>> create(const Plan &plan, Topology &topology, Hugepages &hugepages);
    // As a daemon before us has left it. Units that it was in the middle of are neither online nor offline until
    // finish_units(). Does not touch its metadata.
    static Answer<std::unique_ptr<NodeMemory>> adopt(const Plan &plan, Topology &topology, Hugepages &hugepages,
                                                     Fd metadata, Fd data);
    NodeMemory(const NodeMemory &) = delete;
    NodeMemory &operator=(const NodeMemory &) = delete;
    // All pages of the frames go back to the kernel, whoever has them mapped: of a pool that is deleted.
    void give_back_frames();
    // Gives reserved hugepages back. Clients that still map the memory keep it until they unmap it.
    ~NodeMemory();

    // Any thread.
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
    // relaxed: a figure for people and for planning; the worker alone changes it.
    std::uint64_t online_bytes() const { return online_units_.load(std::memory_order_relaxed) * unit_bytes_; }
    // Offline chunks that turned out not to be what we had written: a client has damaged the metadata.
    std::uint64_t overwritten_chunks() const { return overwritten_chunks_.load(std::memory_order_relaxed); }  // a count
    // Frames that are the daemon's until they may be used again.
    std::uint64_t quarantined_frames() const { return quarantined_frames_.load(std::memory_order_relaxed); }  // a count
    void count_quarantined(std::int64_t frames) {
        quarantined_frames_.fetch_add(static_cast<std::uint64_t>(frames), std::memory_order_relaxed);  // a count
    }
    // There is more memory behind the frames than is online: a growth is under way, or a client has put it there.
    // Adds those that are behind the frames, if they lie on hugepages.
    void count_hugepages(Hugepages::Pages &pages) const;
    bool is_overfull() const { return data_.backed_bytes() > online_bytes(); }
    // An odd number while chunks go online or offline, another one after each such change.
    std::uint64_t online_changes() const { return online_changes_.load(std::memory_order_acquire); }
    // Is there a unit that is draining?
    bool is_draining() const { return draining_units_.load(std::memory_order_relaxed) != 0; }  // a count
    // Chunks have a bit that keeps allocations out: not where the largest block is no larger than a word of the leaves.
    bool keeps_allocations_out() const { return view_.top_layer != 0; }
    // Of the units that are being drained, by an operator or a shrink.
    struct DrainingFrames {
        std::uint64_t free = 0, used = 0;
        // Of those in use: what nobody frees any more without noting it (DrainingHeld).
        std::uint64_t noted = 0;
    };
    DrainingFrames draining_frames() const;  // a walk over the metadata of these units
    std::uint64_t draining_bytes() const;    // both, without one
    // How often units have come, gone, or begun or ended to drain. Whoever finds the same before and after a look at
    // the metadata has seen them all as they were.
    std::uint64_t unit_changes() const {
        return online_changes_.load(std::memory_order_seq_cst) + drain_changes_.load(std::memory_order_seq_cst);
    }
    // False: somebody has overwritten the header of the metadata.
    bool header_is_ours() const;
    // Whether so much could be brought online now; the failure says what is short.
    Answer<void> check_growth(std::uint64_t bytes) const;
    // Of these, what comes out of the machine's memory and the daemon's cgroups as it is used: without it the kernel
    // would kill, not refuse.
    // Memory that is no hugepage and that a growth by so many bytes takes: metadata, and frames if they are none.
    std::uint64_t plain_bytes_for(std::uint64_t bytes) const;
    Answer<void> check_memory_left(std::uint64_t bytes) const;

    // The worker's thread only, from here on.
    bool is_online(std::uint64_t unit) const { return online_[unit]; }
    // Offline units in a row; count 0: all are online.
    UnitRange next_offline(std::uint64_t max_units) const;
    // Undoes or completes the steps that a daemon before us was in the middle of. Its intent must have been resolved.
    void finish_units();
    // All of the range's memory and metadata are populated, then its chunks go online. All or nothing, hugepages that
    // were reserved for it included. growth: what is new is added to it.
    Answer<void> bring_online(UnitRange units, Growth &growth);
    // False: something in the unit is in use, or it is offline.
    bool try_take_offline(std::uint64_t unit);
    // Takes the last of them offline again, up to so many, and gives back the hugepages that were reserved for them:
    // no others. Units in use stay, and are in `growth` no longer. How many went.
    std::uint64_t undo(Growth &growth, std::uint64_t units_max, const std::function<bool(std::uint64_t)> &may_go);
    // All of the unit's chunks; remembered across the daemon's death.
    void set_drain(std::uint64_t unit, Drain drain);
    Drain drain_of(std::uint64_t unit) const;
    std::uint64_t used_frames(std::uint64_t unit) const;
    // What the kernel has moved to other numa nodes (a client's cpuset was narrowed, or somebody called migratepages)
    // comes back. How many pages that were.
    Answer<std::uint64_t> bring_home() const;
    // What a client has put behind frames that are offline (fallocate(), or a touch without the guard) goes back to the
    // machine. How many bytes that were.
    std::uint64_t punch_strays() const;
    // Overwrites a block's bytes. One that lies where nothing is online (somebody has scribbled) is left alone.
    Answer<void> zero(Block block) const;

private:
    NodeMemory(Plan plan, Topology &topology, Hugepages &hugepages, MetadataRegion metadata, DataRegion data);
    static Answer<DataRegion> choose_backing(const Plan &plan, Topology &topology, Hugepages &hugepages,
                                             std::string &note);
    // How many hugepages were reserved for it.
    Answer<std::uint64_t> populate_data(std::uint64_t offset, std::uint64_t bytes);
    Answer<std::uint64_t> populate_hugepages(std::uint64_t offset, std::uint64_t bytes);
    bool close_and_punch(std::uint64_t unit);
    bool is_gone(std::uint64_t unit) const;
    struct FrameRange {
        std::uint64_t first = 0;
        std::uint64_t count = 0;
    };
    FrameRange frames_of(UnitRange units) const;
    Answer<void> populate_metadata(FrameRange frames);
    // What each thread has of the metadata, all slots. Not left to the thread that comes first: it may be confined
    // (cpuset) to memory of other numa nodes, which the region's policy yields to, and it cannot be told of a shortage.
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
    std::vector<bool> online_;
    std::uint64_t search_from_ = 0;           // no offline unit below
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
