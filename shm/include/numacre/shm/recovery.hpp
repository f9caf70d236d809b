// Recovery: gives back the blocks of dead processes, beside running clients (shm/README.md). One caller at a time for
// each pool. The caller may itself die at any instruction: resume() then finishes the operation that it had begun, and
// recover() is repeated from its start. One walk over the index serves all dead processes: it takes as long for one as
// for many.
//
// Recovery never waits: where it may not go on before a live client has finished an operation on an overlapping block,
// it returns `blocked` and that client's thread; the caller tries again later.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "numacre/shm/buddy.hpp"
#include "numacre/shm/walk.hpp"

namespace numacre::engine {

struct Reclaimed {
    std::uint64_t blocks = 0;
    std::uint64_t frames = 0;
};

enum class RecoveryStep : std::uint8_t { done, blocked };

// A dead process, and the progress of its recovery.
struct Departed {
    ProcessSlot process;
    Reclaimed total;             // in and out: recovery adds the blocks that came back
    ThreadSlotIndex blocked_by;  // the live thread that blocks the recovery; meaningless unless blocked
    RecoveryStep step = RecoveryStep::done;
    Reclaimed kept{};  // out: blocks that stay the process's for now
};

// Lets all blocks of the dead come back.
struct KeepsNone {
    bool operator()(NumaNode, Block, IndexEntry) const { return false; }
};

template <class Env>
class Recovery {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;

    Recovery(const PoolView<Env> &pool, std::span<const NodeView<Env>> numa_nodes)
        : pool_(pool), numa_nodes_(numa_nodes) {}

    // Frees all blocks that these processes held. The kernel has said that they are gone, and their ProcessRecord.state
    // is `dead`. departed: by slot, ascending. keeps(NumaNode, Block, IndexEntry): true for a block in use that has to
    // stay the dead process's for now (a device may still write there); cached blocks never stay. Everything else of
    // the process is finished, and a later call, whose keeps() lets it go, frees the block.
    template <class Keeps = KeepsNone>
    void recover(std::span<Departed> departed, Keeps &&keeps = {}) {
        recover(departed, keeps, [this](const NodeView<Env> &view, Block block, IndexEntry entry) {
            Buddy<Env> buddy{view, pool_};
            return buddy.free_entry(kSelf, block, entry, entry.is_owned()) == Errc::ok;
        });
    }

    // As recover(), but the blocks belong to the daemon, and nobody may use them, until release() frees them.
    // References that the dead gave away are stale from here on. Calls seized(NumaNode, Block) for each block. If the
    // daemon dies meanwhile, the next daemon finds in for_each_seized() the blocks that are not released yet. era: a
    // value of the caller's, which for_each_seized() reports. A block that other processes hold is seized as well:
    // has_readers() tells the caller when they have dropped it, and no hold of it begins any more.
    template <class Seized, class Keeps = KeepsNone>
    void seize(std::span<Departed> departed, PoolAge era, Seized &&seized, Keeps &&keeps = {}) {
        recover(departed, keeps, [&](const NodeView<Env> &view, Block block, IndexEntry entry) {
            // Twice, as in Buddy::take().
            for (unsigned look = 0; look < 2; ++look) {
                std::uint64_t bits = entry.bits();
                // EDGE hand-over, the daemon as taker: a process may take a block that the dead had published at this
                // moment. seq_cst for has_readers(), as in Buddy::free_lent().
                const IndexEntry ours = Buddy<Env>{view, pool_}.after(
                    layer_of(block.order), block,
                    entry.handed_to(IndexEntry::owned(kDaemonProcess, Order{0}, 0, {}), era), entry);
                if (view.index_entry(block).compare_exchange_strong(bits, ours.bits(), std::memory_order_seq_cst)) {
                    seized(view.numa_node, block);
                    return true;
                }
                if (!entry.is_published() || bits != entry.lent().bits()) return false;
                entry = IndexEntry{bits};
            }
            return false;
        });
    }

    // recover() and seize() for one process.
    RecoveryStep recover_process(ProcessSlot process, Reclaimed &total, ThreadSlotIndex &blocked_by) {
        return of_one(process, total, blocked_by, [this](std::span<Departed> departed) { recover(departed); });
    }
    template <class Seized>
    RecoveryStep seize_process(ProcessSlot process, Reclaimed &total, ThreadSlotIndex &blocked_by, Seized &&seized) {
        return of_one(process, total, blocked_by, [&](std::span<Departed> departed) { seize(departed, {}, seized); });
    }

