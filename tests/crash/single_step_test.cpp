// Kills a client at every single instruction of an operation. A child attaches to the pool of a live numacred, stops
// itself, and is traced through one call of the real library. Beside it a survivor (this process) has blocks of its
// own. At each instruction one child is killed while the survivor works, at once, beside the one that stands still and
// beside the corpse: it waits for nothing, gets nothing that is not free, and finds its bytes as it left them. Another
// one is killed and left to numacred as it lies. Whenever numacred has reaped, what the survivor holds is taken, to the
// frame, and all the rest can be had again as largest blocks. Beside the one that stands still, nothing is found that
// the daemon would take for damage.
//
// The first child of an operation is stepped through it, which tells the way; the others run to a breakpoint on it.
//
// usage: single_step_test [--every] [--seed N] [--only OPERATION [--at N]]
// Of an operation of more than 600 instructions 300 are drawn by the seed; --every takes them all. Needs
// $NUMACRE_RUNTIME_DIR (with_daemon.py) and leave to trace its children, else it says so and exits with 77.
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "numacre/inline.h"
#include "support/observer.hpp"
#include "support/step_failure.hpp"
#include "support/traced.hpp"

namespace {

using numacre::test::fail;
using numacre::test::now_at;
using numacre::test::Observer;
using numacre::test::Traced;
using numacre::test::wait_until;
using Way = Traced::Way;

constexpr std::size_t kFrame = 4096;
constexpr std::size_t kLeafWord = 64 * kFrame;
constexpr std::size_t kUpper = 2 * kLeafWord;  // the smallest block of an upper word
constexpr std::size_t kLargest = 4 << 20;
constexpr unsigned kBulk = 40;
constexpr unsigned kMoreThanCached = 300;
constexpr std::uint64_t kAllUpTo = 600;  // instructions
constexpr std::uint64_t kDrawn = 300;    // of more
// Of what calls nothing, and what this program does around it. A call of the library from there takes more.
constexpr std::uint64_t kInlineAtMost = 100;

// What a child tells the survivor.
struct Told {
    numacre_ref offered;
    std::size_t home_bytes;  // distance of its block from the region's first byte
};
Told *told;

std::size_t offset_of(numacre_pool *pool, const void *block) {
    void *base = nullptr;
    std::size_t bytes = 0;
    if (numacre_region(pool, 0, &base, &bytes) != 0) fail("numacre_region: %s", numacre_last_error());
    return static_cast<std::size_t>(static_cast<const char *>(block) - static_cast<const char *>(base));
}

// --- the one that stays ----------------------------------------------------------------------------------------------

class Survivor {
public:
    Survivor() {
        if (numacre_attach(nullptr, nullptr, &pool_) != 0) fail("attach: %s", numacre_last_error());
        // Calls that only children make: here for the dynamic linker, whose work is not to be stepped through.
        void *blocks[kBulk];
        if (numacre_alloc_bulk(pool_, kFrame, blocks, kBulk) != 0 || numacre_free_bulk(pool_, blocks, kBulk) != 0 ||
            numacre_alloc(pool_, kFrame, blocks) != 0 || numacre_free(pool_, blocks[0]) != 0 ||
            numacre_take(pool_, NUMACRE_REF_NULL, blocks) == 0 || numacre_hold(pool_, NUMACRE_REF_NULL, blocks) == 0 ||
            numacre_drop(pool_, nullptr) == 0)
            fail("warm-up: %s", numacre_last_error());
        settle(all_of(kLargest));  // with that, this thread's cache is given back
    }
    ~Survivor() {
        leave();
        numacre_detach(pool_);
    }

    // Frees and gets again all that it has, one by one: there is room for that, whoever stands still or lies dead
    // where.
    void work() {
        for (Held &each : held_) {
            release(each);
            each = stamped(allocate(each.bytes), each.bytes);
        }
    }

