// Where everything lies in shared memory. A pool is one pool region (who is there) and, per numa node, one node region
// (the allocator's metadata) and one data region (the frames). Only offsets and indices are stored, never addresses.
// Any change here that moves or reinterprets a byte raises kLayoutVersion, unless every value of it is harmless (Home).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "numacre/error.hpp"
#include "numacre/shm/env.hpp"
#include "numacre/shm/node_state.hpp"
#include "numacre/shm/note.hpp"
#include "numacre/shm/owner.hpp"
#include "numacre/shm/reference.hpp"
#include "numacre/shm/units.hpp"

namespace numacre::engine {

inline constexpr std::uint32_t kLayoutVersion = 7;
inline constexpr std::uint64_t kPoolMagic = 0x6c6f'6f70'6372'6d6e;  // "nmrcpool" in memory
inline constexpr std::uint64_t kNodeMagic = 0x6564'6f6e'6372'6d6e;  // "nmrcnode" in memory
inline constexpr std::size_t kCacheLineBytes = 64;
inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::uint64_t kHugepageBytes = std::uint64_t{2} << 20;
inline constexpr std::uint64_t kGiganticPageBytes = std::uint64_t{1} << 30;
inline constexpr std::size_t kPoolNameBytes = 64;  // with its terminating 0

inline constexpr std::uint64_t kMinFrameBytes = 64;
inline constexpr std::uint64_t kMaxFrameBytes = std::uint64_t{2} << 20;
inline constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 30;
// 8^10 leaf words of 64 frames are more than 2^kMaxFrameIndexBits frames.
inline constexpr unsigned kMaxHintLevels = 10;
// So often in a row no correct peers make a compare-and-swap on one word fail: beyond it somebody scribbles there for
// ever. Loops that the daemon runs give up then; it is not kept busy by a client.
inline constexpr unsigned kCasRoundsMax = 1U << 20;

// ---------------------------------------------------------------------------------------------------------------------
// Geometry: the three numbers from which every size and offset of a node region follows.

struct Geometry {
    std::uint32_t frame_shift = 12;    // log2 of the frame's bytes
    std::uint32_t largest_order = 10;  // of the largest block, in frames; a chunk is one largest block
    std::uint64_t frame_count = 0;     // capacity of one numa node, a whole number of chunks

    constexpr std::uint64_t frame_bytes() const { return std::uint64_t{1} << frame_shift; }
    constexpr std::uint64_t capacity_bytes() const { return frame_count << frame_shift; }
    constexpr std::uint64_t chunk_frames() const { return std::uint64_t{1} << largest_order; }
    constexpr std::uint64_t chunk_bytes() const { return chunk_frames() << frame_shift; }
    constexpr std::uint64_t chunk_count() const { return frame_count >> largest_order; }
    constexpr Order largest() const { return Order{largest_order}; }
    // The layer that holds largest blocks; marks climb up to it and no further.
    constexpr unsigned top_layer() const { return layer_of(largest()); }
    constexpr std::uint64_t word_count(unsigned layer) const {
        return divide_up(frame_count, std::uint64_t{1} << word_order(layer));
    }
    // Hint level h >= 2 has one word for 8 words of level h-1, level 1 being groups of 8 leaf words; the last level,
    // the root, has one word. Words of a level are as large as those of the layer of that number, whether or not there
    // is one.
    constexpr unsigned hint_levels() const {
        unsigned level = 2;
        while (word_count(level) > 1) ++level;
        return level;
    }
    // Entries of one layer stand for the smallest blocks of that layer.
    constexpr unsigned index_granule(unsigned layer) const { return layer == 0 ? 0 : word_order(layer - 1) + 1; }
    constexpr std::uint64_t index_entry_count(unsigned layer) const {
        return divide_up(frame_count, std::uint64_t{1} << index_granule(layer));
    }

