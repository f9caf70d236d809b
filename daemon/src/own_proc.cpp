#include "own_proc.hpp"

#include <sched.h>
#include <sys/mount.h>

#include <fstream>
#include <sstream>
#include <string>

namespace numacre::daemon {

namespace {

// The options of the last file system that is mounted on /proc.
std::string options_of_proc() {
    std::ifstream mounts("/proc/self/mounts");
    std::string line, options;
    while (std::getline(mounts, line)) {
        std::istringstream words(line);
        std::string device, point, type, these;
        if (words >> device >> point >> type >> these && point == "/proc") options = these;
    }
    return options;
}

}  // namespace

bool take_own_proc() {
    if (options_of_proc().find("hidepid=") != std::string::npos) return true;
    return ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0 &&
           ::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) == 0;
}

}  // namespace numacre::daemon
