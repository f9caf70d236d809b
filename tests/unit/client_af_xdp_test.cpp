// numacre/adaptors/af_xdp.h on private pools and without a socket: which chunks suit which pool, which block an address
// of the kernel names, what the calls refuse, and which blocks a close frees. The rings are memory of the test's, which
// plays the kernel.
#include <gtest/gtest.h>

#if __has_include(<xdp/xsk.h>)

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "numacre/adaptors/af_xdp.h"
#include "numacre/numacre.h"

namespace {

// The memory of a ring that libxdp would have mapped.
struct Ring {
    static constexpr std::uint32_t kEntries = 2048;
    template <class XskRing>
    void put_into(XskRing &ring) {
        ring.mask = kEntries - 1;
        ring.size = kEntries;
        ring.producer = &producer;
        ring.consumer = &consumer;
        ring.ring = entries.data();
        ring.flags = &flags;
    }
    std::uint32_t producer = 0, consumer = 0, flags = 0;
    std::vector<xdp_desc> entries{kEntries};  // larger than an address
};

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
        const std::size_t words = (xdp.size_bytes >> 17) + 1;
        xdp.filling = static_cast<std::uint64_t *>(std::calloc(words, 8));  // numacre_xdp_close frees both
        xdp.sending = static_cast<std::uint64_t *>(std::calloc(words, 8));
        xdp.pin = -1;
        fill.put_into(xdp.fill_ring);
        send.put_into(xdp.send_ring);
        xdp.fill_ring.cached_cons = xdp.send_ring.cached_cons = Ring::kEntries;
        receive.put_into(xdp.receive_ring);
        completion.put_into(xdp.completion_ring);
    }
    Fixture(const Fixture &) = delete;
    Fixture &operator=(const Fixture &) = delete;
    ~Fixture() {
        std::free(xdp.filling);
        std::free(xdp.sending);
        numacre_detach(xdp.pool);
    }

    void *allocate(std::size_t bytes) {
        void *block = nullptr;
        EXPECT_EQ(numacre_alloc(xdp.pool, bytes, &block), 0) << numacre_last_error();
        return block;
    }
    int send_one(void *block, std::uint32_t offset = 0, std::uint32_t length = 60) {
        return numacre_xdp_send(&xdp, &block, &offset, &length, 1);
    }
    // The kernel's part: the device has sent everything.
    void complete_all() {
        while (send.consumer != send.producer) {
            const std::uint64_t address = send.entries[send.consumer++ % Ring::kEntries].addr;
            reinterpret_cast<std::uint64_t *>(completion.entries.data())[completion.producer++ % Ring::kEntries] =
                address;
        }
    }

    std::vector<void *> all_blocks() {
        std::vector<void *> blocks;
        for (void *block = nullptr; numacre_alloc(xdp.pool, xdp.block_bytes, &block) == 0;) blocks.push_back(block);
        return blocks;
    }

    numacre_xdp xdp{};
    int error = 0;
    Ring fill, send, receive, completion;
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
            ASSERT_EQ(numacre_xdp_offset_of(&made.xdp, block, 0, &offset, made.xdp.error), 0) << made.xdp.error;
            ASSERT_EQ(made.xdp.base + offset, block);
            // With a headroom, and wherever an XDP program has moved the packet's begin.
            for (const std::uint64_t begin : {0U, 1U, 8U, 256U, 300U, 1000U, shape.chunk_bytes - 1}) {
                const std::uint64_t address = shape.is_unaligned != 0 ? offset | begin << 48 : offset + begin;
                ASSERT_EQ(numacre_xdp_block_of(&made.xdp, address, &packet), offset);
                ASSERT_EQ(packet, begin);
            }
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
            ASSERT_EQ(numacre_xdp_offset_of(&made.xdp, blocks[i], 0, &offset, made.xdp.error), 0);
            numacre_xdp_enters(i % 4 == 0 ? made.xdp.filling : made.xdp.sending, offset);
        }
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            std::uint64_t offset = 0;
            ASSERT_EQ(numacre_xdp_offset_of(&made.xdp, blocks[i], 0, &offset, made.xdp.error),
                      i % 2 == 0 ? -EINVAL : 0);
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
            ASSERT_EQ(numacre_xdp_offset_of(&made.xdp, blocks[i], 0, &offset, made.xdp.error), 0);
            numacre_xdp_enters(made.xdp.filling, offset);
            freed.push_back(blocks[i]);
        }
        EXPECT_EQ(numacre_xdp_close(&made.xdp), 0) << made.xdp.error;
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
        EXPECT_EQ(numacre_xdp_offset_of(&made.xdp, address, 0, &offset, made.xdp.error), -EINVAL);
}

