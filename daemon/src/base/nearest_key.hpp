// The key that was probably meant, for the message about one that does not exist. Pure, and thread-safe.
#pragma once

#include <span>
#include <string_view>

namespace numacre::daemon {

// The key that is fewest letters away from the unknown one, of several the first. Empty: none is within two letters
// that are put in, left out, or others.
std::string_view nearest_key(std::string_view unknown, std::span<const std::string_view> keys);

}  // namespace numacre::daemon
