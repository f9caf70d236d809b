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

#include "numacre/error.hpp"
#include "numacre/shm/counters.hpp"
#include "numacre/shm/layout.hpp"
#include "numacre/shm/search.hpp"

namespace numacre::engine {

// Who acts: a thread slot that belongs to the calling thread alone, of a process slot that the daemon gave out.
struct Actor {
    ThreadSlotIndex thread;
    ProcessSlot process;
};

// What the actor writes besides the tree, found once: the calls that a thread makes over and over need not.
template <class Env>
struct ActorView {
    Actor actor;
    ThreadSlot<Env> *slot;
    HomeWords<Env> *homes;          // of this numa node
    ThreadCounters<Env> *counters;  // the same
    std::uint64_t node_bits;        // of an Intent
    // Entries without order, generation and note.
    IndexEntry ours;     // of a block of the actor's process
    IndexEntry freeing;  // of one that the actor frees
};

template <class Env>
class Buddy {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;
    using Self = ActorView<Env>;

    Buddy(const NodeView<Env> &view, const PoolView<Env> &pool) : view_(view), pool_(pool) {}

    const NodeView<Env> &view() const { return view_; }
    Self view_of(Actor actor) const {
        const std::uint16_t thread = actor.thread.value;
        return {actor,
                &pool_.threads[thread],
                &view_.home[thread],
                &view_.counters[thread],
                Intent::of_node(view_.numa_node),
                IndexEntry::owned(actor.process, Order{0}, 0, {}),
                IndexEntry::freeing(actor.thread, Order{0}, 0)};
    }

    // A block of `order` for actor.process. Errors: out_of_frames, bad_argument.
    // Common path: one RMW (the claim), then one load an upper layer, four plain stores.
    Errc allocate(Actor actor, Order order, Note note, Block &out) {
        return allocate_as(view_of(actor), order, IndexEntry::owned(actor.process, order, 0, note), out);
    }

    // How far the short paths below came. They hold the common case alone, small enough to be compiled into a caller,
    // who goes on with what is rare by a call that it need not come back from.
    enum class ShortPath : std::uint8_t {
        refused,  // nothing was done: ask allocate_further(), free()
        raced,    // only the intent is there: somebody else changed the word. give_up(), then as above
        begun,    // the last step is left: finish_allocation(), finish_free()
        done,
    };

    // allocate() of a block of at most kLeafOrder (and at most the pool's largest) from the word where this thread was
    // last. note() is called once the block is there: nobody has to keep the note until then.
    template <class MakeNote>
    [[gnu::always_inline]] ShortPath allocate_nearby(const Self &self, Order order, const MakeNote &note, Block &out) {
        const FrameIndex home{home_of(self, order).place()};
        if (home.value >= view_.geometry.frame_count) [[unlikely]]
            return ShortPath::refused;
        return allocate_in_leaf(self, home, order, [&] { return owned_by(self, order, note()); }, out);
    }
    // The same of a block larger than kLeafOrder. layer: the order's.
    template <class MakeNote>
    [[gnu::always_inline]] ShortPath allocate_nearby_in_upper(const Self &self, unsigned layer, Order order,
                                                              const MakeNote &note, Block &out) {
        const std::uint64_t home = home_for(self, layer, order);
        if (home == kNoWord) [[unlikely]]
            return ShortPath::refused;
        return allocate_in_upper(
            self, layer, home, order, home_of(self, order).widest(), [&] { return owned_by(self, order, note()); },
            out);
    }
    // allocate() after one of these refused. Errors: out_of_frames.
    Errc allocate_further(const Self &self, Order order, Note note, Block &out) {
        const unsigned layer = layer_of(order);
        return allocate_elsewhere(self, layer, home_word(self, layer, order), {}, order, self.ours.of(order, note),
                                  out);
    }
    // After a short path that raced.
    [[gnu::noinline]] void give_up(const Self &self) {
        end(self);
        count(self.counters->cas_retries);
    }
    // False: it had to be undone.
    [[gnu::noinline]] bool finish_allocation(const Self &self, Note note, Block block) {
        const unsigned layer = layer_of(block.order);
        return finish_claim(self, layer, block.base.value >> word_order(layer), block, self.ours.of(block.order, note))
            .got;
    }

    // free() of an unpublished block in a leaf word. base exists.
    [[gnu::always_inline]] ShortPath free_in_leaf(const Self &self, FrameIndex base, Block &freed) {
        const IndexEntry entry{view_.index[0][base.value].load(std::memory_order_acquire)};  // EDGE look-up
        freed = Block{base, entry.order()};
        if (!entry.is_held_like(self.ours) || !can_be_in_leaf(freed)) [[unlikely]]
            return ShortPath::refused;
        return free_private(self, 0, freed, entry);
    }
    // free() of an unpublished block in an upper word. base exists.
    [[gnu::always_inline]] ShortPath free_in_upper(const Self &self, FrameIndex base, Block &freed) {
        if (view_.top_layer == 0) [[unlikely]]
            return ShortPath::refused;
        // Nearly all are there, and what depends on the layer is known beforehand.
        const ShortPath way = free_in_layer(self, 1, base, freed);
        if (way != ShortPath::refused) [[likely]]
            return way;
        Block above;  // not `freed`, which would have to be in memory then
        const ShortPath further = free_above(self, base, above);
        freed = above;
        return further;
    }

    [[gnu::noinline]] void finish_free(const Self &self, Block freed) {
        const unsigned layer = layer_of(freed.order);
        raise_hints(self, layer, freed.base.value >> word_order(layer));
        Env::crash_point(CrashPoint::free_after_hints);
        end(self);
    }

    // Frees the block that begins at `base` if `actor.process` owns it. freed: what it was. One RMW, two if the block
    // is published. That no other thread of the process frees it in the same moment is the caller's word: see
    // free_checked().
    // Errors (nothing changed): bad_argument (no such frame), not_owner, stale_ref (not allocated, or not from there).
    Errc free(Actor actor, FrameIndex base, Block &freed) {
        const Self self = view_of(actor);
        if (base.value < view_.geometry.frame_count) {
            ShortPath way = free_in_leaf(self, base, freed);
            if (way == ShortPath::refused) way = free_in_upper(self, base, freed);
            if (way == ShortPath::begun) finish_free(self, freed);
            if (way != ShortPath::refused) return Errc::ok;
        }
        return free_checked(actor, base, freed);
    }

    // The same without that word: whoever frees and takes the block at once, one CAS decides. Two RMWs.
    Errc free_checked(Actor actor, FrameIndex base, Block &freed) {
        IndexEntry entry;
        const Errc found = find_entry(base, freed, entry);
        if (found != Errc::ok) return found;
        if (entry.owner() != actor.process) return Errc::not_owner;
        return free_entry(actor, freed, entry, true);
    }

    // Becomes the owner of the referenced block, which it holds from `since` on. One RMW. Needs no intent: before the
    // CAS the block is the giver's, after it ours. Errors: bad_argument (not a reference of this pool), stale_ref.
    Errc take(Actor actor, Reference reference, PoolAge since, Block &taken) {
        const Block block = view_.reference_format.block(reference);
        if (!view_.contains(block) || view_.reference_format.numa_node(reference) != view_.numa_node.value ||
            view_.reference_format.is_impossible(reference))
            return Errc::bad_argument;
        if (!take_at(view_of(actor), layer_of(block.order), block, reference, since)) return Errc::stale_ref;
        taken = block;
        return Errc::ok;
    }
    // take() of a block in a leaf word, by a reference to this numa node. False: nothing was done, ask take().
    [[gnu::always_inline]] bool take_in_leaf(const Self &self, Reference reference, PoolAge since, Block &taken) {
        const Block block = view_.reference_format.block(reference);
        if (block.base.value >= view_.geometry.frame_count || !can_be_in_leaf(block) ||
            !take_at(self, 0, block, reference, since)) [[unlikely]]
            return false;
        taken = block;
        return true;
    }