    friend constexpr bool operator==(const Geometry &, const Geometry &) = default;
};

enum class GeometryFault : std::uint8_t {
    none,
    frame_not_power_of_two,
    frame_out_of_range,
    block_not_power_of_two,
    block_smaller_than_frame,
    block_too_large,
    capacity_zero,
    capacity_not_whole_blocks,
    capacity_too_large,
};

// What is wrong with these sizes, or none. frame_bytes: 64 B .. 2 MiB, a power of two; largest_block_bytes: a power of
// two from frame_bytes to 1 GiB and at most 2^24 frames; capacity_bytes: whole largest blocks, at most 2^34 frames.
constexpr GeometryFault check_geometry(std::uint64_t frame_bytes, std::uint64_t largest_block_bytes,
                                       std::uint64_t capacity_bytes) {
    if (!std::has_single_bit(frame_bytes)) return GeometryFault::frame_not_power_of_two;
    if (frame_bytes < kMinFrameBytes || frame_bytes > kMaxFrameBytes) return GeometryFault::frame_out_of_range;
    if (!std::has_single_bit(largest_block_bytes)) return GeometryFault::block_not_power_of_two;
    if (largest_block_bytes < frame_bytes) return GeometryFault::block_smaller_than_frame;
    if (largest_block_bytes > kMaxBlockBytes || largest_block_bytes / frame_bytes > (std::uint64_t{1} << kMaxOrder))
        return GeometryFault::block_too_large;
    if (capacity_bytes == 0) return GeometryFault::capacity_zero;
    if (capacity_bytes % largest_block_bytes != 0) return GeometryFault::capacity_not_whole_blocks;
    if (capacity_bytes / frame_bytes > (std::uint64_t{1} << kMaxFrameIndexBits))
        return GeometryFault::capacity_too_large;
    return GeometryFault::none;
}

// Only for sizes that check_geometry accepts.
constexpr Geometry make_geometry(std::uint64_t frame_bytes, std::uint64_t largest_block_bytes,
                                 std::uint64_t capacity_bytes) {
    return Geometry{static_cast<std::uint32_t>(std::countr_zero(frame_bytes)),
                    static_cast<std::uint32_t>(std::countr_zero(largest_block_bytes / frame_bytes)),
                    capacity_bytes / frame_bytes};
}

// A geometry that came over a wire or out of shared memory.
constexpr bool plausible(const Geometry &geometry) {
    if (geometry.frame_shift > 21 || geometry.largest_order > kMaxOrder) return false;
    if (geometry.frame_count > (std::uint64_t{1} << kMaxFrameIndexBits)) return false;
    return check_geometry(geometry.frame_bytes(), geometry.chunk_bytes(), geometry.capacity_bytes()) ==
           GeometryFault::none;
}

// ---------------------------------------------------------------------------------------------------------------------
// Records in shared memory. Env::Atomic<uint64_t> is 8 bytes in production; the asserts below pin the layout there.

template <class Env>
struct alignas(128) ThreadSlot {
    using Word = typename Env::template Atomic<std::uint64_t>;
    Word intent;     // Intent; written by the owning thread only
    Word owner;      // 0 = free, else ThreadOwner; claimed by a client's CAS, cleared by it or by recovery
    Word hint_work;  // odd while hints may hide something (HintWork): search must not trust "nothing free" then
    Word waiting;    // WaitWord; its low half is a futex word
    Word nodes;      // of a wish: bit n: a block of numa node n would do
    std::uint64_t reserved[3];
};

// Who uses a thread slot: bits 0..15 process slot, bit 16 in use.
class ThreadOwner {
public:
    constexpr explicit ThreadOwner(std::uint64_t bits) : bits_(bits) {}
    constexpr explicit ThreadOwner(ProcessSlot process) : bits_(kInUse | process.value) {}
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr bool in_use() const { return (bits_ & kInUse) != 0; }
    constexpr ProcessSlot process() const { return ProcessSlot{static_cast<std::uint16_t>(bits_)}; }

private:
    static constexpr std::uint64_t kInUse = 1 << 16;
    std::uint64_t bits_;
};

enum class ProcessState : std::uint64_t { free = 0, active = 1, dead = 2 };

// Written by the daemon, but for `held`, `news` and `presence`; clients only read the rest.
template <class Env>
struct alignas(2 * kCacheLineBytes) ProcessRecord {
    using Word = typename Env::template Atomic<std::uint64_t>;
    Word state;             // ProcessState; dead = recovery has not finished yet
    Word generation;        // grows each time the slot is handed out
    Word pid;               // in the daemon's pid namespace
    Word start_time_ticks;  // /proc/<pid>/stat field 22: tells a reused pid
    Word quota_frames;      // of frames that the client may own; 0 = no limit
    Word thread_limit;      // thread slots that the client may have at once; 0 = no limit
    Word reserved_frames;   // promised to the client: others leave them free; 0 = none
    Word account;           // of the client's user; 0 = the user has none
    // A line of its own. account.hpp: HeldFrames, changed by the process's threads and by whoever takes a block from
    // it.
    alignas(kCacheLineBytes) Word held;
    Word news;  // bits of EventBits that the client has not been told of; the daemon sets them, the client clears them
    Word presence;  // Presence: whether the client is there, by the word of whom it concerns
    std::uint64_t reserved[5];
};

// Events of which a client is told.
struct EventBits {
    static constexpr std::uint64_t kLowWatermark = 1;
    static constexpr std::uint64_t kLowWatermarkEnded = 2;
    static constexpr std::uint64_t kSoftQuota = 4;  // its own, its user's or the pool's
    static constexpr std::uint64_t kResized = 8;
    static constexpr std::uint64_t kEviction = 16;
    static constexpr std::uint64_t kDamaged = 32;
};

// Limits that several processes share. Account 0 is the pool's: of all its clients together, without reservation; the
// others are users'. Written by the daemon; all zero = none.
template <class Env>
struct Account {
    using Word = typename Env::template Atomic<std::uint64_t>;
    Word quota_frames;
    Word reserved_frames;
};
inline constexpr std::uint32_t kAccounts = 64;
inline constexpr std::uint32_t kPoolAccount = 0;

// What has to be done for limits (account.hpp). Written by the daemon; 0 = nothing, and nobody counts what it holds.
struct Accounting {
    static constexpr std::uint64_t kCount = 1;         // each process counts what it holds
    static constexpr std::uint64_t kShared = 2;        // there are accounts, or reservations: add up what all hold
    static constexpr std::uint64_t kReservations = 4;  // there are reservations
};

enum class PoolState : std::uint64_t { creating = 0, serving = 1, corrupt = 2, deleted = 3 };

// Bit 0: somebody may be waiting for a release. Bits 1 .. 47: how often memory has run out somewhere; a thread that
// sees it change gives its cached blocks back. The daemon's: bits 48 .. 60 how old the pool is (it stands still while
// there is no daemon), bit 61 look at the pool's state before you allocate: it may not serve any more, bit 62 a chunk
// is draining: what is freed of it is not to be cached. Whatever a client scribbles here costs others time and nothing
// else.
struct Attention {
    static constexpr std::uint64_t kWaiters = 1;
    static constexpr std::uint64_t kPressureStep = 2;
    static constexpr unsigned kAgeShift = 48;
    static constexpr std::uint64_t kAgeMask = ((std::uint64_t{1} << PoolAge::kBits) - 1) << kAgeShift;
    static constexpr std::uint64_t kLookAtState = std::uint64_t{1} << (kAgeShift + PoolAge::kBits);
    static constexpr std::uint64_t kDraining = kLookAtState << 1;

