// What the command line tool says when it refuses an argument.
#pragma once

#include <functional>
#include <string>

#include "bytes.hpp"

namespace numacre::cli {

inline std::string refusal_of(const std::function<void()> &call) {
    try {
        call();
    } catch (const ArgumentError &error) {
        return error.what();
    }
    return "(not refused)";
}

}  // namespace numacre::cli