    // Makes an owned, found block takeable by others; returns its name. One RMW, none if the block is published
    // already. Other threads of the process may do the same at the same time: all return the same name. The name is 0
    // if the block is not the process's any more: another process has taken it by the name that another thread made.
    // Caller dies inside: it was published or it was not; recovery gives it back either way.
    Reference publish(Block block, IndexEntry entry) {
        Word &slot = view_.index_entry(block);
        const ProcessSlot owner = entry.owner();
        // Each round that fails, another thread has published the block, and it has gone or has come back since.
        for (unsigned rounds = 0; rounds < kCasRoundsMax; ++rounds) {
            Reference name;
            if (publish_at(slot, layer_of(block.order), block, entry, name)) return name;
            if (!entry.is_owned() || entry.owner() != owner || entry.order() != block.order) break;
        }
        return {};
    }
    // publish() of a block of self's process in a leaf word. base exists. False: it is none, or another thread of the
    // process was quicker: ask publish().
    [[gnu::always_inline]] bool publish_in_leaf(const Self &self, FrameIndex base, Reference &name) {
        Word &slot = view_.index[0][base.value];
        IndexEntry entry{slot.load(std::memory_order_acquire)};  // EDGE look-up
        const Block block{base, entry.order()};
        return entry.is_held_like_or_published(self.ours) && can_be_in_leaf(block) &&
               publish_at(slot, 0, block, entry, name);
    }

    // The steps of a hand-off (hand_off.hpp). First: the held block that entry tells of is nobody's, on its way. entry:
    // what it is now. The intent stays set. False: it is not ours any more, nothing was done.
    bool put_on_its_way(Actor actor, Block block, IndexEntry &entry) {
        const Self self = view_of(actor);
        begin(self, IntentKind::free, block);
        std::uint64_t bits = entry.bits();
        entry = after(layer_of(block.order), block, IndexEntry::owned(kHandOffOwner, block.order, 0, {}), entry);
        // EDGE ownership, as in become_freer(): recovery that sees the block on its way finds the intent.
        if (!view_.index_entry(block).compare_exchange_strong(bits, entry.bits(), std::memory_order_acq_rel)) {
            end(self);
            return false;
        }
        Env::crash_point(CrashPoint::hand_off_on_its_way);
        return true;
    }
    // Then the waiter's word says where it is. Last: tally: it was somebody's, and counts as freed.
    void has_been_given(Actor actor, Block block, bool tally) {
        const Self self = view_of(actor);
        if (tally) count(self.counters->frees[block.order.value]);
        Env::crash_point(CrashPoint::hand_off_given);
        end(self);
    }
    // The waiter: makes it its own. False: it is on its way no more.
    bool receive(Actor actor, FrameIndex base, std::uint32_t generation, Note note, Block &block) {
        const Self self = view_of(actor);
        IndexEntry entry;
        if (find_entry(base, block, entry) != Errc::ok || entry.owner() != kHandOffOwner ||
            entry.generation() != generation)
            return false;
        // A store will do: nobody but the one who has been told of it writes the entry of a block on its way.
        // EDGE commit (release), as after a claim.
        const IndexEntry ours =
            after(layer_of(block.order), block, IndexEntry::owned(self.actor.process, block.order, 0, note), entry);
        view_.index_entry(block).store(ours.bits(), std::memory_order_release);
        Env::crash_point(CrashPoint::hand_off_received);
        count(self.counters->allocations[block.order.value]);
        count(self.counters->hand_offs);
        return true;
    }

    // The opposite of publish(): what references name is gone. False: somebody took the block before. On success entry
    // is what it is now.
    bool withdraw(Block block, IndexEntry &entry) {
        std::uint64_t bits = entry.bits();
        const IndexEntry now = after(layer_of(block.order), block,
                                     IndexEntry::owned(entry.owner(), entry.order(), 0, entry.note()), entry);
        // EDGE hand-over, the other side of it.
        if (!view_.index_entry(block).compare_exchange_strong(bits, now.bits(), std::memory_order_acq_rel))
            return false;
        entry = now;
        return true;
    }

    // The given block and no other: FitLook has found it free, and not draining. False, nothing changed: it is free
    // no more, or draining by now. Dying inside: as in allocate().
    bool allocate_at(Actor actor, Block block, Note note) {
        if (!view_.contains(block)) return false;
        const unsigned layer = layer_of(block.order);
        if (layer != 0 && !clean_below(actor, block)) return false;
        if (!claim_this(actor, block, IfDraining::refuse)) return false;
        keep_claim(view_of(actor), layer, block, IndexEntry::owned(actor.process, block.order, 0, note));
        return true;
    }

    // Blocks of one order (at most kLeafOrder), many of a leaf word by one RMW. Returns how many: fewer when no more is
    // free. state: owned or cached; only owned ones count as allocations. Dying inside: those that are committed are
    // the process's and given back as such, the others are cleared by recovery.
    unsigned allocate_many(Actor actor, Order order, BlockState state, Note note, FrameIndex *bases, unsigned wanted) {
        const Self self = view_of(actor);
        const IndexEntry grant =
            state == BlockState::owned ? self.ours.of(order, note) : IndexEntry::cached(actor.process, order, 0);
        unsigned got = 0;
        while (got < wanted) {
            const std::uint64_t home = home_word(self, layer_of(order), order);
            const unsigned more = home == kNoWord || order.value >= kLeafOrder
                                      ? 0
                                      : allocate_in_word(self, home, order, grant, bases + got, wanted - got);
            got += more;
            if (more != 0) continue;
            Block block;
            if (allocate_as(self, order, grant, block) != Errc::ok) break;  // also finds the next home
            bases[got++] = block.base;
        }
        return got;
    }

    // Frees blocks of order at most kLeafOrder that are the process's and in this state: owned, or cached by the
    // caller. Who else frees them: as in free(). Neighbours in the list that share a leaf word share the RMW on it.
    // Returns how many, counted from the first: it ends before one that is not such a block.
    unsigned free_many(Actor actor, BlockState state, const FrameIndex *bases, unsigned count_of_bases) {
        const Self self = view_of(actor);
        unsigned freed = 0;
        bool fits = true;
        while (fits && freed < count_of_bases && bases[freed].value < view_.geometry.frame_count) {
            const std::uint64_t word = bases[freed].value / kLeafFrames;
            begin(self, IntentKind::word, leaf_word_block(word));
            std::uint64_t mask = 0;
            while (freed < count_of_bases && bases[freed].value / kLeafFrames == word) {
                fits = start_freeing(self, state, bases[freed], mask);
                if (!fits) break;
                ++freed;
            }
            if (mask != 0) release_in_leaf(self, word, mask);
            end(self);
        }
        return freed;
    }

    // The owned block that begins at base, in whatever layer. Errors: bad_argument (no such frame), stale_ref (none).
    Errc find_entry(FrameIndex base, Block &block, IndexEntry &entry) const {
        if (base.value >= view_.geometry.frame_count) return Errc::bad_argument;
        return find_in_layers(base, block, entry) ? Errc::ok : Errc::stale_ref;
    }

