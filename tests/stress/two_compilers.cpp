// One source, built by two compilers (CMakeLists.txt), at work on one region (two_compilers_test.py). What the builds
// share is what processes share: words, offsets, and the order in which they are written. Whatever one of them
// understands otherwise hands out a block twice, loses one, or shows one process another's bytes.
//
//   two_compilers format FILE                                       makes the region
//   two_compilers work FILE PROCESS PROCESSES SECONDS SEED [fault]  allocates, frees, hands over; frees all before it
//   ends two_compilers check FILE                                        all is free, and in largest blocks
//
// Exit status 0, or 1 and a line that says what is wrong. fault: this build believes that the leaf words lie elsewhere.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "numacre/shm/chunks.hpp"
#include "numacre/shm/format.hpp"
#include "numacre/shm/snapshot.hpp"
#include "numacre/shm/validate.hpp"
#include "support/actor.hpp"
#include "support/cached_block.hpp"

namespace numacre {

using namespace engine;
namespace {

using test::into_cache;
using test::is_cached;
using test::look_at;
using test::out_of_cache;

#ifdef __clang__
constexpr unsigned kBuild = 1;
constexpr const char *kBuildName = "clang";
#else
constexpr unsigned kBuild = 0;
constexpr const char *kBuildName = "gcc";
#endif

// Two upper layers, and few enough frames that the processes meet all the time.
constexpr Geometry kGeometry{.frame_bytes = 256, .largest_order = 10, .frame_count = 4096};
constexpr std::uint32_t kProcesses = 16;
constexpr std::uint32_t kThreads = 16;
constexpr std::uint64_t kInstance = 0x2c0'ffee;
constexpr unsigned kCachedOrders = 4;
constexpr unsigned kMailboxes = 4;

[[noreturn]] void fault(const std::string &what) {
    std::printf("FAULT in %s build: %s\n", kBuildName, what.c_str());
    std::fflush(stdout);
    std::_Exit(1);
}

std::string to_text(Block block) {
    return "order " + std::to_string(block.order.value) + " at " + std::to_string(block.base.value);
}

struct Control {
    std::atomic<std::uint64_t> ready;                                        // how many processes have arrived
    alignas(64) std::array<std::atomic<std::uint64_t>, kMailboxes> mailbox;  // References on their way; 0: empty
};
static_assert(sizeof(Control) <= kPageBytes);

struct Region {
    explicit Region(const char *path) {
        const int file = open(path, O_RDWR);
        if (file < 0) fault(std::string("cannot open ") + path);
        void *const memory = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (memory == MAP_FAILED) fault("cannot map the region");
        auto *const start = static_cast<std::byte *>(memory);
        control = reinterpret_cast<Control *>(start);
        pool_memory = start + kPageBytes;
        node_memory = pool_memory + pool_bytes();
        data = node_memory + node_bytes();
        pool = PoolView<ProductionEnv>::at(pool_memory, kProcesses, kThreads);
        node = NodeView<ProductionEnv>::at(node_memory, kGeometry, NumaNode{0}, kThreads);
    }

    static std::uint64_t pool_bytes() { return PoolLayout<ProductionEnv>::of(kProcesses, kThreads).region_bytes; }
    static std::uint64_t node_bytes() { return NodeLayout<ProductionEnv>::of(kGeometry, kThreads).region_bytes; }
    static std::uint64_t bytes() { return kPageBytes + pool_bytes() + node_bytes() + kGeometry.capacity_bytes(); }

    void format() const {
        format_pool_region<ProductionEnv>(pool_memory, "compilers", kInstance, kGeometry, 1, kProcesses, kThreads);
        format_node_region<ProductionEnv>(node_memory, kGeometry, NumaNode{0}, kInstance, kThreads);
        Chunks<ProductionEnv> chunks{node, pool};
        for (std::uint64_t chunk = 0; chunk < kGeometry.chunk_count(); ++chunk)
            if (!chunks.bring_online(chunk)) fault("a chunk does not come online");
    }

    void validate() const {
        if (validate_pool_region<ProductionEnv>(pool_memory, {kGeometry, kInstance, pool_bytes()}, kProcesses,
                                                kThreads) != Errc::ok)
            fault("the pool region is not what this build expects");
        if (validate_node_region<ProductionEnv>(node_memory, {kGeometry, kInstance, node_bytes()}, NumaNode{0},
                                                kThreads) != Errc::ok)
            fault("the node region is not what this build expects");
        if (std::uint64_t there = reinterpret_cast<NodeHeader<ProductionEnv> *>(node_memory)->region_bytes;
            there != node_bytes())
            fault("the node region has " + std::to_string(there) + " bytes, this build expects " +
                  std::to_string(node_bytes()));
    }

    Actor actor(unsigned number) const { return test::seat_actor(pool, number, number); }

