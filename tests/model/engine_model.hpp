// The product's allocator (shm/buddy/, recovery.hpp; the very source that clients run) under the explorer: clients
// with bounded scripts, optionally deaths and a recovering daemon, and what must hold in every state.
//
// Trees are small in what can happen, not in their words: orders 5, 6 and 7 of a pool of 128 frames are a tree of seven
// blocks over real 64-bit leaf words and a real upper word; or most frames are taken beforehand
// (Setup::taken).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "explorer.hpp"
#include "numacre/shm/buddy.hpp"
#include "numacre/shm/chunks.hpp"
#include "numacre/shm/fit.hpp"
#include "numacre/shm/format.hpp"
#include "numacre/shm/hand_off.hpp"
#include "numacre/shm/recovery.hpp"
#include "support/cached_block.hpp"

namespace numacre::model {

using namespace engine;

using test::into_cache;
using test::is_cached;
using test::is_like;
using test::look_at;
using test::out_of_cache;

struct Client {
    std::uint16_t process = 1;       // 1, 2, ...; clients may share one. 0 is the daemon
    std::vector<unsigned> orders{};  // what it may allocate
    unsigned operations = 2;         // how many allocations and frees, in any order, then it ends
    unsigned held_max = 2;
    std::vector<unsigned> holds{};   // orders of blocks that it has from the beginning, allocated in this sequence
    std::vector<unsigned> caches{};  // orders of blocks that are in its cache from the beginning
    std::vector<unsigned> used{};    // orders of blocks that it had and freed before anybody held anything
    // Instead of `operations`: these and no others, in this sequence. An order, or one of the below.
    std::vector<int> script{};
    // Decides where it likes to search. 0: 2 * its number + 1, so that all like the same half of the pool.
    std::uint16_t thread_slot = 0;
    bool mortal = true;                                       // with Options::kills_max
    int home = -1;                                            // the leaf word in which it looks first; -1: none yet
    std::vector<std::pair<unsigned, std::uint64_t>> homes{};  // the same by order
    // It is a process that this client (by number) has forked, and that nobody refuses what its private memory says: it
    // acts in its parent's slots, and has a copy of what that holds and caches. The daemon does not know it.
    int forked_from = -1;
};

inline constexpr int kFreeFirst = -1;    // frees the first block that it holds
inline constexpr int kGive = -2;         // puts the first block that it holds into the mailbox
inline constexpr int kTake = -3;         // becomes the owner of what is in the mailbox
inline constexpr int kCache = -4;        // frees the first block that it holds into its cache
inline constexpr int kUncache = -5;      // allocates the first block of its cache
inline constexpr int kFlush = -6;        // gives back all of its cache, in one call
inline constexpr int kFreeAll = -7;      // frees all that it holds, in one call
inline constexpr int kFlushOrFree = -8;  // ... and all of its cache
// What it gave (kGive) and what may have been taken by now:
inline constexpr int kWithdraw = -9;        // wants it back
inline constexpr int kFreeGiven = -10;      // frees it
inline constexpr int kBulkFreeGiven = -11;  // frees it by a bulk call
// The block that all threads of a process want to get rid of (Setup::shared):
inline constexpr int kFreeShared = -12;     // frees it, checked
inline constexpr int kFreeUnchecked = -13;  // frees it, on its word that nobody else does
inline constexpr int kCacheShared = -14;    // ... into its cache
inline constexpr int kUncacheShared = -15;  // allocates it, if it is in its cache
inline constexpr int kFlushShared = -16;    // gives it back, if it is in its cache
inline constexpr int kAwaitCached = -17;    // waits until all have done kCacheShared
inline constexpr int kAwaitFree = -18;      // waits until it is free
inline constexpr int kAwaitTaken = -19;     // waits until another process has it
// As kCacheShared, kUncacheShared, but between its look at the entry and its store it stops until another process has
// the block.
inline constexpr int kCacheSlowly = -20;
inline constexpr int kUncacheSlowly = -21;
inline constexpr int kRelease = -22;  // frees the first block that it holds as clients do, who look for those who wait
inline constexpr int kReferShared = -23;  // makes a reference to the shared block, if it is its process's, and mails it
inline constexpr int kNudge = -24;        // nudges all who wait, as the daemon does when it has released something
// Waits for a block of an order: kWait + order; looks whether there is one and gives up: kWaitBriefly + order.
inline constexpr int kWait = 300;
inline constexpr int kWaitBriefly = 400;
// Two blocks of an order in one call: kTwo + order; the same into the cache: kRefill + order.
inline constexpr int kTwo = 100;
inline constexpr int kRefill = 200;
// A block of an order where it fits best, if there is one: kFitting + order.
inline constexpr int kFitting = 500;

// What an operator does with chunk 0 (or a unit of several: Setup::unit_chunks), in a thread of its own.
enum class ChunkStep : std::uint8_t { drain, undrain, offline, online };

// As the daemon's ledger has them.
enum class UnitState : std::uint8_t { offline, filling, opening, online, closing, closed };

// Has died before anything else happens, with this intent and nothing done yet. Its thread slot is its process slot's
// number: not a client's.
struct Corpse {
    std::uint16_t process = 0;
    IntentKind kind = IntentKind::allocate;
    Block block{};
    std::uint16_t thread_slot() const { return static_cast<std::uint16_t>(2 * process); }  // no client's
};

inline constexpr ProcessSlot kTakesForEver{kMaxProcessSlots};

struct Setup {
    Geometry geometry{.frame_shift = 12, .largest_order = 7, .frame_count = 128};
    // (leaf word, frames): taken from the beginning, for ever, by one who is no client here.
    std::vector<std::pair<std::uint64_t, std::uint64_t>> taken{};
    std::vector<Client> clients{};
    bool exhausted = false;   // what the clients hold is the last: a search has found out, and lowered all hints
    bool wrapping = false;    // generations and tags are at their last value: the next is the first again
    bool daemon = false;      // recovers processes that die; needed with Options::kills_max and corpses
    bool quarantine = false;  // what they held is the daemon's for a while
    std::vector<Corpse> corpses{};
    std::vector<ChunkStep> chunk_steps{};  // not together with `daemon`
    // 0: chunk_steps are those of chunk 0. Else of a unit, the first so many chunks, as the daemon's NodeMemory takes
    // them: with a ledger that outlives the daemon, and memory behind the chunks.
    unsigned unit_chunks = 0;
    // Not -1: the order of a block that client 0's process has, and that its threads free as if each alone had it.
    int shared = -1;
};

class EngineModel {
public:
    using Word = SimEnv::Atomic<std::uint64_t>;

    EngineModel(const std::string &name, const Options &options, Setup setup);

    Report run() { return explorer.run(); }

    Explorer explorer;

private:
    static constexpr unsigned kHeldMax = 4;
    struct Local {
        std::array<Block, kHeldMax> blocks;
        std::array<bool, kHeldMax> held;
        std::array<bool, kHeldMax> cached;  // its, but nobody's to use
        Block given;                        // what it gave last; of interest to kWithdraw and the like alone
        IndexEntry given_entry;
        bool gave;
        bool caches_shared;  // the shared block is in its cache, or was when it looked
        bool is_its(Block block) const {
            for (unsigned slot = 0; slot < kHeldMax; ++slot)
                if ((held[slot] || cached[slot]) && blocks[slot] == block) return true;
            return false;
        }
    };
    // A place in the index at which an entry can ever appear.
    struct Place {
        unsigned layer;
        FrameIndex base;
        const Word *entry;
    };
    struct Owned {
        Block block;
        ProcessSlot process;
    };

    // Whose slots it acts in.
    std::size_t identity_of(std::size_t client) const {
        const int parent = setup_.clients[client].forked_from;
        return parent < 0 ? client : static_cast<std::size_t>(parent);
    }
    std::uint16_t process_slot_of(std::size_t client) const { return setup_.clients[identity_of(client)].process; }
    ThreadSlotIndex slot_of(std::size_t client) const {
        client = identity_of(client);
        const std::uint16_t wanted = setup_.clients[client].thread_slot;
        return ThreadSlotIndex{wanted != 0 ? wanted : static_cast<std::uint16_t>(2 * client + 1)};
    }
    Actor actor_of(std::size_t client) const { return {slot_of(client), ProcessSlot{process_slot_of(client)}}; }
    bool shares_its_slot(std::size_t client) const;

