// Makes the allocator's names (shm/, numacre::engine) names of this folder too, so that its code uses them without a
// prefix.
#pragma once

namespace numacre::engine {}

namespace numacre::daemon {
using namespace engine;
}
