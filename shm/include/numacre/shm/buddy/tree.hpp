// The base of all steps of the allocator: the addresses, the intent, the index entry of a block, and questions about a
// word. This layer uses node_state.hpp (words as values) and search.hpp (hints).
#pragma once

#include <cstdint>

#include "numacre/error.hpp"
#include "numacre/shm/counters.hpp"
#include "numacre/shm/layout.hpp"
#include "numacre/shm/search.hpp"

namespace numacre::engine {

// The acting thread: a thread slot that belongs to the calling thread alone, and the process slot that the daemon gave
// to its process.
struct Actor {
    ThreadSlotIndex thread;
    ProcessSlot process;
};

// The words that the actor writes besides the tree, and the constant parts of its entries: found once, so that a
// thread's repeated calls need not find them.
template <class Env>
struct ActorView {
    Actor actor;
    ThreadSlot<Env> *slot;
    HomeWords<Env> *homes;          // of this numa node
    ThreadCounters<Env> *counters;  // of this numa node
    std::uint64_t node_bits;        // of its intents
    // Entries without order, generation and note.
    IndexEntry ours;     // for a block of the actor's process
    IndexEntry freeing;  // for a block that the actor frees
};
template <class Env>
class BuddyTree {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;

    using Self = ActorView<Env>;

    BuddyTree(const NodeView<Env> &view, const PoolView<Env> &pool) : view_(view), pool_(pool) {}

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

    // The progress of a short path. The short paths hold the common case alone, small enough to be compiled into a
    // caller. The caller handles rare cases by a tail call.
    enum class ShortPath : std::uint8_t {
        refused,  // nothing was done: call allocate_further(), free()
        raced,    // only the intent is set: another thread changed the word. give_up(), then as if refused
        begun,    // the last step is missing: finish_allocation(), finish_free()
        done,
    };

    // Finds the owned block that begins at base, in any layer. Errors: bad_argument (no such frame), stale_ref (no
    // block).
    Errc find_entry(FrameIndex base, Block &block, IndexEntry &entry) const {
        if (base.value >= view_.geometry.frame_count) return Errc::bad_argument;
        return find_in_layers(base, block, entry) ? Errc::ok : Errc::stale_ref;
    }

    // find_entry() in the leaf layer alone. base exists.
    [[gnu::always_inline]] bool find_in_leaf(FrameIndex base, Block &block, IndexEntry &entry) const {
        entry = IndexEntry{view_.index[0][base.value].load(std::memory_order_acquire)};  // EDGE look-up
        block = Block{base, entry.order()};
        return entry.is_owned() && can_be_in_leaf(block);
    }

    // Finds the owned block that covers a frame but need not begin there: for error messages.
    bool find_covering(FrameIndex frame, Block &block) const {
        IndexEntry entry;
        for (unsigned order = 0; order <= view_.geometry.largest_order; ++order) {
            const FrameIndex base{frame.value >> order << order};
            if (find_entry(base, block, entry) == Errc::ok && block.base.value + block.order.frames() > frame.value)
                return true;
        }
        return false;
    }

    // Whether the frame lies in a chunk that the daemon wants empty. A preference. Always false where chunks have no
    // drain bit (Chunks::set_drain). The frame exists.
    bool is_draining(FrameIndex frame) const {
        if (view_.top_layer == 0) return false;
        const std::uint64_t child = frame.value >> word_order(view_.top_layer - 1);
        // relaxed: a thread that misses the bit is asked again.
        const Word &word = view_.upper[view_.top_layer][child / kUpperFanOut];
        return UpperWord{word.load(std::memory_order_relaxed)}.draining(child % kUpperFanOut);
    }

    // Whether the block lies in a chunk that is to become empty, as seen at this moment. (Pools whose largest block is
    // 64 frames or less have no drains.)
    bool is_draining(Block block) const {
        const unsigned top = view_.top_layer;
        if (top == 0) return false;
        const UpperWord word{view_.upper[top][block.base.value >> word_order(top)].load(std::memory_order_acquire)};
        // A chunk drains as a whole.
        return word.draining(static_cast<unsigned>(block.base.value >> word_order(top - 1)) % kUpperFanOut);
    }

    bool word_is_empty(unsigned layer, std::uint64_t word) const {
        return layer == 0 ? view_.leaf[word].load(std::memory_order_seq_cst) == 0
                          : UpperWord{view_.upper[layer][word].load(std::memory_order_seq_cst)}.empty();
    }

    Search<Env> searcher(Actor actor) const { return searcher(view_of(actor)); }

    void begin(const Self &self, IntentKind kind, Block block) {
        // EDGE intent-before-claim (release; the RMW or release store that follows publishes it). Release also because
        // the store overwrites the value that end() of the previous operation released: a thread that sees this intent
        // must see the previous block's index entry. Weakened: recovery sees the second intent, which is in nobody's
        // way, but not that the first block is committed, and takes its bits for those of a dead client that tried to
        // claim the same block.
        self.slot->intent.store(Intent{kind, self.node_bits, block}.bits(), std::memory_order_release);
    }

