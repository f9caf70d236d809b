// Before each source of the daemon (-include): with ProductionEnv as it is all that asserts its layout, and then the
// one Env that there is, whose every access is the scheduler's.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "../env.hpp"
#include "numacre/shm/account.hpp"
#include "numacre/shm/attach_wire.hpp"
#include "numacre/shm/audit.hpp"
#include "numacre/shm/buddy.hpp"
#include "numacre/shm/chunks.hpp"
#include "numacre/shm/counters.hpp"
#include "numacre/shm/env.hpp"
#include "numacre/shm/fit.hpp"
#include "numacre/shm/format.hpp"
#include "numacre/shm/hand_off.hpp"
#include "numacre/shm/presence.hpp"
#include "numacre/shm/recovery.hpp"
#include "numacre/shm/snapshot.hpp"
#include "numacre/shm/thread_slots.hpp"
#include "numacre/shm/validate.hpp"
#include "numacre/shm/walk.hpp"

#define ProductionEnv simulation::SimulationEnv
