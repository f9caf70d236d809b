// What the control plane (gRPC, metrics) may ask of the daemon, in the daemon's own terms: no proto type, no socket.
// Every call is thread-safe and may be made from any thread; none may be made from the event loop's thread.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine.hpp"
#include "numacre/error.hpp"
#include "numacre/result.hpp"
#include "numacre/shm/attach_wire.hpp"
#include "numacre/shm/counters.hpp"
#include "numacre/shm/fit.hpp"
#include "numacre/shm/layout.hpp"
#include "numacre/shm/policy.hpp"
#include "numacre/shm/snapshot.hpp"

namespace numacre::daemon {

// message names the value that was wrong and what to do about it.
struct Failure {
    Errc code = Errc::ok;
    std::string message;
};

template <class T>
using Answer = Result<T, Failure>;

// The one spelling of a backing: in the configuration, in logs, in metrics.
constexpr const char *backing_name(wire::Backing backing) {
    switch (backing) {
        case wire::Backing::private_memory:
            return "private";
        case wire::Backing::hugetlb:
            return "hugetlb";
        case wire::Backing::hugetlb_1g:
            return "hugetlb-1g";
        case wire::Backing::thp:
            return "thp";
        case wire::Backing::small_pages:
            return "small";
    }
    return "unknown";
}

// Best first. A pool gets the first, from the one that it asks for on, that the machine has.
inline constexpr wire::Backing kBackings[] = {wire::Backing::hugetlb_1g, wire::Backing::hugetlb, wire::Backing::thp,
                                              wire::Backing::small_pages};

constexpr bool is_hugetlb(wire::Backing backing) {
    return backing == wire::Backing::hugetlb || backing == wire::Backing::hugetlb_1g;
}

constexpr std::uint64_t page_bytes_of(wire::Backing backing) {
    switch (backing) {
        case wire::Backing::hugetlb_1g:
            return kGiganticPageBytes;
        case wire::Backing::hugetlb:
        case wire::Backing::thp:
            return kHugepageBytes;
        case wire::Backing::small_pages:
        case wire::Backing::private_memory:
            break;
    }
    return kPageBytes;
}

constexpr const char *fit_name(Fit fit) {
    return fit == Fit::compact ? "compact" : fit == Fit::best ? "best" : "nearby";
}

// What becomes of the blocks of a client that is gone.
struct Reclaim {
    enum class Kind : std::uint32_t {
        fast,        // free at once, with what is in them
        zero,        // free when the daemon has zeroed them
        quarantine,  // nobody's for a while: late writes (of a device, of a peer with a pointer) hit nobody
    };
    Kind kind = Kind::fast;
    std::chrono::seconds hold{0};  // quarantine only

    friend bool operator==(const Reclaim &, const Reclaim &) = default;
};

// When a numa node's part of a pool grows and shrinks by itself: autosize.hpp has the decision.
struct Autosize {
    bool is_on = false;
    std::uint32_t low_percent = 0;   // of what is online: if less is free, it grows
    std::uint32_t high_percent = 0;  // if more is free, it shrinks
    std::uint64_t min_bytes = 0, max_bytes = 0;
    std::uint64_t step_bytes = std::uint64_t{64} << 20;
    std::chrono::seconds after{30};  // it has to be so for so long

    friend bool operator==(const Autosize &, const Autosize &) = default;
};

// Who may attach to a pool, as the kernel would say it of a file: access.hpp has the decision.
struct PoolAccess {
    static constexpr std::uint32_t kDefaultMode = 0660;
    static constexpr std::uint32_t kWidestMode = 0666;  // there is nothing to execute

    std::uint32_t owner = ::geteuid();
    std::uint32_t group = ::getegid();
    std::uint32_t mode = kDefaultMode;
    friend bool operator==(const PoolAccess &, const PoolAccess &) = default;
};

// What all clients of a user in one pool may hold together, and what they were promised. 0: none.
struct UserLimit {
    std::uint32_t uid = 0;
    std::uint64_t quota_bytes = 0, soft_quota_bytes = 0, reserved_bytes = 0;
    friend bool operator==(const UserLimit &, const UserLimit &) = default;
};

// Whose use is limited, or to whom memory is promised.
struct Holder {
    enum class Kind : std::uint8_t { client, user, pool };
    Kind kind = Kind::client;
    std::uint32_t client_id = 0;  // client
    std::string pool;             // user, pool
    std::uint32_t uid = 0;        // user
};

struct PoolSpec {
    std::string name = "default";
    std::uint64_t capacity_bytes = std::uint64_t{1} << 30;  // per numa node
    std::uint64_t online_bytes = std::uint64_t{256} << 20;  // per numa node, to begin with
    // Instead, where they are not alike: by numa node, the last one for all further ones. Only for making the pool.
    std::vector<std::uint64_t> node_online_bytes;
    std::uint64_t frame_bytes = 4096;
    std::uint64_t largest_block_bytes = std::uint64_t{4} << 20;
    std::uint32_t max_clients = 256;                 // process slots
    std::uint32_t max_threads = 4096;                // thread slots of all clients together
    std::uint32_t max_threads_per_client = 0;        // of them; 0: all
    wire::Backing backing = wire::Backing::hugetlb;  // the best to try; falls back to the next of kBackings
    Reclaim reclaim;
    std::uint64_t low_watermark_bytes = 0;  // per numa node: less free than this is an event; 0: none
    // Of all clients together; 0: none. More than the soft one is an event.
    std::uint64_t quota_bytes = 0, soft_quota_bytes = 0;
    std::vector<UserLimit> users;  // to begin with
    Fit fit = Fit::nearby;         // how blocks are chosen that do not say it themselves
    PoolAccess access;
    Policy policy{PolicyMode::local, 0};  // of clients that say nothing themselves
    Autosize autosize;

