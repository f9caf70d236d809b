// The calls that the control plane (gRPC, metrics) may make of the daemon, in the daemon's own terms: no proto type, no
// socket. Every call is thread-safe and may be made from any thread except the event loop's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/failure.hpp"
#include "engine.hpp"
#include "memory/machine_status.hpp"
#include "numacre/shm/units.hpp"
#include "pool/event.hpp"
#include "pool/pool_status.hpp"
#include "spec/pool_attributes.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

// The subject of a limit or a promise: a client, a user in a pool, or a pool.
struct Holder {
    enum class Kind : std::uint8_t { client, user, pool };
    Kind kind = Kind::client;
    std::uint32_t client_id = 0;  // client
    std::string pool;             // user, pool
    std::uint32_t uid = 0;        // user
};

// Counts kept by the daemon itself, for metrics.
struct DaemonTotals {
    std::uint64_t resize_ok = 0, resize_partial = 0, resize_failed = 0;
    std::uint64_t autosize_grown = 0, autosize_shrunk = 0, autosize_failed = 0;  // of these, by the pool's own policy
    std::uint64_t attach_ok = 0, attach_refused = 0;
    std::uint64_t reaped_killed = 0, reaped_detached = 0, reaped_lost = 0;  // by cause
    std::uint64_t log_messages_dropped = 0;
};

enum class Deletion : std::uint8_t {
    of_unused,   // refused while clients are attached
    by_force,    // the clients are ended first
    abandoning,  // by force; clients that are not connected and whose processes cannot be found are left behind
};

class PoolManager {
public:
    virtual ~PoolManager() = default;

    virtual std::vector<std::string> pool_names() = 0;
    // Scans the pool's metadata: bounded by its online size, beside running clients. If the scan takes longer than two
    // seconds, returns the result of the last scan, with its age. timed_out: there was no earlier scan.
    virtual Answer<PoolStatus> pool_status(const std::string &pool) = 0;
    virtual Answer<void> create_pool(const PoolSpec &spec) = 0;
    virtual Answer<void> delete_pool(const std::string &pool, Deletion deletion) = 0;
    // Calls `progress` after each step, from the calling thread; `progress` returns false to cancel. Blocks until done,
    // including any undoing. The last call has `done` set and says what is online in the end.
    virtual Answer<void> resize(const std::string &pool, NumaNode node, std::uint64_t online_bytes, bool dry_run,
                                const std::function<bool(const ResizeStep &)> &progress) = 0;
    virtual Answer<DrainStatus> drain_chunk(const std::string &pool, NumaNode node, std::uint64_t chunk, bool undo) = 0;
    // pool empty: clients of all pools. Figures come from scans, as in pool_status(); without a scan, only facts that
    // the daemon has about the clients themselves.
    virtual Answer<std::vector<ClientStatus>> clients(const std::string &pool) = 0;
    // The blocks in use that have been held longest, the oldest first, at most `limit`. pool empty: of all pools.
    // client_id 0: of all clients.
    virtual Answer<BlockList> blocks(const std::string &pool, std::uint32_t client_id, std::uint32_t limit) = 0;
    // The names of a pool, by name. pool empty: of all pools. Waits for nobody.
    virtual Answer<std::vector<NameStatus>> names(const std::string &pool) = 0;
    // Unbinds a name, whoever has bound it. no_such_name: there is none.
    virtual Answer<void> remove_name(const std::string &pool, const NameText &name) = 0;
    // The channels of a pool, by name. pool empty: of all pools that can be looked at. Figures are from shared memory,
    // as in pool_status(), without a scan of the pool. timed_out: the pool that was named cannot be looked at.
    virtual Answer<std::vector<ChannelStatus>> channels(const std::string &pool) = 0;
    // The channel goes as soon as nobody has it open, with the messages in it, whoever has made it. ends: nobody sends
    // any more, and receivers are told so once they have what is there. The answer: how many clients have it open.
    // no_such_pool: there is no such channel. contended, timed_out: the pool keeps other calls, or the daemon, waiting.
    virtual Answer<std::uint32_t> remove_channel(const std::string &pool, const std::string &name, bool ends) = 0;
    virtual Answer<void> evict(std::uint32_t client_id, std::chrono::milliseconds grace) = 0;
    // 0: no limit. Above soft_bytes nothing fails; crossing it is an event.
    virtual Answer<void> set_quota(const Holder &holder, std::uint64_t quota_bytes, std::uint64_t soft_bytes) = 0;
    // Promises bytes to a client or a user: others cannot take them, used or not. 0: no promise. out_of_frames: fewer
    // bytes are free.
    virtual Answer<void> reserve(const Holder &holder, std::uint64_t bytes) = 0;
    // The pool's description as it is now, with its sizes and quotas.
    virtual Answer<PoolSpec> attributes(const std::string &pool) = 0;
    // Changes attributes of a pool in use, all or none; the description after that. bad_argument: changed() has the
    // reasons. no_such_node: the policy names one that the machine does not have. too_many_clients: too many users with
    // limits. contended, timed_out: the pool keeps other calls, or the daemon, waiting.
    virtual Answer<PoolSpec> set_attributes(const std::string &pool, const AttributeChanges &changes) = 0;
    virtual Answer<OccupancyMap> map(const std::string &pool, NumaNode node, std::uint32_t cells) = 0;
    virtual MachineStatus machine() = 0;
    virtual DaemonTotals totals() = 0;

    // The handler is called from the daemon's threads and must not block. It is not called any more once the returned
    // subscription has been destroyed.
    virtual std::shared_ptr<void> subscribe(std::function<void(const Event &)> handler) = 0;
};

}  // namespace numacre::daemon
