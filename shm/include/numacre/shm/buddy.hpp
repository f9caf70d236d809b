// The allocator of one numa node: a non-blocking buddy system after Marotta et al. (NBBS, IEEE TC 2021), corrected,
// packed wider and made to survive the death of any process. All atomics of the tree are here and in search.hpp,
// recovery.hpp.
//
// Every operation is lock-free, never blocks, never enters the kernel. A process may die at any instruction of any of
// them; Recovery then completes or undoes what it was doing. shm/README.md has the steps, the crash table and the
// edges.
#pragma once

#include <bit>
#include <cstdint>

#include "numacre/shm/counters.hpp"
#include "numacre/shm/error.hpp"
#include "numacre/shm/layout.hpp"
#include "numacre/shm/search.hpp"

namespace numacre {

// Who acts: a thread slot that belongs to the calling thread alone, of a process slot that the daemon gave out.
struct Actor {
    ThreadSlotIndex thread;
    ProcessSlot process;
};

template <class Env>
class Buddy {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;

    Buddy(const NodeView<Env> &view, const PoolView<Env> &pool) : view_(view), pool_(pool) {}

    const NodeView<Env> &view() const { return view_; }

    // A block of `order` for actor.process. Errors: out_of_frames, bad_argument.
    // Common path: one RMW (the claim), then one load an upper layer, three plain stores.
    Errc allocate(Actor actor, Order order, Note note, Block &out) {
        return allocate_as(actor, order, Grant{note, BlockState::owned}, out);
    }

    // How far the short paths below came. They hold the common case alone, small enough to be compiled into a caller,
    // who goes on with what is rare by a call that it need not come back from.
    enum class ShortPath : std::uint8_t {
        refused,  // nothing was done: ask allocate_further(), free()
        raced,    // the same, because somebody else changed the word meanwhile
        begun,    // the last step is left: finish_allocation(), finish_free()
        done,
    };

    // allocate() of a block of at most kLeafOrder (and at most the pool's largest) from the word where this thread was
    // last.
    [[gnu::always_inline]] ShortPath allocate_nearby(const Actor &actor, Order order, Note note, Block &out) {
        const std::uint64_t home = home_word(actor, 0, order);
        if (home == kNoWord) [[unlikely]]
            return ShortPath::refused;
        return allocate_in_leaf(actor, home, order, Grant{note, BlockState::owned}, out);
    }
    // The same of a block larger than kLeafOrder.
    [[gnu::always_inline]] ShortPath allocate_nearby_in_upper(const Actor &actor, Order order, Note note, Block &out) {
        const unsigned layer = layer_of(order);
        const std::uint64_t home = home_word(actor, layer, order);
        if (home == kNoWord) [[unlikely]]
            return ShortPath::refused;
        return allocate_in_upper(actor, layer, home, order, home_of(actor, order).widest(),
                                 Grant{note, BlockState::owned}, out);
    }
    // allocate() after one of these refused. Errors: out_of_frames.
    Errc allocate_further(Actor actor, Order order, Note note, Block &out) {
        const unsigned layer = layer_of(order);
        return allocate_elsewhere(actor, layer, home_word(actor, layer, order), {}, order,
                                  Grant{note, BlockState::owned}, out);
    }
    // False: it had to be undone.
    [[gnu::noinline]] bool finish_allocation(const Actor &actor, Note note, Block block) {
        const unsigned layer = layer_of(block.order);
        return finish_claim(actor, layer, block.base.value >> word_order(layer), block, Grant{note, BlockState::owned})
            .got;
    }

    // free() of a block in a leaf word. base exists.
    [[gnu::always_inline]] ShortPath free_in_leaf(const Actor &actor, FrameIndex base, Block &freed) {
        IndexEntry entry;
        if (!find_in_leaf(base, freed, entry) || entry.owner() != actor.process) [[unlikely]]
            return ShortPath::refused;
        return free_found(actor, 0, freed, entry, true);
    }
    // free() of a block in an upper word. base exists.
    ShortPath free_in_upper(const Actor &actor, FrameIndex base, Block &freed) {
        IndexEntry entry;
        if (!find_from_layer(1, base, freed, entry) || entry.owner() != actor.process) [[unlikely]]
            return ShortPath::refused;
        return free_found(actor, layer_of(freed.order), freed, entry, true);
    }

    [[gnu::noinline]] void finish_free(const Actor &actor, Block freed) {
        const unsigned layer = layer_of(freed.order);
        raise_hints(actor, layer, freed.base.value >> word_order(layer));
        Env::crash_point(CrashPoint::free_after_hints);
        end(actor);
    }

    // Frees the block that begins at `base` if `actor.process` owns it. freed: what it was.
    // Errors (nothing changed): bad_argument (no such frame), not_owner, stale_ref (not allocated, or not from there).
    Errc free(Actor actor, FrameIndex base, Block &freed) {
        if (base.value < view_.geometry.frame_count) {
            ShortPath way = free_in_leaf(actor, base, freed);
            if (way == ShortPath::refused) way = free_in_upper(actor, base, freed);
            if (way == ShortPath::begun) finish_free(actor, freed);
            if (way != ShortPath::refused) return Errc::ok;
        }
        IndexEntry entry;
        const Errc found = find_entry(base, freed, entry);
        if (found != Errc::ok) return found;
        if (entry.owner() != actor.process) return Errc::not_owner;
        return free_entry(actor, freed, entry, true);
    }

    // Becomes the owner of the referenced block, which it holds from `since` on. One RMW. Needs no intent: before the
    // CAS the block is the giver's, after it ours. Errors: bad_argument (not a reference of this pool), stale_ref.
    Errc take(Actor actor, Reference reference, PoolAge since, Block &taken) {
        const Block block = reference.block();
        if (!view_.contains(block) || reference.generation() == 0) return Errc::bad_argument;
        Word &slot = view_.index_entry(block);
        std::uint64_t bits = slot.load(std::memory_order_acquire);
        const IndexEntry entry{bits};
        if (!entry.is_owned() || !entry.is_published() || entry.order() != block.order ||
            entry.generation() != reference.generation() || entry.owner() == kOfflineOwner ||
            entry.owner() == kDaemonProcess)
            return Errc::stale_ref;
        // EDGE hand-over (acq_rel; partners: EDGE publish, EDGE ownership). Acquires what publish() released, the
        // giver's bytes; releases our ownership to whoever tries after us. Weakened: the taker reads a frame from
        // before the giver wrote it.
        if (!slot.compare_exchange_strong(bits, entry.handed_to(actor.process, since).bits(),
                                          std::memory_order_acq_rel))
            return Errc::stale_ref;
        count(view_.counters[actor.thread.value].takes);
        taken = block;
        return Errc::ok;
    }

