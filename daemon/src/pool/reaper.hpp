// Takes back the blocks of departed clients. Belongs to the event loop's thread; the pools' workers do the work itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "base/user_lines.hpp"
#include "os/event_loop.hpp"
#include "pool/managed_pool.hpp"
#include "pool/registry.hpp"

namespace numacre::daemon {

class Reaper {
public:
    Reaper(EventLoop &loop, Registry &registry);

    // Recovers a client that is gone or has let go of the memory. Recovery runs again and again while a live client is
    // in the middle of an operation on an overlapping block. Then the slot is free and on_done is called. Call once for
    // each client. Where devices may still write to some of the client's blocks (pins.hpp), on_kept is called first,
    // when all other blocks have come back.
    void reap(std::shared_ptr<ManagedPool> pool, const Client &client, Departure departure,
              std::function<void()> on_done, std::function<void()> on_kept = {});

    // Completes the operations that an earlier daemon was in the middle of in an adopted pool. Tries again and again
    // while a live client is in the way.
    void finish_predecessor(std::shared_ptr<ManagedPool> pool);

    // The pool's treatment of dead clients' blocks has changed: some that are in quarantine may be due. Any thread.
    void look_at_seized(const std::shared_ptr<ManagedPool> &pool);

    // Reaps the channels of the pool that nobody has open any more. After a client has closed one, or has gone; or one
    // has been removed. Any thread.
    void end_channels(const std::shared_ptr<ManagedPool> &pool);

    // Called on the loop after each walk for departed clients of a pool (instance id), also where it has to come again.
    void after_walks(std::function<void(std::uint64_t)> told) { after_walks_ = std::move(told); }

    // Looks after the pool's drained units for as long as there are any. Any thread.
    void watch_drains(const std::shared_ptr<ManagedPool> &pool);

private:
    struct Case;
    struct Step;
    void step(std::shared_ptr<Case> job);
    void work_on(std::uint64_t instance_id);
    static std::vector<Step> walk_for(std::span<const std::shared_ptr<Case>> jobs);
    void has_stepped(const std::shared_ptr<Case> &job, const Step &step);
    void keep(const std::shared_ptr<Case> &job, const Reclaimed &kept);
    void look_at_kept(const std::shared_ptr<Case> &job);
    void try_finish(std::shared_ptr<ManagedPool> pool, std::chrono::milliseconds retry_after);
    void finish(const std::shared_ptr<Case> &job);
    void has_gone(const Case &job, double seconds);
    void check_drains(const std::shared_ptr<ManagedPool> &pool);
    void watch_seized(const std::shared_ptr<ManagedPool> &pool);
    void release_seized(std::uint64_t instance_id, const std::weak_ptr<ManagedPool> &pool);

    static constexpr std::chrono::milliseconds kFirstRetry{5};
    static constexpr std::chrono::milliseconds kLastRetry{2000};
    static constexpr std::chrono::milliseconds kDrainPeriod{500};
    static constexpr std::chrono::milliseconds kKeptPeriod{500};
    static constexpr std::chrono::milliseconds kLastWalk{32'000};

    EventLoop &loop_;
    Registry &registry_;
    std::function<void(std::uint64_t)> after_walks_;
    std::set<std::uint64_t> draining_;  // pools (instance ids) whose next check_drains() is on its way
    // By the pool's instance id: the cases that wait for the pool's job that is on its way. One job at a time serves
    // all clients that have departed meanwhile: neither many clients of a pool nor its size make other pools wait for
    // longer than one walk.
    std::map<std::uint64_t, std::vector<std::shared_ptr<Case>>> waiting_;
    // Pools (instance ids) that have seized blocks: release_seized() is under way, or waits.
    struct Releasing {
        EventLoop::WaitId wait = 0;  // 0: it is under way
        bool again = false;          // the time that it finds may be too late
    };
    std::map<std::uint64_t, Releasing> releasing_;
    UserLines departure_lines_{std::chrono::steady_clock::now(), UserLines::kClientsAtOnce};
};

}  // namespace numacre::daemon
