// The machine's memory, as the daemon sees it: the numa nodes, how far apart and how full they are, and how to place
// pages on one. The implementation is the only user of libnuma. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/failure.hpp"
#include "engine.hpp"
#include "numacre/shm/owner.hpp"
#include "numacre/shm/units.hpp"

namespace numacre::daemon {

struct MemoryNode {
    int os_numa_node = 0;  // the kernel's number; several synthetic nodes may share one
    std::uint64_t total_bytes = 0;
    std::string cpus;                 // as in /sys: "0-3,8"; empty for memory without CPUs
    std::vector<unsigned> distances;  // to each node of the topology; 10 = local
};

// Binds the calling thread to one numa node for the object's lifetime: pages that the thread faults in or allocates
// come from that numa node, or not at all. Destroy the object on the thread that made it.
class ThreadBinding {
public:
    ThreadBinding() = default;
    ThreadBinding(ThreadBinding &&other) noexcept;
    ThreadBinding &operator=(ThreadBinding &&) = delete;
    ~ThreadBinding();

private:
    friend class Topology;
    bool bound_ = false;
};

class Topology {
public:
    virtual ~Topology() = default;

    const std::vector<MemoryNode> &numa_nodes() const { return numa_nodes_; }
    bool has(NumaNode numa_node) const { return numa_node.value < numa_nodes_.size(); }
    // All nodes by distance from this one, itself first.
    std::vector<NumaNode> nearest(NumaNode numa_node) const;

    virtual std::string source() const = 0;
    // How much could be populated there now: free memory and clean page cache.
    virtual std::uint64_t available_bytes(NumaNode numa_node) const = 0;
    // How much take() would still grant. The maximum value, where only the machine's real memory is the limit.
    virtual std::uint64_t unbooked_bytes(NumaNode numa_node) const = 0;
    // Books memory against the numa node's size. Only a synthetic node can refuse: real shortage shows when populating.
    virtual Answer<void> take(NumaNode numa_node, std::uint64_t bytes) = 0;
    virtual void give_back(NumaNode numa_node, std::uint64_t bytes) = 0;

    // Bytes that growth steps of all pools are about to take, by numa node. Each pool grows on a thread of its own, and
    // until a step has its pages, the machine and the cgroup still report them as left: two steps that fit one by one
    // would not fit together. A step books its bytes first and then looks at the bytes left, so of two steps at once at
    // least one sees the other. (A lock would not do: the thread of one pool may be made to wait by its clients, and no
    // other pool may wait for that thread.) Thread-safe.
    class InGrowth {
    public:
        InGrowth(Topology &topology, NumaNode numa_node, std::uint64_t bytes)
            : booked_(topology.in_growth_[numa_node.value]), bytes_(bytes) {
            booked_.fetch_add(bytes_, std::memory_order_seq_cst);  // before looking at the bytes left
        }
        InGrowth(const InGrowth &) = delete;
        InGrowth &operator=(const InGrowth &) = delete;
        ~InGrowth() { booked_.fetch_sub(bytes_, std::memory_order_seq_cst); }  // after the pages are there

    private:
        std::atomic<std::uint64_t> &booked_;
        const std::uint64_t bytes_;
    };
    std::uint64_t bytes_in_growth(NumaNode numa_node) const {
        return in_growth_[numa_node.value].load(std::memory_order_seq_cst);
    }
    std::uint64_t bytes_in_growth() const {
        std::uint64_t sum = 0;
        for (std::uint8_t i = 0; i < engine::kMaxNumaNodes; ++i) sum += bytes_in_growth(NumaNode{i});
        return sum;
    }

    // For hugetlb: the kernel places its pages by the policy of the thread that allocates.
    Answer<ThreadBinding> bind_this_thread(NumaNode numa_node) const;
    // True if pages can be on a wrong numa node at all.
    bool is_placement_needed() const { return placement_needed_; }
    // Moves pages of a mapping that lie elsewhere to the numa node `home`, while processes use them. Looks at one page
    // every `step_bytes`. Leaves pages alone that are not in the caller's page table, and pages that the kernel cannot
    // move (no memory there, pinned). Returns how many pages moved.
    Answer<std::uint64_t> bring_home(void *address, std::uint64_t bytes, std::uint64_t step_bytes, NumaNode home) const;
    // For plain memfds: the policy stays with the file's pages, whichever thread touches them first. strict: pages come
    // from this numa node or not at all.
    Answer<void> bind_shared_pages(void *address, std::uint64_t bytes, NumaNode numa_node, bool strict) const;

protected:
    std::vector<MemoryNode> numa_nodes_;
    // With one real numa node every placement is right, and a container that forbids set_mempolicy does no harm.
    bool placement_needed_ = false;

private:
    std::array<std::atomic<std::uint64_t>, engine::kMaxNumaNodes> in_growth_{};
};

struct SyntheticTopology {
    unsigned node_count = 0;
    std::uint64_t bytes_each = 0;
};
// Parses the part behind "synthetic:", such as "2x512M".
Answer<SyntheticTopology> parse_synthetic(std::string_view text);

// spec: "libnuma", or "synthetic:<count>x<bytes>", which is that many numa nodes with that much memory each, laid over
// the real ones in turn.
Answer<std::unique_ptr<Topology>> make_topology(std::string_view spec);
// Checks the wording of the spec only.
Answer<void> check_topology_spec(std::string_view spec);

}  // namespace numacre::daemon