// The kernel writes a whole chunk: into a neighbour, if the block is smaller.
TEST(AfXdp, a_block_that_is_smaller_than_a_chunk_is_refused) {
    Fixture made(frames(64));
    void *small = made.allocate(64);
    ASSERT_EQ((static_cast<char *>(small) - made.xdp.base) % 2048, 0) << "its place alone would suit";
    EXPECT_EQ(numacre_xdp_give(&made.xdp, &small, 1), -EINVAL);
    EXPECT_NE(std::string(made.xdp.error).find("has 64 bytes"), std::string::npos) << made.xdp.error;
    EXPECT_EQ(made.send_one(small), -EINVAL);
    EXPECT_EQ(made.xdp.given + made.xdp.sent, 0U);
    void *const pair[] = {made.allocate(4096), small};
    EXPECT_EQ(numacre_xdp_give(&made.xdp, pair, 2), 1) << "the first suits";
}

TEST(AfXdp, an_address_inside_a_block_and_a_block_that_is_not_ours_are_refused) {
    for (const Shape &shape : kShapes) {
        Fixture made(shape.pool);
        SCOPED_TRACE(std::to_string(shape.block_bytes));
        (void)made.all_blocks();
        const std::uint32_t step = shape.is_unaligned != 0 ? 64 : shape.chunk_bytes;
        for (void *inside = made.xdp.base + step; inside < made.xdp.base + made.xdp.block_bytes;
             inside = static_cast<char *>(inside) + step) {
            ASSERT_EQ(numacre_xdp_give(&made.xdp, &inside, 1), -EINVAL);
            ASSERT_NE(std::string(made.xdp.error).find("not the begin of a block"), std::string::npos);
            ASSERT_EQ(made.send_one(inside), -EINVAL);
        }
        void *freed = made.xdp.base;
        ASSERT_EQ(numacre_free_uncached(made.xdp.pool, freed), 0);
        EXPECT_EQ(numacre_xdp_give(&made.xdp, &freed, 1), -EINVAL);
    }
}

TEST(AfXdp, a_close_tells_of_blocks_that_it_cannot_free_and_frees_the_others) {
    Fixture made(objects(2368, 100));
    ASSERT_EQ(numacre_xdp_refill(&made.xdp, 50), 50);
    // A fault of the program: the kernel has them.
    for (const std::uint64_t i : {3, 7}) {
        void *const block = made.xdp.base + reinterpret_cast<std::uint64_t *>(made.fill.entries.data())[i];
        ASSERT_EQ(numacre_free_uncached(made.xdp.pool, block), 0);
    }
    EXPECT_EQ(numacre_xdp_close(&made.xdp), -ESTALE);
    EXPECT_NE(std::string(made.xdp.error).find("cannot be freed"), std::string::npos) << made.xdp.error;
    EXPECT_NE(std::string(made.xdp.error).find("and 1 more"), std::string::npos) << made.xdp.error;
    EXPECT_EQ(made.all_blocks().size(), 100U);
    EXPECT_EQ(numacre_xdp_close(&made.xdp), 0);
}

