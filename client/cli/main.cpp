// `numacre`: parses the arguments, runs a verb and returns its exit code. commands.hpp has the verbs.
#include <CLI/CLI.hpp>
#include <charconv>
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bytes.hpp"
#include "commands.hpp"
#include "json.hpp"
#include "numacre/numacre.h"

namespace {

using namespace numacre::cli;

// CLI11 takes -1 for the largest number of 64 bits, and a larger one for that, too.
std::string whole_number_fault(const std::string &text) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc{} && end == text.data() + text.size()) return {};
    return "'" + printable(text) + "' is no whole number of 64 bits";
}

// The attributes of a pool that `create` sends as they were typed, with their help. A new attribute is a row here.
constexpr std::pair<const char *, const char *> kSentAsText[] = {
    {"object", "Size of an object, for a pool of objects of this one size, a multiple of 64; no objects if left out"},
    {"count", "Objects on each numa node; with --object"},
    {"colouring", "Objects of 1K, 2K, 4K and so on lie 64 bytes further apart: on, off; on"},
    {"object-memory", "Memory of the object pools that clients make, all together; 0: none but the owner's"},
    {"pin-quarantine", "How long a dead process's blocks under a pin wait for devices, 1s to 24h; 5s"},
    {"max-threads", "How many threads of all processes together may use it at once; 4096"},
    {"max-threads-per-client", "How many threads of one process may use it at once; --max-threads"},
    {"fit", "Where blocks that no cache serves come from: nearby, compact, best; nearby"},
    {"quota", "What all clients together may hold: allocations beyond it fail; no limit if left out"},
    {"soft-quota", "More held by all clients together is an event; none if left out"},
    {"user-quota", "What each user's clients together may hold: \"alice=1G/768M 1000=2G\"; no limit if left out"},
};