    Control *control;
    std::byte *pool_memory;
    std::byte *node_memory;
    std::byte *data;
    PoolView<ProductionEnv> pool;
    NodeView<ProductionEnv> node;
};

// All of a block's words follow from its stamp, which is the first of them.
class Pattern {
public:
    explicit Pattern(const Region &region) : data_(region.data) {}

    void fill(Block block, std::uint64_t stamp) const {
        std::uint64_t *const words = words_of(block);
        for (std::uint64_t i = 0; i < count_of(block); ++i) words[i] = stamp + i * kStep;
    }
    void verify(Block block, std::uint64_t stamp) const {
        const std::uint64_t *const words = words_of(block);
        for (std::uint64_t i = 0; i < count_of(block); ++i)
            if (words[i] != stamp + i * kStep)
                fault(to_text(block) + ", word " + std::to_string(i) + ": not what its owner (" + who(stamp) +
                      ") wrote; now from " + who(words[i] - i * kStep));
    }
    std::uint64_t stamp_of(Block block) const { return words_of(block)[0]; }

    static std::uint64_t stamp(unsigned process, std::uint64_t number) {
        return std::uint64_t{kBuild} << 63 | std::uint64_t{process} << 48 | number;
    }
    static unsigned build_of(std::uint64_t stamp) { return static_cast<unsigned>(stamp >> 63); }
    static std::string who(std::uint64_t stamp) {
        return "process " + std::to_string(stamp >> 48 & 0x7fff) + " of build " + std::to_string(build_of(stamp));
    }

private:
    static constexpr std::uint64_t kStep = 0x9e37;
    static std::uint64_t count_of(Block block) { return kGeometry.bytes_of(block.order.frames()) / 8; }
    std::uint64_t *words_of(Block block) const {
        return reinterpret_cast<std::uint64_t *>(data_ + kGeometry.bytes_of(block.base.value));
    }
    std::byte *data_;
};

class Worker {
public:
    Worker(const Region &region, unsigned process, unsigned processes, std::uint64_t seed)
        : region_(region),
          pattern_(region),
          buddy_(region.node, region.pool),
          actor_(region.actor(process)),
          keep_(kGeometry.frame_count * 9 / 10 / processes),
          random_(seed * 1000 + process) {}

    void step() {
        const unsigned kind = random_() % 100;
        const bool full = frames_held_ > keep_;
        if (kind < 35)
            full ? free_one() : allocate_one();
        else if (kind < 60)
            free_one();
        else if (kind < 67)
            full ? free_several() : allocate_several();
        else if (kind < 72)
            free_several();
        else if (kind < 78)
            put_into_cache();
        else if (kind < 84)
            take_from_cache();
        else if (kind < 87)
            full ? flush() : refill();
        else if (kind < 88)
            flush();
        else if (kind < 93)
            publish_one();
        else if (kind < 98)
            take_one();
        else
            withdraw_one();
        ++steps_;
    }

    void give_all_back() {
        while (!published_.empty()) withdraw_one();
        flush();
        while (!held_.empty()) free_one();
    }

    std::uint64_t steps() const { return steps_; }
    std::uint64_t blocks() const { return stamps_; }
    std::uint64_t taken_from_the_other_build() const { return taken_from_the_other_build_; }

private:
    struct Held {
        Block block;
        std::uint64_t stamp;
    };

    void hold(Block block) {
        const std::uint64_t stamp = Pattern::stamp(actor_.process.value, ++stamps_);
        pattern_.fill(block, stamp);
        held_.push_back({block, stamp});
        frames_held_ += block.order.frames();
    }
    Held let_go() {
        std::swap(held_[random_() % held_.size()], held_.back());
        const Held held = held_.back();
        held_.pop_back();
        frames_held_ -= held.block.order.frames();
        pattern_.verify(held.block, held.stamp);
        return held;
    }
    IndexEntry entry_of(Block block) {
        Block found;
        IndexEntry entry;
        if (buddy_.find_entry(block.base, found, entry) != Errc::ok || found != block ||
            entry.owner() != actor_.process)
            fault("the index does not say that " + to_text(block) + " is ours");
        return entry;
    }
    Order small_order() { return Order{static_cast<std::uint32_t>(random_() % kCachedOrders)}; }