    static constexpr PoolAge age(std::uint64_t bits) { return PoolAge{static_cast<std::uint32_t>(bits >> kAgeShift)}; }
    // The daemon's bits anew.
    static constexpr std::uint64_t told(std::uint64_t bits, PoolAge age, bool serves, bool drains) {
        return (bits & ((std::uint64_t{1} << kAgeShift) - 1)) | std::uint64_t{age.code()} << kAgeShift |
               (serves ? 0 : kLookAtState) | (drains ? kDraining : 0);
    }
};

template <class Env>
struct PoolHeader {
    using Word = typename Env::template Atomic<std::uint64_t>;
    std::uint64_t magic;
    std::uint32_t layout_version;
    std::uint32_t header_bytes;
    std::uint64_t region_bytes;
    std::uint64_t instance_id;  // random; the same in all regions of one pool
    char name[kPoolNameBytes];
    Geometry geometry;  // the same for every numa node of the pool
    std::uint32_t numa_node_count;
    std::uint32_t process_slots;                 // slot 0 is the daemon
    std::uint32_t thread_slots;                  // slot 0 is the daemon's
    std::uint32_t policy_mode;                   // PolicyMode of those clients that say nothing themselves
    std::uint64_t policy_nodes;                  // Policy::nodes
    alignas(kCacheLineBytes) Word state;         // PoolState
    Word thread_high_water;                      // thread slots at or above it were never used
    Word accounting;                             // Accounting
    Word seats;                                  // process slots at or above it have no client
    Word online_frames;                          // of all numa nodes; right within moments of a change
    alignas(kCacheLineBytes) Word attention;     // Attention: what every thread looks at before it uses its cache
    alignas(kCacheLineBytes) Word wait_tickets;  // given out to those who wait for memory (WaitWord)
};

template <class Env>
struct NodeHeader {
    std::uint64_t magic;
    std::uint32_t layout_version;
    std::uint32_t header_bytes;
    std::uint64_t region_bytes;
    std::uint64_t instance_id;
    Geometry geometry;
    std::uint32_t numa_node;  // the pool's dense number
    std::uint32_t thread_slots;
};

// A place in the tree that a thread begins at.
//   bits 0..39 the place + 1, 0 = nowhere yet. Of a block in an upper word the place is that word, as counted in its
//   layer. Of one in a leaf word it is a frame: where the block begins if that is free; else it is anywhere in the word
//   40..47 of an upper word: log2 of the children in the widest hole that is worth taking a block from there; a search
//   found none smaller anywhere, the last time. Of a leaf word whatever is free is taken
//   48..63 of an upper word's blocks, and of those as large as a leaf word: so many free groups or parents more may be
//   begun without a search
class Home {
public:
    static constexpr std::uint64_t kBegunMax = 512;
    static constexpr std::uint64_t kBegunMaxOfParts = 32;  // of halves and quarters of an upper word
    constexpr explicit Home(std::uint64_t bits) : bits_(bits) {}
    constexpr explicit Home(std::uint64_t place, unsigned widest)
        : bits_((place + 1) | std::uint64_t{widest} << kWidestShift) {}
    // Of a search that found nothing less than a free group or parent. most: how many more may be begun.
    static constexpr Home in_free(std::uint64_t place, unsigned widest, std::uint64_t most = kBegunMax) {
        return Home{Home{place, widest}.bits_ | most << kBegunShift};
    }
    constexpr std::uint64_t bits() const { return bits_; }
    // What the last search found still holds.
    constexpr Home moved_to(std::uint64_t place) const { return Home{(bits_ & ~kPlaceMask) | (place + 1)}; }
    // Back to where a block has been freed: there are holes again.
    constexpr Home back_at(std::uint64_t word) const {
        return Home{word, static_cast<unsigned>(bits_ >> kWidestShift & 0xff)};
    }
    // The place, without leave to begin the next group or parent.
    constexpr Home without_next() const { return Home{bits_ << (64 - kBegunShift) >> (64 - kBegunShift)}; }
    constexpr bool may_begin_next() const { return bits_ >> kBegunShift != 0; }
    constexpr Home begun_at(std::uint64_t place) const {
        return Home{moved_to(place).bits_ - (std::uint64_t{1} << kBegunShift)};
    }
    // Nowhere: beyond all pools.
    constexpr std::uint64_t place() const { return (bits_ & kPlaceMask) - 1; }
    constexpr unsigned widest() const {
        const auto levels = static_cast<unsigned>(bits_ >> kWidestShift & 0xff);
        return levels < kUpperLevels ? levels : kUpperLevels;  // a scribbled one: "no hole" is not wide enough
    }

private:
    static constexpr unsigned kWidestShift = 40;
    static constexpr unsigned kBegunShift = 48;
    static constexpr std::uint64_t kPlaceMask = (std::uint64_t{1} << kWidestShift) - 1;
    std::uint64_t bits_;
};

// Where a thread goes on: where it allocated or freed last, or the word after one that it has filled. [order] holds a
// Home. A preference and nothing else: only the slot's thread reads and writes it, whoever has the slot next may go on
// there, any value is harmless. One for each order: blocks of one size go where blocks of that size were, which keeps
// the rest whole.
template <class Env>
struct alignas(kCacheLineBytes) HomeWords {
    std::array<typename Env::template Atomic<std::uint64_t>, kMaxOrder + 1> word;
    // Passed: groups of leaf words that the thread has used up, or gone past, and left without lowering their hints.
    // The thread's next search does.
    typename Env::template Atomic<std::uint64_t> passed;
};

// Adjacent groups: bits 0..47 the first one, 48..57 how many.
class Passed {
public:
    constexpr explicit Passed(std::uint64_t bits) : bits_(bits) {}
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr std::uint64_t first() const { return bits_ << 16 >> 16; }
    constexpr std::uint64_t count() const { return bits_ >> 48 & 0x3ff; }
    // All from the first to this one, which is not before it.
    constexpr Passed through(std::uint64_t group) const {
        const std::uint64_t first_one = count() == 0 ? group : first();
        return Passed{first_one | (group + 1 - first_one) << 48};
    }

private:
    std::uint64_t bits_;
};

enum class FailureReason : std::uint8_t { out_of_frames, fragmented, quota, argument };
inline constexpr unsigned kFailureReasons = 4;

// One thread's tallies on one numa node. Only the slot's thread writes (plain load, store: no RMW, no shared line);
// anyone reads. They stay when the slot changes hands, so that sums over all slots never decrease.
template <class Env>
struct alignas(kCacheLineBytes) ThreadCounters {
    using Word = typename Env::template Atomic<std::uint64_t>;
    std::array<Word, kMaxOrder + 1> allocations;  // by order
    std::array<Word, kMaxOrder + 1> frees;        // by order
    std::array<Word, kFailureReasons> failures;
    Word cas_retries;
    Word numa_miss;
    Word numa_foreign;
    Word takes;
    Word numa_other;      // blocks of this numa node for a thread on a CPU of another
    Word interleave_hit;  // ... by a policy that interleaves, on the numa node whose turn it was
    Word hand_offs;       // blocks that the thread waited for and was given (hand_off.hpp); allocations, too
    std::uint64_t reserved[3];
};

static_assert(sizeof(Geometry) == 16);
static_assert(sizeof(ThreadSlot<ProductionEnv>) == 128);
static_assert(offsetof(ThreadSlot<ProductionEnv>, hint_work) == 16);
static_assert(offsetof(ThreadSlot<ProductionEnv>, waiting) == 24);
static_assert(sizeof(ProcessRecord<ProductionEnv>) == 128);
static_assert(offsetof(ProcessRecord<ProductionEnv>, held) == 64);
static_assert(offsetof(ProcessRecord<ProductionEnv>, presence) == 80);
static_assert(sizeof(Account<ProductionEnv>) == 16);
static_assert(offsetof(PoolHeader<ProductionEnv>, name) == 32);
static_assert(offsetof(PoolHeader<ProductionEnv>, geometry) == 96);
static_assert(offsetof(PoolHeader<ProductionEnv>, numa_node_count) == 112);
static_assert(offsetof(PoolHeader<ProductionEnv>, policy_nodes) == 128);
static_assert(offsetof(PoolHeader<ProductionEnv>, state) == 192);
static_assert(offsetof(PoolHeader<ProductionEnv>, accounting) == 208);
static_assert(offsetof(PoolHeader<ProductionEnv>, online_frames) == 224);
static_assert(offsetof(PoolHeader<ProductionEnv>, attention) == 256);
static_assert(offsetof(PoolHeader<ProductionEnv>, wait_tickets) == 320);
static_assert(sizeof(PoolHeader<ProductionEnv>) == 384);
static_assert(offsetof(NodeHeader<ProductionEnv>, geometry) == 32);
static_assert(sizeof(NodeHeader<ProductionEnv>) == 56);
static_assert(sizeof(HomeWords<ProductionEnv>) == 256);
static_assert(sizeof(ThreadCounters<ProductionEnv>) == 512);
static_assert(offsetof(ThreadCounters<ProductionEnv>, frees) == 200);
static_assert(offsetof(ThreadCounters<ProductionEnv>, failures) == 400);
static_assert(std::is_standard_layout_v<PoolHeader<ProductionEnv>>);

// ---------------------------------------------------------------------------------------------------------------------
// Offsets, in bytes from the region's start. Every part begins on a page, so that parts never touched cost no memory.

template <class Env>
struct NodeLayout {
    using Word = typename Env::template Atomic<std::uint64_t>;
    using EraWord = typename Env::template Atomic<std::uint16_t>;