    // Calls visit(NumaNode, Block, PoolAge era) for each seized block that is not released yet.
    template <class Visit>
    void for_each_seized(Visit &&visit) {
        for (const NodeView<Env> &view : numa_nodes_)
            visit_owned(view, [&](Block block, IndexEntry entry) {
                if (entry.owner() == kDaemonProcess) visit(view.numa_node, block, entry.note().since());
            });
    }

    // Whether others hold a seized block, so that it may be neither zeroed nor released.
    bool has_readers(NumaNode numa_node, Block block) const {
        const NodeView<Env> &view = numa_nodes_[numa_node.value];
        return IndexEntry{view.index_entry(block).load(std::memory_order_acquire)}.is_lent() &&
               engine::has_readers(pool_, numa_node, block);
    }

    // Frees a seized block. False: the block is not the daemon's (any more): somebody has scribbled over its entry.
    bool release(NumaNode numa_node, Block block) {
        const NodeView<Env> &view = numa_nodes_[numa_node.value];
        const IndexEntry entry{view.index_entry(block).load(std::memory_order_acquire)};
        if (!entry.is_owned() || entry.owner() != kDaemonProcess || entry.order() != block.order) return false;
        Buddy<Env> buddy{view, pool_};
        return buddy.free_entry(kSelf, block, entry, true) == Errc::ok;
    }

    // After a death of the daemon itself: finishes the operation that its own intent names. Then every process that is
    // not active has to be recovered (again).
    RecoveryStep resume(ThreadSlotIndex &blocked_by) { return finish_thread(kDaemonThread, blocked_by); }

private:
    static constexpr Actor kSelf{kDaemonThread, kDaemonProcess};

    template <class Visit>
    struct OwnedBlocks {
        Visit &visit;
        void owned(Block block, IndexEntry entry) { visit(block, entry); }
        void free(Block) {}
        void taken(FrameIndex, std::uint64_t) {}
        void offline(Block) {}
        void damaged(Block) {}
    };

    template <class Visit>
    static void visit_owned(const NodeView<Env> &view, Visit &&visit) {
        OwnedBlocks<Visit> visitor{visit};
        walk_all(view, visitor);
    }

    template <class Step>
    static RecoveryStep of_one(ProcessSlot process, Reclaimed &total, ThreadSlotIndex &blocked_by, Step &&step) {
        Departed one{process, total, blocked_by};
        step(std::span<Departed>(&one, 1));
        total = one.total;
        blocked_by = one.blocked_by;
        return one.step;
    }

    // Null: the process is not in `departed`.
    static Departed *find(std::span<Departed> departed, ProcessSlot process) {
        const auto found =
            std::lower_bound(departed.begin(), departed.end(), process,
                             [](const Departed &one, ProcessSlot wanted) { return one.process.value < wanted.value; });
        return found != departed.end() && found->process == process ? &*found : nullptr;
    }

    // dispose(view, block, entry): false if the block was handed on in this moment.
    template <class Keeps, class Dispose>
    void recover(std::span<Departed> departed, Keeps &&keeps, Dispose &&dispose) {
        for (Departed &one : departed) one.kept = {};
        for (const NodeView<Env> &view : numa_nodes_)
            visit_owned(view, [&](Block block, IndexEntry entry) {
                Departed *const owner = find(departed, entry.owner());
                if (owner == nullptr) return;
                if (entry.is_owned() && keeps(view.numa_node, block, entry)) {
                    ++owner->kept.blocks;
                    owner->kept.frames += block.order.frames();
                    return;
                }
                if (!dispose(view, block, entry)) return;
                ++owner->total.blocks;
                owner->total.frames += block.order.frames();
            });
        for (Departed &one : departed) one.step = RecoveryStep::done;
        const std::uint32_t threads = pool_.threads_in_use_bound();
        for (std::uint32_t thread = 1; thread < threads; ++thread) {
            // acquire: with all that the dead thread did before.
            const ThreadOwner owner{pool_.threads[thread].owner.load(std::memory_order_acquire)};
            Departed *const one = owner.in_use() ? find(departed, owner.process()) : nullptr;
            if (one == nullptr) continue;
            ThreadSlotIndex in_whose_way{};
            if (finish_thread(ThreadSlotIndex{static_cast<std::uint16_t>(thread)}, in_whose_way) ==
                RecoveryStep::blocked) {
                // The slot stays the dead process's. Its other slots are given back all the same: a client that is
                // stopped in the middle of an operation keeps back what overlaps with that operation, and no more. Of
                // several blocking threads the first is reported.
                if (one->step != RecoveryStep::blocked) one->blocked_by = in_whose_way;
                one->step = RecoveryStep::blocked;
                continue;
            }
            // release: the slot's next user finds everything finished.
            pool_.threads[thread].owner.store(0, std::memory_order_release);
        }
    }

