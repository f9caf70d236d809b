// The real `numacre` program against a control plane of fixed figures: every verb, for people and as JSON, and what
// goes wrong. Needs NUMACRE_BIN_DIR and NUMACRE_SOURCE_DIR.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/fake_control.hpp"

extern char **environ;

namespace numacre::test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Json = nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

std::string from_environment(const char *name) {
    const char *value = std::getenv(name);
    return value != nullptr ? value : "";
}

std::string read_file(const fs::path &path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

// What standard JSON leaves open is closed here: no key twice, sizes are whole numbers, nothing behind the document.
Json strict_json(const std::string &text) {
    std::vector<std::set<std::string>> keys;
    const auto watch = [&](int, Json::parse_event_t event, Json &value) {
        if (event == Json::parse_event_t::object_start) keys.emplace_back();
        if (event == Json::parse_event_t::object_end) keys.pop_back();
        if (event == Json::parse_event_t::key) {
            EXPECT_TRUE(keys.back().insert(value.get<std::string>()).second) << "twice: " << value;
        }
        return true;
    };
    Json json = Json::parse(text, watch, false);
    EXPECT_FALSE(json.is_discarded()) << "not JSON: " << text;
    return json;
}

void collect_keys(const Json &json, std::set<std::string> &keys) {
    if (json.is_object()) {
        for (const auto &[key, value] : json.items()) {
            keys.insert(key);
            if (key.ends_with("_bytes") || key == "bytes") {
                EXPECT_TRUE(value.is_number_unsigned()) << key << ": " << value;
            }
        }
    }
    if (json.is_structured()) {
        for (const Json &value : json) collect_keys(value, keys);
    }
}

struct Outcome {
    int exit_code = -1;
    std::string out;
    std::string err;
};

class CliFake : public testing::Test {
protected:
    void SetUp() override {
        ASSERT_NE(from_environment("NUMACRE_BIN_DIR"), "") << "says where the numacre program is";
        ASSERT_NE(from_environment("NUMACRE_SOURCE_DIR"), "") << "says where the tree is";
        program_ = from_environment("NUMACRE_BIN_DIR") + "/numacre";
        ASSERT_TRUE(fs::exists(program_)) << program_;
        std::string pattern = testing::TempDir() + "numacre-cli-XXXXXX";
        ASSERT_NE(mkdtemp(pattern.data()), nullptr);
        directory_ = pattern;
        start();
    }
    void TearDown() override {
        server_.reset();
        fs::remove_all(directory_);
    }
    void start() {
        server_ = std::make_unique<FakeControlServer>(directory_);
        ASSERT_TRUE(server_->serving());
    }
    FakeControl &fake() { return server_->service(); }

    pid_t spawn(const Words &words, posix_spawn_file_actions_t &actions, const Words &extra_environment = {}) const {
        std::vector<char *> arguments{const_cast<char *>("numacre")};
        for (const std::string &word : words) arguments.push_back(const_cast<char *>(word.c_str()));
        arguments.push_back(nullptr);
        std::vector<char *> environment;
        for (const std::string &variable : extra_environment)
            environment.push_back(const_cast<char *>(variable.c_str()));
        for (char **variable = environ; *variable != nullptr; ++variable) {
            const std::string name = std::string(*variable).substr(0, std::strcspn(*variable, "="));
            if (name != "NUMACRE_RUNTIME_DIR" && name != "NO_COLOR" && name != "TERM" && name != "COLUMNS") {
                environment.push_back(*variable);
            }
        }
        environment.push_back(nullptr);
        pid_t pid = -1;
        EXPECT_EQ(posix_spawn(&pid, program_.c_str(), &actions, nullptr, arguments.data(), environment.data()), 0);
        return pid;
    }

    static int wait_for(pid_t pid) {
        int status = 0;
        EXPECT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }

    // Runs the program with output into files.
    Outcome run_bare(const Words &words, const Words &environment = {}) const {
        const std::string out = directory_ + "/out", err = directory_ + "/err";
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        const pid_t pid = spawn(words, actions, environment);
        posix_spawn_file_actions_destroy(&actions);
        Outcome outcome;
        outcome.exit_code = wait_for(pid);
        outcome.out = read_file(out);
        outcome.err = read_file(err);
        return outcome;
    }
    Outcome run(Words words) const {
        words.insert(words.begin(), {"--runtime-dir", directory_});
        return run_bare(words);
    }
    Json run_json(Words words, int exit_code = 0) const {
        words.push_back("--json");
        const Outcome outcome = run(words);
        EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
        return strict_json(outcome.out);
    }

    std::string program_;
    std::string directory_;
    std::unique_ptr<FakeControlServer> server_;
};

const std::vector<Words> kEveryVerb{
    {"status"},
    {"pools"},
    {"clients"},
    {"channels"},
    {"names"},
    {"nodes"},
    {"resize", "default", "--node", "1", "+64M"},
    {"create", "extra", "--capacity", "1G", "--online", "64M"},
    {"get", "default"},
    {"set", "default", "mode=0600"},
    {"delete", "default"},
    {"drain", "default", "--node", "0", "--chunk", "3"},
    {"evict", "7", "--grace", "1s"},
    {"quota", "7", "16M"},
    {"reserve", "7", "16M"},
    {"stats"},
    {"buddyinfo"},
    {"extfrag"},
    {"map"},
    {"top", "--interval", "50ms", "--count", "1"},
    {"doctor"},
    {"advise"},
    {"bench", "--private", "--operations", "50", "--rounds", "2"},
};

TEST_F(CliFake, every_verb_prints_something_for_people) {
    for (const Words &words : kEveryVerb) {
        SCOPED_TRACE(words[0]);
        const Outcome outcome = run(words);
        // Whether this machine is in order is not for this test to say.
        if (words[0] != "doctor") {
            EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        }
        EXPECT_THAT(outcome.out, Not(IsEmpty()));
        EXPECT_THAT(outcome.out, Not(HasSubstr("\033")))
            << "no terminal, no escape sequences; not from a client's name either";
        EXPECT_THAT(outcome.err, IsEmpty());
    }
}

TEST_F(CliFake, every_verb_prints_one_strict_json_document_whose_keys_are_documented) {
    const std::string manual = read_file(from_environment("NUMACRE_SOURCE_DIR") + "/client/cli/README.md");
    ASSERT_THAT(manual, Not(IsEmpty()));
    for (Words words : kEveryVerb) {
        SCOPED_TRACE(words[0]);
        words.push_back("--json");
        const Outcome outcome = run(words);
        if (words[0] != "doctor") {
            EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        }
        const Json json = strict_json(outcome.out);
        EXPECT_TRUE(json.is_object());
        std::set<std::string> keys;
        collect_keys(json, keys);
        for (const std::string &key : keys) EXPECT_THAT(manual, HasSubstr("`" + key + "`"));
        EXPECT_THAT(manual, HasSubstr("| `" + words[0]));
    }
}

TEST_F(CliFake, json_and_runtime_dir_work_before_and_behind_the_verb) {
    for (const Words &words : std::vector<Words>{{"--runtime-dir", directory_, "--json", "status"},
                                                 {"--runtime-dir", directory_, "status", "--json"},
                                                 {"status", "--json", "--runtime-dir", directory_}}) {
        const Outcome outcome = run_bare(words);
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        EXPECT_EQ(strict_json(outcome.out)["daemon"]["version"], "9.9.9");
    }
    const Outcome by_environment = run_bare({"pools"}, {"NUMACRE_RUNTIME_DIR=" + directory_});
    EXPECT_EQ(by_environment.exit_code, 0) << by_environment.err;
    EXPECT_THAT(by_environment.out, HasSubstr("default"));
}

TEST_F(CliFake, status_has_the_figures) {
    const Json json = run_json({"status"});
    const Json &pool = json.at("pools").at(0);
    EXPECT_EQ(pool.at("used_bytes"), 4 * kMiB);
    EXPECT_EQ(pool.at("nodes").at(1).at("backing"), "small");
    EXPECT_EQ(pool.at("nodes").at(1).at("backing_note"), "0 of 128 hugepages were free");
    EXPECT_EQ(pool.at("failures").at("out_of_frames"), 3);
    EXPECT_EQ(pool.at("clients_reaped"), 2);
    EXPECT_EQ(pool.at("reclaimed_bytes"), 5 * kMiB);
    EXPECT_EQ(pool.at("created"), "2001-09-09T01:46:40Z");
    const std::string text = run({"status"}).out;
    EXPECT_THAT(text,
                AllOf(HasSubstr("numacred 9.9.9"), HasSubstr("small (4 KiB pages)"), HasSubstr("0 of 128 hugepages"),
                      HasSubstr("failed allocations: 3 out of frames"), HasSubstr("2 clients, 5 MiB given back")));
}

TEST_F(CliFake, status_says_what_is_in_quarantine_if_anything_is) {
    EXPECT_THAT(run({"status"}).out, Not(HasSubstr("quarantine")));
    EXPECT_EQ(run_json({"status"})["pools"][0]["quarantined_bytes"], 0);
    fake().has_quarantine = true;
    EXPECT_THAT(run({"status"}).out, HasSubstr("  in quarantine: 1.5 MiB (node 0: 1 MiB, node 1: 512 KiB) of what is"));
    const Json pool = run_json({"status"})["pools"][0];
    EXPECT_EQ(pool["quarantined_bytes"], kMiB + kMiB / 2);
    EXPECT_EQ(pool["nodes"][1]["quarantined_bytes"], kMiB / 2);
}

TEST_F(CliFake, a_corrupt_pool_makes_status_end_with_3_and_is_still_shown) {
    fake().corrupt = true;
    const Outcome outcome = run({"status"});
    EXPECT_EQ(outcome.exit_code, 3);
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("CORRUPT: leaf 12"), HasSubstr("DATA_LOSS")));
    const Json json = run_json({"status"}, 3);
    EXPECT_EQ(json["pools"][0]["state"], "corrupt");
    EXPECT_TRUE(json["pools"][0]["failures"].is_null());
    const Json doctor = run_json({"doctor"}, 1);
    EXPECT_GE(doctor["problems"].get<int>(), 1);
    EXPECT_THAT(run({"top", "--interval", "50ms", "--count", "1"}).out, HasSubstr("CORRUPT"));
}

