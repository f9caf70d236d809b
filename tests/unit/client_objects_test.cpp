// Object pools through the C ABI, on private pools: sizes of no power of two, through every call.
#include <gtest/gtest.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "numacre/inline.h"
#include "numacre/numacre.h"

namespace {

struct Shape {
    std::uint64_t object_bytes, count;
    unsigned flags = 0;
};

numacre_pool *open_objects(const Shape &shape) {
    const numacre_private_options options{sizeof options, 0, 0, 0, shape.flags, shape.object_bytes, shape.count};
    numacre_pool *pool = nullptr;
    EXPECT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
    return pool;
}

int open_error(const numacre_private_options &options) {
    numacre_pool *pool = nullptr;
    const int error = numacre_open_private(&options, &pool);
    if (error == 0) numacre_detach(pool);
    return error;
}

std::uint64_t stride_of(numacre_pool *pool) {
    numacre_pool_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(numacre_get_info(pool, &info), 0);
    EXPECT_EQ(info.largest_block_bytes, info.frame_bytes);
    return info.frame_bytes;
}

std::uint64_t number_of(numacre_pool *pool, const void *object) {
    void *base = nullptr;
    std::size_t bytes = 0;
    EXPECT_EQ(numacre_region(pool, 0, &base, &bytes), 0);
    const auto offset = static_cast<std::uint64_t>(static_cast<const char *>(object) - static_cast<char *>(base));
    EXPECT_LT(offset, bytes);
    EXPECT_EQ(offset % stride_of(pool), 0U);
    return offset / stride_of(pool);
}

// The ways to allocate and to free one object.
struct Way {
    const char *name;
    int (*take)(numacre_pool *, std::size_t, void **);
    int (*give)(numacre_pool *, void *);
};
const Way kWays[] = {
    {"calls", numacre_alloc, numacre_free},
    {"inline",
     [](numacre_pool *pool, std::size_t bytes, void **object) { return numacre_alloc_inline(pool, bytes, object); },
     [](numacre_pool *pool, void *object) { return numacre_free_inline(pool, object); }},
    {"uncached",
     [](numacre_pool *pool, std::size_t bytes, void **object) {
         return numacre_alloc_on(pool, -1, bytes, NUMACRE_UNCACHED, object);
     },
     numacre_free_uncached},
    {"node and zero",
     [](numacre_pool *pool, std::size_t bytes, void **object) {
         return numacre_alloc_on(pool, 0, bytes, NUMACRE_ZERO, object);
     },
     numacre_free},
    {"compact",
     [](numacre_pool *pool, std::size_t bytes, void **object) {
         return numacre_alloc_on(pool, -1, bytes, NUMACRE_COMPACT, object);
     },
     numacre_free_uncached},
    {"policy",
     [](numacre_pool *pool, std::size_t bytes, void **object) {
         return numacre_alloc_policy(pool, NUMACRE_POLICY_LOCAL, 0, bytes, 0, object);
     },
     numacre_free},
    {"bulk of one",
     [](numacre_pool *pool, std::size_t bytes, void **object) { return numacre_alloc_bulk(pool, bytes, object, 1); },
     [](numacre_pool *pool, void *object) { return numacre_free_bulk(pool, &object, 1); }},
    {"reference",
     [](numacre_pool *pool, std::size_t bytes, void **object) {
         numacre_ref ref = 0;
         return numacre_alloc_ref_bulk(pool, bytes, object, &ref, 1);
     },
     [](numacre_pool *pool, void *object) { return numacre_free_ref(pool, numacre_virt_to_ref(pool, object)); }},
};

const Shape kShapes[] = {{64, 1},
                         {64, 1000},
                         {128, 777},
                         {192, 65},
                         {2368, 2000},
                         {4096, 300},
                         {9216, 129},
                         {9280, 64},
                         {(1 << 20) - 64, 3},
                         {3 << 20, 5},
                         {4096, 300, NUMACRE_PRIVATE_PLAIN_OBJECTS}};

TEST(Objects, every_way_gives_exactly_the_count_and_no_object_twice) {
    for (const Shape &shape : kShapes)
        for (const Way &way : kWays) {
            SCOPED_TRACE(std::string(way.name) + " " + std::to_string(shape.object_bytes) + " B, " +
                         std::to_string(shape.count));
            numacre_pool *const pool = open_objects(shape);
            // Several rounds: the second one finds what the cache kept.
            for (int round = 0; round < 3; ++round) {
                std::vector<void *> objects(shape.count);
                std::set<std::uint64_t> numbers;
                for (void *&object : objects) {
                    ASSERT_EQ(way.take(pool, shape.object_bytes, &object), 0) << numacre_last_error();
                    EXPECT_TRUE(numbers.insert(number_of(pool, object)).second);
                    EXPECT_GE(numacre_usable_size(pool, object), shape.object_bytes);
                    std::memset(object, static_cast<int>(number_of(pool, object)), shape.object_bytes);
                }
                EXPECT_EQ(*numbers.rbegin(), shape.count - 1);
                void *beyond = nullptr;
                EXPECT_EQ(way.take(pool, shape.object_bytes, &beyond), -ENOMEM);
                for (void *const object : objects) ASSERT_EQ(way.give(pool, object), 0) << numacre_last_error();
            }
            numacre_detach(pool);
        }
}

TEST(Objects, sizes_beyond_an_object_are_refused_by_every_way) {
    for (const Shape &shape : kShapes) {
        numacre_pool *const pool = open_objects(shape);
        const std::uint64_t stride = stride_of(pool);
        for (const Way &way : kWays) {
            SCOPED_TRACE(std::string(way.name) + " " + std::to_string(shape.object_bytes));
            void *object = nullptr;
            for (const std::uint64_t bytes : {std::uint64_t{0}, stride + 1, 2 * stride, std::uint64_t{1} << 40}) {
                EXPECT_EQ(way.take(pool, bytes, &object), -EINVAL) << bytes;
                EXPECT_NE(std::string(numacre_last_error()).find(std::to_string(bytes)), std::string::npos);
                EXPECT_EQ(std::string(numacre_last_error()).find("numacre_alloc_run"), std::string::npos)
                    << "no larger run is asked for: " << numacre_last_error();
            }
            for (const std::uint64_t bytes : {std::uint64_t{1}, shape.object_bytes, stride}) {
                ASSERT_EQ(way.take(pool, bytes, &object), 0) << bytes << numacre_last_error();
                EXPECT_EQ(way.give(pool, object), 0);
            }
        }
        numacre_detach(pool);
    }
}

TEST(Objects, a_stride_of_a_power_of_two_is_coloured_unless_the_caller_says_otherwise) {
    for (const auto &[shape, stride] : {std::pair<Shape, std::uint64_t>{{4096, 10}, 4160},
                                        {{4096, 10, NUMACRE_PRIVATE_PLAIN_OBJECTS}, 4096},
                                        {{2368, 10}, 2368},
                                        {{512, 10}, 512},
                                        {{1024, 10}, 1088},
                                        {{64, 10}, 64}}) {
        numacre_pool *const pool = open_objects(shape);
        EXPECT_EQ(stride_of(pool), stride);
        numacre_detach(pool);
    }
}

TEST(Objects, addresses_inside_an_object_are_refused_and_hurt_nothing) {
    numacre_pool *const pool = open_objects({2368, 100});
    std::vector<void *> objects(100);
    ASSERT_EQ(numacre_alloc_bulk(pool, 2368, objects.data(), 100), 0);
    for (void *const object : objects)
        for (const std::ptrdiff_t inside : {1, 64, 128, 1184, 2304, 2367}) {
            char *const address = static_cast<char *>(object) + inside;
            EXPECT_EQ(numacre_free(pool, address), -EINVAL);
            EXPECT_EQ(numacre_free_inline(pool, address), -EINVAL);
            EXPECT_EQ(numacre_free_uncached(pool, address), -EINVAL);
            void *one = address;
            EXPECT_EQ(numacre_free_bulk(pool, &one, 1), -EINVAL);
            EXPECT_EQ(numacre_ref_of(pool, address), 0U);
            EXPECT_EQ(numacre_virt_to_ref(pool, address), 0U);
            EXPECT_EQ(numacre_usable_size(pool, address), 0U);
        }
    // Behind the last object, and before the first.
    EXPECT_EQ(numacre_free(pool, static_cast<char *>(*std::max_element(objects.begin(), objects.end())) + 2368),
              -EINVAL);
    EXPECT_EQ(numacre_free(pool, static_cast<char *>(*std::min_element(objects.begin(), objects.end())) - 64), -EINVAL);
    EXPECT_EQ(numacre_free_bulk(pool, objects.data(), 100), 0);
    EXPECT_EQ(numacre_free(pool, objects[50]), -ESTALE);
    numacre_detach(pool);
}

TEST(Objects, bursts_and_references_go_round_among_threads) {
    constexpr unsigned kCount = 3000;
    constexpr unsigned kBurst = 32;
    numacre_pool *const pool = open_objects({2368, kCount});
    std::vector<std::thread> threads;
    for (unsigned number = 0; number < 4; ++number)
        threads.emplace_back([&, number] {
            std::mt19937 random(number);
            for (int round = 0; round < 3000; ++round) {
                void *objects[kBurst];
                numacre_ref refs[kBurst];
                const unsigned count = 1 + random() % kBurst;
                if (round % 3 == 0) {
                    ASSERT_EQ(numacre_alloc_ref_bulk(pool, 2368, objects, refs, count), 0) << numacre_last_error();
                } else {
                    ASSERT_EQ(numacre_alloc_bulk(pool, 2000, objects, count), 0) << numacre_last_error();
                    ASSERT_EQ(numacre_ref_bulk(pool, objects, refs, count), 0);
                }
                for (unsigned i = 0; i < count; ++i) std::memset(objects[i], static_cast<int>(number + 1), 2368);
                void *taken[kBurst];
                ASSERT_EQ(numacre_take_bulk(pool, refs, taken, count), 0) << numacre_last_error();
                for (unsigned i = 0; i < count; ++i) {
                    ASSERT_EQ(taken[i], objects[i]);
                    const auto *const bytes = static_cast<const unsigned char *>(taken[i]);
                    ASSERT_TRUE(bytes[0] == number + 1 && bytes[2367] == number + 1);
                }
                ASSERT_EQ(numacre_free_bulk(pool, taken, count), 0) << numacre_last_error();
            }
        });
    for (std::thread &thread : threads) thread.join();
    std::vector<void *> all(kCount);
    EXPECT_EQ(numacre_alloc_bulk(pool, 2368, all.data(), kCount), 0) << numacre_last_error();
    numacre_detach(pool);
}

TEST(Objects, free_objects_keep_their_content) {
    constexpr std::uint64_t kCount = 500;
    numacre_pool *const pool = open_objects({192, kCount});
    std::vector<void *> objects(kCount);
    ASSERT_EQ(numacre_alloc_bulk(pool, 192, objects.data(), kCount), 0);
    for (void *const object : objects) std::memset(object, static_cast<int>(1 + number_of(pool, object) % 255), 192);
    ASSERT_EQ(numacre_free_bulk(pool, objects.data(), kCount), 0);
    ASSERT_EQ(numacre_alloc_bulk(pool, 192, objects.data(), kCount), 0);
    for (void *const object : objects) {
        const std::vector<unsigned char> wanted(192, static_cast<unsigned char>(1 + number_of(pool, object) % 255));
        EXPECT_EQ(std::memcmp(object, wanted.data(), 192), 0);
    }
    numacre_detach(pool);
}

TEST(Objects, more_metadata_than_the_machine_has_is_refused) {
    struct sysinfo machine{};
    ASSERT_EQ(sysinfo(&machine), 0);
    if (std::uint64_t{machine.totalram} * machine.mem_unit >= std::uint64_t{128} << 30)
        GTEST_SKIP() << "SKIP: this machine may have 128 GiB for metadata";
    const numacre_private_options options{sizeof options, 0, 0, 0, 0, 64, std::uint64_t{1} << 34};
    numacre_pool *pool = nullptr;
    EXPECT_EQ(numacre_open_private(&options, &pool), -ENOMEM);
    EXPECT_NE(std::string(numacre_last_error()).find("131072 MiB"), std::string::npos) << numacre_last_error();
}

TEST(Objects, bad_options_are_refused_by_name) {
    const auto refused = [](numacre_private_options options, const char *word) {
        options.struct_size = sizeof options;
        EXPECT_EQ(open_error(options), -EINVAL);
        EXPECT_NE(std::string(numacre_last_error()).find(word), std::string::npos) << numacre_last_error();
    };
    refused({0, 0, 0, 0, 0, 100, 10}, "100");
    refused({0, 0, 0, 0, 0, 32, 10}, "32");
    refused({0, 0, 0, 0, 0, (std::uint64_t{1} << 30) + 64, 10}, "1073741888");
    refused({0, 0, 0, 0, 0, 2368, 0}, "object_count is 0");
    refused({0, 0, 0, 0, 0, 0, 10}, "object_bytes");
    refused({0, 0, 0, 0, 0, 2368, (std::uint64_t{1} << 34) + 1}, "2^34");
    refused({0, 0, 0, 0, NUMACRE_PRIVATE_PLAIN_OBJECTS, 1 << 30, std::uint64_t{1} << 34}, "2^46");
    refused({0, 1 << 20, 0, 0, 0, 2368, 10}, "capacity_bytes");
    refused({0, 0, 4096, 0, 0, 2368, 10}, "frame_bytes");
    refused({0, 0, 0, 4096, 0, 2368, 10}, "largest_block_bytes");
    refused({0, 0, 0, 0, NUMACRE_PRIVATE_PLAIN_OBJECTS, 0, 0}, "flags");
    refused({0, 0, 0, 0, 8, 2368, 10}, "flags");
}

}  // namespace
