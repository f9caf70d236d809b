// Cached blocks of threads that do not use their caches.
#pragma once

#include <cstdint>

#include "lane.hpp"
#include "numacre/numacre.h"

namespace numacre::client {

// Lets others take back what the threads of this process cache and do not use: registers the process for barriers. Not
// if the kernel has no such barriers or a filter forbids them, nor with NUMACRE_NOBARRIER=1 in the environment. Returns
// 0, or -errno with the error remembered.
int share_caches(numacre_pool *pool);

// Takes back the cached blocks of threads that are outside of calls, of all processes. The caller has asked all threads
// for their caches (ask_others_to_give_back) since before_ns (monotonic), and would fail or sleep otherwise. Enters the
// kernel: at most once in 10 ms for a pool all CPUs pass a barrier; other calls of that time use its result. True:
// blocks may have come back, so that another look is worth while. Takes as long as a walk over the pool's metadata.
[[gnu::cold]] bool take_back_idle_caches(numacre_pool *pool, Lane &lane, std::uint64_t before_ns);

}  // namespace numacre::client