    // Makes an owned, found block takeable by others; returns its name. A plain store: until then only the owner's
    // process writes the entry. Caller dies inside: it was published or it was not; recovery gives it back either way.
    Reference publish(Block block, IndexEntry entry) {
        // EDGE publish (release; partner: EDGE hand-over): whoever takes sees what the giver wrote into the block.
        if (!entry.is_published()) view_.index_entry(block).store(entry.published().bits(), std::memory_order_release);
        return Reference{view_.numa_node, block, entry.generation()};
    }

    // The steps of a hand-off (hand_off.hpp). First: the held block that entry tells of is nobody's, on its way. entry:
    // what it is now. The intent stays set. False: it is not ours any more, nothing was done.
    bool put_on_its_way(Actor actor, Block block, IndexEntry &entry) {
        begin(actor, IntentKind::free, block);
        std::uint64_t bits = entry.bits();
        entry = IndexEntry::owned(kHandOffOwner, block.order, next_generation(entry.generation()), {});
        // EDGE ownership, as in become_freer(): recovery that sees the block on its way finds the intent.
        if (!view_.index_entry(block).compare_exchange_strong(bits, entry.bits(), std::memory_order_acq_rel)) {
            end(actor);
            return false;
        }
        Env::crash_point(CrashPoint::hand_off_on_its_way);
        return true;
    }
    // Then the waiter's word says where it is. Last: tally: it was somebody's, and counts as freed.
    void has_been_given(Actor actor, Block block, bool tally) {
        if (tally) count(view_.counters[actor.thread.value].frees[block.order.value]);
        Env::crash_point(CrashPoint::hand_off_given);
        end(actor);
    }
    // The waiter: makes it its own. False: it is on its way no more.
    bool receive(Actor actor, FrameIndex base, std::uint32_t generation, Note note, Block &block) {
        IndexEntry entry;
        if (find_entry(base, block, entry) != Errc::ok || entry.owner() != kHandOffOwner ||
            entry.generation() != generation)
            return false;
        // A store will do: nobody but the one who has been told of it writes the entry of a block on its way.
        // EDGE commit (release), as after a claim.
        const auto ours = IndexEntry::owned(actor.process, block.order, next_generation(generation), note);
        view_.index_entry(block).store(ours.bits(), std::memory_order_release);
        Env::crash_point(CrashPoint::hand_off_received);
        count(view_.counters[actor.thread.value].allocations[block.order.value]);
        count(view_.counters[actor.thread.value].hand_offs);
        return true;
    }

    // The opposite of publish(): what references name is gone. False: somebody took the block before. On success entry
    // is what it is now.
    bool withdraw(Block block, IndexEntry &entry) {
        std::uint64_t bits = entry.bits();
        const IndexEntry now =
            IndexEntry::owned(entry.owner(), entry.order(), next_generation(entry.generation()), entry.note());
        // EDGE hand-over, the other side of it.
        if (!view_.index_entry(block).compare_exchange_strong(bits, now.bits(), std::memory_order_acq_rel))
            return false;
        entry = now;
        return true;
    }

    // The given block and no other: FitLook has found it free, and not draining. False, nothing changed: it is free
    // no more. Dying inside: as in allocate().
    bool allocate_at(Actor actor, Block block, Note note) {
        if (!view_.contains(block)) return false;
        const unsigned layer = layer_of(block.order);
        if (layer != 0 && !clean_below(actor, block)) return false;
        if (!claim_exactly(actor, block)) return false;
        keep_claim(actor, layer, block, Grant{note, BlockState::owned});
        return true;
    }

    // Blocks of one order (at most kLeafOrder), many of a leaf word by one RMW. Returns how many: fewer when no more is
    // free. state: owned or cached; only owned ones count as allocations. Dying inside: those that are committed are
    // the process's and given back as such, the others are cleared by recovery.
    unsigned allocate_many(Actor actor, Order order, BlockState state, Note note, FrameIndex *bases, unsigned wanted) {
        const Grant grant{note, state};
        unsigned got = 0;
        while (got < wanted) {
            const std::uint64_t home = home_word(actor, layer_of(order), order);
            const unsigned more = home == kNoWord || order.value >= kLeafOrder
                                      ? 0
                                      : allocate_in_word(actor, home, order, grant, bases + got, wanted - got);
            got += more;
            if (more != 0) continue;
            Block block;
            if (allocate_as(actor, order, grant, block) != Errc::ok) break;  // also finds the next home
            bases[got++] = block.base;
        }
        return got;
    }

    // Frees blocks of order at most kLeafOrder that are the process's and in this state: owned, or cached by the
    // caller. Neighbours in the list that share a leaf word share the RMW on it. Returns how many, counted from the
    // first: it ends before one that is not such a block.
    unsigned free_many(Actor actor, BlockState state, const FrameIndex *bases, unsigned count_of_bases) {
        unsigned freed = 0;
        bool fits = true;
        while (fits && freed < count_of_bases && bases[freed].value < view_.geometry.frame_count) {
            const std::uint64_t word = bases[freed].value / kLeafFrames;
            begin(actor, IntentKind::word, leaf_word_block(word));
            std::uint64_t mask = 0;
            while (freed < count_of_bases && bases[freed].value / kLeafFrames == word) {
                fits = start_freeing(actor, state, bases[freed], mask);
                if (!fits) break;
                ++freed;
            }
            if (mask != 0) release_in_leaf(actor, word, mask);
            end(actor);
        }
        return freed;
    }

    // The owned block that begins at base, in whatever layer. Errors: bad_argument (no such frame), stale_ref (none).
    Errc find_entry(FrameIndex base, Block &block, IndexEntry &entry) const {
        if (base.value >= view_.geometry.frame_count) return Errc::bad_argument;
        return find_from_layer(0, base, block, entry) ? Errc::ok : Errc::stale_ref;
    }

