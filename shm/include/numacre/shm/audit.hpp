// Looks for what no correct client can have written, beyond what a walk meets on its way: the daemon's, beside running
// clients. Plain loads, bounded, nothing read is trusted. Whatever is reported is damage for certain: each finding
// either is wrong in one word, or was looked at in such an order that no change under way can explain it.
//
// Not everything can be found. A hint that is too low, and a block that says it is another client's, look like the work
// of correct clients; a live block that has lost its frames is found by the walk (walk.hpp) until somebody cleans the
// mark above them.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "numacre/shm/layout.hpp"
#include "numacre/shm/search.hpp"
#include "numacre/shm/snapshot.hpp"

namespace numacre::engine {

template <class Env>
bool is_marked_as_taken(const NodeView<Env> &view, unsigned layer, FrameIndex frame) {
    const std::uint64_t word = frame.value >> word_order(layer);
    if (layer == 0) return (view.leaf[word].load(std::memory_order_acquire) >> frame.value % kLeafFrames & 1) != 0;
    return UpperWord{view.upper[layer][word].load(std::memory_order_acquire)}.allocated_here(
        static_cast<unsigned>(frame.value >> word_order(layer - 1)) % kUpperFanOut);
}

// The intents of all threads as they were when it was made: which of them may overlap some frames, without a look at
// every slot. Else whoever scribbles an intent into each of 65,000 slots makes an audit take minutes.
template <class Env>
class KnownIntents {
public:
    KnownIntents(const PoolView<Env> &pool, NumaNode numa_node) : pool_(pool), numa_node_(numa_node) {
        const std::uint32_t threads = pool.threads_in_use_bound();
        for (std::uint32_t thread = 0; thread < threads; ++thread) {
            const Intent intent{pool.threads[thread].intent.load(std::memory_order_acquire)};
            if (!intent.active() || intent.numa_node() != numa_node) continue;
            const Block block = intent.block();
            known_.push_back({block.base.value, block.base.value + block.order.frames(), thread});
        }
        std::ranges::sort(known_, {}, &Known::base);
        for (std::size_t i = 1; i < known_.size(); ++i) {
            if (known_[i].reaches > known_[i - 1].reaches) continue;
            known_[i].reaches = known_[i - 1].reaches;
            known_[i].thread = known_[i - 1].thread;
        }
    }

    // One of them overlaps the frames at this moment. False says nothing.
    bool covers(Block frames) const {
        const auto behind =
            std::ranges::lower_bound(known_, frames.base.value + frames.order.frames(), {}, &Known::base);
        if (behind == known_.begin() || std::prev(behind)->reaches <= frames.base.value) return false;
        const Intent intent{pool_.threads[std::prev(behind)->thread].intent.load(std::memory_order_acquire)};
        return intent.active() && intent.numa_node() == numa_node_ && overlaps(intent.block(), frames);
    }

private:
    struct Known {
        std::uint64_t base;
        std::uint64_t reaches;  // the furthest end of those up to here
        std::uint32_t thread;   // whose that is
    };
    const PoolView<Env> &pool_;
    NumaNode numa_node_;
    std::vector<Known> known_;  // by base
};

// Frames that are marked as taken, held by no block, and in the hands of no operation under way. Asked about what a
// scan met as taken and unheld, which nearly always is an operation under way.
//
// Between the first and the last read no entry that could cover the frames may have changed: then no claim of them was
// committed or undone meanwhile, and no free of them began. What had them at the second look is either a free that had
// begun before everything, or a claim that is still under way. If it had them at the first look already, its intent was
// there to be seen then; else it is a claim that came later, and its intent is there to be seen at the second.
template <class Env>
bool is_taken_by_nobody(const PoolView<Env> &pool, const NodeView<Env> &view, Unheld unheld,
                        const KnownIntents<Env> *known = nullptr) {
    const unsigned layer = unheld.layer();
    const unsigned granule = view.geometry.index_granule(layer);
    const Block frames{unheld.first, Order{layer == 0 ? 0 : word_order(layer - 1)}};
    if (known != nullptr && known->covers(frames)) return false;
    constexpr unsigned kPlaces = kLeafOrder + 1;
    // acquire (partners: EDGE commit, EDGE ownership): before what is read next.
    const auto entries = [&] {
        std::array<std::uint64_t, kPlaces> all{};
        for (unsigned order = granule, at = 0; order <= word_order(layer) && order <= view.geometry.largest_order;
             ++order)
            all[at++] =
                view.index[layer][unheld.first.value >> order << order >> granule].load(std::memory_order_acquire);
        return all;
    };
    const auto before = entries();
    for (unsigned order = granule, at = 0; order <= word_order(layer) && order <= view.geometry.largest_order;
         ++order) {
        const IndexEntry entry{before[at++]};
        if (entry.is_held() && overlaps(Block{FrameIndex{unheld.first.value >> order << order}, entry.order()}, frames))
            return false;
    }
    for (unsigned look = 0; look < 2; ++look) {
        if (!is_marked_as_taken(view, layer, unheld.first)) return false;
        const std::uint32_t threads = pool.threads_in_use_bound();
        for (std::uint32_t thread = 0; thread < threads; ++thread) {
            // acquire (partner: EDGE intent-clear): an intent that is gone has its entry written.
            const Intent intent{pool.threads[thread].intent.load(std::memory_order_acquire)};
            if (intent.active() && intent.numa_node() == view.numa_node && overlaps(intent.block(), frames))
                return false;
        }
        if (entries() != before) return false;
    }
    // A claim that died and was recovered between these looks has left no trace but that it is gone.
    return is_marked_as_taken(view, layer, unheld.first);
}

// The words of the tree of one numa node. Descends into all that is online, marked or not.
template <class Env>
class Audit {
public:
    Audit(const PoolView<Env> &pool, const NodeView<Env> &view)
        : pool_(pool), view_(view), known_(pool, view.numa_node) {}

