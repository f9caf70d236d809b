// What every part of the daemon answers: a value, or a failure with a sentence.
#pragma once

#include <string>

#include "numacre/error.hpp"
#include "numacre/result.hpp"

namespace numacre::daemon {

// message names the value that was wrong and what to do about it.
struct Failure {
    Errc code = Errc::ok;
    std::string message;
};

template <class T>
using Answer = Result<T, Failure>;

}  // namespace numacre::daemon