class Arguments {
public:
    Arguments() {
        // Global options may stand before the verb and behind it.
        app_.fallthrough();
        app_.require_subcommand(1);
        app_.set_version_flag("--version", std::string("numacre ") + numacre_version());
        app_.add_option("--runtime-dir", runtime_dir, "Directory of the daemon's sockets")
            ->envname("NUMACRE_RUNTIME_DIR")
            ->capture_default_str();
        app_.add_flag("--json", json, "Print JSON: sizes in bytes, keys as in the manual");
        app_.add_flag("--ascii", ascii, "Draw with 7-bit characters only");
        app_.add_option("--timeout", timeout, "How long one question to the daemon may take")->capture_default_str();
        app_.footer(
            "Sizes: 4096, 4K, 512M, 1G. Exit codes: 0 done, 1 failed, 2 bad argument, 3 a pool is corrupt (status), "
            "4 no daemon.");

        verb("status", "The daemon and its pools on one screen", [](Context &c) { return run_status(c); });
        verb("pools", "The pools, one a line", [](Context &c) { return run_pools(c); });
        CLI::App *clients = verb("clients", "The attached processes, or what they hold", [this](Context &c) {
            clients_.pool = pool_;
            return run_clients(c, clients_);
        });
        optional_pool(clients);
        CLI::Option *blocks =
            clients->add_flag("--blocks", clients_.blocks, "Who holds which blocks, those held longest first");
        clients->add_option("--client", clients_.client_id, "Only this client's blocks")->needs(blocks);
        clients->add_option("--limit", clients_.limit, "How many blocks; 100 if left out")->needs(blocks);
        CLI::App *names = verb("names", "Names that are bound in the pools, and to what",
                               [this](Context &c) { return run_names(c, pool_, remove_); });
        CLI::Option *of_pool = names->add_option("POOL", pool_, "Pool; all if left out");
        names->add_option("--remove", remove_, "Unbind this name of the pool, whoever has bound it")->needs(of_pool);
        CLI::App *channels =
            verb("channels", "The pools' channels: how full they are, who sends and receives", [this](Context &c) {
                channels_.pool = pool_;
                return run_channels(c, channels_);
            });
        CLI::Option *pool_of_channel = channels->add_option("POOL", pool_, "Pool; all if left out");
        CLI::Option *interval =
            channels->add_option("--interval", channels_.interval, "Look twice, so far apart, and show rates");
        CLI::Option *gone =
            channels->add_option("--remove", channels_.remove, "This channel of the pool goes when nobody has it open");
        gone->needs(pool_of_channel)->excludes(interval);
        channels->add_flag("--force", channels_.force, "Also end the stream, so that programs close the channel")
            ->needs(gone);
        verb("nodes", "The machine's numa nodes, their hugepages and pools", [](Context &c) { return run_nodes(c); });

        CLI::App *resize = verb("resize", "Bring a pool's memory online or take it offline",
                                [this](Context &c) { return run_resize(c, resize_); });
        resize->add_option("POOL", resize_.pool, "Pool")->required();
        resize->add_option("SIZE", resize_.size, "Bytes to have online on the node: 512M, or a step: +512M, -256M")
            ->required();
        resize->add_option("--node", resize_.numa_node, "The pool's numa node; may be left out if it has only one");
        resize->add_flag("--dry-run", resize_.dry_run, "Change nothing; tell what would happen and who is in the way");

        CLI::App *create = verb("create", "Make a pool", [this](Context &c) { return run_create(c, create_); });
        create->add_option("NAME", create_.name, "Its name")->required();
        create->add_option("--capacity", create_.capacity, "What each numa node may grow to; not with --object");
        create->add_option("--online", create_.online,
                           "What each numa node begins with; 256M/128M: numa node 0, all others; not with --object");
        create->add_option("--frame", create_.frame, "Smallest block; 4K if left out");
        create->add_option("--largest", create_.largest, "Largest block, and the step of sizing; 4M if left out");
        create->add_option("--backing", create_.backing, "hugetlb-1g, hugetlb, thp, small, or best (hugetlb)");
        create->add_option("--max-clients", create_.max_clients, "How many processes may attach");
        create->add_option("--owner", create_.owner, "User, name or number; the daemon's if left out");
        create->add_option("--group", create_.group, "Group, name or number; the daemon's if left out");
        create->add_option("--reclaim", create_.reclaim,
                           "What becomes of a dead client's blocks: fast, zero, quarantine:30s; fast");
        create->add_option("--low-watermark", create_.low_watermark,
                           "Less free than this on a numa node is an event; none if left out");
        create->add_option("--policy", create_.policy,
                           "Where blocks come from: local, strict, preferred:1, interleave, interleave-frames; local");
        create->add_option("--autosize", create_.autosize,
                           "Grow and shrink by itself, LOW-HIGH:MIN-MAX[:STEP[:AFTER]]: 10%-50%:64M-1G:64M:30s; off");
        create->add_option("--mode", create_.mode, "Octal, as of a file: w to use the pool, r to observe it; 0660");
        for (const auto &[key, help] : kSentAsText)
            create->add_option("--" + std::string(key), create_.attributes[key], help);

        CLI::App *get = verb("get", "The attributes of a pool, as they are now",
                             [this](Context &c) { return run_get(c, pool_, key_); });
        get->add_option("POOL", pool_, "Pool")->required();
        get->add_option("KEY", key_, "Only the value of this attribute");
        CLI::App *set = verb("set", "Change attributes of a pool in use: all of them, or none",
                             [this](Context &c) { return run_set(c, pool_, settings_); });
        set->add_option("POOL", pool_, "Pool")->required();
        set->add_option("KEY=VALUE", settings_, "New values, as the configuration file has them: mode=0600")
            ->required();

        CLI::App *remove =
            verb("delete", "End a pool", [this](Context &c) { return run_delete(c, pool_, force_, abandon_); });
        remove->add_option("NAME", pool_, "Pool")->required();
        auto *const force = remove->add_flag("--force", force_, "Even if clients are attached: end them first");
        remove->add_flag("--abandon", abandon_, "Leave clients behind whose processes cannot be found")->needs(force);

        CLI::App *drain = verb("drain", "Keep allocations out of one chunk, and take it offline once it is empty",
                               [this](Context &c) { return run_drain(c, drain_); });
        drain->add_option("POOL", drain_.pool, "Pool")->required();
        drain->add_option("--node", drain_.numa_node, "The pool's numa node; may be left out if it has only one");
        drain->add_option("--chunk", drain_.chunk, "Number of the chunk: its offset divided by the largest block")
            ->required()
            ->check(whole_number_fault);
        drain->add_flag("--undo", drain_.undo, "Let allocations in again");

        CLI::App *evict = verb("evict", "End a client's process; its blocks come back",
                               [this](Context &c) { return run_evict(c, client_id_, grace_); });
        evict->add_option("CLIENT", client_id_, "Client id, as `numacre clients` shows it")->required();
        evict->add_option("--grace", grace_, "Time between SIGTERM and SIGKILL")->capture_default_str();

        const auto holder = [](CLI::App *app, HolderArguments &arguments, const char *what) {
            app->add_option("SIZE", arguments.words, what)->required()->expected(1, 2)->type_name("");
            app->add_option("--user", arguments.user, "Of all clients of this user together, name or number");
        };
        CLI::App *quota = verb("quota", "Limit what a client, a user or all may hold; replaces both of the limits",
                               [this](Context &c) { return run_quota(c, quota_); });
        holder(quota, quota_.of,
               "[CLIENT] SIZE: client id, as `numacre clients` shows it, and what it may hold: allocations beyond it "
               "fail; none: no limit");
        quota->add_option("--pool", quota_.of.pool,
                          "Of all clients of this pool together; with --user: in this pool, default if left out");
        quota->add_option("--soft", quota_.soft, "More than this is an event, nothing fails; none if left out");

        CLI::App *reserve = verb("reserve", "Promise memory to a client or a user: others cannot take it",
                                 [this](Context &c) { return run_reserve(c, reserve_); });
        holder(reserve, reserve_, "[CLIENT] SIZE: client id, and what it is promised, used or not; none: nothing");
        reserve->add_option("--pool", reserve_.pool, "With --user: in this pool; default if left out");

        CLI::App *stats = verb("stats", "Counters by numa node and by order, like numastat",
                               [this](Context &c) { return run_stats(c, pool_); });
        optional_pool(stats);
        CLI::App *buddyinfo = verb("buddyinfo", "Free blocks by order, like /proc/buddyinfo",
                                   [this](Context &c) { return run_buddyinfo(c, pool_, heads_); });
        optional_pool(buddyinfo);
        buddyinfo->add_flag("--heads", heads_, "Block sizes above the columns");
        CLI::App *extfrag = verb("extfrag", "Fragmentation by order, like /sys/kernel/debug/extfrag",
                                 [this](Context &c) { return run_extfrag(c, pool_, heads_); });
        optional_pool(extfrag);
        extfrag->add_flag("--heads", heads_, "Block sizes above the columns");

        CLI::App *map = verb("map", "What is used, drawn", [this](Context &c) { return run_map(c, map_); });
        map->add_option("POOL", map_.pool, "Pool; all if left out");
        map->add_option("--node", map_.numa_node, "The pool's numa node; all if left out");
        map->add_option("--cells", map_.cells, "Into how many cells it is folded, at most 65536");

        CLI::App *top = verb("top", "Pools and clients, live", [this](Context &c) { return run_top(c, top_); });
        top->add_option("--interval", top_.interval, "Time between two looks, 50ms or more")->capture_default_str();
        top->add_option("--count", top_.count, "How many looks; without end if left out, one with --json")
            ->check(whole_number_fault);

        verb("doctor", "What is wrong with this machine's set-up, and the command that mends it",
             [](Context &c) { return run_doctor(c); });

        CLI::App *advise = verb("advise", "Sizes that would suit a pool's use, as lines of the config file",
                                [this](Context &c) { return run_advise(c, pool_, look_for_); });
        optional_pool(advise);
        advise->add_option("--for", look_for_, "How long to look for a peak")->capture_default_str();

        CLI::App *bench = verb("bench", "Time of an allocation and its free, by size; or replay of a trace", {});
        CLI::App *replay = bench->add_subcommand("replay", "The smallest pool in which an allocation trace completes");
        // CLI11 calls the action of the first verb last, so bench's action decides between bench and its verb replay.
        bench->callback([this, replay] {
            chosen_ = [this, replay](Context &c) {
                return replay->parsed() ? run_replay(c, replay_) : run_bench(c, bench_);
            };
        });
        replay->add_option("TRACE", replay_.traces, "CSV, as NUMACRE_TRACE=FILE records it; several: of one pool")
            ->required();
        replay->add_option("--frame", replay_.frame, "Smallest block")->capture_default_str();
        replay->add_option("--largest", replay_.largest, "Largest block, and the pool's step")->capture_default_str();
        bench->add_option("POOL", bench_.pool, "Pool")->capture_default_str();
        bench->add_flag("--private", bench_.private_pool, "A pool inside this process: needs no daemon");
        bench->add_option("--operations", bench_.operations, "Pairs a round")
            ->capture_default_str()
            ->check(whole_number_fault);
        bench->add_option("--rounds", bench_.rounds, "Rounds; the median counts")
            ->capture_default_str()
            ->check(whole_number_fault);
    }