    // The same in the leaf layer alone. base exists.
    [[gnu::always_inline]] bool find_in_leaf(FrameIndex base, Block &block, IndexEntry &entry) const {
        entry = IndexEntry{view_.index[0][base.value].load(std::memory_order_acquire)};  // EDGE look-up
        block = Block{base, entry.order()};
        return entry.is_owned() && block.order.value <= kLeafOrder &&
               block.order.value <= view_.geometry.largest_order && (base.value & (block.order.frames() - 1)) == 0;
    }

    // The owned block that covers a frame but need not begin there: for error messages.
    bool find_covering(FrameIndex frame, Block &block) const {
        IndexEntry entry;
        for (unsigned order = 0; order <= view_.geometry.largest_order; ++order) {
            const FrameIndex base{frame.value >> order << order};
            if (find_entry(base, block, entry) == Errc::ok && block.base.value + block.order.frames() > frame.value)
                return true;
        }
        return false;
    }

    // Frees an owned block that find_entry just showed. stale_ref: somebody was faster. tally: it is somebody's free,
    // not a chunk that comes online.
    Errc free_entry(Actor actor, Block block, IndexEntry entry, bool tally) {
        const ShortPath way = free_found(actor, layer_of(block.order), block, entry, tally);
        if (way == ShortPath::begun) finish_free(actor, block);
        return way == ShortPath::refused ? Errc::stale_ref : Errc::ok;
    }

    // ------------------------------------------------------------------------------------------------------------------
    // For the daemon's Chunks and for Recovery.

    // Claims exactly this block, even in a draining chunk. The intent stays set: the caller writes the index and ends
    // it.
    bool claim_exactly(Actor actor, Block block) {
        const unsigned layer = layer_of(block.order);
        const std::uint64_t word = block.base.value >> word_order(layer);
        begin(actor, IntentKind::allocate, block);
        if (!claim(layer, word, block)) {
            end(actor);
            return false;
        }
        if (climb(layer, word) == kClimbed) return true;
        undo(actor, layer, word, block);
        end(actor);
        return false;
    }

    // CLEAN, one level: clears the mark of (layer, word) in its parent if the word is empty. True: there is no mark
    // now. Dying inside leaves COAL set, which is harmless: the next allocation withdraws it, the next clean uses it.
    bool clean(unsigned layer, std::uint64_t word) {
        const unsigned child = word % kUpperFanOut;
        Word &state = view_.upper[layer + 1][word / kUpperFanOut];
        UpperWord seen{state.load(std::memory_order_seq_cst)};
        unsigned rounds = 0;
        while (seen.occupied_below(child)) {
            if (++rounds > kCasRoundsMax) return false;
            if (!seen.coalescing(child)) {
                if (!word_is_empty(layer, word)) return false;  // optional: saves the CAS
                std::uint64_t bits = seen.bits();
                if (!state.compare_exchange_weak(bits, seen.with_coalescing(child).bits(), std::memory_order_seq_cst)) {
                    seen = UpperWord{bits};
                    continue;
                }
                seen = seen.with_coalescing(child);
                Env::crash_point(CrashPoint::clean_after_coalescing);
            }
            // EDGE coalesce-then-look (seq_cst: COAL must be visible before this load; partner: EDGE claim-then-look).
            // Weakened: we see the child empty, an allocation below sees P without COAL and climbs on, we clear P over
            // a live block, and the parent is handed out whole.
            if (!word_is_empty(layer, word)) return false;
            std::uint64_t bits = seen.bits();
            // Compares the whole word, tag included: any change since we saw COAL makes us look again.
            if (state.compare_exchange_weak(bits, seen.without_mark(child).bits(), std::memory_order_seq_cst))
                return true;
            seen = UpperWord{bits};
        }
        return true;
    }

    // Cleans (layer, word) and all below it. False: something is allocated in or below it.
    bool clean_through(unsigned layer, std::uint64_t word, Search<Env> &search) {
        if (layer == 0) return clean(0, word);
        const UpperWord state{view_.upper[layer][word].load(std::memory_order_seq_cst)};
        bool empty = state.allocated_children() == 0;
        for (unsigned child = 0; child < kUpperFanOut && empty; ++child)
            if (state.occupied_below(child)) empty = clean_through(layer - 1, word * kUpperFanOut + child, search);
        if (empty) return clean(layer, word);
        search.lower(layer, word);  // its hint said that all of it is free, or we would not be here
        return false;
    }

    // Cleans the marks below a block that is not allocated yet, so that it can be claimed. False: somebody is in there.
    bool clean_below(Actor actor, Block block) {
        const unsigned layer = layer_of(block.order);
        if (layer == 0) return false;
        Search<Env> search = searcher(actor);
        return clean_children(layer, block.base.value >> word_order(layer), group_of(layer, block), search);
    }

    bool word_is_empty(unsigned layer, std::uint64_t word) const {
        return layer == 0 ? view_.leaf[word].load(std::memory_order_seq_cst) == 0
                          : UpperWord{view_.upper[layer][word].load(std::memory_order_seq_cst)}.empty();
    }

    Search<Env> searcher(Actor actor) const {
        return Search<Env>{view_, pool_.threads[actor.thread.value].hint_work, actor.thread};
    }

    void begin(Actor actor, IntentKind kind, Block block) {
        // EDGE intent-before-claim (release; the RMW that follows publishes it). Release also because it overwrites
        // what end() of the operation before released: who sees this intent must see that block's index entry.
        // Weakened: recovery sees the second intent, which is in nobody's way, but not that the first block is
        // committed, and takes its bits for those of a dead client that was after the same block.
        pool_.threads[actor.thread.value].intent.store(Intent{kind, view_.numa_node, block}.bits(),
                                                       std::memory_order_release);
    }
    void end(Actor actor) {
        // EDGE intent-clear (release; partner: the acquire loads in recovery). All that the operation did comes first.
        // Weakened: recovery sees no intent, yet our unclaim lands later, on the block's next owner.
        pool_.threads[actor.thread.value].intent.store(0, std::memory_order_release);
    }

