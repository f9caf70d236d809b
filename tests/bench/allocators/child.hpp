// The measuring process: arguments in, one line of JSON out.
#pragma once

#include <string>
#include <vector>

#include "adaptor.hpp"

namespace numacre::bench {

// First argument of a process that is to measure.
inline constexpr const char *kChildFlag = "--child";

std::vector<std::string> child_arguments(const Run &run);

// Prints {"skip": why} or the Outcome's fields. Exit status 0 in both cases.
int child_main(int argc, char **argv);

}  // namespace numacre::bench