    std::uint64_t online_bytes_on(NumaNode numa_node) const {
        if (node_online_bytes.empty()) return online_bytes;
        return node_online_bytes[std::min<std::size_t>(numa_node.value, node_online_bytes.size() - 1)];
    }
};

struct NodeStatus {
    NumaNode node;
    int os_numa_node = 0;
    wire::Backing backing{};
    std::uint64_t page_bytes = 0;
    std::string backing_note;  // why not hugepages, if so
    std::uint64_t capacity_bytes = 0;
    std::uint64_t online_bytes = 0;
    std::uint64_t metadata_bytes = 0;           // address space
    std::uint64_t metadata_resident_bytes = 0;  // touched
    NodeSnapshot snapshot;                      // free and live blocks, used frames
    CounterTotals counters;
    std::uint32_t waiting_threads = 0;    // for memory, best of all from this numa node
    std::uint64_t cached_bytes = 0;       // part of the used bytes: in clients' thread caches
    std::uint64_t quarantined_bytes = 0;  // part of the used bytes: taken back and held before their next use
    bool is_below_watermark = false;      // as far as events have told it
    std::uint64_t peak_used_bytes = 0;    // the most that a scan has found since the pool was made
};

struct UserStatus {
    UserLimit limit;
    std::uint64_t used_bytes = 0;
    std::uint32_t clients = 0;
};

struct PoolStatus {
    PoolSpec spec;
    std::string owner, group;  // names of those in spec.access, or their numbers
    Geometry geometry;
    bool corrupt = false;
    std::string corrupt_reason;
    std::chrono::system_clock::time_point created;
    std::uint32_t clients = 0;
    std::vector<NodeStatus> nodes;
    std::uint64_t clients_reaped = 0;   // died with or without blocks
    std::uint64_t reclaimed_bytes = 0;  // taken back from dead or detached clients
    double last_recovery_seconds = 0;
    std::uint32_t recoveries_waiting = 0;  // for a living client that stands still in the middle of an operation
    std::uint64_t quota_bytes = 0, soft_quota_bytes = 0;  // of all clients together, now; 0: none
    std::uint64_t peak_client_bytes = 0;                  // the most that a scan has found one client to hold
    std::uint64_t reserved_bytes = 0;                     // free, and left to those who were promised it
    std::vector<UserStatus> users;                        // with clients or limits, by uid
    double scan_seconds = 0;                              // how long the snapshot in `nodes` took
};

struct ClientStatus {
    std::uint32_t client_id = 0;
    std::string pool;
    std::uint32_t pid = 0, uid = 0, gid = 0;
    std::string comm, cgroup;
    std::chrono::system_clock::time_point attached;
    std::uint64_t used_bytes = 0, cached_bytes = 0, blocks = 0, quota_bytes = 0;
    std::uint64_t soft_quota_bytes = 0;  // 0: none
    std::uint64_t reserved_bytes = 0;    // promised to it, used or not
    std::uint32_t threads = 0;
    std::string state;            // "active", "adopted", "detaching", "lost connection", "recovering"
    std::uint32_t waits_for = 0;  // client whose operation under way its recovery has to wait for; 0: none
    std::optional<std::chrono::seconds> oldest_held_for;  // of its blocks in use, at least; nothing: it has none
};

// A block in use.
struct HeldBlock {
    std::string pool;
    std::uint32_t client_id = 0;
    NumaNode node;
    std::uint64_t offset_bytes = 0;  // from the numa node's first frame
    std::uint64_t bytes = 0, requested_bytes = 0;
    bool is_published = false;         // somebody may have a reference to it
    std::chrono::seconds held_for{0};  // by this client, at least
};
struct BlockList {
    std::vector<HeldBlock> blocks;
    std::uint64_t count = 0, bytes = 0;  // of all that there are, listed or not
};

struct BlockHolder {
    std::uint32_t client_id = 0;
    std::uint32_t pid = 0;
    std::string comm;
    std::uint64_t bytes = 0;
};

struct ResizeStep {
    std::uint64_t online_bytes = 0;
    std::uint64_t target_bytes = 0;
    bool done = false;
    std::string note;
    std::vector<BlockHolder> blocked_by;
    std::uint64_t undone_bytes = 0;  // had come online, and went back when the growth failed or was cancelled
};

struct DrainStatus {
    std::uint64_t used_bytes = 0;
    bool draining = false;
    bool offline = false;
    std::vector<BlockHolder> blocked_by;
};

struct MapCell {
    std::uint64_t frames = 0, used_frames = 0, offline_frames = 0;
};
struct OccupancyMap {
    std::uint64_t bytes_per_cell = 0;
    std::vector<MapCell> cells;
};

struct Event {
    std::chrono::system_clock::time_point time;
    std::string pool, kind, message;
    std::uint32_t client_id = 0, node = 0;
    std::uint64_t bytes = 0;
    std::optional<std::uint32_t> uid;  // whose clients it concerns
};

struct HugepagePool {
    std::uint64_t page_bytes = 0, total = 0, free = 0, surplus = 0;
    std::uint64_t unreserved = 0;  // free pages that no mapping has reserved (resv_hugepages)
};
struct MachineNode {
    int os_numa_node = 0;
    std::uint64_t total_bytes = 0, free_bytes = 0;
    std::vector<HugepagePool> hugepages;
    std::string cpus;
    std::vector<unsigned> distances;
};
struct MachineStatus {
    std::vector<MachineNode> nodes;
    std::string topology_source;
    std::chrono::system_clock::time_point started;
    std::string metrics_address, runtime_dir;
};

// Counts kept by the daemon itself, for metrics.
struct DaemonTotals {
    std::uint64_t resize_ok = 0, resize_partial = 0, resize_failed = 0;
    std::uint64_t autosize_grown = 0, autosize_shrunk = 0, autosize_failed = 0;  // of them, by the pool's own policy
    std::uint64_t attach_ok = 0, attach_refused = 0;
    std::uint64_t reaped_killed = 0, reaped_detached = 0, reaped_lost = 0;  // by cause
    std::uint64_t log_messages_dropped = 0;
};

class PoolManager {
public:
    virtual ~PoolManager() = default;