    // Whether the intent names a whole leaf word. In a pool whose largest block is smaller, such a block is not in
    // contains().
    static bool is_leaf_word(const NodeView<Env> &view, Intent intent) {
        return intent.kind() == IntentKind::word && intent.block().order.value == kLeafOrder &&
               intent.block().base.value % kLeafFrames == 0 && intent.block().base.value < view.geometry.frame_count;
    }

    RecoveryStep finish_thread(ThreadSlotIndex thread, ThreadSlotIndex &blocked_by) {
        auto &slot = pool_.threads[thread.value];
        // First, as it needs no other thread to get out of the way: any thread that releases memory serves a wish that
        // stands.
        take_back_given(slot);
        drop_holds(slot, pool_.holds[thread.value]);
        const Intent intent{slot.intent.load(std::memory_order_acquire)};
        if (intent.active() && intent.numa_node().value < numa_nodes_.size()) {
            const NodeView<Env> &view = numa_nodes_[intent.numa_node().value];
            if (view.contains(intent.block()) || is_leaf_word(view, intent)) {
                if (intent.kind() == IntentKind::free) {
                    if (take_back_untold(view, intent.block(), thread, blocked_by) == RecoveryStep::blocked)
                        return RecoveryStep::blocked;
                    free_what_lingers(view, intent.block());
                }
                if (resolve(view, intent.block(), thread, blocked_by) == RecoveryStep::blocked)
                    return RecoveryStep::blocked;
                // Other threads must find the free frames, however far the dead thread came with raising the hints.
                const unsigned level = layer_of(intent.block().order) == 0 ? 1 : layer_of(intent.block().order);
                raise_to_root(view, level, intent.block().base.value >> word_order(level));
            }
        }
        for (const NodeView<Env> &view : numa_nodes_) finish_hints(view, thread);
        // release: if we die before this store, recovery of the slot begins anew; after it, recovery finds nothing to
        // do.
        const HintWork work{slot.hint_work.load(std::memory_order_acquire)};
        if (work.active()) slot.hint_work.store(work.ended().bits(), std::memory_order_release);
        // relaxed: the count of its process goes, too. (The count of a process whose cached block the thread was taking
        // back may be too high by that block, until the daemon compares counts with a scan.)
        if (slot.under_way.load(std::memory_order_relaxed) != 0) slot.under_way.store(0, std::memory_order_relaxed);
        if (slot.inside.load(std::memory_order_relaxed) != 0) slot.inside.store(0, std::memory_order_relaxed);
        slot.intent.store(0, std::memory_order_release);
        return RecoveryStep::done;
    }

    // Takes back the wish of the dead thread, or a block that it was given and had not received.
    void take_back_given(ThreadSlot<Env> &slot) {
        std::uint64_t bits = slot.waiting.load(std::memory_order_acquire);
        // By CAS: another thread may be giving it a block at this moment. (The word can change twice: by a nudge, and
        // by a block that is given.)
        for (unsigned rounds = 0; !WaitWord{bits}.is_given() && rounds < kCasRoundsMax; ++rounds)
            if (bits == 0 || slot.waiting.compare_exchange_weak(bits, 0, std::memory_order_acq_rel)) return;
        const WaitWord word{bits};
        if (word.is_given() && word.numa_node().value < numa_nodes_.size()) {
            const NodeView<Env> &view = numa_nodes_[word.numa_node().value];
            Buddy<Env> buddy{view, pool_};
            Block block;
            IndexEntry entry;
            if (buddy.find_entry(word.base(), block, entry) == Errc::ok && entry.owner() == kHandOffOwner &&
                entry.generation() == word.generation())
                (void)buddy.free_entry(kSelf, block, entry, false);  // the giver counted it
        }
        // release: nobody else changes the word any more. If we die before this, the next recovery finds the block
        // taken back.
        slot.waiting.store(0, std::memory_order_release);
    }

    // Drops all that the dead thread held.
    void drop_holds(ThreadSlot<Env> &slot, HoldWords<Env> &words) {
        // acquire: with the words.
        for (std::uint64_t left = slot.holds.load(std::memory_order_acquire); left != 0; left &= left - 1) {
            const auto place = static_cast<unsigned>(std::countr_zero(left));
            // relaxed: read above.
            const HoldWord word{words.word[place].load(std::memory_order_relaxed)};
            // Scribbled: any node's steps clear it.
            const std::size_t node = word.numa_node().value < numa_nodes_.size() ? word.numa_node().value : 0;
            Buddy<Env> buddy{numa_nodes_[node], pool_};
            (void)buddy.drop(buddy.view_of(kSelf), slot, words, place);
        }
    }

