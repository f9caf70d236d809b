// The arithmetic of numacre/adaptors/af_xdp.h, on private pools and without a socket: which chunks suit which pool,
// which block an address of the kernel names, and which blocks a close frees.
#include <gtest/gtest.h>

#if __has_include(<xdp/xsk.h>)

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "numacre/adaptors/af_xdp.h"
#include "numacre/numacre.h"

namespace {

// A numacre_xdp as numacre_xdp_open makes it, without a socket.
struct Fixture {
    explicit Fixture(const numacre_private_options &pool_options, numacre_xdp_options options = {}) {
        EXPECT_EQ(numacre_open_private(&pool_options, &xdp.pool), 0) << numacre_last_error();
        numacre_pool_info info{};
        info.struct_size = sizeof info;
        EXPECT_EQ(numacre_get_info(xdp.pool, &info), 0);
        void *base = nullptr;
        std::size_t bytes = 0;
        EXPECT_EQ(numacre_region(xdp.pool, 0, &base, &bytes), 0);
        xdp.base = static_cast<char *>(base);
        error = numacre_xdp_lay_out(&xdp, &options, &info, bytes);
        filling.resize((xdp.size_bytes >> 17) + 1);
        sending.resize(filling.size());
        xdp.filling = filling.data();
        xdp.sending = sending.data();
    }
    Fixture(const Fixture &) = delete;
    Fixture &operator=(const Fixture &) = delete;
    ~Fixture() { numacre_detach(xdp.pool); }

    std::vector<void *> all_blocks() {
        std::vector<void *> blocks;
        for (void *block = nullptr; numacre_alloc(xdp.pool, xdp.block_bytes, &block) == 0;) blocks.push_back(block);
        return blocks;
    }

    numacre_xdp xdp{};
    int error = 0;
    std::vector<std::uint64_t> filling, sending;
};

numacre_private_options objects(std::uint64_t bytes, std::uint64_t count, unsigned flags = 0) {
    return {sizeof(numacre_private_options), 0, 0, 0, flags, bytes, count};
}

numacre_private_options frames(std::uint64_t bytes, std::uint64_t largest = 1 << 20) {
    return {sizeof(numacre_private_options), 4 << 20, bytes, largest, 0, 0, 0};
}

struct Shape {
    numacre_private_options pool;
    std::uint32_t block_bytes, chunk_bytes;
    int is_unaligned;
};

const Shape kShapes[] = {
    {frames(64), 2048, 2048, 0},         {frames(2048), 2048, 2048, 0},
    {frames(4096), 4096, 4096, 0},       {frames(8192), 8192, 4096, 0},
    {frames(65536), 65536, 4096, 0},     {objects(2048, 999, NUMACRE_PRIVATE_PLAIN_OBJECTS), 2048, 2048, 0},
    {objects(2048, 999), 2112, 2112, 1}, {objects(2368, 1001), 2368, 2368, 1},
    {objects(4096, 999), 4160, 4096, 1}, {objects(4096, 999, NUMACRE_PRIVATE_PLAIN_OBJECTS), 4096, 4096, 0},
    {objects(6144, 999), 6144, 4096, 1}, {objects(9216, 500), 9216, 4096, 1},
};

TEST(AfXdp, chunks_suit_the_blocks_of_each_pool) {
    for (const Shape &shape : kShapes) {
        const Fixture made(shape.pool);
        SCOPED_TRACE(std::to_string(shape.block_bytes));
        ASSERT_EQ(made.error, 0) << made.xdp.error;
        EXPECT_EQ(made.xdp.block_bytes, shape.block_bytes);
        EXPECT_EQ(made.xdp.chunk_bytes, shape.chunk_bytes);
        EXPECT_EQ(made.xdp.is_unaligned, shape.is_unaligned);
        EXPECT_TRUE(shape.is_unaligned != 0 || made.xdp.size_bytes % shape.chunk_bytes == 0);
    }
}

TEST(AfXdp, pools_and_options_that_do_not_suit_are_refused_with_the_value) {
    numacre_xdp_options four{}, odd{}, much{};
    four.block_bytes = 4096;
    odd.block_bytes = 3000;
    much.headroom_bytes = 1800;
    const std::pair<numacre_private_options, numacre_xdp_options> refused[] = {{objects(1024, 100), {}},
                                                                               {frames(64, 1024), {}},
                                                                               {objects(2368, 100), four},
                                                                               {frames(2048), odd},
                                                                               {frames(2048), much}};
    const char *const values[] = {"1088", "1024", "4096", "3000", "1800"};
    for (std::size_t i = 0; i < std::size(refused); ++i) {
        const Fixture made(refused[i].first, refused[i].second);
        EXPECT_EQ(made.error, -EINVAL);
        EXPECT_NE(std::string(made.xdp.error).find(values[i]), std::string::npos) << made.xdp.error;
    }
    const Fixture larger(frames(2048), four);
    EXPECT_EQ(larger.error, 0);
    EXPECT_EQ(larger.xdp.chunk_bytes, 4096U);
}

TEST(AfXdp, an_address_of_the_kernel_names_the_block_and_the_packet) {
    for (const Shape &shape : kShapes) {
        Fixture made(shape.pool);
        SCOPED_TRACE(std::to_string(shape.block_bytes));
        for (void *const block : made.all_blocks()) {
            std::uint64_t offset = 0, packet = 0;
            ASSERT_EQ(numacre_xdp_offset_of(&made.xdp, block, &offset), 0) << made.xdp.error;
            ASSERT_EQ(made.xdp.base + offset, block);
            const std::uint64_t address = shape.is_unaligned != 0 ? offset | std::uint64_t{256} << 48 : offset + 256;
            ASSERT_EQ(numacre_xdp_block_of(&made.xdp, address, &packet), offset);
            ASSERT_EQ(packet, 256U);
        }
    }
}

TEST(AfXdp, a_block_is_in_the_kernel_once_and_no_neighbour_is_taken_for_it) {
    for (const Shape &shape : kShapes) {
        Fixture made(shape.pool);
        SCOPED_TRACE(std::to_string(shape.block_bytes));
        const std::vector<void *> blocks = made.all_blocks();
        for (std::size_t i = 0; i < blocks.size(); i += 2) {
            std::uint64_t offset = 0;
            ASSERT_EQ(numacre_xdp_offset_of(&made.xdp, blocks[i], &offset), 0);
            numacre_xdp_enters(i % 4 == 0 ? made.xdp.filling : made.xdp.sending, offset);
        }
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            std::uint64_t offset = 0;
            ASSERT_EQ(numacre_xdp_offset_of(&made.xdp, blocks[i], &offset), i % 2 == 0 ? -EINVAL : 0);
            ASSERT_EQ(numacre_xdp_leaves(&made.xdp, made.xdp.filling, offset), i % 4 == 0);
            ASSERT_EQ(numacre_xdp_leaves(&made.xdp, made.xdp.filling, offset), 0);
        }
        EXPECT_EQ(numacre_xdp_leaves(&made.xdp, made.xdp.filling, made.xdp.size_bytes), 0);
        EXPECT_EQ(numacre_xdp_leaves(&made.xdp, made.xdp.filling, UINT64_MAX), 0);
    }
}

