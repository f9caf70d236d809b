#include "config.hpp"

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/nearest_key.hpp"
#include "memory/topology.hpp"
#include "os/log.hpp"
#include "spec/access.hpp"
#include "spec/pool_attributes.hpp"
#include "spec/pool_spec.hpp"
#include "survival/keeper.hpp"
#include "version.hpp"

namespace numacre::daemon {

namespace {

enum class Kind : std::uint8_t { text, bytes, count, yes_no };

// A key of the configuration. set() sets one value from its text. Its failure gives the fault and the remedy, without
// key and value.
template <class Target>
struct Key {
    std::string_view name;
    Kind kind;
    std::string_view help;
    std::function<Answer<void>(Target &, const std::string &)> set;
};

Answer<void> set_yes_no(bool &target, const std::string &text) {
    if (text != "true" && text != "false") return bad_argument("use true or false");
    target = text == "true";
    return {};
}

// Empty switches the metrics off.
Answer<void> set_metrics_address(std::string &target, const std::string &text) {
    if (!text.empty())
        if (auto address = parse_metrics_address(text); !address) return Unexpected{std::move(address.error())};
    target = text;
    return {};
}

const std::vector<Key<Config>> &daemon_keys() {
    static const std::vector<Key<Config>> keys{
        {"runtime-dir", Kind::text, "folder of the sockets (default: $NUMACRE_RUNTIME_DIR, else /run/numacre)",
         [](Config &config, const std::string &text) -> Answer<void> {
             if (!text.starts_with('/'))
                 return bad_argument("give a folder by its absolute path, such as /run/numacre");
             config.runtime_dir = text;
             return {};
         }},
        {"metrics-address", Kind::text, "where Prometheus scrapes; port 0 picks one and logs it; empty: off",
         [](Config &config, const std::string &text) { return set_metrics_address(config.metrics_address, text); }},
        {"topology", Kind::text, "libnuma, or synthetic:<nodes>x<bytes each> such as synthetic:2x512M",
         [](Config &config, const std::string &text) -> Answer<void> {
             if (auto known = check_topology_spec(text); !known) return known;
             config.topology = text;
             return {};
         }},
        {"log-level", Kind::text, "trace, debug, info, warn, error or off",
         [](Config &config, const std::string &text) -> Answer<void> {
             if (!log::is_level(text)) return bad_argument("use trace, debug, info, warn, error or off");
             config.log_level = text;
             return {};
         }},
        {"log-format", Kind::text, "text or json",
         [](Config &config, const std::string &text) -> Answer<void> {
             if (text != "text" && text != "json") return bad_argument("use text or json");
             config.log_format = text;
             return {};
         }},
        {"reserve-hugepages", Kind::yes_no, "allow raising nr_hugepages in sysfs (default: true for root)",
         [](Config &config, const std::string &text) { return set_yes_no(config.reserve_hugepages, text); }},
        {"keep-memory", Kind::text,
         "who keeps the pools while there is no daemon: auto, systemd (its descriptor store), holder (a small "
         "process), off",
         [](Config &config, const std::string &text) -> Answer<void> {
             if (!is_keeper_kind(text)) return bad_argument("use auto, systemd, holder or off");
             config.keep_memory = text;
             return {};
         }},
        {"max-connections", Kind::count, "connections to the attach socket, all together",
         [](Config &config, const std::string &text) { return set_positive_count(config.max_connections, text); }},
        {"max-connections-per-user", Kind::count,
         "of them, those of one user that is not root (default: a quarter of max-connections)",
         [](Config &config, const std::string &text) {
             return set_positive_count(config.max_connections_per_user, text);
         }},
        {"max-connections-per-second", Kind::count, "how often one user that is not root may connect",
         [](Config &config, const std::string &text) {
             return set_positive_count(config.max_connections_per_second, text);
         }},
        {"control-group", Kind::text,
         "group of the control socket, name or number (default: the daemon's own): its members may do everything",
         [](Config &config, const std::string &text) { return set_parsed(config.control_group, parse_group(text)); }},
        {"control-mode", Kind::text, "mode of the control socket, octal, at most 0666 (default: 0660)",
         [](Config &config, const std::string &text) { return set_parsed(config.control_mode, parse_mode(text)); }},
    };
    return keys;
}

Kind kind_of(PoolAttribute::Kind kind) {
    switch (kind) {
        case PoolAttribute::Kind::text:
            return Kind::text;
        case PoolAttribute::Kind::bytes:
            return Kind::bytes;
        case PoolAttribute::Kind::count:
            return Kind::count;
    }
    return Kind::text;
}

const std::vector<Key<PoolSpec>> &pool_keys() {
    static const std::vector<Key<PoolSpec>> keys = [] {
        std::vector<Key<PoolSpec>> rows;
        for (const PoolAttribute &attribute : pool_attributes())
            rows.push_back({attribute.key, kind_of(attribute.kind), attribute.help, attribute.parse});
        return rows;
    }();
    return keys;
}

// Sets what follows from the keys that a description names, and checks all of it together.
Answer<void> complete(ConfiguredPool &pool) {
    const auto is_named = [&](std::string_view key) {
        return std::ranges::find(pool.named_keys, key) != pool.named_keys.end();
    };
    if (auto sizes = set_object_sizes(pool, is_named); !sizes) return sizes;
    const auto geometry = geometry_of(pool);
    return geometry ? Answer<void>{} : Unexpected{geometry.error()};
}

// Returns "did you mean ...?" if a key is near, else the list of all keys.
template <class Target>
std::string suggest(std::string_view unknown, const std::vector<Key<Target>> &keys, std::string_view more) {
    std::string all;
    std::vector<std::string_view> names;
    for (const auto &key : keys) {
        all += (all.empty() ? "" : ", ") + std::string(key.name);
        names.push_back(key.name);
    }
    if (const auto near = nearest_key(unknown, names); !near.empty()) return "did you mean " + std::string(near) + "?";
    return "the keys are " + all + std::string(more);
}

template <class Target>
const Key<Target> *find_key(const std::vector<Key<Target>> &keys, std::string_view name) {
    for (const auto &key : keys)
        if (key.name == name) return &key;
    return nullptr;
}

// ---------------------------------------------------------------------------------------------------------------------
// The configuration file. Every error begins with file:line.

class File {
public:
    explicit File(std::string path) : path_(std::move(path)) {}

