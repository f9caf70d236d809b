// The C++ face: RAII, moves, errors as values, std::pmr. Includes the engine's headers as well: a file may use both
// faces of the tree, so no name of numacre.hpp may be a name of the engine in the same namespace.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <list>
#include <memory_resource>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "numacre/inline.h"
#include "numacre/numacre.hpp"
#include "numacre/shm/attach_wire.hpp"
#include "numacre/shm/audit.hpp"
#include "numacre/shm/buddy.hpp"
#include "numacre/shm/recovery.hpp"

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
        EXPECT_TRUE(block->bytes().empty()) << "as there is no block";
        EXPECT_TRUE(moved);
        auto none = pool.allocate(4096);
        ASSERT_FALSE(none);
        EXPECT_EQ(none.error().code, Errc::out_of_frames);
        EXPECT_FALSE(none.error().message.empty());
        Block assigned;
        assigned = std::move(moved);
        EXPECT_EQ(moved.size(), 0U);
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
    EXPECT_EQ(block->size(), 0U);
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

TEST(CppFace, blocks_are_handed_over_in_bursts) {
    auto opened = Pool::open_private();
    ASSERT_TRUE(opened);
    Pool &pool = *opened;
    std::array<void *, 4> addresses{};
    std::array<Ref, 4> refs{};
    ASSERT_TRUE(pool.allocate_bulk(4096, addresses, refs));
    std::array<Ref, 4> again{};
    ASSERT_TRUE(pool.ref_bulk(addresses, again));
    EXPECT_EQ(refs, again);
    EXPECT_EQ(pool.ref_at(addresses[1]), refs[1]);
    EXPECT_TRUE(pool.free(refs[0]));
    std::array<void *, 4> taken{};
    const auto some = pool.take_bulk(refs, taken);
    ASSERT_FALSE(some);
    EXPECT_EQ(some.error().code, Errc::stale_ref);
    EXPECT_EQ(taken[0], nullptr);
    EXPECT_EQ(taken[3], addresses[3]);
    EXPECT_FALSE(pool.ref_at(taken[3])) << "it has no reference any more";
    EXPECT_TRUE(pool.free_bulk(std::span{taken}.subspan(1)));
    EXPECT_FALSE(pool.ref_bulk(addresses, std::span{refs}.first(2)));
    EXPECT_TRUE(pool.take_bulk({}, {}));
}
TEST(CppFace, blocks_of_a_bulk_call_are_owned_one_by_one_or_freed_together) {
    Pool pool = small_pool();
    std::array<void *, 8> addresses{};
    ASSERT_TRUE(pool.allocate_bulk(4096, addresses));
    {
        const Block first = pool.own(addresses[0]);
        EXPECT_EQ(first.size(), 4096U);
        EXPECT_EQ(first.data(), addresses[0]);
    }
    EXPECT_FALSE(pool.own(addresses[0])) << "its Block has freed it";
    ASSERT_TRUE(pool.free_bulk(std::span{addresses}.subspan(1)));
    const auto again = pool.free_bulk(std::span{addresses}.first(2));
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().code, Errc::stale_ref);
    std::array<void *, 2> too_many{};
    const auto none = pool.allocate_bulk(1 << 20, too_many);
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().code, Errc::out_of_frames);
    EXPECT_TRUE(pool.allocate(1 << 20)) << "everything came back";
}

TEST(CppFace, a_pool_tells_its_geometry_and_where_its_memory_is) {
    Pool pool = small_pool();
    EXPECT_EQ(pool.info().capacity_bytes, 1U << 20);
    EXPECT_EQ(pool.info().numa_nodes, 1U);
    const auto memory = pool.region();
    ASSERT_TRUE(memory) << memory.error().message;
    EXPECT_EQ(memory->size(), 1U << 20);
    const auto block = pool.allocate(4096);
    ASSERT_TRUE(block);
    EXPECT_GE(block->data(), memory->data());
    EXPECT_LT(block->data(), memory->data() + memory->size());
    const auto none = pool.region(1);
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().code, Errc::no_such_node);
}

TEST(CppFace, policies_and_fits_are_types) {
    auto pool = Pool::open_private({.capacity_bytes = 1 << 20, .fit = Fit::best});
    ASSERT_TRUE(pool) << pool.error().message;
    EXPECT_TRUE(pool->set_policy(PolicyMode::interleave));
    EXPECT_TRUE(pool->allocate_by(PolicyMode::strict, 1, 4096));
    const auto nowhere = pool->allocate_by(PolicyMode::strict, 2, 4096);
    ASSERT_FALSE(nowhere);
    EXPECT_EQ(nowhere.error().code, Errc::no_such_node);
    EXPECT_FALSE(Pool::open_private({.fit = static_cast<Fit>(4)}));
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

TEST(CppFace, a_pmr_resource_of_objects_keeps_alignments) {
    auto pool = Pool::open_private({.object_bytes = 2368, .object_count = 100});
    ASSERT_TRUE(pool);
    PoolResource resource{*pool};
    std::vector<void *> all;
    unsigned refused = 0;
    for (int i = 0; i < 50; ++i) {
        try {
            all.push_back(resource.allocate(200, 256));
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(all.back()) % 256, 0U);
        } catch (const std::bad_alloc &) {
            ++refused;
        }
    }
    EXPECT_GT(refused, 0U);
    for (void *at : all) resource.deallocate(at, 200, 256);
    void *const aligned = resource.allocate(2368, 64);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(aligned) % 64, 0U);
    resource.deallocate(aligned, 2368, 64);
    auto run = pool->allocate_run(100 * 2368);
    EXPECT_TRUE(run) << "everything came back";
}

TEST(CppFace, objects_and_runs) {
    auto pool = Pool::open_private({.object_bytes = 4096, .object_count = 100});
    ASSERT_TRUE(pool);
    EXPECT_EQ(pool->info().frame_bytes, 4160U);
    auto run = pool->allocate_run(10 * 4160);
    ASSERT_TRUE(run) << run.error().message;
    EXPECT_EQ(run->size(), 41'600U);
    EXPECT_TRUE(pool->free_run(run->first(4161))) << "two objects";
    EXPECT_TRUE(pool->free_run(run->subspan(2 * 4160)));
    EXPECT_FALSE(pool->allocate_run(101 * 4160));
    EXPECT_FALSE(pool->allocate_run(4160, 4096));
    EXPECT_FALSE(pool->region_file()) << "a private pool has no file";
    auto plain = Pool::open_private({.object_bytes = 4096, .object_count = 100, .plain_objects = true});
    ASSERT_TRUE(plain);
    EXPECT_EQ(plain->info().frame_bytes, 4096U);
    EXPECT_TRUE(plain->allocate_run(8192, 4096));
}

}  // namespace

}  // namespace numacre
