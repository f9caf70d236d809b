// Units, index entry, intent, reference, geometry, errors, fragmentation: values without atomics.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include <set>

#include "numacre/shm/fragmentation.hpp"
#include "numacre/shm/layout.hpp"
#include "numacre/shm/search.hpp"

namespace numacre {

using namespace engine;
namespace {

TEST(Units, the_order_for_a_size_is_the_smallest_that_holds_it) {
    EXPECT_EQ(order_for_bytes(1, 12).value, 0);
    EXPECT_EQ(order_for_bytes(4096, 12).value, 0);
    EXPECT_EQ(order_for_bytes(4097, 12).value, 1);
    EXPECT_EQ(order_for_bytes(3 * 4096, 12).value, 2);
    EXPECT_EQ(order_for_bytes(std::uint64_t{1} << 30, 12).value, 18);
    EXPECT_EQ(order_for_bytes(65, 6).value, 1);
}

TEST(IndexEntry, keeps_every_field_apart) {
    const auto entry = IndexEntry::owned(ProcessSlot{0xfeff}, Order{24}, kGenerationMax, Note{~std::uint64_t{0}});
    EXPECT_TRUE(entry.is_owned());
    EXPECT_EQ(entry.owner().value, 0xfeff);
    EXPECT_EQ(entry.order().value, 24);
    EXPECT_EQ(entry.generation(), kGenerationMax);
    EXPECT_EQ(entry.note().bits(), Note::kMask);
    const auto freeing = IndexEntry::freeing(ThreadSlotIndex{0xabcd}, Order{3}, 17);
    EXPECT_TRUE(freeing.is_freeing());
    EXPECT_FALSE(freeing.is_owned());
    EXPECT_EQ(freeing.freer().value, 0xabcd);
    EXPECT_EQ(freeing.generation(), 17U);
    const auto handed = entry.handed_to(IndexEntry::owned(ProcessSlot{2}, Order{0}, 0, {}), PoolAge{3});
    EXPECT_EQ(handed.owner().value, 2);
    EXPECT_EQ(handed.generation(), 0U) << "it is still to come";
    EXPECT_EQ(handed.note(), entry.note().with_since(PoolAge{3}));
}

TEST(IndexEntry, is_put_together_as_it_is_made) {
    const ProcessSlot process{0xfeff};
    const Order order{17};
    const Note note{~std::uint64_t{0}};
    const auto ours = IndexEntry::owned(process, Order{0}, 0, {});
    EXPECT_EQ(ours.of(order, note), IndexEntry::owned(process, order, 0, note));
    for (const std::uint32_t before : {0U, 1U, 2U, 0x3ffffU, 0x40000U, kGenerationMax - 1, kGenerationMax}) {
        // Whatever else the place said.
        const auto old = IndexEntry::freeing(ThreadSlotIndex{0xffff}, Order{31}, before);
        const auto older = IndexEntry{old.bits() | note.bits()};
        const auto expected = IndexEntry::owned(process, order, next_generation(before), note);
        EXPECT_EQ(ours.of(order, note).after(old), expected) << before;
        EXPECT_EQ(ours.of(order, note).after(older), expected) << before;
        EXPECT_NE(expected.generation(), 0U);
    }
    const auto held = IndexEntry::owned(process, order, kGenerationMax, note).published();
    EXPECT_EQ(held.now(IndexEntry::freeing(ThreadSlotIndex{7}, Order{0}, 0)),
              IndexEntry::freeing(ThreadSlotIndex{7}, order, kGenerationMax).with(note));
    EXPECT_FALSE(held.is_held_like(ours)) << "published";
    EXPECT_TRUE(held.is_held_like(ours.published()));
    EXPECT_FALSE(held.is_held_like(IndexEntry::owned(ProcessSlot{0xfefe}, order, kGenerationMax, note)));
    EXPECT_FALSE(held.is_held_like(IndexEntry::cached(process, ThreadSlotIndex{1}, order, kGenerationMax)));
    EXPECT_FALSE(IndexEntry{}.is_held_like(IndexEntry::owned(ProcessSlot{0}, order, 0, {})));
}

TEST(Note, slack_is_kept_in_256ths_of_the_block) {
    for (unsigned block_shift = 6; block_shift <= 36; ++block_shift) {
        const std::uint64_t block = std::uint64_t{1} << block_shift;
        for (const std::uint64_t slack : {std::uint64_t{0}, std::uint64_t{1}, block / 3, block / 2 - 1, block - 1}) {
            const std::uint64_t told =
                Note{PoolAge{77}}.for_request(block - slack, block_shift).slack_bytes(block_shift);
            EXPECT_LE(told, slack) << block_shift;
            EXPECT_LT(slack - told, std::max<std::uint64_t>(1, block >> Note::kSlackBits)) << block_shift;
        }
    }
    EXPECT_EQ(Note{PoolAge{77}}.for_request(1, 12).since(), PoolAge{77});
    EXPECT_EQ(Note{PoolAge{77}}.for_request(1, 12).with_since(PoolAge{5}).slack_bytes(12), 4080U);
}

TEST(PoolAge, is_monotonic_and_holds_what_it_was_made_of) {
    for (std::uint32_t code = 0; code + 1 < 1U << PoolAge::kBits; ++code) {
        const PoolAge age{code};
        ASSERT_LE(age.first_second(), age.last_second());
        ASSERT_EQ(PoolAge::of_seconds(age.first_second()), age);
        ASSERT_EQ(PoolAge::of_seconds(age.last_second()), age);
        ASSERT_EQ(PoolAge::of_seconds(age.last_second() + 1), PoolAge{code + 1});
        // Exact at first, later to one part in 256.
        if (age.first_second() < 512)
            ASSERT_EQ(age.first_second(), age.last_second());
        else
            ASSERT_LE(age.last_second() - age.first_second(), age.first_second() / 256);
    }
    EXPECT_EQ(PoolAge::of_seconds(~std::uint64_t{0}).code(), (1U << PoolAge::kBits) - 1);
}

TEST(Intent, keeps_every_field_apart) {
    const Block block{FrameIndex{(std::uint64_t{1} << 34) - 128}, Order{7}};
    const Intent intent{IntentKind::free, NumaNode{63}, block};
    EXPECT_TRUE(intent.active());
    EXPECT_EQ(intent.kind(), IntentKind::free);
    EXPECT_EQ(intent.numa_node().value, 63);
    EXPECT_EQ(intent.block(), block);
    EXPECT_FALSE(Intent{}.active());
}

TEST(HintWork, begins_and_ends_with_a_new_sequence) {
    const HintWork idle{0};
    const HintWork begun = idle.begun(9, (std::uint64_t{1} << 34) - 1);
    EXPECT_TRUE(begun.active());
    EXPECT_EQ(begun.level(), 9U);
    EXPECT_EQ(begun.word(), (std::uint64_t{1} << 34) - 1);
    EXPECT_FALSE(begun.ended().active());
    EXPECT_NE(begun.ended().bits(), idle.bits());
}

TEST(Geometry, impossible_ones_are_named) {
    constexpr std::uint64_t kMiB = 1 << 20;
    EXPECT_EQ(check_geometry(4096, 4 * kMiB, 1024 * kMiB), GeometryFault::none);
    EXPECT_EQ(check_geometry(64, 64, 64), GeometryFault::none);
    EXPECT_EQ(check_geometry(2 * kMiB, 1024 * kMiB, std::uint64_t{1} << 40), GeometryFault::none);
    EXPECT_EQ(check_geometry(4096, 1024 * kMiB, std::uint64_t{1} << 46), GeometryFault::none) << "64 TiB a numa node";
    EXPECT_EQ(check_geometry(0, 4 * kMiB, kMiB), GeometryFault::frame_not_power_of_two);
    EXPECT_EQ(check_geometry(4095, 4 * kMiB, kMiB), GeometryFault::frame_not_power_of_two);
    EXPECT_EQ(check_geometry(32, 4 * kMiB, kMiB), GeometryFault::frame_out_of_range);
    EXPECT_EQ(check_geometry(4 * kMiB, 4 * kMiB, 4 * kMiB), GeometryFault::frame_out_of_range);
    EXPECT_EQ(check_geometry(4096, 3 * kMiB, 12 * kMiB), GeometryFault::block_not_power_of_two);
    EXPECT_EQ(check_geometry(4096, 2048, 12 * kMiB), GeometryFault::block_smaller_than_frame);
    EXPECT_EQ(check_geometry(4096, 2048 * kMiB, 4096 * kMiB), GeometryFault::block_too_large);
    EXPECT_EQ(check_geometry(4096, 4 * kMiB, 0), GeometryFault::capacity_zero);
    EXPECT_EQ(check_geometry(4096, 4 * kMiB, 5 * kMiB), GeometryFault::capacity_not_whole_blocks);
    EXPECT_EQ(check_geometry(64, 4 * kMiB, std::uint64_t{1} << 41), GeometryFault::capacity_too_large);
}

TEST(FrameScale, gives_the_frame_of_an_offset_and_no_frame_of_an_offset_inside_one) {
    std::mt19937_64 random(1);
    for (const std::uint64_t bytes : {64ULL, 128ULL, 192ULL, 320ULL, 2368ULL, 4096ULL, 4160ULL, 9280ULL, 65'600ULL,
                                      (1ULL << 30) - 64, 1ULL << 30, (1ULL << 30) + 64}) {
        const FrameScale scale{bytes};
        const std::uint64_t most = std::uint64_t{1} << kMaxFrameIndexBits;
        for (int i = 0; i < 20'000; ++i) {
            const std::uint64_t frame = i < 300 ? static_cast<std::uint64_t>(i) : random() % most;
            ASSERT_EQ(scale.frame(scale.offset(frame)), frame) << bytes;
            const std::uint64_t inside =
                i < 300 ? 1 + static_cast<std::uint64_t>(i) % (bytes - 1) : 1 + random() % (bytes - 1);
            ASSERT_GE(scale.frame(scale.offset(frame) + inside), most) << bytes << " " << frame << " " << inside;
            ASSERT_GE(scale.frame(scale.offset(frame) - inside), most) << bytes << " " << frame << " " << inside;
        }
    }
}

TEST(Objects, impossible_ones_are_named) {
    EXPECT_EQ(check_objects(64, 1), ObjectsFault::none);
    EXPECT_EQ(check_objects(2368, 100'000), ObjectsFault::none);
    EXPECT_EQ(check_objects(kMaxBlockBytes, 65'535), ObjectsFault::none);
    EXPECT_EQ(check_objects(kMaxBlockBytes, 65'536), ObjectsFault::too_large);
    EXPECT_EQ(check_objects(kMaxBlockBytes, std::uint64_t{1} << kMaxFrameIndexBits), ObjectsFault::too_large);
    EXPECT_EQ(check_objects(4096, std::uint64_t{1} << kMaxFrameIndexBits), ObjectsFault::too_large);
    EXPECT_EQ(check_objects(64, std::uint64_t{1} << kMaxFrameIndexBits), ObjectsFault::none);
    EXPECT_EQ(check_objects(0, 1), ObjectsFault::size_out_of_range);
    EXPECT_EQ(check_objects(63, 1), ObjectsFault::size_out_of_range);
    EXPECT_EQ(check_objects(65, 1), ObjectsFault::size_no_multiple);
    EXPECT_EQ(check_objects(kMaxBlockBytes + 64, 1), ObjectsFault::size_out_of_range);
    EXPECT_EQ(check_objects(64, 0), ObjectsFault::count_zero);
    EXPECT_EQ(check_objects(64, (std::uint64_t{1} << kMaxFrameIndexBits) + 1), ObjectsFault::too_many);
    for (const std::uint64_t bytes : {64ULL, 2368ULL, 4096ULL, 1ULL << 30})
        EXPECT_TRUE(plausible(make_object_geometry(object_stride(bytes, true), 7))) << bytes;
    EXPECT_FALSE(plausible(make_object_geometry(100, 7)));
    EXPECT_FALSE(plausible(make_object_geometry(2368, 0)));
    EXPECT_FALSE(plausible(make_object_geometry(0, 7)));
    EXPECT_FALSE(plausible(Geometry{2368, 1, 8}));
    EXPECT_FALSE(plausible(Geometry{1U << 30, 0, std::uint64_t{1} << kMaxFrameIndexBits})) << "2^64 bytes";
}

TEST(Objects, slack_is_what_nobody_asked_for_of_an_object) {
    const Geometry geometry = make_object_geometry(2368, 10);
    for (const std::uint64_t size : {1ULL, 64ULL, 1000ULL, 2047ULL, 2048ULL, 2367ULL, 2368ULL}) {
        const std::uint64_t slack = geometry.slack_bytes(Order{0}, Note{}.for_request(size, geometry.frame_shift()));
        EXPECT_LE(slack, 2368 - size);
        EXPECT_GE(slack + 4096 / 256, 2368 - size);
    }
}

TEST(Geometry, scribbled_ones_are_not_plausible) {
    EXPECT_TRUE(plausible(Geometry{4096, 10, 1 << 18}));
    EXPECT_FALSE(plausible(Geometry{4096, 10, 0}));
    EXPECT_FALSE(plausible(Geometry{4096, 10, 1}));
    EXPECT_FALSE(plausible(Geometry{1U << 31, 10, 1 << 18}));
    EXPECT_FALSE(plausible(Geometry{4096, 60, 1 << 18}));
    EXPECT_FALSE(plausible(Geometry{4096, 10, ~std::uint64_t{0} << 10}));
}

TEST(Layout, parts_do_not_overlap_and_metadata_stays_below_one_percent) {
    for (const std::uint64_t gibibytes : {1, 64, 1024}) {
        const Geometry geometry = make_geometry(4096, 4 << 20, gibibytes << 30);
        const auto layout = NodeLayout<ProductionEnv>::of(geometry, 4096);
        // Without the per-thread tables, which do not grow with the pool.
        const double share = static_cast<double>(layout.region_bytes - layout.hint[geometry.hint_levels()]) /
                             static_cast<double>(geometry.capacity_bytes());
        RecordProperty("metadata_share_" + std::to_string(gibibytes) + "GiB", std::to_string(share));
        std::printf(
            "metadata of %4llu GiB in 4 KiB frames: %.4f %% (%.2f bytes a frame), per-thread tables %.1f MiB more\n",
            static_cast<unsigned long long>(gibibytes), share * 100, share * 4096,
            static_cast<double>(layout.hint[geometry.hint_levels()]) / (1 << 20));
        EXPECT_LT(share, 0.01);
    }
    for (const unsigned largest_order : {0U, 3U, 6U, 7U, 10U, 13U, 18U, 24U}) {
        const Geometry geometry{6, largest_order, std::uint64_t{3} << largest_order};
        const auto layout = NodeLayout<ProductionEnv>::of(geometry, 16);
        std::set<std::uint64_t> starts{layout.leaf, layout.home, layout.counters, layout.region_bytes};
        std::size_t parts = 4;
        for (unsigned layer = 1; layer <= geometry.top_layer(); ++layer, ++parts) starts.insert(layout.upper[layer]);
        for (unsigned layer = 0; layer <= geometry.top_layer(); ++layer, ++parts) starts.insert(layout.index[layer]);
        for (unsigned layer = 0; layer <= geometry.top_layer(); ++layer, ++parts) starts.insert(layout.era[layer]);
        for (unsigned level = 2; level <= geometry.hint_levels(); ++level, ++parts) starts.insert(layout.hint[level]);
        EXPECT_EQ(starts.size(), parts) << "largest order " << largest_order;
        EXPECT_GE(geometry.hint_levels(), geometry.top_layer());
        EXPECT_LE(geometry.hint_levels(), kMaxHintLevels);
    }
}

TEST(Errors, each_row_has_an_errno_a_status_and_a_remedy_of_its_own) {
    std::set<int> errnos;
    for (std::size_t i = 0; i < kErrors.size(); ++i) {
        const ErrorRow &row = kErrors[i];
        EXPECT_EQ(static_cast<std::size_t>(row.code), i);
        EXPECT_TRUE(errnos.insert(row.errno_value).second) << row.name << " shares its errno";
        EXPECT_STRNE(row.remedy, "");
        EXPECT_STRNE(row.grpc_status, "");
    }
}

// The worked example of the metrics' definition.
TEST(Fragmentation, golden_example) {
    BlocksByOrder n{};
    n[0] = 3;
    n[1] = 1;
    n[3] = 2;
    EXPECT_EQ(free_frames_from(n, 0), 21);
    const double unusable[] = {0, 3.0 / 21, 5.0 / 21, 5.0 / 21, 1, 1};
    const double external[] = {-1, -1, -1, -1, 1 - (1 + 21.0 / 16) / 6, 1 - (1 + 21.0 / 32) / 6};
    for (unsigned order = 0; order < 6; ++order) {
        EXPECT_DOUBLE_EQ(unusable_free_ratio(n, order), unusable[order]) << "order " << order;
        EXPECT_DOUBLE_EQ(external_fragmentation_index(n, order), external[order]) << "order " << order;
    }
    EXPECT_NEAR(external_fragmentation_index(n, 4), .615, .0005);
    EXPECT_NEAR(external_fragmentation_index(n, 5), .724, .0005);
    EXPECT_NEAR(quadratic_fragmentation(n), .694, .0005);
}

TEST(Fragmentation, nothing_free) {
    const BlocksByOrder none{};
    EXPECT_EQ(unusable_free_ratio(none, 0), 1);
    EXPECT_EQ(external_fragmentation_index(none, 0), 0);
    EXPECT_EQ(quadratic_fragmentation(none), 0);
    EXPECT_EQ(internal_fragmentation_ratio(0, 0), 0);
    EXPECT_DOUBLE_EQ(internal_fragmentation_ratio(4096, 1024), .75);
}

}  // namespace
}  // namespace numacre