    Answer<void> read_into(Config &config) {
        if (std::error_code ignored; std::filesystem::is_directory(path_, ignored))
            return bad_argument(path_ + ": is a folder: --config wants a file of TOML");
        std::ifstream stream(path_);
        if (!stream) return bad_argument(path_ + ": cannot be read: " + std::strerror(errno) + "; see --config");
        std::string text(kMostBytes + 1, '\0');
        stream.read(text.data(), static_cast<std::streamsize>(text.size()));
        if (stream.bad()) return bad_argument(path_ + ": cannot be read to its end: " + std::strerror(errno));
        text.resize(static_cast<std::size_t>(stream.gcount()));
        if (auto sane = check_size(text); !sane) return sane;
        const toml::parse_result parsed = toml::parse(text, path_);
        if (!parsed)
            return bad_argument(at(parsed.error().source()) + "not TOML: " + std::string(parsed.error().description()));
        for (const auto &[name, value] : parsed.table()) {
            if (name == "pool") {
                if (auto read = read_pools(value, config); !read) return read;
                continue;
            }
            const auto *const key = find_key(daemon_keys(), name.str());
            if (key == nullptr)
                return bad_argument(at(name.source()) + "unknown key " + std::string(name.str()) + " = " +
                                    shown(value) + ": " + suggest(name.str(), daemon_keys(), "; pools are [[pool]]"));
            if (auto set = set_from(*key, config, value); !set) return set;
        }
        return {};
    }

private:
    // Limits on the text: the parser takes a table, and stack, for each part of a dotted key, also of a key in nested
    // tables.
    static constexpr std::size_t kMostBytes = std::size_t{1} << 20, kLongestLine = 4096, kMostDots = 64;
    Answer<void> check_size(std::string_view text) const {
        if (text.size() > kMostBytes) return bad_argument(path_ + ": is larger than 1M: that is no configuration");
        std::size_t line = 1;
        for (std::size_t from = 0; from < text.size(); ++line) {
            const std::size_t to = std::min(text.find('\n', from), text.size());
            if (to - from > kLongestLine)
                return bad_argument(path_ + ":" + std::to_string(line) + ": a line of " + std::to_string(to - from) +
                                    " characters: use at most " + std::to_string(kLongestLine));
            if (const std::size_t dots = dots_outside_texts(text.substr(from, to - from)); dots > kMostDots)
                return bad_argument(path_ + ":" + std::to_string(line) + ": a line with " + std::to_string(dots) +
                                    " dots outside quotes: use at most " + std::to_string(kMostDots));
            from = to + 1;
        }
        return {};
    }

