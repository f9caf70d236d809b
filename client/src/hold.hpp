// Blocks that threads hold to read them, whoever owns them (shm/holds.hpp).
#pragma once

#include "pool.hpp"

namespace numacre::client {

// Drops all that the calling thread, or a thread that is gone, holds: before its slot is given back.
void drop_all(numacre_pool *pool, const Lane &lane);

}  // namespace numacre::client