    // The dead thread may have made the block linger, and not have looked whether anybody holds it.
    void free_what_lingers(const NodeView<Env> &view, Block block) {
        Buddy<Env> buddy{view, pool_};
        (void)buddy.free_if_last(buddy.view_of(kSelf), view.numa_node, block);
    }

    // Frees a block that the dead thread had put on its way (hand_off.hpp), unless a waiter has been told of it.
    RecoveryStep take_back_untold(const NodeView<Env> &view, Block block, ThreadSlotIndex thread,
                                  ThreadSlotIndex &blocked_by) {
        if (!view.contains(block)) return RecoveryStep::done;
        // acquire: with the giver's intent, if the block is on its way.
        const IndexEntry entry{view.index_entry(block).load(std::memory_order_acquire)};
        if (!entry.is_owned() || entry.owner() != kHandOffOwner || entry.order() != block.order)
            return RecoveryStep::done;
        // The dead thread's intent may be old, and another thread may have put the block on its way: the giver's intent
        // is gone once it has told the waiter. So read the intents first, then the wait words.
        if (is_in_live_hands(view, block, thread, blocked_by)) return RecoveryStep::blocked;
        const std::uint32_t threads = pool_.threads_in_use_bound();
        const WaitWord told = WaitWord::given(view.numa_node, block.base, entry.generation());
        for (std::uint32_t other = 0; other < threads; ++other)
            if (pool_.threads[other].waiting.load(std::memory_order_acquire) == told.bits()) return RecoveryStep::done;
        (void)Buddy<Env>{view, pool_}.free_entry(kSelf, block, entry, true);
        return RecoveryStep::done;
    }

    // Finishes the hints that the thread was changing. Marks need no care: a surplus mark is cleaned when a larger
    // block is wanted.
    void finish_hints(const NodeView<Env> &view, ThreadSlotIndex thread) {
        // The record does not say of which numa node the hints were: a raise that is not needed does nothing.
        const HintWork work{pool_.threads[thread.value].hint_work.load(std::memory_order_acquire)};
        if (work.active() && work.level() >= 1 && work.level() < view.hint_levels &&
            work.word() < view.geometry.word_count(work.level()))
            raise_to_root(view, work.level(), work.word());
    }

    void raise_to_root(const NodeView<Env> &view, unsigned level, std::uint64_t word) {
        Buddy<Env>{view, pool_}.searcher(kSelf).raise_to_root(level, word);
    }

    // Clears the bits of an in-flight block that belong to nobody. `thread` is dead, or the daemon's own from before
    // its restart.
    RecoveryStep resolve(const NodeView<Env> &view, Block block, ThreadSlotIndex thread, ThreadSlotIndex &blocked_by) {
        const unsigned layer = layer_of(block.order);
        const std::uint64_t word = block.base.value >> word_order(layer);
        const unsigned granule = view.geometry.index_granule(layer);

        // Places in the index at which an entry of this layer that overlaps the block can begin: inside it, or at an
        // aligned ancestor within the word. The last leaf word may exist in part only, while an intent on several
        // blocks of it names the whole word. Entries and bits of frames that do not exist are not touched, or frames
        // beyond the pool's end would be handed out.
        const std::uint64_t end = std::min(block.base.value + block.order.frames(), view.geometry.frame_count);
        std::array<std::uint64_t, kLeafFrames + kLeafOrder> places;
        std::size_t place_count = 0;
        for (std::uint64_t base = block.base.value; base < end; base += std::uint64_t{1} << granule)
            places[place_count++] = base >> granule;
        for (unsigned order = block.order.value + 1; order <= word_order(layer) && order <= view.geometry.largest_order;
             ++order) {
            const std::uint64_t base = block.base.value >> order << order;
            if (base != block.base.value) places[place_count++] = base >> granule;
        }

        for (unsigned round = 0; round < kResolveRounds; ++round) {
            std::array<std::uint64_t, kLeafFrames + kLeafOrder> seen;
            std::uint64_t mine = existing_bits_of(view, layer, block);
            for (std::size_t i = 0; i < place_count; ++i) {
                seen[i] = view.index[layer][places[i]].load(std::memory_order_acquire);
                const IndexEntry entry{seen[i]};
                const Block other{FrameIndex{places[i] << granule}, entry.order()};
                if (layer_of(other.order) != layer || !view.contains(other) || !overlaps(other, block)) continue;
                if (entry.is_held()) {
                    mine &= ~bits_of(layer, other);
                } else if (entry.is_freeing() && entry.freer() != thread && is_live(entry.freer()) &&
                           intent_of(entry.freer()).active() &&
                           intent_of(entry.freer()).numa_node() == view.numa_node &&
                           overlaps(intent_of(entry.freer()).block(), other)) {
                    blocked_by = entry.freer();
                    return RecoveryStep::blocked;
                }
            }
            if (mine != 0) mine &= bits_in_word(view, layer, word);
            if (mine == 0) return RecoveryStep::done;

            if (is_in_live_hands(view, block, thread, blocked_by)) return RecoveryStep::blocked;
            bool unchanged = true;
            for (std::size_t i = 0; i < place_count && unchanged; ++i)
                unchanged = view.index[layer][places[i]].load(std::memory_order_acquire) == seen[i];
            if (!unchanged) continue;
            clear_bits(view, layer, word, mine);
            return RecoveryStep::done;
        }
        blocked_by = kDaemonThread;  // no particular thread: the neighbourhood is busy
        return RecoveryStep::blocked;
    }

