// A process's handle on the pool `default` of the daemon in $NUMACRE_RUNTIME_DIR.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "adaptor.hpp"
#include "numacre/numacre.h"

namespace numacre::bench {

inline void must(const char *call, int result) {
    if (result != 0) [[unlikely]]
        throw std::runtime_error(std::string(call) + ": " + numacre_last_error());
}

class Pool {
public:
    Pool() {
        if (numacre_attach(nullptr, nullptr, &pool_) != 0) throw Unavailable(numacre_last_error());
    }
    ~Pool() { numacre_detach(pool_); }
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;
    numacre_pool *get() const { return pool_; }

private:
    numacre_pool *pool_ = nullptr;
};

// Throws Unavailable if the caller has not chosen a daemon: a benchmark does not fill the machine's own pool.
inline void require_daemon() {
    if (std::getenv("NUMACRE_RUNTIME_DIR") == nullptr)
        throw Unavailable("NUMACRE_RUNTIME_DIR names no daemon (tests/support/with_daemon.py)");
}

}  // namespace numacre::bench