    // The same, while nobody else moves: then it changes nothing of what is taken.
    void work_beside_a_stopped(const Observer &observer) {
        if (const std::uint64_t damage = observer.damage(); damage != 0)
            fail("%ju words of a sound pool are taken for damage beside a stopped client", damage);
        const std::uint64_t before = observer.snapshot().used_frames;
        work();
        const std::uint64_t after = observer.snapshot().used_frames;
        // It may have given back what it caches.
        if (after != before && !caches_)
            fail("the survivor got frames of a live client: %ju taken, then %ju", before, after);
    }

    // The reference of a block that a child may take.
    numacre_ref offer() { return numacre_ref_of(pool_, offered_.address); }
    // What a child published and is freeing at this moment: whoever is first has it.
    void take_from_child() {
        void *block = nullptr;
        const int error = numacre_take(pool_, told->offered, &block);
        if (error == 0) hold(block, kFrame);
        if (error != 0 && error != -ESTALE) fail("take: %s", numacre_last_error());
    }
    // Holds what a child has published, and frees what the child holds.
    void hold_of_child() {
        if (numacre_hold(pool_, told->offered, &held_of_child_) != 0) fail("hold: %s", numacre_last_error());
    }
    void drop_of_child() {
        if (numacre_drop(pool_, held_of_child_) != 0) fail("drop: %s", numacre_last_error());
    }
    void free_offered() { free_block(std::exchange(offered_.address, nullptr)); }
    // All chunks but one that is not the one in which the child was last.
    void take_chunk_of_child() {
        std::vector<void *> chunks = all_of(kLargest);
        const std::size_t of_child = told->home_bytes / kLargest;
        std::partition(chunks.begin(), chunks.end(), [&](void *block) { return chunk_of(block) == of_child; });
        if (chunks.size() < 2 || chunk_of(chunks.front()) != of_child)
            fail("the child's chunk is not free, or no other");
        free_block(chunks.back());
        chunks.pop_back();
        for (void *const block : chunks) hold(block, kLargest);
    }
    // All but one block in the first chunk is its own, and it was last in the last chunk: only the hints can tell it of
    // that one.
    template <std::size_t bytes>
    void leave_one() {
        std::vector<void *> chunks = all_of(kLargest);
        std::sort(chunks.begin(), chunks.end());
        free_block(chunks.back());
        chunks.pop_back();
        for (void *const block : chunks) hold(block, kLargest);
        std::vector<void *> blocks = all_of(bytes);
        std::sort(blocks.begin(), blocks.end());
        free_block(blocks.front());
        free_block(blocks.back());
        blocks.back() = allocate(bytes);
        for (std::size_t i = 1; i < blocks.size(); ++i) hold(blocks[i], bytes);
    }
    // Memory runs out: all are asked to give their caches back, and what threads outside of calls cache is taken.
    void make_pressure() {
        for (void *const block : all_of(kLargest)) free_block(block);
    }
    // A block that it caches and does not use: whoever is short takes it.
    void hold_one_more() { hold(allocate(kFrame), kFrame); }
    void cache_it() {
        check(held_.back());
        if (numacre_free(pool_, held_.back().address) != 0) fail("the survivor cannot free: %s", numacre_last_error());
        held_.pop_back();
        caches_ = true;
    }

    void check_all_is_back(const Observer &observer) {
        if (std::exchange(caches_, false)) make_pressure();  // what nobody has taken
        if (held_.size() > kKept) check_what_is_left(observer);
        for (; held_.size() > kKept; held_.pop_back()) release(held_.back());
        std::size_t bytes = still_offered() ? offered_.bytes : 0;
        for (const Held &each : held_) bytes += each.bytes;
        const numacre::engine::NodeSnapshot found = observer.snapshot();
        if (found.damaged_entries != 0 || found.lost_blocks != 0)
            fail("%ju damaged index entries, %ju blocks have lost frames", found.damaged_entries, found.lost_blocks);
        if (found.used_frames * kFrame != bytes || found.granted_bytes != bytes)
            fail("%ju bytes are taken, %ju of them in blocks, but the survivor holds %zu", found.used_frames * kFrame,
                 found.granted_bytes, bytes);
        if (observer.threads() != 1) fail("%u thread slots are taken by one thread", observer.threads());
        leave();
        const std::vector<void *> chunks = all_of(kLargest);
        if (chunks.size() != observer.geometry().chunk_count())
            fail("%zu largest blocks can be had instead of %ju", chunks.size(), observer.geometry().chunk_count());
        settle(chunks);
    }

private:
    struct Held {
        char *address = nullptr;
        std::size_t bytes = 0;
    };
    static constexpr std::size_t kKept = 3;