    void lay_out();
    void wrap_numbers();
    void take_beforehand();
    void label_words();
    void add_client(std::size_t client);
    void add_daemon();
    void operate(Thread &self, std::size_t client);
    void allocate(Thread &self, std::size_t client, Order order, unsigned slot);
    void free(Thread &self, std::size_t client, unsigned slot);
    void allocate_where_it_fits(Thread &self, std::size_t client, Order order, unsigned slot);
    void follow_script(Thread &self, std::size_t client, int what);
    void give(Thread &self, std::size_t client, unsigned slot);
    void think_again(Thread &self, std::size_t client, int what, unsigned room);
    void take(Thread &self, std::size_t client, unsigned slot);
    void use_cache(Thread &self, std::size_t client, int what);
    void release(Thread &self, std::size_t client, unsigned slot);
    void wait_for(Thread &self, std::size_t client, Order order, bool patient, unsigned slot);
    void serve_if_somebody_waits(std::size_t client);
    void allocate_many(Thread &self, std::size_t client, Order order, BlockState state);
    void free_many(Thread &self, std::size_t client, BlockState state);
    void use_shared(Thread &self, std::size_t client, int what, unsigned room);
    void refer_to_shared(Thread &self, std::size_t client);
    void add_operator();
    void take_chunk_step(ChunkStep step);
    void take_unit_step(Thread &self, ChunkStep step);
    void finish_unit(Thread &self);
    void open_unit(Thread &self, bool only_closed);
    void set_unit_drain(bool drain);
    void populate_unit(bool populated);
    void use(Thread &self, Block block) const;
    void release_seized(Thread &self, Recovery<SimEnv> &recovery) const;

    std::uint64_t beyond_the_end(std::uint64_t leaf_word) const;
    bool is_free(Block block) const;
    bool is_up_to_date(std::size_t client, Block block) const;
    std::uint64_t free_blocks(Order order, std::size_t client) const;
    std::vector<Owned> owned_blocks() const;
    bool somebody_died() const;
    bool somebody_thinks_again() const;
    Block named_by(Reference reference) const { return view_.reference_format.block(reference); }
    bool several_refer_to_shared() const;
    bool somebody_forked() const;
    bool is_shared_and_held(const Owned &entry) const;
    bool is_dead(std::uint16_t process) const;
    void keep_history();
    void check_owned(const std::vector<Owned> &owned);
    void check_state();
    void check_quiet();
    void check_eras();
    void check_unit();
    void check_unit_when_quiet();
    bool is_offline_child(unsigned layer, std::uint64_t child) const;
    void check_caches_when_quiet();
    void check_words_when_quiet(const std::vector<Owned> &owned);
    void check_hints_when_quiet();
    void check_that_free_memory_can_be_had();
    std::string meaning(const void *address, std::uint64_t value) const;
    void fail(const std::string &what) { explorer.fail(what); }

    Setup setup_;
    std::uint32_t process_slots_ = 1;
    std::uint32_t thread_slots_ = 1;
    PoolView<SimEnv> pool_;
    NodeView<SimEnv> view_;
    std::unique_ptr<Buddy<SimEnv>> buddy_;
    std::vector<Place> places_;
    std::vector<std::uint64_t> taken_;         // by leaf word
    std::vector<std::vector<Block>> initial_;  // by client
    std::vector<std::vector<Block>> initially_cached_;
    Block shared_{};
    // For each client, blocks of the order it is allocating that were free in every state since it began: with one
    // left, "out of frames" is a lie.
    Word *free_throughout_ = nullptr;
    // ... and whether in each of those states some block of the order was free, not always the same: 1, else 0. (In
    // weak memory no two threads agree about moments: not looked at there.)
    Word *some_always_free_ = nullptr;
    bool moments_are_common_ = true;
    Word *wanted_ = nullptr;  // by client: that order + 1, 0 = not allocating
    Word *daemon_died_ = nullptr;
    Word *frames_ = nullptr;  // what owners write to, a word for each smallest block that anybody allocates
    unsigned frames_order_ = kMaxOrder;
    Word *mailbox_ = nullptr;       // a Reference on its way from one client to another; 0: empty
    Word *shared_freed_ = nullptr;  // how many have freed the shared block, by what they were told
    Word *shared_ended_ = nullptr;  // how many have come to the end of that, or of putting it into their caches
    // The daemon's ledger of the unit, and whether there is memory behind it.
    Word *unit_state_ = nullptr;
    Word *unit_is_draining_ = nullptr;
    Word *unit_is_populated_ = nullptr;
};

inline std::string to_text(Block block) {
    return "order " + std::to_string(block.order.value) + " at " + std::to_string(block.base.value);
}

// ---------------------------------------------------------------------------------------------------------------------
// Set-up

inline EngineModel::EngineModel(const std::string &name, const Options &options, Setup setup)
    : explorer(name, options), setup_(std::move(setup)) {
    moments_are_common_ = options.memory == MemoryMode::sequential;
    for (const Client &client : setup_.clients)
        if (client.process >= process_slots_) process_slots_ = client.process + 1U;
    for (std::size_t client = 0; client < setup_.clients.size(); ++client)
        if (slot_of(client).value >= thread_slots_) thread_slots_ = slot_of(client).value + 1U;
    for (const Corpse &corpse : setup_.corpses) {
        process_slots_ = std::max(process_slots_, corpse.process + 1U);
        thread_slots_ = std::max(thread_slots_, corpse.thread_slot() + 1U);
    }
    lay_out();
    label_words();
    for (std::size_t client = 0; client < setup_.clients.size(); ++client) add_client(client);
    if (setup_.daemon) add_daemon();
    if (!setup_.chunk_steps.empty()) add_operator();
    explorer.on_step([this] { keep_history(); });
    explorer.on_state([this] { check_state(); });
    explorer.on_quiet([this] { check_quiet(); });
}

inline void EngineModel::lay_out() {
    const Geometry &geometry = setup_.geometry;
    const std::size_t pool_bytes = PoolLayout<SimEnv>::of(process_slots_, thread_slots_).region_bytes;
    const std::size_t node_bytes = NodeLayout<SimEnv>::of(geometry, thread_slots_).region_bytes;
    void *const pool_region = explorer.allocate(pool_bytes, kPageBytes);
    void *const node_region = explorer.allocate(node_bytes, kPageBytes);
    format_pool_region<SimEnv>(pool_region, "model", 1, geometry, 1, process_slots_, thread_slots_);
    format_node_region<SimEnv>(node_region, geometry, NumaNode{0}, 1, thread_slots_);
    pool_ = PoolView<SimEnv>::at(pool_region, process_slots_, thread_slots_);
    view_ = NodeView<SimEnv>::at(node_region, geometry, NumaNode{0}, thread_slots_);
    buddy_ = std::make_unique<Buddy<SimEnv>>(view_, pool_);

    Chunks<SimEnv> chunks{view_, pool_};
    for (std::uint64_t chunk = 0; chunk < geometry.chunk_count(); ++chunk) chunks.bring_online(chunk);
    if (setup_.wrapping) wrap_numbers();
    for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
        const Actor actor = actor_of(client);
        pool_.processes[actor.process.value].state.store(static_cast<std::uint64_t>(ProcessState::active));
        pool_.threads[actor.thread.value].owner.store(ThreadOwner{actor.process}.bits());
    }
    for (const Corpse &corpse : setup_.corpses) {
        pool_.processes[corpse.process].state.store(static_cast<std::uint64_t>(ProcessState::dead));
        pool_.threads[corpse.thread_slot()].owner.store(ThreadOwner{ProcessSlot{corpse.process}}.bits());
        pool_.threads[corpse.thread_slot()].intent.store(Intent{corpse.kind, NumaNode{0}, corpse.block}.bits());
    }
    pool_.header->thread_high_water.store(thread_slots_);
    take_beforehand();
    for (std::size_t client = 0; client < setup_.clients.size(); ++client)
        for (unsigned order = 0; order <= kLeafOrder && setup_.clients[client].home >= 0; ++order)
            view_.home[slot_of(client).value].word[order].store(
                static_cast<std::uint64_t>(setup_.clients[client].home) * kLeafFrames + 1);

    for (std::size_t client = 0; client < setup_.clients.size(); ++client)
        for (const auto &[order, word] : setup_.clients[client].homes)
            view_.home[slot_of(client).value].word[order].store(word * kLeafFrames + 1);

