#include "config.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "attach/attach_message.hpp"
#include "numacre/shm/attach_wire.hpp"
#include "os/log.hpp"
#include "spec/pool_spec.hpp"

namespace numacre::daemon {

using namespace engine;
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

Result<Config, ConfigExit> load(std::vector<std::string> arguments, bool is_root = false,
                                const std::string &environment = {}) {
    return load_config(arguments, is_root, environment);
}

class ConfigFile : public testing::Test {
protected:
    void SetUp() override {
        path_ = std::filesystem::temp_directory_path() / ("numacred-" + std::to_string(::getpid()) + ".toml");
    }
    void TearDown() override { std::filesystem::remove(path_); }

    Result<Config, ConfigExit> load_text(const std::string &text, std::vector<std::string> more = {}) {
        std::ofstream(path_) << text;
        more.insert(more.begin(), {"--config", path_});
        return load(more);
    }

    // Refused with exit code 2, and with all of these words.
    void expect_refused(const std::string &text, const std::vector<std::string> &words) {
        const auto config = load_text(text);
        ASSERT_FALSE(config) << text;
        EXPECT_EQ(config.error().code, 2);
        for (const std::string &word : words)
            EXPECT_NE(config.error().text.find(word), std::string::npos)
                << "no \"" << word << "\" in: " << config.error().text;
    }

    std::string at(int line) const { return path_.string() + ":" + std::to_string(line) + ":"; }

