// Objects of a mempool to tokens and back, in runs at one distance.
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "driver.hpp"

// What EAL has behind it: no EAL runs here.
extern "C" void *rte_realloc(void *memory, std::size_t bytes, unsigned) {
    return std::realloc(memory, bytes);
}

namespace numacre::dpdk {
namespace {

// Nobody touches the objects' memory.
char *address(std::uint64_t offset) {
    return reinterpret_cast<char *>(std::uintptr_t{0x1'0000'0000} + offset);
}

class Objects {
public:
    Objects() = default;
    Objects(const Objects &) = delete;
    Objects &operator=(const Objects &) = delete;
    ~Objects() {
        std::free(shared.runs);
        std::free(shared.by_address);
    }
    // One piece of memory with objects at these offsets.
    void add(const std::vector<std::uint64_t> &offsets, std::size_t bytes) {
        bool is_behind = false;
        for (const std::uint64_t offset : offsets) {
            ASSERT_TRUE(add_object(shared, address(offset), bytes, is_behind));
            is_behind = true;
            all.push_back(offset);
        }
    }
    void expect_each_has_its_token() const {
        for (std::uint64_t i = 0; i < all.size(); ++i) {
            EXPECT_EQ(token_offset_of(shared, address(all[i])), i * kTokenBytes) << "object " << i;
            EXPECT_EQ(object_of(shared, i * kTokenBytes), address(all[i])) << "object " << i;
        }
    }

    Shared shared{};
    std::vector<std::uint64_t> all;
};

TEST(DpdkRuns, objects_of_one_piece_are_one_run) {
    Objects objects;
    objects.add({0x100, 0x100 + 2432, 0x100 + 2 * 2432}, 2432);
    EXPECT_EQ(objects.shared.run_count, 1U);
    objects.expect_each_has_its_token();
}

TEST(DpdkRuns, pieces_that_touch_are_one_run) {
    Objects objects;
    objects.add({0x100, 0x100 + 2432}, 2432);
    objects.add({0x100 + 2 * 2432}, 2432);
    EXPECT_EQ(objects.shared.run_count, 1U);
    objects.expect_each_has_its_token();
}

TEST(DpdkRuns, runs_do_not_overlap) {
    Objects objects;
    objects.add({0x1000}, 2048);
    objects.add({0x5000}, 2048);
    objects.add({0x3000}, 2048);
    EXPECT_EQ(objects.shared.run_count, 3U);
    objects.expect_each_has_its_token();
}

TEST(DpdkRuns, pages_with_few_objects_each) {
    Objects objects;
    objects.add({0, 1600, 4096, 5696, 8192, 9792, 12288}, 1600);
    objects.add({1 << 20}, 1600);
    objects.expect_each_has_its_token();
}

TEST(DpdkRuns, a_pointer_into_an_object_has_no_token) {
    for (const std::uint64_t bytes : {64, 128, 2048, 2432, 4096, 4160, 1 << 20}) {
        Objects objects;
        objects.add({0, bytes, 2 * bytes, 3 * bytes, 4 * bytes}, bytes);
        for (std::uint64_t inside = 1; inside < 5 * bytes; ++inside) {
            if (inside % bytes == 0) continue;
            ASSERT_EQ(token_offset_of(objects.shared, address(inside)), kNoToken) << inside << " of " << bytes;
        }
        EXPECT_EQ(token_offset_of(objects.shared, address(5 * bytes)), kNoToken);
        EXPECT_EQ(token_offset_of(objects.shared, address(0) - bytes), kNoToken);
    }
}

TEST(DpdkRuns, objects_are_dropped_again) {
    Objects objects;
    objects.add({0x1000, 0x1800, 0x2000}, 2048);
    objects.add({0x8000}, 2048);
    keep_objects(objects.shared, 2);
    EXPECT_EQ(objects.shared.run_count, 1U);
    EXPECT_EQ(objects.shared.populated_runs_end(), 2U);
    EXPECT_EQ(token_offset_of(objects.shared, address(0x2000)), kNoToken);
    objects.all.resize(2);
    objects.add({0x400, 0xc00}, 2048);
    objects.expect_each_has_its_token();
    keep_objects(objects.shared, 0);
    EXPECT_EQ(token_offset_of(objects.shared, address(0x1000)), kNoToken);
    objects.all.clear();
    objects.add({0x1000, 0x1800}, 2048);
    objects.expect_each_has_its_token();
}

}  // namespace
}  // namespace numacre::dpdk
