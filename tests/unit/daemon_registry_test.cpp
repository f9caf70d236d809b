#include "pool/registry.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace numacre::daemon {
namespace {

TEST(Registry, client_ids_come_round_without_the_one_that_says_that_a_seat_is_free) {
    Registry registry;
    registry.begin_after(std::numeric_limits<std::uint32_t>::max() - 1);
    EXPECT_EQ(registry.next_client_id(), std::numeric_limits<std::uint32_t>::max());
    EXPECT_EQ(registry.next_client_id(), 1U);
}

}  // namespace
}  // namespace numacre::daemon