    std::uint64_t leaf = 0;
    std::array<std::uint64_t, kMaxUpperLayers + 1> upper{};  // [1 .. top_layer]
    std::array<std::uint64_t, kMaxHintLevels + 1> hint{};    // [2 .. hint_levels]
    std::array<std::uint64_t, kMaxUpperLayers + 1> index{};  // [0 .. top_layer]
    std::array<std::uint64_t, kMaxUpperLayers + 1> era{};    // [0 .. top_layer], a word for each index entry
    std::uint64_t home = 0;
    std::uint64_t counters = 0;
    std::uint64_t region_bytes = 0;

    // Only for a plausible geometry.
    static constexpr NodeLayout of(const Geometry &geometry, std::uint32_t thread_slots) {
        NodeLayout layout;
        std::uint64_t end = kPageBytes;
        const auto place = [&end](std::uint64_t count, std::uint64_t bytes_each) {
            const std::uint64_t offset = end;
            end += round_up(count * bytes_each, kPageBytes);
            return offset;
        };
        layout.home = place(thread_slots, sizeof(HomeWords<Env>));
        layout.counters = place(thread_slots, sizeof(ThreadCounters<Env>));
        for (unsigned level = geometry.hint_levels(); level >= 2; --level)
            layout.hint[level] = place(geometry.word_count(level), sizeof(Word));
        for (unsigned layer = geometry.top_layer(); layer >= 1; --layer)
            layout.upper[layer] = place(geometry.word_count(layer), sizeof(Word));
        layout.leaf = place(geometry.word_count(0), sizeof(Word));
        for (unsigned layer = geometry.top_layer() + 1; layer-- > 0;)
            layout.index[layer] = place(geometry.index_entry_count(layer), sizeof(Word));
        for (unsigned layer = geometry.top_layer() + 1; layer-- > 0;)
            layout.era[layer] = place(geometry.index_entry_count(layer), sizeof(EraWord));
        layout.region_bytes = end;
        return layout;
    }
};

template <class Env>
struct PoolLayout {
    std::uint64_t accounts = 0;
    std::uint64_t processes = 0;
    std::uint64_t threads = 0;
    std::uint64_t region_bytes = 0;

