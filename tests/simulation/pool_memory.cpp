#include "pool_memory.hpp"

#include <sys/mman.h>

namespace numacre::simulation {

PoolMemory::PoolMemory(const Plan &plan)
    : geometry{plan.frame_bytes, plan.largest_order, plan.chunks << plan.largest_order} {
    const std::uint32_t process_slots = plan.processes + 1;
    std::uint32_t thread_slots = 2;
    for (unsigned seat = 0; seat < plan.processes; ++seat) thread_slots += plan.threads[seat];
    const std::size_t pool_bytes = PoolLayout<Env>::of(process_slots, thread_slots).region_bytes;
    node_bytes_ = NodeLayout<Env>::of(geometry, thread_slots).region_bytes;
    bytes_ = pool_bytes + node_bytes_ * plan.numa_nodes;
    place_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place_ == MAP_FAILED) std::abort();
    format_pool_region<Env>(place_, "simulated", 1, geometry, plan.numa_nodes, process_slots, thread_slots);
    pool = Pool::at(place_, process_slots, thread_slots);
    regions_ = static_cast<char *>(place_) + pool_bytes;
    nodes.reserve(plan.numa_nodes);
    for (unsigned node = 0; node < plan.numa_nodes; ++node) {
        char *const region = regions_ + node * node_bytes_;
        const NumaNode number{static_cast<std::uint8_t>(node)};
        format_node_region<Env>(region, geometry, number, 1, thread_slots);
        nodes.push_back(Node::at(region, geometry, number, thread_slots, plan.numa_nodes));
    }
}

PoolMemory::~PoolMemory() {
    munmap(place_, bytes_);
}

void PoolMemory::open(const Plan &plan) {
    door.slots_begin = reinterpret_cast<const char *>(pool.threads);
    door.slots_end = reinterpret_cast<const char *>(pool.threads + pool.thread_slots);
    door.watched_begin = regions_;
    door.watched_end = regions_ + nodes.size() * node_bytes_;
    pool.header->accounting.store((plan.counts ? Accounting::kCount : 0) | accounting_of(static_cast<Fit>(plan.fit)));
    pool.header->seats.store(pool.process_slots);
}

}  // namespace numacre::simulation
