// The daemon's configuration: a TOML file, and flags that take precedence over the file. Every key of the file is also
// a flag of that name.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/failure.hpp"
#include "spec/metrics_address.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

struct ConfiguredPool : PoolSpec {
    // The attributes that the configuration names. A pool that is there already keeps its values of the others.
    std::vector<std::string> named_keys;
};

struct Config {
    std::string runtime_dir;
    std::string metrics_address = kDefaultMetricsAddress;  // empty: no metrics
    std::string topology = "libnuma";
    std::string log_level = "info";
    std::string log_format = "text";
    bool reserve_hugepages = false;    // set by load(): true for root unless told otherwise
    std::string keep_memory = "auto";  // the process that keeps the memory while there is no daemon: Keeper::create()
    std::uint32_t max_connections = 4096;
    std::uint32_t max_connections_per_user = 0;  // set by load(): a quarter of max_connections unless told otherwise
    std::uint32_t max_connections_per_second = 1000;  // for each user
    std::uint32_t control_group = ::getegid();
    std::uint32_t control_mode = 0660;
    std::vector<ConfiguredPool> pools;

    bool check_only = false;
    bool discard_kept = false;  // give up the pools of an earlier daemon, and end
    std::string file;           // the file that was read; empty: none
};

// The reason why there is no configuration to run with: help or version was asked for (0), or an error (2).
struct ConfigExit {
    int code = 2;
    std::string text;
};

inline constexpr const char *kDefaultConfigFile = "/etc/numacre/numacred.toml";

// is_root sets the default of reserve-hugepages. runtime_dir_from_environment is $NUMACRE_RUNTIME_DIR or empty.
Result<Config, ConfigExit> load_config(const std::vector<std::string> &arguments, bool is_root,
                                       const std::string &runtime_dir_from_environment);

// The argument of --pool: "name=default,capacity=1G,...". Keys that are left out keep PoolSpec's defaults.
Answer<ConfiguredPool> parse_pool_flag(std::string_view text);

// The daemon's own keys, always all of them in the same order.
struct DaemonSetting {
    std::string key, value;
    bool is_text = false;  // in quotes, in the file
};
std::vector<DaemonSetting> daemon_settings(const Config &config);

// The configuration as --check-config prints it, in the file's own syntax.
std::string describe(const Config &config);

}  // namespace numacre::daemon