    // The same in the leaf layer alone. base exists.
    [[gnu::always_inline]] bool find_in_leaf(FrameIndex base, Block &block, IndexEntry &entry) const {
        entry = IndexEntry{view_.index[0][base.value].load(std::memory_order_acquire)};  // EDGE look-up
        block = Block{base, entry.order()};
        return entry.is_owned() && can_be_in_leaf(block);
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

    // Does the daemon want the chunk empty that this frame lies in? A preference. Always false where chunks have no
    // drain bit (Chunks::set_drain). The frame exists.
    bool is_draining(FrameIndex frame) const {
        if (view_.top_layer == 0) return false;
        const std::uint64_t child = frame.value >> word_order(view_.top_layer - 1);
        // relaxed: whoever misses it is asked again.
        const Word &word = view_.upper[view_.top_layer][child / kUpperFanOut];
        return UpperWord{word.load(std::memory_order_relaxed)}.draining(child % kUpperFanOut);
    }

    // Frees an owned block that find_entry just showed. stale_ref: somebody was faster. tally: it is somebody's free,
    // not a chunk that comes online.
    Errc free_entry(Actor actor, Block block, IndexEntry entry, bool tally) {
        const Self self = view_of(actor);
        const ShortPath way = free_found(self, layer_of(block.order), block, entry, tally);
        if (way == ShortPath::begun) finish_free(self, block);
        return way == ShortPath::refused ? Errc::stale_ref : Errc::ok;
    }

    // -----------------------------------------------------------------------------------------------------------------
    // For the daemon's Chunks and for Recovery.

    // Claims exactly this block, even in a draining chunk. The intent stays set: the caller writes the index and ends
    // it.
    bool claim_exactly(Actor actor, Block block) { return claim_this(actor, block, IfDraining::claim); }

    // Does the block lie in a chunk that is to become empty? As seen at this moment. (Pools whose largest block is 64
    // frames or less have no drains.)
    bool is_draining(Block block) const {
        const unsigned top = view_.top_layer;
        if (top == 0) return false;
        const UpperWord word{view_.upper[top][block.base.value >> word_order(top)].load(std::memory_order_acquire)};
        // A chunk drains as a whole.
        return word.draining(static_cast<unsigned>(block.base.value >> word_order(top - 1)) % kUpperFanOut);
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

    Search<Env> searcher(Actor actor) const { return searcher(view_of(actor)); }

    void begin(const Self &self, IntentKind kind, Block block) {
        // EDGE intent-before-claim (release; the RMW or release store that follows publishes it). Release also because
        // it overwrites what end() of the operation before released: who sees this intent must see that block's index
        // entry. Weakened: recovery sees the second intent, which is in nobody's way, but not that the first block is
        // committed, and takes its bits for those of a dead client that was after the same block.
        self.slot->intent.store(Intent{kind, self.node_bits, block}.bits(), std::memory_order_release);
    }
    void end(Actor actor) { end(view_of(actor)); }
    void end(const Self &self) {
        // EDGE intent-clear (release; partner: the acquire loads in recovery). All that the operation did comes first.
        // Weakened: recovery sees no intent, yet our unclaim lands later, on the block's next owner.
        self.slot->intent.store(0, std::memory_order_release);
    }

    // EDGE commit (release; partners: EDGE look-up, EDGE ownership, EDGE hand-over, recovery's acquire loads). From
    // here on the block is the process's: a death gives it back as owned, not as in flight. Weakened: recovery sees
    // OWNED before the marks above the block and cleans them away under a live block.
    // entry: what the index is to say, its generation still 0.
    [[gnu::always_inline]] void commit(unsigned layer, Block block, IndexEntry entry) {
        Word &slot = view_.index_entry(layer, block);
        // relaxed: whoever wrote the entry held these bits before us, and the claim acquired them.
        const IndexEntry old{slot.load(std::memory_order_relaxed)};
        slot.store(after(layer, block, entry, old).bits(), std::memory_order_release);
    }

    // What the index is to say of the block next: `entry`, which has no generation, with the one that follows `old`'s,
    // what it says now. Before a generation leaves its half, that half is counted (reference.hpp).
    [[gnu::always_inline]] IndexEntry after(unsigned layer, Block block, IndexEntry entry, IndexEntry old) const {
        if (!old.is_last_of_half()) [[likely]]
            return entry.after_in_half(old);
        count_half(layer, block, old);
        return entry.after(old);
    }

private:
    static constexpr std::uint64_t kNoWord = ~std::uint64_t{0};  // its successor is 0: "nowhere" in a home word
    static constexpr unsigned kClimbed = 0;

    struct Attempt {
        bool got = false;
        unsigned closed_at = 0;  // level whose word has a closed child on our path; 0: the word itself had nothing
    };

    enum class IfDraining : bool { refuse, claim };

    // This block and no other. The intent stays set, unless it fails: then nothing is left behind.
    bool claim_this(Actor actor, Block block, IfDraining if_draining) {
        const Self self = view_of(actor);
        const unsigned layer = layer_of(block.order);
        const std::uint64_t word = block.base.value >> word_order(layer);
        begin(self, IntentKind::allocate, block);
        if (!claim(layer, word, block, if_draining)) {
            end(self);
            return false;
        }
        if (climb(layer, word) == kClimbed) return true;
        undo(self, layer, word, block);
        end(self);
        return false;
    }

    // What an entry is to say, its generation still 0.
    [[gnu::always_inline]] static IndexEntry owned_by(const Self &self, Order order, Note note) {
        const IndexEntry entry = self.ours.of(order, note);
        if (!entry.is_owned()) __builtin_unreachable();  // view_of()
        return entry;
    }

    // Its base exists.
    [[gnu::always_inline]] bool can_be_in_leaf(Block block) const {
        return block.order.value <= view_.largest_leaf_order &&
               (block.base.value & leaf::kRuns.length_less_one[block.order.value]) == 0;
    }

    // The block that the reference names is one that can be in this layer.
    [[gnu::always_inline]] bool take_at(const Self &self, unsigned layer, Block block, Reference reference,
                                        PoolAge since) {
        Word &slot = view_.index_entry(layer, block);
        std::uint64_t bits = slot.load(std::memory_order_acquire);
        const IndexEntry entry{bits};
        if (!entry.is_published(block.order) ||
            !view_.reference_format.has_number(reference, number_of_name(layer, block, entry)) ||
            entry.owner() == kOfflineOwner || entry.owner() == kDaemonProcess) [[unlikely]]
            return false;
        const IndexEntry ours = after(layer, block, entry.handed_to(self.ours, since), entry);
        // EDGE hand-over (acq_rel; partners: EDGE publish, EDGE ownership). Acquires what publish() released, the
        // giver's bytes; releases our ownership to whoever tries after us. Weakened: the taker reads a frame from
        // before the giver wrote it.
        if (!slot.compare_exchange_strong(bits, ours.bits(), std::memory_order_acq_rel)) [[unlikely]]
            return false;
        count(self.counters->takes);
        return true;
    }
    // False: the entry is another one by now, which `entry` says afterwards.
    [[gnu::always_inline]] bool publish_at(Word &slot, unsigned layer, Block block, IndexEntry &entry,
                                           Reference &name) {
        name = view_.reference_format.reference(view_.numa_node, block, number_of_name(layer, block, entry));
        std::uint64_t bits = entry.bits();
        if (entry.is_published()) {
            // acquire: as in the look that `entry` is from. The same entry again: the name is the block's.
            bits = slot.load(std::memory_order_acquire);
            if (bits == entry.bits()) [[likely]]
                return true;
            entry = IndexEntry{bits};
            return false;
        }
        // EDGE publish (release; partner: EDGE hand-over): whoever takes sees what the giver wrote into the block. A
        // CAS, although only the owner's process writes the entry: another of its threads may publish the block at this
        // moment, and another process take it. A store that came later would say that it is the giver's again.
        if (slot.compare_exchange_strong(bits, entry.published().bits(), std::memory_order_release,
                                         std::memory_order_acquire)) [[likely]]
            return true;
        entry = IndexEntry{bits};
        return false;
    }
    // Right if the entry still says the same when it is looked at again, by a CAS or otherwise.
    [[gnu::always_inline]] std::uint64_t number_of_name(unsigned layer, Block block, IndexEntry entry) const {
        // EDGE era (acquire: the second look at the entry comes after this one; partner: the entry's release, which
        // follows count_half()). The first look acquired the entry, so the half before its own has been counted.
        const std::uint16_t era = view_.era_word(layer, block).load(std::memory_order_acquire);
        return name_number(era, entry.generation());
    }
    // The era word says which half the generation is in that the entry had when it was seen. No call: the common way
    // past it would have registers to save.
    [[gnu::always_inline]] void count_half(unsigned layer, Block block, IndexEntry seen) const {
        auto &word = view_.era_word(layer, block);
        std::uint16_t counted = word.load(std::memory_order_acquire);  // EDGE era
        if (is_half_counted(counted, seen.generation())) return;
        // Was it that half whose number is missing, when the word was read? If the generation has gone on since,
        // whoever took it on has counted. relaxed: the load above keeps this one behind it.
        if (view_.index_entry(layer, block).load(std::memory_order_relaxed) != seen.bits()) return;
        // relaxed: the entry that follows is written by release. By CAS: another may count the same half.
        (void)word.compare_exchange_strong(counted, static_cast<std::uint16_t>(counted + 1), std::memory_order_relaxed);
    }

    // The owned block that begins at base. base exists.
    bool find_in_layers(FrameIndex base, Block &block, IndexEntry &entry) const {
        for (unsigned layer = 0; layer <= view_.top_layer; ++layer) {
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

    Search<Env> searcher(const Self &self) const { return {view_, self.slot->hint_work, self.actor.thread}; }

    // --- freeing -----------------------------------------------------------------------------------------------------

    [[gnu::always_inline]] ShortPath free_in_layer(const Self &self, unsigned layer, FrameIndex base, Block &freed) {
        const unsigned granule = view_.geometry.index_granule(layer);
        if ((base.value & ((std::uint64_t{1} << granule) - 1)) != 0) return ShortPath::refused;
        const IndexEntry entry{
            view_.index[layer][base.value >> granule].load(std::memory_order_acquire)};  // EDGE look-up
        freed = Block{base, entry.order()};
        if (!entry.is_held_like(self.ours) || layer_of(freed.order) != layer || !view_.contains(freed))
            return ShortPath::refused;
        return free_private(self, layer, freed, entry);
    }
    // In what layers there are above the lowest upper one.
    [[gnu::noinline]] ShortPath free_above(const Self &self, FrameIndex base, Block &freed) {
        for (unsigned layer = 2; layer <= view_.top_layer; ++layer)
            if (const ShortPath way = free_in_layer(self, layer, base, freed); way != ShortPath::refused) return way;
        return ShortPath::refused;
    }

    // An owned block that was just found, whoever else wants it: refused if somebody was faster.
    ShortPath free_found(const Self &self, unsigned layer, Block block, IndexEntry entry, bool tally) {
        return become_freer(self, layer, block, entry) ? release(self, layer, block, tally) : ShortPath::refused;
    }

    // The process's own, unpublished block: a plain store says who frees it.
    [[gnu::always_inline]] ShortPath free_private(const Self &self, unsigned layer, Block block, IndexEntry entry) {
        begin_free(self, block);
        // EDGE ownership, without a CAS: only the process itself writes the entry of what it has not published
        // (owner.hpp), and of its threads only the one that frees the block. (Two that do, by mistake: shm/README.md,
        // No CAS.) Weakened, as in become_freer(): recovery sees FREEING with no intent.
        view_.index_entry(layer, block).store(entry.now(self.freeing).bits(), std::memory_order_release);
        Env::crash_point(CrashPoint::free_after_ownership);
        return release(self, layer, block, true);
    }

    void begin_free(const Self &self, Block block) {
        begin(self, IntentKind::free, block);
        Env::crash_point(CrashPoint::free_after_intent);
    }

    // What the calling thread frees, as index and intent say by now. Marks above it stay: a claim of something larger
    // cleans them when it comes (lazy coalescing).
    [[gnu::always_inline]] ShortPath release(const Self &self, unsigned layer, Block block, bool tally) {
        const std::uint64_t word = block.base.value >> word_order(layer);
        unclaim(layer, word, block);
        Env::crash_point(CrashPoint::free_after_unclaim);
        // The next block of this order comes from here: it and its index entry are likely still in the processor's
        // caches. (From an upper word only if the hole is no wider than others that there are.)
        set_home(self, block.order, layer == 0 ? Home{block.base.value, 0} : home_of(self, block.order).back_at(word));
        if (tally) count(self.counters->frees[block.order.value]);
        if (!hints_suffice(self, layer, word)) [[unlikely]]
            return ShortPath::begun;
        Env::crash_point(CrashPoint::free_after_hints);
        end(self);
        return ShortPath::done;
    }

    // Decides who frees. True: the calling thread, and its intent says so. False: somebody was faster.
    bool become_freer(const Self &self, unsigned layer, Block block, IndexEntry entry) {
        begin_free(self, block);
        // EDGE ownership (acq_rel; partners: EDGE commit, EDGE hand-over). The one place where it is decided who frees:
        // a second free, a free of what was handed on and recovery all meet in this CAS. Release publishes the intent:
        // who sees FREEING(thread) must find the thread's intent. Weakened: recovery sees FREEING with no intent, takes
        // the free for finished, and clears bits that the block's next owner has by then.
        std::uint64_t bits = entry.bits();
        Word &slot = view_.index_entry(layer, block);
        if (!slot.compare_exchange_strong(bits, entry.now(self.freeing).bits(), std::memory_order_acq_rel))
            [[unlikely]] {
            end(self);
            return false;
        }
        Env::crash_point(CrashPoint::free_after_ownership);
        return true;
    }

    // --- claiming ----------------------------------------------------------------------------------------------------

    Errc allocate_as(const Self &self, Order order, IndexEntry grant, Block &out) {
        if (order.value > view_.geometry.largest_order) return Errc::bad_argument;
        const unsigned layer = layer_of(order);
        if (layer == 0) {
            // Read once: what was checked is what is used, also if somebody scribbles over it.
            const FrameIndex at{home_of(self, order).place()};
            if (at.value >= view_.geometry.frame_count)
                return allocate_elsewhere(self, 0, kNoWord, {}, order, grant, out);
            const Attempt first = try_leaf_word(self, at, order, grant, out);
            return first.got ? Errc::ok : allocate_elsewhere(self, 0, at.value / kLeafFrames, first, order, grant, out);
        }
        const std::uint64_t home = home_for(self, layer, order);
        if (home == kNoWord) return allocate_elsewhere(self, layer, kNoWord, {}, order, grant, out);
        const ShortPath way =
            allocate_in_upper(self, layer, home, order, home_of(self, order).widest(), [&] { return grant; }, out);
        if (way == ShortPath::done || (way == ShortPath::begun && finish_claim(self, layer, home, out, grant).got))
            return Errc::ok;
        if (way == ShortPath::raced) give_up(self);
        return allocate_elsewhere(self, layer, home, {}, order, grant, out);
    }

    // One attempt at the leaf word of the frame `at`, there first; whatever is out of the ordinary ends it. at: exists;
    // rounded down to where blocks of the order begin, for it may be scribbled.
    template <class MakeGrant>
    [[gnu::always_inline]] ShortPath allocate_in_leaf(const Self &self, FrameIndex at, Order order,
                                                      const MakeGrant &grant, Block &out) {
        const std::uint64_t word = at.value / kLeafFrames;
        Word &state = view_.leaf[word];
        // relaxed: only a guess, the CAS decides.
        std::uint64_t seen = state.load(std::memory_order_relaxed);
        // By a branch: the processor goes on with this frame's index entry while the word, which a locked instruction
        // has just changed, is not there yet.
        std::uint64_t base = leaf::rounded_down(at.value, order.value);
        std::uint64_t run = leaf::mask(base % kLeafFrames, order.value);
        if ((seen & run) != 0) {
            const std::uint64_t ends = leaf::free_ends(seen, order.value);
            if (ends == 0) [[unlikely]]
                return ShortPath::refused;
            const unsigned frame =
                static_cast<unsigned>(std::countr_zero(ends)) - leaf::kRuns.length_less_one[order.value];
            base = first_frame(word) + frame;
            run = leaf::mask(frame, order.value);
        }
        out = Block{FrameIndex{base}, order};
        begin(self, IntentKind::allocate, out);
        Env::crash_point(CrashPoint::allocate_after_intent);
        // EDGE claim-then-look (seq_cst, before the loads above the word; partner: EDGE coalesce-then-look). It also is
        // EDGE unclaim-to-claim's acquire side: the old owner's last accesses happened before ours.
        const std::uint64_t claimed = seen | run;
        if (!state.compare_exchange_strong(seen, claimed, std::memory_order_seq_cst, std::memory_order_relaxed))
            [[unlikely]]
            return ShortPath::raced;
        Env::crash_point(CrashPoint::allocate_after_claim);
        // Go on here; if the word is used up, at the next one of the same cache line. No branch: in a pool that is
        // nearly full nobody could predict it.
        const auto used_up = static_cast<std::uint64_t>(claimed == ~std::uint64_t{0});
        set_home(self, order, home_of(self, order).moved_to(first_frame(word + (used_up & has_next(word)))));
        if (!is_marked_above(0, word)) [[unlikely]]
            return ShortPath::begun;
        keep_claim(self, 0, out, grant());
        return ShortPath::done;
    }

    // The same at an upper word, in its smallest hole: of children without any mark, that is. Refused, too, if that is
    // wider than `widest`, in levels; a block as large as the word has no choice of holes in it.
    template <class MakeGrant>
    [[gnu::always_inline]] ShortPath allocate_in_upper(const Self &self, unsigned layer, std::uint64_t word,
                                                       Order order, unsigned widest, const MakeGrant &grant,
                                                       Block &out) {
        const unsigned levels = order.value - word_order(layer - 1);
        // relaxed: only a guess, the CAS decides.
        const UpperWord seen{view_.upper[layer][word].load(std::memory_order_relaxed)};
        if (levels == kUpperLevels) {
            if (!seen.is_claimable()) [[unlikely]]
                return ShortPath::refused;
            const auto next = [&] { return go_on(home_of(self, order), word, true); };
            return claim_in_upper(self, layer, word, seen, 0, order, kUpperLevels, next, grant, out);
        }
        const upper::Hole hole = upper::smallest_hole(seen.claimable_children(), levels);
        if (hole.levels > widest) [[unlikely]]  // kUpperLevels at most: "no hole" is wider
            return ShortPath::refused;
        const auto next = [&] {
            // A new place: how wide its hole was says how wide one has to be taken until the next search.
            if (home_word(self, layer, order) != word) return Home{word, hole.levels};
            const auto left =
                static_cast<std::uint8_t>(seen.claimable_children() & ~upper::group(hole.first_child, levels));
            return go_on(home_of(self, order), word, upper::smallest_hole(left, levels).levels > kUpperLevels);
        };
        return claim_in_upper(self, layer, word, seen, hole.first_child, order, levels, next, grant, out);
    }
    // levels: the order's. home(): where to go on.
    template <class MakeHome, class MakeGrant>
    [[gnu::always_inline]] ShortPath claim_in_upper(const Self &self, unsigned layer, std::uint64_t word,
                                                    UpperWord seen, unsigned first_child, Order order, unsigned levels,
                                                    const MakeHome &home, const MakeGrant &grant, Block &out) {
        out = Block{FrameIndex{(word * kUpperFanOut + first_child) << word_order(layer - 1)}, order};
        begin(self, IntentKind::allocate, out);
        Env::crash_point(CrashPoint::allocate_after_intent);
        std::uint64_t bits = seen.bits();
        // EDGE claim-then-look, as in allocate_in_leaf().
        if (!view_.upper[layer][word].compare_exchange_strong(
                bits, seen.with_allocated(upper::group(first_child, levels)).bits(), std::memory_order_seq_cst,
                std::memory_order_relaxed)) [[unlikely]]
            return ShortPath::raced;
        Env::crash_point(CrashPoint::allocate_after_claim);
        set_home(self, order, home());
        if (!is_marked_above(layer, word)) [[unlikely]]
            return ShortPath::begun;
        keep_claim(self, layer, out, grant());
        return ShortPath::done;
    }

    // word: of the layer below; its parent afterwards.
    [[gnu::always_inline]] bool is_marked_in(unsigned level, std::uint64_t &word) const {
        const unsigned child = word % kUpperFanOut;
        word /= kUpperFanOut;
        // EDGE claim-then-look
        return UpperWord{view_.upper[level][word].load(std::memory_order_seq_cst)}.passable(child);
    }
    // climb() where nothing has to be changed.
    [[gnu::always_inline]] bool is_marked_above(unsigned layer, std::uint64_t word) const {
        // Three layers are common (4 KiB, 4 MiB): not by a loop.
        constexpr unsigned kUsual = 2;
        if (layer < kUsual && view_.top_layer == kUsual) [[likely]]
            return is_marked_in(layer + 1, word) && (layer + 1 == kUsual || is_marked_in(layer + 2, word));
        for (unsigned level = layer + 1; level <= view_.top_layer; ++level)
            if (!is_marked_in(level, word)) return false;
        return true;
    }

    // One word, as often as others change it under us: they got on. On failure nothing is left behind.
    Attempt try_word(const Self &self, unsigned layer, std::uint64_t word, Order order, IndexEntry grant, Block &out) {
        if (layer == 0) return try_leaf_word(self, FrameIndex{first_frame(word)}, order, grant, out);
        for (;;) {
            const ShortPath way = allocate_in_upper(self, layer, word, order, kUpperLevels, [&] { return grant; }, out);
            if (way == ShortPath::done) return {true, kClimbed};
            if (way == ShortPath::begun) return finish_claim(self, layer, word, out, grant);
            if (way == ShortPath::raced) give_up(self);
            if (way == ShortPath::refused && !clean_a_group(self, layer, word, order)) return {};
        }
    }
    // The same at the leaf word of this frame, there first.
    Attempt try_leaf_word(const Self &self, FrameIndex at, Order order, IndexEntry grant, Block &out) {
        for (;;) {
            const ShortPath way = allocate_in_leaf(self, at, order, [&] { return grant; }, out);
            if (way == ShortPath::done) return {true, kClimbed};
            if (way == ShortPath::begun) return finish_claim(self, 0, at.value / kLeafFrames, out, grant);
            if (way == ShortPath::refused) return {};
            give_up(self);
        }
    }

    // Climbs above a claim and commits it, or undoes it.
    Attempt finish_claim(const Self &self, unsigned layer, std::uint64_t word, Block block, IndexEntry grant) {
        const unsigned closed_at = climb(layer, word);
        if (closed_at != kClimbed) {
            undo(self, layer, word, block);
            end(self);
            return {false, closed_at};
        }
        keep_claim(self, layer, block, grant);
        return {true, kClimbed};
    }

    [[gnu::always_inline]] void keep_claim(const Self &self, unsigned layer, Block block, IndexEntry grant) {
        Env::crash_point(CrashPoint::allocate_after_climb);
        commit(layer, block, grant);
        Env::crash_point(CrashPoint::allocate_after_commit);
        if (grant.is_owned()) count(self.counters->allocations[block.order.value]);
        end(self);
    }

    // Makes children of an upper word claimable for a block of this order: perhaps their marks are only kept from
    // before. False: there are none.
    [[gnu::noinline]] bool clean_a_group(const Self &self, unsigned layer, std::uint64_t word, Order order) {
        const unsigned levels = order.value - word_order(layer - 1);
        // relaxed: only a guess, cleaning looks again.
        const UpperWord seen{view_.upper[layer][word].load(std::memory_order_relaxed)};
        const auto open = static_cast<std::uint8_t>(~(seen.allocated_children() | seen.draining_children()));
        const std::uint8_t starts = upper::free_starts(open, levels);
        if (starts == 0) return false;
        Search<Env> search = searcher(self);
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

    // The given block and no other; false if any of it is taken.
    bool claim(unsigned layer, std::uint64_t word, Block block, IfDraining if_draining) {
        unsigned rounds = 0;
        if (layer == 0) {
            const std::uint64_t mask = leaf::mask(block.base.value % kLeafFrames, block.order.value);
            std::uint64_t seen = view_.leaf[word].load(std::memory_order_relaxed);
            while ((seen & mask) == 0 && ++rounds <= kCasRoundsMax)
                if (view_.leaf[word].compare_exchange_weak(seen, seen | mask, std::memory_order_seq_cst)) return true;
            return false;
        }
        const std::uint8_t group = group_of(layer, block);
        const auto closed = [if_draining](UpperWord state) {
            return state.occupied_children() | state.allocated_children() |
                   (if_draining == IfDraining::refuse ? state.draining_children() : 0);
        };
        std::uint64_t bits = view_.upper[layer][word].load(std::memory_order_relaxed);
        while ((closed(UpperWord{bits}) & group) == 0) {
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
    unsigned allocate_in_word(const Self &self, std::uint64_t word, Order order, IndexEntry grant, FrameIndex *bases,
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
                if (begun) end(self);
                return 0;
            }
            if (!begun) begin(self, IntentKind::word, leaf_word_block(word));
            begun = true;
            Env::crash_point(CrashPoint::allocate_after_intent);
            // EDGE claim-then-look, as for one block.
            if (leaf_word.compare_exchange_weak(seen, seen | mask, std::memory_order_seq_cst,
                                                std::memory_order_relaxed))
                break;
            count(self.counters->cas_retries);
        }
        Env::crash_point(CrashPoint::allocate_after_claim);
        if (climb(0, word) != kClimbed) [[unlikely]] {
            for (unsigned i = 0; i < got; ++i) leave_trace(self, Block{bases[i], order});
            Env::crash_point(CrashPoint::undo_after_trace);
            unclaim_in_leaf(word, mask);
            Env::crash_point(CrashPoint::undo_after_unclaim);
            raise_hints(self, 0, word);
            end(self);
            return 0;
        }
        Env::crash_point(CrashPoint::allocate_after_climb);
        for (unsigned i = 0; i < got; ++i) commit(0, Block{bases[i], order}, grant);
        Env::crash_point(CrashPoint::allocate_after_commit);
        if (grant.is_owned()) count(self.counters->allocations[order.value], got);
        end(self);
        return got;
    }

    static constexpr std::uint64_t first_frame(std::uint64_t leaf_word) { return leaf_word * kLeafFrames; }
    static Block leaf_word_block(std::uint64_t word) { return {FrameIndex{first_frame(word)}, Order{kLeafOrder}}; }

    void leave_trace(const Self &self, Block block) {
        Word &slot = view_.index_entry(block);
        const IndexEntry old{slot.load(std::memory_order_relaxed)};  // relaxed: as in commit()
        const IndexEntry trace = IndexEntry::freeing(self.actor.thread, block.order, 0);
        slot.store(after(layer_of(block.order), block, trace, old).bits(), std::memory_order_release);
    }

    // The index is written before the bits go: recovery must be able to tell an undone claim from one in flight.
    [[gnu::noinline]] void undo(const Self &self, unsigned layer, std::uint64_t word, Block block) {
        leave_trace(self, block);
        Env::crash_point(CrashPoint::undo_after_trace);
        unclaim(layer, word, block);
        Env::crash_point(CrashPoint::undo_after_unclaim);
        raise_hints(self, layer, word);
    }

    // One block of a free_many: as in free_private() or, if others may take it, become_freer(). Adds its bits to mask.
    bool start_freeing(const Self &self, BlockState state, FrameIndex base, std::uint64_t &mask) {
        Word &slot = view_.index[0][base.value];
        std::uint64_t bits = slot.load(std::memory_order_acquire);  // EDGE look-up
        const IndexEntry entry{bits};
        const Block block{base, entry.order()};
        if (entry.state() != state || entry.owner() != self.actor.process || block.order.value > kLeafOrder ||
            !view_.contains(block))
            return false;
        // EDGE ownership
        if (!entry.is_published())
            slot.store(entry.now(self.freeing).bits(), std::memory_order_release);
        else if (!slot.compare_exchange_strong(bits, entry.now(self.freeing).bits(), std::memory_order_acq_rel))
            return false;
        Env::crash_point(CrashPoint::free_after_ownership);
        mask |= leaf::mask(base.value % kLeafFrames, block.order.value);
        if (entry.is_owned()) count(self.counters->frees[block.order.value]);
        if (block.order.value == kLeafOrder) set_home(self, block.order, Home{base.value, 0});
        return true;
    }

    // The blocks of a free_many in one word.
    void release_in_leaf(const Self &self, std::uint64_t word, std::uint64_t mask) {
        unclaim_in_leaf(word, mask);
        Env::crash_point(CrashPoint::free_after_unclaim);
        if (!hints_suffice(self, 0, word)) raise_hints(self, 0, word);
        Env::crash_point(CrashPoint::free_after_hints);
    }

    // False: the hints have to be raised, or so it seems.
    [[gnu::always_inline]] bool hints_suffice(const Self &self, unsigned layer, std::uint64_t word) const {
        return layer == 0 ? searcher(self).leaf_is_promised(word) : searcher(self).hints_are_full(layer, word);
    }

    void raise_hints(const Self &self, unsigned layer, std::uint64_t word) {
        Search<Env> search = searcher(self);
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

    [[gnu::noinline]] Errc allocate_elsewhere(const Self &self, unsigned layer, std::uint64_t home, Attempt last,
                                              Order order, IndexEntry grant, Block &out) {
        // The leaf words beside the thread's own share a cache line with it.
        if (layer == 0 && home != kNoWord && last.closed_at == 0) {
            if (!searcher(self).is_used_up(home / kUpperFanOut))
                last = try_siblings(self, home / kUpperFanOut, (home + 1) % kUpperFanOut, order, grant, out);
            if (last.got) return Errc::ok;
            if (order.value == kLeafOrder && last.closed_at == 0 && try_next_group(self, home, order, grant, out))
                return Errc::ok;
        }
        if (layer != 0 && home != kNoWord && order.value != word_order(layer) &&
            try_next_word(self, layer, home, order, grant, out))
            return Errc::ok;
        // A larger block goes where it does least harm, wherever that is; one as large as a leaf word, too, and so a
        // thread begins again where it began and does not wander into the part of the pool that another one uses.
        if (order.value >= kLeafOrder) home = kNoWord;
        Obstacles before;
        for (unsigned round = 0;; ++round) {
            if (search_and_claim(self, layer, home, last, order, grant, out)) return Errc::ok;
            if (nothing_is_hidden(self, order)) return Errc::out_of_frames;
            // Nothing, as the hints tell; but somebody is in the middle of changing hints, or was stopped or killed
            // there: look at the words themselves. Looks at one word after another prove nothing: what is free may have
            // been now here, now there. That the same blocks stood in all places before and after does.
            const Obstacles now = layer == 0 ? Obstacles{} : obstacles_to(order);
            if (now.stood_since(before) || round == refusal_rounds(layer)) return Errc::out_of_frames;
            before = now;
            for (std::uint64_t top = 0; top < view_.word_count[view_.top_layer]; ++top)
                if (scan_and_claim(self, view_.top_layer, top, order, grant, out)) return Errc::ok;
            home = kNoWord;
            last = {};
        }
    }

    // --- is it true that nothing is free? ----------------------------------------------------------------------------

    // What stands in every place in which a block could lie, as one number: in each place one thing that cannot go and
    // come back without a change. A block that is held cannot: whoever holds it next holds it with another generation.
    struct Obstacles {
        std::uint64_t digest = 0;
        bool everywhere = false;  // in each place there is such a thing
        void add(std::uint64_t place, std::uint64_t bits) {
            digest = (digest ^ place) * 0x9e37'79b9'7f4a'7c15;
            digest = (digest ^ digest >> 29 ^ bits) * 0xbf58'476d'1ce4'e5b9;
        }
        // They were all there at each moment between the two looks.
        bool stood_since(Obstacles before) const { return everywhere && before.everywhere && digest == before.digest; }
    };

    // So many times a search is tried again that has found nothing and proven nothing, for others allocate and free all
    // the time. After that the block is refused all the same: one may have been free at each moment, if it was another
    // one at each look. Each look reads words of the whole node, so there are few. Blocks of a leaf word are looked for
    // once more, by hints: to prove that there is none would take a look at every frame's entry, and hints do for them,
    // but beside somebody who is changing hints at each look.
    static constexpr unsigned refusal_rounds(unsigned layer) { return layer == 0 ? 1 : 2; }

    // order: above kLeafOrder.
    [[gnu::noinline]] Obstacles obstacles_to(Order order) const {
        Obstacles obstacles;
        for (std::uint64_t top = 0; top < view_.word_count[view_.top_layer]; ++top)
            if (!stand_everywhere(view_.top_layer, top, order, obstacles)) return obstacles;
        obstacles.everywhere = true;
        return obstacles;
    }
    // False: there is a place below (level, word) in which there may be nothing that stands.
    bool stand_everywhere(unsigned level, std::uint64_t word, Order order, Obstacles &obstacles) const {
        const unsigned layer = layer_of(order);
        if (level == layer) {
            const unsigned levels = order.value - word_order(layer - 1);
            for (unsigned child = 0; child < kUpperFanOut; child += 1U << levels)
                if (!stands_in(level, word, upper::group(child, levels), obstacles)) return false;
            return true;
        }
        // acquire: looks that follow each other are not to change places.
        const UpperWord state{view_.upper[level][word].load(std::memory_order_acquire)};
        for (unsigned child = 0; child < kUpperFanOut; ++child) {
            const std::uint64_t below = word * kUpperFanOut + child;
            if (below >= view_.word_count[level - 1]) break;
            if (state.closed_to_allocation(child) ? !stands_in(level, word, upper::group(child, 0), obstacles)
                                                  : !stand_everywhere(level - 1, below, order, obstacles))
                return false;
        }
        return true;
    }
    // In one of these children of an upper word. From the last one on: what is allocated next is rather in the first.
    bool stands_in(unsigned level, std::uint64_t word, std::uint8_t group, Obstacles &obstacles) const {
        const UpperWord state{view_.upper[level][word].load(std::memory_order_acquire)};
        for (unsigned child = kUpperFanOut; child-- > 0;) {
            if ((group >> child & 1) == 0) continue;
            const std::uint64_t below = word * kUpperFanOut + child;
            if (below >= view_.word_count[level - 1]) return true;  // there is no such place
            if (state.allocated_here(child)
                    ? holder_stands_at(level, FrameIndex{below << word_order(level - 1)}, obstacles)
                    : !state.draining(child) && state.occupied_below(child) &&
                          (level == 1 ? holder_stands_in_leaf(below, obstacles)
                                      : stands_in(level - 1, below, 0xff, obstacles)))
                return true;
            if (!state.closed_to_allocation(child)) continue;
            // A drain, or an operation under way on a block of this word. The tag: were it open for a moment and closed
            // again, the word would be another one.
            obstacles.add(word << 4 | level, state.bits());
            return true;
        }
        return false;
    }
    bool holder_stands_in_leaf(std::uint64_t word, Obstacles &obstacles) const {
        const std::uint64_t taken = view_.leaf[word].load(std::memory_order_acquire);
        for (std::uint64_t left = taken; left != 0;) {
            const auto frame = static_cast<unsigned>(std::bit_width(left)) - 1;
            if (holder_stands_at(0, FrameIndex{first_frame(word) + frame}, obstacles)) return true;
            left &= ~(std::uint64_t{1} << frame);
        }
        return taken != 0 && operations_stand_in_leaf(word, taken, obstacles);
    }
    // Nothing but operations under way. They count as what they were before, or will be after: as long as they are the
    // same, somebody's. (One may be stopped here: others are not to try again and again for its sake.) Not those on
    // many blocks of the word: a thread may end one and begin another, and between them all its blocks are free, with
    // the same intent and the same entries before and after.
    [[gnu::noinline]] bool operations_stand_in_leaf(std::uint64_t word, std::uint64_t taken,
                                                    Obstacles &obstacles) const {
        bool some = false;
        const std::uint32_t threads = pool_.threads_in_use_bound();
        for (std::uint32_t thread = 0; thread < threads; ++thread) {
            // acquire: as above.
            const Intent intent{pool_.threads[thread].intent.load(std::memory_order_acquire)};
            if (!intent.active() || intent.kind() == IntentKind::word || intent.numa_node() != view_.numa_node ||
                !overlaps(intent.block(), leaf_word_block(word)))
                continue;
            obstacles.add(thread, intent.bits());
            some = true;
        }
        // An operation that has ended and begun again has left another generation.
        for (; taken != 0; taken &= taken - 1) {
            const std::uint64_t frame = first_frame(word) + static_cast<unsigned>(std::countr_zero(taken));
            if (frame < view_.geometry.frame_count)
                obstacles.add(frame, view_.index[0][frame].load(std::memory_order_acquire));
        }
        return some;
    }
    // A held block of this layer that covers the frame (or the child of an upper word that begins there).
    bool holder_stands_at(unsigned layer, FrameIndex frame, Obstacles &obstacles) const {
        const unsigned granule = view_.geometry.index_granule(layer);
        for (unsigned order = granule; order <= word_order(layer) && order <= view_.geometry.largest_order; ++order) {
            const Block block{FrameIndex{frame.value >> order << order}, Order{order}};
            // acquire: as above.
            const IndexEntry entry{view_.index_entry(layer, block).load(std::memory_order_acquire)};
            if (!entry.is_held() || entry.order() != block.order) continue;
            obstacles.add(block.base.value, entry.bits());
            return true;
        }
        return false;
    }

    bool search_and_claim(const Self &self, unsigned layer, std::uint64_t home, Attempt last, Order order,
                          IndexEntry grant, Block &out) {
        Search<Env> search = searcher(self);
        lower_passed(self, search);
        const unsigned target = target_level(layer);
        const unsigned wanted = order.value + 1U;
        // Begin above the word that did not serve; at the ancestor that is closed, if that was the reason; at the root
        // if no word is given.
        std::uint64_t word = home == kNoWord ? kNoWord : target_of(layer, home);
        // Every round either claims, or lowers a hint, or lost a race to somebody who got on; the bound guards against
        // scribbled metadata that changes under our eyes for ever.
        for (unsigned round = 0; round < kMaxSearchRounds; ++round) {
            unsigned level = view_.hint_levels;
            std::uint64_t from = 0;
            if (word != kNoWord) {
                if (last.closed_at <= target) lower_used_up(search, target, word, wanted);
                level = last.closed_at <= target ? target + 1 : last.closed_at;
                if (level > view_.hint_levels) return false;
                from = word >> (kUpperLevels * (level - target));
            }
            std::uint64_t found = 0;
            if (!search.find(level, from, target, wanted, found)) return false;
            last = layer == 0 ? try_siblings(self, found, search.first_child(1), order, grant, out)
                              : try_word(self, layer, found, order, grant, out);
            if (last.got) {
                if (order.value == word_order(layer))
                    set_home_in_hole(self, layer, out);
                else if (layer != 0) {
                    let_others_look_again(self, order);
                    set_home_in_free(self, layer, out);
                }
                return true;
            }
            word = found;
        }
        return false;
    }

    // What did not serve. If that is a group that is used up, so are perhaps those beside it: then all at once.
    void lower_used_up(Search<Env> &search, unsigned target, std::uint64_t word, unsigned wanted) const {
        search.lower(target, word);
        if (target != 1 || !search.is_used_up(word)) return;
        for (unsigned left = search.hopeful_children(2, word / kUpperFanOut, wanted); left != 0; left &= left - 1) {
            const std::uint64_t group =
                word / kUpperFanOut * kUpperFanOut + static_cast<unsigned>(std::countr_zero(left));
            if (search.is_used_up(group)) search.lower(1, group);
        }
    }

    // After a search for a block as large as a word.
    void set_home_in_hole(const Self &self, unsigned layer, Block block) {
        const std::uint64_t word = block.base.value >> word_order(layer);
        const unsigned levels = layer != 0                                 ? levels_around(layer, word)
                                : group_is_free(word / kUpperFanOut, word) ? kUpperLevels
                                                                           : 0;
        const std::uint64_t next = layer == 0
                                       ? first_frame(word + has_next(word))
                                       : word + (has_next(word) & static_cast<std::uint64_t>(levels == kUpperLevels));
        set_home(self, block.order, levels == kUpperLevels ? Home::in_free(next, levels) : Home{next, levels});
    }

    // After a search for a smaller block of an upper word: if it had to begin a free word of a free parent, the thread
    // may go on so. (In the word where it was already, what an earlier search found holds: a preference.)
    void set_home_in_free(const Self &self, unsigned layer, Block block) {
        const std::uint64_t word = block.base.value >> word_order(layer);
        if (home_of(self, block.order).widest() == kUpperLevels && levels_around(layer, word) == kUpperLevels)
            set_home(self, block.order, Home::in_free(word, kUpperLevels, Home::kBegunMaxOfParts));
    }
    // After such a search: all other sizes of upper words may find something in the rest of the word that it has begun.
    void let_others_look_again(const Self &self, Order order) {
        for (unsigned other = kLeafOrder + 1; other <= view_.geometry.largest_order; ++other)
            if (other != order.value) set_home(self, Order{other}, home_of(self, Order{other}).without_next());
    }
    // For such a block, whose word is used up, or is another thread's, too: the next one that is free, if the last
    // search found nothing less.
    bool try_next_word(const Self &self, unsigned layer, std::uint64_t home, Order order, IndexEntry grant,
                       Block &out) {
        if (!home_of(self, order).may_begin_next()) return false;
        const std::uint64_t next = home_beside(self, layer, order, home);
        return next != kNoWord && try_word(self, layer, next, order, grant, out).got;
    }

    // For a block as large as a leaf word, whose group is used up: the next group, if that is free, and if the last
    // search, too, found none that was less than free.
    bool try_next_group(const Self &self, std::uint64_t home, Order order, IndexEntry grant, Block &out) {
        const Home found = home_of(self, order);
        if (!found.may_begin_next()) return false;
        const std::uint64_t group = home / kUpperFanOut;
        const std::uint64_t next = next_free_parent(self, 0, group);
        if (next == kNoWord) return false;
        set_home(self, order, found.begun_at(first_frame(next * kUpperFanOut)));
        // relaxed, here and below: our own slot.
        auto &passed = self.homes->passed;
        passed.store(Passed{passed.load(std::memory_order_relaxed)}.through(group).bits(), std::memory_order_relaxed);
        return try_word(self, 0, next * kUpperFanOut, order, grant, out).got;
    }
    // What the thread has passed by keeps hints that are too hopeful. So that no search meets more of that than the
    // last group of each run, however large the pool is. At most 1023 groups.
    void lower_passed(const Self &self, Search<Env> &search) const {
        const Passed passed{self.homes->passed.load(std::memory_order_relaxed)};
        if (passed.count() == 0) [[likely]]
            return;
        self.homes->passed.store(0, std::memory_order_relaxed);
        for (std::uint64_t group = passed.first(); group < passed.first() + passed.count(); ++group)
            if (search.is_used_up(group)) search.lower(1, group);
    }

    // Where to go on when the words of a layer with this parent (leaf words: this group) are used up: at the next
    // one's, if they are free; or behind that, if they are used up, too: often the thread has begun there, where it had
    // freed last. kNoWord: nowhere. A preference.
    std::uint64_t next_free_parent(const Self &self, unsigned layer, std::uint64_t parent) const {
        const std::uint64_t next = parent + 1;
        if (is_free_parent(layer, next)) return next;
        const bool used_up = layer == 0 ? searcher(self).is_used_up(next)
                                        : has_all_children(layer, next) && empty_words(layer, next) == 0;
        return used_up && is_free_parent(layer, next + 1) ? next + 1 : kNoWord;
    }
    bool is_free_parent(unsigned layer, std::uint64_t parent) const {
        return layer == 0 ? group_is_free(parent, kNoWord)
                          : has_all_children(layer, parent) && empty_words(layer, parent) == 0xff &&
                                !is_closed_above(layer, parent * kUpperFanOut);
    }

    // All eight leaf words of a group but this one.
    bool group_is_free(std::uint64_t group, std::uint64_t but) const {
        if (!has_all_children(0, group)) return false;
        // relaxed, all of it: a preference.
        if (view_.top_layer > 0 && !UpperWord{view_.upper[1][group].load(std::memory_order_relaxed)}.is_open())
            return false;
        if (is_closed_above(1, group)) return false;
        std::uint64_t taken = 0;
        for (std::uint64_t word = group * kUpperFanOut; word < (group + 1) * kUpperFanOut; ++word)
            if (word != but) taken |= view_.leaf[word].load(std::memory_order_relaxed);
        return taken == 0;
    }
    // Is what this word belongs to allocated, or draining, in a layer above? A preference.
    bool is_closed_above(unsigned layer, std::uint64_t word) const {
        for (unsigned level = layer + 1; level <= view_.top_layer; ++level) {
            const unsigned child = word % kUpperFanOut;
            word /= kUpperFanOut;
            if (UpperWord{view_.upper[level][word].load(std::memory_order_relaxed)}.closed_to_allocation(child))
                return true;
        }
        return false;
    }

    // Where to go on in an upper layer: at the same word, or if that is used up beside it, if all that there is are
    // free parents. No branch.
    static Home go_on(Home found, std::uint64_t word, bool used_up) {
        return found.moved_to(word + (static_cast<std::uint64_t>(used_up && found.may_begin_next()) & has_next(word)));
    }

    // Is there a word beside it, in a leaf word's cache line or below the same parent? 1 or 0. (At the pool's end it
    // may not exist: as a home it is nowhere.)
    static std::uint64_t has_next(std::uint64_t word) {
        return static_cast<std::uint64_t>((word + 1) % kUpperFanOut != 0);
    }

    // layer: the children's.
    bool has_all_children(unsigned layer, std::uint64_t parent) const {
        return (parent + 1) * kUpperFanOut <= view_.word_count[layer];
    }

    // Those of the words of an upper layer that have this parent: which are empty, as bits. A preference.
    std::uint8_t empty_words(unsigned layer, std::uint64_t parent) const {
        // relaxed, all of it: only a guess, the claim decides.
        unsigned closed = 0;
        if (layer < view_.top_layer) {
            const UpperWord above{view_.upper[layer + 1][parent].load(std::memory_order_relaxed)};
            closed = above.allocated_children() | above.draining_children();
        }
        const std::uint64_t first = parent * kUpperFanOut;
        const Word *const words = &view_.upper[layer][first];
        const auto is_empty = [words](unsigned child) {
            return UpperWord{words[child].load(std::memory_order_relaxed)}.is_claimable() ? 1U << child : 0U;
        };
        unsigned empty = 0;
        if (const std::uint64_t count = view_.word_count[layer] - first; count >= kUpperFanOut) [[likely]]
            for (unsigned child = 0; child < kUpperFanOut; ++child) empty |= is_empty(child);
        else
            for (unsigned child = 0; child < count; ++child) empty |= is_empty(child);
        return static_cast<std::uint8_t>(empty & ~closed);
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
    Attempt try_siblings(const Self &self, std::uint64_t parent, unsigned start, Order order, IndexEntry grant,
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
            last = try_word(self, 0, word, order, grant, out);
            if (last.got || last.closed_at > 1) return last;
        }
        return {false, 0};
    }

    // True: no other thread is changing hints (nor, where whole words matter, in the middle of any operation) while the
    // root says that nothing suits. So "nothing" was true at the moment of reading the root.
    bool nothing_is_hidden(const Self &self, Order order) const {
        const std::uint32_t threads = pool_.threads_in_use_bound();
        const unsigned layer = layer_of(order);
        std::uint64_t before = 0;
        std::uint64_t after = 0;
        return collect_hint_work(self, layer, threads, before) &&
               searcher(self).value_of(view_.hint_levels, 0) <= order.value &&
               collect_hint_work(self, layer, threads, after) && before == after;
    }

    bool collect_hint_work(const Self &self, unsigned layer, std::uint32_t threads, std::uint64_t &digest) const {
        for (std::uint32_t thread = 0; thread < threads; ++thread) {
            if (thread == self.actor.thread.value) continue;
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
    bool scan_and_claim(const Self &self, unsigned level, std::uint64_t word, Order order, IndexEntry grant,
                        Block &out) {
        if (level == layer_of(order)) return try_word(self, level, word, order, grant, out).got;
        const UpperWord state{view_.upper[level][word].load(std::memory_order_acquire)};
        for (unsigned child = 0; child < kUpperFanOut; ++child) {
            const std::uint64_t below = word * kUpperFanOut + child;
            if (state.closed_to_allocation(child) || below >= view_.word_count[level - 1]) continue;
            if (scan_and_claim(self, level - 1, below, order, grant, out)) return true;
        }
        return false;
    }

    // --- the thread's own word ---------------------------------------------------------------------------------------

    Home home_of(const Self &self, Order order) const {
        // relaxed: our own slot.
        return Home{self.homes->word[order.value].load(std::memory_order_relaxed)};
    }
    // Where this thread goes on with blocks of this order. kNoWord: nowhere yet (or what stands there is scribbled).
    std::uint64_t home_word(const Self &self, unsigned layer, Order order) const {
        const std::uint64_t place = home_of(self, order).place();
        const std::uint64_t word = layer == 0 ? place / kLeafFrames : place;
        return word < view_.word_count[layer] ? word : kNoWord;
    }
    // The same for a block of an upper word. One as large as the word goes beside it once that is taken: below the same
    // parent, in a hole no wider than the one that the last search found.
    [[gnu::always_inline]] std::uint64_t home_for(const Self &self, unsigned layer, Order order) {
        const std::uint64_t home = home_word(self, layer, order);
        if (home == kNoWord || order.value != word_order(layer)) return home;
        // relaxed: a preference, the claim decides.
        if (UpperWord{view_.upper[layer][home].load(std::memory_order_relaxed)}.is_claimable()) return home;
        return home_beside(self, layer, order, home);
    }
    [[gnu::noinline]] std::uint64_t home_beside(const Self &self, unsigned layer, Order order, std::uint64_t home) {
        const std::uint64_t parent = home / kUpperFanOut;
        const upper::Hole hole = upper::smallest_hole(empty_words(layer, parent), 0);
        const Home found = home_of(self, order);
        std::uint64_t word = parent * kUpperFanOut + hole.first_child;
        if (hole.levels > found.widest()) {
            // Used up, and the last search found nothing that was less than free.
            if (!found.may_begin_next()) return kNoWord;
            const std::uint64_t next = next_free_parent(self, layer, parent);
            if (next == kNoWord) return kNoWord;
            set_home(self, order, found.begun_at(next * kUpperFanOut));
            return next * kUpperFanOut;
        }
        set_home(self, order, found.moved_to(word));
        return word;
    }
    void set_home(const Self &self, Order order, Home home) {
        self.homes->word[order.value].store(home.bits(),
                                            std::memory_order_relaxed);  // relaxed: our own slot
    }

    static constexpr unsigned kMaxSearchRounds = 1 << 16;

    NodeView<Env> view_;
    PoolView<Env> pool_;
};

}  // namespace numacre::engine