    void allocate_one() {
        const unsigned limit = random_() % 16 == 0 ? kGeometry.largest_order : 5;
        const Order order{static_cast<std::uint32_t>(random_() % (limit + 1))};
        Block block;
        const Errc result = buddy_.allocate(actor_, order, {}, block);
        if (result == Errc::out_of_frames) return;
        if (result != Errc::ok || block.order != order) fault(std::string("allocate says ") + error_row(result).name);
        hold(block);
    }
    void free_one() {
        if (held_.empty()) return;
        const Held held = let_go();
        Block freed;
        const Errc result = buddy_.free(actor_, held.block.base, freed);
        if (result != Errc::ok || freed != held.block)
            fault("free of " + to_text(held.block) + " says " + error_row(result).name);
    }
    void allocate_several() {
        const Order order = small_order();
        std::array<FrameIndex, 8> bases{};
        const unsigned got =
            buddy_.allocate_many(actor_, order, BlockState::owned, {}, bases.data(), 1 + random_() % 8);
        for (unsigned i = 0; i < got; ++i) hold(Block{bases[i], order});
    }
    void free_several() {
        std::vector<FrameIndex> bases;
        for (unsigned i = 0; i < 8 && !held_.empty(); ++i) {
            const Held held = let_go();
            if (held.block.order.value <= kLeafOrder) {
                bases.push_back(held.block.base);
                continue;
            }
            held_.push_back(held);
            frames_held_ += held.block.order.frames();
        }
        give_back(bases, BlockState::owned);
    }
    void give_back(std::vector<FrameIndex> &bases, BlockState state) {
        std::sort(bases.begin(), bases.end());
        const auto count = static_cast<unsigned>(bases.size());
        if (const unsigned freed = buddy_.free_many(actor_, state, bases.data(), count); freed != count)
            fault("free_many freed " + std::to_string(freed) + " of our " + std::to_string(count) + " blocks");
    }

    void put_into_cache() {
        if (held_.empty()) return;
        const Held held = let_go();
        if (held.block.order.value >= kCachedOrders) {
            held_.push_back(held);
            frames_held_ += held.block.order.frames();
            return;
        }
        auto &slot = region_.node.index_entry(held.block);
        const IndexEntry entry = look_at(slot);
        if (!entry.is_private(IndexEntry::private_to(actor_.process)))
            fault(to_text(held.block) + " is ours and cannot be cached");
        into_cache(slot, entry, actor_.thread);
        cached_[held.block.order.value].push_back(held);
    }
    void take_from_cache() {
        auto &cache = cached_[random_() % kCachedOrders];
        if (cache.empty()) return;
        const Held held = cache.back();
        cache.pop_back();
        auto &slot = region_.node.index_entry(held.block);
        const IndexEntry entry = look_at(slot);
        const IndexEntry owned = IndexEntry::owned(actor_.process, held.block.order, 0, {});
        if (!is_cached(entry, owned, actor_.thread))
            fault(to_text(held.block) + " is in our cache, the index does not say so");
        out_of_cache(slot, entry, owned, actor_.thread);
        pattern_.verify(held.block, held.stamp);
        held_.push_back(held);
        frames_held_ += held.block.order.frames();
    }
    void refill() {
        const Order order = small_order();
        std::array<FrameIndex, 8> bases{};
        const unsigned got = buddy_.allocate_many(actor_, order, BlockState::cached, {}, bases.data(), 8);
        for (unsigned i = 0; i < got; ++i) {
            const Block block{bases[i], order};
            const std::uint64_t stamp = Pattern::stamp(actor_.process.value, ++stamps_);
            pattern_.fill(block, stamp);
            cached_[order.value].push_back({block, stamp});
        }
    }
    void flush() {
        std::vector<FrameIndex> bases;
        for (auto &cache : cached_) {
            for (const Held &held : cache) {
                pattern_.verify(held.block, held.stamp);
                bases.push_back(held.block.base);
            }
            cache.clear();
        }
        give_back(bases, BlockState::cached);
    }

    void publish_one() {
        if (held_.empty() || published_.size() >= kMailboxes) return;
        const Held held = let_go();
        const IndexEntry entry = entry_of(held.block);
        const Reference reference = buddy_.publish(held.block, entry);
        std::uint64_t nothing = 0;
        // release: what lies in the block. (The reference alone would do: EDGE publish.)
        region_.control->mailbox[random_() % kMailboxes].compare_exchange_strong(nothing, reference.bits(),
                                                                                 std::memory_order_acq_rel);
        published_.push_back({held, entry.generation()});
    }
    void take_one() {
        const Reference reference{
            region_.control->mailbox[random_() % kMailboxes].exchange(0, std::memory_order_acq_rel)};
        if (reference.bits() == 0) return;
        Block block;
        const Errc result = buddy_.take(actor_, reference, {}, block);
        if (result == Errc::stale_ref) return;  // withdrawn
        const Block named = region_.node.reference_format.block(reference);
        if (result != Errc::ok || block != named)
            fault("take of " + to_text(named) + " says " + error_row(result).name);
        const std::uint64_t stamp = pattern_.stamp_of(block);
        pattern_.verify(block, stamp);
        if (Pattern::build_of(stamp) != kBuild) ++taken_from_the_other_build_;
        hold(block);
    }
    // Ours again, unless somebody took it.
    void withdraw_one() {
        if (published_.empty()) return;
        std::swap(published_[random_() % published_.size()], published_.back());
        const auto [held, generation] = published_.back();
        published_.pop_back();
        const auto entry = IndexEntry::owned(actor_.process, held.block.order, generation, {}).published();
        IndexEntry now = entry;
        if (!buddy_.withdraw(held.block, now)) return;
        pattern_.verify(held.block, held.stamp);
        held_.push_back(held);
        frames_held_ += held.block.order.frames();
    }