    // EDGE commit (release; partners: EDGE look-up, EDGE ownership, EDGE hand-over, recovery's acquire loads). From
    // here on the block is the process's: a death gives it back as owned, not as in flight. Weakened: recovery sees
    // OWNED before the marks above the block and cleans them away under a live block.
    [[gnu::always_inline]] void commit(unsigned layer, Block block, ProcessSlot owner, Note note,
                                       BlockState state = BlockState::owned) {
        Word &slot = view_.index_entry(layer, block);
        // relaxed: whoever wrote the entry held these bits before us, and the claim acquired them.
        const IndexEntry old{slot.load(std::memory_order_relaxed)};
        const std::uint32_t generation = next_generation(old.generation());
        const IndexEntry entry = state == BlockState::owned ? IndexEntry::owned(owner, block.order, generation, note)
                                                            : IndexEntry::cached(owner, block.order, generation);
        slot.store(entry.bits(), std::memory_order_release);
    }

private:
    static constexpr std::uint64_t kNoWord = ~std::uint64_t{0};  // its successor is 0: "nowhere" in a home word
    static constexpr unsigned kClimbed = 0;

    // What the index entry of a new block is to say.
    struct Grant {
        Note note;
        BlockState state;
    };

    struct Attempt {
        bool got = false;
        unsigned closed_at = 0;  // level whose word has a closed child on our path; 0: the word itself had nothing
    };

    // The owned block that begins at base, in this layer or one above it. base exists.
    bool find_from_layer(unsigned lowest, FrameIndex base, Block &block, IndexEntry &entry) const {
        for (unsigned layer = lowest; layer <= view_.top_layer; ++layer) {
            const unsigned granule = view_.geometry.index_granule(layer);
            if ((base.value & ((std::uint64_t{1} << granule) - 1)) != 0) return false;
            // EDGE look-up (acquire; partner: EDGE commit): what the owner wrote before it gave us the address.
            entry = IndexEntry{view_.index[layer][base.value >> granule].load(std::memory_order_acquire)};
            block = Block{base, entry.order()};
            if (entry.is_owned() && layer_of(entry.order()) == layer && view_.contains(block) &&
                entry.owner() != kOfflineOwner)
                return true;
        }
        return false;
    }

    // --- freeing -----------------------------------------------------------------------------------------------------

    // An owned block that was just found: refused if somebody was faster. Marks above it stay: a claim of something
    // larger cleans them when it comes (lazy coalescing).
    [[gnu::always_inline]] ShortPath free_found(const Actor &actor, unsigned layer, Block block, IndexEntry entry,
                                                bool tally) {
        if (!become_freer(actor, layer, block, entry)) [[unlikely]]
            return ShortPath::refused;
        const std::uint64_t word = block.base.value >> word_order(layer);
        // The next block of this order comes from here: the place is known, and likely still in the processor's caches.
        // (From an upper word only if the hole is no wider than others that there are.)
        set_home(actor, block.order, Home{word, layer == 0 ? 0 : home_of(actor, block.order).widest()});
        if (tally) count(view_.counters[actor.thread.value].frees[block.order.value]);
        unclaim(layer, word, block);
        Env::crash_point(CrashPoint::free_after_unclaim);
        if (!hints_are_full(actor, layer, word)) [[unlikely]]
            return ShortPath::begun;
        Env::crash_point(CrashPoint::free_after_hints);
        end(actor);
        return ShortPath::done;
    }

    // Decides who frees. True: the calling thread, and its intent says so. False: somebody was faster.
    [[gnu::always_inline]] bool become_freer(const Actor &actor, unsigned layer, Block block, IndexEntry entry) {
        begin(actor, IntentKind::free, block);
        Env::crash_point(CrashPoint::free_after_intent);
        // EDGE ownership (acq_rel; partners: EDGE commit, EDGE hand-over). The one place where it is decided who frees:
        // a second free, a free of what was handed on and recovery all meet in this CAS. Release publishes the intent:
        // who sees FREEING(thread) must find the thread's intent. Weakened: recovery sees FREEING with no intent, takes
        // the free for finished, and clears bits that the block's next owner has by then.
        std::uint64_t bits = entry.bits();
        const auto freeing = IndexEntry::freeing(actor.thread, block.order, entry.generation());
        Word &slot = view_.index_entry(layer, block);
        if (!slot.compare_exchange_strong(bits, freeing.bits(), std::memory_order_acq_rel)) [[unlikely]] {
            end(actor);
            return false;
        }
        Env::crash_point(CrashPoint::free_after_ownership);
        return true;
    }

    // --- claiming ----------------------------------------------------------------------------------------------------

    Errc allocate_as(Actor actor, Order order, Grant grant, Block &out) {
        if (order.value > view_.geometry.largest_order) return Errc::bad_argument;
        const unsigned layer = layer_of(order);
        const std::uint64_t home = home_word(actor, layer, order);
        if (home == kNoWord) return allocate_elsewhere(actor, layer, kNoWord, {}, order, grant, out);
        if (layer == 0) {
            const Attempt first = try_word(actor, 0, home, order, grant, out);
            return first.got ? Errc::ok : allocate_elsewhere(actor, 0, home, first, order, grant, out);
        }
        const ShortPath way = allocate_in_upper(actor, layer, home, order, home_of(actor, order).widest(), grant, out);
        if (way == ShortPath::done || (way == ShortPath::begun && finish_claim(actor, layer, home, out, grant).got))
            return Errc::ok;
        return allocate_elsewhere(actor, layer, home, {}, order, grant, out);
    }