    static constexpr PoolLayout of(std::uint32_t process_slots, std::uint32_t thread_slots) {
        PoolLayout layout;
        layout.accounts = kPageBytes;
        layout.processes = layout.accounts + round_up(kAccounts * sizeof(Account<Env>), kPageBytes);
        layout.threads = layout.processes + round_up(process_slots * sizeof(ProcessRecord<Env>), kPageBytes);
        layout.region_bytes = layout.threads + round_up(thread_slots * sizeof(ThreadSlot<Env>), kPageBytes);
        return layout;
    }
};

inline constexpr std::uint32_t kMaxProcessSlots = 0xff00;  // below kOfflineOwner
inline constexpr std::uint32_t kMaxThreadSlots = 0xffff;

// ---------------------------------------------------------------------------------------------------------------------
// Views: addresses in this process of what lies in shared memory. The geometry is the viewer's own trusted copy: an
// index computed from it stays inside the mapping whatever anybody scribbles.

template <class Env>
struct NodeView {
    using Word = typename Env::template Atomic<std::uint64_t>;
    using EraWord = typename NodeLayout<Env>::EraWord;

    Geometry geometry;
    NumaNode numa_node;
    std::uint32_t thread_slots = 0;
    unsigned top_layer = 0;
    unsigned largest_leaf_order = 0;  // of blocks in leaf words
    unsigned hint_levels = 0;
    std::array<std::uint64_t, kMaxUpperLayers + 1> word_count{};  // by layer: what geometry.word_count() says
    Word *leaf = nullptr;
    std::array<Word *, kMaxUpperLayers + 1> upper{};
    std::array<Word *, kMaxHintLevels + 1> hint{};
    std::array<Word *, kMaxUpperLayers + 1> index{};
    std::array<EraWord *, kMaxUpperLayers + 1> era{};
    ReferenceFormat reference_format;
    HomeWords<Env> *home = nullptr;
    ThreadCounters<Env> *counters = nullptr;

