#include "pool/registry.hpp"

#include <utility>

namespace numacre::daemon {

Answer<std::shared_ptr<ManagedPool>> Registry::find(const std::string &name) const {
    const std::lock_guard lock(mutex_);
    const auto found = pools_.find(name);
    if (found != pools_.end() && found->second) return found->second;
    std::string there;
    for (const auto &[known, pool] : pools_)
        if (pool) there += (there.empty() ? "" : ", ") + known;
    return Unexpected{Failure{Errc::no_such_pool, "no pool is named \"" + name + "\": " +
                                                      (there.empty() ? "there is none yet, `numacre create` makes one"
                                                                     : "there are " + there)}};
}

std::vector<std::shared_ptr<ManagedPool>> Registry::all() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<ManagedPool>> pools;
    for (const auto &entry : pools_)
        if (entry.second) pools.push_back(entry.second);
    return pools;
}

std::vector<std::string> Registry::names() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    for (const auto &[name, pool] : pools_)
        if (pool) names.push_back(name);
    return names;
}

bool Registry::claim_name(const std::string &name) {
    const std::lock_guard lock(mutex_);
    return pools_.emplace(name, nullptr).second;
}

void Registry::release_name(const std::string &name) {
    remove(name);
}

void Registry::add(std::shared_ptr<ManagedPool> pool) {
    const std::lock_guard lock(mutex_);
    pools_[pool->name()] = std::move(pool);
}

void Registry::remove(const std::string &name) {
    std::shared_ptr<ManagedPool> last;  // destroyed after the lock is released: a pool's end gives memory back
    const std::lock_guard lock(mutex_);
    const auto found = pools_.find(name);
    if (found == pools_.end()) return;
    last = std::move(found->second);
    pools_.erase(found);
}

void Registry::count(std::uint64_t DaemonTotals::*total) {
    const std::lock_guard lock(mutex_);
    ++(totals_.*total);
}

DaemonTotals Registry::totals() const {
    const std::lock_guard lock(mutex_);
    return totals_;
}

}  // namespace numacre::daemon
