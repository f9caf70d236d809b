// A stranger: it speaks to the attach socket without the library.
#pragma once

#include "run.hpp"

namespace numacre::simulation {

// The stranger connects, says or asks something, and closes the connection. By a fiber of its process.
void speak_to_the_daemon(Run &run);

}  // namespace numacre::simulation