    for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
        for (const unsigned order : setup_.clients[client].used) {
            Block block{};
            Block freed{};
            if (buddy_->allocate(actor_of(client), Order{order}, {}, block) != Errc::ok ||
                buddy_->free(actor_of(client), block.base, freed) != Errc::ok)
                fail("set-up: a client cannot use what it shall have used");
        }
    }

    initial_.resize(setup_.clients.size());
    for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
        for (const unsigned order : setup_.clients[client].holds) {
            Block block{};
            if (buddy_->allocate(actor_of(client), Order{order}, {}, block) != Errc::ok)
                fail("set-up: a client cannot hold what it shall hold");
            initial_[client].push_back(block);
        }
    }
    initially_cached_.resize(setup_.clients.size());
    for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
        for (const unsigned order : setup_.clients[client].caches) {
            FrameIndex base{};
            const Order wanted{order};
            if (buddy_->allocate_many(actor_of(client), wanted, BlockState::cached, {}, &base, 1) != 1)
                fail("set-up: a client cannot cache what it shall cache");
            initially_cached_[client].push_back({base, wanted});
        }
    }
    if (setup_.shared >= 0 &&
        buddy_->allocate(actor_of(0), Order{static_cast<std::uint32_t>(setup_.shared)}, {}, shared_) != Errc::ok)
        fail("set-up: there is no room for the shared block");
    if (setup_.exhausted) {
        Block block{};
        if (buddy_->allocate({kDaemonThread, kDaemonProcess}, Order{0}, {}, block) != Errc::out_of_frames)
            fail("set-up: memory shall be exhausted and is not");
    }

    free_throughout_ = static_cast<Word *>(explorer.allocate(setup_.clients.size() * sizeof(Word)));
    some_always_free_ = static_cast<Word *>(explorer.allocate(setup_.clients.size() * sizeof(Word)));
    explorer.keep_private(some_always_free_, setup_.clients.size() * sizeof(Word));
    wanted_ = static_cast<Word *>(explorer.allocate(setup_.clients.size() * sizeof(Word)));
    daemon_died_ = explorer.make<Word>();
    explorer.keep_private(free_throughout_, setup_.clients.size() * sizeof(Word));
    explorer.keep_private(wanted_, setup_.clients.size() * sizeof(Word));
    mailbox_ = explorer.make<Word>();
    explorer.keep_private(daemon_died_, sizeof(Word));
    explorer.keep_as_channel(mailbox_, sizeof(Word));
    shared_freed_ = explorer.make<Word>();
    shared_ended_ = explorer.make<Word>();
    explorer.keep_as_channel(shared_freed_, sizeof(Word));
    explorer.keep_as_channel(shared_ended_, sizeof(Word));
    // Steps like all others, although nobody else looks: the daemon may die between any two of them.
    unit_state_ = explorer.make<Word>();
    unit_is_draining_ = explorer.make<Word>();
    unit_is_populated_ = explorer.make<Word>();
    unit_state_->store(static_cast<std::uint64_t>(UnitState::online));
    unit_is_populated_->store(1);
    explorer.label(unit_state_, sizeof(Word), "unit.state");
    explorer.label(unit_is_draining_, sizeof(Word), "unit.is_draining");
    explorer.label(unit_is_populated_, sizeof(Word), "unit.is_populated");
    // Nothing the allocator does depends on tallies, and these two never change here.
    explorer.ignore(view_.counters, thread_slots_ * sizeof(ThreadCounters<SimEnv>));
    explorer.ignore(pool_.header, sizeof(PoolHeader<SimEnv>));
    std::vector<bool> in_use(thread_slots_, false);
    in_use[kDaemonThread.value] = true;
    for (const Corpse &corpse : setup_.corpses) in_use[corpse.thread_slot()] = true;
    for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
        const auto thread = static_cast<int>(client);
        const std::size_t slot = slot_of(client).value;
        in_use[slot] = true;
        if (shares_its_slot(client)) continue;
        explorer.keep_private(&view_.home[slot], sizeof view_.home[slot]);
        explorer.written_only_by(thread, &pool_.threads[slot].intent, sizeof(Word));
        explorer.written_only_by(thread, &pool_.threads[slot].hint_work, sizeof(Word));
    }
    for (std::uint32_t slot = 0; slot < thread_slots_; ++slot) {
        if (in_use[slot]) continue;  // the others never change
        explorer.keep_private(&pool_.threads[slot], sizeof pool_.threads[slot]);
        explorer.keep_private(&view_.home[slot], sizeof view_.home[slot]);
    }

    // Only where an allocation of a listed order can begin.
    std::vector<bool> wanted(kMaxOrder + 1, false);
    for (const Client &client : setup_.clients) {
        for (const unsigned order : client.orders) wanted[order] = true;
        for (const int what : client.script)
            if (what >= 0) wanted[static_cast<unsigned>(what % kTwo)] = true;
        for (const unsigned order : client.holds) wanted[order] = true;
        for (const unsigned order : client.caches) wanted[order] = true;
        for (const unsigned order : client.used) wanted[order] = true;
    }
    if (setup_.shared >= 0) wanted[static_cast<unsigned>(setup_.shared)] = true;
    if (!setup_.chunk_steps.empty()) wanted[geometry.largest_order] = true;  // an offline chunk has an entry
    for (unsigned order = 0; order <= kMaxOrder; ++order)
        if (wanted[order] && order < frames_order_) frames_order_ = order;
    const std::uint64_t frames_bytes = (geometry.frame_count >> frames_order_) * sizeof(Word);
    frames_ = static_cast<Word *>(explorer.allocate(frames_bytes));
    explorer.keep_private(frames_, frames_bytes);
    explorer.label(frames_, frames_bytes, "frames");
    for (unsigned layer = 0; layer <= view_.top_layer; ++layer) {
        for (std::uint64_t entry = 0; entry < geometry.index_entry_count(layer); ++entry) {
            const FrameIndex base{entry << geometry.index_granule(layer)};
            bool possible = false;
            for (unsigned order = 0; order <= geometry.largest_order; ++order) {
                const Block block{base, Order{order}};
                if (!wanted[order] || layer_of(block.order) != layer || !view_.contains(block)) continue;
                bool room = true;
                for (std::uint64_t word = 0; word < taken_.size(); ++word)
                    for (unsigned frame = 0; frame < kLeafFrames; ++frame)
                        if ((taken_[word] >> frame & 1) != 0 &&
                            overlaps(block, Block{FrameIndex{word * kLeafFrames + frame}, Order{0}}))
                            room = false;
                possible = possible || room;
            }
            // Where none can begin an entry never changes, so reading it is no step.
            if (possible)
                places_.push_back({layer, base, &view_.index[layer][entry]});
            else
                explorer.keep_private(&view_.index[layer][entry], sizeof(Word));
        }
        // Nobody comes to the end of a half round unless generations begin there.
        if (!setup_.wrapping)
            explorer.keep_private(view_.era[layer], geometry.index_entry_count(layer) * sizeof(*view_.era[layer]));
    }
}

inline void EngineModel::wrap_numbers() {
    const std::uint64_t last_generation = IndexEntry::freeing(kDaemonThread, Order{0}, kGenerationMax).bits() &
                                          ~IndexEntry::freeing(kDaemonThread, Order{0}, 0).bits();
    constexpr std::uint64_t kLastTag = ~std::uint64_t{0} << 32;
    for (unsigned layer = 0; layer <= view_.top_layer; ++layer) {
        for (std::uint64_t place = 0; place < setup_.geometry.index_entry_count(layer); ++place)
            view_.index[layer][place].store(view_.index[layer][place].load() | last_generation);
        for (std::uint64_t word = 0; layer != 0 && word < setup_.geometry.word_count(layer); ++word)
            view_.upper[layer][word].store(view_.upper[layer][word].load() | kLastTag);
    }
}

inline void EngineModel::take_beforehand() {
    taken_.resize(setup_.geometry.word_count(0));
    for (const auto &[word, frames] : setup_.taken) {
        taken_[word] = frames;
        view_.leaf[word].store(frames | beyond_the_end(word));
        // Bits that no entry covers are what recovery clears, if somebody dies with an intent on the word.
        for (unsigned frame = 0; frame < kLeafFrames; ++frame)
            if ((frames >> frame & 1) != 0)
                view_.index[0][word * kLeafFrames + frame].store(
                    IndexEntry::owned(kTakesForEver, Order{0}, 1, {}).bits());
        std::uint64_t child = word;
        for (unsigned layer = 1; layer <= view_.top_layer && frames != 0; ++layer, child /= kUpperFanOut) {
            Word &state = view_.upper[layer][child / kUpperFanOut];
            state.store(UpperWord{state.load()}.with_mark(child % kUpperFanOut).bits());
        }
    }
}

inline void EngineModel::add_client(std::size_t client) {
    explorer.add_thread(
        {.name = "client" + std::to_string(client),
         .process = setup_.clients[client].process,
         .mortal = setup_.clients[client].mortal},
        [this, client](Thread &self) {
            Local &local = self.local<Local>();
            unsigned slot = 0;
            for (const Block block : initial_[identity_of(client)]) {
                local.blocks[slot] = block;
                local.held[slot++] = true;
            }
            for (const Block block : initially_cached_[identity_of(client)]) {
                local.blocks[slot] = block;
                local.cached[slot++] = true;
            }
            for (const int what : setup_.clients[client].script)
                self.run_operation([&] { follow_script(self, client, what); });
            if (!setup_.clients[client].script.empty()) return;
            for (unsigned round = 0; round < setup_.clients[client].operations; ++round)
                self.run_operation([&] { operate(self, client); });
        },
        sizeof(Local));
}

inline void EngineModel::operate(Thread &self, std::size_t client) {
    const Client &what = setup_.clients[client];
    const Local &local = self.local<Local>();
    std::array<unsigned, kHeldMax> held{};
    unsigned held_count = 0;
    unsigned room = kHeldMax;
    for (unsigned slot = 0; slot < kHeldMax; ++slot) {
        if (local.held[slot])
            held[held_count++] = slot;
        else if (room == kHeldMax)
            room = slot;
    }
    const auto allocations = held_count < what.held_max ? static_cast<unsigned>(what.orders.size()) : 0U;
    if (allocations + held_count == 0) return;
    const auto choice = static_cast<unsigned>(self.choose_operation(static_cast<int>(allocations + held_count)));
    if (choice < allocations)
        allocate(self, client, Order{static_cast<std::uint32_t>(what.orders[choice])}, room);
    else
        free(self, client, held[choice - allocations]);
}

