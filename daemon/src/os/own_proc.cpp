#include "os/own_proc.hpp"

#include <sched.h>
#include <sys/mount.h>

#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace numacre::daemon {

namespace {

// The mount options of /proc that limit what a process sees there.
std::string visibility_of_proc() {
    std::ifstream mounts("/proc/self/mounts");
    std::string line, options;
    while (std::getline(mounts, line)) {
        std::istringstream words(line);
        std::string device, point, type, these;
        if (words >> device >> point >> type >> these && point == "/proc") options = these;
    }
    std::string kept, option;
    for (std::istringstream all(options); std::getline(all, option, ',');)
        for (const std::string_view wanted : {"hidepid=", "gid=", "subset="})
            if (option.starts_with(wanted)) kept += (kept.empty() ? "" : ",") + option;
    return kept;
}

}  // namespace

void take_own_proc() {
    const std::string visibility = visibility_of_proc();
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) return;
    (void)::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, visibility.c_str());
}

}  // namespace numacre::daemon
