// Gives files that bind() makes this mode, for the life of the object. The umask belongs to the process: no other
// thread should create files then.
#pragma once

#include <sys/stat.h>

namespace numacre::daemon {

class UmaskFor {
public:
    explicit UmaskFor(mode_t mode) : before_(::umask(~mode & (S_IRWXU | S_IRWXG | S_IRWXO))) {}
    UmaskFor(const UmaskFor &) = delete;
    UmaskFor &operator=(const UmaskFor &) = delete;
    ~UmaskFor() { ::umask(before_); }

private:
    mode_t before_;
};

}  // namespace numacre::daemon
