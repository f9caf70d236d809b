// What a look at a pool finds, for who cannot wait for ever: a client can make the kernel wait at any access to its
// pool's memory, and whoever asks about all pools would wait for that one. Thread-safe.
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
    // `look` runs on the worker, which must have ended before this does.
    Look(Worker &worker, std::function<Found()> look) : worker_(worker), look_(std::move(look)) {}
    Look(const Look &) = delete;
    Look &operator=(const Look &) = delete;

    struct Result {
        std::shared_ptr<const Found> found;  // null: nothing has ever been found, or not in time
        // Since it was found. 0: by a look that was begun after the call.
        std::chrono::milliseconds stale_for{0};
    };
    // All who call while a look is waiting to begin share it. A look that takes longer than `patience` answers the next
    // call; this one gets what the last found. What `look` throws.
    Result take(std::chrono::milliseconds patience) {
        const std::shared_ptr<Turn> turn = join();
        // A worker that has been at one job for so long is not waited for again by each caller.
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
            // A caller that comes from now on may know of changes that this look misses: it gets the next one.
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
