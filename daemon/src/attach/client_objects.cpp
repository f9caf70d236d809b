#include "attach/client_objects.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/bytes.hpp"
#include "os/log.hpp"
#include "pool/managed_pool.hpp"
#include "spec/pool_spec.hpp"

namespace numacre::daemon {

Answer<void> check_same_objects(const PoolSpec &there, const ObjectsWish &wish) {
    const std::uint64_t stride = object_stride(wish.object_bytes, wish.colours_objects);
    if (there.has_objects() && there.object_bytes == wish.object_bytes && there.object_count == wish.object_count &&
        there.frame_bytes == stride)
        return {};
    return Unexpected{
        Failure{Errc::already_exists,
                "there is a pool \"" + there.name + "\" " +
                    (there.has_objects()
                         ? "with " + std::to_string(there.object_count) + " objects of " +
                               format_bytes(there.object_bytes) + ", " + format_bytes(there.frame_bytes) + " apart"
                         : std::string("of blocks")) +
                    ", and " + std::to_string(wish.object_count) + " of " + format_bytes(wish.object_bytes) +
                    " are wanted: ask for the same, or use another name"}};
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

void ClientObjects::make(const std::shared_ptr<ManagedPool> &parent, const ObjectsWish &wish, bool is_limited,
                         const std::function<void(const Answer<void> &)> &done) {
    const bool is_posted = post([this, parent = parent->description(), wish, is_limited, done] {
        done(make_now(parent->spec, wish, is_limited));
    });
    if (!is_posted)
        done(Unexpected{Failure{Errc::too_many_clients,
                                "the daemon can have no thread to make an object pool: raise the "
                                "limit on threads (TasksMax=, pids.max, ulimit -u)"}});
}

Answer<void> ClientObjects::make_now(const PoolSpec &parent, const ObjectsWish &wish, bool is_limited) {
    // Another client may have been quicker.
    if (const auto there = registry_.find(wish.pool_name()))
        return check_same_objects((*there)->description()->spec, wish);
    PoolSpec spec = objects_of_client(parent, wish.name, wish.object_bytes, wish.object_count, wish.colours_objects);
    if (auto sizes = set_object_sizes(spec, [](std::string_view) { return false; }); !sizes) return sizes;
    if (is_limited) {
        const std::uint64_t taken = bytes_made_within(parent.name);
        const std::uint64_t left = parent.object_memory_bytes - std::min(taken, parent.object_memory_bytes);
        // Of one numa node: a machine of several has as much on each.
        if (spec.capacity_bytes > left)
            return Unexpected{
                Failure{Errc::over_quota,
                        "clients of pool \"" + parent.name + "\" may make object pools of " +
                            format_bytes(parent.object_memory_bytes) + " a numa node, " + format_bytes(taken) +
                            " of them are taken, and this one needs " + format_bytes(spec.capacity_bytes) +
                            ": ask for less, or let the pool's owner make it, or an operator raise object-memory"}};
    }
    return pools_.create_pool(spec);
}

std::uint64_t ClientObjects::bytes_made_within(const std::string &parent) const {
    std::uint64_t bytes = 0;
    for (const auto &pool : registry_.all()) {
        const auto description = pool->description();
        if (description->spec.made_within == parent) bytes += description->spec.capacity_bytes;
    }
    return bytes;
}

void ClientObjects::watch() {
    if (std::exchange(is_watching_, true)) return;
    loop_.after(kPeriod, [this] { look(); });
}

// A pool is deleted at the second look that finds nobody: a client that has it made attaches meanwhile.
void ClientObjects::look() {
    std::set<std::uint64_t> unused;
    is_watching_ = false;
    for (const auto &pool : registry_.all()) {
        if (pool->description()->spec.made_within.empty()) continue;
        is_watching_ = true;
        if (!pool->client_table().empty()) continue;
        unused.insert(pool->instance_id());
        if (!unused_.contains(pool->instance_id())) continue;
        (void)post([this, name = pool->name()] {
            // Refused where a client has come by now.
            if (const auto deleted = pools_.delete_pool(name, Deletion::of_unused); !deleted)
                log::debug("an object pool stays", {{"pool", name}, {"reason", deleted.error().message}});
        });
    }
    unused_ = std::move(unused);
    if (std::exchange(is_watching_, false)) watch();
}

}  // namespace numacre::daemon
