#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "base/bytes.hpp"

namespace numacre::daemon {
namespace {

TEST(Bytes, units_are_powers_of_1024_however_they_are_spelled) {
    for (const char *text : {"4096", "4K", "4k", "4KB", "4KiB", "4kib", "4096B"}) {
        const auto parsed = parse_bytes(text);
        ASSERT_TRUE(parsed) << text << ": " << parsed.error().message;
        EXPECT_EQ(*parsed, 4096U) << text;
    }
    EXPECT_EQ(*parse_bytes("3M"), std::uint64_t{3} << 20);
    EXPECT_EQ(*parse_bytes("3G"), std::uint64_t{3} << 30);
    EXPECT_EQ(*parse_bytes("3T"), std::uint64_t{3} << 40);
    EXPECT_EQ(*parse_bytes("3P"), std::uint64_t{3} << 50);
    EXPECT_EQ(*parse_bytes("0"), 0U);
}

TEST(Bytes, what_is_no_byte_count_is_refused_by_name_and_with_a_remedy) {
    for (const char *text : {"", " 4K", "4 K", "-4K", "+4K", "1.5G", "lots", "4X", "4KK", "4Ki", "0x10", "K"}) {
        const auto parsed = parse_bytes(text);
        ASSERT_FALSE(parsed) << text << " was read as " << *parsed;
        EXPECT_EQ(parsed.error().code, Errc::bad_argument);
        EXPECT_NE(parsed.error().message.find("\"" + std::string(text) + "\""), std::string::npos)
            << parsed.error().message;
        EXPECT_NE(parsed.error().message.find("such as"), std::string::npos) << parsed.error().message;
    }
}

TEST(Bytes, the_last_value_that_fits_is_taken_and_the_next_refused) {
    EXPECT_EQ(*parse_bytes("18446744073709551615"), std::numeric_limits<std::uint64_t>::max());
    EXPECT_FALSE(parse_bytes("18446744073709551616"));
    EXPECT_EQ(*parse_bytes("16383P"), std::uint64_t{16383} << 50);
    EXPECT_FALSE(parse_bytes("16384P"));
}

TEST(Bytes, formatting_is_exact_and_read_back) {
    EXPECT_EQ(format_bytes(0), "0");
    EXPECT_EQ(format_bytes(4097), "4097");
    EXPECT_EQ(format_bytes(4096), "4K");
    EXPECT_EQ(format_bytes(std::uint64_t{256} << 20), "256M");
    EXPECT_EQ(format_bytes(std::uint64_t{1} << 30), "1G");
    EXPECT_EQ(format_bytes((std::uint64_t{1} << 30) + (std::uint64_t{1} << 20)), "1025M");
    for (unsigned shift = 0; shift < 64; ++shift)
        for (const std::uint64_t bytes : {std::uint64_t{1} << shift, (std::uint64_t{1} << shift) - 1})
            EXPECT_EQ(*parse_bytes(format_bytes(bytes)), bytes);
}

}  // namespace
}  // namespace numacre::daemon
