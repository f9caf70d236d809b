// The bulk calls past their common path: the remaining blocks of numacre_alloc_bulk and numacre_free_bulk.
#pragma once

#include <cstddef>

#include "pool.hpp"

namespace numacre::client {

// numacre_alloc_bulk, whose first `done` blocks are in `blocks`. The call allocates all blocks or none: after an error
// the first ones are free again.
[[gnu::noinline]] int slow_allocate_rest(numacre_pool *pool, std::size_t size_bytes, void **blocks, unsigned count,
                                         unsigned done);
// numacre_free_bulk, whose first `done` blocks are free. Frees all others; returns the first error.
[[gnu::noinline]] int slow_free_rest(numacre_pool *pool, void *const *blocks, unsigned count, unsigned done);

}  // namespace numacre::client
