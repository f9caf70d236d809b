#include "attach/client_objects.hpp"

#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/bytes.hpp"
#include "memory/ledger.hpp"
#include "numacre/shm/layout.hpp"
#include "os/log.hpp"
#include "pool/managed_pool.hpp"
#include "spec/pool_spec.hpp"

namespace numacre::daemon {

namespace {

// The memory that a pool takes on a numa node: whole pages, and metadata, most of which has memory from the beginning.
// Channels, which come later if at all, do not count.
std::uint64_t bytes_taken_by(const PoolSpec &spec, const Geometry &geometry) {
    return round_up(spec.capacity_bytes, page_bytes_of(spec.backing)) +
           NodeLayout<ProductionEnv>::of(geometry, spec.max_threads + 1).region_bytes +
           PoolLayout<ProductionEnv>::of(spec.max_clients + 1, spec.max_threads + 1).channels +
           PoolLedger::bytes_for(spec, 1);
}

Unexpected<Failure> too_many(std::size_t pools, const std::string &whose) {
    return Unexpected{Failure{Errc::too_many_clients, "clients of " + whose + " have " + std::to_string(pools) +
                                                          " object pools already: detach some, or let an operator make "
                                                          "the pool (numacre create)"}};
}

}  // namespace

bool may_make_any(std::uint32_t uid, const PoolSpec &parent) {
    return uid == 0 || uid == ::geteuid() || uid == parent.access.owner;
}

Answer<void> check_same_objects(const PoolSpec &there, const ObjectsWish &wish, const PoolSpec &parent) {
    const auto refused = [&](const std::string &why) {
        return Unexpected{Failure{Errc::already_exists, "there is a pool \"" + there.name + "\" " + why}};
    };
    if (!there.has_objects()) return refused("of blocks: use another name");
    if (there.object_bytes != wish.object_bytes || there.object_count != wish.object_count ||
        there.frame_bytes != object_stride(wish.object_bytes, wish.colours_objects))
        return refused("with " + std::to_string(there.object_count) + " objects of " +
                       format_bytes(there.object_bytes) + ", " + format_bytes(there.frame_bytes) + " apart, and " +
                       std::to_string(wish.object_count) + " of " + format_bytes(wish.object_bytes) +
                       " are wanted: ask for the same, or use another name");
    // An operator's pool has the rights that the operator wants. A pool that a client has made may have clients from a
    // time when the parent let others in.
    if (!there.made_within.empty() && (there.made_within != parent.name || there.access != parent.access))
        return refused("that was made with other access rights than pool \"" + parent.name +
                       "\" has now: use another name, or have its clients end");
    return {};
}

bool ClientObjects::post(std::function<void()> job) {
    try {
        if (!worker_) worker_ = std::make_unique<Worker>("numacred-obj");
    } catch (const std::system_error &failure) {
        log::warn("no object pool of a client is made or deleted, for there is no thread to be had",
                  {{"error", failure.what()}});
        return false;
    }
    worker_->post(std::move(job));
    return true;
}

void ClientObjects::make(const std::shared_ptr<ObjectsOrder> &order,
                         const std::function<void(const Answer<void> &)> &done) {
    const auto refuse = [&](const std::string &why) { done(Unexpected{Failure{Errc::too_many_clients, why}}); };
    // relaxed: a count.
    if (pending_.load(std::memory_order_relaxed) >= kPendingMax)
        return refuse(std::to_string(kPendingMax) + " clients wait for object pools already: try again later");
    pending_.fetch_add(1, std::memory_order_relaxed);
    const bool is_posted = post([this, order, done] {
        pending_.fetch_sub(1, std::memory_order_relaxed);
        if (ends_.load(std::memory_order_relaxed) || order->is_cancelled.load(std::memory_order_relaxed)) return;
        done(make_now(*order));
    });
    if (is_posted) return;
    pending_.fetch_sub(1, std::memory_order_relaxed);
    refuse(
        "the daemon can have no thread to make an object pool: raise the limit on threads (TasksMax=, pids.max, "
        "ulimit -u)");
}

Answer<void> ClientObjects::make_now(const ObjectsOrder &order) {
    const ObjectsWish &wish = order.wish;
    // Looked up anew: the request may have waited, and the parent's rights and limits are those of now.
    const auto parent = registry_.find(wish.within);
    if (!parent) return Unexpected{parent.error()};
    if ((*parent)->instance_id() != order.parent_id)
        return Unexpected{Failure{Errc::no_such_pool, "pool \"" + wish.within + "\" has been made anew: attach again"}};
    const auto description = (*parent)->description();
    // Another client may have been quicker.
    if (const auto there = registry_.find(wish.pool_name()))
        return check_same_objects((*there)->description()->spec, wish, description->spec);
    PoolSpec spec =
        objects_of_client(description->spec, wish.name, wish.object_bytes, wish.object_count, wish.colours_objects);
    if (auto sizes = set_object_sizes(spec, [](std::string_view) { return false; }); !sizes) return sizes;
    if (auto within = check_limits(description->spec, spec, order.uid); !within) return within;
    return pools_.create_pool(spec);
}

Answer<void> ClientObjects::check_limits(const PoolSpec &parent, const PoolSpec &spec, std::uint32_t uid) const {
    const auto geometry = geometry_of(spec);
    if (!geometry) return Unexpected{geometry.error()};
    std::uint64_t taken = 0;
    std::size_t of_parent = 0, of_all = 0;
    for (const auto &pool : registry_.all()) {
        const auto other = pool->description();
        if (other->spec.made_within.empty()) continue;
        ++of_all;
        if (other->spec.made_within != parent.name) continue;
        ++of_parent;
        taken += bytes_taken_by(other->spec, pool->geometry());
    }
    if (of_parent >= kPoolsOfParent) return too_many(of_parent, "pool \"" + parent.name + "\"");
    if (of_all >= kPoolsOfAll) return too_many(of_all, "all pools");
    if (may_make_any(uid, parent)) return {};
    const std::uint64_t wanted = bytes_taken_by(spec, *geometry);
    if (wanted <= parent.object_memory_bytes - std::min(taken, parent.object_memory_bytes)) return {};
    return Unexpected{Failure{Errc::over_quota,
                              "clients of pool \"" + parent.name + "\" may make object pools of " +
                                  format_bytes(parent.object_memory_bytes) + " a numa node, " + format_bytes(taken) +
                                  " are taken, and this one needs " + format_bytes(wanted) +
                                  " with its pages and metadata: ask for less, or let the pool's owner make it, or an "
                                  "operator raise object-memory"}};
}

void ClientObjects::watch() {
    if (std::exchange(is_watching_, true)) return;
    loop_.after(kPeriod, [this] { look(); });
}

// A pool is deleted at the second look that finds nobody: a client that has it made attaches meanwhile.
void ClientObjects::look() {
    std::set<std::uint64_t> unused;
    is_watching_ = false;
    bool has_any = false;
    for (const auto &pool : registry_.all()) {
        if (pool->description()->spec.made_within.empty()) continue;
        has_any = true;
        if (pool->has_clients()) continue;
        const std::uint64_t id = pool->instance_id();
        unused.insert(id);
        if (!unused_.contains(id) || !going_.insert(id).second) continue;
        if (!post([this, id, name = pool->name()] { remove(id, name); })) going_.erase(id);
    }
    unused_ = std::move(unused);
    if (has_any) watch();
}

void ClientObjects::remove(std::uint64_t id, const std::string &name) {
    // By now the name may be that of another pool.
    const auto is_there = [&] {
        const auto pool = registry_.find(name);
        return pool && (*pool)->instance_id() == id;
    };
    if (!ends_.load(std::memory_order_relaxed) && is_there()) {
        // Refused where a client has come.
        if (const auto deleted = pools_.delete_pool(name, Deletion::of_unused); !deleted)
            log::debug("an object pool stays", {{"pool", name}, {"reason", deleted.error().message}});
    }
    loop_.post([this, id] { going_.erase(id); });
}

}  // namespace numacre::daemon