    std::size_t chunk_of(const void *block) const { return offset_of(pool_, block) / kLargest; }
    bool still_offered() const { return numacre_usable_size(pool_, offered_.address) != 0; }

    void *allocate(std::size_t bytes) {
        void *block = nullptr;
        if (numacre_alloc_on(pool_, -1, bytes, NUMACRE_UNCACHED, &block) != 0)
            fail("the survivor cannot have %zu bytes: %s", bytes, numacre_last_error());
        return block;
    }
    void free_block(void *block) {
        if (numacre_free_uncached(pool_, block) != 0) fail("the survivor cannot free: %s", numacre_last_error());
    }
    void release(const Held &held) {
        check(held);
        free_block(held.address);
    }
    void hold(void *block, std::size_t bytes) { held_.push_back(stamped(block, bytes)); }

    // In each frame the address of that frame.
    static Held stamped(void *block, std::size_t bytes) {
        const Held held{static_cast<char *>(block), bytes};
        for (char *at = held.address; at < held.address + bytes; at += kFrame) std::memcpy(at, &at, sizeof at);
        return held;
    }
    static void check(const Held &held) {
        for (char *at = held.address; at < held.address + held.bytes; at += kFrame)
            if (std::memcmp(at, &at, sizeof at) != 0)
                fail("somebody wrote into the survivor's block of %zu bytes", held.bytes);
    }

    // What little is free can be had.
    void check_what_is_left(const Observer &observer) {
        const numacre::engine::NodeSnapshot found = observer.snapshot();
        for (const std::size_t bytes : {kUpper, kFrame}) {
            std::uint64_t expected = 0;
            for (unsigned order = 0; order <= observer.geometry().largest_order; ++order)
                expected += found.free_blocks[order] * ((kFrame << order) / bytes);
            const std::vector<void *> blocks = all_of(bytes);
            if (blocks.size() != expected)
                fail("%zu blocks of %zu bytes can be had, %ju are free", blocks.size(), bytes, expected);
            for (void *const block : blocks) free_block(block);
        }
    }
    std::vector<void *> all_of(std::size_t bytes) {
        std::vector<void *> blocks;
        void *block = nullptr;
        int error = 0;
        while ((error = numacre_alloc_on(pool_, -1, bytes, NUMACRE_UNCACHED, &block)) == 0) {
            for (std::size_t at = 0; at < bytes; at += kFrame) std::memset(static_cast<char *>(block) + at, 0, 8);
            blocks.push_back(block);  // and over somebody's stamps, if it was not free
        }
        if (error != -ENOMEM) fail("blocks of %zu bytes: %s", bytes, numacre_last_error());
        return blocks;
    }
    // Holds all of the pool, then what it always holds: at the same places each time, so that one child goes the way of
    // the other.
    void settle(std::vector<void *> chunks) {
        std::sort(chunks.begin(), chunks.end());
        free_block(chunks[0]);
        for (const std::size_t bytes : {kFrame, kUpper}) hold(allocate(bytes), bytes);
        offered_ = stamped(allocate(kFrame), kFrame);
        free_block(chunks[1]);
        hold(allocate(kLargest), kLargest);
        for (std::size_t chunk = 2; chunk < chunks.size(); ++chunk) free_block(chunks[chunk]);
    }
    void leave() {
        if (still_offered()) release(offered_);
        for (const Held &each : held_) release(each);
        held_.clear();
    }

