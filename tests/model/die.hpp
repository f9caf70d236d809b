// For what the explorer cannot go on from: a mistake in a model, or a limit of the explorer itself.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace numacre::model {

[[noreturn]] inline void die(const std::string &message) {
    std::fprintf(stderr, "model explorer: %s\n", message.c_str());
    std::abort();
}

inline std::string hex(std::uint64_t value) {
    char text[24];
    std::snprintf(text, sizeof text, "%#" PRIx64, value);
    return text;
}

}  // namespace numacre::model