    // How many words or blocks are impossible. Of frames that nobody has kEnough are looked for.
    std::uint64_t run() {
        for (unsigned level = view_.top_layer + 1; level <= view_.hint_levels; ++level)
            for (std::uint64_t word = 0; level >= 2 && word < view_.geometry.word_count(level); ++word)
                look_at_hint(level, word);
        for (std::uint64_t word = 0; word < view_.word_count[view_.top_layer]; ++word) {
            if (view_.top_layer == 0)
                look_at_leaf(word, true);
            else
                look_at_upper(view_.top_layer, word, true);
        }
        return found_;
    }

private:
    static constexpr std::uint64_t kEnough = 64;

    // A byte is the ceiling less a value: never more than the ceiling.
    void look_at_hint(unsigned level, std::uint64_t word) {
        const std::uint64_t bits =
            view_.hint[level][word].load(std::memory_order_relaxed);  // relaxed: one word by itself
        for (unsigned child = 0; child < kUpperFanOut; ++child) {
            if ((bits >> (8 * child) & 0xff) <= view_.geometry.largest_order + 1) continue;
            ++found_;
            return;
        }
    }

    // marked: by all words above.
    void look_at_upper(unsigned layer, std::uint64_t word, bool marked) {
        const UpperWord state{view_.upper[layer][word].load(std::memory_order_acquire)};
        const std::uint64_t first = word * kUpperFanOut;
        const std::uint64_t below = view_.word_count[layer - 1];
        const unsigned exists = below - first >= kUpperFanOut ? 0xff : (1U << (below - first)) - 1;
        // Of chunks that are all offline there may be no memory behind the hint.
        const bool may_be_offline = layer == view_.top_layer && state.allocated_children() == 0xff;
        if (layer >= 2 && !may_be_offline) look_at_hint(layer, word);
        // A claim wants children without marks, a mark goes only on an open child, COAL only beside a mark (and goes
        // with it); DRAIN is for chunks; what is beyond the capacity was closed at the beginning and stays so.
        if (!state.is_possible(layer == view_.top_layer) || (~exists & ~state.allocated_children() & 0xff) != 0)
            ++found_;
        if (!marked && state.allocated_children() != 0) look_for_lost_marks(layer, word);
        for (unsigned child = 0; child < kUpperFanOut && first + child < below; ++child) {
            // Below an allocated child there is nothing, and below an offline chunk no memory to look at.
            if (state.allocated_here(child)) continue;
            const bool marked_here = marked && state.occupied_below(child);
            if (layer == 1)
                look_at_leaf(first + child, marked_here);
            else
                look_at_upper(layer - 1, first + child, marked_here);
        }
    }