inline void EngineModel::allocate(Thread &self, std::size_t client, Order order, unsigned slot) {
    Local &local = self.local<Local>();
    wanted_[client].store(order.value + 1U);
    free_throughout_[client].store(~std::uint64_t{0});
    some_always_free_[client].store(moments_are_common_ ? 1 : 0);
    Block block{};
    const Errc result = buddy_->allocate(actor_of(client), order, {}, block);
    const std::uint64_t was_free = free_throughout_[client].load();
    const bool some_was_free = some_always_free_[client].load() != 0;
    wanted_[client].store(0);
    free_throughout_[client].store(0);
    some_always_free_[client].store(0);
    if (result == Errc::ok) {
        if (block.order != order) self.fail("allocate gave another order than asked for");
        local.blocks[slot] = block;
        local.held[slot] = true;
        use(self, block);
    } else if (result != Errc::out_of_frames) {
        self.fail(std::string("allocate returned ") + error_row(result).name);
    } else if (was_free != 0) {
        self.fail("out of frames, though a block of order " + std::to_string(order.value) + " was free all the time");
    } else if (some_was_free) {
        self.fail("out of frames, though at every moment some block of order " + std::to_string(order.value) +
                  " was free");
    }
}

// What it saw may have gone meanwhile: it promises nothing.
inline void EngineModel::allocate_where_it_fits(Thread &self, std::size_t client, Order order, unsigned slot) {
    Local &local = self.local<Local>();
    Block block{};
    if (!FitLook{view_, order, Fit::best}.find(0, block) || !buddy_->allocate_at(actor_of(client), block, {})) return;
    local.blocks[slot] = block;
    local.held[slot] = true;
    use(self, block);
}

inline void EngineModel::free(Thread &self, std::size_t client, unsigned slot) {
    Local &local = self.local<Local>();
    const Block block = local.blocks[slot];
    local.held[slot] = false;  // from the call on it is the caller's no more
    local.blocks[slot] = {};
    use(self, block);
    Block freed{};
    const Errc result = buddy_->free(actor_of(client), block.base, freed);
    if (result != Errc::ok) self.fail(std::string("free of a held block returned ") + error_row(result).name);
    if (freed != block) self.fail("free freed another block: " + to_text(freed) + " instead of " + to_text(block));
}

// The word that a waiter sleeps on has changed already: that is all there is to waking it.
inline void nobody_to_wake(ThreadSlotIndex) {}

inline void EngineModel::follow_script(Thread &self, std::size_t client, int what) {
    const Local &local = self.local<Local>();
    unsigned first = 0;
    unsigned room = 0;
    while (first < kHeldMax && !local.held[first]) ++first;
    while (room < kHeldMax && local.held[room]) ++room;
    if (what == kTake) {
        if (room == kHeldMax) return;
        self.rest_until([this] { return mailbox_->load() != 0; });
        take(self, client, room);
        return;
    }
    if (what <= kCache && what >= kFlushOrFree) {
        self.choose_operation(1);
        use_cache(self, client, what);
        return;
    }
    if (what == kReferShared) {
        self.choose_operation(1);
        refer_to_shared(self, client);
        return;
    }
    if (what == kNudge) {
        self.choose_operation(1);
        nudge_waiters(pool_, true, nobody_to_wake);
        return;
    }
    if (what <= kFreeShared && what != kRelease) {
        use_shared(self, client, what, room);
        return;
    }
    if (what <= kWithdraw && what != kRelease) {
        if (!local.gave || room == kHeldMax) return;
        self.choose_operation(1);
        think_again(self, client, what, room);
        return;
    }
    if (what < 0 ? first == kHeldMax : room == kHeldMax) return;  // an allocation before may have found nothing
    self.choose_operation(1);
    if (what >= kFitting) {
        allocate_where_it_fits(self, client, Order{static_cast<std::uint32_t>(what - kFitting)}, room);
        return;
    }
    if (what >= kWait) {
        wait_for(self, client, Order{static_cast<std::uint32_t>(what % kTwo)}, what < kWaitBriefly, room);
        return;
    }
    if (what == kRelease) {
        release(self, client, first);
        return;
    }
    if (what >= kTwo) {
        allocate_many(self, client, Order{static_cast<std::uint32_t>(what % kTwo)},
                      what >= kRefill ? BlockState::cached : BlockState::owned);
        return;
    }
    if (what == kFreeFirst)
        free(self, client, first);
    else if (what == kGive)
        give(self, client, first);
    else
        allocate(self, client, Order{static_cast<std::uint32_t>(what)}, room);
}

struct OneNode {
    Buddy<SimEnv> &buddy;
    Buddy<SimEnv> &at(std::uint32_t) const { return buddy; }
    std::uint32_t count() const { return 1; }
    std::uint32_t nearest(std::uint32_t, std::uint32_t) const { return 0; }
};

inline void EngineModel::serve_if_somebody_waits(std::size_t client) {
    if ((pool_.header->attention.load() & Attention::kWaiters) == 0) return;
    const OneNode node{*buddy_};
    HandOff<SimEnv, OneNode>{pool_, node}.serve(actor_of(client), nobody_to_wake);
}

inline void EngineModel::release(Thread &self, std::size_t client, unsigned slot) {
    if ((pool_.header->attention.load() & Attention::kWaiters) != 0) {
        Local &local = self.local<Local>();
        const Block block = local.blocks[slot];
        const OneNode node{*buddy_};
        const IndexEntry entry{view_.index_entry(block).load()};
        local.held[slot] = false;
        use(self, block);
        using Server = HandOff<SimEnv, OneNode>;
        const auto given = Server{pool_, node}.give(actor_of(client), 0, block, entry, nobody_to_wake);
        if (given != Server::Given::no) {
            local.blocks[slot] = {};
            if (given == Server::Given::undone) serve_if_somebody_waits(client);
            return;
        }
        local.held[slot] = true;
    }
    free(self, client, slot);
    serve_if_somebody_waits(client);
}

// As client/src/waiting.cpp, without looking again after a second.
inline void EngineModel::wait_for(Thread &self, std::size_t client, Order order, bool patient, unsigned slot) {
    Local &local = self.local<Local>();
    const OneNode node{*buddy_};
    HandOff<SimEnv, OneNode> hand_off{pool_, node};
    const Actor actor = actor_of(client);
    const Word &word = pool_.threads[actor.thread.value].waiting;
    WaitWord wish;
    // From here on nobody gives it anything of a chunk that drains already.
    const bool drains = !setup_.chunk_steps.empty() && buddy_->is_draining(Block{FrameIndex{0}, order});
    for (bool received = false; !received;) {
        if (!wish.is_waiting()) wish = hand_off.announce(actor, order, NumaNode{0}, 1);
        hand_off.serve(actor, nobody_to_wake);
        if (!patient && hand_off.withdraw(actor)) break;
        self.rest_until([&] { return word.load() != wish.bits(); });
        WaitWord now = hand_off.look(actor);
        if (now == wish.nudged()) now = hand_off.calm(actor, wish);
        if (!hand_off.has_ended(wish, now)) continue;
        std::uint32_t numa_node = 0;
        Block block{};
        received = hand_off.receive(actor, {}, numa_node, block);
        wish = WaitWord{};
        if (!received) continue;
        if (block.order != order) self.fail("a waiter was given another order than it wanted");
        if (drains && block.base.value >> setup_.geometry.largest_order == 0)
            self.fail("a block of a chunk that drains was handed on");
        local.blocks[slot] = block;
        local.held[slot] = true;
        use(self, block);
    }
    serve_if_somebody_waits(client);
}

inline void EngineModel::use_cache(Thread &self, std::size_t client, int what) {
    Local &local = self.local<Local>();
    unsigned held = 0;
    unsigned cached = 0;
    while (held < kHeldMax && !local.held[held]) ++held;
    while (cached < kHeldMax && !local.cached[cached]) ++cached;
    if (what == kCache && held < kHeldMax) {
        Word &slot = view_.index_entry(local.blocks[held]);
        local.held[held] = false;
        local.cached[held] = true;
        const IndexEntry entry = look_at(slot);
        if (!is_like(entry, IndexEntry::owned(actor_of(client).process, local.blocks[held].order, 0, {})))
            self.fail("a held block cannot be cached");
        into_cache(slot, entry);
    } else if (what == kUncache && cached < kHeldMax) {
        auto &slot = view_.index_entry(local.blocks[cached]);
        const IndexEntry entry = look_at(slot);
        const IndexEntry owned = IndexEntry::owned(actor_of(client).process, local.blocks[cached].order, 0, {});
        if (!is_cached(entry, owned)) {
            if (!somebody_forked()) self.fail("a block in our cache is not cached");
            local.cached[cached] = false;
            local.blocks[cached] = {};
            return;
        }
        out_of_cache(slot, entry, owned);
        local.cached[cached] = false;
        local.held[cached] = true;
        use(self, local.blocks[cached]);
    } else if (what == kFlush || what == kFreeAll || what == kFlushOrFree) {
        if (what != kFlush) free_many(self, client, BlockState::owned);
        free_many(self, client, BlockState::cached);
    }
}

