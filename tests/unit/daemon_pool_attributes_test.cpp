// The table of pool attributes by itself, and beside the documents that describe each attribute: a new row fails here
// until they have it. tests/package/man_pages_test.py compares the options of `numacre create`.
#include "spec/pool_attributes.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>

#include "pool_attribute_values.hpp"
#include "spec/pool_spec.hpp"

namespace numacre::daemon {
namespace {

std::string text_of(const std::string &path) {
    const char *const source = std::getenv("NUMACRE_SOURCE_DIR");
    EXPECT_NE(source, nullptr) << "ctest sets NUMACRE_SOURCE_DIR to the top of the tree";
    std::ifstream file(std::string(source == nullptr ? "." : source) + "/" + path);
    std::ostringstream text;
    text << file.rdbuf();
    EXPECT_FALSE(text.str().empty()) << path;
    return text.str();
}

TEST(PoolAttributes, keys_are_found_and_are_there_once) {
    std::set<std::string_view> keys;
    for (const PoolAttribute &attribute : pool_attributes()) {
        EXPECT_TRUE(keys.insert(attribute.key).second) << attribute.key;
        EXPECT_EQ(find_pool_attribute(attribute.key), &attribute);
        EXPECT_TRUE(kAttributeValues.contains(attribute.key))
            << "add a value for " << attribute.key << " to pool_attribute_values.hpp";
    }
    EXPECT_EQ(keys.size(), kAttributeValues.size());
    EXPECT_EQ(find_pool_attribute("no-such-key"), nullptr);
    EXPECT_EQ(find_pool_attribute(""), nullptr);
}

TEST(PoolAttributes, each_row_says_what_the_attribute_is_and_whether_it_can_be_changed) {
    for (const PoolAttribute &attribute : pool_attributes()) {
        SCOPED_TRACE(attribute.key);
        EXPECT_FALSE(attribute.help.empty());
        EXPECT_FALSE(attribute.help.ends_with('.'));
        EXPECT_EQ(attribute.help.find('\n'), std::string_view::npos);
        EXPECT_FALSE(attribute.default_text.empty());
        EXPECT_NE(attribute.changed_by.empty(), attribute.fixed_because.empty()) << "one of them, not both";
        EXPECT_TRUE(attribute.fixed_because.empty() || attribute.fixed_because.find(": ") != std::string_view::npos)
            << "a reason, a colon, and the remedy";
    }
}

TEST(PoolAttributes, each_value_is_written_as_it_was_read_and_changes_no_other_attribute) {
    for (const PoolAttribute &attribute : pool_attributes()) {
        SCOPED_TRACE(attribute.key);
        PoolSpec spec;
        const std::string value = kAttributeValues.find(attribute.key)->second;
        EXPECT_NE(attribute.format(spec), value) << "the test needs a value that is not the default";
        ASSERT_TRUE(attribute.parse(spec, value)) << attribute.parse(spec, value).error().message;
        EXPECT_EQ(attribute.format(spec), value);
        for (const PoolAttribute &other : pool_attributes()) {
            // The limit of a client's threads is max-threads until it is set.
            if (other.key == attribute.key || other.key == "max-threads-per-client") continue;
            EXPECT_EQ(other.format(spec), other.format(PoolSpec{})) << other.key;
        }
    }
}

TEST(PoolAttributes, a_spec_with_all_attributes_is_read_back_from_its_texts) {
    for (const auto *left_out : {&kOfObjects, &kOfBlocks}) {
        PoolSpec spec, again;
        for (const PoolAttribute &attribute : pool_attributes()) {
            if (left_out->contains(attribute.key)) continue;
            ASSERT_TRUE(attribute.parse(spec, kAttributeValues.find(attribute.key)->second)) << attribute.key;
        }
        if (left_out == &kOfBlocks) spec.low_watermark_bytes = 1 << 20;  // of 1000 objects
        const auto sizes = set_object_sizes(spec, [](std::string_view) { return false; });
        ASSERT_TRUE(sizes) << sizes.error().message;
        const auto geometry = geometry_of(spec);
        EXPECT_TRUE(geometry) << geometry.error().message;
        for (const PoolAttribute &attribute : pool_attributes())
            ASSERT_TRUE(attribute.parse(again, attribute.format(spec))) << attribute.key;
        for (const PoolAttribute &attribute : pool_attributes())
            EXPECT_EQ(attribute.format(again), attribute.format(spec)) << attribute.key;
        // As --check-config writes it, with all keys.
        const auto same = set_object_sizes(again, [](std::string_view) { return true; });
        EXPECT_TRUE(same) << same.error().message;
        EXPECT_EQ(geometry_of(again).value(), geometry.value());
    }
}

TEST(PoolAttributes, a_refused_value_leaves_the_spec_as_it_was) {
    const std::string wrong = "\x01no such value";
    for (const PoolAttribute &attribute : pool_attributes()) {
        SCOPED_TRACE(attribute.key);
        PoolSpec spec;
        ASSERT_TRUE(attribute.parse(spec, kAttributeValues.find(attribute.key)->second));
        const auto refused = attribute.parse(spec, wrong);
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().code, Errc::bad_argument);
        EXPECT_FALSE(refused.error().message.empty());
        EXPECT_EQ(attribute.format(spec), kAttributeValues.find(attribute.key)->second);
    }
}

TEST(PoolAttributes, one_online_size_replaces_several) {
    PoolSpec spec;
    const PoolAttribute &online = *find_pool_attribute("online");
    ASSERT_TRUE(online.parse(spec, "32M/16M"));
    ASSERT_TRUE(online.parse(spec, "8M"));
    EXPECT_EQ(online.format(spec), "8M");
}

TEST(PoolAttributes, defaults_are_those_of_a_spec) {
    // In words, for these depend on the user or on another key.
    const std::set<std::string_view> in_words{"max-threads-per-client", "user-quota", "owner", "group"};
    for (const PoolAttribute &attribute : pool_attributes()) {
        if (in_words.contains(attribute.key)) continue;
        EXPECT_EQ(attribute.format(PoolSpec{}), attribute.default_text) << attribute.key;
    }
}

std::string on_one_line(const std::string &text) {
    std::istringstream words(text);
    std::string line;
    for (std::string word; words >> word;) line += (line.empty() ? "" : " ") + word;
    return line;
}

// The text between two others.
std::optional<std::string> between(const std::string &text, const std::string &after, const std::string &before) {
    const std::size_t found = text.find(after);
    if (found == std::string::npos) return std::nullopt;
    const std::size_t begin = found + after.size();
    return text.substr(begin, text.find(before, begin) - begin);
}

TEST(PoolAttributes, the_sample_file_has_each_attribute) {
    const std::string sample = text_of("deploy/numacred.toml");
    const std::string pool = sample.substr(sample.find("\n[[pool]]\n"));
    for (const PoolAttribute &attribute : pool_attributes()) {
        const std::string assignment = std::string(attribute.key) + " = ";
        auto value = between(pool, "\n" + assignment, "\n");
        if (!value) value = between(pool, "\n#" + assignment, "\n");
        ASSERT_TRUE(value) << "add " << attribute.key << " to deploy/numacred.toml";
        std::erase(*value, '"');
        PoolSpec spec;
        // The users of the example are not users of this machine.
        if (attribute.key == "user-quota") continue;
        EXPECT_TRUE(attribute.parse(spec, *value)) << attribute.key;
    }
}

TEST(PoolAttributes, the_manual_says_the_default_and_how_each_attribute_is_changed) {
    const std::string manual = text_of("deploy/man/numacred.toml.5.scd");
    const std::string pool = manual.substr(manual.find("\n# POOL KEYS\n"));
    for (const PoolAttribute &attribute : pool_attributes()) {
        const std::size_t begin = pool.find("\n*" + std::string(attribute.key) + "*\n");
        ASSERT_NE(begin, std::string::npos) << "add " << attribute.key << " to deploy/man/numacred.toml.5.scd";
        std::string entry = pool.substr(begin, pool.find("\n\n*", begin + 1) - begin);
        entry = on_one_line(entry);
        const auto shown = between(entry, "Default: ", ". R");  // "Range:" or "Run time:" follows
        ASSERT_TRUE(shown) << entry;
        std::string default_text = *shown;
        std::erase(default_text, '*');
        EXPECT_EQ(default_text, attribute.default_text) << attribute.key;
        const auto run_time = between(entry, "Run time: ", ".");
        ASSERT_TRUE(run_time) << entry;
        if (attribute.changed_by.empty()) {
            EXPECT_EQ(run_time->substr(0, run_time->find(';')), "fixed") << attribute.key;
        } else {
            EXPECT_NE(run_time->find("*" + std::string(attribute.changed_by) + "*"), std::string::npos) << *run_time;
        }
    }
}

}  // namespace
}  // namespace numacre::daemon
