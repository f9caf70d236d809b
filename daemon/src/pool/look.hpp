// A look at a pool with a time limit. A client can make the kernel wait at any access to its pool's memory, and a
// caller that asks about all pools would wait for that pool. Thread-safe.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "os/latch.hpp"
#include "os/worker.hpp"

namespace numacre::daemon {

template <class Found>
class Look {
public:
    // `look` runs on the worker. The worker must have ended before this object is destroyed.
    Look(Worker &worker, std::function<Found()> look) : worker_(worker), look_(std::move(look)) {}
    Look(const Look &) = delete;
    Look &operator=(const Look &) = delete;

    struct Result {
        std::shared_ptr<const Found> found;  // null: no look has ever found anything, or not in time
        // Age of `found`. 0: the look began after the call.
        std::chrono::milliseconds stale_for{0};
    };
    // All callers that come while a look is waiting to begin share that look. If the look takes longer than `patience`,
    // this call returns the result of the last look, and the next call gets the result of this one. Passes on an
    // exception of `look`.
    Result take(std::chrono::milliseconds patience) {
        const std::shared_ptr<Turn> turn = join();
        // If the worker has been at one job for that long already, this caller does not wait for it again.
        const auto already = worker_.busy_for();
        if (turn->is_done.wait_for(already < patience ? patience : std::chrono::milliseconds{0})) {
            if (turn->thrown) std::rethrow_exception(turn->thrown);
            return {turn->found, {}};
        }
        const std::lock_guard lock(mutex_);
        const auto since = std::chrono::steady_clock::now() - found_at_;
        return {last_, std::chrono::ceil<std::chrono::milliseconds>(since)};
    }

private:
    struct Turn {
        Latch is_done;
        std::shared_ptr<const Found> found;
        std::exception_ptr thrown;
    };
    std::shared_ptr<Turn> join() {
        const std::lock_guard lock(mutex_);
        if (!next_) {
            auto turn = std::make_shared<Turn>();
            worker_.post([this, turn] { take_turn(*turn); });
            next_ = std::move(turn);
        }
        return next_;
    }
    void take_turn(Turn &turn) {
        {
            // A caller that comes from now on may know of changes that this look misses, so it gets the next look.
            const std::lock_guard lock(mutex_);
            next_.reset();
        }
        try {
            auto found = std::make_shared<const Found>(look_());
            const std::lock_guard lock(mutex_);
            last_ = turn.found = std::move(found);
            found_at_ = std::chrono::steady_clock::now();
        } catch (...) {
            turn.thrown = std::current_exception();
        }
        turn.is_done.open();
    }

    Worker &worker_;
    const std::function<Found()> look_;
    std::mutex mutex_;
    std::shared_ptr<Turn> next_;                      // guarded by mutex_; waits for the worker
    std::shared_ptr<const Found> last_;               // guarded by mutex_
    std::chrono::steady_clock::time_point found_at_;  // guarded by mutex_
};

}  // namespace numacre::daemon
