// The daemon's process: its own sources (daemon/src), over an event loop, a worker, a keeper and a machine that are the
// simulator's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernel.hpp"

namespace numacre::simulation {

struct DaemonPlan {
    std::uint64_t capacity_bytes = 0, online_bytes = 0, frame_bytes = 0, largest_block_bytes = 0;
    std::uint64_t object_bytes = 0, object_count = 0;  // 0: a pool of blocks
    unsigned numa_nodes = 1;
    unsigned max_clients = 4, max_threads = 16, max_threads_per_client = 0;
    unsigned reclaim = 0;  // fast, zero, quarantine
    unsigned fit = 0;
    std::uint64_t quota_bytes = 0;
    bool may_lack_memory = false;  // the kernel may say so
};

// What outlives daemons.
struct Kept {
    std::map<std::string, FilePtr> files;
    std::set<int> left_to;  // processes, while there is no daemon: the last one's end gives everything up
    bool is_left = false;
};

// What the director asks of the running daemon: each by a thread of the daemon's own, as the control plane would.
struct DaemonFace {
    int process = -1;
    void *daemon = nullptr;
    void *loop = nullptr;
    bool is_serving = false;
    bool could_not_start = false;
    std::size_t files_when_idle = 0;
};

struct PoolReport {
    bool is_there = false;
    bool is_corrupt = false;
    std::string reason;
    std::uint32_t clients = 0;
    std::uint64_t online_frames = 0, free_frames = 0, cached_frames = 0, quarantined_bytes = 0;
    std::uint64_t allocations = 0, frees = 0;
    std::uint32_t waiting_threads = 0;
    std::string table;  // of clients, for people
    std::vector<std::uint32_t> client_ids;
};

// Runs the daemon's main() in the running fiber's process until it is asked to end; then its destructors.
void run_daemon(DaemonFace &face, const DaemonPlan &plan, Kept &kept);
// By a fiber of the daemon's process.
PoolReport ask_daemon(DaemonFace &face);
void resize_pool(DaemonFace &face, unsigned numa_node, std::uint64_t online_bytes);
void drain_chunk(DaemonFace &face, unsigned numa_node, std::uint64_t chunk, bool undo);
void evict_someone(DaemonFace &face, Random &random);
void set_some_quota(DaemonFace &face, Random &random, std::uint64_t bytes);
bool reserve_for_client(DaemonFace &face, std::uint32_t client_id, std::uint64_t bytes);
bool reserve_for_user(DaemonFace &face, std::uint32_t uid, std::uint64_t bytes);
void stop_daemon(DaemonFace &face);
// Of the keeper: those to whom a daemon has left the memory have all ended.
void give_up_kept(Kept &kept);
// Once, before the first run: what the daemon's sources find out about the machine for good.
void warm_up_daemon();

}  // namespace numacre::simulation