TEST(AfXdp, a_completion_tells_of_a_block_that_it_cannot_free_and_frees_the_others) {
    Fixture made(objects(2368, 100));
    std::vector<void *> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(made.allocate(2368));
    for (void *const block : blocks) ASSERT_EQ(made.send_one(block), 1) << made.xdp.send_error;
    ASSERT_EQ(numacre_free_uncached(made.xdp.pool, blocks[1]), 0);
    made.complete_all();
    EXPECT_EQ(numacre_xdp_complete(&made.xdp, nullptr, 64), -ESTALE);
    EXPECT_NE(std::string(made.xdp.send_error).find("cannot be freed"), std::string::npos) << made.xdp.send_error;
    EXPECT_EQ(made.xdp.completed, made.xdp.sent);
    EXPECT_EQ(numacre_xdp_complete(&made.xdp, nullptr, 64), 0);
    EXPECT_EQ(made.all_blocks().size(), 100U);
}

// Two threads may use a numacre_xdp, one to receive and one to send. (A build for TSan sees what they share.)
TEST(AfXdp, two_threads_fail_each_with_its_own_sentence) {
    Fixture made(objects(2368, 100));
    void *foreign = &made, *const block = made.allocate(2368);
    std::thread receives([&] {
        for (int i = 0; i < 1000; ++i) EXPECT_EQ(numacre_xdp_give(&made.xdp, &foreign, 1), -EINVAL);
    });
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(made.send_one(block, 0, 9999), -EINVAL);
    receives.join();
    EXPECT_NE(std::string(made.xdp.error).find("in the socket's memory"), std::string::npos) << made.xdp.error;
    EXPECT_NE(std::string(made.xdp.send_error).find("9999"), std::string::npos) << made.xdp.send_error;
}

TEST(AfXdp, a_failure_of_the_sending_thread_leaves_the_sentence_of_the_receiving_thread) {
    Fixture made(objects(2368, 100));
    void *foreign = &made;
    EXPECT_EQ(numacre_xdp_give(&made.xdp, &foreign, 1), -EINVAL);
    const std::string said = made.xdp.error;
    EXPECT_EQ(made.send_one(made.allocate(2368), 0, 9999), -EINVAL);
    EXPECT_EQ(made.xdp.error, said);
    EXPECT_NE(std::string(made.xdp.send_error).find("9999"), std::string::npos) << made.xdp.send_error;
}

// As in zero copy mode: a chunk that lies in two hugepages is skipped by the kernel.
TEST(AfXdp, a_block_that_lies_in_two_hugepages_does_not_go_to_a_device) {
    Fixture made(objects(2368, 2000));
    made.xdp.page_bytes = 2 << 20;
    EXPECT_EQ(numacre_xdp_refill(&made.xdp, UINT_MAX), 1998);
    EXPECT_EQ(made.xdp.withheld, 2U);
    for (std::uint32_t i = 0; i < made.fill.producer; ++i) {
        const std::uint64_t offset = reinterpret_cast<std::uint64_t *>(made.fill.entries.data())[i];
        ASSERT_EQ(offset >> 21, (offset + 2367) >> 21);
    }
    EXPECT_EQ(numacre_xdp_close(&made.xdp), 0) << made.xdp.error;
    std::vector<void *> all = made.all_blocks();
    EXPECT_EQ(all.size(), 2000U);

    Fixture other(objects(2368, 2000));
    other.xdp.page_bytes = 2 << 20;
    unsigned refused = 0;
    for (void *const block : other.all_blocks()) refused += other.send_one(block) == -EINVAL;
    EXPECT_EQ(refused, 2U);
    EXPECT_NE(std::string(other.xdp.send_error).find("two hugepages"), std::string::npos) << other.xdp.send_error;
}

TEST(AfXdp, a_close_of_zeros_does_nothing) {
    ASSERT_NE(numacre_alloc(nullptr, 0, nullptr), 0);
    const std::string said = numacre_last_error();
    numacre_xdp zeros{};
    EXPECT_EQ(numacre_xdp_close(&zeros), 0);
    EXPECT_EQ(zeros.pin, 0);
    EXPECT_EQ(numacre_last_error(), said);
}

}  // namespace

#else

TEST(AfXdp, NOT_TESTED) {
    GTEST_SKIP() << "NOT TESTED: built without libxdp (Debian package libxdp-dev)";
}

#endif
