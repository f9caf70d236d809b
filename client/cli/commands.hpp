// One function a verb. Each returns the program's exit code, and throws ArgumentError, CallError or NoDaemonError.
#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "control.hpp"
#include "terminal.hpp"

namespace numacre::cli {

// Exit codes that a script can tell apart; README.md has the table.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitBadArgument = 2;
inline constexpr int kExitCorruptPool = 3;
inline constexpr int kExitNoDaemon = 4;

struct Context {
    std::string runtime_dir;
    std::chrono::milliseconds timeout{10'000};
    bool json = false;
    Terminal terminal;
    std::ostream &out;

    Control &control();

private:
    std::unique_ptr<Control> control_;

public:
    explicit Context(std::ostream &output) : out(output) {}
};

int run_status(Context &context);
int run_pools(Context &context);

struct ClientsArguments {
    std::string pool;
    bool blocks = false;          // list the blocks, the oldest first, instead of the clients
    std::uint32_t client_id = 0;  // only with blocks: the holder; 0: all clients
    std::uint32_t limit = 100;    // only with blocks
};
int run_clients(Context &context, const ClientsArguments &arguments);
// remove: the name that is to be unbound; empty: none is, and they are listed.
int run_names(Context &context, const std::string &pool, const std::string &remove);
struct ChannelsArguments {
    std::string pool;      // empty: all pools
    std::string remove;    // the channel that is to go; empty: none is, and they are listed
    bool force = false;    // only with remove: also end the stream
    std::string interval;  // empty: one look. Otherwise two, so far apart, and rates
};
int run_channels(Context &context, const ChannelsArguments &arguments);
int run_nodes(Context &context);

struct ResizeArguments {
    std::string pool, size;
    std::optional<std::uint32_t> numa_node;
    bool dry_run = false;
};
int run_resize(Context &context, const ResizeArguments &arguments);

struct CreateArguments {
    std::string name, capacity, online, frame, largest, backing, owner, group, mode, reclaim, low_watermark, policy;
    std::string autosize;
    std::uint32_t max_clients = 0;
    // Attributes that have no field of their own in CreatePoolRequest: the daemon parses them. An empty value is not
    // sent.
    std::map<std::string, std::string> attributes;
};
int run_create(Context &context, const CreateArguments &arguments);
int run_delete(Context &context, const std::string &pool, bool force, bool abandon);

// key empty: all attributes.
int run_get(Context &context, const std::string &pool, const std::string &key);
// settings: KEY=VALUE each.
int run_set(Context &context, const std::string &pool, const std::vector<std::string> &settings);

struct DrainArguments {
    std::string pool;
    std::optional<std::uint32_t> numa_node;
    std::uint64_t chunk = 0;
    bool undo = false;
};
int run_drain(Context &context, const DrainArguments &arguments);
int run_evict(Context &context, std::uint32_t client_id, const std::string &grace);

// The holder of a limit and its size: CLIENT SIZE, or SIZE with --user or --pool.
struct HolderArguments {
    std::vector<std::string> words;
    std::string user, pool;
};
struct QuotaArguments {
    HolderArguments of;  // SIZE may be "none"
    std::string soft;    // empty: none
};
int run_quota(Context &context, const QuotaArguments &arguments);
int run_reserve(Context &context, const HolderArguments &arguments);

// pool empty: every pool.
int run_stats(Context &context, const std::string &pool);
int run_buddyinfo(Context &context, const std::string &pool, bool heads);
int run_extfrag(Context &context, const std::string &pool, bool heads);

struct MapArguments {
    std::string pool;
    std::optional<std::uint32_t> numa_node;
    std::uint32_t cells = 0;  // 0: as many as suit the terminal
};
int run_map(Context &context, const MapArguments &arguments);

struct TopArguments {
    std::string interval = "1";
    std::uint64_t count = 0;  // 0: without end; with --json one look
};
int run_top(Context &context, const TopArguments &arguments);

int run_doctor(Context &context);
// look_for: how long to watch the use of the pools for a peak.
int run_advise(Context &context, const std::string &pool, const std::string &look_for);

struct BenchArguments {
    std::string pool = "default";
    bool private_pool = false;  // a pool inside this process: needs no daemon
    std::uint64_t operations = 100'000;
    std::uint64_t rounds = 5;
};
int run_bench(Context &context, const BenchArguments &arguments);

struct ReplayArguments {
    std::vector<std::string> traces;  // of processes that share a pool
    std::string frame = "4K", largest = "4M";
};
int run_replay(Context &context, const ReplayArguments &arguments);

std::int64_t now_unix_seconds();

}  // namespace numacre::cli