    // One attempt at a leaf word; whatever is out of the ordinary ends it.
    [[gnu::always_inline]] ShortPath allocate_in_leaf(const Actor &actor, std::uint64_t word, Order order, Grant grant,
                                                      Block &out) {
        Word &state = view_.leaf[word];
        // relaxed: only a guess, the CAS decides.
        std::uint64_t seen = state.load(std::memory_order_relaxed);
        const std::uint64_t starts = leaf::free_starts(seen, order.value);
        if (starts == 0) [[unlikely]]
            return ShortPath::refused;
        const auto frame = static_cast<unsigned>(std::countr_zero(starts));
        out = Block{FrameIndex{word * kLeafFrames + frame}, order};
        begin(actor, IntentKind::allocate, out);
        Env::crash_point(CrashPoint::allocate_after_intent);
        // EDGE claim-then-look (seq_cst, before the loads above the word; partner: EDGE coalesce-then-look). It also is
        // EDGE unclaim-to-claim's acquire side: the old owner's last accesses happened before ours.
        if (!state.compare_exchange_strong(seen, seen | leaf::mask(frame, order.value), std::memory_order_seq_cst,
                                           std::memory_order_relaxed)) [[unlikely]] {
            end(actor);
            count(view_.counters[actor.thread.value].cas_retries);
            return ShortPath::raced;
        }
        Env::crash_point(CrashPoint::allocate_after_claim);
        if (!is_marked_above(0, word)) [[unlikely]]
            return ShortPath::begun;
        keep_claim(actor, 0, out, grant);
        return ShortPath::done;
    }

    // The same at an upper word, in its smallest hole: of children without any mark, that is. Refused, too, if that is
    // wider than `widest`, in levels; a block as large as the word has no choice of holes in it.
    [[gnu::always_inline]] ShortPath allocate_in_upper(const Actor &actor, unsigned layer, std::uint64_t word,
                                                       Order order, unsigned widest, Grant grant, Block &out) {
        const unsigned child_order = word_order(layer - 1);
        const unsigned levels = order.value - child_order;
        Word &state = view_.upper[layer][word];
        const UpperWord seen{state.load(std::memory_order_relaxed)};  // relaxed: only a guess, the CAS decides
        const upper::Hole hole = upper::smallest_hole(seen.claimable_children(), levels);
        if (hole.levels > kUpperLevels || (hole.levels > widest && levels < kUpperLevels)) [[unlikely]]
            return ShortPath::refused;
        out = Block{FrameIndex{(word * kUpperFanOut + hole.first_child) << child_order}, order};
        begin(actor, IntentKind::allocate, out);
        Env::crash_point(CrashPoint::allocate_after_intent);
        std::uint64_t bits = seen.bits();
        // EDGE claim-then-look, as in allocate_in_leaf().
        if (!state.compare_exchange_strong(bits, seen.with_allocated(upper::group(hole.first_child, levels)).bits(),
                                           std::memory_order_seq_cst, std::memory_order_relaxed)) [[unlikely]] {
            end(actor);
            count(view_.counters[actor.thread.value].cas_retries);
            return ShortPath::raced;
        }
        Env::crash_point(CrashPoint::allocate_after_claim);
        // A new place: how wide its hole was says how wide one has to be taken until the next search. (A block as large
        // as the word lies in a hole of words: see search_and_claim().)
        if (levels < kUpperLevels && home_word(actor, layer, order) != word)
            set_home(actor, order, Home{word, hole.levels});
        if (!is_marked_above(layer, word)) [[unlikely]]
            return ShortPath::begun;
        keep_claim(actor, layer, out, grant);
        return ShortPath::done;
    }

    // climb() where nothing has to be changed.
    [[gnu::always_inline]] bool is_marked_above(unsigned layer, std::uint64_t word) const {
        for (unsigned level = layer + 1; level <= view_.top_layer; ++level, word /= kUpperFanOut) {
            // EDGE claim-then-look
            const UpperWord above{view_.upper[level][word / kUpperFanOut].load(std::memory_order_seq_cst)};
            if (!above.passable(word % kUpperFanOut)) return false;
        }
        return true;
    }

    // One word, as often as others change it under us: they got on. On failure nothing is left behind.
    Attempt try_word(const Actor &actor, unsigned layer, std::uint64_t word, Order order, Grant grant, Block &out) {
        for (;;) {
            const ShortPath way = layer == 0 ? allocate_in_leaf(actor, word, order, grant, out)
                                             : allocate_in_upper(actor, layer, word, order, kUpperLevels, grant, out);
            if (way == ShortPath::done) return {true, kClimbed};
            if (way == ShortPath::begun) return finish_claim(actor, layer, word, out, grant);
            if (way == ShortPath::refused && (layer == 0 || !clean_a_group(actor, layer, word, order))) return {};
        }
    }

    // Climbs above a claim and commits it, or undoes it.
    Attempt finish_claim(Actor actor, unsigned layer, std::uint64_t word, Block block, Grant grant) {
        const unsigned closed_at = climb(layer, word);
        if (closed_at != kClimbed) {
            undo(actor, layer, word, block);
            end(actor);
            return {false, closed_at};
        }
        keep_claim(actor, layer, block, grant);
        return {true, kClimbed};
    }

    [[gnu::always_inline]] void keep_claim(Actor actor, unsigned layer, Block block, Grant grant) {
        Env::crash_point(CrashPoint::allocate_after_climb);
        commit(layer, block, actor.process, grant.note, grant.state);
        Env::crash_point(CrashPoint::allocate_after_commit);
        if (grant.state == BlockState::owned) count(view_.counters[actor.thread.value].allocations[block.order.value]);
        end(actor);
    }

    // Makes children of an upper word claimable for a block of this order: perhaps their marks are only kept from
    // before. False: there are none.
    [[gnu::noinline]] bool clean_a_group(Actor actor, unsigned layer, std::uint64_t word, Order order) {
        const unsigned levels = order.value - word_order(layer - 1);
        // relaxed: only a guess, cleaning looks again.
        const UpperWord seen{view_.upper[layer][word].load(std::memory_order_relaxed)};
        const auto open = static_cast<std::uint8_t>(~(seen.allocated_children() | seen.draining_children()));
        const std::uint8_t starts = upper::free_starts(open, levels);
        if (starts == 0) return false;
        Search<Env> search = searcher(actor);
        for (unsigned child = 0; child < kUpperFanOut; ++child)
            if ((starts >> child & 1) != 0 && clean_children(layer, word, upper::group(child, levels), search))
                return true;
        return false;
    }

    // False: something is allocated below one of them.
    bool clean_children(unsigned layer, std::uint64_t word, std::uint8_t group, Search<Env> &search) {
        const UpperWord seen{view_.upper[layer][word].load(std::memory_order_seq_cst)};
        for (unsigned child = 0; child < kUpperFanOut; ++child) {
            const std::uint64_t below = word * kUpperFanOut + child;
            if ((group >> child & 1) == 0 || !seen.occupied_below(child)) continue;
            if (below >= view_.word_count[layer - 1] || !clean_through(layer - 1, below, search)) return false;
        }
        return true;
    }