inline void EngineModel::allocate_many(Thread &self, std::size_t client, Order order, BlockState state) {
    Local &local = self.local<Local>();
    std::array<FrameIndex, 2> bases{};
    const unsigned got = buddy_->allocate_many(actor_of(client), order, state, {}, bases.data(), 2);
    for (unsigned i = 0; i < got; ++i) {
        unsigned slot = 0;
        while (slot < kHeldMax && (local.held[slot] || local.cached[slot])) ++slot;
        if (slot == kHeldMax) self.fail("the script allocates more than the model can hold");
        local.blocks[slot] = Block{bases[i], order};
        (state == BlockState::owned ? local.held : local.cached)[slot] = true;
        use(self, local.blocks[slot]);
    }
}

inline void EngineModel::free_many(Thread &self, std::size_t client, BlockState state) {
    Local &local = self.local<Local>();
    auto &mine = state == BlockState::owned ? local.held : local.cached;
    std::array<FrameIndex, kHeldMax> bases{};
    unsigned count = 0;
    for (unsigned slot = 0; slot < kHeldMax; ++slot) {
        if (!mine[slot]) continue;
        bases[count++] = local.blocks[slot].base;
        use(self, local.blocks[slot]);
        mine[slot] = false;
        local.blocks[slot] = {};
    }
    if (count != 0 && buddy_->free_many(actor_of(client), state, bases.data(), count) != count)
        self.fail("free_many refused a block of ours");
}

// What threads of one process do to a block that each of them believes to have.
inline void EngineModel::use_shared(Thread &self, std::size_t client, int what, unsigned room) {
    Local &local = self.local<Local>();
    const Actor actor = actor_of(client);
    Word &slot = view_.index_entry(shared_);
    std::uint64_t sharers = 0;
    for (const Client &other : setup_.clients)
        for (const int step : other.script) sharers += step <= kFreeShared && step >= kCacheShared ? 1 : 0;
    const auto is_anothers = [&] {
        const IndexEntry entry{slot.load()};
        return entry.is_held() && entry.owner() != actor.process;
    };
    switch (what) {
        case kAwaitCached:
            self.rest_until([&] { return shared_ended_->load() == sharers; });
            return;
        case kAwaitFree:
            self.rest_until([&] { return is_free(shared_); });
            return;
        case kAwaitTaken:
            self.rest_until(is_anothers);
            return;
        default:
            self.choose_operation(1);
    }
    if (what == kFreeUnchecked) {
        Block freed{};
        (void)buddy_->free(actor, shared_.base, freed);
        shared_ended_->fetch_add(1);
    } else if (what == kFreeShared) {
        // Each has used it until now, or another thread of its process has: no touch().
        Block freed{};
        const Errc result = buddy_->free_checked(actor, shared_.base, freed);
        if (result == Errc::ok) shared_freed_->fetch_add(1);
        // not_owner: it is another process's by now.
        if (result != Errc::ok && result != Errc::stale_ref && result != Errc::not_owner)
            self.fail(std::string("free of a block that another thread frees returned ") + error_row(result).name);
        if (shared_freed_->load() > 1) self.fail("two have freed one block");
        if (shared_ended_->fetch_add(1) + 1 == sharers && shared_freed_->load() == 0)
            self.fail("nobody has freed what all have freed");
    } else if (what == kCacheShared || what == kCacheSlowly) {
        const IndexEntry entry = look_at(slot);
        if (entry.is_private(IndexEntry::private_to(actor.process))) {
            local.caches_shared = true;
            if (what == kCacheSlowly) self.wait_until(is_anothers);
            into_cache(slot, entry);
        }
        shared_ended_->fetch_add(1);
    } else if (local.caches_shared) {
        local.caches_shared = false;
        if (what == kFlushShared) {
            (void)buddy_->free_many(actor, BlockState::cached, &shared_.base, 1);
            return;
        }
        const IndexEntry entry = look_at(slot);
        const IndexEntry owned = IndexEntry::owned(actor.process, shared_.order, 0, {});
        if (!is_cached(entry, owned)) return;
        if (what == kUncacheSlowly) self.wait_until(is_anothers);
        out_of_cache(slot, entry, owned);
        local.blocks[room] = shared_;
        local.held[room] = true;
        use(self, shared_);
    }
}

// numacre_ref_of, beside other threads of the process that call it for the same block. Whoever comes second to the
// mailbox throws its reference away: two references to one block are worth no more than one.
inline void EngineModel::refer_to_shared(Thread &self, std::size_t client) {
    const Actor actor = actor_of(client);
    Reference name;
    if (layer_of(shared_.order) != 0 || !buddy_->publish_in_leaf(buddy_->view_of(actor), shared_.base, name)) {
        Block found{};
        IndexEntry entry;
        if (buddy_->find_entry(shared_.base, found, entry) != Errc::ok || entry.owner() != actor.process) return;
        name = buddy_->publish(found, entry);
    }
    if (name.bits() == 0) return;  // another process has it by now
    if (named_by(name) != shared_) self.fail("a reference names another block: " + to_text(named_by(name)));
    std::uint64_t empty = 0;
    (void)mailbox_->compare_exchange_strong(empty, name.bits());
}

inline void EngineModel::add_operator() {
    explorer.on_kill([this](int) { daemon_died_->store(1); });
    const ThreadOptions options{.name = "operator", .process = 0, .restartable = true, .may_wait_for_others = true};
    explorer.add_thread(options, [this](Thread &self) {
        // After a death: what it was in the middle of first, then all steps again.
        if (daemon_died_->load() != 0) {
            Recovery<SimEnv> recovery{pool_, std::span<const NodeView<SimEnv>>{&view_, 1}};
            ThreadSlotIndex blocked_by{};
            while (recovery.resume(blocked_by) == RecoveryStep::blocked) blocked_by = {};
            if (setup_.unit_chunks != 0) finish_unit(self);
        }
        for (const ChunkStep step : setup_.chunk_steps) {
            self.run_operation([&] {
                self.choose_operation(1);
                if (setup_.unit_chunks == 0)
                    take_chunk_step(step);
                else
                    take_unit_step(self, step);
            });
        }
    });
}

inline void EngineModel::take_chunk_step(ChunkStep step) {
    Chunks<SimEnv> chunks{view_, pool_};
    switch (step) {
        case ChunkStep::drain:
            chunks.set_drain(0, true);
            break;
        case ChunkStep::undrain:
            chunks.set_drain(0, false);
            break;
        case ChunkStep::offline:
            (void)chunks.try_take_offline(0);
            break;
        case ChunkStep::online:
            (void)chunks.bring_online(0);
            break;
    }
}

// NodeMemory::bring_online, try_take_offline, set_drain: the same writes in the same sequence.
inline void EngineModel::take_unit_step(Thread &self, ChunkStep step) {
    Chunks<SimEnv> chunks{view_, pool_};
    const auto set_state = [this](UnitState state) { unit_state_->store(static_cast<std::uint64_t>(state)); };
    const bool is_online = unit_state_->load() == static_cast<std::uint64_t>(UnitState::online);
    if (step == ChunkStep::drain || step == ChunkStep::undrain) {
        set_unit_drain(step == ChunkStep::drain);
    } else if (step == ChunkStep::online && !is_online) {
        set_state(UnitState::filling);
        populate_unit(true);
        set_state(UnitState::opening);
        open_unit(self, false);
        set_state(UnitState::online);
    } else if (step == ChunkStep::offline && is_online) {
        set_state(UnitState::closing);
        for (unsigned chunk = 0; chunk < setup_.unit_chunks; ++chunk) {
            if (chunks.try_take_offline(chunk)) continue;
            while (chunk-- > 0)
                if (!chunks.bring_online(chunk)) self.fail("a chunk that was just taken offline is not");
            set_state(UnitState::online);
            return;
        }
        set_state(UnitState::closed);
        populate_unit(false);
        set_state(UnitState::offline);
    }
}

// NodeMemory::finish_units and what ManagedPool::finish_predecessor does about drains.
inline void EngineModel::finish_unit(Thread &self) {
    const auto state = static_cast<UnitState>(unit_state_->load());
    if (state == UnitState::filling || state == UnitState::closed) {
        populate_unit(false);
        unit_state_->store(static_cast<std::uint64_t>(UnitState::offline));
    } else if (state == UnitState::opening || state == UnitState::closing) {
        open_unit(self, true);
        unit_state_->store(static_cast<std::uint64_t>(UnitState::online));
    }
    if (unit_is_draining_->load() != 0) set_unit_drain(true);
}

inline void EngineModel::open_unit(Thread &self, bool only_closed) {
    Chunks<SimEnv> chunks{view_, pool_};
    for (unsigned chunk = 0; chunk < setup_.unit_chunks; ++chunk) {
        if (only_closed && !chunks.is_offline(chunk)) continue;
        if (!chunks.bring_online(chunk)) self.fail("a chunk that shall be opened is not offline");
    }
}

inline void EngineModel::set_unit_drain(bool drain) {
    Chunks<SimEnv> chunks{view_, pool_};
    if (drain) unit_is_draining_->store(1);
    for (unsigned chunk = 0; chunk < setup_.unit_chunks; ++chunk) chunks.set_drain(chunk, drain);
    if (!drain) unit_is_draining_->store(0);
}

