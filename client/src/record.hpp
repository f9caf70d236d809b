// The recorder: NUMACRE_TRACE=FILE in the environment writes each allocation of this process to a trace, which
// `numacre bench replay` reads (client/cli/README.md has the format).
//
// It costs nothing when it is off. While it is on, no lane ever becomes the current one (threads.cpp): every call then
// takes the way of a thread that the pool does not know yet, and the recorder sits there and nowhere else. The hot path
// has not one instruction for it.
#pragma once

#include <atomic>
#include <cstddef>

struct numacre_pool;

namespace numacre::client {

// relaxed: settled when the process opens its first pool, before anybody has a handle to call with.
extern std::atomic<bool> is_recording;
inline bool recording() {
    return is_recording.load(std::memory_order_relaxed);
}

// Looks at NUMACRE_TRACE the first time it is called in a process. 0, or -errno with the error remembered: a trace that
// was asked for and cannot be written is said at once. Ignored where the process has more rights than its user.
int start_recording();

// The block has come into this process's hands: allocated, or taken.
[[gnu::cold]] void record_allocation(numacre_pool *pool, const void *block, std::size_t size_bytes);
// The block is about to leave them. Before it does: another thread may have the same address the moment after. No
// matter if the address is no block's.
[[gnu::cold]] void record_free(numacre_pool *pool, const void *block);
// All that the handle still has is about to be given back.
[[gnu::cold]] void record_detach(numacre_pool *pool);
// A forked child begins a trace of its own, when it opens a pool.
void forget_recording_in_child();

}  // namespace numacre::client
