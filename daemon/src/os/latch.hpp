// A latch: shut until one thread opens it, for good; any number of threads may wait for that. Thread-safe.
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

    // May be the last call on the latch: a waiting thread may destroy the latch right after.
    void open();
    void wait();
    // Waits at most `patience`. False: the latch is still shut.
    bool wait_for(std::chrono::milliseconds patience);

private:
    struct Door;  // only latch.cpp knows its type; the simulator's fibers have their own
    std::unique_ptr<Door> door_;
};

}  // namespace numacre::daemon