    // numa_nodes, instance_id: of the pool. A process that makes or takes references needs both, others may leave them
    // out.
    static NodeView at(void *region, const Geometry &geometry, NumaNode numa_node, std::uint32_t thread_slots,
                       std::uint32_t numa_nodes = kMaxNumaNodes, std::uint64_t instance_id = 0) {
        const auto layout = NodeLayout<Env>::of(geometry, thread_slots);
        auto *const bytes = static_cast<std::byte *>(region);
        const auto words = [bytes](std::uint64_t offset) { return reinterpret_cast<Word *>(bytes + offset); };
        NodeView view;
        view.geometry = geometry;
        view.numa_node = numa_node;
        view.thread_slots = thread_slots;
        view.top_layer = geometry.top_layer();
        view.largest_leaf_order = std::min<unsigned>(geometry.largest_order, kLeafOrder);
        view.hint_levels = geometry.hint_levels();
        for (unsigned layer = 0; layer <= view.top_layer; ++layer) view.word_count[layer] = geometry.word_count(layer);
        view.leaf = words(layout.leaf);
        for (unsigned layer = 1; layer <= view.top_layer; ++layer) view.upper[layer] = words(layout.upper[layer]);
        for (unsigned level = 2; level <= view.hint_levels; ++level) view.hint[level] = words(layout.hint[level]);
        for (unsigned layer = 0; layer <= view.top_layer; ++layer) {
            view.index[layer] = words(layout.index[layer]);
            view.era[layer] = reinterpret_cast<EraWord *>(bytes + layout.era[layer]);
        }
        view.reference_format = ReferenceFormat{geometry.frame_count, numa_nodes, instance_id};
        view.home = reinterpret_cast<HomeWords<Env> *>(bytes + layout.home);
        view.counters = reinterpret_cast<ThreadCounters<Env> *>(bytes + layout.counters);
        return view;
    }

