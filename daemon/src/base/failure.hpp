// The answer of every part of the daemon: a value, or a failure with a sentence.
#pragma once

#include <string>

#include "numacre/error.hpp"
#include "numacre/result.hpp"

namespace numacre::daemon {

// message names the wrong value and the remedy.
struct Failure {
    Errc code = Errc::ok;
    std::string message;
};

template <class T>
using Answer = Result<T, Failure>;

}  // namespace numacre::daemon