TEST_F(CliFake, client_names_cannot_steer_the_terminal) {
    const Outcome outcome = run({"clients"});
    EXPECT_THAT(outcome.out, HasSubstr("?[2Jevil?"));
    EXPECT_EQ(run_json({"clients"})["clients"][1]["comm"], "\033[2Jevil\n") << "JSON says it as it is, escaped";
}

TEST_F(CliFake, blocks_say_who_holds_them_and_how_long) {
    const std::string text = run({"clients", "default", "--blocks", "--client", "8", "--limit", "7"}).out;
    EXPECT_THAT(text, AllOf(HasSubstr("3 d"), HasSubstr("0x5000"), HasSubstr("4243"), HasSubstr("?[2Jevil?"),
                            HasSubstr("2 blocks of 257 in use (1 MiB)")));
    EXPECT_EQ(fake().blocks().pool(), "default");
    EXPECT_EQ(fake().blocks().client_id(), 8U);
    EXPECT_EQ(fake().blocks().limit(), 7U);
    const Json json = run_json({"clients", "--blocks"});
    EXPECT_EQ(json["total_blocks"], 257);
    EXPECT_EQ(json["blocks"][0], Json({{"pool", "default"},
                                       {"client_id", 8},
                                       {"node", 1},
                                       {"offset_bytes", 0x5000},
                                       {"bytes", 8192},
                                       {"requested_bytes", 5000},
                                       {"published", false},
                                       {"held_seconds", 3 * 86'400 + 5}}));
    EXPECT_EQ(fake().blocks().limit(), 100U);
    const Json clients = run_json({"clients"})["clients"];
    EXPECT_TRUE(clients[0]["oldest_held_seconds"].is_null());
    EXPECT_EQ(clients[1]["oldest_held_seconds"], 3 * 86'400 + 5);
    EXPECT_EQ(run({"clients", "--client", "8"}).exit_code, 2) << "it says nothing without --blocks";
    EXPECT_EQ(run({"clients", "--blocks", "--limit", "0"}).exit_code, 2);
}

TEST_F(CliFake, nodes_has_distances_hugepages_and_shares) {
    const std::string text = run({"nodes"}).out;
    EXPECT_THAT(text, AllOf(HasSubstr("available: 2 nodes"), HasSubstr("node 1 cpus: 2-3"),
                            HasSubstr("hugepages of 2 MiB: 128 reserved, 64 free"),
                            HasSubstr("node 0 pool default (its node 0): 256 MiB online of 1 GiB"),
                            HasSubstr("  0:  10  21\n  1:  21  10\n")));
    EXPECT_EQ(run_json({"nodes"})["nodes"][1]["distances"], Json({21, 10}));
}

TEST_F(CliFake, resize_takes_sizes_and_steps) {
    for (const auto &[size, wanted] : std::vector<std::pair<std::string, std::uint64_t>>{
             {"512M", 512 * kMiB}, {"+512M", 768 * kMiB}, {"-256M", 0}, {"-64M", 192 * kMiB}}) {
        SCOPED_TRACE(size);
        const Json json = run_json({"resize", "default", "--node", "1", size});
        EXPECT_EQ(fake().resize().online_bytes(), wanted);
        EXPECT_EQ(fake().resize().node(), 1U);
        EXPECT_FALSE(fake().resize().dry_run());
        EXPECT_EQ(json["online_bytes"], wanted);
        EXPECT_EQ(json["done"], true);
        EXPECT_TRUE(json["error"].is_null());
    }
    EXPECT_THAT(run({"resize", "default", "--node", "1", "512M"}).out,
                AllOf(HasSubstr("384 MiB online, target 512 MiB: half way\n"), HasSubstr("512 MiB online now"),
                      HasSubstr("the last word")));
}

TEST_F(CliFake, resize_names_who_blocks_a_shrink) {
    fake().shrink_blocked = true;
    const Outcome outcome = run({"resize", "default", "--node", "0", "-128M"});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("blocks in the way"), HasSubstr("relay"), HasSubstr("4242"),
                                   HasSubstr("3 MiB"), HasSubstr("nobody that is attached")));
    EXPECT_THAT(outcome.err, HasSubstr("ABORTED: in use: 3 MiB by relay"));
    const Json json = run_json({"resize", "default", "--node", "0", "-128M"}, 1);
    EXPECT_EQ(json["blocked_by"][0]["pid"], 4242);
    EXPECT_EQ(json["error"]["code"], "ABORTED");
    const Json dry = run_json({"resize", "default", "--node", "0", "--dry-run", "-128M"}, 1);
    EXPECT_TRUE(fake().resize().dry_run());
    EXPECT_EQ(dry["dry_run"], true);
    EXPECT_THAT(dry["blocked_by"], SizeIs(2));
}

TEST_F(CliFake, an_interrupt_cancels_a_resize_and_says_what_has_become_of_it) {
    fake().resize_hangs = true;
    const std::string out = directory_ + "/out";
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const pid_t pid = spawn({"--runtime-dir", directory_, "resize", "default", "--node", "0", "512M"}, actions);
    posix_spawn_file_actions_destroy(&actions);
    // The program has been told how far the resize came: what is lost again is counted from there.
    while (read_file(out).find("192 MiB online") == std::string::npos)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(kill(pid, SIGINT), 0);
    EXPECT_EQ(wait_for(pid), 1);
    while (!fake().resize_cancelled) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_THAT(read_file(out),
                AllOf(HasSubstr("64 MiB online now"), HasSubstr("128 MiB that had come online went back"),
                      HasSubstr("stopped on request")));
}

TEST_F(CliFake, who_may_attach_is_shown) {
    EXPECT_THAT(run({"status"}).out, HasSubstr("(at most 256), access root:dpdk 0640\n"));
    EXPECT_THAT(run({"pools"}).out, AllOf(HasSubstr("ACCESS"), HasSubstr("root:dpdk 0640")));
    const Json pool = run_json({"pools"})["pools"][0];
    EXPECT_EQ(pool["owner"], "root");
    EXPECT_EQ(pool["group"], "dpdk");
    EXPECT_EQ(pool["mode"], "0640");
}

TEST_F(CliFake, modes_that_mean_nothing_for_a_pool_are_bad_arguments) {
    for (const char *mode : {"0777", "0667", "1660", "0668", "rw", "00660", "0"}) {
        const Outcome outcome = run({"create", "extra", "--capacity", "1G", "--online", "64M", "--mode", mode});
        EXPECT_EQ(outcome.exit_code, 2) << mode;
        EXPECT_THAT(outcome.err, AllOf(HasSubstr("mode"), HasSubstr(mode)));
    }
}

TEST_F(CliFake, names_say_what_they_are_bound_to_and_are_removed) {
    const std::string table = run({"names", "default"}).out;
    EXPECT_THAT(table,
                MatchesRegex("(.|\n)*first-block +default +reference +0xfedcba9876543210 +client 7 +1000 +5\n(.|\n)*"));
    EXPECT_THAT(table, MatchesRegex("(.|\n)*orders +default +objects +default.orders +pool +0 +7\n(.|\n)*"));
    const Json names = run_json({"names"}).at("names");
    EXPECT_EQ(names.at(0).at("reference"), 0xfedc'ba98'7654'3210U);
    EXPECT_EQ(names.at(0).at("objects"), nullptr);
    EXPECT_EQ(names.at(1).at("client_id"), nullptr);
    EXPECT_EQ(names.at(1).at("reference"), nullptr);
    EXPECT_THAT(run({"names", "default", "--remove", "orders"}).out,
                HasSubstr("name orders of pool default is removed"));
    EXPECT_EQ(run_json({"names", "default", "--remove", "orders"}).at("removed"), true);
    EXPECT_THAT(run({"names", "default", "--remove", "nobody"}).err, HasSubstr("NOT_FOUND: no name nobody"));
    EXPECT_EQ(run({"names", "--remove", "orders"}).exit_code, 2) << "of which pool?";
}

TEST_F(CliFake, channels_say_how_full_they_are_and_who_sends_and_receives) {
    const std::string table = run({"channels", "default"}).out;
    EXPECT_THAT(table,
                MatchesRegex("(.|\n)*frames +default +queue +900 +24 +1024 +924 MiB +1 min 5 s +2 +0 +5000 +4100 "
                             "+7 +31 +0 +1000 +while needed +open, senders sleep\n(.|\n)*"));
    EXPECT_THAT(table, HasSubstr("ended, removed\n"));
    EXPECT_THAT(table, MatchesRegex("(.|\n)*frames +default +8 +4243 +\\?\\[2Jevil\\? +2 +2 +0\n"));
    EXPECT_THAT(table, Not(HasSubstr("SENT/S"))) << "one look gives no rate";
    const Json channel = run_json({"channels"}).at("channels").at(0);
    EXPECT_EQ(channel.at("waiting_messages"), 900);
    EXPECT_EQ(channel.at("returned_messages"), 24);
    EXPECT_EQ(channel.at("waiting_bytes"), 924 * kMiB);
    EXPECT_EQ(channel.at("oldest_seconds"), 65);
    EXPECT_EQ(channel.at("redelivered_messages"), 7);
    EXPECT_EQ(channel.at("kind"), "queue");
    EXPECT_EQ(channel.at("dropped_messages"), 31);
    EXPECT_EQ(channel.at("overtaken_messages"), 0);
    EXPECT_EQ(run_json({"channels"}).at("channels").at(1).at("kind"), "queue") << "of an older daemon";
    EXPECT_EQ(channel.at("sent_per_second"), nullptr);
    EXPECT_EQ(channel.at("clients").at(0).at("pid"), 4243);
    EXPECT_EQ(run_json({"channels"}).at("channels").at(1).at("oldest_seconds"), nullptr);
    const Json twice = run_json({"channels", "--interval", "50ms"}).at("channels");
    EXPECT_GT(twice.at(0).at("sent_per_second").get<double>(), 0);
    EXPECT_GT(twice.at(0).at("received_per_second").get<double>(), 0);
    EXPECT_EQ(twice.at(1).at("sent_per_second"), 0);
    EXPECT_THAT(run({"channels", "--interval", "50ms"}).out, HasSubstr("SENT/S"));
}

TEST_F(CliFake, channels_are_removed_and_with_force_ended) {
    EXPECT_THAT(run({"channels", "default", "--remove", "jobs"}).out,
                HasSubstr("channel jobs of pool default is removed\n"));
    EXPECT_FALSE(fake().removed_channel().end());
    EXPECT_THAT(
        run({"channels", "default", "--remove", "frames"}).out,
        HasSubstr("channel frames of pool default goes when 1 client closes it; --force also ends the stream\n"));
    EXPECT_THAT(run({"channels", "default", "--remove", "frames", "--force"}).out,
                HasSubstr("channel frames of pool default has ended, and goes when 1 client closes it\n"));
    EXPECT_TRUE(fake().removed_channel().end());
    EXPECT_EQ(fake().removed_channel().pool(), "default");
    EXPECT_EQ(fake().removed_channel().name(), "frames");
    const Json removed = run_json({"channels", "default", "--remove", "frames"});
    EXPECT_EQ(removed.at("removed"), false);
    EXPECT_EQ(removed.at("opened_by"), 1);
    EXPECT_EQ(removed.at("ended"), false);
    EXPECT_THAT(run({"channels", "default", "--remove", "nobody"}).err, HasSubstr("NOT_FOUND: no channel nobody"));
}

TEST_F(CliFake, clients_leaves_channels_out_of_the_table) {
    const std::string table = run({"clients"}).out;
    EXPECT_THAT(table, Not(HasSubstr("frames")));
    EXPECT_THAT(table, HasSubstr("\nand 1 channel with 512 KiB in messages: numacre channels\n"));
    EXPECT_EQ(run_json({"clients"})["clients"][2]["state"], "channel") << "the holders of blocks, all of them";
}

TEST_F(CliFake, create_delete_drain_and_evict_send_what_was_asked) {
    run_json({"create",        "extra", "--capacity", "1G",           "--online",  "64M",
              "--frame",       "64K",   "--largest",  "8M",           "--backing", "small",
              "--max-clients", "9",     "--owner",    "alice",        "--group",   "4712",
              "--mode",        "0604",  "--reclaim",  "quarantine:5m"});
    EXPECT_EQ(fake().create().name(), "extra");
    EXPECT_EQ(fake().create().capacity_bytes(), 1024 * kMiB);
    EXPECT_EQ(fake().create().online_bytes(), 64 * kMiB);
    EXPECT_EQ(fake().create().frame_bytes(), 65536U);
    EXPECT_EQ(fake().create().largest_block_bytes(), 8 * kMiB);
    EXPECT_EQ(fake().create().backing(), v1::BACKING_SMALL_PAGES);
    EXPECT_EQ(fake().create().max_clients(), 9U);
    EXPECT_EQ(fake().create().owner(), "alice");
    EXPECT_EQ(fake().create().group(), "4712");
    EXPECT_EQ(fake().create().mode(), 0604U);
    EXPECT_EQ(fake().create().reclaim(), "quarantine:5m");
    run_json({"create", "extra", "--capacity", "4G", "--online", "1G", "--backing", "hugetlb-1g"});
    EXPECT_EQ(fake().create().backing(), v1::BACKING_HUGETLB_1G);
    run_json({"create", "extra", "--capacity", "1G", "--online", "64M"});
    EXPECT_EQ(fake().create().frame_bytes(), 0U) << "the daemon chooses";
    EXPECT_EQ(fake().create().owner() + fake().create().group(), "") << "the daemon's own";
    EXPECT_EQ(fake().create().mode(), 0U);
    EXPECT_EQ(fake().create().backing(), v1::BACKING_UNSPECIFIED);

    EXPECT_EQ(run_json({"delete", "default", "--force"})["deleted"], true);
    EXPECT_TRUE(fake().deletion().force());
    run_json({"drain", "default", "--node", "1", "--chunk", "5", "--undo"});
    EXPECT_EQ(fake().drain().node(), 1U);
    EXPECT_EQ(fake().drain().chunk(), 5U);
    EXPECT_TRUE(fake().drain().undo());
    run_json({"evict", "7", "--grace", "1500ms"});
    EXPECT_EQ(fake().evict().client_id(), 7U);
    EXPECT_EQ(fake().evict().grace().seconds(), 1);
    EXPECT_EQ(fake().evict().grace().nanos(), 500'000'000);
}

TEST_F(CliFake, get_prints_all_attributes_or_the_value_of_one) {
    EXPECT_EQ(run({"get", "default"}).out,
              "ATTRIBUTE   VALUE  CHANGED BY\n"
              "capacity    1G     -\n"
              "user-quota  -      numacre set\n"
              "mode        0660   numacre set\n");
    EXPECT_EQ(run({"get", "default", "mode"}).out, "0660\n");
    EXPECT_EQ(run({"get", "default", "user-quota"}).out, "\n");
    const Json all = run_json({"get", "default"});
    EXPECT_EQ(all["pool"], "default");
    EXPECT_THAT(all["attributes"], SizeIs(3));
    EXPECT_EQ(run_json({"get", "default", "capacity"})["attributes"],
              Json::array({{{"key", "capacity"},
                            {"value", "1G"},
                            {"help", "Help of capacity"},
                            {"changed_by", nullptr},
                            {"fixed_because", "it is so: make another pool"}}}));
    const auto unknown = run({"get", "default", "colour"});
    EXPECT_EQ(unknown.exit_code, 2);
    EXPECT_THAT(unknown.err, HasSubstr("'colour': a pool has capacity, user-quota, mode"));
    EXPECT_THAT(run({"get", "second"}).err, HasSubstr("NOT_FOUND"));
}

TEST_F(CliFake, set_sends_all_changes_in_one_call_and_prints_what_has_become_of_them) {
    EXPECT_EQ(run({"set", "default", "mode=0600", "user-quota="}).out, "user-quota = \nmode = 0600\n");
    EXPECT_EQ(fake().settings().attributes().size(), 2U);
    EXPECT_EQ(fake().settings().attributes().at("user-quota"), "");
    const Json one = run_json({"set", "default", "user-quota=alice=1G 1000=2G"});
    EXPECT_THAT(one["attributes"], SizeIs(1));
    EXPECT_EQ(one["attributes"][0]["value"], "alice=1G 1000=2G");
    for (const Words &words : {Words{"set", "default"}, Words{"set", "default", "mode"}, Words{"set", "default", "=1"},
                               Words{"set", "default", "mode=0600", "mode=0660"}})
        EXPECT_EQ(run(words).exit_code, 2) << words.back();
    EXPECT_THAT(run({"set", "second", "mode=0600"}).err, HasSubstr("NOT_FOUND"));
}

TEST_F(CliFake, quota_sets_both_limits_and_none_lifts_them) {
    EXPECT_EQ(run_json({"quota", "7", "1G", "--soft", "768M"}),
              Json({{"client_id", 7}, {"quota_bytes", 1024 * kMiB}, {"soft_quota_bytes", 768 * kMiB}}));
    EXPECT_EQ(fake().quota().client_id(), 7U);
    EXPECT_EQ(fake().quota().quota_bytes(), 1024 * kMiB);
    EXPECT_EQ(fake().quota().soft_bytes(), 768 * kMiB);
    EXPECT_EQ(run({"quota", "7", "none", "--soft", "4K"}).out, "client 7: quota none, soft quota 4 KiB\n");
    EXPECT_EQ(fake().quota().quota_bytes(), 0U);
    EXPECT_EQ(fake().quota().soft_bytes(), 4096U);
    EXPECT_EQ(run({"quota", "7", "none"}).out, "client 7: quota none, soft quota none\n");
    EXPECT_EQ(fake().quota().soft_bytes(), 0U);
    EXPECT_THAT(run({"quota", "99", "1G"}).err, HasSubstr("NOT_FOUND: no client 99"));
    const Json clients = run_json({"clients"})["clients"];
    EXPECT_EQ(clients[0]["quota_bytes"], 16 * kMiB);
    EXPECT_EQ(clients[0]["soft_quota_bytes"], 12 * kMiB);
    EXPECT_THAT(run({"clients"}).out, AllOf(HasSubstr("SOFT"), HasSubstr("12 MiB")));
}

TEST_F(CliFake, a_name_that_is_taken_ends_with_1) {
    const Outcome outcome = run({"create", "default", "--capacity", "1G", "--online", "64M"});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, StartsWith("numacre: ALREADY_EXISTS: "));
}

TEST_F(CliFake, sizes_of_numa_nodes_and_a_policy_are_sent_and_shown) {
    run_json({"create", "extra", "--capacity", "1G", "--online", "64M/8M", "--autosize", "10%-50%:8M-1G"});
    ASSERT_EQ(fake().create().node_online_bytes_size(), 2);
    EXPECT_EQ(fake().create().node_online_bytes(1), 8 * kMiB);
    EXPECT_EQ(fake().create().autosize(), "10%-50%:8M-1G");
    EXPECT_EQ(run({"create", "extra", "--capacity", "1G", "--online", "64M/2G"}).exit_code, 2);
    EXPECT_THAT(run({"status"}).out, HasSubstr("grows and shrinks by itself: 5%-40%:8M-64M:8M:30s\n"));
    EXPECT_EQ(run_json({"pools"})["pools"][0]["autosize"], "5%-40%:8M-64M:8M:30s");
}

TEST_F(CliFake, limits_of_users_and_pools_are_sent_and_shown) {
    EXPECT_EQ(
        run_json({"quota", "--user", "alice", "1G", "--soft", "768M"}),
        Json({{"user", "alice"}, {"pool", "default"}, {"quota_bytes", 1024 * kMiB}, {"soft_quota_bytes", 768 * kMiB}}));
    EXPECT_EQ(fake().quota().client_id(), 0U);
    EXPECT_EQ(fake().quota().user(), "alice");
    EXPECT_EQ(fake().quota().pool(), "default");
    EXPECT_EQ(run({"quota", "--pool", "second", "none"}).out, "pool second: quota none, soft quota none\n");
    EXPECT_EQ(fake().quota().user() + fake().quota().pool(), "second");
    EXPECT_EQ(run({"reserve", "7", "64M"}).out, "client 7: reserved 64 MiB\n");
    EXPECT_EQ(fake().reservation().client_id(), 7U);
    EXPECT_EQ(fake().reservation().bytes(), 64 * kMiB);
    EXPECT_EQ(run_json({"reserve", "none", "--user", "1000", "--pool", "second"}),
              Json({{"user", "1000"}, {"pool", "second"}, {"reserved_bytes", 0}}));

    const Json pool = run_json({"status"})["pools"][0];
    EXPECT_EQ(pool["quota_bytes"], 200 * kMiB);
    EXPECT_EQ(pool["reserved_bytes"], 3 * kMiB);
    EXPECT_EQ(pool["users"][0]["name"], "alice");
    EXPECT_EQ(pool["users"][0]["soft_quota_bytes"], 40 * kMiB);
    EXPECT_EQ(run_json({"clients"})["clients"][0]["reserved_bytes"], 5 * kMiB);
    EXPECT_THAT(run({"status"}).out,
                AllOf(HasSubstr("all clients together: quota 200 MiB\n"),
                      HasSubstr("user alice: 3 MiB used by 1 client, soft quota 40 MiB, reserved 6 MiB\n"),
                      HasSubstr("reserved: 3 MiB of what is free")));
    EXPECT_THAT(run({"clients"}).out, AllOf(HasSubstr("RESERVED"), HasSubstr("5 MiB")));
}

TEST_F(CliFake, create_sends_attributes_without_a_field_as_they_were_typed) {
    run_json({"create", "extra", "--capacity", "1G", "--online", "64M"});
    EXPECT_EQ(fake().create().attributes_size(), 0) << "the daemon's defaults";
    const std::map<std::string, std::string> wanted{{"max-threads", "64"}, {"max-threads-per-client", "8"},
                                                    {"fit", "compact"},    {"quota", "512M"},
                                                    {"soft-quota", "1K"},  {"user-quota", "alice=1G/768M 1000=2G"}};
    Words words{"create", "extra", "--capacity", "1G", "--online", "64M"};
    for (const auto &[key, value] : wanted) words.insert(words.end(), {"--" + key, value});
    run_json(words);
    const auto request = fake().create();
    const auto &sent = request.attributes();
    EXPECT_EQ((std::map<std::string, std::string>(sent.begin(), sent.end())), wanted);
}

TEST_F(CliFake, low_watermarks_are_sent_and_shown) {
    run_json({"create", "extra", "--capacity", "1G", "--online", "64M", "--low-watermark", "8M"});
    EXPECT_EQ(fake().create().low_watermark_bytes(), 8 * kMiB);
    EXPECT_THAT(run({"status"}).out,
                AllOf(HasSubstr("node 1 is below its low watermark of 16 MiB\n"), Not(HasSubstr("node 0 is below"))));
    const Json pool = run_json({"status"})["pools"][0];
    EXPECT_EQ(pool["low_watermark_bytes"], 16 * kMiB);
    EXPECT_EQ(pool["nodes"][0]["below_low_watermark"], false);
    EXPECT_EQ(pool["nodes"][1]["below_low_watermark"], true);
}

TEST_F(CliFake, map_fits_the_width_and_ascii_is_seven_bit) {
    for (const char *columns : {"60", "132"}) {
        const Outcome outcome = run_bare({"--runtime-dir", directory_, "map", "default", "--node", "0", "--ascii"},
                                         {std::string("COLUMNS=") + columns});
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        EXPECT_THAT(outcome.out, HasSubstr("one cell is 4 MiB"));
        std::istringstream lines(outcome.out);
        bool found = false;
        for (std::string line; std::getline(lines, line);) {
            if (line.find(" |") == std::string::npos) continue;
            EXPECT_LE(line.size(), static_cast<std::size_t>(std::stoi(columns)));
            found = true;
        }
        EXPECT_TRUE(found);
        for (const char character : outcome.out) EXPECT_GE(character, 0);
    }
    const std::string unicode = run({"map", "default", "--node", "0"}).out;
    EXPECT_THAT(unicode, AllOf(HasSubstr("█"), HasSubstr("·")));
    EXPECT_THAT(run_json({"map", "default", "--node", "1", "--cells", "16"})["maps"][0]["cells"], SizeIs(16));
    EXPECT_THAT(run_json({"map"})["maps"], SizeIs(2)) << "both numa nodes";
}

TEST_F(CliFake, buddyinfo_and_extfrag_are_one_line_a_node_and_measure) {
    const std::string text = run({"buddyinfo"}).out;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
    EXPECT_TRUE(std::regex_search(text, std::regex("\nPool default, node 1( +0){10} +63\n$"))) << text;
    EXPECT_THAT(run({"buddyinfo", "--heads"}).out, StartsWith("  "));
    const std::string fragmentation = run({"extfrag", "default"}).out;
    EXPECT_EQ(std::count(fragmentation.begin(), fragmentation.end(), '\n'), 4);
    EXPECT_EQ(run_json({"buddyinfo"})["pools"][0]["nodes"][0]["free_blocks"][10], 63);
}

TEST_F(CliFake, top_counts_rates_between_looks) {
    const Outcome outcome = run({"top", "--interval", "50ms", "--count", "2", "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::istringstream lines(outcome.out);
    unsigned looks = 0;
    for (std::string line; std::getline(lines, line); ++looks) {
        const Json json = strict_json(line);
        EXPECT_GT(json["interval_seconds"].get<double>(), 0);
        // The fake counts a thousand allocations a look.
        EXPECT_GT(json["nodes"][0]["allocations_per_second"].get<double>(), 0);
        EXPECT_EQ(json["nodes"][0]["failures_per_second"], 0);
        EXPECT_EQ(json["clients"][0]["client_id"], 7) << "the biggest first";
    }
    EXPECT_EQ(looks, 2U);
}

TEST_F(CliFake, bad_arguments_end_with_2_and_name_the_value) {
    const std::vector<std::pair<Words, std::string>> cases{
        {{"resize", "default", "--node", "0", "12Q"}, "12Q"},
        {{"resize", "default", "--node", "0", "1.5G"}, "1.5G"},
        {{"resize", "default", "--node", "x", "1G"}, "--node = x is not a whole number that fits"},
        {{"resize", "default", "--node", "9", "1G"}, "no numa node 9"},
        {{"resize", "default", "1G"}, "--node"},
        {{"resize", "default", "--node", "0", "-1G"}, "1 GiB"},
        {{"resize", "default", "--node", "0", "2G"}, "2 GiB"},
        {{"resize", "default"}, "SIZE"},
        {{"create", "p", "--capacity", "1G"}, "--online"},
        {{"create", "p", "--capacity", "1G", "--online", "2G"}, "2G"},
        {{"create", "p", "--capacity", "1G", "--online", "1M", "--backing", "gold"}, "gold"},
        {{"evict", "me"}, "CLIENT = me is not a whole number that fits"},
        {{"quota", "me", "1G"}, "me"},
        {{"quota", "7"}, "SIZE"},
        {{"quota", "7", "0"}, "none"},
        {{"quota", "7", "much"}, "much"},
        {{"quota", "7", "1G", "--soft", "1024M"}, "1024M"},
        {{"quota", "7", "1G", "--user", "alice"}, "--user"},
        {{"reserve", "1G", "--pool", "default"}, "--user"},
        {{"reserve", "7", "much"}, "much"},
        {{"create", "p", "--capacity", "1G", "--online", "1M", "--low-watermark", "lots"}, "lots"},
        {{"evict", "7", "--grace", "soon"}, "soon"},
        {{"map", "--cells", "70000"}, "70000"},
        {{"top", "--interval", "1ms"}, "1ms"},
        {{"channels", "--interval", "1ms"}, "1ms"},
        {{"channels", "--interval", "often"}, "often"},
        {{"channels", "--remove", "frames"}, "POOL"},
        {{"channels", "default", "--force"}, "--remove"},
        {{"channels", "default", "--remove", "frames", "--interval", "1s"}, "--interval"},
        {{"bench", "--private", "--operations", "0"}, "0"},
        {{"bench", "--private", "--operations", "-1"}, "-1"},
        {{"bench", "--private", "--rounds", "many"}, "many"},
        {{"status", "--timeout", "never"}, "never"},
        {{"status", "--timeout", "0"}, "--timeout 0"},
        {{"stats", ""}, "POOL"},
        {{"delete", ""}, "NAME"},
        {{"create", "p", "--capacity", "1G", "--online", "1M", "--mode", ""}, "--mode"},
        {{"create", "p", "--capacity", "1G", "--online", "1M", "--frame", ""}, "--frame"},
        {{"quota", "7", "1G", "--soft", ""}, "--soft"},
        {{"evict", "0"}, "0 is no client id"},
        {{"clients", "--blocks", "--limit", "16385"}, "16385"},
        {{"drain", "default", "--node", "0", "--chunk", "-1"}, "-1"},
        {{"drain", "default", "--node", "0", "--chunk", "99999999999999999999"}, "99999999999999999999"},
        {{"top", "--count", "-1"}, "-1"},
        {{"pools", "surplus"}, "surplus"},
        {{"shrink"}, "shrink"},
        {{}, "required"},
    };
    for (const auto &[words, named] : cases) {
        SCOPED_TRACE(testing::PrintToString(words));
        const Outcome outcome = run(words);
        EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
        EXPECT_THAT(outcome.err, AllOf(StartsWith("numacre: "), HasSubstr(named)));
        EXPECT_THAT(outcome.out, IsEmpty());
        EXPECT_EQ(run_json(words, 2)["error"]["exit_code"], 2);
    }
}

TEST_F(CliFake, an_error_of_the_daemon_ends_with_1_and_keeps_its_code_and_remedy) {
    for (const Words &words : std::vector<Words>{{"stats", "nope"},
                                                 {"buddyinfo", "nope"},
                                                 {"clients", "nope"},
                                                 {"channels", "nope"},
                                                 {"map", "nope"},
                                                 {"advise", "nope"},
                                                 {"delete", "nope"},
                                                 {"resize", "nope", "--node", "0", "1G"}}) {
        SCOPED_TRACE(words[0]);
        const Outcome outcome = run(words);
        EXPECT_EQ(outcome.exit_code, 1);
        EXPECT_THAT(outcome.err, StartsWith("numacre: NOT_FOUND: no pool \"nope\""));
        const Json error = run_json(words, 1)["error"];
        EXPECT_EQ(error["code"], "NOT_FOUND");
        EXPECT_EQ(error["reason"], "no_such_pool");
        EXPECT_EQ(error["remedy"], "see `numacre pools` for the names");
    }
    EXPECT_THAT(run({"evict", "99"}).err, HasSubstr("NOT_FOUND: no client 99"));
}

TEST_F(CliFake, no_daemon_ends_with_4_and_says_how_to_start_one) {
    server_.reset();
    for (const Words &words : kEveryVerb) {
        if (words[0] == "doctor" || words[0] == "bench") continue;
        SCOPED_TRACE(words[0]);
        const Outcome outcome = run(words);
        EXPECT_EQ(outcome.exit_code, 4);
        EXPECT_THAT(outcome.err, AllOf(StartsWith("numacre: no daemon at " + directory_ + "/control.sock"),
                                       HasSubstr("numacred --runtime-dir " + directory_)));
        EXPECT_THAT(outcome.out, IsEmpty());
    }
    EXPECT_EQ(run_json({"status"}, 4)["error"]["code"], "UNAVAILABLE");
    const Json doctor = run_json({"doctor"}, 1);
    EXPECT_EQ(doctor["checks"][0]["check"], "daemon");
    EXPECT_EQ(doctor["checks"][0]["level"], "problem");
    EXPECT_EQ(run_json({"bench"}, 4)["error"]["exit_code"], 4);
}

TEST_F(CliFake, a_socket_that_nobody_serves_is_no_daemon) {
    server_.reset();
    // Bound and left behind, as by a daemon that was killed.
    const int left_behind = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = directory_ + "/control.sock";
    ASSERT_LT(path.size(), sizeof address.sun_path);
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    ASSERT_EQ(bind(left_behind, reinterpret_cast<sockaddr *>(&address), sizeof address), 0);
    close(left_behind);
    const Outcome outcome = run({"status"});
    EXPECT_EQ(outcome.exit_code, 4);
    EXPECT_THAT(outcome.err, HasSubstr("Connection refused"));
}

TEST_F(CliFake, a_daemon_that_does_not_answer_is_told_from_none) {
    server_.reset();
    const int silent = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = directory_ + "/control.sock";
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    ASSERT_EQ(bind(silent, reinterpret_cast<sockaddr *>(&address), sizeof address), 0);
    ASSERT_EQ(listen(silent, 8), 0);
    const Outcome outcome = run({"status", "--timeout", "300ms"});
    close(silent);
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("--timeout")));
}

// The daemon says which client does not end, and that takes the daemon longer than other questions.
TEST_F(CliFake, a_deletion_by_force_waits_for_the_reason_why_it_fails) {
    fake().client_stays = true;
    const Outcome outcome = run({"delete", "default", "--force", "--timeout", "300ms"});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("client 7 does not end"), Not(HasSubstr("no answer"))));
}

TEST_F(CliFake, odd_and_overlong_directories_work_or_are_refused_by_name) {
    const std::string odd = directory_ + "/a b%20c#d";
    fs::create_directory(odd);
    server_.reset();
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = odd + "/control.sock";
    ASSERT_LT(path.size(), sizeof address.sun_path);
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr *>(&address), sizeof address), 0);
    ASSERT_EQ(listen(listener, 8), 0);
    const Outcome reached = run_bare({"--runtime-dir", odd, "status", "--timeout", "300ms"});
    EXPECT_THAT(reached.err, HasSubstr("DEADLINE_EXCEEDED")) << "it was reached, though it does not answer";
    const int connection = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    EXPECT_GE(connection, 0);
    close(connection);
    close(listener);
    const std::string overlong = directory_ + "/" + std::string(120, 'x');
    const Outcome refused = run_bare({"--runtime-dir", overlong, "status"});
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, HasSubstr(overlong));
    for (const char *verb : {"status", "bench", "doctor"}) {
        SCOPED_TRACE(verb);
        EXPECT_EQ(run_bare({"--runtime-dir", overlong, verb}).exit_code, 2);
        const Outcome empty = run_bare({"--runtime-dir", "", verb});
        EXPECT_EQ(empty.exit_code, 2);
        EXPECT_THAT(empty.err, HasSubstr("--runtime-dir"));
    }
}

