// A formatted pool of one numa node in private memory, for tests that work on shm/ directly.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

#include "numacre/shm/chunks.hpp"
#include "numacre/shm/format.hpp"
#include "numacre/shm/recovery.hpp"
#include "numacre/shm/snapshot.hpp"
#include "support/actor.hpp"

namespace numacre::test {

using namespace engine;

// Zeroed memory that is only touched where it is used.
class ZeroedMemory {
public:
    explicit ZeroedMemory(std::size_t bytes) : bytes_(bytes) {
        address_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (address_ == MAP_FAILED) std::abort();
    }
    ~ZeroedMemory() { munmap(address_, bytes_); }
    ZeroedMemory(const ZeroedMemory &) = delete;
    ZeroedMemory &operator=(const ZeroedMemory &) = delete;
    void *address() const { return address_; }

private:
    std::size_t bytes_;
    void *address_;
};

struct ShmPool {
    static constexpr std::uint32_t kProcesses = 8;

    Geometry geometry;
    std::uint32_t thread_slots;
    ZeroedMemory pool_memory;
    ZeroedMemory node_memory;
    PoolView<ProductionEnv> view;
    NodeView<ProductionEnv> node;

    ShmPool(std::uint64_t frame_bytes, std::uint64_t largest_bytes, std::uint64_t chunks, std::uint32_t threads = 16)
        : geometry(make_geometry(frame_bytes, largest_bytes, largest_bytes * chunks)),
          thread_slots(threads),
          pool_memory(PoolLayout<ProductionEnv>::of(kProcesses, threads).region_bytes),
          node_memory(NodeLayout<ProductionEnv>::of(geometry, threads).region_bytes) {
        format_pool_region<ProductionEnv>(pool_memory.address(), "test", 1, geometry, 1, kProcesses, threads);
        format_node_region<ProductionEnv>(node_memory.address(), geometry, NumaNode{0}, 1, threads);
        view = PoolView<ProductionEnv>::at(pool_memory.address(), kProcesses, threads);
        node = NodeView<ProductionEnv>::at(node_memory.address(), geometry, NumaNode{0}, threads);
    }

    void online_all() {
        Chunks<ProductionEnv> chunks{node, view};
        for (std::uint64_t chunk = 0; chunk < geometry.chunk_count(); ++chunk)
            if (!chunks.bring_online(chunk)) std::abort();
    }

    Actor actor(unsigned thread, unsigned process) { return seat_actor(view, thread, process); }

    // Marks the process as dead and gives back what it held.
    RecoveryStep kill_and_recover(unsigned process, Reclaimed &total, ThreadSlotIndex &blocked_by) {
        view.processes[process].state.store(static_cast<std::uint64_t>(ProcessState::dead));
        const NodeView<ProductionEnv> nodes[] = {node};
        Recovery<ProductionEnv> recovery{view, nodes};
        const RecoveryStep step =
            recovery.recover_process(ProcessSlot{static_cast<std::uint16_t>(process)}, total, blocked_by);
        if (step == RecoveryStep::done)
            view.processes[process].state.store(static_cast<std::uint64_t>(ProcessState::free));
        return step;
    }

    NodeSnapshot snapshot() const {
        NodeSnapshot result;
        scan_node<ProductionEnv>(node, result, {});
        return result;
    }
};

}  // namespace numacre::test
