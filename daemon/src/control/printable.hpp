// Makes foreign text (process names, paths, arguments) safe for proto strings, metric labels and messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace numacre::daemon {

// Returns valid UTF-8 without control characters and changes of direction, at most bytes_max long (a longer text is cut
// and ends in "..."). Each byte that is not allowed becomes '?'. A process chooses its own name: a raw name could break
// a scrape, a proto parse or the reader's terminal.
std::string printable(std::string_view text, std::size_t bytes_max = 4096);

// printable() in double quotes, short enough for a message.
std::string quoted(std::string_view text);

}  // namespace numacre::daemon