    // Counts the dots that separate parts of keys: not those in quotes on one line, and not those behind a #. (A text
    // of several lines is not recognised as quoted: no value here needs one.)
    static std::size_t dots_outside_texts(std::string_view line) {
        std::size_t dots = 0;
        char quote = 0;
        for (std::size_t i = 0; i < line.size(); ++i) {
            if (quote != 0) {
                if (line[i] == '\\' && quote == '"')
                    ++i;
                else if (line[i] == quote)
                    quote = 0;
            } else if (line[i] == '"' || line[i] == '\'') {
                quote = line[i];
            } else if (line[i] == '#') {
                break;
            } else if (line[i] == '.') {
                ++dots;
            }
        }
        return dots;
    }

    std::string at(const toml::source_region &where) const {
        return path_ + ":" + std::to_string(where.begin.line) + ": ";
    }

    static std::string shown(const toml::node &value) {
        std::ostringstream text;
        value.visit([&](const auto &known) { text << known; });
        std::string line = text.str();
        std::replace(line.begin(), line.end(), '\n', ' ');
        constexpr std::size_t kShown = 200;
        if (line.size() > kShown) line.replace(kShown, std::string::npos, "...");
        return line;
    }

    template <class Target>
    Answer<void> set_from(const Key<Target> &key, Target &target, const toml::node &value) {
        const std::string where = at(value.source()) + std::string(key.name) + " = " + shown(value) + ": ";
        std::optional<std::string> text;
        std::string_view wanted;
        switch (key.kind) {
            case Kind::text:
                wanted = "a string in quotes";
                if (value.is_string()) text = value.as_string()->get();
                break;
            case Kind::bytes:
                wanted = "a byte count: a whole number, or a string such as \"1G\"";
                if (value.is_string()) text = value.as_string()->get();
                if (value.is_integer()) text = std::to_string(value.as_integer()->get());
                break;
            case Kind::count:
                wanted = "a whole number";
                if (value.is_integer()) text = std::to_string(value.as_integer()->get());
                break;
            case Kind::yes_no:
                wanted = "true or false, without quotes";
                if (value.is_boolean()) text = value.as_boolean()->get() ? "true" : "false";
                break;
        }
        if (!text) return bad_argument(where + "wrong type: use " + std::string(wanted));
        if (auto set = key.set(target, *text); !set) return bad_argument(where + set.error().message);
        return {};
    }

    Answer<void> read_pools(const toml::node &value, Config &config) {
        const toml::array *const tables = value.as_array();
        if (tables == nullptr || !tables->is_array_of_tables())
            return bad_argument(at(value.source()) + "pool = " + shown(value) +
                                ": wrong type: write each pool as [[pool]]");
        for (const toml::node &entry : *tables) {
            ConfiguredPool spec;
            for (const auto &[name, item] : *entry.as_table()) {
                const auto *const key = find_key(pool_keys(), name.str());
                if (key == nullptr)
                    return bad_argument(at(name.source()) + "unknown key " + std::string(name.str()) + " = " +
                                        shown(item) + " in [[pool]]: " + suggest(name.str(), pool_keys(), ""));
                if (auto set = set_from<PoolSpec>(*key, spec, item); !set) return set;
                spec.named_keys.emplace_back(name.str());
            }
            if (const auto sound = complete(spec); !sound)
                return bad_argument(at(entry.source()) + "pool \"" + spec.name + "\": " + sound.error().message);
            const auto same = [&](const PoolSpec &other) { return other.name == spec.name; };
            if (std::any_of(config.pools.begin(), config.pools.end(), same))
                return bad_argument(at(entry.source()) + "name = '" + spec.name +
                                    "': two pools of one name: rename one");
            config.pools.push_back(std::move(spec));
        }
        return {};
    }