    void look_at_leaf(std::uint64_t word, bool marked) {
        const std::uint64_t taken = view_.leaf[word].load(std::memory_order_acquire);
        const std::uint64_t exist = view_.geometry.frame_count - word * kLeafFrames;
        // Frames beyond the capacity were closed at the beginning and stay so.
        if (exist < kLeafFrames && ~taken >> exist != 0) ++found_;
        if (taken == 0 || marked) return;
        look_for_lost_marks(0, word);
        // Each word that is found costs a look at every thread slot; the first condemns the pool.
        if (found_ >= kEnough) return;
        // No scan comes here.
        const auto frame = static_cast<unsigned>(std::countr_zero(taken));
        const Unheld unheld{FrameIndex{word * kLeafFrames + frame}, 1};
        if (is_taken_by_nobody(pool_, view_, unheld, &known_) && is_taken_by_nobody(pool_, view_, unheld, &known_))
            ++found_;
    }

    // Does a block in this word lack a mark above? While it is held all its marks are there: they came before its
    // entry, and whoever cleans them has seen its bits gone.
    void look_for_lost_marks(unsigned layer, std::uint64_t word) {
        const unsigned granule = view_.geometry.index_granule(layer);
        const std::uint64_t first = word << word_order(layer) >> granule;
        const std::uint64_t entries = std::uint64_t{1} << (word_order(layer) - granule);
        for (std::uint64_t place = first; place < first + entries && place < view_.geometry.index_entry_count(layer);
             ++place) {
            const auto &slot = view_.index[layer][place];
            // acquire (partner: EDGE commit): who sees the entry sees the marks that were made before it.
            const IndexEntry entry{slot.load(std::memory_order_acquire)};
            const Block block{FrameIndex{place << granule}, entry.order()};
            if (!entry.is_held() || layer_of(block.order) != layer || !view_.contains(block) || has_marks(layer, word))
                continue;
            // The same entry, generation included: it was held all the time.
            if (is_marked_as_taken(view_, layer, block.base) && slot.load(std::memory_order_acquire) == entry.bits()) {
                ++found_;
                return;
            }
        }
    }

    bool has_marks(unsigned layer, std::uint64_t word) const {
        for (unsigned level = layer + 1; level <= view_.top_layer; ++level, word /= kUpperFanOut)
            if (!UpperWord{view_.upper[level][word / kUpperFanOut].load(std::memory_order_acquire)}.occupied_below(
                    word % kUpperFanOut))
                return false;
        return true;
    }

    const PoolView<Env> &pool_;
    const NodeView<Env> &view_;
    const KnownIntents<Env> known_;
    std::uint64_t found_ = 0;
};

// Thread slots that say what no client says: an owner that cannot be, an intent on what is no block, work on hints that
// there are not. Each is one word by itself.
template <class Env>
std::uint64_t count_impossible_thread_slots(const PoolView<Env> &pool, std::span<const NodeView<Env>> numa_nodes) {
    std::uint64_t found = 0;
    const Geometry &geometry = numa_nodes[0].geometry;
    for (std::uint32_t thread = 0; thread < pool.threads_in_use_bound(); ++thread) {
        const auto &slot = pool.threads[thread];
        const ThreadOwner owner{slot.owner.load(std::memory_order_relaxed)};
        const bool daemons = thread == kDaemonThread.value;
        const bool seated = owner.bits() == ThreadOwner{owner.process()}.bits() &&
                            owner.process().value < pool.process_slots &&
                            (owner.process() == kDaemonProcess) == daemons;
        const Intent intent{slot.intent.load(std::memory_order_relaxed)};
        const Block block = intent.block();
        const bool whole_word = intent.kind() == IntentKind::word && block.order.value == kLeafOrder &&
                                block.base.value % kLeafFrames == 0 && block.base.value < geometry.frame_count;
        const bool intends = intent.numa_node().value < numa_nodes.size() &&
                             (whole_word || (intent.kind() != IntentKind::word && numa_nodes[0].contains(block)));
        const HintWork work{slot.hint_work.load(std::memory_order_relaxed)};
        const bool works = work.level() >= 1 && work.level() <= numa_nodes[0].hint_levels &&
                           work.word() < geometry.word_count(work.level());
        if ((!seated && (daemons || owner.bits() != 0)) || (intent.active() && !intends) || (work.active() && !works))
            ++found;
    }
    return found;
}

}  // namespace numacre::engine
