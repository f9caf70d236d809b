// Growing, shrinking and draining a pool's numa node by whole units, one at a time, so that dead clients are looked
// after in between. All but finish_drains() block, and run on the caller's thread: never on the event loop or the
// pool's worker.
#pragma once

#include <functional>
#include <optional>

#include "base/failure.hpp"
#include "engine.hpp"
#include "pool/managed_pool.hpp"
#include "pool/pool_status.hpp"

namespace numacre::daemon {

// Reaches online_bytes, rounded up to whole units. A growth that fails or is cancelled goes back to the size before it,
// but for units that clients use already; a shrink stays as near as it could get, and what it drained is open again.
// The last step and the failure say what is online then, and who is in the way or what is short. progress: see
// PoolManager::resize.
Answer<void> resize_numa_node(ManagedPool &pool, NumaNode numa_node, std::uint64_t online_bytes, bool dry_run,
                              const std::function<bool(const ResizeStep &)> &progress);

// Resizes as above if the numa node still has `from_bytes` online and nobody is resizing the pool. Nothing: somebody
// is, or has, or what would go is reserved; it was not touched.
std::optional<Answer<void>> resize_if_idle(ManagedPool &pool, NumaNode numa_node, std::uint64_t from_bytes,
                                           std::uint64_t to_bytes,
                                           const std::function<bool(const ResizeStep &)> &progress);

// No new allocations in the unit that the chunk is part of; offline as soon as it is empty. undo: let them in again.
Answer<DrainStatus> drain_chunk(ManagedPool &pool, NumaNode numa_node, std::uint64_t chunk, bool undo);

// The pool's worker's thread only: takes drained units offline that have become empty. True: some are still waited for,
// and clients have been asked for what they cache.
bool finish_drains(ManagedPool &pool);

}  // namespace numacre::daemon
