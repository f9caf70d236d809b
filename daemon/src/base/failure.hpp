// The answer of every part of the daemon: a value, or a failure with a sentence.
#pragma once

#include <string>
#include <utility>

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

inline Unexpected<Failure> bad_argument(std::string message) {
    return Unexpected{Failure{Errc::bad_argument, std::move(message)}};
}

}  // namespace numacre::daemon