inline void EngineModel::populate_unit(bool populated) {
    unit_is_populated_->store(populated ? 1 : 0);
}

inline void EngineModel::give(Thread &self, std::size_t client, unsigned slot) {
    Local &local = self.local<Local>();
    const Block block = local.blocks[slot];
    local.held[slot] = false;
    local.blocks[slot] = {};
    use(self, block);
    const IndexEntry entry{view_.index_entry(block).load(std::memory_order_relaxed)};  // its own
    if (somebody_thinks_again()) {
        local.given = block;
        local.given_entry = entry.published();
        local.gave = true;
    }
    // As clients do it, here and in take(): the short way first.
    Reference name;
    if (!buddy_->publish_in_leaf(buddy_->view_of(actor_of(client)), block.base, name)) {
        if (layer_of(block.order) == 0) self.fail("the short way does not publish a held block");
        name = buddy_->publish(block, entry);
    }
    mailbox_->store(name.bits());
}

// Of the giver and the taker exactly one has the block afterwards.
inline void EngineModel::think_again(Thread &self, std::size_t client, int what, unsigned room) {
    Local &local = self.local<Local>();
    const Block block = local.given;
    IndexEntry entry = local.given_entry;
    local.given = {};
    local.given_entry = {};
    local.gave = false;
    if (what == kWithdraw) {
        if (!buddy_->withdraw(block, entry)) return;
        if (entry.is_published()) self.fail("a withdrawn block is still published");
        local.blocks[room] = block;
        local.held[room] = true;
        use(self, block);
    } else if (what == kFreeGiven) {
        Block freed{};
        (void)buddy_->free(actor_of(client), block.base, freed);
    } else {
        (void)buddy_->free_many(actor_of(client), BlockState::owned, &block.base, 1);
    }
}

inline void EngineModel::take(Thread &self, std::size_t client, unsigned slot) {
    Local &local = self.local<Local>();
    std::uint64_t mail = mailbox_->load();
    const Reference reference{mail};
    Block block{};
    const Errc result = buddy_->take_in_leaf(buddy_->view_of(actor_of(client)), reference, {}, block)
                            ? Errc::ok
                            : buddy_->take(actor_of(client), reference, {}, block);
    (void)mailbox_->compare_exchange_strong(mail, 0);  // there may be another by now
    if (result == Errc::ok) {
        if (block != named_by(reference)) self.fail("take gave another block: " + to_text(block));
        // Its process has the block back, whose threads go on referring to it: it is no thread's in particular.
        if (several_refer_to_shared() && actor_of(client).process.value == process_slot_of(0)) return;
        local.blocks[slot] = block;
        local.held[slot] = true;
        use(self, block);
    } else if (result != Errc::stale_ref ||
               !(somebody_died() || somebody_thinks_again() || several_refer_to_shared())) {
        self.fail(std::string("take of a block on its way returned ") + error_row(result).name);
    }
}

// The ends suffice.
inline void EngineModel::use(Thread &self, Block block) const {
    const std::uint64_t first = block.base.value >> frames_order_;
    const std::uint64_t last = (block.base.value + block.order.frames() - 1) >> frames_order_;
    self.touch(&frames_[first]);
    if (last != first) self.touch(&frames_[last]);
}

inline bool EngineModel::somebody_died() const {
    for (const Client &client : setup_.clients)
        if (explorer.dead(client.process)) return true;
    return false;
}

inline bool EngineModel::is_dead(std::uint16_t process) const {
    for (const Corpse &corpse : setup_.corpses)
        if (corpse.process == process) return true;
    return explorer.dead(process);
}

inline bool EngineModel::somebody_thinks_again() const {
    for (const Client &client : setup_.clients)
        for (const int what : client.script)
            if (what <= kWithdraw && what >= kBulkFreeGiven) return true;
    return false;
}

// The second reference may be to what has been taken by the first.
inline bool EngineModel::several_refer_to_shared() const {
    for (const Client &client : setup_.clients)
        for (const int what : client.script)
            if (what == kReferShared) return true;
    return false;
}

inline bool EngineModel::somebody_forked() const {
    for (const Client &client : setup_.clients)
        if (client.forked_from >= 0) return true;
    return false;
}

inline bool EngineModel::shares_its_slot(std::size_t client) const {
    for (std::size_t other = 0; other < setup_.clients.size(); ++other)
        if (other != client && slot_of(other) == slot_of(client)) return true;
    return false;
}

inline void EngineModel::release_seized(Thread &self, Recovery<SimEnv> &recovery) const {
    if (!setup_.quarantine) return;
    recovery.for_each_seized([&](NumaNode numa_node, Block block, PoolAge) {
        use(self, block);  // zeroes it
        if (!recovery.release(numa_node, block)) self.fail("a seized block is not the daemon's: " + to_text(block));
    });
}