    numacre_pool *pool_ = nullptr;
    std::vector<Held> held_;  // the first kKept stay
    bool caches_ = false;
    Held offered_;
    void *held_of_child_ = nullptr;
};

// --- the one that dies -----------------------------------------------------------------------------------------------

struct Child {
    numacre_pool *pool = nullptr;
    numacre_ref to_take = NUMACRE_REF_NULL;
    std::vector<void *> blocks;

    // False: no room.
    bool get(std::size_t bytes, bool cached = false) {
        void *block = nullptr;
        const int error =
            cached ? numacre_alloc(pool, bytes, &block) : numacre_alloc_on(pool, -1, bytes, NUMACRE_UNCACHED, &block);
        if (error == 0) blocks.push_back(block);
        if (error != 0 && error != -ENOMEM) fail("the child's allocation: %s", numacre_last_error());
        return error == 0;
    }
    void drop(bool cached = false) {
        const int error = cached ? numacre_free(pool, blocks.back()) : numacre_free_uncached(pool, blocks.back());
        if (error != 0) fail("the child's free: %s", numacre_last_error());
        blocks.pop_back();
    }
    void get_many(unsigned count, std::size_t bytes, bool cached = false) {
        while (count-- > 0)
            if (!get(bytes, cached)) fail("no room for the child's blocks of %zu bytes", bytes);
    }
    void get_all(std::size_t bytes) {
        while (get(bytes)) {
        }
    }
    void drop_all(bool cached = false) {
        while (!blocks.empty()) drop(cached);
    }
};

// The calls.
template <std::size_t bytes>
void allocate(Child &child) {
    child.get(bytes);
}
// Where it fits: found first, claimed then.
template <std::size_t bytes>
void allocate_compactly(Child &child) {
    void *block = nullptr;
    if (numacre_alloc_on(child.pool, -1, bytes, NUMACRE_COMPACT, &block) != 0) fail("%s", numacre_last_error());
    child.blocks.push_back(block);
}
void release(Child &child) {
    child.drop();
}
void allocate_cached(Child &child) {
    child.get(kFrame, true);
}
void release_cached(Child &child) {
    child.drop(true);
}
void allocate_inline(Child &child) {
    void *block = nullptr;
    if (numacre_alloc_inline(child.pool, kFrame, &block) != 0) fail("%s", numacre_last_error());
    child.blocks.push_back(block);
}
void release_inline(Child &child) {
    if (numacre_free_inline(child.pool, child.blocks.back()) != 0) fail("%s", numacre_last_error());
    child.blocks.pop_back();
}
void allocate_bulk(Child &child) {
    child.blocks.resize(kBulk);
    if (numacre_alloc_bulk(child.pool, kFrame, child.blocks.data(), kBulk) != 0) fail("%s", numacre_last_error());
}
void release_bulk(Child &child) {
    if (numacre_free_bulk(child.pool, child.blocks.data(), kBulk) != 0) fail("%s", numacre_last_error());
}
void publish_bulk(Child &child) {
    allocate_bulk(child);
    for (void *const block : child.blocks)
        if (numacre_ref_of(child.pool, block) == NUMACRE_REF_NULL) fail("no reference: %s", numacre_last_error());
}
// So often that from then on all of them go by one loop.
void get_used_to_bulk(Child &child) {
    for (int i = 0; i < 3; ++i) {
        allocate_bulk(child);
        release_bulk(child);
    }
}
void publish(Child &child) {
    told->offered = numacre_ref_of(child.pool, child.blocks[0]);
}
void publish_cached(Child &child) {
    allocate_cached(child);
    publish(child);
}
void take(Child &child) {
    if (numacre_take(child.pool, child.to_take, child.blocks.data()) != 0) fail("%s", numacre_last_error());
}

void hold(Child &child) {
    child.blocks.resize(1);
    if (numacre_hold(child.pool, child.to_take, child.blocks.data()) != 0) fail("%s", numacre_last_error());
}
void drop(Child &child) {
    if (numacre_drop(child.pool, child.blocks[0]) != 0) fail("%s", numacre_last_error());
}

// What comes before them.
void nothing(Child &) {}
template <std::size_t bytes>
void find_a_place(Child &child) {
    child.get(bytes);
    child.drop();
}
// And has tried for more: all hints say that nothing is free.
template <std::size_t bytes>
void use_up(Child &child) {
    child.get_all(bytes);
}
// So often that from then on nothing is called.
void get_used_to_it(Child &child) {
    for (int i = 0; i < 64; ++i) {
        allocate_cached(child);
        release_cached(child);
    }
    allocate_cached(child);
}
void fill_cache(Child &child) {
    child.get_many(kMoreThanCached, kFrame, true);
    while (child.blocks.size() > 1) child.drop(true);
}

struct Operation {
    const char *name;
    void (*prepare)(Child &);                // before the first step; nullptr: not even a first call
    void (*run)(Child &);                    // what is stepped through
    void (Survivor::*beside)() = nullptr;    // between the two
    void (Survivor::*at_death)() = nullptr;  // where the child stands before it is killed
    void (Survivor::*before)() = nullptr;    // before all that
    std::uint64_t most_instructions = ~std::uint64_t{0};
};

constexpr Operation kOperations[] = {
    {"allocate-frame", find_a_place<kFrame>, allocate<kFrame>},
    {"allocate-leaf-word", find_a_place<kLeafWord>, allocate<kLeafWord>},
    {"allocate-upper", find_a_place<kUpper>, allocate<kUpper>},
    {"allocate-largest", find_a_place<kLargest>, allocate<kLargest>},
    // All words of a group are full: hints are lowered and followed.
    {"allocate-after-search",
     [](Child &child) {
         constexpr std::size_t kGroup = 8 * kLeafWord;
         const auto group = [&] { return offset_of(child.pool, child.blocks.back()) / kGroup; };
         child.get(kFrame);
         const std::size_t first = group();
         // The first two chunks are the survivor's, in part.
         while (group() == first || group() < 2 * kLargest / kGroup) child.get(kFrame);
         child.get_many(kGroup / kFrame - 1, kFrame);  // the rest of one that was empty
     },
     allocate<kFrame>},
    // Marks of blocks that were freed lie above all that is free.
    {"allocate-over-stale-marks",
     [](Child &child) {
         child.get_all(kLeafWord);
         child.drop_all();
     },
     allocate<kLargest>},
    // The claim succeeds, but what is above it has gone to somebody as a whole.
    {"allocate-and-undo",
     [](Child &child) {
         child.get(kFrame);
         // Away from the first two chunks, which are the survivor's, in part.
         while (offset_of(child.pool, child.blocks.back()) < 2 * kLargest) child.get(kFrame);
         told->home_bytes = offset_of(child.pool, child.blocks.back());
         std::swap(child.blocks.front(), child.blocks.back());
         child.drop_all();
     },
     allocate<kFrame>, &Survivor::take_chunk_of_child},
    {"allocate-compactly", find_a_place<kFrame>, allocate_compactly<kFrame>},
    // Above what was used before.
    {"allocate-upper-compactly", find_a_place<kUpper>, allocate_compactly<kUpper>},
    {"allocate-in-vain", use_up<kFrame>, allocate<kFrame>},
    {"allocate-first-call", nullptr, allocate<kFrame>},

    {"free-frame", allocate<kFrame>, release},
    {"free-leaf-word", allocate<kLeafWord>, release},
    {"free-upper", allocate<kUpper>, release},
    {"free-largest", allocate<kLargest>, release},
    {"free-and-raise-hints", use_up<kFrame>, release},
    {"free-upper-and-raise-hints", use_up<kUpper>, release},

    {"free-last-frame", use_up<kFrame>, release, nullptr, nullptr, &Survivor::leave_one<kFrame>},
    {"free-last-upper", use_up<kUpper>, release, nullptr, nullptr, &Survivor::leave_one<kUpper>},

    {"cached-allocate", allocate_cached, allocate_cached},
    {"cached-allocate-refill", nothing, allocate_cached},
    {"cached-allocate-under-pressure",
     [](Child &child) {
         child.get_many(kBulk, kFrame, true);
         child.drop_all(true);
     },
     allocate_cached, &Survivor::make_pressure},
    // More than one call gives back.
    {"cached-allocate-answers-in-parts", fill_cache, allocate_cached, &Survivor::make_pressure,
     &Survivor::make_pressure},
    {"cached-allocate-while-others-take-back", fill_cache, allocate_cached, nullptr, &Survivor::make_pressure},
    {"cached-free-while-others-take-back", fill_cache, release_cached, nullptr, &Survivor::make_pressure},
    {"allocate-what-another-caches", use_up<kFrame>, allocate<kFrame>, &Survivor::cache_it, nullptr,
     &Survivor::hold_one_more},
    {"cached-free", allocate_cached, release_cached},
    {"cached-free-published", publish_cached, release_cached},
    {"cached-free-beyond-cache", fill_cache, release_cached},
    {"inline-allocate", get_used_to_it, allocate_inline, nullptr, nullptr, nullptr, kInlineAtMost},
    {"inline-free", get_used_to_it, release_inline, nullptr, nullptr, nullptr, kInlineAtMost},
    {"bulk-allocate", nothing, allocate_bulk},
    {"bulk-free", allocate_bulk, release_bulk},
    {"bulk-allocate-cached", get_used_to_bulk, allocate_bulk},
    {"bulk-free-into-cache",
     [](Child &child) {
         get_used_to_bulk(child);
         allocate_bulk(child);
     },
     release_bulk},
    // What has a reference goes to no cache.
    {"bulk-free-past-cache", publish_bulk, release_bulk},

    {"publish", allocate<kFrame>, publish},
    {"publish-upper", allocate<kUpper>, publish},
    {"take", nothing, take},
    {"hold", nothing, hold},
    {"hold-what-was-held",
     [](Child &child) {
         hold(child);
         drop(child);
     },
     hold},
    {"hold-beside-free",
     [](Child &child) {
         hold(child);
         drop(child);
     },
     hold, nullptr, &Survivor::free_offered},
    {"drop", hold, drop},
    {"drop-last", hold, drop, &Survivor::free_offered},
    {"drop-beside-free", hold, drop, nullptr, &Survivor::free_offered},
    {"free-held",
     [](Child &child) {
         child.get(kFrame);
         publish(child);
     },
     release, &Survivor::hold_of_child, &Survivor::drop_of_child},
    {"free-while-taken",
     [](Child &child) {
         child.get(kFrame);
         publish(child);
     },
     release, nullptr, &Survivor::take_from_child},
    {"cached-free-while-taken", publish_cached, release_cached, nullptr, &Survivor::take_from_child},
};

// Attached, prepared, and stopped before the operation; stops once more after it.
void be_child(const Operation &operation, numacre_ref to_take) {
    Child child;
    child.to_take = to_take;
    child.blocks.reserve(1 << 14);
    child.blocks.resize(1);
    child.blocks.clear();
    if (numacre_attach(nullptr, nullptr, &child.pool) != 0) fail("the child's attach: %s", numacre_last_error());
    if (operation.prepare != nullptr) {
        find_a_place<kFrame>(child);
        operation.prepare(child);
    }
    Traced::pause();
    operation.run(child);
    Traced::pause();
}

// --- the test --------------------------------------------------------------------------------------------------------

class Test {
public:
    explicit Test(const numacre::test::StepOptions &options) : options_(options), alone_(observer_.clients()) {}

