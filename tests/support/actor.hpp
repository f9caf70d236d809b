// A seat in a pool for a test that has no daemon to ask for one.
#pragma once

#include <cstdint>

#include "numacre/shm/buddy.hpp"

namespace numacre::test {

using namespace engine;

// A thread slot of a process slot, marked as in use and alive.
inline Actor seat_actor(const PoolView<ProductionEnv> &pool, unsigned thread, unsigned process) {
    const ProcessSlot owner{static_cast<std::uint16_t>(process)};
    pool.processes[process].state.store(static_cast<std::uint64_t>(ProcessState::active));
    pool.threads[thread].owner.store(ThreadOwner{owner}.bits());
    std::uint64_t mark = pool.header->thread_high_water.load();
    while (mark <= thread && !pool.header->thread_high_water.compare_exchange_weak(mark, thread + 1)) {
    }
    return Actor{ThreadSlotIndex{static_cast<std::uint16_t>(thread)}, owner};
}

}  // namespace numacre::test
