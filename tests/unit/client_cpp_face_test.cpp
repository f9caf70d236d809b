// The C++ face: RAII, moves, errors as values, std::pmr.
#include <gtest/gtest.h>

#include <list>
#include <memory_resource>
#include <string>
#include <utility>
#include <vector>

#include "numacre/numacre.hpp"

namespace numacre {
namespace {

Pool small_pool() {
    auto pool = Pool::open_private({.capacity_bytes = 1 << 20, .frame_bytes = 4096, .largest_block_bytes = 1 << 20});
    EXPECT_TRUE(pool) << pool.error().message;
    return std::move(pool).value();
}

TEST(CppFace, a_block_frees_itself_once_however_it_is_moved) {
    Pool pool = small_pool();
    {
        auto block = pool.allocate(1 << 20);
        ASSERT_TRUE(block);
        EXPECT_EQ(block->size(), 1U << 20);
        Block moved = std::move(*block);
        EXPECT_FALSE(*block);
        EXPECT_TRUE(moved);
        auto none = pool.allocate(4096);
        ASSERT_FALSE(none);
        EXPECT_EQ(none.error().code, Errc::out_of_frames);
        EXPECT_FALSE(none.error().message.empty());
        Block assigned;
        assigned = std::move(moved);
        assigned.bytes()[0] = std::byte{1};
    }
    EXPECT_TRUE(pool.allocate(1 << 20)) << "freed at the end of the scope";
}

TEST(CppFace, a_taken_block_belongs_to_the_taker) {
    Pool pool = small_pool();
    auto block = pool.allocate(4096);
    ASSERT_TRUE(block);
    const Ref ref = block->ref();
    ASSERT_TRUE(ref);
    block->release();
    {
        auto taken = pool.take(ref);
        ASSERT_TRUE(taken) << taken.error().message;
        auto again = pool.take(ref);
        ASSERT_FALSE(again);
        EXPECT_EQ(again.error().code, Errc::stale_ref);
    }
    EXPECT_TRUE(pool.allocate(1 << 20));
}

TEST(CppFace, options_reach_the_allocator) {
    Pool pool = small_pool();
    auto all = pool.allocate(1 << 20, {.zero = true});
    ASSERT_TRUE(all);
    // A negative one would wait for ever if it wrapped.
    for (const int milliseconds : {5, -1}) {
        auto late = pool.allocate(4096, {.wait = true, .timeout = std::chrono::milliseconds{milliseconds}});
        ASSERT_FALSE(late);
        EXPECT_EQ(late.error().code, Errc::timed_out);
    }
    auto elsewhere = pool.allocate(4096, {.numa_node = 3});
    ASSERT_FALSE(elsewhere);
    EXPECT_EQ(elsewhere.error().code, Errc::no_such_node);
}

TEST(CppFace, a_private_pool_tells_of_nothing) {
    Pool pool = small_pool();
    EXPECT_EQ(pool.events(), 0U);
    const auto fd = pool.event_fd();
    ASSERT_FALSE(fd);
    EXPECT_EQ(fd.error().code, Errc::bad_argument);
}

TEST(CppFace, pmr_containers_live_in_the_pool_and_leave_it_empty) {
    Pool pool = small_pool();
    PoolResource resource{pool};
    {
        std::pmr::vector<int> numbers{&resource};
        for (int i = 0; i < 10'000; ++i) numbers.push_back(i);
        EXPECT_NE(numacre_usable_size(pool.handle(), numbers.data()), 0U) << "the vector's memory is a block of ours";
        std::pmr::unsynchronized_pool_resource small{&resource};
        std::pmr::list<std::pmr::string> strings{&small};
        for (int i = 0; i < 1000; ++i)
            strings.emplace_back("a string too long for the small string optimisation, surely");
        EXPECT_THROW(numbers.resize(1 << 20), std::bad_alloc);
        EXPECT_EQ(numbers.at(9'999), 9'999);
    }
    EXPECT_TRUE(pool.allocate(1 << 20)) << "everything came back";
    PoolResource same{pool};
    EXPECT_TRUE(resource == same);
    EXPECT_FALSE(resource == *std::pmr::new_delete_resource());
}

}  // namespace
}  // namespace numacre