    void run() {
        std::printf("replay: single_step_test --seed %ju%s\n", options_.seed, options_.every ? " --every" : "");
        for (const Operation &operation : kOperations)
            if (options_.only.empty() || options_.only == operation.name) kill_in(operation);
        if (kills_ == 0) fail("there is no operation '%s'", options_.only.c_str());
        std::printf(
            "%ju instructions, %ju kills; after %ju of them the survivor had done its work before numacred had: "
            "everything came back\n",
            instructions_, kills_, survivor_first_);
    }

private:
    void kill_in(const Operation &operation) {
        // A child goes another way if it finds the pool, or its heap, otherwise than the first did: these three get
        // used to the operation, and nothing grows later.
        Way way;
        way.reserve(1 << 16);
        for (int child = 0; child < 3; ++child) {
            way.clear();
            kill_at(operation, 0, way, true);
        }
        const std::uint64_t length = way.size();
        if (length > operation.most_instructions) fail("%ju instructions: it is not the way that it is to be", length);
        const std::uint64_t places = options_.every || length <= kAllUpTo ? length : kDrawn;
        elsewhere_ = 0;
        // One instruction of each of so many equal parts.
        std::mt19937_64 random{options_.seed};
        for (std::uint64_t part = 0; part < places; ++part) {
            const std::uint64_t first = part * length / places;
            const std::uint64_t drawn = first + random() % ((part + 1) * length / places - first);
            const std::uint64_t instructions = options_.has_at ? std::min(options_.at, length - 1) : drawn;
            for (const bool survivor_works : {true, false}) kill_at(operation, instructions, way, survivor_works);
            if (options_.has_at) return;
        }
        std::printf("%-32s %6ju instructions, killed at %5ju of them", operation.name, length, places);
        if (elsewhere_ != 0) std::printf(", %ju times another way was taken", elsewhere_);
        std::puts("");
        std::fflush(stdout);
        instructions_ += length;
    }

