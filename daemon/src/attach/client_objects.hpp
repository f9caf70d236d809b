// Object pools that clients make (numacre_objects_open): each is made once, has the rights of the pool that lends it
// its name, and goes with its last client. One thread makes and deletes all of them, one after the other.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "attach/attach_message.hpp"
#include "base/failure.hpp"
#include "os/event_loop.hpp"
#include "os/worker.hpp"
#include "pool/pool_manager.hpp"
#include "pool/registry.hpp"

namespace numacre::daemon {

// A client's request for an object pool, until it is served. Thread-safe.
struct ObjectsOrder {
    ObjectsWish wish;
    std::uint32_t uid = 0;
    std::uint64_t parent_id = 0;            // the parent's instance id, when access to it was allowed
    std::atomic<bool> is_cancelled{false};  // the client has gone
};

// Whether a client of this user is free of the limits for clients' object pools: it could make pools without asking, or
// owns the parent.
bool may_make_any(std::uint32_t uid, const PoolSpec &parent);

class ClientObjects {
public:
    // All outlive this object.
    ClientObjects(EventLoop &loop, Registry &registry, PoolManager &pools)
        : loop_(loop), registry_(registry), pools_(pools) {}
    ClientObjects(const ClientObjects &) = delete;
    ClientObjects &operator=(const ClientObjects &) = delete;

    // Makes the object pool, if there is none of that name: within the parent's object-memory, and not too many. done()
    // is called on the thread that makes pools, or at once; behind it, watch() has to be called. The loop's thread.
    void make(const std::shared_ptr<ObjectsOrder> &order, const std::function<void(const Answer<void> &)> &done);

    // Deletes the object pools that have had no client for a while, for as long as there are any. The loop's thread.
    void watch();

    // Ends the thread after the job in hand. make() and watch() do nothing afterwards.
    void finish() {
        ends_.store(true, std::memory_order_relaxed);  // relaxed: seen by the next job at the latest
        if (worker_) worker_->finish();
    }

private:
    static constexpr std::chrono::milliseconds kPeriod{5'000};
    // Each pool takes threads and descriptors of the daemon: operators' pools are to have some, too.
    static constexpr std::size_t kPoolsOfParent = 64, kPoolsOfAll = 256;
    static constexpr unsigned kPendingMax = 64;

    // False: there is no thread to be had.
    bool post(std::function<void()> job);
    void look();
    void remove(std::uint64_t id, const std::string &name);
    Answer<void> make_now(const ObjectsOrder &order);
    Answer<void> check_limits(const PoolSpec &parent, const PoolSpec &spec, std::uint32_t uid) const;

    EventLoop &loop_;
    Registry &registry_;
    PoolManager &pools_;
    std::atomic<bool> ends_{false};
    std::atomic<unsigned> pending_{0};
    // The loop's thread: instance ids of pools that had no client at the last look, and that are being deleted.
    std::set<std::uint64_t> unused_, going_;
    bool is_watching_ = false;        // the loop's thread
    std::unique_ptr<Worker> worker_;  // from the first pool on
};

// Whether an object pool that exists is the one that is wished for within `parent`; a failure says why not.
Answer<void> check_same_objects(const PoolSpec &there, const ObjectsWish &wish, const PoolSpec &parent);

}  // namespace numacre::daemon
