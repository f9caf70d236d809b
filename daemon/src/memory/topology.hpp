// The machine's memory, as the daemon sees it: which numa nodes there are, how far apart, how full, and how to place
// pages on one. The implementation is the only user of libnuma. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/failure.hpp"
#include "engine.hpp"
#include "numacre/shm/units.hpp"

namespace numacre::daemon {

struct MemoryNode {
    int os_numa_node = 0;  // the kernel's number; several synthetic nodes may share one
    std::uint64_t total_bytes = 0;
    std::string cpus;                 // as in /sys: "0-3,8"; empty for memory without CPUs
    std::vector<unsigned> distances;  // to each node of the topology; 10 = local
};

// While it lives, pages that the calling thread faults in or allocates come from one numa node, or not at all.
// Destroy it on the thread that made it.
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
    // What could be populated there now: free memory and clean page cache.
    virtual std::uint64_t available_bytes(NumaNode numa_node) const = 0;
    // What take() would still grant; everything, where only the machine's real memory is the limit.
    virtual std::uint64_t unbooked_bytes(NumaNode numa_node) const = 0;
    // Books memory against the node's size. Only a synthetic node can refuse here: real shortage shows when populating.
    virtual Answer<void> take(NumaNode numa_node, std::uint64_t bytes) = 0;
    virtual void give_back(NumaNode numa_node, std::uint64_t bytes) = 0;

    // For hugetlb: the kernel places its pages by the policy of the thread that allocates.
    Answer<ThreadBinding> bind_this_thread(NumaNode numa_node) const;
    // For plain memfds: the policy stays with the file's pages, whoever touches them first. strict: there or not at
    // all.
    // Can pages be on a wrong numa node at all?
    bool is_placement_needed() const { return placement_needed_; }
    // Pages of a mapping that lie elsewhere go to the numa node, under whoever uses them: one is looked at every
    // `step_bytes`. Those that are not in the caller's page table are left alone. How many went; those that the kernel
    // cannot move (no memory there, pinned) stay.
    Answer<std::uint64_t> bring_home(void *address, std::uint64_t bytes, std::uint64_t step_bytes, NumaNode home) const;
    Answer<void> bind_shared_pages(void *address, std::uint64_t bytes, NumaNode numa_node, bool strict) const;

protected:
    std::vector<MemoryNode> numa_nodes_;
    // With one real node every placement is right, and a container that forbids set_mempolicy does no harm.
    bool placement_needed_ = false;
};

struct SyntheticTopology {
    unsigned node_count = 0;
    std::uint64_t bytes_each = 0;
};
// "2x512M", the part behind "synthetic:".
Answer<SyntheticTopology> parse_synthetic(std::string_view text);

// "libnuma", or "synthetic:<count>x<bytes>": that many nodes with that much memory each, laid over the real ones in
// turn.
Answer<std::unique_ptr<Topology>> make_topology(std::string_view spec);
// Only the wording.
Answer<void> check_topology_spec(std::string_view spec);

}  // namespace numacre::daemon