inline void EngineModel::add_daemon() {
    explorer.add_thread(
        {.name = "daemon", .process = 0, .restartable = true, .may_wait_for_others = true}, [this](Thread &self) {
            const auto state_of = [this](std::uint16_t process) -> Word & { return pool_.processes[process].state; };
            constexpr auto kActive = static_cast<std::uint64_t>(ProcessState::active);
            constexpr auto kDead = static_cast<std::uint64_t>(ProcessState::dead);
            Recovery<SimEnv> recovery{pool_, std::span<const NodeView<SimEnv>>{&view_, 1}};
            ThreadSlotIndex blocked_by{};
            // `blocked`: the daemon tries again later; other threads run meanwhile.
            if (daemon_died_->load() != 0) {
                while (recovery.resume(blocked_by) == RecoveryStep::blocked) blocked_by = {};
                release_seized(self, recovery);
            }
            for (;;) {
                self.run_operation([&] {
                    std::uint16_t process = 0;
                    const auto find_work = [&] {
                        for (std::uint16_t slot = 1; slot < process_slots_; ++slot)
                            if (is_dead(slot) && (state_of(slot).load() == kActive || state_of(slot).load() == kDead))
                                return slot;
                        return std::uint16_t{0};
                    };
                    self.rest_until([&] { return find_work() != 0; });
                    for (std::uint16_t slot = 1; slot < process_slots_ && process == 0; ++slot) {
                        if (!is_dead(slot)) continue;
                        const std::uint64_t state = state_of(slot).load();
                        if (state == kActive || state == kDead) process = slot;
                    }
                    state_of(process).store(kDead);
                    for (bool done = false; !done;) {
                        Reclaimed total;
                        blocked_by = {};
                        // The kernel tells of every death, also while we are at one of them.
                        for (std::uint16_t other = 1; other < process_slots_; ++other)
                            if (other != process && is_dead(other) && state_of(other).load() == kActive)
                                state_of(other).store(kDead);
                        const ProcessSlot slot{process};
                        done = (setup_.quarantine
                                    ? recovery.seize_process(slot, total, blocked_by, [](NumaNode, Block) {})
                                    : recovery.recover_process(slot, total, blocked_by)) == RecoveryStep::done;
                    }
                    release_seized(self, recovery);
                    state_of(process).store(static_cast<std::uint64_t>(ProcessState::free));
                    nudge_waiters(pool_, false, nobody_to_wake);
                });
            }
        });
    explorer.on_kill([this](int process) {
        if (process == 0) daemon_died_->store(1);
        // Whatever the dead was about to allocate, it will not complain about.
        for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
            if (setup_.clients[client].process != process) continue;
            wanted_[client].store(0);
            free_throughout_[client].store(0);
            some_always_free_[client].store(0);
        }
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// What must hold

// Bits of the last leaf word that stand for no frame.
inline std::uint64_t EngineModel::beyond_the_end(std::uint64_t leaf_word) const {
    const std::uint64_t exist = setup_.geometry.frame_count - leaf_word * kLeafFrames;
    return exist >= kLeafFrames ? 0 : ~std::uint64_t{0} << exist;
}

// No frame of it is taken, no block above or below it allocated. Marks do not count.
inline bool EngineModel::is_free(Block block) const {
    for (std::uint64_t word = block.base.value / kLeafFrames;
         word * kLeafFrames < block.base.value + block.order.frames(); ++word) {
        const std::uint64_t mask = block.order.value >= kLeafOrder
                                       ? ~std::uint64_t{0}
                                       : leaf::mask(block.base.value % kLeafFrames, block.order.value);
        if ((view_.leaf[word].load() & mask) != 0) return false;
    }
    for (unsigned layer = 1; layer <= view_.top_layer; ++layer) {
        const unsigned child_order = word_order(layer - 1);
        for (std::uint64_t child = block.base.value >> child_order;
             child << child_order < block.base.value + block.order.frames(); ++child)
            if (UpperWord{view_.upper[layer][child / kUpperFanOut].load()}.closed_to_allocation(child % kUpperFanOut))
                return false;
    }
    return true;
}

// In weak memory "now" is nothing that two threads agree about: what the client cannot know yet it may miss.
inline bool EngineModel::is_up_to_date(std::size_t client, Block block) const {
    const auto thread = static_cast<int>(client);
    const std::uint64_t end = block.base.value + block.order.frames();
    for (std::uint64_t word = block.base.value / kLeafFrames; word * kLeafFrames < end; ++word)
        if (!explorer.knows_newest(thread, &view_.leaf[word])) return false;
    for (unsigned layer = 1; layer <= view_.top_layer; ++layer)
        for (std::uint64_t word = block.base.value >> word_order(layer); word << word_order(layer) < end; ++word)
            if (!explorer.knows_newest(thread, &view_.upper[layer][word])) return false;
    for (std::uint32_t slot = 0; slot < thread_slots_; ++slot)
        if (!explorer.knows_newest(thread, &pool_.threads[slot].intent)) return false;
    return true;
}

// Bit i: the i-th block of this order is free, and no operation on any of it is under way (a free counts when it has
// returned; one that has not may come after whatever goes on beside it). At most 64 blocks of an order are told apart.
inline std::uint64_t EngineModel::free_blocks(Order order, std::size_t client) const {
    std::uint64_t blocks = 0;
    const std::uint64_t count = setup_.geometry.frame_count >> order.value;
    for (std::uint64_t i = 0; i < count && i < 64; ++i) {
        const Block block{FrameIndex{i << order.value}, order};
        bool settled = is_free(block) && is_up_to_date(client, block);
        for (std::uint32_t slot = 0; slot < thread_slots_ && settled; ++slot) {
            const Intent intent{pool_.threads[slot].intent.load()};
            settled = !intent.active() || !overlaps(intent.block(), block);
        }
        if (settled) blocks |= std::uint64_t{1} << i;
    }
    return blocks;
}

inline void EngineModel::keep_history() {
    for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
        const std::uint64_t wanted = wanted_[client].load();
        const std::uint64_t before = free_throughout_[client].load();
        if (wanted == 0 || (before | some_always_free_[client].load()) == 0) continue;
        const std::uint64_t now = free_blocks(Order{static_cast<std::uint32_t>(wanted - 1)}, client);
        free_throughout_[client].store(before & now);
        if (now == 0) some_always_free_[client].store(0);
    }
}

inline std::vector<EngineModel::Owned> EngineModel::owned_blocks() const {
    std::vector<Owned> owned;
    for (const Place &place : places_) {
        const IndexEntry entry{place.entry->load()};
        if (entry.is_held() && entry.owner() != kOfflineOwner)
            owned.push_back({Block{place.base, entry.order()}, entry.owner()});
    }
    return owned;
}

// Every block that the index calls owned, whoever owns it and however far its allocation or its owner's death has come.
inline void EngineModel::check_owned(const std::vector<Owned> &owned) {
    for (std::size_t i = 0; i < owned.size(); ++i) {
        const Block block = owned[i].block;
        for (std::size_t j = i + 1; j < owned.size(); ++j)
            if (overlaps(block, owned[j].block))
                fail("two live blocks overlap: " + to_text(block) + " and " + to_text(owned[j].block));
        if (Chunks<SimEnv>{view_, pool_}.is_offline(block.base.value >> setup_.geometry.largest_order))
            fail("a live block lies in a chunk that is offline: " + to_text(block));
        const unsigned layer = layer_of(block.order);
        std::uint64_t word = block.base.value >> word_order(layer);
        if (layer == 0) {
            const std::uint64_t mask = leaf::mask(block.base.value % kLeafFrames, block.order.value);
            if ((view_.leaf[word].load() & mask) != mask)
                fail("a live block's frames are not taken: " + to_text(block));
        } else {
            const unsigned child_order = word_order(layer - 1);
            const std::uint8_t group = upper::group(
                static_cast<unsigned>(block.base.value >> child_order) % kUpperFanOut, block.order.value - child_order);
            const UpperWord state{view_.upper[layer][word].load()};
            if ((state.allocated_children() & group) != group)
                fail("a live block's children are not taken: " + to_text(block));
            if ((state.occupied_children() & group) != 0)
                fail("something is marked below a live block: " + to_text(block));
        }
        for (unsigned level = layer + 1; level <= view_.top_layer; ++level) {
            const UpperWord above{view_.upper[level][word / kUpperFanOut].load()};
            if (!above.occupied_below(word % kUpperFanOut)) fail("no mark above a live block: " + to_text(block));
            word /= kUpperFanOut;
        }
    }
}

inline void EngineModel::check_state() {
    const std::vector<Owned> owned = owned_blocks();
    const std::uint64_t last_word = setup_.geometry.word_count(0) - 1;
    if (const std::uint64_t beyond = beyond_the_end(last_word); (view_.leaf[last_word].load() & beyond) != beyond)
        fail("frames are open that do not exist");
    check_owned(owned);
    if (setup_.unit_chunks != 0) check_unit();
    for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
        if (explorer.dead(setup_.clients[client].process)) continue;
        const Local &local = explorer.local<Local>(static_cast<int>(client));
        for (unsigned slot = 0; slot < kHeldMax; ++slot) {
            if (!local.held[slot] && !local.cached[slot]) continue;
            bool found = false;
            for (const Owned &entry : owned)
                found = found || (entry.block == local.blocks[slot] && entry.process.value == process_slot_of(client));
            if (!found) fail("a client holds " + to_text(local.blocks[slot]) + ", which the index does not say");
            for (std::size_t other = 0; other < client && local.held[slot]; ++other) {
                // Threads of one process may (Setup::shared): that is its own affair.
                const std::uint16_t process = setup_.clients[other].process;
                if (process == setup_.clients[client].process || explorer.dead(process)) continue;
                const Local &theirs = explorer.local<Local>(static_cast<int>(other));
                for (unsigned place = 0; place < kHeldMax; ++place)
                    if (theirs.held[place] && theirs.blocks[place] == local.blocks[slot])
                        fail("two processes hold " + to_text(local.blocks[slot]));
            }
        }
    }
}

// Who writes to a chunk without memory behind it gets memory that nobody counts, or a signal.
inline void EngineModel::check_unit() {
    if (unit_is_populated_->load() != 0) return;
    const Chunks<SimEnv> chunks{view_, pool_};
    for (unsigned chunk = 0; chunk < setup_.unit_chunks; ++chunk)
        if (!chunks.is_offline(chunk)) fail("chunk " + std::to_string(chunk) + " is open and has no memory");
}

inline void EngineModel::check_unit_when_quiet() {
    const Chunks<SimEnv> chunks{view_, pool_};
    const auto state = static_cast<UnitState>(unit_state_->load());
    for (unsigned chunk = 0; chunk < setup_.unit_chunks; ++chunk) {
        const std::string name = "quiet: chunk " + std::to_string(chunk);
        if (chunks.is_offline(chunk) != (state == UnitState::offline)) fail(name + " is not what the ledger says");
        const std::uint64_t child = chunk << setup_.geometry.largest_order >> word_order(view_.top_layer - 1);
        const UpperWord word{view_.upper[view_.top_layer][child / kUpperFanOut].load()};
        if (word.draining(child % kUpperFanOut) != (unit_is_draining_->load() != 0))
            fail(name + " is draining, or is not, and the ledger says otherwise");
    }
}

// The shared block is nobody's in particular until the first has freed it, or as long as somebody caches it.
inline bool EngineModel::is_shared_and_held(const Owned &entry) const {
    if (setup_.shared < 0 || entry.block != shared_ || entry.process.value != process_slot_of(0) ||
        explorer.dead(entry.process.value))
        return false;
    bool held = shared_ended_->load() == 0;
    for (std::size_t client = 0; client < setup_.clients.size(); ++client)
        held = held || (process_slot_of(client) == entry.process.value &&
                        explorer.local<Local>(static_cast<int>(client)).caches_shared);
    return held;
}

// Names go on where a round ends: all entries began at the end of a round's second half, with era words that say the
// first (wrap_numbers()).
inline void EngineModel::check_eras() {
    for (const auto &place : places_) {
        const std::uint32_t generation = IndexEntry{place.entry->load()}.generation();
        const std::uint16_t era = view_.era_word(place.layer, Block{place.base, Order{0}}).load();
        const std::uint16_t expected = generation == kGenerationMax ? 1 : 2;
        if (era_of(era, generation) != expected)
            explorer.fail("era word " + std::to_string(era) + " at generation " + std::to_string(generation));
    }
}

inline void EngineModel::check_quiet() {
    if (setup_.wrapping) check_eras();
    const std::vector<Owned> owned = owned_blocks();
    for (const Owned &entry : owned) {
        // What is in the mailbox is still its giver's.
        bool held = mailbox_->load() != 0 && named_by(Reference{mailbox_->load()}) == entry.block &&
                    !explorer.dead(entry.process.value);
        held = held || is_shared_and_held(entry);
        for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
            if (process_slot_of(client) != entry.process.value || explorer.dead(setup_.clients[client].process))
                continue;
            const Local &local = explorer.local<Local>(static_cast<int>(client));
            held = held || local.is_its(entry.block);
        }
        if (!held) fail("quiet: the index says owned, but nobody holds " + to_text(entry.block));
    }
    check_caches_when_quiet();
    if (setup_.unit_chunks != 0) check_unit_when_quiet();
    for (std::uint32_t thread = 0; thread < thread_slots_; ++thread) {
        if (pool_.threads[thread].intent.load() != 0)
            fail("quiet: an intent is left in slot " + std::to_string(thread));
        if (HintWork{pool_.threads[thread].hint_work.load()}.active())
            fail("quiet: hint work is left in slot " + std::to_string(thread));
        const WaitWord word{pool_.threads[thread].waiting.load()};
        if (word.is_given()) fail("quiet: a block is on its way to slot " + std::to_string(thread));
        for (std::uint64_t base = 0; word.is_waiting() && base < setup_.geometry.frame_count;
             base += word.order().frames())
            if (is_free(Block{FrameIndex{base}, word.order()}))
                fail("quiet: slot " + std::to_string(thread) + " waits for what is free");
    }
    check_words_when_quiet(owned);
    check_hints_when_quiet();
    check_that_free_memory_can_be_had();
}

