// The policy by which pools grow and shrink: what history asks for what size.
#include "spec/autosize.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <vector>

namespace numacre::daemon {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kUnit = 4 * kMiB;

Autosize policy(const char *text = "20%-60%:100M-300M:40M:10s") {
    return *parse_autosize(text);
}

// One sample a second; free memory in MiB, of so much online.
std::vector<AutosizeSample> history(std::uint64_t online_mib, const std::vector<std::uint64_t> &free_mib) {
    std::vector<AutosizeSample> samples;
    std::chrono::steady_clock::time_point time{};
    for (const std::uint64_t free : free_mib)
        samples.push_back({time += std::chrono::seconds(1), free * kMiB, online_mib * kMiB});
    return samples;
}

// The history after so many looks a second, for so long. free_mib: of 200 MiB online, by the number of the look.
std::vector<AutosizeSample> looked_at(unsigned each_second, unsigned seconds,
                                      const std::function<unsigned(unsigned)> &free_mib) {
    std::deque<AutosizeSample> samples;
    std::chrono::steady_clock::time_point time{};
    for (unsigned i = 0; i <= each_second * seconds; ++i, time += std::chrono::nanoseconds(1'000'000'000) / each_second)
        remember(samples, {time, free_mib(i) * kMiB, 200 * kMiB}, policy().after);
    EXPECT_LE(samples.size(), 1100U);
    return {samples.begin(), samples.end()};
}

std::optional<std::uint64_t> wants(const std::vector<AutosizeSample> &samples, const Autosize &autosize = policy()) {
    const auto bytes = autosize_wants(autosize, samples, kUnit);
    if (!bytes) return std::nullopt;
    EXPECT_EQ(*bytes % kUnit, 0U);
    return *bytes / kMiB;
}

TEST(Autosize, it_is_off_unless_asked_for) {
    EXPECT_EQ(wants(history(200, std::vector<std::uint64_t>(100, 0)), Autosize{}), std::nullopt);
    EXPECT_FALSE(PoolSpec{}.autosize.is_on);
}

// What the policy wants of several numa nodes, of which each has the history and gives up whole units.
std::vector<std::size_t> nodes_of_wishes(const std::vector<std::vector<AutosizeSample>> &nodes, LastShrink &last,
                                         const Autosize &autosize = policy()) {
    std::vector<std::deque<AutosizeSample>> histories;
    for (const auto &samples : nodes) histories.emplace_back(samples.begin(), samples.end());
    std::vector<std::size_t> wished;
    for (const AutosizeWish &wish :
         autosize_wishes(autosize, histories, std::vector<std::uint64_t>(nodes.size(), kUnit), last))
        wished.push_back(wish.numa_node);
    return wished;
}

// Two that count on one another's free memory, for a promise, would otherwise both give it back.
TEST(Autosize, one_numa_node_shrinks_at_a_time_and_they_take_turns) {
    const std::vector<std::uint64_t> ample(11, 170);
    const auto later = [&](std::chrono::seconds by) {
        auto samples = history(200, ample);
        for (AutosizeSample &sample : samples) sample.time += by;
        return samples;
    };
    LastShrink last;
    EXPECT_THAT(nodes_of_wishes({later({}), later({})}, last), ElementsAre(0));
    EXPECT_THAT(nodes_of_wishes({{}, later(std::chrono::seconds(9))}, last), IsEmpty()) << "9 s after the last one";
    EXPECT_THAT(nodes_of_wishes({{}, later(std::chrono::seconds(10))}, last), ElementsAre(1));
    EXPECT_THAT(nodes_of_wishes({later(std::chrono::seconds(21)), later(std::chrono::seconds(21))}, last),
                ElementsAre(0));
    EXPECT_THAT(nodes_of_wishes({later(std::chrono::seconds(40)), later(std::chrono::seconds(40))}, last),
                ElementsAre(1));
}

TEST(Autosize, without_a_while_to_wait_one_look_still_shrinks_one_numa_node) {
    const Autosize at_once = policy("20%-60%:100M-300M:40M:0s");
    LastShrink last;
    const auto ample = history(200, {170});
    EXPECT_THAT(nodes_of_wishes({ample, ample, ample}, last, at_once), ElementsAre(0));
    EXPECT_THAT(nodes_of_wishes({ample, ample, ample}, last, at_once), IsEmpty()) << "no sample is newer";
}

TEST(Autosize, a_shrink_holds_up_no_growth) {
    LastShrink last;
    const auto ample = history(200, std::vector<std::uint64_t>(11, 170));
    const auto scarce = history(200, std::vector<std::uint64_t>(11, 10));
    EXPECT_THAT(nodes_of_wishes({ample, scarce, ample, scarce}, last), ElementsAre(0, 1, 3));
    EXPECT_THAT(nodes_of_wishes({ample, scarce}, last), ElementsAre(1));
}

TEST(Autosize, it_grows_by_a_step_when_little_was_free_for_long) {
    EXPECT_EQ(wants(history(200, std::vector<std::uint64_t>(11, 39))), 240U);
    EXPECT_EQ(wants(history(200, std::vector<std::uint64_t>(10, 39))), std::nullopt) << "9 s only";
    EXPECT_EQ(wants(history(200, std::vector<std::uint64_t>(11, 40))), std::nullopt) << "at the mark";
}

TEST(Autosize, more_than_all_is_never_free) {
    for (const std::uint64_t odd_mib : {196, 200, 204}) {
        const std::vector<AutosizeSample> all_free = history(odd_mib, std::vector<std::uint64_t>(11, odd_mib));
        EXPECT_EQ(wants(all_free, policy("0%-100%:4M-300M:4M:10s")), std::nullopt) << odd_mib;
        EXPECT_NE(wants(all_free, policy("0%-99%:4M-300M:4M:10s")), std::nullopt) << odd_mib;
    }
}

TEST(Autosize, a_moment_above_the_mark_begins_the_while_anew) {
    std::vector<std::uint64_t> free(11, 39);
    free[1] = 41;
    EXPECT_EQ(wants(history(200, free)), std::nullopt);
    std::swap(free[0], free[1]);
    EXPECT_EQ(wants(history(200, free)), std::nullopt);
    free.push_back(39);
    EXPECT_EQ(wants(history(200, free)), 240U) << "what was 11 s ago is over";
}

// A user who scrapes the metrics at full speed kept a pool from growing: no sample was ever old enough.
TEST(Autosize, however_often_somebody_looks_the_history_reaches_back_far_enough) {
    for (const unsigned each_second : {1U, 100U, 1000U, 20'000U}) {
        EXPECT_EQ(wants(looked_at(each_second, 11, [](unsigned) { return 39; })), 240U) << each_second;
        EXPECT_EQ(wants(looked_at(each_second, 9, [](unsigned) { return 39; })), std::nullopt) << each_second;
        EXPECT_EQ(wants(looked_at(each_second, 11, [](unsigned) { return 190; })), 160U) << each_second;
    }
    // A single look that differs counts, wherever it is among the others.
    for (const unsigned odd : {19'990U, 20'000U, 20'007U})
        EXPECT_EQ(wants(looked_at(2000, 11, [odd](unsigned i) { return i == odd ? 41 : 39; })), std::nullopt) << odd;
    for (const unsigned odd : {19'990U, 20'000U, 20'007U})
        EXPECT_EQ(wants(looked_at(2000, 11, [odd](unsigned i) { return i == odd ? 100 : 190; })), std::nullopt) << odd;
}

TEST(Autosize, somebody_elses_resize_begins_the_while_anew) {
    auto samples = history(200, std::vector<std::uint64_t>(30, 30));
    for (std::size_t i = 0; i < 25; ++i) samples[i].online_bytes = 160 * kMiB;
    EXPECT_EQ(wants(samples), std::nullopt);
}

TEST(Autosize, the_ceiling_is_reached_and_never_passed) {
    EXPECT_EQ(wants(history(280, std::vector<std::uint64_t>(11, 0))), 300U);
    EXPECT_EQ(wants(history(300, std::vector<std::uint64_t>(11, 0))), std::nullopt);
    EXPECT_EQ(wants(history(400, std::vector<std::uint64_t>(11, 0))), std::nullopt) << "an operator's";
    EXPECT_EQ(wants(history(280, std::vector<std::uint64_t>(11, 0)), policy("20%-60%:100M-299M:40M:10s")), 296U);
}

TEST(Autosize, a_step_that_no_number_holds_is_a_step_to_the_ceiling) {
    for (const char *const step : {"18446744073709551615", "18446744073709547520", "9223372036854775808"})
        EXPECT_EQ(wants(history(200, std::vector<std::uint64_t>(11, 0)),
                        policy(("20%-60%:100M-300M:" + std::string(step) + ":10s").c_str())),
                  300U)
            << step;
}

TEST(Autosize, the_floor_is_reached_and_never_passed) {
    EXPECT_EQ(wants(history(120, std::vector<std::uint64_t>(11, 120))), 100U);
    EXPECT_EQ(wants(history(100, std::vector<std::uint64_t>(11, 100))), std::nullopt);
    EXPECT_EQ(wants(history(60, std::vector<std::uint64_t>(11, 60))), std::nullopt);
    EXPECT_EQ(wants(history(120, std::vector<std::uint64_t>(11, 120)), policy("20%-60%:99M-300M:40M:10s")), 100U);
}

TEST(Autosize, it_shrinks_only_if_enough_stays_free) {
    EXPECT_EQ(wants(history(200, std::vector<std::uint64_t>(11, 121))), 160U);  // 81 of 160 are left: more than 40 %
    EXPECT_EQ(wants(history(200, std::vector<std::uint64_t>(11, 120))), std::nullopt) << "at the mark";
    // 34 of 60: fine. But 10 of 36 is less than halfway: a step that would soon be taken back.
    const Autosize coarse = policy("20%-60%:0M-300M:64M:10s");
    EXPECT_EQ(wants(history(100, std::vector<std::uint64_t>(11, 74)), coarse), std::nullopt);
    EXPECT_EQ(wants(history(100, std::vector<std::uint64_t>(11, 90)), coarse), 36U);
}

TEST(Autosize, an_empty_pool_gets_its_first_step_and_keeps_it) {
    const Autosize small = policy("20%-60%:0M-300M:40M:0s");
    EXPECT_EQ(wants(history(0, {0}), small), 40U);
    EXPECT_EQ(wants(history(40, {40}), small), std::nullopt);
}

// Whatever is used, it comes to rest: growing is never followed by shrinking, nor the other way round.
TEST(Autosize, at_steady_use_it_comes_to_rest) {
    const Autosize eager = policy("20%-60%:0M-300M:40M:0s");
    for (std::uint64_t used = 0; used <= 300; used += 4) {
        for (std::uint64_t begin = round_up(used, 4); begin <= 300; begin += 4) {
            std::uint64_t online = begin;
            int grown = 0, shrunk = 0;
            for (int i = 0; i < 100; ++i) {
                const auto next = wants(history(online, {online - used}), eager);
                if (!next) break;
                ++(*next > online ? grown : shrunk);
                online = *next;
            }
            ASSERT_TRUE(grown == 0 || shrunk == 0) << used << " used, from " << begin;
            ASSERT_LT(grown + shrunk, 10) << used << " used, from " << begin;
        }
    }
}

TEST(Autosize, its_spelling_goes_both_ways) {
    for (const char *text : {"off", "10%-50%:64M-1G:64M:30s", "0%-100%:0-4K:1:0s"})
        EXPECT_EQ(format_autosize(policy(text)), text);
    EXPECT_EQ(format_autosize(policy("10%-50%:64M-1G")), "10%-50%:64M-1G:64M:30s");
}

TEST(Autosize, nonsense_is_refused_by_name) {
    for (const char *text :
         {"", "on", "10%-50%", "50%-10%:1M-2M", "10%-10%:1M-2M", "10-50:1M-2M", "10%-101%:1M-2M", "10%-50%:2M-1M",
          "10%-50%:1M", "10%-50%:1M-2M:0", "10%-50%:1M-2M:1M:5", "10%-50%:1M-2M:1M:3601s", "10%-50%:1M-2M:1M:5s:6"}) {
        const auto parsed = parse_autosize(text);
        ASSERT_FALSE(parsed) << text;
        EXPECT_THAT(parsed.error().message, HasSubstr("10%-50%:64M-1G:64M:30s")) << text;
    }
}

}  // namespace
}  // namespace numacre::daemon