    const Region &region_;
    Pattern pattern_;
    Buddy<ProductionEnv> buddy_;
    Actor actor_;
    std::uint64_t keep_;
    std::mt19937_64 random_;
    std::vector<Held> held_;
    std::array<std::vector<Held>, kCachedOrders> cached_;
    std::vector<std::pair<Held, std::uint32_t>> published_;
    std::uint64_t frames_held_ = 0;
    std::uint64_t stamps_ = 0;
    std::uint64_t steps_ = 0;
    std::uint64_t taken_from_the_other_build_ = 0;
};

int work(Region &region, unsigned process, unsigned processes, double seconds, std::uint64_t seed) {
    region.validate();
    Worker worker{region, process, processes, seed};
    region.control->ready.fetch_add(1);
    using Clock = std::chrono::steady_clock;
    const auto patience = Clock::now() + std::chrono::seconds{60};
    while (region.control->ready.load() < processes) {
        if (Clock::now() > patience) fault("the other processes have not come");
        usleep(1000);
    }
    const auto end = Clock::now() + std::chrono::duration<double>{seconds};
    while (Clock::now() < end)
        for (int i = 0; i < 100; ++i) worker.step();
    worker.give_all_back();
    std::printf("%s process %u: %llu steps, %llu patterns, %llu blocks from the other build\n", kBuildName, process,
                static_cast<unsigned long long>(worker.steps()), static_cast<unsigned long long>(worker.blocks()),
                static_cast<unsigned long long>(worker.taken_from_the_other_build()));
    return 0;
}

int check(const Region &region) {
    region.validate();
    NodeSnapshot snapshot;
    scan_node<ProductionEnv>(region.node, snapshot, {});
    if (snapshot.used_frames != 0) fault(std::to_string(snapshot.used_frames) + " frames are lost");
    if (snapshot.damaged_entries != 0) fault(std::to_string(snapshot.damaged_entries) + " index entries are damaged");
    if (snapshot.lost_blocks != 0) fault(std::to_string(snapshot.lost_blocks) + " blocks have lost frames");
    for (std::uint32_t thread = 0; thread < kThreads; ++thread)
        if (region.pool.threads[thread].intent.load() != 0)
            fault("an intent is left in slot " + std::to_string(thread));
    const Pattern pattern{region};
    Buddy<ProductionEnv> buddy{region.node, region.pool};
    const Actor actor = region.actor(1);
    for (std::uint64_t chunk = 0; chunk < kGeometry.chunk_count(); ++chunk) {
        Block block;
        if (buddy.allocate(actor, kGeometry.largest(), {}, block) != Errc::ok)
            fault("only " + std::to_string(chunk) + " largest blocks can be had, all is free");
        pattern.fill(block, Pattern::stamp(1, chunk));
    }
    for (std::uint64_t chunk = 0; chunk < kGeometry.chunk_count(); ++chunk) {
        const Block block{FrameIndex{chunk << kGeometry.largest_order}, kGeometry.largest()};
        pattern.verify(block, pattern.stamp_of(block));
        Block freed;
        if (buddy.free(actor, block.base, freed) != Errc::ok) fault("a largest block cannot be freed");
    }
    return 0;
}

}  // namespace
}  // namespace numacre

int main(int argc, char **argv) {
    using namespace numacre;
    const std::string what = argc > 2 ? argv[1] : "";
    if (what == "format" && argc == 3) {
        const int file = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
        if (file < 0 || ftruncate(file, static_cast<off_t>(Region::bytes())) != 0) fault("cannot make the region");
        close(file);
        Region{argv[2]}.format();
        return 0;
    }
    if (what == "check" && argc == 3) return check(Region{argv[2]});
    if (what == "work" && (argc == 7 || argc == 8)) {
        Region region{argv[2]};
        // A cache line of padding before the leaf words: what a build with another layout would do.
        if (argc == 8) region.node.leaf += kCacheLineBytes / sizeof *region.node.leaf;
        return work(region, static_cast<unsigned>(std::strtoul(argv[3], nullptr, 10)),
                    static_cast<unsigned>(std::strtoul(argv[4], nullptr, 10)), std::strtod(argv[5], nullptr),
                    std::strtoull(argv[6], nullptr, 0));
    }
    std::fprintf(stderr, "usage: %s format FILE | work FILE PROCESS PROCESSES SECONDS SEED [fault] | check FILE\n",
                 argv[0]);
    return 2;
}
