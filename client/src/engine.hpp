// The allocator's words (shm/, numacre::engine) are the words of this folder too: its code names them without a prefix.
#pragma once

namespace numacre::engine {}

namespace numacre::client {
using namespace engine;
}