// `top` and colours on a real terminal: a pty whose other end the test reads.
class CliTerminal : public CliFake {
protected:
    void open_terminal() {
        winsize size{};
        size.ws_col = 100;
        size.ws_row = 30;
        int user = -1;
        ASSERT_EQ(openpty(&screen_, &user, nullptr, nullptr, &size), 0);
        ASSERT_EQ(tcgetattr(user, &before_), 0);
        user_ = user;
        // The program must not hold our end, or it never sees the terminal go.
        fcntl(screen_, F_SETFD, FD_CLOEXEC);
        fcntl(user_, F_SETFD, FD_CLOEXEC);
    }
    void TearDown() override {
        if (screen_ >= 0) close(screen_);
        if (user_ >= 0) close(user_);
        CliFake::TearDown();
    }
    pid_t on_terminal(const Words &words, const Words &environment = {"TERM=xterm"}) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        for (const int standard : {0, 1, 2}) posix_spawn_file_actions_adddup2(&actions, user_, standard);
        Words all{"--runtime-dir", directory_};
        all.insert(all.end(), words.begin(), words.end());
        const pid_t pid = spawn(all, actions, environment);
        posix_spawn_file_actions_destroy(&actions);
        return pid;
    }
    // Reads until the text has been seen, or the program has ended. Gives up only when nothing comes for long.
    bool read_until(const std::string &text) {
        while (seen_.find(text) == std::string::npos) {
            pollfd ready{screen_, POLLIN, 0};
            std::array<char, 4096> bytes{};
            if (poll(&ready, 1, 20'000) <= 0) return false;
            const ssize_t got = read(screen_, bytes.data(), bytes.size());
            if (got <= 0) return false;
            seen_.append(bytes.data(), static_cast<std::size_t>(got));
        }
        return true;
    }
    void expect_restored() {
        EXPECT_TRUE(read_until("\033[?1049l")) << "the screen of before is back";
        EXPECT_THAT(seen_, HasSubstr("\033[?25h")) << "the cursor is back";
        termios now{};
        ASSERT_EQ(tcgetattr(user_, &now), 0);
        EXPECT_EQ(now.c_lflag, before_.c_lflag) << "echo and line editing are back";
    }

    int screen_ = -1, user_ = -1;
    termios before_{};
    std::string seen_;
};

TEST_F(CliTerminal, top_quits_on_q_and_puts_the_screen_back) {
    open_terminal();
    const pid_t pid = on_terminal({"top", "--interval", "100ms"});
    ASSERT_TRUE(read_until("\033[?1049h")) << seen_;
    ASSERT_TRUE(read_until("q quits")) << seen_;
    EXPECT_THAT(seen_, AllOf(HasSubstr("default"), HasSubstr("relay"), HasSubstr("\033[3")));
    ASSERT_EQ(write(screen_, "q", 1), 1);
    EXPECT_EQ(wait_for(pid), 0);
    expect_restored();
}

TEST_F(CliTerminal, top_interrupted_puts_the_screen_back) {
    open_terminal();
    const pid_t pid = on_terminal({"top", "--interval", "1h"});
    ASSERT_TRUE(read_until("q quits")) << seen_;
    EXPECT_EQ(kill(pid, SIGINT), 0);
    EXPECT_EQ(wait_for(pid), 0);
    expect_restored();
}

TEST_F(CliTerminal, top_without_a_daemon_puts_the_screen_back_and_ends_with_4) {
    server_.reset();
    open_terminal();
    const pid_t pid = on_terminal({"top"});
    EXPECT_EQ(wait_for(pid), 4);
    expect_restored();
    EXPECT_TRUE(read_until("no daemon at"));
}

TEST_F(CliTerminal, top_lives_through_a_restart_of_the_daemon) {
    open_terminal();
    const pid_t pid = on_terminal({"top", "--interval", "100ms"});
    ASSERT_TRUE(read_until("q quits")) << seen_;
    server_.reset();
    ASSERT_TRUE(read_until("no daemon at")) << seen_;
    start();
    seen_.clear();
    // Only a look that succeeded begins with the head line.
    ASSERT_TRUE(read_until("\033[Hnumacre top")) << seen_;
    ASSERT_EQ(write(screen_, "q", 1), 1);
    EXPECT_EQ(wait_for(pid), 0);
}

TEST_F(CliTerminal, colours_need_a_terminal_and_no_objection) {
    open_terminal();
    EXPECT_EQ(wait_for(on_terminal({"map", "default", "--node", "0"})), 0);
    ASSERT_TRUE(read_until("offline\r\n"));
    EXPECT_THAT(seen_, HasSubstr("\033[31m"));
    for (const Words &environment : std::vector<Words>{{"TERM=xterm", "NO_COLOR=1"}, {"TERM=dumb"}}) {
        seen_.clear();
        EXPECT_EQ(wait_for(on_terminal({"map", "default", "--node", "0"}, environment)), 0);
        ASSERT_TRUE(read_until("offline\r\n"));
        EXPECT_THAT(seen_, Not(HasSubstr("\033")));
    }
}

TEST_F(CliTerminal, resize_draws_its_progress) {
    open_terminal();
    EXPECT_EQ(wait_for(on_terminal({"resize", "default", "--node", "0", "512M"})), 0);
    ASSERT_TRUE(read_until("online now"));
    EXPECT_THAT(seen_, AllOf(HasSubstr("\r\033[K["), HasSubstr("384 MiB online, target 512 MiB"), HasSubstr("█")));
}

TEST_F(CliFake, completion_knows_the_verbs_the_options_the_pools_and_the_clients) {
    const std::string script = from_environment("NUMACRE_SOURCE_DIR") + "/client/cli/completions/numacre.bash";
    const auto complete = [&](const std::string &line) {
        std::istringstream words(line);
        std::string quoted, word;
        std::size_t count = 0;
        for (; words >> word; ++count) quoted += " '" + word + "'";
        if (line.ends_with(' ')) quoted += " ''", ++count;
        const std::string command = "PATH='" + from_environment("NUMACRE_BIN_DIR") + "':$PATH; NUMACRE_RUNTIME_DIR='" +
                                    directory_ + "'; export NUMACRE_RUNTIME_DIR; . '" + script + "'; COMP_WORDS=(" +
                                    quoted + "); COMP_CWORD=" + std::to_string(count - 1) +
                                    "; _numacre; printf '%s\\n' \"${COMPREPLY[@]}\"";
        std::ofstream(directory_ + "/complete.sh") << command;
        FILE *pipe = popen(("bash '" + directory_ + "/complete.sh'").c_str(), "r");
        EXPECT_NE(pipe, nullptr);
        std::string answer;
        std::array<char, 4096> bytes{};
        while (pipe != nullptr && std::fgets(bytes.data(), bytes.size(), pipe) != nullptr) answer += bytes.data();
        EXPECT_EQ(pclose(pipe), 0);
        return answer;
    };
    EXPECT_EQ(complete("numacre bud"), "buddyinfo\n");
    EXPECT_EQ(complete("numacre resize "), "default\n");
    EXPECT_EQ(complete("numacre resize default --d"), "--dry-run\n");
    EXPECT_EQ(complete("numacre evict "), "7\n8\n");
    EXPECT_EQ(complete("numacre quota "), "7\n8\n");
    EXPECT_EQ(complete("numacre get default "), "capacity\nuser-quota\nmode\n");
    EXPECT_EQ(complete("numacre set default m"), "mode=\n");
    EXPECT_EQ(complete("numacre clients --blocks --limit 5 "), "default\n");
    EXPECT_EQ(complete("numacre create x --backing t"), "thp\n");
    EXPECT_EQ(complete("numacre create x --backing h"), "hugetlb-1g\nhugetlb\n");
    // The script and the program must not drift apart: each verb, and each option of each verb.
    const std::string verbs = "\n" + complete("numacre ");
    for (const Words &words : kEveryVerb) {
        SCOPED_TRACE(words[0]);
        EXPECT_THAT(verbs, HasSubstr("\n" + words[0] + "\n"));
        const std::string known = "\n" + complete("numacre " + words[0] + " --");
        const std::string help = run({words[0], "--help"}).out;
        const std::regex option("--[a-z-]+");
        for (std::sregex_iterator found(help.begin(), help.end(), option), end; found != end; ++found) {
            EXPECT_THAT(known, HasSubstr("\n" + found->str() + "\n"));
        }
    }
    const std::string help = run({"--help"}).out;
    const std::regex verb("\n  ([a-z]+) +[A-Z]");
    const std::string listed = help.substr(help.find("Subcommands:"));
    std::size_t count = 0;
    for (std::sregex_iterator found(listed.begin(), listed.end(), verb), end; found != end; ++found, ++count) {
        EXPECT_THAT(verbs, HasSubstr("\n" + (*found)[1].str() + "\n"));
    }
    EXPECT_EQ(count, kEveryVerb.size()) << "every verb of --help is tried in this file";
}

}  // namespace
}  // namespace numacre::test
