// Reasons of refused calls. Each function counts the reason, if the pool has a counter for it, and remembers the
// sentence for numacre_last_error().
#pragma once

#include <cstddef>
#include <cstdint>

#include "numacre/error.hpp"
#include "pool.hpp"

namespace numacre::client {

// --- arguments -------------------------------------------------------------------------------------------------------

// function: the name of the C function.
[[gnu::cold]] int no_pool(const char *function);
[[gnu::cold]] int no_result(const char *function);
[[gnu::cold]] int bad_size(numacre_pool *pool, Actor actor, std::uint32_t numa_node, std::size_t size_bytes);
// The thread's cpuset does not allow this numa node.
[[gnu::cold]] int not_allowed(const numacre_pool *pool, std::uint32_t numa_node);
// No block of the caller's begins at this address. code: the tree's answer, which tells some cases apart.
[[gnu::cold]] int not_a_block(numacre_pool *pool, const void *address, Errc code);
// Like not_a_block(), for functions that do not tell what is wrong with the address. pool: may be null, or a handle
// from before a fork().
[[gnu::cold]] int not_owned(const numacre_pool *pool, const void *address, const char *function);

// --- the state of the pool and of the thread -------------------------------------------------------------------------

[[gnu::cold]] int damaged_pool();
// A signal handler has called, and the interrupted call of its thread is changing the pool (is_inside()).
[[gnu::cold, gnu::noinline]] int thread_is_inside(const numacre_pool *pool);
// No block, or run, of so many frames was found. wanted: the numa node that was tried first. answer: the answer of the
// limits.
[[gnu::cold]] int allocation_failed(numacre_pool *pool, Lane &lane, std::uint32_t wanted, Errc code,
                                    std::uint64_t frames, std::size_t size_bytes, Admission answer);

}  // namespace numacre::client
