// Object pools that clients make (numacre_objects_open): each is made once, has the rights of the pool that lends it
// its name, and goes with its last client. One thread makes and deletes all of them, one after the other.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>

#include "attach/attach_message.hpp"
#include "base/failure.hpp"
#include "os/event_loop.hpp"
#include "os/worker.hpp"
#include "pool/pool_manager.hpp"
#include "pool/registry.hpp"

namespace numacre::daemon {

class ClientObjects {
public:
    // All outlive this object.
    ClientObjects(EventLoop &loop, Registry &registry, PoolManager &pools)
        : loop_(loop), registry_(registry), pools_(pools) {}
    ClientObjects(const ClientObjects &) = delete;
    ClientObjects &operator=(const ClientObjects &) = delete;

    // Makes the object pool of a client of `parent`, if there is none of that name. is_limited: not more than the
    // parent's object-memory for all such pools together. done() is called on the thread that makes pools; behind it,
    // watch() has to be called. The loop's thread.
    void make(const std::shared_ptr<ManagedPool> &parent, const ObjectsWish &wish, bool is_limited,
              const std::function<void(const Answer<void> &)> &done);

    // Deletes the object pools that have had no client for a while, for as long as there are any. The loop's thread.
    void watch();

    // Ends the thread, after the job in hand. make() and watch() do nothing afterwards.
    void finish() {
        if (worker_) worker_->finish();
    }

private:
    static constexpr std::chrono::milliseconds kPeriod{5'000};

    // False: there is no thread to be had.
    bool post(std::function<void()> job);
    void look();
    Answer<void> make_now(const PoolSpec &parent, const ObjectsWish &wish, bool is_limited);
    std::uint64_t bytes_made_within(const std::string &parent) const;

    EventLoop &loop_;
    Registry &registry_;
    PoolManager &pools_;
    std::set<std::uint64_t> unused_;  // instance ids of pools that had no client at the last look. The loop's thread
    bool is_watching_ = false;        // the loop's thread
    std::unique_ptr<Worker> worker_;  // from the first pool on
};

// Why an object pool that exists is not the one that is wished for; none: it is.
Answer<void> check_same_objects(const PoolSpec &there, const ObjectsWish &wish);

}  // namespace numacre::daemon