    // way: where the operation comes by, found out by stepping through it if that is not known yet.
    void kill_at(const Operation &operation, std::uint64_t instructions, Way &way, bool survivor_works) {
        std::snprintf(now_at, sizeof now_at, "--only %s --at %ju", operation.name, instructions);
        if (operation.before != nullptr) (survivor_.*operation.before)();
        const numacre_ref offered = survivor_.offer();
        Traced child{[&] { be_child(operation, offered); }};
        if (operation.beside != nullptr) (survivor_.*operation.beside)();
        if (way.empty())
            child.walk(way);
        else
            elsewhere_ += !child.go(way, instructions);
        if (operation.at_death != nullptr) (survivor_.*operation.at_death)();
        if (survivor_works) survivor_.work_beside_a_stopped(observer_);
        child.kill();
        if (survivor_works) {
            survivor_.work();
            survivor_first_ += observer_.clients() > alone_;
        }
        wait_for_reaping();
        survivor_.check_all_is_back(observer_);
        ++kills_;
    }

    void wait_for_reaping() {
        wait_until("the dead child is reaped", [&] { return observer_.clients() <= alone_; });
    }

    numacre::test::StepOptions options_;
    Survivor survivor_;
    Observer observer_{"default"};
    unsigned alone_;
    std::uint64_t instructions_ = 0;
    std::uint64_t kills_ = 0;
    std::uint64_t survivor_first_ = 0;
    std::uint64_t elsewhere_ = 0;  // of one operation: kills behind its end, which was reached otherwise
};

}  // namespace

int main(int argc, char **argv) {
    // Tracer and traced take turns: on one CPU that costs half.
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(static_cast<unsigned>(sched_getcpu()), &here);
    sched_setaffinity(0, sizeof here, &here);
    void *const shared = mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) fail("mmap: %s", std::strerror(errno));
    told = static_cast<Told *>(shared);
    Test test{numacre::test::step_options_of(argc, argv)};
    try {
        test.run();
    } catch (const numacre::test::CannotTrace &reason) {
        std::printf("SKIP: %s\n", reason.what());
        std::exit(numacre::test::kSkipped);
    } catch (const numacre::test::TraceFailed &reason) {
        fail("%s", reason.what());
    }
    return 0;
}
