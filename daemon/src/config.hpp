// What the daemon was told: a TOML file, and flags that win over it. Every key of the file is also a flag, by the same
// name.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/failure.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

struct Config {
    std::string runtime_dir;
    std::string metrics_address = "127.0.0.1:9853";  // empty: no metrics
    std::string topology = "libnuma";
    std::string log_level = "info";
    std::string log_format = "text";
    bool reserve_hugepages = false;    // set by load(): true for root unless told otherwise
    std::string keep_memory = "auto";  // who keeps it while there is no daemon: Keeper::create()
    std::uint32_t max_connections = 4096;
    std::uint32_t max_connections_per_user = 0;  // set by load(): a quarter of max_connections unless told otherwise
    std::uint32_t max_connections_per_second = 1000;  // of one user
    std::uint32_t control_group = ::getegid();
    std::uint32_t control_mode = 0660;
    std::vector<PoolSpec> pools;

    bool check_only = false;
    bool discard_kept = false;  // give up what a daemon before has left, and end
    std::string file;           // that was read; empty: none
};

// Why there is no configuration to run with: help or version were asked for (0), or something is wrong (2).
struct ConfigExit {
    int code = 2;
    std::string text;
};

inline constexpr const char *kDefaultConfigFile = "/etc/numacre/numacred.toml";

// is_root: what reserve-hugepages defaults to. runtime_dir_from_environment: $NUMACRE_RUNTIME_DIR or empty.
Result<Config, ConfigExit> load_config(const std::vector<std::string> &arguments, bool is_root,
                                       const std::string &runtime_dir_from_environment);

// The argument of --pool: "name=default,capacity=1G,...". Keys that are left out keep PoolSpec's defaults.
Answer<PoolSpec> parse_pool_flag(std::string_view text);

// As --check-config prints it: what would be run with, in the file's own syntax.
std::string describe(const Config &config);

}  // namespace numacre::daemon
