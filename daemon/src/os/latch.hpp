// Shut until somebody opens it, for good; any number of threads may wait for that. Thread-safe.
#pragma once

#include <chrono>
#include <memory>

namespace numacre::daemon {

class Latch {
public:
    Latch();
    ~Latch();
    Latch(const Latch &) = delete;
    Latch &operator=(const Latch &) = delete;

    // May be the last that is done with it: who waits may end it the moment after.
    void open();
    void wait();
    // False: it is still shut after so long.
    bool wait_for(std::chrono::milliseconds patience);

private:
    struct Door;  // latch.cpp alone knows what it is; the simulator's fibers have their own
    std::unique_ptr<Door> door_;
};

}  // namespace numacre::daemon