    CLI::App &app() { return app_; }
    // An empty value would be the same as none: of a shell's variable that is not set, as in --mode "$MODE".
    void refuse_empty_values() const { refuse_empty_values(app_); }
    int run(Context &context) const { return chosen_(context); }

    std::string runtime_dir = "/run/numacre";
    std::string timeout = "10s";
    bool json = false;
    bool ascii = false;

private:
    static void refuse_empty_values(const CLI::App &app) {
        for (const CLI::Option *option : app.get_options())
            for (const std::string &value : option->results())
                if (value.empty())
                    throw ArgumentError(option->get_name() + " has an empty value: give one, or leave it out");
        for (const CLI::App *verb : app.get_subcommands()) refuse_empty_values(*verb);
    }
    CLI::App *verb(const char *name, const char *help, std::function<int(Context &)> action) {
        CLI::App *command = app_.add_subcommand(name, help);
        command->callback([this, action = std::move(action)] { chosen_ = action; });
        return command;
    }
    void optional_pool(CLI::App *command) { command->add_option("POOL", pool_, "Pool; all if left out"); }

    CLI::App app_{"numacre: watch and size the pools of numacred", "numacre"};
    std::function<int(Context &)> chosen_;
    ClientsArguments clients_;
    ChannelsArguments channels_;
    std::vector<std::string> settings_;
    std::string pool_, remove_, key_, grace_ = "5s", look_for_ = "0";
    bool force_ = false, abandon_ = false, heads_ = false;
    std::uint32_t client_id_ = 0;
    ResizeArguments resize_;
    CreateArguments create_;
    QuotaArguments quota_;
    HolderArguments reserve_;
    DrainArguments drain_;
    MapArguments map_;
    TopArguments top_;
    BenchArguments bench_;
    ReplayArguments replay_;
};

