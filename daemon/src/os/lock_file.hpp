// Locks between daemons: flock on files that no other user can open. A lock on a file or directory that others can read
// could be taken, and kept, by any user.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/failure.hpp"
#include "os/fd.hpp"

namespace numacre::daemon {

// Opens the file, or makes it with mode 0600. Refuses, with the file's name and the remedy: a link, anything but a
// regular file, a file of another user, and a file that others may open. Does not block.
Answer<Fd> open_lock_file(const std::string &path);

// Takes the lock, which belongs to the descriptor and ends with it. Blocks for `patience` at most. False: another
// process has kept the lock for all that time.
bool take_lock(const Fd &file, std::chrono::milliseconds patience);

// True if the path still names the opened file. A lock on a file that was removed excludes no one.
bool is_at(const Fd &file, const std::string &path);

// The process id that a holder wrote into its lock file.
void write_holder(const Fd &file);
std::optional<int> read_holder(const Fd &file);

}  // namespace numacre::daemon
