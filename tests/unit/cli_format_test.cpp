// What the command line tool makes of numbers: sizes, tables, bars, maps, JSON and judgements, without a daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "advise.hpp"
#include "bytes.hpp"
#include "doctor.hpp"
#include "draw.hpp"
#include "json.hpp"
#include "rates.hpp"
#include "support/refusal.hpp"
#include "table.hpp"
#include "views.hpp"

namespace numacre::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr std::uint64_t kKiB = 1024, kMiB = kKiB * kKiB, kGiB = kKiB * kMiB;

TEST(ParseBytes, takes_whole_numbers_with_binary_units) {
    EXPECT_EQ(parse_bytes("0"), 0U);
    EXPECT_EQ(parse_bytes("4096"), 4096U);
    EXPECT_EQ(parse_bytes("4K"), 4 * kKiB);
    EXPECT_EQ(parse_bytes("512m"), 512 * kMiB);
    EXPECT_EQ(parse_bytes("1GiB"), kGiB);
    EXPECT_EQ(parse_bytes("2TB"), 2048 * kGiB);
    EXPECT_EQ(parse_bytes("7B"), 7U);
    EXPECT_EQ(parse_bytes("18446744073709551615"), std::numeric_limits<std::uint64_t>::max());
    EXPECT_EQ(parse_bytes("15E"), std::uint64_t{15} << 60);
}

TEST(ParseBytes, refuses_anything_else_and_names_it) {
    for (const char *text : {"", "x", "-1", "+1", " 1", "1 ", "1.5G", "4Q", "4KK", "4Bi", "4iB", "16E",
                             "18446744073709551616", "0x10", "1G2"}) {
        EXPECT_THAT(refusal_of([&] { parse_bytes(text); }), HasSubstr("'" + std::string(text) + "'"));
    }
}

TEST(ParseSizeChange, steps_are_taken_from_what_is_online) {
    EXPECT_EQ(parse_size_change("512M").apply(kGiB), 512 * kMiB);
    EXPECT_EQ(parse_size_change("+512M").apply(kGiB), kGiB + 512 * kMiB);
    EXPECT_EQ(parse_size_change("-256M").apply(kGiB), kGiB - 256 * kMiB);
    EXPECT_EQ(parse_size_change("-1G").apply(kGiB), 0U);
}

TEST(ParseSizeChange, a_step_below_zero_or_beyond_64_bits_is_refused) {
    EXPECT_THAT(refusal_of([] { parse_size_change("-2G").apply(kGiB); }),
                AllOf(HasSubstr("2 GiB"), HasSubstr("1 GiB")));
    EXPECT_THAT(refusal_of([] { parse_size_change("+15E").apply(std::uint64_t{2} << 60); }), HasSubstr("15 EiB"));
    EXPECT_THAT(refusal_of([] { parse_size_change("--1"); }), HasSubstr("'-1'"));
}