// With --json standard output is JSON in every case; people read standard error.
int report(const Arguments &arguments, int exit_code, const CallError &error) {
    std::cerr << "numacre: ";
    // With exit codes 2 and 4 our own message says all that the canonical code says.
    if (exit_code == kExitFailed) std::cerr << error.code << ": ";
    std::cerr << printable(error.what()) << '\n';
    if (arguments.json) {
        Json result;
        result["error"] = {{"code", error.code},
                           {"message", error.what()},
                           {"reason", error.reason},
                           {"remedy", error.remedy},
                           {"exit_code", exit_code}};
        print_json(std::cout, result);
    }
    return exit_code;
}

}  // namespace

int main(int argc, char **argv) {
    Arguments arguments;
    try {
        arguments.app().parse(argc, argv);
    } catch (const CLI::Success &request) {
        return arguments.app().exit(request);  // --help, --version
    } catch (const CLI::ParseError &error) {
        // A failed parse stores no option, but --json holds for this error as well.
        for (int i = 1; i < argc; ++i) arguments.json = arguments.json || std::string_view(argv[i]) == "--json";
        std::string message = error.what();
        // CLI11's sentence names the value, but not what is wrong with it. Only numbers are converted.
        constexpr std::string_view kUnconverted = "Could not convert: ";
        if (message.starts_with(kUnconverted))
            message = message.substr(kUnconverted.size()) + " is not a whole number that fits";
        // CLI11 says that a verb is missing, but not which word stood in its place.
        const std::vector<std::string> strangers = arguments.app().remaining();
        if (arguments.app().get_subcommands().empty() && !strangers.empty()) {
            message = "unknown verb or option '" + strangers.front() + "'";
        }
        return report(arguments, kExitBadArgument, CallError("INVALID_ARGUMENT", message + "; see numacre --help"));
    }
    try {
        // Never destroyed: gRPC 1.51's engine sometimes loses a wake-up when its channel goes, and waits for ever,
        // after all work and output of the verb are done.
        static Context &context = *new Context(std::cout);
        context.runtime_dir = arguments.runtime_dir;
        arguments.refuse_empty_values();
        context.timeout = parse_duration(arguments.timeout);
        if (context.timeout.count() == 0)
            throw ArgumentError("--timeout " + arguments.timeout + " leaves the daemon no time: use 1ms or more");
        context.json = arguments.json;
        context.terminal = look_at_terminal(arguments.ascii);
        return arguments.run(context);
    } catch (const ArgumentError &error) {
        return report(arguments, kExitBadArgument, CallError("INVALID_ARGUMENT", error.what()));
    } catch (const NoDaemonError &error) {
        return report(arguments, kExitNoDaemon, CallError("UNAVAILABLE", error.what()));
    } catch (const CallError &error) {
        return report(arguments, kExitFailed, error);
    } catch (const std::exception &error) {
        return report(arguments, kExitFailed, CallError("INTERNAL", error.what()));
    }
}