    // The given block and no other; false if any of it is taken. Ignores DRAIN.
    bool claim(unsigned layer, std::uint64_t word, Block block) {
        unsigned rounds = 0;
        if (layer == 0) {
            const std::uint64_t mask = leaf::mask(block.base.value % kLeafFrames, block.order.value);
            std::uint64_t seen = view_.leaf[word].load(std::memory_order_relaxed);
            while ((seen & mask) == 0 && ++rounds <= kCasRoundsMax)
                if (view_.leaf[word].compare_exchange_weak(seen, seen | mask, std::memory_order_seq_cst)) return true;
            return false;
        }
        const std::uint8_t group = group_of(layer, block);
        std::uint64_t bits = view_.upper[layer][word].load(std::memory_order_relaxed);
        while (((UpperWord{bits}.occupied_children() | UpperWord{bits}.allocated_children()) & group) == 0) {
            if (view_.upper[layer][word].compare_exchange_weak(bits, UpperWord{bits}.with_allocated(group).bits(),
                                                               std::memory_order_seq_cst))
                return true;
            if (++rounds > kCasRoundsMax) return false;
        }
        return false;
    }

    // Marks every ancestor. All are looked at, also above one that is marked already: who marked it may have come no
    // further yet (tests/model). Returns kClimbed, or the level whose word is closed on our path.
    unsigned climb(unsigned layer, std::uint64_t word) {
        for (unsigned level = layer + 1; level <= view_.top_layer; ++level) {
            const unsigned child = word % kUpperFanOut;
            word /= kUpperFanOut;
            Word &state = view_.upper[level][word];
            UpperWord seen{state.load(std::memory_order_seq_cst)};  // EDGE claim-then-look
            while (!seen.passable(child)) {
                if (seen.closed_to_allocation(child)) return level;
                std::uint64_t bits = seen.bits();
                if (state.compare_exchange_weak(bits, seen.with_mark(child).bits(), std::memory_order_seq_cst)) break;
                seen = UpperWord{bits};
            }
        }
        return kClimbed;
    }

    // Several blocks of one leaf word by one CAS. 0: nothing there, or the word is closed from above.
    unsigned allocate_in_word(Actor actor, std::uint64_t word, Order order, Grant grant, FrameIndex *bases,
                              unsigned wanted) {
        Word &leaf_word = view_.leaf[word];
        // relaxed: only a guess, the CAS decides.
        std::uint64_t seen = leaf_word.load(std::memory_order_relaxed);
        std::uint64_t mask = 0;
        unsigned got = 0;
        bool begun = false;
        for (;;) {
            mask = 0;
            got = 0;
            for (std::uint64_t starts = leaf::free_starts(seen, order.value); starts != 0 && got < wanted;
                 starts &= starts - 1) {
                const auto frame = static_cast<unsigned>(std::countr_zero(starts));
                mask |= leaf::mask(frame, order.value);
                bases[got++] = FrameIndex{word * kLeafFrames + frame};
            }
            if (got == 0) {
                if (begun) end(actor);
                return 0;
            }
            if (!begun) begin(actor, IntentKind::word, leaf_word_block(word));
            begun = true;
            Env::crash_point(CrashPoint::allocate_after_intent);
            // EDGE claim-then-look, as for one block.
            if (leaf_word.compare_exchange_weak(seen, seen | mask, std::memory_order_seq_cst,
                                                std::memory_order_relaxed))
                break;
            count(view_.counters[actor.thread.value].cas_retries);
        }
        Env::crash_point(CrashPoint::allocate_after_claim);
        if (climb(0, word) != kClimbed) [[unlikely]] {
            for (unsigned i = 0; i < got; ++i) leave_trace(actor, Block{bases[i], order});
            Env::crash_point(CrashPoint::undo_after_trace);
            unclaim_in_leaf(word, mask);
            Env::crash_point(CrashPoint::undo_after_unclaim);
            raise_hints(actor, 0, word);
            end(actor);
            return 0;
        }
        Env::crash_point(CrashPoint::allocate_after_climb);
        for (unsigned i = 0; i < got; ++i) commit(0, Block{bases[i], order}, actor.process, grant.note, grant.state);
        Env::crash_point(CrashPoint::allocate_after_commit);
        if (grant.state == BlockState::owned) count(view_.counters[actor.thread.value].allocations[order.value], got);
        end(actor);
        return got;
    }

    static Block leaf_word_block(std::uint64_t word) {
        return {FrameIndex{word * kLeafFrames}, Order{static_cast<std::uint8_t>(kLeafOrder)}};
    }

    void leave_trace(Actor actor, Block block) {
        Word &slot = view_.index_entry(block);
        const IndexEntry old{slot.load(std::memory_order_relaxed)};  // relaxed: as in commit()
        slot.store(IndexEntry::freeing(actor.thread, block.order, next_generation(old.generation())).bits(),
                   std::memory_order_release);
    }

    // The index is written before the bits go: recovery must be able to tell an undone claim from one in flight.
    [[gnu::noinline]] void undo(Actor actor, unsigned layer, std::uint64_t word, Block block) {
        leave_trace(actor, block);
        Env::crash_point(CrashPoint::undo_after_trace);
        unclaim(layer, word, block);
        Env::crash_point(CrashPoint::undo_after_unclaim);
        raise_hints(actor, layer, word);
    }

    // One block of a free_many: the ownership CAS, as in become_freer(). Adds its bits to mask.
    bool start_freeing(Actor actor, BlockState state, FrameIndex base, std::uint64_t &mask) {
        Word &slot = view_.index[0][base.value];
        std::uint64_t bits = slot.load(std::memory_order_acquire);  // EDGE look-up
        const IndexEntry entry{bits};
        const Block block{base, entry.order()};
        if (entry.state() != state || entry.owner() != actor.process || block.order.value > kLeafOrder ||
            !view_.contains(block))
            return false;
        const auto freeing = IndexEntry::freeing(actor.thread, block.order, entry.generation());
        // EDGE ownership
        if (!slot.compare_exchange_strong(bits, freeing.bits(), std::memory_order_acq_rel)) return false;
        Env::crash_point(CrashPoint::free_after_ownership);
        mask |= leaf::mask(base.value % kLeafFrames, block.order.value);
        if (entry.is_owned()) count(view_.counters[actor.thread.value].frees[block.order.value]);
        return true;
    }

