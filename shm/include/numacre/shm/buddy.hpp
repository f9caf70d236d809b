// The allocator of one numa node: a non-blocking buddy system after Marotta et al. (NBBS, IEEE TC 2021), corrected, packed
// wider and made to survive the death of any process. All atomics of the tree are here and in search.hpp, recovery.hpp.
//
// Every operation is lock-free, never blocks, never enters the kernel. A process may die at any instruction of any of them;
// Recovery then completes or undoes what it was doing. shm/README.md has the steps, the crash table and the edges.
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

    // A block of `order` for actor.process. slack: see IndexEntry. Errors: out_of_frames, bad_argument.
    // Common path: one RMW (the claim), then one load an upper layer, three plain stores.
    Errc allocate(Actor actor, Order order, std::uint32_t slack, Block &out) {
        if (order.value > view_.geometry.largest_order) [[unlikely]] return Errc::bad_argument;
        // Two copies of the same code: in the first the compiler knows that it works on a leaf word.
        if (order.value <= kLeafOrder) [[likely]] return allocate_near_home(actor, 0, order, slack, out);
        return allocate_near_home(actor, layer_of(order), order, slack, out);
    }

    // Frees the block that begins at `base` if `actor.process` owns it. freed: what it was.
    // Errors (nothing changed): bad_argument (no such frame), not_owner, stale_ref (not allocated, or not from there).
    Errc free(Actor actor, FrameIndex base, Block &freed) {
        IndexEntry entry;
        const Errc found = find_entry(base, freed, entry);
        if (found != Errc::ok) return found;
        if (entry.owner() != actor.process) return Errc::not_owner;
        return free_entry(actor, freed, entry, true);
    }

    // Becomes the owner of the referenced block. One RMW. Needs no intent: before the CAS the block is the giver's, after it
    // ours. Errors: bad_argument (not a reference of this pool), stale_ref.
    Errc take(Actor actor, Reference reference, Block &taken) {
        const Block block = reference.block();
        if (!view_.contains(block) || reference.generation() == 0) return Errc::bad_argument;
        Word &slot = view_.index_entry(block);
        std::uint64_t bits = slot.load(std::memory_order_acquire);
        const IndexEntry entry{bits};
        if (!entry.is_owned() || entry.order() != block.order || entry.generation() != reference.generation() ||
            entry.owner() == kOfflineOwner || entry.owner() == kDaemonProcess)
            return Errc::stale_ref;
        // EDGE hand-over (acq_rel; partners: EDGE commit, EDGE ownership). Carries the giver's bytes to the taker, and our
        // ownership to whoever tries after us.
        // Weakened: the taker reads a frame from before the giver wrote it.
        if (!slot.compare_exchange_strong(bits, entry.handed_to(actor.process).bits(), std::memory_order_acq_rel))
            return Errc::stale_ref;
        count(view_.counters[actor.thread.value].takes);
        taken = block;
        return Errc::ok;
    }

    // The owned block that begins at base, in whatever layer. Errors: bad_argument (no such frame), stale_ref (none).
    Errc find_entry(FrameIndex base, Block &block, IndexEntry &entry) const {
        if (base.value >= view_.geometry.frame_count) return Errc::bad_argument;
        for (unsigned layer = 0; layer <= view_.top_layer; ++layer) {
            const unsigned granule = view_.geometry.index_granule(layer);
            if ((base.value & ((std::uint64_t{1} << granule) - 1)) != 0) break;
            // EDGE look-up (acquire; partner: EDGE commit): what the owner wrote before it gave us the address.
            entry = IndexEntry{view_.index[layer][base.value >> granule].load(std::memory_order_acquire)};
            block = Block{base, entry.order()};
            if (entry.is_owned() && layer_of(entry.order()) == layer && view_.contains(block) &&
                entry.owner() != kOfflineOwner)
                return Errc::ok;
        }
        return Errc::stale_ref;
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

    // Frees an owned block that find_entry just showed. stale_ref: somebody was faster. tally: it is somebody's free, not a
    // chunk that comes online.
    Errc free_entry(Actor actor, Block block, IndexEntry entry, bool tally) {
        begin(actor, IntentKind::free, block);
        Env::crash_point(CrashPoint::free_after_intent);
        // EDGE ownership (acq_rel; partners: EDGE commit, EDGE hand-over). The one place where it is decided who frees:
        // a second free, a free of what was handed on and recovery all meet in this CAS. Release publishes the intent: who
        // sees FREEING(thread) must find the thread's intent.
        // Weakened: recovery sees FREEING with no intent, takes the free for finished, and clears bits that the block's
        // next owner has by then.
        std::uint64_t bits = entry.bits();
        const auto freeing = IndexEntry::freeing(actor.thread, block.order, entry.generation());
        if (!view_.index_entry(block).compare_exchange_strong(bits, freeing.bits(), std::memory_order_acq_rel)) {
            end(actor);
            return Errc::stale_ref;
        }
        Env::crash_point(CrashPoint::free_after_ownership);
        if (block.order.value <= kLeafOrder) [[likely]]
            release_bits_of_layer(actor, 0, block);
        else
            release_bits_of_layer(actor, layer_of(block.order), block);
        if (tally) count(view_.counters[actor.thread.value].frees[block.order.value]);
        end(actor);
        return Errc::ok;
    }

    // Before the thread slot is given up: nothing may stay marked on its account.
    void retire(Actor actor) {
        for (unsigned layer = 0; layer <= view_.top_layer; ++layer) move_home(actor, layer, kNoWord);
    }

    // ------------------------------------------------------------------------------------------------------------------
    // For the daemon's Chunks and for Recovery.

    // Claims exactly this block, even in a draining chunk. The intent stays set: the caller writes the index and ends it.
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

    // CLEAN: while the word of `layer` is empty, clear its mark in the parent, and so on upwards. `through`: go on upwards
    // where the mark is clear already (recovery: the dead may have cleared it and no more).
    void clean(unsigned layer, std::uint64_t word, bool through, Search<Env> &search) {
        while (layer < view_.top_layer) {
            const unsigned child = word % kUpperFanOut;
            const std::uint64_t parent = word / kUpperFanOut;
            Word &state = view_.upper[layer + 1][parent];
            UpperWord seen{state.load(std::memory_order_seq_cst)};
            for (;;) {
                if (!seen.occupied_below(child)) {
                    if (!through || !word_is_empty(layer, word)) return;
                    break;
                }
                if (!seen.coalescing(child)) {
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
                if (!word_is_empty(layer, word)) return;
                std::uint64_t bits = seen.bits();
                // Compares the whole word, tag included: any change since we saw COAL makes us look again.
                if (state.compare_exchange_weak(bits, seen.without_mark(child).bits(), std::memory_order_seq_cst)) {
                    seen = seen.without_mark(child);
                    break;
                }
                seen = UpperWord{bits};
            }
            search.raise(layer + 1, parent);
            if (!seen.empty()) return;
            ++layer;
            word = parent;
        }
    }

    bool word_is_empty(unsigned layer, std::uint64_t word) const {
        return layer == 0 ? view_.leaf[word].load(std::memory_order_seq_cst) == 0
                          : UpperWord{view_.upper[layer][word].load(std::memory_order_seq_cst)}.empty();
    }

    // Cleans every word that some thread keeps marked in reserve (lazy coalescing), and names it in our slot meanwhile.
    void clean_hot_words(Actor actor) {
        auto &sweep = view_.hot[actor.thread.value].word[kSweepSlot];
        const std::uint32_t threads = pool_.threads_in_use_bound();
        for (std::uint32_t thread = 0; thread < threads; ++thread) {
            for (unsigned layer = 0; layer < view_.top_layer; ++layer) {
                const std::uint64_t hot = view_.hot[thread].word[layer].load(std::memory_order_acquire);
                if (hot == 0 || hot > view_.geometry.word_count(layer) || !word_is_empty(layer, hot - 1)) continue;
                // relaxed: the clean's seq_cst CAS carries it. Recovery of our death cleans on from there.
                sweep.store(sweep_bits(layer, hot - 1), std::memory_order_relaxed);
                Search<Env> search = searcher(actor);
                clean(layer, hot - 1, false, search);
            }
        }
        // release: recovery must not find the slot clear while our CASes are still on their way.
        sweep.store(0, std::memory_order_release);
    }

    Search<Env> searcher(Actor actor) const {
        return Search<Env>{view_, pool_.threads[actor.thread.value].hint_work, scatter(actor.thread)};
    }

    void begin(Actor actor, IntentKind kind, Block block) {
        // relaxed: the claim's (or the ownership CAS's) release carries it (EDGE intent-before-claim).
        pool_.threads[actor.thread.value].intent.store(Intent{kind, view_.numa_node, block}.bits(),
                                                       std::memory_order_relaxed);
    }
    void end(Actor actor) {
        // EDGE intent-clear (release; partner: the acquire loads in recovery). All that the operation did comes first.
        // Weakened: recovery sees no intent, yet our unclaim lands later, on the block's next owner.
        pool_.threads[actor.thread.value].intent.store(0, std::memory_order_release);
    }

    static constexpr unsigned kSweepSlot = kMaxUpperLayers + 1;
    static constexpr std::uint64_t sweep_bits(unsigned layer, std::uint64_t word) { return word << 3 | layer; }

    // EDGE commit (release; partners: EDGE look-up, EDGE ownership, EDGE hand-over, recovery's acquire loads). From here on
    // the block is the process's: a death gives it back as owned, not as in flight.
    // Weakened: recovery sees OWNED before the marks above the block and cleans them away under a live block.
    void commit(Block block, ProcessSlot owner, std::uint32_t slack) {
        Word &slot = view_.index_entry(block);
        // relaxed: whoever wrote the entry held these bits before us, and the claim acquired them.
        const IndexEntry old{slot.load(std::memory_order_relaxed)};
        slot.store(IndexEntry::owned(owner, block.order, next_generation(old.generation()), slack).bits(),
                   std::memory_order_release);
    }

private:
    static constexpr std::uint64_t kNoWord = ~std::uint64_t{0};  // its successor is 0: "none" in a hot slot
    static constexpr unsigned kClimbed = 0;

    struct Attempt {
        bool got = false;
        unsigned closed_at = 0;  // level whose word has a closed child on our path; 0: the word itself had nothing
    };

    // --- claiming -----------------------------------------------------------------------------------------------------

    [[gnu::always_inline]] Errc allocate_near_home(Actor actor, unsigned layer, Order order, std::uint32_t slack, Block &out) {
        const std::uint64_t home = home_word(actor, layer);
        Attempt first;
        if (home != kNoWord) [[likely]] {
            first = try_word(actor, layer, home, order, slack, out);
            if (first.got) [[likely]] return Errc::ok;
        }
        return allocate_elsewhere(actor, layer, home, first, order, slack, out);
    }

    // One word: find a free block of the order, claim it, climb. On failure nothing is left behind.
    [[gnu::always_inline]] Attempt try_word(Actor actor, unsigned layer, std::uint64_t word, Order order, std::uint32_t slack, Block &out) {
        Block block{{}, order};
        if (!(layer == 0 ? claim_in_leaf(actor, word, block) : claim_in_upper(actor, layer, word, block))) return {};
        Env::crash_point(CrashPoint::allocate_after_claim);
        const unsigned closed_at = climb(layer, word);
        if (closed_at != kClimbed) [[unlikely]] {
            undo(actor, layer, word, block);
            end(actor);
            return {false, closed_at};
        }
        Env::crash_point(CrashPoint::allocate_after_climb);
        commit(block, actor.process, slack);
        Env::crash_point(CrashPoint::allocate_after_commit);
        count(view_.counters[actor.thread.value].allocations[order.value]);
        end(actor);
        out = block;
        return {true, kClimbed};
    }

    [[gnu::always_inline]] bool claim_in_leaf(Actor actor, std::uint64_t word, Block &block) {
        Word &state = view_.leaf[word];
        // relaxed: only a guess, the CAS decides.
        std::uint64_t seen = state.load(std::memory_order_relaxed);
        for (bool first = true;; first = false) {
            const std::uint64_t starts = leaf::free_starts(seen, block.order.value);
            if (starts == 0) {
                if (!first) end(actor);
                return false;
            }
            const auto frame = static_cast<unsigned>(std::countr_zero(starts));
            block.base = FrameIndex{word * kLeafFrames + frame};
            begin(actor, IntentKind::allocate, block);
            Env::crash_point(CrashPoint::allocate_after_intent);
            // EDGE claim-then-look (seq_cst, before the loads of climb(); partner: EDGE coalesce-then-look). It also is
            // EDGE unclaim-to-claim's acquire side: the old owner's last accesses happened before ours.
            if (state.compare_exchange_weak(seen, seen | leaf::mask(frame, block.order.value), std::memory_order_seq_cst,
                                            std::memory_order_relaxed))
                return true;
            count(view_.counters[actor.thread.value].cas_retries);
        }
    }

    bool claim_in_upper(Actor actor, unsigned layer, std::uint64_t word, Block &block) {
        const unsigned child_order = word_order(layer - 1);
        const unsigned levels = block.order.value - child_order;
        Word &state = view_.upper[layer][word];
        UpperWord seen{state.load(std::memory_order_relaxed)};  // relaxed: only a guess, the CAS decides
        for (bool first = true;; first = false) {
            const std::uint8_t starts = upper::free_starts(seen.claimable_children(), levels);
            if (starts == 0) {
                if (!first) end(actor);
                return false;
            }
            const auto child = static_cast<unsigned>(std::countr_zero(starts));
            block.base = FrameIndex{(word * kUpperFanOut + child) << child_order};
            begin(actor, IntentKind::allocate, block);
            Env::crash_point(CrashPoint::allocate_after_intent);
            std::uint64_t bits = seen.bits();
            // EDGE claim-then-look, as in a leaf.
            if (state.compare_exchange_weak(bits, seen.with_allocated(upper::group(child, levels)).bits(),
                                            std::memory_order_seq_cst, std::memory_order_relaxed))
                return true;
            count(view_.counters[actor.thread.value].cas_retries);
            seen = UpperWord{bits};
        }
    }

    // The given block and no other; false if any of it is taken. Ignores DRAIN: only the daemon asks so.
    bool claim(unsigned layer, std::uint64_t word, Block block) {
        if (layer == 0) {
            const std::uint64_t mask = leaf::mask(block.base.value % kLeafFrames, block.order.value);
            std::uint64_t seen = view_.leaf[word].load(std::memory_order_relaxed);
            while ((seen & mask) == 0)
                if (view_.leaf[word].compare_exchange_weak(seen, seen | mask, std::memory_order_seq_cst)) return true;
            return false;
        }
        const std::uint8_t group = group_of(layer, block);
        std::uint64_t bits = view_.upper[layer][word].load(std::memory_order_relaxed);
        while (((UpperWord{bits}.occupied_children() | UpperWord{bits}.allocated_children()) & group) == 0)
            if (view_.upper[layer][word].compare_exchange_weak(bits, UpperWord{bits}.with_allocated(group).bits(),
                                                               std::memory_order_seq_cst))
                return true;
        return false;
    }

    // Marks every ancestor. All of them are looked at, also above one that is marked already: stopping there was refuted
    // (algorithm.md B). Returns kClimbed, or the level whose word is closed on our path.
    [[gnu::always_inline]] unsigned climb(unsigned layer, std::uint64_t word) {
        for (unsigned level = layer + 1; level <= view_.top_layer; ++level) {
            const unsigned child = word % kUpperFanOut;
            word /= kUpperFanOut;
            Word &state = view_.upper[level][word];
            UpperWord seen{state.load(std::memory_order_seq_cst)};  // EDGE claim-then-look
            for (;;) {
                if (seen.closed_to_allocation(child)) [[unlikely]] return level;
                if (seen.marked_and_settled(child)) break;
                std::uint64_t bits = seen.bits();
                if (state.compare_exchange_weak(bits, seen.with_mark(child).bits(), std::memory_order_seq_cst)) break;
                seen = UpperWord{bits};
            }
        }
        return kClimbed;
    }

    // The index is written before the bits go: recovery must be able to tell an undone claim from one in flight.
    [[gnu::noinline]] void undo(Actor actor, unsigned layer, std::uint64_t word, Block block) {
        Word &slot = view_.index_entry(block);
        const IndexEntry old{slot.load(std::memory_order_relaxed)};  // relaxed: as in commit()
        slot.store(IndexEntry::freeing(actor.thread, block.order, next_generation(old.generation())).bits(),
                   std::memory_order_release);
        Env::crash_point(CrashPoint::undo_after_trace);
        const bool emptied = unclaim(layer, word, block);
        Env::crash_point(CrashPoint::undo_after_unclaim);
        Search<Env> search = searcher(actor);
        search.raise(layer, word);
        if (emptied) clean(layer, word, false, search);
    }

    // Takes the block's bits away and everything that follows: marks, hints. The index says FREEING(actor) by now.
    [[gnu::always_inline]] void release_bits_of_layer(Actor actor, unsigned layer, Block block) {
        const std::uint64_t word = block.base.value >> word_order(layer);
        const bool emptied = unclaim(layer, word, block);
        Env::crash_point(CrashPoint::free_after_unclaim);
        const bool hint_suffices = layer == 0 && searcher(actor).leaf_hint_is_full(word);
        const bool keep_mark = !emptied || layer >= view_.top_layer ||
                               view_.hot[actor.thread.value].word[layer].load(std::memory_order_relaxed) == word + 1;
        if (!hint_suffices || !keep_mark) after_release(actor, layer, word, !hint_suffices, !keep_mark);
        Env::crash_point(CrashPoint::free_after_clean);
    }

    [[gnu::noinline]] void after_release(Actor actor, unsigned layer, std::uint64_t word, bool raise_hint, bool clean_marks) {
        Search<Env> search = searcher(actor);
        if (raise_hint) search.raise(layer, word);
        if (clean_marks) clean(layer, word, false, search);
    }

    // True: the word is empty now.
    [[gnu::always_inline]] bool unclaim(unsigned layer, std::uint64_t word, Block block) {
        // EDGE unclaim-to-claim (release in seq_cst; partner: the claim). Carries our last bytes and our index entry to the
        // next owner. seq_cst also for EDGE free-then-hint.
        if (layer == 0) {
            const std::uint64_t mask = leaf::mask(block.base.value % kLeafFrames, block.order.value);
            return (view_.leaf[word].fetch_and(~mask, std::memory_order_seq_cst) & ~mask) == 0;
        }
        const std::uint8_t group = group_of(layer, block);
        std::uint64_t bits = view_.upper[layer][word].load(std::memory_order_relaxed);
        while (!view_.upper[layer][word].compare_exchange_weak(bits, UpperWord{bits}.without_allocated(group).bits(),
                                                               std::memory_order_seq_cst)) {
        }
        return UpperWord{bits}.without_allocated(group).empty();
    }

    static std::uint8_t group_of(unsigned layer, Block block) {
        const unsigned child_order = word_order(layer - 1);
        return upper::group(static_cast<unsigned>(block.base.value >> child_order) % kUpperFanOut,
                            block.order.value - child_order);
    }

    // --- looking elsewhere --------------------------------------------------------------------------------------------

    [[gnu::noinline]] Errc allocate_elsewhere(Actor actor, unsigned layer, std::uint64_t word, Attempt last, Order order,
                                              std::uint32_t slack, Block &out) {
        for (unsigned round = 0;; ++round) {
            if (search_and_claim(actor, layer, word, last, order, slack, out)) return Errc::ok;
            // Nothing, as the hints tell. Larger blocks may be hidden by marks that threads keep in reserve.
            if (round == 0 && layer != 0) {
                clean_hot_words(actor);
            } else if (round > 1 || nothing_is_hidden(actor, order)) {
                return Errc::out_of_frames;
            } else {
                // Somebody is in the middle of changing hints or marks, or was stopped or killed there: look at the words
                // themselves.
                for (std::uint64_t top = 0; top < view_.geometry.word_count(view_.top_layer); ++top)
                    if (scan_and_claim(actor, view_.top_layer, top, order, slack, out)) return Errc::ok;
                round = 1;
            }
            word = home_word(actor, layer);
            last = {};
        }
    }

    bool search_and_claim(Actor actor, unsigned layer, std::uint64_t word, Attempt last, Order order, std::uint32_t slack,
                          Block &out) {
        Search<Env> search = searcher(actor);
        const unsigned wanted = order.value + 1U;
        // Every round either claims, or lowers a hint, or lost a race to somebody who got on; the bound only guards against
        // scribbled metadata that changes under our eyes for ever.
        for (unsigned round = 0; round < kMaxSearchRounds; ++round) {
            // Begin beside the word that did not serve; above the ancestor that is closed, if that was the reason; at the
            // root if there is no such word yet.
            unsigned level = view_.hint_levels;
            std::uint64_t from = 0;
            if (word != kNoWord) {
                if (last.closed_at == 0) search.lower(layer, word);
                level = last.closed_at == 0 ? layer + 1 : last.closed_at;
                from = word >> (kUpperLevels * (level - layer));
            }
            std::uint64_t found = 0;
            if (!search.find(level, from, layer, wanted, found)) return false;
            last = try_word(actor, layer, found, order, slack, out);
            if (last.got) {
                move_home(actor, layer, found);
                return true;
            }
            word = found;
        }
        return false;
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
            if (layer != 0 && Intent{pool_.threads[thread].intent.load(std::memory_order_acquire)}.active()) return false;
            digest = digest * 0x9e37'79b9'7f4a'7c15 + bits;
        }
        return true;
    }

    // Without hints: every word of the order's layer below (level, word) that is not closed, cleaning empty words on the
    // way where that can help. Reads one word for 64 frames.
    bool scan_and_claim(Actor actor, unsigned level, std::uint64_t word, Order order, std::uint32_t slack, Block &out) {
        const unsigned layer = layer_of(order);
        if (level == layer) {
            if (layer != 0 && !may_have(layer, word, order)) clean_children(actor, layer, word);
            return may_have(layer, word, order) && try_word(actor, layer, word, order, slack, out).got;
        }
        const UpperWord state{view_.upper[level][word].load(std::memory_order_acquire)};
        for (unsigned child = 0; child < kUpperFanOut; ++child) {
            const std::uint64_t below = word * kUpperFanOut + child;
            if (state.closed_to_allocation(child) || below >= view_.geometry.word_count(level - 1)) continue;
            if (scan_and_claim(actor, level - 1, below, order, slack, out)) return true;
        }
        return false;
    }

    bool may_have(unsigned layer, std::uint64_t word, Order order) const {
        if (layer == 0)
            return leaf::free_starts(view_.leaf[word].load(std::memory_order_acquire), order.value) != 0;
        const UpperWord state{view_.upper[layer][word].load(std::memory_order_acquire)};
        return upper::free_starts(state.claimable_children(), order.value - word_order(layer - 1)) != 0;
    }

    void clean_children(Actor actor, unsigned layer, std::uint64_t word) {
        const UpperWord state{view_.upper[layer][word].load(std::memory_order_acquire)};
        auto &sweep = view_.hot[actor.thread.value].word[kSweepSlot];
        for (unsigned child = 0; child < kUpperFanOut; ++child) {
            const std::uint64_t below = word * kUpperFanOut + child;
            if (!state.occupied_below(child) || below >= view_.geometry.word_count(layer - 1)) continue;
            if (layer > 1) clean_children(actor, layer - 1, below);
            if (!word_is_empty(layer - 1, below)) continue;
            sweep.store(sweep_bits(layer - 1, below), std::memory_order_relaxed);  // relaxed: as in clean_hot_words()
            Search<Env> search = searcher(actor);
            clean(layer - 1, below, false, search);
        }
        sweep.store(0, std::memory_order_release);  // release: as in clean_hot_words()
    }

    // --- the thread's own word ----------------------------------------------------------------------------------------

    // Where this thread allocated last at this layer: it goes on there, and keeps the word's mark while it does (lazy
    // coalescing: otherwise allocating and freeing one frame would mark and clean every level each time).
    // kNoWord: nowhere yet (or the word is scribbled).
    std::uint64_t home_word(Actor actor, unsigned layer) const {
        // relaxed: our own slot.
        const std::uint64_t hot = view_.hot[actor.thread.value].word[layer].load(std::memory_order_relaxed);
        return hot <= view_.geometry.word_count(layer) ? hot - 1 : kNoWord;
    }

    void move_home(Actor actor, unsigned layer, std::uint64_t word) {
        auto &hot = view_.hot[actor.thread.value].word[layer];
        const std::uint64_t old = hot.load(std::memory_order_relaxed);  // relaxed: our own slot
        if (old == word + 1) return;
        // The old word stays named until it is clean: recovery takes over from there if we die in between. The top layer's
        // words have no mark above them.
        if (layer < view_.top_layer && old != 0 && old <= view_.geometry.word_count(layer) && word_is_empty(layer, old - 1)) {
            Search<Env> search = searcher(actor);
            clean(layer, old - 1, false, search);
        }
        hot.store(word + 1, std::memory_order_release);  // release: after the clean above
    }

    // Spreads threads over the tree: they begin far apart and break ties differently.
    static constexpr std::uint32_t scatter(ThreadSlotIndex thread) { return thread.value * 0x9e37'79b9U; }

    static constexpr unsigned kMaxSearchRounds = 1 << 16;

    NodeView<Env> view_;
    PoolView<Env> pool_;
};

}  // namespace numacre
