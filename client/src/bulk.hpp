// The bulk calls past their common path: the remaining blocks of numacre_alloc_bulk and numacre_free_bulk.
#pragma once

#include <cstddef>

#include "numacre/numacre.h"
#include "pool.hpp"

namespace numacre::client {

// numacre_alloc_bulk, whose first `done` blocks are in `blocks`: 0, or as many as the cache turned out to have. The
// call allocates all blocks or none: after an error the first ones are free again, and no further one has been
// stored. (done is not 0 only in a program that has freed a block twice. Then the first entries of the caller's array
// are lost.)
[[gnu::noinline]] int slow_allocate_many(numacre_pool *pool, std::size_t size_bytes, void **blocks, unsigned count,
                                         unsigned done);
// numacre_alloc_ref_bulk, whose first `done` blocks and references are stored: as slow_allocate_many().
[[gnu::noinline]] int slow_allocate_published(numacre_pool *pool, std::size_t size_bytes, void **blocks,
                                              numacre_ref *refs, unsigned count, unsigned done);
// numacre_free_bulk, whose first `done` blocks are free. Frees all others; returns the first error.
[[gnu::noinline]] int slow_free_rest(numacre_pool *pool, void *const *blocks, unsigned count, unsigned done);

}  // namespace numacre::client