    std::string path_;
};

std::string version_text() {
    return std::string("numacred ") + kVersion + " (layout version " + std::to_string(kLayoutVersion) + ")\n";
}

}  // namespace

Answer<ConfiguredPool> parse_pool_flag(std::string_view text) {
    ConfiguredPool spec;
    const std::string where = "--pool " + std::string(text) + ": ";
    std::vector<std::string> &seen = spec.named_keys;
    std::size_t start = 0;
    while (start <= text.size()) {
        const std::size_t comma = std::min(text.find(',', start), text.size());
        const std::string item(text.substr(start, comma - start));
        start = comma + 1;
        const std::size_t equals = item.find('=');
        if (equals == std::string::npos)
            return bad_argument(where + "\"" + item + "\" is no key=value: write name=default,capacity=1G,online=256M");
        const std::string name = item.substr(0, equals), value = item.substr(equals + 1);
        const auto *const key = find_key(pool_keys(), name);
        if (key == nullptr)
            return bad_argument(where + "unknown key " + name + " = " + value + ": " + suggest(name, pool_keys(), ""));
        if (std::find(seen.begin(), seen.end(), name) != seen.end())
            return bad_argument(where + name + " is given twice: keep one");
        seen.push_back(name);
        if (auto set = key->set(spec, value); !set)
            return bad_argument(where + name + " = " + value + ": " + set.error().message);
    }
    if (const auto sound = complete(spec); !sound) return bad_argument(where + sound.error().message);
    return spec;
}

Result<Config, ConfigExit> load_config(const std::vector<std::string> &arguments, bool is_root,
                                       const std::string &runtime_dir_from_environment) {
    const auto wrong = [](const std::string &message) {
        return Unexpected{ConfigExit{2, "numacred: " + message + "\n"}};
    };
    CLI::App app{
        "numacred: shares pools of hugepage frames between the processes of this machine.\n"
        "Every option but --config, --check-config, --discard-kept and --version is also a key of the configuration "
        "file; "
        "options win.",
        "numacred"};
    std::string file;
    bool check_only = false, discard_kept = false, version = false;
    std::vector<std::string> pool_flags;
    std::map<std::string, std::string, std::less<>> given;
    auto *const file_option = app.add_option(
        "--config", file, std::string("configuration file, TOML (default: ") + kDefaultConfigFile + " if it is there)");
    app.add_flag("--check-config", check_only, "check the configuration, print what would be run with, and exit");
    app.add_flag(
        "--discard-kept", discard_kept,
        "give up the pools that a daemon before has left in the runtime directory, and exit; their clients keep "
        "what they have mapped, until they end");
    app.add_flag("--version", version, "print the version and exit");
    // Each --pool takes one argument, with all of its commas.
    app.add_option("--pool", pool_flags,
                   "a pool: name=default,capacity=1G,online=256M and so on, with the keys of [[pool]]: name, " +
                       pool_attribute_keys() +
                       "; capacity and online are per numa node (online=256M/128M: numa node 0, all others); mode as "
                       "of a file: "
                       "w to use the pool, r to observe it; repeats; replaces the file's pool of that name")
        ->expected(1)
        ->take_all()
        ->allow_extra_args(false);
    for (const auto &key : daemon_keys()) {
        const std::string name(key.name), flag = "--" + name, help(key.help);
        if (key.kind == Kind::yes_no)
            app.add_option(flag, given[name], help)->type_name("[true|false]")->expected(0, 1);  // no value: true
        else
            app.add_option(flag, given[name], help)->type_name("");
    }
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    try {
        app.parse(std::move(reversed));
    } catch (const CLI::CallForHelp &) {
        return Unexpected{ConfigExit{0, app.help()}};
    } catch (const CLI::ParseError &error) {
        return wrong(std::string(error.what()) + "; see numacred --help");
    }
    if (version) return Unexpected{ConfigExit{0, version_text()}};

    Config config;
    config.check_only = check_only;
    config.discard_kept = discard_kept;
    config.reserve_hugepages = is_root;
    if (!runtime_dir_from_environment.empty() && !runtime_dir_from_environment.starts_with('/'))
        return wrong("NUMACRE_RUNTIME_DIR=" + runtime_dir_from_environment + ": give a folder by its absolute path");
    config.runtime_dir = runtime_dir_from_environment.empty() ? "/run/numacre" : runtime_dir_from_environment;
    if (file_option->count() != 0) {
        config.file = file;
    } else if (std::ifstream(kDefaultConfigFile).good()) {
        config.file = kDefaultConfigFile;
    }
    if (!config.file.empty())
        if (auto read = File(config.file).read_into(config); !read) return wrong(read.error().message);

    for (const auto &key : daemon_keys()) {
        const std::string name(key.name);
        if (app.get_option("--" + name)->count() == 0) continue;
        std::string &text = given[name];
        if (key.kind == Kind::yes_no && text.empty()) text = "true";
        if (auto set = key.set(config, text); !set)
            return wrong("--" + name + " " + (text.empty() ? "\"\"" : text) + ": " + set.error().message);
    }
    std::vector<std::string> flag_names;
    for (const std::string &text : pool_flags) {
        auto spec = parse_pool_flag(text);
        if (!spec) return wrong(spec.error().message);
        if (std::find(flag_names.begin(), flag_names.end(), spec->name) != flag_names.end())
            return wrong("--pool " + text + ": two pools named " + spec->name + ": rename one");
        flag_names.push_back(spec->name);
        const auto same = [&](const PoolSpec &other) { return other.name == spec->name; };
        std::erase_if(config.pools, same);
        config.pools.push_back(std::move(*spec));
    }
    constexpr std::uint32_t kUserShare = 4;
    if (config.max_connections_per_user == 0)
        config.max_connections_per_user = std::max(1U, config.max_connections / kUserShare);
    return config;
}

std::vector<DaemonSetting> daemon_settings(const Config &config) {
    constexpr bool kText = true;
    return {{"runtime-dir", config.runtime_dir, kText},
            {"metrics-address", config.metrics_address, kText},
            {"topology", config.topology, kText},
            {"log-level", config.log_level, kText},
            {"log-format", config.log_format, kText},
            {"reserve-hugepages", config.reserve_hugepages ? "true" : "false"},
            {"keep-memory", config.keep_memory, kText},
            {"max-connections", std::to_string(config.max_connections)},
            {"max-connections-per-user", std::to_string(config.max_connections_per_user)},
            {"max-connections-per-second", std::to_string(config.max_connections_per_second)},
            {"control-group", group_name(config.control_group), kText},
            {"control-mode", format_mode(config.control_mode), kText}};
}

std::string describe(const Config &config) {
    std::ostringstream text;
    text << "# " << (config.file.empty() ? "no configuration file" : config.file) << "\n";
    for (const auto &[key, value, is_text] : daemon_settings(config)) {
        const std::string quote = is_text ? "\"" : "";
        text << key << " = " << quote << value << quote << "\n";
    }
    for (const PoolSpec &spec : config.pools) {
        text << "\n[[pool]]\n";
        for (const PoolAttribute &attribute : pool_attributes()) {
            const std::string quote = attribute.kind == PoolAttribute::Kind::count ? "" : "\"";
            text << attribute.key << " = " << quote << attribute.format(spec) << quote << "\n";
        }
    }
    return text.str();
}

}  // namespace numacre::daemon