    // The blocks of a free_many in one word.
    void release_in_leaf(Actor actor, std::uint64_t word, std::uint64_t mask) {
        unclaim_in_leaf(word, mask);
        Env::crash_point(CrashPoint::free_after_unclaim);
        if (!hints_are_full(actor, 0, word)) raise_hints(actor, 0, word);
        Env::crash_point(CrashPoint::free_after_hints);
    }

    // False: the hints say that what the word belongs to was used up once. They have to be raised.
    [[gnu::always_inline]] bool hints_are_full(const Actor &actor, unsigned layer, std::uint64_t word) const {
        return layer == 0 ? searcher(actor).group_hint_is_full(word / kUpperFanOut)
                          : searcher(actor).hints_are_full(layer, word);
    }

    void raise_hints(Actor actor, unsigned layer, std::uint64_t word) {
        Search<Env> search = searcher(actor);
        if (layer == 0)
            search.raise(1, word / kUpperFanOut, search.leaf_value(word));
        else
            search.raise_after_release(layer, word);
    }

    [[gnu::always_inline]] void unclaim_in_leaf(std::uint64_t word, std::uint64_t mask) {
        // EDGE unclaim-to-claim (release in seq_cst; partner: the claim). Carries our last bytes and our index entry to
        // the next owner. seq_cst also for EDGE free-then-hint.
        view_.leaf[word].fetch_and(~mask, std::memory_order_seq_cst);
    }

    [[gnu::always_inline]] void unclaim(unsigned layer, std::uint64_t word, Block block) {
        if (layer == 0) {
            unclaim_in_leaf(word, leaf::mask(block.base.value % kLeafFrames, block.order.value));
            return;
        }
        // EDGE unclaim-to-claim, as in a leaf. One AND, so that nobody who scribbles over the word can keep us here,
        // and clearing what is clear already harms no neighbour. It leaves the tag as it is: only clearing F cannot
        // bring back a word of before, and the claim that sets F again advances it.
        view_.upper[layer][word].fetch_and(UpperWord::all_but_allocated(group_of(layer, block)),
                                           std::memory_order_seq_cst);
    }

    static std::uint8_t group_of(unsigned layer, Block block) {
        const unsigned child_order = word_order(layer - 1);
        return upper::group(static_cast<unsigned>(block.base.value >> child_order) % kUpperFanOut,
                            block.order.value - child_order);
    }

    // --- looking elsewhere -------------------------------------------------------------------------------------------

    // The level of words that a search for this layer's blocks ends at: leaf words are found by group.
    static constexpr unsigned target_level(unsigned layer) { return layer == 0 ? 1 : layer; }
    static constexpr std::uint64_t target_of(unsigned layer, std::uint64_t word) {
        return layer == 0 ? word / kUpperFanOut : word;
    }

    [[gnu::noinline]] Errc allocate_elsewhere(Actor actor, unsigned layer, std::uint64_t home, Attempt last,
                                              Order order, Grant grant, Block &out) {
        // The leaf words beside the thread's own share a cache line with it.
        if (layer == 0 && home != kNoWord && last.closed_at == 0) {
            last = try_siblings(actor, home / kUpperFanOut, (home + 1) % kUpperFanOut, order, grant, out);
            if (last.got) return Errc::ok;
        }
        // A larger block goes where it does least harm, wherever that is.
        if (layer != 0) {
            if (home != kNoWord && order.value == word_order(layer) &&
                try_beside(actor, layer, home, order, grant, out))
                return Errc::ok;
            home = kNoWord;
        }
        for (unsigned round = 0;; ++round) {
            if (search_and_claim(actor, layer, home, last, order, grant, out)) return Errc::ok;
            if (round != 0 || nothing_is_hidden(actor, order)) return Errc::out_of_frames;
            // Nothing, as the hints tell; but somebody is in the middle of changing hints, or was stopped or killed
            // there: look at the words themselves.
            for (std::uint64_t top = 0; top < view_.word_count[view_.top_layer]; ++top)
                if (scan_and_claim(actor, view_.top_layer, top, order, grant, out)) return Errc::ok;
            home = kNoWord;
            last = {};
        }
    }

    bool search_and_claim(Actor actor, unsigned layer, std::uint64_t home, Attempt last, Order order, Grant grant,
                          Block &out) {
        Search<Env> search = searcher(actor);
        const unsigned target = target_level(layer);
        const unsigned wanted = order.value + 1U;
        // Begin above the word that did not serve; at the ancestor that is closed, if that was the reason; at the root
        // if there is no such word yet.
        std::uint64_t word = home == kNoWord ? kNoWord : target_of(layer, home);
        // Every round either claims, or lowers a hint, or lost a race to somebody who got on; the bound only guards
        // against scribbled metadata that changes under our eyes for ever.
        for (unsigned round = 0; round < kMaxSearchRounds; ++round) {
            unsigned level = view_.hint_levels;
            std::uint64_t from = 0;
            if (word != kNoWord) {
                if (last.closed_at <= target) search.lower(target, word);
                level = last.closed_at <= target ? target + 1 : last.closed_at;
                if (level > view_.hint_levels) return false;
                from = word >> (kUpperLevels * (level - target));
            }
            std::uint64_t found = 0;
            if (!search.find(level, from, target, wanted, found)) return false;
            last = layer == 0 ? try_siblings(actor, found, search.first_child(1), order, grant, out)
                              : try_word(actor, layer, found, order, grant, out);
            if (last.got && layer != 0 && order.value == word_order(layer))
                set_home(actor, order, Home{found, levels_around(layer, found)});
            if (last.got) return true;
            word = found;
        }
        return false;
    }

