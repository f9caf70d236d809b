// All pools of the daemon, and the counts of the whole daemon. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pool/event_hub.hpp"
#include "pool/managed_pool.hpp"
#include "pool/pool_manager.hpp"

namespace numacre::daemon {

class Registry {
public:
    // no_such_pool: the failure names the pools that exist.
    Answer<std::shared_ptr<ManagedPool>> find(const std::string &name) const;
    std::vector<std::shared_ptr<ManagedPool>> all() const;
    std::vector<std::string> names() const;

    // Holds a name while its pool is being made. False: the name is taken.
    bool claim_name(const std::string &name);
    void release_name(const std::string &name);
    // The name must have been claimed.
    void add(std::shared_ptr<ManagedPool> pool);
    void remove(const std::string &name);

    // Never 0, which says that a seat is free. An id comes again after 2^32 clients only.
    std::uint32_t next_client_id() {
        std::uint32_t id = ++last_client_id_;
        while (id == 0) id = ++last_client_id_;
        return id;
    }
    // An earlier daemon has given out ids up to this one.
    void begin_after(std::uint32_t client_id) {
        if (last_client_id_ < client_id) last_client_id_ = client_id;
    }

    EventHub &events() { return events_; }

    // Adds to one of the totals: count(&DaemonTotals::attach_ok).
    void count(std::uint64_t DaemonTotals::*total);
    DaemonTotals totals() const;

private:
    mutable std::mutex mutex_;
    std::map<std::string, std::shared_ptr<ManagedPool>> pools_;  // guarded by mutex_; null: only the name is claimed
    DaemonTotals totals_;                                        // guarded by mutex_
    std::atomic<std::uint32_t> last_client_id_{0};
    EventHub events_;
};

}  // namespace numacre::daemon