    virtual std::vector<std::string> pool_names() = 0;
    // Scans the pool's metadata: bounded by its online size, beside running clients.
    virtual Answer<PoolStatus> pool_status(const std::string &pool) = 0;
    virtual Answer<void> create_pool(const PoolSpec &spec) = 0;
    virtual Answer<void> delete_pool(const std::string &pool, bool force) = 0;
    // Calls progress after each step, from the calling thread; it returns false to cancel. Blocks until done, also with
    // undoing. The last call has `done` set and says what is online in the end.
    virtual Answer<void> resize(const std::string &pool, NumaNode node, std::uint64_t online_bytes, bool dry_run,
                                const std::function<bool(const ResizeStep &)> &progress) = 0;
    virtual Answer<DrainStatus> drain_chunk(const std::string &pool, NumaNode node, std::uint64_t chunk, bool undo) = 0;
    // pool empty: of all pools.
    virtual Answer<std::vector<ClientStatus>> clients(const std::string &pool) = 0;
    // Blocks in use that have been held longest, the oldest first; at most limit. pool empty: of all pools. client_id
    // 0: of all clients.
    virtual Answer<BlockList> blocks(const std::string &pool, std::uint32_t client_id, std::uint32_t limit) = 0;
    virtual Answer<void> evict(std::uint32_t client_id, std::chrono::milliseconds grace) = 0;
    // 0: none. Above soft_bytes nothing fails, it is an event.
    virtual Answer<void> set_quota(const Holder &holder, std::uint64_t quota_bytes, std::uint64_t soft_bytes) = 0;
    // Of a client or a user: what others cannot take, used or not; 0: nothing. out_of_frames: so much is not free.
    virtual Answer<void> reserve(const Holder &holder, std::uint64_t bytes) = 0;
    virtual Answer<OccupancyMap> map(const std::string &pool, NumaNode node, std::uint32_t cells) = 0;
    virtual MachineStatus machine() = 0;
    virtual DaemonTotals totals() = 0;

    // handler is called from the daemon's threads and must not block; it is not called any more once the returned
    // subscription has been destroyed.
    virtual std::shared_ptr<void> subscribe(std::function<void(const Event &)> handler) = 0;
};

}  // namespace numacre::daemon
