// The product's allocator (shm/buddy/, recovery.hpp; the very source that clients run) under the explorer: clients
// with bounded scripts, optionally deaths and a recovering daemon, and what must hold in every state.
//
// Trees are small in what can happen, not in their words: orders 5, 6 and 7 of a pool of 128 frames are a tree of seven
// blocks over real 64-bit leaf words and a real upper word; or most frames are taken beforehand
// (Setup::taken).
//
// The class is here; what its functions do is in a file for each duty, which this one includes at its end.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine_setup.hpp"
#include "explorer.hpp"
#include "numacre/shm/buddy.hpp"
#include "numacre/shm/chunks.hpp"
#include "numacre/shm/fit.hpp"
#include "numacre/shm/format.hpp"
#include "numacre/shm/hand_off.hpp"
#include "numacre/shm/idle_caches.hpp"
#include "numacre/shm/recovery.hpp"
#include "support/cached_block.hpp"

namespace numacre::model {

using test::handed_out;
using test::into_cache;
using test::is_cached;
using test::is_like;
using test::look_at;
using test::out_of_cache;
using test::out_of_cache_named;

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
        std::array<Block, 2> read;  // held by kHold
        std::array<bool, 2> reads;
        bool caches_shared;      // the shared block is in its cache, or was when it looked
        std::uint64_t answered;  // requests for cached blocks that it has seen
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
    bool somebody_died() const;
    bool somebody_thinks_again() const;
    bool somebody_takes_what_it_finds() const;
    Block named_by(Reference reference) const { return view_.reference_format.block(reference); }
    bool several_refer_to_shared() const;
    bool somebody_forked() const;
    bool somebody_reads() const;
    bool is_read(Block block) const;
    bool is_dead_or_corpse(std::uint16_t process) const;

    // engine_layout.hpp
    void lay_out();
    void wrap_numbers();
    void take_beforehand();

    // engine_script.hpp
    void add_client(std::size_t client);
    void operate(Thread &self, std::size_t client);
    void allocate_one(Thread &self, std::size_t client, Order order, unsigned slot);
    void free_one(Thread &self, std::size_t client, unsigned slot);
    void allocate_where_it_fits(Thread &self, std::size_t client, Order order, unsigned slot);
    void follow_script(Thread &self, std::size_t client, int what);
    void put_into_mailbox(Thread &self, std::size_t client, unsigned slot);
    void think_again(Thread &self, std::size_t client, int what, unsigned room);
    enum class Many : bool { no, yes };
    void take_from_mailbox(Thread &self, std::size_t client, unsigned slot, Many many);
    void take_found(Thread &self, std::size_t client, unsigned slot);
    void use_cache(Thread &self, std::size_t client, int what);
    bool enter_cache(Thread &self, std::size_t client);
    void use_cache_inside(Thread &self, std::size_t client, int what);
    void uncache_named(Thread &self, std::size_t client);
    void gather(Thread &self, std::size_t client, bool fenced);
    void free_and_serve(Thread &self, std::size_t client, unsigned slot);
    void wait_for(Thread &self, std::size_t client, Order order, bool patient, unsigned slot);
    void serve_if_somebody_waits(std::size_t client);
    void allocate_many(Thread &self, std::size_t client, Order order, BlockState state);
    void free_many(Thread &self, std::size_t client, BlockState state);
    void use_shared(Thread &self, std::size_t client, int what, unsigned room);
    void refer_to_shared(Thread &self, std::size_t client);
    void hold_noticed(Thread &self, std::size_t client);
    void drop_first(Thread &self, std::size_t client);
    void touch_frames(Thread &self, Block block) const;
    void touch_as_reader(Thread &self, std::size_t client, Block block) const;

    // engine_operator.hpp
    void add_daemon();
    void add_operator();
    void take_chunk_step(ChunkStep step);
    void take_unit_step(Thread &self, ChunkStep step);
    void finish_unit(Thread &self);
    void open_unit(Thread &self, bool only_closed);
    void set_unit_drain(bool drain);
    void populate_unit(bool populated);
    void release_seized(Thread &self, Recovery<SimEnv> &recovery) const;
    bool may_release_seized(Recovery<SimEnv> &recovery) const;

    // engine_invariants.hpp
    std::uint64_t beyond_the_end(std::uint64_t leaf_word) const;
    bool is_free(Block block) const;
    bool is_up_to_date(std::size_t client, Block block) const;
    std::uint64_t free_blocks(Order order, std::size_t client) const;
    std::vector<Owned> owned_blocks() const;
    bool is_shared_and_held(const Owned &entry) const;
    void keep_history();
    void check_owned(const std::vector<Owned> &owned);
    void check_invariants();
    void check_invariants_at_rest();
    void check_eras();
    void check_unit();
    void check_unit_when_quiet();
    bool is_offline_child(unsigned layer, std::uint64_t child) const;
    void check_caches_when_quiet();
    void check_words_when_quiet(const std::vector<Owned> &owned);
    void check_hints_when_quiet();
    void check_that_free_memory_can_be_had();

    // engine_traces.hpp
    void label_words();
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
    Word *attention_ = nullptr;  // the pool's header is no part of the state here
    Word *frames_ = nullptr;     // what owners write to, a word for each smallest block that anybody allocates
    unsigned frames_order_ = kMaxOrder;
    Word *read_frames_ = nullptr;   // as frames_, for each client that holds blocks: readers do not disturb readers
    Word *notice_ = nullptr;        // the last Reference that was in the mailbox: who holds leaves it there
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

// The word that a waiter sleeps on has changed already: that is all there is to waking it.
inline void nobody_to_wake(ThreadSlotIndex) {}

}  // namespace numacre::model

// In the order of use: where a function stands decides what the compiler inlines, hence which dead bytes tell equal
// states apart, and so how many states are counted (README.md).
// clang-format off
#include "engine_layout.hpp"
#include "engine_script.hpp"
#include "engine_operator.hpp"
#include "engine_invariants.hpp"
#include "engine_traces.hpp"
// clang-format on