    // Whether a live thread other than `thread` is in the middle of an operation on an overlapping block of the layer.
    // blocked_by: that thread.
    bool is_in_live_hands(const NodeView<Env> &view, Block block, ThreadSlotIndex thread,
                          ThreadSlotIndex &blocked_by) const {
        const unsigned layer = layer_of(block.order);
        const std::uint32_t threads = pool_.threads_in_use_bound();
        for (std::uint32_t other = 0; other < threads; ++other) {
            const ThreadSlotIndex index{static_cast<std::uint16_t>(other)};
            if (index == thread || !is_live(index)) continue;
            const Intent intent = intent_of(index);
            if (intent.active() && intent.numa_node() == view.numa_node && layer_of(intent.block().order) == layer &&
                overlaps(intent.block(), block)) {
                blocked_by = index;
                return true;
            }
        }
        return false;
    }

    bool is_live(ThreadSlotIndex thread) const {
        if (thread == kDaemonThread || thread.value >= pool_.thread_slots) return false;
        const ThreadOwner owner{pool_.threads[thread.value].owner.load(std::memory_order_acquire)};
        // The daemon has its own thread slot and no other. Another slot that names the daemon is scribbled, and would
        // block for ever.
        if (!owner.in_use() || owner.process() == kDaemonProcess || owner.process().value >= pool_.process_slots)
            return false;
        return pool_.processes[owner.process().value].state.load(std::memory_order_acquire) ==
               static_cast<std::uint64_t>(ProcessState::active);
    }
    Intent intent_of(ThreadSlotIndex thread) const {
        return Intent{pool_.threads[thread.value].intent.load(std::memory_order_acquire)};
    }

    // A block's bits in its word: frames of a leaf word, the F plane of an upper word.
    static std::uint64_t bits_of(unsigned layer, Block block) {
        if (layer == 0) return leaf::mask(block.base.value % kLeafFrames, block.order.value);
        const unsigned child_order = word_order(layer - 1);
        return upper::group(static_cast<unsigned>(block.base.value >> child_order) % kUpperFanOut,
                            block.order.value - child_order);
    }
    // The block's bits that stand for existing frames. A block lies in the pool as a whole, or is a leaf word of which
    // a part does.
    static std::uint64_t existing_bits_of(const NodeView<Env> &view, unsigned layer, Block block) {
        const std::uint64_t bits = bits_of(layer, block);
        const std::uint64_t exist = view.geometry.frame_count - block.base.value;
        return layer != 0 || exist >= kLeafFrames
                   ? bits
                   : bits & ~(~std::uint64_t{0} << exist << block.base.value % kLeafFrames);
    }
    static std::uint64_t bits_in_word(const NodeView<Env> &view, unsigned layer, std::uint64_t word) {
        if (layer == 0) return view.leaf[word].load(std::memory_order_seq_cst);
        return UpperWord{view.upper[layer][word].load(std::memory_order_seq_cst)}.allocated_children();
    }
    static void clear_bits(const NodeView<Env> &view, unsigned layer, std::uint64_t word, std::uint64_t mine) {
        if (layer == 0)
            view.leaf[word].fetch_and(~mine, std::memory_order_seq_cst);
        else  // the tag stays: see Buddy::unclaim
            view.upper[layer][word].fetch_and(UpperWord::all_but_allocated(static_cast<std::uint8_t>(mine)),
                                              std::memory_order_seq_cst);
    }

    static constexpr unsigned kResolveRounds = 64;

    PoolView<Env> pool_;
    std::span<const NodeView<Env>> numa_nodes_;
};

}  // namespace numacre::engine
