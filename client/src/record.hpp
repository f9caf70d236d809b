// The recorder: NUMACRE_TRACE=FILE in the environment writes each allocation of this process to a trace, which
// `numacre bench replay` reads (client/cli/README.md has the format).
//
// The recorder costs nothing when it is off. While it is on, no lane ever becomes the current one (threads.cpp). So
// every call takes the path of a thread that the pool does not know yet, and only that path calls the recorder. The hot
// path has no instruction for it.
#pragma once

#include <atomic>
#include <cstddef>

struct numacre_pool;

namespace numacre::client {

// relaxed: set when the process opens its first pool, before any thread has a handle to call with.
extern std::atomic<bool> is_recording;
inline bool recording() {
    return is_recording.load(std::memory_order_relaxed);
}

// Reads NUMACRE_TRACE at its first call in a process. Returns 0, or -errno with the error remembered: a trace that
// cannot be written fails at once. The variable is ignored in a process that has more rights than its user.
int start_recording();

// Records that this process has got the block: allocated or taken it.
[[gnu::cold]] void record_allocation(numacre_pool *pool, const void *block, std::size_t size_bytes);
// Records that this process is about to give up the block. Called before the free: another thread may get the same
// address the moment after. The address need not be that of a block.
[[gnu::cold]] void record_free(numacre_pool *pool, const void *block);
// Records that all blocks of the handle are about to be given back.
[[gnu::cold]] void record_detach(numacre_pool *pool);
// A forked child begins a trace of its own, when it opens a pool.
void forget_recording_in_child();

}  // namespace numacre::client