    // For a block as large as an upper word: another one below the same parent, in a hole no wider than the one that
    // the last search found.
    bool try_beside(const Actor &actor, unsigned layer, std::uint64_t home, Order order, Grant grant, Block &out) {
        const std::uint64_t parent = home / kUpperFanOut;
        const upper::Hole hole = upper::smallest_hole(empty_words(layer, parent), 0);
        const std::uint64_t word = parent * kUpperFanOut + hole.first_child;
        const unsigned widest = home_of(actor, order).widest();
        if (hole.levels > widest || hole.levels > kUpperLevels || !try_word(actor, layer, word, order, grant, out).got)
            return false;
        set_home(actor, order, Home{word, widest});
        return true;
    }

    // Those of the words of an upper layer that have this parent: which are empty, as bits. A preference.
    std::uint8_t empty_words(unsigned layer, std::uint64_t parent) const {
        // relaxed, all of it: only a guess, the claim decides.
        unsigned closed = 0;
        if (layer < view_.top_layer) {
            const UpperWord above{view_.upper[layer + 1][parent].load(std::memory_order_relaxed)};
            closed = above.allocated_children() | above.draining_children();
        }
        unsigned empty = 0;
        for (unsigned child = 0; child < kUpperFanOut; ++child) {
            const std::uint64_t word = parent * kUpperFanOut + child;
            if ((closed >> child & 1) == 0 && word < view_.word_count[layer] &&
                UpperWord{view_.upper[layer][word].load(std::memory_order_relaxed)}.claimable_children() == 0xff)
                empty |= 1U << child;
        }
        return static_cast<std::uint8_t>(empty);
    }

    // How wide the hole is, or was, that this word lies in.
    unsigned levels_around(unsigned layer, std::uint64_t word) const {
        const unsigned child = word % kUpperFanOut;
        const unsigned free = empty_words(layer, word / kUpperFanOut) | 1U << child;
        unsigned levels = 0;
        while (levels < kUpperLevels && (upper::group(child >> (levels + 1) << (levels + 1), levels + 1) & ~free) == 0)
            ++levels;
        return levels;
    }

    // The leaf words that have this parent, beginning with the `start`-th, going round.
    Attempt try_siblings(const Actor &actor, std::uint64_t parent, unsigned start, Order order, Grant grant,
                         Block &out) {
        unsigned closed = 0;
        if (view_.top_layer > 0) {
            // relaxed: only a guess, the climb decides.
            const UpperWord state{view_.upper[1][parent].load(std::memory_order_relaxed)};
            closed = state.allocated_children() | state.draining_children();
        }
        Attempt last;
        for (unsigned step = 0; step < kUpperFanOut; ++step) {
            const unsigned child = (start + step) % kUpperFanOut;
            const std::uint64_t word = parent * kUpperFanOut + child;
            // relaxed: only a guess, the claim decides.
            if ((closed >> child & 1) != 0 || word >= view_.word_count[0] ||
                leaf::free_starts(view_.leaf[word].load(std::memory_order_relaxed), order.value) == 0)
                continue;
            last = try_word(actor, 0, word, order, grant, out);
            if (last.got) set_home(actor, order, Home{word, 0});
            if (last.got || last.closed_at > 1) return last;
        }
        return {false, 0};
    }

    // True: no other thread is changing hints (nor, where whole words matter, in the middle of any operation) while the
    // root says that nothing suits. So "nothing" was true at the moment of reading the root.
    bool nothing_is_hidden(Actor actor, Order order) const {
        const std::uint32_t threads = pool_.threads_in_use_bound();
        const unsigned layer = layer_of(order);
        std::uint64_t before = 0;
        std::uint64_t after = 0;
        return collect_hint_work(actor, layer, threads, before) &&
               searcher(actor).value_of(view_.hint_levels, 0) <= order.value &&
               collect_hint_work(actor, layer, threads, after) && before == after;
    }

    bool collect_hint_work(Actor actor, unsigned layer, std::uint32_t threads, std::uint64_t &digest) const {
        for (std::uint32_t thread = 0; thread < threads; ++thread) {
            if (thread == actor.thread.value) continue;
            // acquire (partner: end_hint_work): work that looks ended is visible as a whole.
            const std::uint64_t bits = pool_.threads[thread].hint_work.load(std::memory_order_acquire);
            if (HintWork{bits}.active()) return false;
            if (layer != 0 && Intent{pool_.threads[thread].intent.load(std::memory_order_acquire)}.active())
                return false;
            digest = digest * 0x9e37'79b9'7f4a'7c15 + bits;
        }
        return true;
    }

    // Without hints: every word of the order's layer below (level, word) that is not closed. Reads one word for 64
    // frames.
    bool scan_and_claim(Actor actor, unsigned level, std::uint64_t word, Order order, Grant grant, Block &out) {
        if (level == layer_of(order)) return try_word(actor, level, word, order, grant, out).got;
        const UpperWord state{view_.upper[level][word].load(std::memory_order_acquire)};
        for (unsigned child = 0; child < kUpperFanOut; ++child) {
            const std::uint64_t below = word * kUpperFanOut + child;
            if (state.closed_to_allocation(child) || below >= view_.word_count[level - 1]) continue;
            if (scan_and_claim(actor, level - 1, below, order, grant, out)) return true;
        }
        return false;
    }

    // --- the thread's own word ---------------------------------------------------------------------------------------

    Home home_of(Actor actor, Order order) const {
        // relaxed: our own slot.
        return Home{view_.home[actor.thread.value].word[order.value].load(std::memory_order_relaxed)};
    }
    // Where this thread allocated or freed a block of this order last. kNoWord: nowhere yet (or the word is scribbled).
    std::uint64_t home_word(Actor actor, unsigned layer, Order order) const {
        const Home home = home_of(actor, order);
        const std::uint64_t plus_one = layer == 0 ? home.bits() : home.word_plus_one();
        return plus_one <= view_.word_count[layer] ? plus_one - 1 : kNoWord;
    }
    void set_home(Actor actor, Order order, Home home) {
        view_.home[actor.thread.value].word[order.value].store(home.bits(),
                                                               std::memory_order_relaxed);  // relaxed: our own slot
    }

    static constexpr unsigned kMaxSearchRounds = 1 << 16;

    NodeView<Env> view_;
    PoolView<Env> pool_;
};

}  // namespace numacre