    Word &index_entry(Block block) const { return index_entry(layer_of(block.order), block); }
    // layer: the block's.
    Word &index_entry(unsigned layer, Block block) const {
        return index[layer][block.base.value >> geometry.index_granule(layer)];
    }
    EraWord &era_word(unsigned layer, Block block) const {
        return era[layer][block.base.value >> geometry.index_granule(layer)];
    }
    bool contains(Block block) const {
        return block.order.value <= geometry.largest_order && block.base.value < geometry.frame_count &&
               (block.base.value & (block.order.frames() - 1)) == 0;
    }
};

template <class Env>
struct PoolView {
    PoolHeader<Env> *header = nullptr;
    Account<Env> *accounts = nullptr;
    ProcessRecord<Env> *processes = nullptr;
    ThreadSlot<Env> *threads = nullptr;
    std::uint32_t process_slots = 0;
    std::uint32_t thread_slots = 0;

    static PoolView at(void *region, std::uint32_t process_slots, std::uint32_t thread_slots) {
        const auto layout = PoolLayout<Env>::of(process_slots, thread_slots);
        auto *const bytes = static_cast<std::byte *>(region);
        return {reinterpret_cast<PoolHeader<Env> *>(bytes),
                reinterpret_cast<Account<Env> *>(bytes + layout.accounts),
                reinterpret_cast<ProcessRecord<Env> *>(bytes + layout.processes),
                reinterpret_cast<ThreadSlot<Env> *>(bytes + layout.threads),
                process_slots,
                thread_slots};
    }

    // How many thread slots a scan has to look at. Never more than there are, whatever the shared word says.
    std::uint32_t threads_in_use_bound() const {
        // acquire: the mark rises before a slot below it is claimed (thread_slots.hpp); whoever has seen something that
        // its user did sees a mark above it.
        const std::uint64_t mark = header->thread_high_water.load(std::memory_order_acquire);
        return mark < thread_slots ? static_cast<std::uint32_t>(mark) : thread_slots;
    }
    // The same of process slots with clients.
    std::uint32_t seats_bound() const {
        // seq_cst: a seat counts before its client can hold anything (account.hpp, charge-then-look).
        const std::uint64_t seats = header->seats.load(std::memory_order_seq_cst);
        return seats < process_slots ? static_cast<std::uint32_t>(seats) : process_slots;
    }
};

}  // namespace numacre::engine