// A block in a cache must not be freed by its user of before; one in use must not be called cached.
inline void EngineModel::check_caches_when_quiet() {
    if (somebody_forked()) return;  // a copy of a cache says what it likes
    for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
        if (explorer.dead(setup_.clients[client].process)) continue;
        const Local &local = explorer.local<Local>(static_cast<int>(client));
        for (unsigned slot = 0; slot < kHeldMax; ++slot) {
            if (!local.held[slot] && !local.cached[slot]) continue;
            const IndexEntry entry{view_.index_entry(local.blocks[slot]).load()};
            if (entry.is_cached() != local.cached[slot])
                fail("quiet: " + to_text(local.blocks[slot]) + " is " + (local.cached[slot] ? "" : "not ") +
                     "in a cache, the index says otherwise");
        }
    }
}

inline bool EngineModel::is_offline_child(unsigned layer, std::uint64_t child) const {
    const std::uint64_t chunk = child << word_order(layer - 1) >> setup_.geometry.largest_order;
    return layer == view_.top_layer && Chunks<SimEnv>{view_, pool_}.is_offline(chunk);
}

// Marks too many are allowed (check_that_free_memory_can_be_had), marks too few are check_owned's business.
inline void EngineModel::check_words_when_quiet(const std::vector<Owned> &owned) {
    std::vector<std::uint64_t> leaf = taken_;
    leaf.back() |= beyond_the_end(leaf.size() - 1);
    std::array<std::vector<std::uint8_t>, kMaxUpperLayers + 1> allocated;
    for (unsigned layer = 1; layer <= view_.top_layer; ++layer)
        allocated[layer].resize(setup_.geometry.word_count(layer));
    for (const Owned &entry : owned) {
        const unsigned layer = layer_of(entry.block.order);
        const std::uint64_t word = entry.block.base.value >> word_order(layer);
        if (layer == 0) {
            leaf[word] |= leaf::mask(entry.block.base.value % kLeafFrames, entry.block.order.value);
        } else {
            const unsigned child_order = word_order(layer - 1);
            allocated[layer][word] |=
                upper::group(static_cast<unsigned>(entry.block.base.value >> child_order) % kUpperFanOut,
                             entry.block.order.value - child_order);
        }
    }
    for (std::uint64_t word = 0; word < leaf.size(); ++word) {
        const std::uint64_t extra = view_.leaf[word].load() & ~leaf[word];
        if (extra != 0) fail("quiet: frames are lost in leaf word " + std::to_string(word));
    }
    for (unsigned layer = 1; layer <= view_.top_layer; ++layer) {
        for (std::uint64_t word = 0; word < allocated[layer].size(); ++word) {
            const UpperWord state{view_.upper[layer][word].load()};
            const std::string where = " in word " + std::to_string(word) + " of layer " + std::to_string(layer);
            for (unsigned child = 0; child < kUpperFanOut; ++child) {
                const std::uint64_t below = word * kUpperFanOut + child;
                if (below >= setup_.geometry.word_count(layer - 1)) continue;  // beyond the pool: closed for ever
                if (state.allocated_here(child) && (allocated[layer][word] >> child & 1) == 0 &&
                    !is_offline_child(layer, below))
                    fail("quiet: memory is lost, a child stays allocated" + where);
            }
        }
    }
}

// Too high costs time, too low hides memory.
inline void EngineModel::check_hints_when_quiet() {
    const Search<SimEnv> search = buddy_->searcher(Actor{kDaemonThread, kDaemonProcess});
    const unsigned ceiling = search.ceiling();
    for (unsigned level = 1; level < view_.hint_levels; ++level) {
        for (std::uint64_t word = 0; word < setup_.geometry.word_count(level); ++word) {
            const HintWord hint{view_.hint[level + 1][word / kUpperFanOut].load()};
            const unsigned promised = hint.value(word % kUpperFanOut, ceiling);
            if (promised >= search.value_of(level, word)) continue;
            if (level < view_.top_layer) {
                // Closed below an allocated block: whoever frees that one raises it.
                const UpperWord above{view_.upper[level + 1][word / kUpperFanOut].load()};
                if (above.allocated_here(word % kUpperFanOut)) continue;
            }
            fail("quiet: the hint for word " + std::to_string(word) + " of level " + std::to_string(level) +
                 " is too low");
        }
    }
}

// Alone, as the daemon: each order can be had exactly if a free block of it is there. Undone by the explorer.
inline void EngineModel::check_that_free_memory_can_be_had() {
    for (unsigned value = 0; value <= setup_.geometry.largest_order; ++value) {
        const Order order{value};
        bool some = false;
        for (std::uint64_t i = 0; i < setup_.geometry.frame_count >> value && !some; ++i)
            some = is_free({FrameIndex{i << value}, order});
        const Actor prober{kDaemonThread, kDaemonProcess};
        Block block{};
        const Errc result = buddy_->allocate(prober, order, {}, block);
        if (result != (some ? Errc::ok : Errc::out_of_frames))
            fail(std::string("quiet: memory of order ") + std::to_string(value) + (some ? " is free" : " is not free") +
                 ", but allocate says " + error_row(result).name);
        if (result != Errc::ok) continue;
        Block freed{};
        if (buddy_->free(prober, block.base, freed) != Errc::ok || freed != block)
            fail("quiet: what was just allocated cannot be freed");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// For traces

inline void EngineModel::label_words() {
    const Geometry &geometry = setup_.geometry;
    explorer.label(view_.leaf, geometry.word_count(0) * 8, "leaf");
    for (unsigned layer = 1; layer <= view_.top_layer; ++layer)
        explorer.label(view_.upper[layer], geometry.word_count(layer) * 8, "upper" + std::to_string(layer));
    for (unsigned level = 2; level <= view_.hint_levels; ++level)
        explorer.label(view_.hint[level], geometry.word_count(level) * 8, "hint" + std::to_string(level));
    for (unsigned layer = 0; layer <= view_.top_layer; ++layer) {
        explorer.label(view_.index[layer], geometry.index_entry_count(layer) * 8, "index" + std::to_string(layer));
        explorer.label(view_.era[layer], geometry.index_entry_count(layer) * 2, "era" + std::to_string(layer), 2);
    }
    for (std::uint32_t slot = 0; slot < thread_slots_; ++slot) {
        const std::string name = "slot" + std::to_string(slot);
        explorer.label(&pool_.threads[slot].intent, 8, name + ".intent");
        explorer.label(&pool_.threads[slot].owner, 8, name + ".owner");
        explorer.label(&pool_.threads[slot].hint_work, 8, name + ".hint_work");
        explorer.label(&view_.home[slot], sizeof view_.home[slot], name + ".home");
    }
    for (std::uint32_t slot = 0; slot < process_slots_; ++slot)
        explorer.label(&pool_.processes[slot].state, 8, "process" + std::to_string(slot) + ".state");
    explorer.describe_values([this](const void *address, std::uint64_t value) { return meaning(address, value); });
}

inline std::string EngineModel::meaning(const void *address, std::uint64_t value) const {
    const auto within = [address](const Word *first, std::uint64_t count) {
        return address >= first && address < first + count;
    };
    for (unsigned layer = 0; layer <= view_.top_layer; ++layer) {
        if (layer > 0 && within(view_.upper[layer], setup_.geometry.word_count(layer))) {
            const auto plane = [value](unsigned shift) { return std::to_string(value >> shift & 0xff); };
            return "P " + plane(0) + " F " + plane(8) + " COAL " + plane(16) + " tag " + std::to_string(value >> 32);
        }
        if (within(view_.index[layer], setup_.geometry.index_entry_count(layer))) {
            const IndexEntry entry{value};
            const std::string holder = std::to_string(entry.owner().value);
            const std::string state = entry.is_owned()     ? "owned by process " + holder
                                      : entry.is_freeing() ? "freeing by slot " + holder
                                                           : "none";
            return state + ", order " + std::to_string(entry.order().value) + ", generation " +
                   std::to_string(entry.generation());
        }
    }
    for (std::uint32_t slot = 0; slot < thread_slots_; ++slot) {
        if (address != &pool_.threads[slot].intent) continue;
        const Intent intent{value};
        if (!intent.active()) return "none";
        return (intent.kind() == IntentKind::allocate ? "allocate " : "free ") + to_text(intent.block());
    }
    return {};
}

}  // namespace numacre::model
