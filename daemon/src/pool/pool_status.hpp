// State of a pool, its clients and its blocks at one moment, and progress reports of a resize and a drain.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine.hpp"
#include "numacre/shm/channel/figures.hpp"
#include "numacre/shm/counters.hpp"
#include "numacre/shm/layout.hpp"
#include "numacre/shm/names.hpp"
#include "numacre/shm/snapshot.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

struct NodeStatus {
    NumaNode node;
    int os_numa_node = 0;
    wire::Backing backing{};
    std::uint64_t page_bytes = 0;
    std::string backing_note;  // why the frames are not on hugepages, if so
    std::uint64_t capacity_bytes = 0;
    std::uint64_t online_bytes = 0;
    std::uint64_t metadata_bytes = 0;           // address space
    std::uint64_t metadata_resident_bytes = 0;  // the part that has pages
    NodeSnapshot snapshot;                      // free and live blocks, used frames
    CounterTotals counters;
    std::uint32_t waiting_threads = 0;  // threads that wait for memory and prefer this numa node
    std::uint64_t cached_bytes = 0;     // part of the used bytes: in clients' thread caches
    // Part of the used bytes: left by clients that have ended, and held before their next use.
    std::uint64_t quarantined_bytes = 0;
    std::uint64_t pinned_bytes = 0;     // part of the online bytes: has to stay where it is
    std::uint64_t lingering_bytes = 0;  // part of the used bytes: freed by their owners, and held by readers
    bool is_below_watermark = false;    // as the last event about it said
    std::uint64_t peak_used_bytes = 0;  // the maximum that a scan has found since the pool was made
};

struct UserStatus {
    UserLimit limit;
    std::uint64_t used_bytes = 0;
    std::uint32_t clients = 0;
};

struct PoolStatus {
    PoolSpec spec;
    std::string owner, group;  // names of the owner and group in spec.access, or their numbers
    Geometry geometry;
    bool corrupt = false;
    std::string corrupt_reason;
    std::chrono::system_clock::time_point created;
    std::uint32_t clients = 0;
    std::uint32_t names = 0;  // bound by clients
    std::vector<NodeStatus> nodes;
    std::uint64_t clients_reaped = 0;   // died with or without blocks
    std::uint64_t reclaimed_bytes = 0;  // taken back from dead or detached clients
    double last_recovery_seconds = 0;
    std::uint32_t recoveries_waiting = 0;  // for a living client that stands still in the middle of an operation
    std::uint64_t quota_bytes = 0, soft_quota_bytes = 0;  // current limits of all clients together; 0: none
    std::uint64_t peak_client_bytes = 0;                  // the maximum that a scan has found one client to hold
    std::uint64_t reserved_bytes = 0;                     // free, and left to the holders of promises
    std::vector<UserStatus> users;                        // users with clients or limits, by uid
    double scan_seconds = 0;                              // how long the snapshot in `nodes` took
    // Age of this status. 0: all figures are current. Otherwise a scan of the pool takes longer than a caller is made
    // to wait.
    std::chrono::milliseconds stale_for{0};
    std::chrono::milliseconds looking_for{0};  // how long the look under way has lasted; 0: there is none
};

// A name of a pool.
struct NameStatus {
    std::string pool;
    NameEntry entry;
};

// A client that has a channel open.
struct ChannelParty {
    std::uint32_t client_id = 0, pid = 0;
    std::string comm;
    std::uint32_t opened = 0;                  // handles of the channel that it has
    std::uint32_t senders = 0, receivers = 0;  // of its threads; one may be both
};

// A channel of a pool. Name, sizes and clients are from the ledger, the figures from shared memory.
struct ChannelStatus {
    std::string pool, name;
    std::uint32_t client_id = 0;  // of its seat
    std::uint32_t uid = 0;        // of the user that has made it
    std::string stays;            // "while needed", "always", "removed"
    ChannelShape shape;
    ChannelFigures figures;
    std::uint64_t waiting_bytes = 0;                       // of the blocks of all messages that wait
    std::optional<std::chrono::seconds> oldest_waits_for;  // a lower bound; nothing: no message waits
    std::vector<ChannelParty> parties;                     // by client id
};

// Reason for which blocks of a client in quarantine wait.
enum class QuarantineReason : std::uint8_t {
    pin_held,  // somebody has the descriptor of a pin of the client
    group,     // a member of the client's group lives, and may adopt them
    pin_time,  // the descriptors of its pins are gone, and the pool's pin-quarantine runs
};

struct ClientStatus {
    std::uint32_t client_id = 0;
    std::string pool;
    std::uint32_t pid = 0, uid = 0, gid = 0;
    std::string comm, cgroup;
    std::chrono::system_clock::time_point attached;
    std::uint64_t used_bytes = 0, cached_bytes = 0, blocks = 0, quota_bytes = 0;
    std::uint64_t soft_quota_bytes = 0;  // 0: none
    std::uint64_t reserved_bytes = 0;    // promised to the client, used or not
    std::uint64_t pinned_bytes = 0;      // whole resize units, over all numa nodes
    std::uint32_t threads = 0;
    std::uint64_t holds = 0, hold_bytes = 0;  // blocks that its threads read (numacre_hold)
    // "active", "adopted", "detaching", "lost connection", "recovering", "quarantined"
    std::string state;
    // Of a client in quarantine; nothing: what is left of it is about to come back.
    std::optional<QuarantineReason> quarantine_reason;
    std::optional<std::chrono::seconds> quarantine_left;  // of pin_time, rounded up
    std::uint32_t waits_for = 0;  // the client whose operation under way blocks this client's recovery; 0: none
    std::optional<std::chrono::seconds> oldest_held_for;  // lower bound over its blocks in use; nothing: it has none
    bool has_been_looked_at = true;                       // false: bytes, blocks and threads are not known yet
};

// A block in use.
struct HeldBlock {
    std::string pool;
    std::uint32_t client_id = 0;
    NumaNode node;
    std::uint64_t offset_bytes = 0;  // from the numa node's first frame
    std::uint64_t bytes = 0, requested_bytes = 0;
    bool is_published = false;         // somebody may have a reference to it
    std::chrono::seconds held_for{0};  // by this client; a lower bound
};
struct BlockList {
    std::vector<HeldBlock> blocks;
    std::uint64_t count = 0, bytes = 0;  // of all such blocks, listed or not
};

struct BlockHolder {
    std::uint32_t client_id = 0;
    std::uint32_t pid = 0;
    std::string comm;
    std::uint64_t bytes = 0;         // held there
    std::uint64_t pinned_bytes = 0;  // and pinned, in use or not
};

struct ResizeStep {
    std::uint64_t online_bytes = 0;
    std::uint64_t target_bytes = 0;
    bool done = false;
    std::string note;
    std::vector<BlockHolder> blocked_by;
    std::uint64_t undone_bytes = 0;  // came online, and went back when the growth failed or was cancelled
};

struct DrainStatus {
    std::uint64_t used_bytes = 0;
    bool draining = false;
    bool offline = false;
    std::vector<BlockHolder> blocked_by;
};

struct MapCell {
    std::uint64_t frames = 0, used_frames = 0, offline_frames = 0, pinned_frames = 0;
};
struct PinStatus {
    std::uint32_t client_id = 0, pid = 0;
    std::string comm;
    std::uint64_t offset_bytes = 0, bytes = 0;
};
struct OccupancyMap {
    std::uint64_t bytes_per_cell = 0;
    std::vector<MapCell> cells;
    std::vector<PinStatus> pins;  // by offset
};

}  // namespace numacre::daemon