    void end(Actor actor) { end(view_of(actor)); }

    void end(const Self &self) {
        // EDGE intent-clear (release; partner: the acquire loads in recovery). All writes of the operation come before
        // it. Weakened: recovery sees no intent, yet our unclaim lands later, on the block's next owner.
        self.slot->intent.store(0, std::memory_order_release);
    }

    // EDGE commit (release; partners: EDGE look-up, EDGE ownership, EDGE hand-over, recovery's acquire loads). From
    // here on the block is the process's: a death gives it back as owned, not as in flight. Weakened: recovery sees
    // OWNED before the marks above the block and cleans them away under a live block. entry: the new index entry, its
    // generation still 0.
    [[gnu::always_inline]] void commit(unsigned layer, Block block, IndexEntry entry) {
        Word &slot = view_.index_entry(layer, block);
        // relaxed: the thread that wrote the entry held these bits before us, and the claim acquired its writes.
        const IndexEntry old{slot.load(std::memory_order_relaxed)};
        slot.store(after(layer, block, entry, old).bits(), std::memory_order_release);
    }

    // Returns the block's next index entry: `entry`, which has no generation, with the successor of the generation of
    // `old`, the present entry. Before a generation leaves its half, that half is counted (reference.hpp).
    [[gnu::always_inline]] IndexEntry after(unsigned layer, Block block, IndexEntry entry, IndexEntry old) const {
        if (!old.is_last_of_half()) [[likely]]
            return entry.after_in_half(old);
        count_half(layer, block, old);
        return entry.after(old);
    }

protected:
    static constexpr std::uint64_t kNoWord = ~std::uint64_t{0};  // its successor is 0: "nowhere" in a home word

    // The index entry of a block that self's process owns, its generation still 0.
    [[gnu::always_inline]] static IndexEntry owned_by(const Self &self, Order order, Note note) {
        const IndexEntry entry = self.ours.of(order, note);
        if (!entry.is_owned()) __builtin_unreachable();  // view_of()
        return entry;
    }

    // The block's base exists.
    [[gnu::always_inline]] bool can_be_in_leaf(Block block) const {
        return block.order.value <= view_.largest_leaf_order &&
               (block.base.value & leaf::kRuns.length_less_one[block.order.value]) == 0;
    }

    // Makes the era word count the half of `seen`'s generation. Not a function call: the common path would have to save
    // registers.
    [[gnu::always_inline]] void count_half(unsigned layer, Block block, IndexEntry seen) const {
        auto &word = view_.era_word(layer, block);
        std::uint16_t counted = word.load(std::memory_order_acquire);  // EDGE era
        if (is_half_counted(counted, seen.generation())) return;
        // The half is missing only if the entry was unchanged when the era word was read. If the generation has gone on
        // since, the thread that changed it has counted the half. relaxed: the load above keeps this one behind it.
        if (view_.index_entry(layer, block).load(std::memory_order_relaxed) != seen.bits()) return;
        // relaxed: the next entry is written by release. By CAS: another thread may count the same half.
        (void)word.compare_exchange_strong(counted, static_cast<std::uint16_t>(counted + 1), std::memory_order_relaxed);
    }

    // The owned block that begins at base. base exists.
    bool find_in_layers(FrameIndex base, Block &block, IndexEntry &entry) const {
        for (unsigned layer = 0; layer <= view_.top_layer; ++layer) {
            const unsigned granule = view_.geometry.index_granule(layer);
            if ((base.value & ((std::uint64_t{1} << granule) - 1)) != 0) return false;
            // EDGE look-up (acquire; partner: EDGE commit): shows what the owner wrote before it gave us the address.
            entry = IndexEntry{view_.index[layer][base.value >> granule].load(std::memory_order_acquire)};
            block = Block{base, entry.order()};
            if (entry.is_owned() && layer_of(entry.order()) == layer && view_.contains(block) &&
                entry.owner() != kOfflineOwner)
                return true;
        }
        return false;
    }

    Search<Env> searcher(const Self &self) const { return {view_, self.slot->hint_work, self.actor.thread}; }

    static constexpr std::uint64_t first_frame(std::uint64_t leaf_word) { return leaf_word * kLeafFrames; }

    static Block leaf_word_block(std::uint64_t word) { return {FrameIndex{first_frame(word)}, Order{kLeafOrder}}; }

    static std::uint8_t group_of(unsigned layer, Block block) {
        const unsigned child_order = word_order(layer - 1);
        return upper::group(static_cast<unsigned>(block.base.value >> child_order) % kUpperFanOut,
                            block.order.value - child_order);
    }

    NodeView<Env> view_;
    PoolView<Env> pool_;
};

}  // namespace numacre::engine
