// The name of a socket in the file system: removed when its daemon ends, in any way that runs destructors.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

namespace numacre::daemon {

class SocketFile {
public:
    // The socket must exist and be ours.
    explicit SocketFile(std::string path) : path_(std::move(path)), is_there_(::lstat(path_.c_str(), &made_) == 0) {}
    SocketFile(SocketFile &&other) noexcept
        : path_(std::move(other.path_)), made_(other.made_), is_there_(std::exchange(other.is_there_, false)) {}
    SocketFile &operator=(SocketFile &&) = delete;
    SocketFile(const SocketFile &) = delete;
    SocketFile &operator=(const SocketFile &) = delete;
    ~SocketFile() {
        // If the directory was removed and made again meanwhile, the file is another daemon's: to remove it would make
        // that daemon unreachable.
        struct stat now{};
        if (is_there_ && ::lstat(path_.c_str(), &now) == 0 && now.st_dev == made_.st_dev && now.st_ino == made_.st_ino)
            ::unlink(path_.c_str());
    }

private:
    std::string path_;
    struct stat made_{};
    bool is_there_;
};

}  // namespace numacre::daemon