TEST(AfXdp, a_close_frees_the_blocks_that_the_kernel_had_and_no_others) {
    for (const Shape &shape : kShapes) {
        Fixture made(shape.pool);
        SCOPED_TRACE(std::to_string(shape.block_bytes));
        const std::vector<void *> blocks = made.all_blocks();
        std::vector<void *> freed;
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            std::uint64_t offset = 0;
            if (i % 3 == 0 || i + 1 == blocks.size()) continue;
            ASSERT_EQ(numacre_xdp_offset_of(&made.xdp, blocks[i], &offset), 0);
            numacre_xdp_enters(made.xdp.filling, offset);
            freed.push_back(blocks[i]);
        }
        EXPECT_EQ(numacre_xdp_free_all(&made.xdp, made.xdp.filling), freed.size());
        std::vector<void *> again = made.all_blocks();
        std::sort(again.begin(), again.end());
        std::sort(freed.begin(), freed.end());
        EXPECT_EQ(again, freed);
    }
}

TEST(AfXdp, addresses_outside_the_memory_and_inside_a_chunk_are_refused) {
    Fixture made(frames(2048));
    std::uint64_t offset = 0;
    char elsewhere = 0;
    for (const void *const address :
         {static_cast<const void *>(&elsewhere), static_cast<const void *>(made.xdp.base + 64),
          static_cast<const void *>(made.xdp.base + made.xdp.size_bytes),
          static_cast<const void *>(made.xdp.base + made.xdp.size_bytes - 64)})
        EXPECT_EQ(numacre_xdp_offset_of(&made.xdp, address, &offset), -EINVAL);
}

}  // namespace

#else

TEST(AfXdp, NOT_TESTED) {
    GTEST_SKIP() << "NOT TESTED: built without libxdp (Debian package libxdp-dev)";
}

#endif
