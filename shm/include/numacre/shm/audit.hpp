// Audit: finds words that no correct client can have written, beyond those that a walk meets on its way. The daemon
// runs it beside running clients. Plain loads, bounded, nothing read is trusted. A reported finding is damage for
// certain: each finding either is wrong in one word, or was looked at in such an order that no change under way can
// explain it.
//
// An audit cannot find everything. A hint that is too low, and an entry that names another client as the owner, look
// like the work of correct clients. The walk (walk.hpp) finds a live block that has lost its frames, until somebody
// cleans the mark above them.
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

// The intents of all threads at the time of construction. It answers which of them may overlap some frames without a
// look at every slot. Otherwise a client that scribbles an intent into each of 65,000 slots makes an audit take
// minutes.
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

    // True: an intent overlaps the frames at this moment. False says nothing.
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
        std::uint64_t reaches;  // the furthest end of all intents up to this one
        std::uint32_t thread;   // the thread of the intent with that end
    };
    const PoolView<Env> &pool_;
    NumaNode numa_node_;
    std::vector<Known> known_;  // by base
};

// Whether frames are marked as taken, but held by no block and in the hands of no operation under way. unheld: frames
// that a scan met as taken and unheld, nearly always because of an operation under way.
//
// Between the first and the last read no entry that could cover the frames may have changed: then no claim of them was
// committed or undone meanwhile, and no free of them began. At the second look the frames are in the hands either of a
// free that had begun before everything, or of a claim that is still under way. If that operation had the frames at the
// first look already, the first look saw its intent; otherwise it is a claim that came later, and the second look sees
// its intent.
template <class Env>
bool is_taken_by_nobody(const PoolView<Env> &pool, const NodeView<Env> &view, Unheld unheld,
                        const KnownIntents<Env> *known = nullptr) {
    const unsigned layer = unheld.layer();
    const unsigned granule = view.geometry.index_granule(layer);
    const Block frames{unheld.first, Order{layer == 0 ? 0 : word_order(layer - 1)}};
    if (known != nullptr && known->covers(frames)) return false;
    constexpr unsigned kPlaces = kLeafOrder + 1;
    // acquire (partners: EDGE commit, EDGE ownership): before the next reads.
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
    // A claim that died and was recovered between these looks has left no trace but its cleared bits.
    return is_marked_as_taken(view, layer, unheld.first);
}

// The audit of the tree of one numa node. It descends into all online parts, marked or not.
template <class Env>
class Audit {
public:
    Audit(const PoolView<Env> &pool, const NodeView<Env> &view)
        : pool_(pool), view_(view), known_(pool, view.numa_node) {}

    // Returns the number of impossible words and blocks. The search for frames that nobody holds ends at kEnough
    // findings.
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

    // marked: all words above have their mark.
    void look_at_upper(unsigned layer, std::uint64_t word, bool marked) {
        const UpperWord state{view_.upper[layer][word].load(std::memory_order_acquire)};
        const std::uint64_t first = word * kUpperFanOut;
        const std::uint64_t below = view_.word_count[layer - 1];
        const unsigned exists = below - first >= kUpperFanOut ? 0xff : (1U << (below - first)) - 1;
        // If all chunks below are offline, there may be no memory behind the hint.
        const bool may_be_offline = layer == view_.top_layer && state.allocated_children() == 0xff;
        if (layer >= 2 && !may_be_offline) look_at_hint(layer, word);
        // A claim needs children without marks. A mark is set only on an open child, COAL only beside a mark (and
        // cleared with it). DRAIN is for chunks. Children beyond the capacity were closed at the beginning and stay
        // closed.
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
        // Frames beyond the capacity were closed at the beginning and stay closed.
        if (exist < kLeafFrames && ~taken >> exist != 0) ++found_;
        if (taken == 0 || marked) return;
        look_for_lost_marks(0, word);
        // Each finding costs a look at every thread slot; the first one condemns the pool.
        if (found_ >= kEnough) return;
        // No scan reads words without marks.
        const auto frame = static_cast<unsigned>(std::countr_zero(taken));
        const Unheld unheld{FrameIndex{word * kLeafFrames + frame}, 1};
        if (is_taken_by_nobody(pool_, view_, unheld, &known_) && is_taken_by_nobody(pool_, view_, unheld, &known_))
            ++found_;
    }

    // Looks for a block in this word that lacks a mark above. While a block is held all its marks are there: they were
    // set before its entry, and a thread that cleans them has seen the block's bits gone.
    void look_for_lost_marks(unsigned layer, std::uint64_t word) {
        const unsigned granule = view_.geometry.index_granule(layer);
        const std::uint64_t first = word << word_order(layer) >> granule;
        const std::uint64_t entries = std::uint64_t{1} << (word_order(layer) - granule);
        for (std::uint64_t place = first; place < first + entries && place < view_.geometry.index_entry_count(layer);
             ++place) {
            const auto &slot = view_.index[layer][place];
            // acquire (partner: EDGE commit): a thread that sees the entry sees the marks that were set before it.
            const IndexEntry entry{slot.load(std::memory_order_acquire)};
            const Block block{FrameIndex{place << granule}, entry.order()};
            if (!entry.is_held() || layer_of(block.order) != layer || !view_.contains(block) || has_marks(layer, word))
                continue;
            // The entry is unchanged, generation included: the block was held all the time.
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

// Counts thread slots with a word that no correct client writes: an impossible owner, an intent on no possible block,
// work on hints that do not exist. Each is judged by one word alone.
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