TEST(ParseDuration, takes_units_and_bare_seconds) {
    using std::chrono::milliseconds;
    EXPECT_EQ(parse_duration("5s"), milliseconds(5000));
    EXPECT_EQ(parse_duration("250ms"), milliseconds(250));
    EXPECT_EQ(parse_duration("2m"), milliseconds(120'000));
    EXPECT_EQ(parse_duration("1h"), milliseconds(3'600'000));
    EXPECT_EQ(parse_duration("0"), milliseconds(0));
    EXPECT_EQ(parse_duration("0.5"), milliseconds(500));
    for (const char *text : {"", "s", "-1s", "5x", "inf", "nan", "1e3", "99999999999h"}) {
        EXPECT_THAT(refusal_of([&] { parse_duration(text); }), HasSubstr("'" + std::string(text) + "'"));
    }
}

TEST(FormatBytes, keeps_the_largest_unit_and_never_rounds_up) {
    EXPECT_EQ(format_bytes(0), "0 B");
    EXPECT_EQ(format_bytes(1023), "1023 B");
    EXPECT_EQ(format_bytes(1024), "1 KiB");
    EXPECT_EQ(format_bytes(1536), "1.5 KiB");
    EXPECT_EQ(format_bytes(kGiB - 1), "1023.9 MiB");
    EXPECT_EQ(format_bytes(kGiB), "1 GiB");
    EXPECT_EQ(format_bytes(std::numeric_limits<std::uint64_t>::max()), "15.9 EiB");
    EXPECT_EQ(format_bytes_short(4 * kKiB), "4K");
    EXPECT_EQ(format_bytes_short(64), "64B");
}

TEST(FormatShare, something_is_never_nothing_and_less_than_all_is_never_all) {
    EXPECT_EQ(format_share(0, 100), "0 %");
    EXPECT_EQ(format_share(1, 100000), "<1 %");
    EXPECT_EQ(format_share(99999, 100000), ">99 %");
    EXPECT_EQ(format_share(100, 100), "100 %");
    EXPECT_EQ(format_share(1, 8), "13 %");
    EXPECT_EQ(format_share(0, 0), "-");
}

TEST(FormatTime, durations_and_dates) {
    using std::chrono::seconds;
    EXPECT_EQ(format_duration(seconds(-3)), "0 s");
    EXPECT_EQ(format_duration(seconds(59)), "59 s");
    EXPECT_EQ(format_duration(seconds(60)), "1 min");
    EXPECT_EQ(format_duration(seconds(185)), "3 min 5 s");
    EXPECT_EQ(format_duration(seconds(2 * 3600 + 60)), "2 h 1 min");
    EXPECT_EQ(format_duration(seconds(4 * 86400 + 3 * 3600)), "4 d 3 h");
    EXPECT_EQ(format_time(0), "1970-01-01T00:00:00Z");
    EXPECT_EQ(format_time(951'782'400), "2000-02-29T00:00:00Z");
}

TEST(Printable, takes_the_terminal_out_of_the_hands_of_process_names) {
    EXPECT_EQ(printable("relay"), "relay");
    EXPECT_EQ(printable("a\033[2Jb\n\x7f"), "a?[2Jb??");
    EXPECT_EQ(printable("\xc2\x9b"
                        "2J"),
              "?2J");
    EXPECT_EQ(printable("größe"), "größe");
}

TEST(TableTest, columns_line_up_and_lines_have_no_tail) {
    Table table({{"NAME"}, {"BYTES", Align::right}, {"NOTE"}});
    table.add_row({"größe", "1", ""});
    table.add_row({"b", "1000000", "x"});
    std::ostringstream out;
    table.print(out);
    EXPECT_EQ(out.str(),
              "NAME     BYTES  NOTE\n"
              "größe        1\n"
              "b      1000000  x\n");
}

TEST(TableTest, a_row_of_too_many_cells_is_a_mistake) {
    Table table({{"A"}});
    EXPECT_THROW(table.add_row({"1", "2"}), std::logic_error);
}

TEST(Bar, shows_something_for_little_and_a_gap_for_nearly_all) {
    const Pen pen{true, false};
    EXPECT_EQ(bar(0, 4, pen), "[    ]");
    EXPECT_EQ(bar(0.0001, 4, pen), "[#   ]");
    EXPECT_EQ(bar(0.5, 4, pen), "[##  ]");
    EXPECT_EQ(bar(0.9999, 4, pen), "[### ]");
    EXPECT_EQ(bar(1, 4, pen), "[####]");
    EXPECT_EQ(bar(7, 4, pen), "[####]");
    EXPECT_EQ(bar(-1, 4, pen), "[    ]");
    EXPECT_EQ(bar(std::numeric_limits<double>::quiet_NaN(), 4, pen), "[    ]");
    EXPECT_EQ(bar(0.5, 4, Pen{false, false}), "[██  ]");
    EXPECT_EQ(bar(0.5, 4, Pen{true, true}), "[\033[32m##\033[0m  ]");
}

TEST(Bar, capacity_is_used_then_free_then_offline) {
    const Pen pen{true, false};
    EXPECT_EQ(capacity_bar(0, 0, 0, 4, pen), "[    ]");
    EXPECT_EQ(capacity_bar(0, 0, 8, 8, pen), "[--------]");
    EXPECT_EQ(capacity_bar(2, 4, 8, 8, pen), "[##  ----]");
    EXPECT_EQ(capacity_bar(8, 8, 8, 8, pen), "[########]");
}

TEST(MapTest, glyphs_follow_the_share_of_what_is_online) {
    EXPECT_EQ(cell_glyph({12, 0, 0}, false), " ");
    EXPECT_EQ(cell_glyph({12, 1, 0}, false), "░");
    EXPECT_EQ(cell_glyph({12, 4, 0}, false), "░");
    EXPECT_EQ(cell_glyph({12, 5, 0}, false), "▒");
    EXPECT_EQ(cell_glyph({12, 8, 0}, false), "▒");
    EXPECT_EQ(cell_glyph({12, 9, 0}, false), "▓");
    EXPECT_EQ(cell_glyph({12, 11, 0}, false), "▓");
    EXPECT_EQ(cell_glyph({12, 12, 0}, false), "█");
    EXPECT_EQ(cell_glyph({12, 0, 12}, false), "·");
    EXPECT_EQ(cell_glyph({12, 0, 12}, true), "-");
    EXPECT_EQ(cell_glyph({12, 6, 6}, true), "#");
    // More than there is, as a daemon that counts beside running clients may say for a moment.
    EXPECT_EQ(cell_glyph({12, 13, 0}, true), "#");
    EXPECT_EQ(cell_glyph({12, 0, 13}, true), "-");
}

TEST(MapTest, rows_fill_the_width_and_begin_with_their_offset) {
    const Pen pen{true, false};
    constexpr unsigned kWidth = 40;
    const unsigned columns = map_columns(100 * kMiB, kWidth);
    std::vector<Cell> cells(2 * columns + 1, Cell{256, 256, 0});
    cells.back() = {256, 0, 256};
    std::istringstream lines(draw_map(cells, kMiB, kWidth, pen));
    std::vector<std::string> rows;
    for (std::string line; std::getline(lines, line);) rows.push_back(line);
    ASSERT_THAT(rows, SizeIs(3));
    EXPECT_THAT(rows[0], AllOf(SizeIs(kWidth), HasSubstr(" 0 B |"), HasSubstr(std::string(columns, '#'))));
    EXPECT_THAT(rows[1], AllOf(SizeIs(kWidth), HasSubstr(" " + std::to_string(columns) + " MiB |")));
    EXPECT_THAT(rows[2], HasSubstr("|-|"));
    EXPECT_EQ(draw_map({}, kMiB, kWidth, pen), "");
}

TEST(MapTest, a_narrow_terminal_gets_narrow_rows_not_a_crash) {
    EXPECT_GE(map_columns(kGiB, 0), 1U);
    EXPECT_THAT(draw_map({{1, 1, 0}}, kGiB, 0, Pen{true, false}), HasSubstr("|#|"));
}

TEST(MapTest, colours_change_by_runs_and_are_closed) {
    const std::string row = draw_map({{1, 1, 0}, {1, 1, 0}, {1, 0, 0}, {1, 1, 0}}, kMiB, 40, Pen{true, true});
    EXPECT_THAT(row, HasSubstr("|\033[0m\033[31m##\033[0m \033[0m\033[31m#\033[0m|"));
    EXPECT_THAT(draw_map({{1, 1, 0}}, kMiB, 40, Pen{true, false}), Not(HasSubstr("\033")));
}

TEST(MapTest, ascii_is_seven_bit) {
    const std::string text = map_legend(kMiB, {true, false}) +
                             draw_map({{4, 1, 0}, {4, 0, 4}}, kMiB, 40, {true, false}) + bar(0.5, 8, {true, false}) +
                             capacity_bar(1, 2, 4, 8, {true, false});
    EXPECT_THAT(text, Each(::testing::Ge('\0')));
    EXPECT_THAT(text, HasSubstr("one cell is 1 MiB"));
}

TEST(RateMeterTest, rates_need_two_looks_and_survive_a_reset) {
    using std::chrono::seconds;
    RateMeter meter;
    const RateMeter::Key key{"default", 0};
    const RateMeter::Clock::time_point start{};
    EXPECT_FALSE(meter.look(key, {100, 50, 1}, start));
    const auto rates = meter.look(key, {300, 150, 1}, start + seconds(2));
    ASSERT_TRUE(rates);
    EXPECT_DOUBLE_EQ(rates->allocations_per_second, 100);
    EXPECT_DOUBLE_EQ(rates->frees_per_second, 50);
    EXPECT_DOUBLE_EQ(rates->failures_per_second, 0);
    EXPECT_FALSE(meter.look(key, {300, 150, 1}, start + seconds(2))) << "no time has passed";
    EXPECT_FALSE(meter.look(key, {10, 5, 0}, start + seconds(3))) << "counters went down: another daemon";
    EXPECT_TRUE(meter.look(key, {20, 5, 0}, start + seconds(4)));
    EXPECT_FALSE(meter.look({"default", 1}, {1, 1, 1}, start + seconds(4))) << "another numa node";
}

// Golden figures of the design: n = {0:3, 1:1, 3:2}.
v1::GetFragmentationResponse golden_fragmentation() {
    v1::GetFragmentationResponse response;
    v1::NodeFragmentation *numa_node = response.add_nodes();
    const std::vector<std::uint64_t> free_blocks{3, 1, 0, 2, 0, 0};
    const std::vector<double> unusable{0, 0.142857, 0.238095, 0.238095, 1, 1};
    const std::vector<double> external{-1, -1, -1, -1, 0.614583, 0.723958};
    for (std::uint32_t order = 0; order < free_blocks.size(); ++order) {
        v1::OrderFragmentation *line = numa_node->add_orders();
        line->set_order(order);
        line->set_free_blocks(free_blocks[order]);
        line->set_unusable_free_ratio(unusable[order]);
        line->set_external_fragmentation_index(external[order]);
    }
    return response;
}

TEST(Views, buddyinfo_is_one_line_a_pool_and_node) {
    std::ostringstream out;
    print_buddyinfo(out, "default", golden_fragmentation());
    EXPECT_EQ(out.str(), "Pool default, node 0       3       1       0       2       0       0\n");
}

TEST(Views, buddyinfo_heads_stand_above_their_columns) {
    v1::Pool pool;
    pool.set_name("default");
    pool.set_frame_bytes(4096);
    std::ostringstream out;
    print_order_heads(out, pool, 3, false);
    EXPECT_EQ(out.str(), "                          4K      8K     16K\n");
}

TEST(Views, extfrag_has_the_unusable_lines_and_then_the_index_lines) {
    std::ostringstream out;
    print_extfrag(out, "default", golden_fragmentation());
    EXPECT_EQ(out.str(),
              "Pool default, node 0, unusable   0.000   0.143   0.238   0.238   1.000   1.000\n"
              "Pool default, node 0, extfrag   -1.000  -1.000  -1.000  -1.000   0.615   0.724\n");
}

TEST(Views, failures_name_only_what_happened) {
    v1::GetStatsResponse stats;
    EXPECT_EQ(failures_text(stats), "none");
    stats.add_nodes()->set_failures_out_of_frames(3);
    stats.add_nodes()->set_failures_quota(1);
    EXPECT_EQ(failures_text(stats), "3 out of frames, 1 over quota");
}

TEST(JsonTest, large_numbers_stay_whole_and_bad_text_is_replaced) {
    v1::Pool pool;
    pool.add_nodes()->set_capacity_bytes(std::numeric_limits<std::uint64_t>::max());
    Json json = pool_json(pool);
    EXPECT_TRUE(json["nodes"][0]["capacity_bytes"].is_number_unsigned());
    EXPECT_EQ(json["nodes"][0]["capacity_bytes"].get<std::uint64_t>(), std::numeric_limits<std::uint64_t>::max());
    EXPECT_TRUE(json["created"].is_null());
    json["name"] = "\xff\"\n";
    std::ostringstream out;
    print_json(out, json, -1);
    EXPECT_EQ(Json::parse(out.str())["name"], "\xef\xbf\xbd\"\n");
}

// A machine on which there is nothing to mend.
struct Healthy {
    SystemFacts system;
    DaemonFacts daemon;

    Healthy() {
        system.hugepages = {{0, 2 * kMiB, 128, 0, 0}};
        system.io_uring_disabled = 0;
        system.overcommit_memory = 0;
        system.numa_balancing = 0;
        system.thp_shmem = "never";
        system.shm_total_bytes = system.shm_free_bytes = kGiB;
        system.limits_of = "numacred (pid 7)";
        system.runtime_dir = "/run/numacre";
        system.runtime_dir_exists = true;
        system.runtime_dir_mode = 0711;
        daemon.reachable = true;
        daemon.machine.set_version("1.2.3");
        v1::Pool pool;
        pool.set_name("default");
        pool.set_state(v1::POOL_STATE_SERVING);
        v1::PoolNode *numa_node = pool.add_nodes();
        numa_node->set_capacity_bytes(kGiB);
        numa_node->set_online_bytes(256 * kMiB);
        numa_node->set_backing(v1::BACKING_HUGETLB);
        numa_node->set_page_bytes(2 * kMiB);
        daemon.pools.push_back(pool);
    }
    std::vector<Finding> findings() const { return examine(system, daemon, "1.2.3"); }
    // The worst finding of a check.
    Finding finding(const std::string &check) const {
        Finding worst{"", Level::ok, "no such check", "", ""};
        for (const Finding &found : findings()) {
            if (found.check == check && (worst.check.empty() || found.level > worst.level)) worst = found;
        }
        return worst;
    }
};

TEST(Doctor, a_healthy_machine_has_nothing_to_mend) {
    const Healthy machine;
    const auto findings = machine.findings();
    EXPECT_THAT(findings, Each(Field(&Finding::level, Level::ok)));
    EXPECT_THAT(findings, SizeIs(testing::Ge(14U)));
    EXPECT_EQ(findings_json(findings)["problems"], 0);
}

TEST(Doctor, a_pool_on_pages_of_1_gib_has_nothing_to_mend) {
    Healthy machine;
    machine.system.hugepages.push_back({0, kGiB, 4, 3, 0});
    machine.daemon.pools[0].set_wanted_backing(v1::BACKING_HUGETLB_1G);
    v1::PoolNode &numa_node = *machine.daemon.pools[0].mutable_nodes(0);
    numa_node.set_backing(v1::BACKING_HUGETLB_1G);
    numa_node.set_page_bytes(kGiB);
    numa_node.set_capacity_bytes(4 * kGiB);
    numa_node.set_online_bytes(kGiB);
    const auto findings = machine.findings();
    EXPECT_THAT(findings, Each(Field(&Finding::level, Level::ok)));
    EXPECT_THAT(findings, Contains(Field(&Finding::what, HasSubstr("1 GiB: 4 reserved, 3 free; pools have 1 GiB online "
                                                                   "there and may grow by 3 GiB"))));
}

// A pool of 128 pages and one of 32, none of them on hugepages.
Healthy with_two_fallen_back(const HugepageFacts &pages) {
    Healthy machine;
    machine.system.hugepages = {pages};
    machine.daemon.pools[0].mutable_nodes(0)->set_backing(v1::BACKING_THP);
    v1::Pool second = machine.daemon.pools[0];
    second.set_name("second");
    second.mutable_nodes(0)->set_online_bytes(64 * kMiB);
    machine.daemon.pools.push_back(second);
    return machine;
}

TEST(Doctor, both_advices_on_hugepages_name_what_all_pools_need_beside_the_pages_in_use) {
    const Healthy machine = with_two_fallen_back({0, 2 * kMiB, 200, 60, 0});
    const std::string command = "echo 300 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
    EXPECT_THAT(machine.finding("hugepages").command, HasSubstr(command));
    for (const Finding &found : machine.findings()) {
        if (found.check != "backing") continue;
        EXPECT_THAT(found.command, HasSubstr(command + " && numacre delete "));
    }
}

TEST(Doctor, free_hugepages_that_mappings_have_reserved_are_not_for_a_pool) {
    const Healthy machine = with_two_fallen_back({0, 2 * kMiB, 200, 60, 0, 50});
    const Finding found = machine.finding("hugepages");
    EXPECT_THAT(found.what, HasSubstr("200 reserved, 60 free (50 of them reserved by mappings)"));
    EXPECT_THAT(found.command, HasSubstr("echo 350 > "));
}

TEST(Doctor, enough_free_hugepages_need_no_other_number_of_them) {
    const Healthy machine = with_two_fallen_back({0, 2 * kMiB, 400, 160, 0});
    EXPECT_EQ(machine.finding("hugepages").level, Level::ok);
    EXPECT_EQ(machine.finding("backing").command,
              "numacre delete default && numacre create default --capacity 1G --online 256M");
}

TEST(Doctor, the_command_that_makes_a_pool_anew_names_what_it_has) {
    Healthy machine = with_two_fallen_back({0, 2 * kMiB, 800, 800, 0});
    machine.daemon.pools.resize(1);
    v1::Pool &pool = machine.daemon.pools[0];
    *pool.add_nodes() = pool.nodes(0);
    pool.mutable_nodes(1)->set_online_bytes(128 * kMiB);
    pool.set_frame_bytes(64 << 10);
    pool.set_largest_block_bytes(4 * kMiB);
    pool.set_wanted_backing(v1::BACKING_HUGETLB);
    pool.set_max_clients(7);
    pool.set_owner("alice");
    pool.set_group("net");
    pool.set_mode(0640);
    pool.set_reclaim("quarantine:30s");
    pool.set_policy("interleave");
    pool.set_autosize("off");
    pool.set_low_watermark_bytes(kMiB + 1);
    pool.set_quota_bytes(kGiB);
    pool.set_soft_quota_bytes(kGiB / 2);
    EXPECT_EQ(machine.finding("backing").command,
              "numacre delete default && numacre create default --capacity 1G --online 256M/128M --frame 64K "
              "--max-clients 7 --owner alice --group net --mode 0640 --reclaim quarantine:30s --policy interleave "
              "--low-watermark 1048577 --quota 1G --soft-quota 512M");
    pool.set_object_bytes(2368);
    pool.set_object_count(1000);
    EXPECT_THAT(machine.finding("backing").command,
                HasSubstr("&& numacre create default --object 2368 --count 1000 --max-clients 7"));
}

TEST(Doctor, a_pool_that_clients_have_made_is_not_for_the_operator_to_make) {
    Healthy machine = with_two_fallen_back({0, 2 * kMiB, 400, 160, 0});
    for (v1::Pool &pool : machine.daemon.pools) pool.set_made_within("base");
    EXPECT_EQ(machine.finding("backing").level, Level::warning);
    EXPECT_EQ(machine.finding("backing").command, "numacre clients default");
    EXPECT_THAT(machine.finding("backing").meaning, HasSubstr("a client has made the pool"));
    machine.daemon.pools[0].set_state(v1::POOL_STATE_CORRUPT);
    EXPECT_THAT(machine.finding("pools").command, Not(HasSubstr("numacre create")));
}

TEST(Doctor, small_pages_that_were_asked_for_are_one_note) {
    Healthy machine = with_two_fallen_back({0, 2 * kMiB, 0, 0, 0});
    for (v1::Pool &pool : machine.daemon.pools) {
        pool.mutable_nodes(0)->set_backing(v1::BACKING_SMALL_PAGES);
        pool.set_wanted_backing(v1::BACKING_SMALL_PAGES);
    }
    for (int i = 0; i < 8; ++i) machine.daemon.pools.push_back(machine.daemon.pools[0]);
    machine.daemon.pools[1].mutable_nodes(0)->set_backing(v1::BACKING_THP);
    machine.daemon.pools[1].set_wanted_backing(v1::BACKING_THP);
    const auto findings = machine.findings();
    EXPECT_THAT(findings, Each(Field(&Finding::level, Level::ok)));
    const auto notes = std::ranges::count(findings, std::string("backing"), &Finding::check);
    EXPECT_EQ(notes, 1);
    EXPECT_THAT(machine.finding("backing").what,
                AllOf(HasSubstr("as asked for: default (small), second (thp), default"), HasSubstr(" and 2 more")));
    // A pool that asked for THP, and did not get them, is another matter.
    machine.daemon.pools[1].mutable_nodes(0)->set_backing(v1::BACKING_SMALL_PAGES);
    EXPECT_THAT(machine.finding("backing").what, HasSubstr("pool second, node 0: small instead of thp"));
    EXPECT_EQ(machine.finding("thp").level, Level::warning);
}

TEST(Clients, the_state_says_what_a_quarantine_waits_for_and_cached_is_apart_from_blocks) {
    std::vector<v1::Client> clients(4);
    for (v1::Client &client : clients) client.set_state("quarantined");
    clients[0].set_quarantine_reason("pin held");
    clients[0].set_used_bytes(666 << 10);
    clients[0].set_cached_bytes(665 << 10);
    clients[1].set_quarantine_reason("pin-quarantine");
    clients[1].mutable_quarantine_left()->set_seconds(3);
    clients[2].set_quarantine_reason("group");
    std::ostringstream out;
    print_clients(out, clients, 0);
    EXPECT_THAT(out.str(), AllOf(HasSubstr("CACHED  BLOCKS"), HasSubstr("666 KiB  665 KiB       0"),
                                 HasSubstr("quarantined: pin held\n"), HasSubstr("quarantined: 3 s left\n"),
                                 HasSubstr("quarantined: group\n"), HasSubstr("quarantined\n")));
    EXPECT_EQ(client_json(clients[1])["quarantine_reason"], "pin-quarantine");
    EXPECT_EQ(client_json(clients[1])["quarantine_left_seconds"], 3);
    EXPECT_TRUE(client_json(clients[0])["quarantine_left_seconds"].is_null());
    EXPECT_TRUE(client_json(clients[3])["quarantine_reason"].is_null());
}

TEST(Doctor, every_trouble_has_a_level_a_meaning_and_a_command) {
    struct Case {
        const char *name;
        const char *check;
        Level level;
        const char *in_what;
        const char *in_command;
        void (*spoil)(Healthy &);
    };
    const std::vector<Case> cases{
        {"no daemon", "daemon", Level::problem, "no daemon at", "numacred --runtime-dir /run/numacre",
         [](Healthy &m) {
             m.daemon = {};
             m.daemon.error = "no daemon at /run/numacre/control.sock";
         }},
        {"other version", "daemon", Level::warning, "1.2.4", "systemctl restart numacred",
         [](Healthy &m) { m.daemon.machine.set_version("1.2.4"); }},
        {"no directory", "runtime-dir", Level::warning, "does not exist", "install -d",
         [](Healthy &m) { m.system.runtime_dir_exists = false; }},
        {"open directory", "runtime-dir", Level::problem, "0777", "chmod 0711 /run/numacre",
         [](Healthy &m) { m.system.runtime_dir_mode = 0777; }},
        {"readable directory", "runtime-dir", Level::warning, "0755: everybody may read it", "chmod 0711 /run/numacre",
         [](Healthy &m) { m.system.runtime_dir_mode = 0755; }},
        {"closed directory", "runtime-dir", Level::warning, "0700", "chmod 0711 /run/numacre",
         [](Healthy &m) { m.system.runtime_dir_mode = 0700; }},
        {"no hugetlb", "hugepages", Level::problem, "no hugetlb", "CONFIG_HUGETLBFS",
         [](Healthy &m) { m.system.hugepages.clear(); }},
        {"none reserved", "hugepages", Level::warning, "0 reserved", "echo 128 > /sys/devices/system/node/node0",
         [](Healthy &m) {
             m.daemon.pools.clear();
             m.system.hugepages[0].total = 0;
         }},
        {"fallback lacks pages", "hugepages", Level::warning, "128 reserved",
         "echo 256 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
         [](Healthy &m) { m.daemon.pools[0].mutable_nodes(0)->set_backing(v1::BACKING_THP); }},
        {"fallback", "backing", Level::warning, "thp instead of hugetlb: none were free", "numacre create default",
         [](Healthy &m) {
             m.daemon.pools[0].mutable_nodes(0)->set_backing(v1::BACKING_THP);
             m.daemon.pools[0].mutable_nodes(0)->set_backing_note("none were free");
         }},
        {"fallback from 1 GiB", "backing", Level::warning, "hugetlb instead of hugetlb-1g: none were free",
         "echo 1 > /sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages",
         [](Healthy &m) {
             m.daemon.pools[0].set_wanted_backing(v1::BACKING_HUGETLB_1G);
             m.daemon.pools[0].mutable_nodes(0)->set_backing_note("none were free");
         }},
        {"fallback lacks pages of 1 GiB", "hugepages", Level::warning, "1 GiB: 3 reserved, 0 free",
         "echo 4 > /sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages",
         [](Healthy &m) {
             m.system.hugepages.push_back({0, kGiB, 3, 0, 0});
             m.daemon.pools[0].set_wanted_backing(v1::BACKING_HUGETLB_1G);
         }},
        {"cgroup of 1 GiB pages", "hugetlb-cgroup", Level::warning, "/box allows 512 MiB of 1 GiB pages",
         "echo max > /sys/fs/cgroup/box/hugetlb.1GB.max",
         [](Healthy &m) {
             m.system.hugetlb_limits.push_back({"/box", kGiB, kGiB / 2, 0});
             m.daemon.pools[0].set_wanted_backing(v1::BACKING_HUGETLB_1G);
             m.daemon.pools[0].mutable_nodes(0)->set_backing(v1::BACKING_HUGETLB_1G);
             m.daemon.pools[0].mutable_nodes(0)->set_page_bytes(kGiB);
         }},
        {"cgroup", "hugetlb-cgroup", Level::warning, "/box allows 64 MiB of 2 MiB pages",
         "echo max > /sys/fs/cgroup/box/hugetlb.2MB.max",
         [](Healthy &m) { m.system.hugetlb_limits.push_back({"/box", 2 * kMiB, 64 * kMiB, 0}); }},
        {"io_uring off", "io_uring", Level::problem, "io_uring_disabled is 2", "sysctl -w kernel.io_uring_disabled=0",
         [](Healthy &m) { m.system.io_uring_disabled = 2; }},
        {"io_uring narrow", "io_uring", Level::warning, "io_uring_disabled is 1",
         "sysctl -w kernel.io_uring_disabled=0", [](Healthy &m) { m.system.io_uring_disabled = 1; }},
        {"io_uring filtered", "io_uring", Level::problem, "not implemented", "seccomp",
         [](Healthy &m) { m.system.io_uring_errno = ENOSYS; }},
        {"no guard", "userfaultfd", Level::warning, "userfaultfd fails", "seccomp",
         [](Healthy &m) { m.system.userfaultfd_errno = EPERM; }},
        {"no memfd", "memfd", Level::problem, "memfd_create fails", "seccomp",
         [](Healthy &m) { m.system.memfd_errno = EPERM; }},
        {"memfd_noexec", "memfd", Level::problem, "vm.memfd_noexec is 2", "sysctl -w vm.memfd_noexec=1",
         [](Healthy &m) { m.system.memfd_noexec = 2; }},
        {"file size", "memfd", Level::problem, "numacred (pid 7) is 1 MiB", "ulimit -f unlimited",
         [](Healthy &m) { m.system.file_size_bytes = kMiB; }},
        {"memlock", "memlock", Level::warning, "8 MiB", "LimitMEMLOCK=infinity",
         [](Healthy &m) { m.system.memlock_bytes = 8 * kMiB; }},
        {"no shm", "shm", Level::warning, "/dev/shm is not there", "mount -t tmpfs",
         [](Healthy &m) { m.system.shm_total_bytes.reset(); }},
        {"full shm", "shm", Level::warning, "4 KiB free", "remount",
         [](Healthy &m) { m.system.shm_free_bytes = 4096; }},
        {"strict overcommit", "overcommit", Level::warning, "is 2", "sysctl -w vm.overcommit_memory=0",
         [](Healthy &m) { m.system.overcommit_memory = 2; }},
        {"balancing", "numa-balancing", Level::warning, "is 1", "sysctl -w kernel.numa_balancing=0",
         [](Healthy &m) {
             m.system.numa_balancing = 1;
             m.system.numa_nodes = 2;
         }},
        {"thp", "thp", Level::warning, "shmem_enabled is never", "echo advise >",
         [](Healthy &m) { m.daemon.pools[0].mutable_nodes(0)->set_backing(v1::BACKING_SMALL_PAGES); }},
        {"corrupt", "pools", Level::problem, "default is corrupt: bad tag", "numacre delete default --force",
         [](Healthy &m) {
             m.daemon.pools[0].set_state(v1::POOL_STATE_CORRUPT);
             m.daemon.pools[0].set_corrupt_reason("bad tag");
         }},
        {"long look", "pools", Level::warning, "a look at pool default has lasted for 11 s",
         "numacre clients default, then numacre evict",
         [](Healthy &m) { m.daemon.pools[0].set_looking_seconds(10.5); }},
        {"no pool", "pools", Level::warning, "no pool", "numacre create", [](Healthy &m) { m.daemon.pools.clear(); }},
        {"messages left", "channels", Level::warning,
         "channel jobs of pool default has 3 messages (12 KiB), the oldest for 1 min, and nobody has it open",
         "numacre channels default --remove jobs",
         [](Healthy &m) {
             v1::Channel &channel = m.daemon.channels.emplace_back();
             channel.set_pool("default");
             channel.set_name("jobs");
             channel.set_waiting_messages(1);
             channel.set_returned_messages(2);
             channel.set_waiting_bytes(12 << 10);
             channel.mutable_oldest_waits_for()->set_seconds(60);
         }},
        {"nobody receives", "channels", Level::warning, "and nobody receives", "--remove jobs --force",
         [](Healthy &m) {
             v1::Channel &channel = m.daemon.channels.emplace_back();
             channel.set_pool("default");
             channel.set_name("jobs");
             channel.set_waiting_messages(1);
             channel.set_senders(1);
             channel.add_clients()->set_senders(1);
             channel.mutable_oldest_waits_for()->set_seconds(3600);
         }},
        {"lost", "clients", Level::warning, "client 9 (relay, pid 42)", "numacre evict 9",
         [](Healthy &m) {
             v1::Client client;
             client.set_client_id(9);
             client.set_pid(42);
             client.set_comm("relay");
             client.set_state("lost connection");
             m.daemon.clients.push_back(client);
         }},
        {"recovering", "clients", Level::warning, "recovering", "numacre clients",
         [](Healthy &m) { m.daemon.clients.emplace_back().set_state("recovering"); }},
        {"waiting", "clients", Level::warning, "waits for client 8",
         "kill -CONT its pid, or: numacre evict 8 --grace 5s",
         [](Healthy &m) {
             v1::Client &client = m.daemon.clients.emplace_back();
             client.set_state("recovering");
             client.set_waits_for_client_id(8);
         }},
    };
    for (const Case &test : cases) {
        SCOPED_TRACE(test.name);
        Healthy machine;
        test.spoil(machine);
        const Finding finding = machine.finding(test.check);
        EXPECT_EQ(level_name(finding.level), std::string(level_name(test.level)));
        EXPECT_THAT(finding.what, HasSubstr(test.in_what));
        EXPECT_NE(finding.meaning, "");
        EXPECT_THAT(finding.command, HasSubstr(test.in_command));
    }
}

TEST(Doctor, messages_that_are_young_or_have_a_receiver_are_no_trouble) {
    Healthy machine;
    machine.daemon.channels.resize(2);
    for (v1::Channel &channel : machine.daemon.channels) channel.set_waiting_messages(5);
    machine.daemon.channels[0].mutable_oldest_waits_for()->set_seconds(59);
    machine.daemon.channels[1].mutable_oldest_waits_for()->set_seconds(3600);
    machine.daemon.channels[1].set_receivers(1);
    EXPECT_THAT(machine.findings(), Each(Field(&Finding::level, Level::ok)));
    machine.daemon.channels[1].set_receivers(0);
    EXPECT_EQ(machine.finding("channels").level, Level::warning);
}

TEST(Doctor, a_limit_that_is_lifted_or_wide_enough_is_no_trouble) {
    Healthy machine;
    machine.system.memlock_bytes = 8 * kMiB;
    machine.system.privileged = true;
    machine.system.hugetlb_limits.push_back({"/box", 2 * kMiB, 4 * kGiB, 0});
    machine.system.numa_balancing = 1;  // one numa node
    EXPECT_THAT(machine.findings(), Each(Field(&Finding::level, Level::ok)));
}

class MadeUpMachine : public testing::Test {
protected:
    void SetUp() override {
        std::string pattern = testing::TempDir() + "numacre-doctor-XXXXXX";
        ASSERT_NE(mkdtemp(pattern.data()), nullptr);
        root_ = pattern;
    }
    void TearDown() override { std::filesystem::remove_all(root_); }
    void put(const std::string &path, const std::string &text) {
        std::filesystem::create_directories((root_ / path).parent_path());
        std::ofstream(root_ / path) << text << '\n';
    }
    std::filesystem::path root_;
};

TEST_F(MadeUpMachine, facts_are_read_from_proc_and_sys) {
    const std::string pages = "sys/devices/system/node/node1/hugepages/hugepages-2048kB/";
    put("sys/devices/system/node/node0/cpulist", "0-1");
    put(pages + "nr_hugepages", "48");
    put(pages + "free_hugepages", "40");
    put(pages + "surplus_hugepages", "2");
    put("proc/sys/kernel/io_uring_disabled", "1");
    put("proc/sys/kernel/numa_balancing", "1");
    put("proc/sys/vm/overcommit_memory", "2");
    put("proc/sys/vm/nr_overcommit_hugepages", "16");
    put("proc/sys/vm/memfd_noexec", "2");
    put("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never deny force");
    put("proc/7/limits",
        "Limit                     Soft Limit           Hard Limit           Units\n"
        "Max file size             unlimited            unlimited            bytes\n"
        "Max locked memory         8388608              8388608              bytes");
    put("proc/7/status", "Name:\tnumacred\nCapEff:\t0000000000004000\n");
    put("proc/7/cgroup", "0::/box/inner");
    put("sys/fs/cgroup/box/hugetlb.2MB.max", "67108864");
    put("sys/fs/cgroup/box/hugetlb.2MB.current", "2097152");
    put("sys/fs/cgroup/box/hugetlb.2MB.rsvd.max", "4096");
    put("sys/fs/cgroup/box/inner/hugetlb.2MB.max", "max");
    const SystemFacts facts = gather_system_facts(root_, root_ / "proc", 7);

    ASSERT_THAT(facts.hugepages, SizeIs(1));
    EXPECT_EQ(facts.hugepages[0].os_numa_node, 1);
    EXPECT_EQ(facts.hugepages[0].page_bytes, 2 * kMiB);
    EXPECT_EQ(facts.hugepages[0].total, 48U);
    EXPECT_EQ(facts.hugepages[0].free, 40U);
    EXPECT_EQ(facts.hugepages[0].surplus, 2U);
    EXPECT_EQ(facts.numa_nodes, 2);
    EXPECT_EQ(facts.io_uring_disabled, 1);
    EXPECT_EQ(facts.numa_balancing, 1);
    EXPECT_EQ(facts.overcommit_memory, 2);
    EXPECT_EQ(facts.overcommit_hugepages, 16U);
    EXPECT_EQ(facts.memfd_noexec, 2);
    EXPECT_EQ(facts.thp_shmem, "advise");
    EXPECT_EQ(facts.limits_of, "numacred (pid 7)");
    EXPECT_EQ(facts.memlock_bytes, 8 * kMiB);
    EXPECT_FALSE(facts.file_size_bytes);
    EXPECT_TRUE(facts.privileged);
    ASSERT_THAT(facts.hugetlb_limits, SizeIs(1));
    EXPECT_EQ(facts.hugetlb_limits[0].cgroup, "/box");
    EXPECT_EQ(facts.hugetlb_limits[0].limit_bytes, 64 * kMiB);
    EXPECT_EQ(facts.hugetlb_limits[0].used_bytes, 2 * kMiB);
    EXPECT_TRUE(facts.runtime_dir_exists);
    EXPECT_FALSE(facts.shm_total_bytes);
}

// The kernel counts reserved pages for the machine: 16 free of 40 are for anybody, on whichever numa node.
TEST_F(MadeUpMachine, reserved_hugepages_are_read_for_the_machine) {
    for (const auto &[numa_node, free] : {std::pair{"node0", "30"}, std::pair{"node1", "10"}}) {
        const std::string pages = std::string("sys/devices/system/node/") + numa_node + "/hugepages/hugepages-2048kB/";
        put(pages + "nr_hugepages", "64");
        put(pages + "free_hugepages", free);
    }
    put("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "40");
    put("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "24");
    const SystemFacts facts = gather_system_facts(root_, root_ / "nothing", 0);
    ASSERT_THAT(facts.hugepages, SizeIs(2));
    EXPECT_EQ(facts.hugepages[0].promised, 14U);
    EXPECT_EQ(facts.hugepages[1].promised, 0U);
}

TEST_F(MadeUpMachine, an_empty_machine_is_not_fatal) {
    const SystemFacts facts = gather_system_facts(root_, root_ / "nothing", 0);
    EXPECT_THAT(facts.hugepages, SizeIs(0));
    EXPECT_FALSE(facts.io_uring_disabled);
    EXPECT_EQ(facts.limits_of, "this shell");
    EXPECT_FALSE(facts.runtime_dir_exists);
    EXPECT_GT(count_level(examine(facts, {}, "1"), Level::problem), 0U);
}

v1::Pool advised_pool() {
    v1::Pool pool;
    pool.set_name("default");
    pool.set_frame_bytes(4 * kKiB);
    pool.set_largest_block_bytes(4 * kMiB);
    v1::PoolNode *numa_node = pool.add_nodes();
    numa_node->set_capacity_bytes(kGiB);
    numa_node->set_online_bytes(256 * kMiB);
    numa_node->set_page_bytes(2 * kMiB);
    return pool;
}

v1::GetStatsResponse used_order(std::uint64_t block_bytes) {
    v1::GetStatsResponse stats;
    v1::OrderStats *order = stats.add_nodes()->add_orders();
    order->set_block_bytes(block_bytes);
    order->set_allocations(1);
    return stats;
}

TEST(Advise, an_unused_pool_stays_as_it_is) {
    const Advice advice = advise(advised_pool(), {}, 0);
    EXPECT_EQ(advice.suggested_online_bytes, 256 * kMiB);
    EXPECT_EQ(advice.suggested_largest_block_bytes, 4 * kMiB);
    EXPECT_THAT(advice.reasons, Contains(HasSubstr("nothing has been allocated")));
}

TEST(Advise, the_peak_and_a_quarter_in_whole_chunks) {
    const Advice advice = advise(advised_pool(), used_order(4 * kMiB), 33 * kMiB);
    EXPECT_EQ(advice.suggested_online_bytes, 44 * kMiB);
    EXPECT_EQ(advice.suggested_largest_block_bytes, 4 * kMiB);
}

TEST(Advise, the_daemons_high_water_marks_count_where_we_saw_less) {
    v1::Pool pool = advised_pool();
    pool.mutable_nodes(0)->set_peak_used_bytes(33 * kMiB);
    pool.set_peak_client_bytes(20 * kMiB);
    pool.set_low_watermark_bytes(kMiB);
    const Advice advice = advise(pool, used_order(4 * kMiB), kMiB);
    EXPECT_EQ(advice.peak_used_bytes, 33 * kMiB);
    EXPECT_EQ(advice.suggested_online_bytes, 44 * kMiB);
    EXPECT_EQ(advice.suggested_low_watermark_bytes, 11 * kMiB / 2);
    EXPECT_EQ(advice_json(advice)["peak_client_bytes"], 20 * kMiB);
    std::ostringstream out;
    print_advice(out, advice);
    EXPECT_THAT(out.str(), AllOf(HasSubstr("had 20 MiB"), HasSubstr("# now 1M")));
    EXPECT_EQ(advise(pool, {}, 0).suggested_low_watermark_bytes, kMiB) << "nothing to learn from";
}

TEST(Advise, failures_ask_for_more_but_never_beyond_the_capacity) {
    v1::GetStatsResponse stats = used_order(4 * kMiB);
    stats.mutable_nodes(0)->set_failures_out_of_frames(5);
    EXPECT_EQ(advise(advised_pool(), stats, 256 * kMiB).suggested_online_bytes, 320 * kMiB);
    const Advice beyond = advise(advised_pool(), stats, kGiB);
    EXPECT_EQ(beyond.suggested_online_bytes, kGiB);
    EXPECT_THAT(beyond.reasons, Contains(HasSubstr("capacity of 1 GiB is below")));
}

TEST(Advise, smaller_chunks_only_down_to_a_page_and_not_if_it_fragments) {
    EXPECT_EQ(advise(advised_pool(), used_order(4 * kKiB), kMiB).suggested_largest_block_bytes, 2 * kMiB);
    v1::GetStatsResponse fragmented = used_order(4 * kKiB);
    fragmented.mutable_nodes(0)->set_failures_fragmented(1);
    EXPECT_EQ(advise(advised_pool(), fragmented, kMiB).suggested_largest_block_bytes, 4 * kMiB);
}

TEST(Advise, a_pool_that_wants_pages_of_1_gib_is_told_of_whole_ones_whatever_it_got) {
    v1::Pool pool = advised_pool();
    pool.set_wanted_backing(v1::BACKING_HUGETLB_1G);
    pool.mutable_nodes(0)->set_capacity_bytes(4 * kGiB);
    pool.mutable_nodes(0)->set_online_bytes(2 * kGiB);
    const Advice advice = advise(pool, used_order(4 * kKiB), 33 * kMiB);
    EXPECT_EQ(advice.suggested_online_bytes, kGiB);
    EXPECT_EQ(advice.suggested_largest_block_bytes, 4 * kMiB) << "smaller chunks would not let it shrink any finer";
    std::ostringstream out;
    print_advice(out, advice);
    EXPECT_THAT(out.str(), HasSubstr("\nbacking = \"hugetlb-1g\"\n"));
}

TEST(Advise, prints_lines_of_the_config_file_without_loss) {
    EXPECT_EQ(config_size(0), "0");
    EXPECT_EQ(config_size(4097), "4097");
    EXPECT_EQ(config_size(1536 * kMiB), "1536M");
    EXPECT_EQ(config_size(2 * kGiB), "2G");
    std::ostringstream out;
    print_advice(out, advise(advised_pool(), used_order(4 * kMiB), 33 * kMiB));
    EXPECT_THAT(out.str(), HasSubstr("\nlow-watermark = \"5632K\"    # now 0\n"));
    EXPECT_THAT(out.str(), AllOf(StartsWith("# at most 33 MiB"), HasSubstr("\n[[pool]]\nname = \"default\"\n"),
                                 HasSubstr("\nonline = \"44M\"    # now 256M\n"), HasSubstr("\nlargest = \"4M\"\n")));
}

}  // namespace
}  // namespace numacre::cli