    std::filesystem::path path_;
};

TEST_F(ConfigFile, every_key_is_read) {
    const auto config = load_text(R"(runtime-dir = "/tmp/x"
metrics-address = "127.0.0.1:0"
topology = "synthetic:2x512M"
log-level = "debug"
log-format = "json"
reserve-hugepages = true
max-connections = 7
max-connections-per-user = 3
max-connections-per-second = 11
control-group = "4712"
control-mode = "0600"

[[pool]]
name = "first"
capacity = "64M"
online = 33554432
frame = "8K"
largest = "2M"
max-clients = 5
max-threads = 6
max-threads-per-client = 2
backing = "thp"
low-watermark = "3M"
policy = "interleave:0-2+5"
fit = "compact"
quota = "48M"
soft-quota = "40M"
user-quota = "4711=8M/4M  4712=2M"
owner = "4711"
group = "root"
mode = "0604"

[[pool]]
name = "second"
)");
    ASSERT_TRUE(config) << config.error().text;
    EXPECT_EQ(config->runtime_dir, "/tmp/x");
    EXPECT_EQ(config->metrics_address, "127.0.0.1:0");
    EXPECT_EQ(config->topology, "synthetic:2x512M");
    EXPECT_EQ(config->log_level, "debug");
    EXPECT_EQ(config->log_format, "json");
    EXPECT_TRUE(config->reserve_hugepages);
    EXPECT_EQ(config->max_connections, 7U);
    EXPECT_EQ(config->max_connections_per_user, 3U);
    EXPECT_EQ(config->max_connections_per_second, 11U);
    EXPECT_EQ(config->control_group, 4712U);
    EXPECT_EQ(config->control_mode, 0600U);
    ASSERT_EQ(config->pools.size(), 2U);
    const PoolSpec &first = config->pools[0];
    EXPECT_EQ(first.name, "first");
    EXPECT_EQ(first.capacity_bytes, 64 * kMiB);
    EXPECT_EQ(first.online_bytes, 32 * kMiB);
    EXPECT_EQ(first.frame_bytes, 8192U);
    EXPECT_EQ(first.largest_block_bytes, 2 * kMiB);
    EXPECT_EQ(first.max_clients, 5U);
    EXPECT_EQ(first.max_threads, 6U);
    EXPECT_EQ(first.max_threads_per_client, 2U);
    EXPECT_EQ(first.backing, wire::Backing::thp);
    EXPECT_EQ(first.low_watermark_bytes, 3 * kMiB);
    EXPECT_EQ(first.policy, (Policy{PolicyMode::interleave, 0b100111}));
    EXPECT_EQ(first.access, (PoolAccess{4711, 0, 0604}));
    EXPECT_EQ(first.fit, Fit::compact);
    EXPECT_EQ(config->pools[1].fit, Fit::nearby);
    EXPECT_EQ(first.quota_bytes, 48 * kMiB);
    EXPECT_EQ(first.soft_quota_bytes, 40 * kMiB);
    EXPECT_EQ(first.users, (std::vector<UserLimit>{{4711, 8 * kMiB, 4 * kMiB, 0}, {4712, 2 * kMiB, 0, 0}}));
    EXPECT_TRUE(config->pools[1].users.empty());
    EXPECT_EQ(config->pools[1].low_watermark_bytes, 0U);
    EXPECT_EQ(config->pools[1].policy, (Policy{PolicyMode::local, 0}));
    EXPECT_EQ(config->pools[1].capacity_bytes, PoolSpec{}.capacity_bytes);
}

TEST_F(ConfigFile, what_check_config_prints_is_read_back_the_same) {
    const auto config =
        load({"--pool",
              "name=a,capacity=128M,online=8M/4M/0,frame=64,largest=64K,backing=small,owner=4711,group=4712,mode=600,"
              "max-threads=9,max-threads-per-client=3,low-watermark=2M,policy=preferred:1+3-4,"
              "autosize=10%-50%:8M-64M:4M:5s,fit=best,quota=16M,soft-quota=12M,user-quota=4711=8M/4M 4712=2M",
              "--control-group", "4713", "--control-mode", "0666", "--log-format", "json", "--reserve-hugepages",
              "--metrics-address", ""});
    ASSERT_TRUE(config) << config.error().text;
    const auto again = load_text(describe(*config));
    ASSERT_TRUE(again) << again.error().text;
    const auto without_first_line = [](const std::string &text) { return text.substr(text.find('\n')); };
    EXPECT_EQ(without_first_line(describe(*again)), without_first_line(describe(*config)));
    EXPECT_EQ(again->pools[0].autosize,
              (Autosize{true, 10, 50, 8 * kMiB, 64 * kMiB, 4 * kMiB, std::chrono::seconds(5)}));
}

TEST_F(ConfigFile, quotas_that_cannot_be_are_refused) {
    const auto pool = [](const char *line) { return std::string("[[pool]]\nname = \"a\"\n") + line + "\n"; };
    expect_refused(pool("user-quota = \"4711\""), {at(3), "4711", "USER=SIZE"});
    expect_refused(pool("user-quota = \"no-such-user=1G\""), {at(3), "no-such-user"});
    expect_refused(pool("user-quota = \"4711=lots\""), {at(3), "lots"});
    expect_refused(pool("user-quota = \"4711=1G/1G\""), {at(3), "4711=1G/1G", "not below"});
    expect_refused(pool("user-quota = \"4711=1G 4711=2G\""), {at(3), "4711=2G", "twice"});
    expect_refused(pool("quota = \"1G\"\nsoft-quota = \"2G\""), {"soft-quota", "2G", "not below"});
}

TEST_F(ConfigFile, unknown_keys_are_refused_with_line_value_and_the_likely_one) {
    expect_refused("log-level = \"info\"\nmetrics-adress = \"x\"\n",
                   {at(2), "metrics-adress", "'x'", "did you mean metrics-address?"});
    expect_refused("[[pool]]\nname = \"a\"\ncapacty = \"64M\"\n", {at(3), "capacty", "64M", "did you mean capacity?"});
    expect_refused("colour = 3\n", {at(1), "colour", "3", "the keys are", "runtime-dir", "[[pool]]"});
    expect_refused("[pool]\nname = \"a\"\n", {at(1), "[[pool]]"});
    expect_refused("pool = 3\n", {at(1), "3", "[[pool]]"});
}

TEST_F(ConfigFile, wrong_types_are_refused_with_line_value_and_the_right_one) {
    expect_refused("log-level = 3\n", {at(1), "log-level", "3", "string"});
    expect_refused("reserve-hugepages = \"yes\"\n", {at(1), "reserve-hugepages", "yes", "true or false"});
    expect_refused("max-connections = \"many\"\n", {at(1), "max-connections", "many", "whole number"});
    expect_refused("max-connections = -1\n", {at(1), "-1", "whole number"});
    expect_refused("[[pool]]\ncapacity = 1.5\n", {at(2), "capacity", "1.5", "byte count"});
    expect_refused("[[pool]]\nmax-clients = true\n", {at(2), "max-clients", "true", "whole number"});
    expect_refused("[[pool]]\nname = [1]\n", {at(2), "name", "string"});
}

TEST_F(ConfigFile, wrong_values_are_refused_with_line_and_remedy) {
    expect_refused("log-level = \"loud\"\n", {at(1), "loud", "warn"});
    expect_refused("topology = \"synthetic:0x1G\"\n", {at(1), "synthetic:0x1G", "synthetic:2x512M"});
    expect_refused("metrics-address = \"nowhere\"\n", {at(1), "nowhere", "127.0.0.1:9853"});
    expect_refused("metrics-address = \"somewhere:9853\"\n", {at(1), "somewhere:9853", "IPv4", "127.0.0.1:9853"});
    expect_refused("max-connections = 0\n", {at(1), "0", "1 or more"});
    expect_refused("max-connections-per-user = 0\n", {at(1), "0", "1 or more"});
    expect_refused("max-connections-per-second = 0\n", {at(1), "0", "1 or more"});
    expect_refused("control-group = \"no-such-group\"\n", {at(1), "no-such-group", "groupadd"});
    expect_refused("control-mode = \"0777\"\n", {at(1), "0777", "use 0666"});
    expect_refused("control-mode = 660\n", {at(1), "660", "in quotes"});
    expect_refused("[[pool]]\nmode = \"rw-rw----\"\n", {at(2), "rw-rw----", "0660"});
    expect_refused("\n[[pool]]\nname = \"A b\"\n", {at(3), "A b", "a-z"});
    expect_refused("\n[[pool]]\nname = \"a\"\nframe = 3000\n", {at(2), "\"a\"", "3000", "power of two"});
    expect_refused("[[pool]]\nname = \"a\"\n\n[[pool]]\nname = \"a\"\n", {at(4), "'a'", "rename"});
    expect_refused("log-level = \"info\"\n[[pool\n", {at(2)});
}

TEST_F(ConfigFile, a_file_that_is_not_there_is_refused_by_name) {
    const auto config = load({"--config", "/nowhere/numacred.toml"});
    ASSERT_FALSE(config);
    EXPECT_EQ(config.error().code, 2);
    EXPECT_NE(config.error().text.find("/nowhere/numacred.toml"), std::string::npos);
    ASSERT_FALSE(load({"--config", "/tmp"}));  // a folder
}

TEST_F(ConfigFile, flags_win_over_the_file) {
    const auto config = load_text(
        "log-level = \"warn\"\nlog-format = \"json\"\nreserve-hugepages = true\n"
        "[[pool]]\nname = \"a\"\ncapacity = \"64M\"\nonline = \"0\"\n[[pool]]\nname = \"b\"\n",
        {"--log-level", "error", "--reserve-hugepages=false", "--pool", "name=a,capacity=8M,online=4M", "--pool",
         "name=c"});
    ASSERT_TRUE(config) << config.error().text;
    EXPECT_EQ(config->log_level, "error");
    EXPECT_EQ(config->log_format, "json");
    EXPECT_FALSE(config->reserve_hugepages);
    std::vector<std::string> names;
    for (const PoolSpec &pool : config->pools) {
        names.push_back(pool.name);
        EXPECT_EQ(pool.capacity_bytes, pool.name == "a" ? 8 * kMiB : PoolSpec{}.capacity_bytes) << pool.name;
    }
    EXPECT_EQ(names, (std::vector<std::string>{"b", "a", "c"}));
}

TEST(Config, defaults_need_neither_file_nor_flag) {
    const auto config = load({"--config", "/dev/null"});
    ASSERT_TRUE(config) << config.error().text;
    EXPECT_EQ(config->runtime_dir, "/run/numacre");
    EXPECT_EQ(config->metrics_address, "127.0.0.1:9853");
    EXPECT_EQ(config->topology, "libnuma");
    EXPECT_FALSE(config->reserve_hugepages);
    EXPECT_TRUE(config->pools.empty());
    EXPECT_EQ(config->max_connections_per_user, config->max_connections / 4);
    EXPECT_EQ(load({"--config", "/dev/null", "--max-connections", "3"})->max_connections_per_user, 1U);
    EXPECT_EQ(config->control_group, ::getegid());
    EXPECT_EQ(config->control_mode, 0660U);
    EXPECT_EQ(PoolSpec{}.access, (PoolAccess{::geteuid(), ::getegid(), 0660}));
    EXPECT_EQ(thread_limit_of(PoolSpec{}), PoolSpec{}.max_threads);
    EXPECT_TRUE(load({"--config", "/dev/null"}, true)->reserve_hugepages) << "root may reserve unless told otherwise";
}

TEST(Config, runtime_dir_comes_from_flag_then_environment) {
    EXPECT_EQ(load({"--config", "/dev/null"}, false, "/tmp/env")->runtime_dir, "/tmp/env");
    EXPECT_EQ(load({"--config", "/dev/null", "--runtime-dir", "/tmp/flag"}, false, "/tmp/env")->runtime_dir,
              "/tmp/flag");
}

TEST(Config, reserve_hugepages_takes_its_value_in_every_spelling) {
    for (const auto &[arguments, wanted] : std::vector<std::pair<std::vector<std::string>, bool>>{
             {{"--reserve-hugepages"}, true},
             {{"--reserve-hugepages", "true"}, true},
             {{"--reserve-hugepages=false"}, false},
             {{"--reserve-hugepages", "false"}, false},
             {{"--reserve-hugepages", "--log-level", "warn"}, true}}) {
        auto all = arguments;
        all.insert(all.begin(), {"--config", "/dev/null"});
        const auto config = load(all, !wanted);
        ASSERT_TRUE(config) << config.error().text;
        EXPECT_EQ(config->reserve_hugepages, wanted) << arguments.back();
    }
    EXPECT_FALSE(load({"--reserve-hugepages", "perhaps"}));
}

TEST(Config, help_and_version_end_with_0_and_wrong_flags_with_2) {
    for (const char *flag : {"--help", "--version"}) {
        const auto config = load({flag});
        ASSERT_FALSE(config);
        EXPECT_EQ(config.error().code, 0);
        EXPECT_NE(config.error().text.find("numacred"), std::string::npos);
    }
    for (const std::vector<std::string> &arguments :
         std::vector<std::vector<std::string>>{{"--metrics-adress", "127.0.0.1:0"}, {"--log-level"}, {"stray"}}) {
        const auto config = load(arguments);
        ASSERT_FALSE(config);
        EXPECT_EQ(config.error().code, 2);
        EXPECT_NE(config.error().text.find(arguments[0]), std::string::npos) << config.error().text;
    }
}

TEST(Config, every_key_of_the_file_is_a_flag) {
    const auto help = load({"--help"});
    ASSERT_FALSE(help);
    const auto config = load({"--config", "/dev/null", "--pool", "name=a"});
    ASSERT_TRUE(config) << config.error().text;
    std::istringstream lines(describe(*config));
    std::string line;
    bool in_pool = false;
    int keys = 0;
    while (std::getline(lines, line)) {
        in_pool = in_pool || line == "[[pool]]";
        const std::size_t equals = line.find(" = ");
        if (in_pool || equals == std::string::npos) continue;
        ++keys;
        EXPECT_NE(help.error().text.find("--" + line.substr(0, equals)), std::string::npos) << line;
    }
    EXPECT_EQ(keys, 12);
}

TEST(PoolFlag, numa_nodes_begin_with_sizes_of_their_own) {
    const auto spec = parse_pool_flag("name=p,capacity=64M,online=32M/0/4M");
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_EQ(spec->online_bytes_on(NumaNode{0}), 32 * kMiB);
    EXPECT_EQ(spec->online_bytes_on(NumaNode{1}), 0U);
    EXPECT_EQ(spec->online_bytes_on(NumaNode{2}), 4 * kMiB);
    EXPECT_EQ(spec->online_bytes_on(NumaNode{9}), 4 * kMiB) << "the last one is for all further ones";
    EXPECT_EQ(parse_pool_flag("name=p,capacity=64M,online=32M")->online_bytes_on(NumaNode{9}), 32 * kMiB);
    for (const char *online : {"32M/", "/32M", "32M/65M", "32M/1", "32M/x"})
        EXPECT_FALSE(parse_pool_flag(std::string("name=p,capacity=64M,online=") + online)) << online;
    EXPECT_FALSE(parse_pool_flag("name=p,capacity=64M,online=4M,autosize=10%-50%:4M-65M"));
}

TEST(PoolFlag, all_keys) {
    const auto spec = parse_pool_flag(
        "name=p,capacity=64M,online=32M,frame=8K,largest=2M,max-clients=3,max-threads=9,backing=small,"
        "owner=root,group=4712,mode=0,max-threads-per-client=9");
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_EQ(spec->name, "p");
    EXPECT_EQ(spec->capacity_bytes, 64 * kMiB);
    EXPECT_EQ(spec->online_bytes, 32 * kMiB);
    EXPECT_EQ(spec->frame_bytes, 8192U);
    EXPECT_EQ(spec->largest_block_bytes, 2 * kMiB);
    EXPECT_EQ(spec->max_clients, 3U);
    EXPECT_EQ(spec->max_threads, 9U);
    EXPECT_EQ(spec->backing, wire::Backing::small_pages);
    EXPECT_EQ(spec->access, (PoolAccess{0, 4712, 0}));
    EXPECT_EQ(thread_limit_of(*spec), 9U);
}

TEST(PoolFlag, what_is_wrong_is_named_with_a_remedy) {
    for (const auto &[text, words] : std::vector<std::pair<std::string, std::vector<std::string>>>{
             {"", {"key=value"}},
             {"default", {"\"default\"", "key=value"}},
             {"name=a,", {"key=value"}},
             {"name=a,frme=4K", {"frme = 4K", "did you mean frame?"}},
             {"name=a,frame=4K,frame=8K", {"frame", "twice"}},
             {"name=a,capacity=lots", {"capacity = lots", "1G"}},
             {"name=a,backing=floppy", {"floppy", "use hugetlb-1g, hugetlb, thp or small"}},
             {"name=a,backing=hugetlb-1g,capacity=1536M", {"1536M", "use 2G"}},
             {"name=a,max-clients=many", {"max-clients = many", "whole number"}},
             {"name=a,frame=3000", {"3000", "4K"}},
             {"name=a,frame=32", {"32", "64"}},
             {"name=a,largest=3M", {"3M", "4M"}},
             {"name=a,frame=64K,largest=4K", {"4K", "64K"}},
             {"name=a,largest=2G,capacity=8G,online=2G", {"2G", "1G"}},
             {"name=a,capacity=0,online=0", {"capacity is 0"}},
             {"name=a,capacity=66M", {"66M", "68M"}},
             {"name=a,capacity=64M,online=128M", {"128M", "64M"}},
             {"name=a,online=5M", {"5M", "8M"}},
             {"name=a,largest=64K,online=1M", {"1M", "2M"}},
             {"name=a,largest=64K,capacity=1M,online=0", {"1M", "2M", "small"}},
             {"name=a,max-clients=0", {"max-clients 0", "1 to"}},
             {"name=a,max-clients=70000", {"max-clients 70000"}},
             {"name=a,max-threads=65535", {"max-threads 65535"}},
             {"name=a,max-threads-per-client=0", {"max-threads-per-client = 0", "1 or more"}},
             {"name=a,max-threads=5,max-threads-per-client=6", {"max-threads-per-client 6", "max-threads 5"}},
             {"name=a,owner=no-such-user", {"owner = no-such-user", "getent passwd"}},
             {"name=a,owner=4294967295", {"owner = 4294967295", "a number"}},
             {"name=a,owner=", {"owner = ", "getent passwd"}},
             {"name=a,group=no-such-group", {"group = no-such-group", "groupadd"}},
             {"name=a,mode=0770", {"mode = 0770", "use 0660"}},
             {"name=a,mode=1660", {"mode = 1660", "use 0660"}},
             {"name=a,mode=0668", {"mode = 0668", "octal"}},
             {"name=a,mode=", {"mode = ", "octal"}},
             {"name=a,mode=00660", {"mode = 00660", "octal"}},
         }) {
        const auto spec = parse_pool_flag(text);
        ASSERT_FALSE(spec) << text;
        EXPECT_EQ(spec.error().code, Errc::bad_argument);
        EXPECT_NE(spec.error().message.find("--pool " + text), std::string::npos) << spec.error().message;
        for (const std::string &word : words)
            EXPECT_NE(spec.error().message.find(word), std::string::npos)
                << "no \"" << word << "\" in: " << spec.error().message;
    }
}

TEST(PoolSpec, pages_of_1_gib_want_whole_ones) {
    constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
    PoolSpec spec;
    spec.backing = wire::Backing::hugetlb_1g;
    EXPECT_EQ(resize_unit_bytes(spec), kGiB);
    spec.capacity_bytes = 4 * kGiB;
    spec.online_bytes = 0;
    const auto geometry = geometry_of(spec);
    ASSERT_TRUE(geometry) << geometry.error().message;
    EXPECT_EQ(geometry->chunk_bytes(), std::uint64_t{4} << 20) << "a unit is many chunks, a chunk stays what it was";

    struct Case {
        void (*spoil)(PoolSpec &);
        std::vector<const char *> words;
    };
    for (const Case &one : {
             Case{[](PoolSpec &s) { s.capacity_bytes = kGiB + kGiB / 2; }, {"1536M", "1G pages", "use 2G", "hugetlb"}},
             Case{[](PoolSpec &s) { s.online_bytes = kGiB / 4; }, {"online 256M", "use 1G", "or backing hugetlb"}},
             Case{[](PoolSpec &s) {
                      s.autosize.is_on = true;
                      s.autosize.min_bytes = kGiB / 16;
                      s.autosize.max_bytes = kGiB / 2;
                  },
                  {"autosize from 64M to 512M", "by 1G", "use up to 1G"}},
         }) {
        PoolSpec bad = spec;
        one.spoil(bad);
        const auto refused = geometry_of(bad);
        ASSERT_FALSE(refused);
        for (const char *word : one.words)
            EXPECT_NE(refused.error().message.find(word), std::string::npos) << refused.error().message;
    }
}

TEST(PoolSpec, small_pages_allow_units_below_a_hugepage) {
    PoolSpec spec;
    spec.capacity_bytes = kMiB;
    spec.online_bytes = 0;
    spec.largest_block_bytes = 65536;
    EXPECT_FALSE(geometry_of(spec));
    spec.backing = wire::Backing::small_pages;
    const auto geometry = geometry_of(spec);
    ASSERT_TRUE(geometry) << geometry.error().message;
    EXPECT_EQ(geometry->chunk_count(), 16U);
    EXPECT_EQ(resize_unit_bytes(spec), 65536U);
}

TEST(PoolSpec, names) {
    for (const char *good : {"a", "default", "0.x_y-z"}) EXPECT_TRUE(is_pool_name(good)) << good;
    EXPECT_TRUE(is_pool_name(std::string(63, 'a')));
    for (const char *bad : {"", ".", "..", "A", "a b", "../a", "a/b", "\x1b[2J", "\xc3\xa4"})
        EXPECT_FALSE(is_pool_name(bad)) << bad;
    EXPECT_FALSE(is_pool_name(std::string(64, 'a')));
}

TEST(Log, values_from_outside_cannot_forge_a_line_or_a_field) {
    const std::string evil = "x\" level=error\nforged\x1b";
    const std::string text = log::render("client attached", {{"comm", evil}, {"pid", 7}}, log::Format::text);
    EXPECT_EQ(text, "client attached comm=\"x\\\" level=error\\u000aforged\\u001b\" pid=7");
    const std::string json =
        log::render("client attached", {{"comm", evil}, {"pid", 7}, {"ok", true}}, log::Format::json);
    EXPECT_EQ(
        json,
        "\"message\":\"client attached\",\"comm\":\"x\\\" level=error\\u000aforged\\u001b\",\"pid\":7,\"ok\":true");
    EXPECT_EQ(log::render("two\nlines", {}, log::Format::text).find('\n'), std::string::npos);
}

class AttachMessage : public testing::Test {
protected:
    static std::optional<Failure> check(const wire::AttachRequest &request, std::size_t size) {
        const auto bytes = std::as_bytes(std::span(&request, 1));
        return check_message(size, bytes.first(std::min(size, bytes.size())), wire::MessageType::attach_request,
                             sizeof request);
    }
    wire::AttachRequest request_;
};

TEST_F(AttachMessage, a_good_one_passes) {
    EXPECT_FALSE(check(request_, sizeof request_));
}

TEST_F(AttachMessage, every_other_size_is_refused) {
    for (std::size_t size = 1; size < 2 * sizeof request_; ++size)
        EXPECT_EQ(check(request_, size).has_value(), size != sizeof request_) << size;
    request_.header.size_bytes = 87;
    EXPECT_TRUE(check(request_, sizeof request_));
}

TEST_F(AttachMessage, other_magic_and_type_are_refused_and_another_version_is_a_mismatch) {
    request_.header.magic ^= 1;
    EXPECT_EQ(check(request_, sizeof request_)->code, Errc::bad_argument);
    request_ = {};
    request_.header.type = wire::MessageType::detach_request;
    EXPECT_EQ(check(request_, sizeof request_)->code, Errc::bad_argument);
    request_ = {};
    request_.header.version = 4711;
    const auto mismatch = check(request_, sizeof request_);
    ASSERT_TRUE(mismatch);
    EXPECT_EQ(mismatch->code, Errc::version_mismatch);
    EXPECT_NE(mismatch->message.find("4711"), std::string::npos);
    EXPECT_NE(mismatch->message.find("version " + std::to_string(wire::kVersion)), std::string::npos);
}

}  // namespace
}  // namespace numacre::daemon
