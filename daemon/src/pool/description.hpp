// The description of a pool in use. Attributes that `numacre set` changes are replaced as a whole: a reader that holds
// one version sees all attributes of one change, or none. Thread-safe; the lock is held for a copy of a pointer only,
// so that the event loop may read, too.
#pragma once

#include <memory>
#include <string>

#include "base/thread_safety.hpp"
#include "spec/access.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

class Description {
public:
    struct Version {
        PoolSpec spec;
        std::string owner, group;  // names of the owner and group in spec.access, or their numbers
    };

    // Looks names up: not on the event loop.
    explicit Description(const PoolSpec &spec) : name_(spec.name), now_(version_of(spec)) {}
    Description(const Description &) = delete;
    Description &operator=(const Description &) = delete;

    // Never changes.
    const std::string &name() const { return name_; }
    std::shared_ptr<const Version> now() const {
        const MutexLock lock(mutex_);
        return now_;
    }
    void set(std::shared_ptr<const Version> next) {
        const MutexLock lock(mutex_);
        now_.swap(next);
    }
    // Looks names up, which may take long: not on the event loop, nor with a lock that others wait for.
    static std::shared_ptr<const Version> version_of(const PoolSpec &spec) {
        return std::make_shared<const Version>(
            Version{spec, user_name(spec.access.owner), group_name(spec.access.group)});
    }

private:
    const std::string name_;
    mutable Mutex mutex_;
    std::shared_ptr<const Version> now_ NUMACRE_GUARDED_BY(mutex_);
};

}  // namespace numacre::daemon
