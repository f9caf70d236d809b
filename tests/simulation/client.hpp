// The client's own sources (client/src), compiled over the simulator's Env: whoever includes this sees numacre_pool and
// all the rest as client.cpp builds them, never as libnumacre does.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>

#include "env.hpp"
// With ProductionEnv as it is: its layout is asserted.
#include "numacre/shm/account.hpp"
#include "numacre/shm/attach_wire.hpp"
#include "numacre/shm/audit.hpp"
#include "numacre/shm/buddy.hpp"
#include "numacre/shm/cached_block.h"
#include "numacre/shm/chunks.hpp"
#include "numacre/shm/counters.hpp"
#include "numacre/shm/fit.hpp"
#include "numacre/shm/format.hpp"
#include "numacre/shm/hand_off.hpp"
#include "numacre/shm/recovery.hpp"
#include "numacre/shm/snapshot.hpp"
#include "numacre/shm/thread_slots.hpp"
#include "numacre/shm/walk.hpp"

// From here on the one Env that there is. (numacre/inline.h has one load that is not by NUMACRE_INLINE_LOAD.)
#define ProductionEnv                 simulation::SimulationEnv
#define __atomic_load_n(place, order) ::numacre::simulation::load_plainly(place)
#include "client/src/pool.hpp"
#undef __atomic_load_n

namespace numacre::simulation {

using namespace engine;

using Env = SimulationEnv;
using Node = NodeView<Env>;
using Pool = PoolView<Env>;

// The kernel's side of the client, for the running fiber.
void set_os_numa_node(std::uint32_t numa_node);
// Before a run: memory and handles of the run before are forgotten.
void forget_clients();

}  // namespace numacre::simulation
