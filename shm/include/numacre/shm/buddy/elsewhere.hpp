// ALLOCATE when the thread's own word has no room: beside that word, by the hints, and at last by a look at every word.
#pragma once

#include <bit>
#include <cstdint>

#include "numacre/shm/buddy/refusal.hpp"

namespace numacre::engine {

template <class Env>
class BuddyElsewhere : public BuddyRefusal<Env> {
    using Base = BuddyRefusal<Env>;

public:
    using Base::Base;
    using Base::searcher;
    using typename Base::Self;

protected:
    using Base::first_frame;
    using Base::home_beside;
    using Base::home_of;
    using Base::kNoWord;
    using Base::let_others_look_again;
    using Base::next_free_parent;
    using Base::nothing_is_hidden;
    using Base::obstacles_to;
    using Base::refusal_rounds;
    using Base::set_home;
    using Base::set_home_in_free;
    using Base::set_home_in_hole;
    using Base::try_word;
    using Base::view_;
    using typename Base::Attempt;
    using typename Base::Obstacles;

    // The level of the words at which a search for this layer's blocks ends: leaf words are found by group.
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
        // A larger block goes where it does least harm, anywhere in the pool. A block as large as a leaf word does so,
        // too: the thread begins again where it began, and does not wander into the part of the pool that another
        // thread uses.
        if (order.value >= kLeafOrder) home = kNoWord;
        Obstacles before;
        for (unsigned round = 0;; ++round) {
            if (search_and_claim(self, layer, home, last, order, grant, out)) return Errc::ok;
            if (nothing_is_hidden(self, order)) return Errc::out_of_frames;
            // The hints say that nothing is free, but another thread is in the middle of changing hints, or was stopped
            // or killed there: look at the words themselves. Looks at one word after another prove nothing: the free
            // block may have moved from place to place. It is a proof if the same obstacles stood in all places before
            // and after.
            const Obstacles now = layer == 0 ? Obstacles{} : obstacles_to(order);
            if (now.stood_since(before) || round == refusal_rounds(layer)) return Errc::out_of_frames;
            before = now;
            for (std::uint64_t top = 0; top < view_.word_count[view_.top_layer]; ++top)
                if (scan_and_claim(self, view_.top_layer, top, order, grant, out)) return Errc::ok;
            home = kNoWord;
            last = {};
        }
    }

    bool search_and_claim(const Self &self, unsigned layer, std::uint64_t home, Attempt last, Order order,
                          IndexEntry grant, Block &out) {
        Search<Env> search = searcher(self);
        lower_passed(self, search);
        const unsigned target = target_level(layer);
        const unsigned wanted = order.value + 1U;
        // Begin above the word that had no room; at the closed ancestor, if that was the reason; at the root if no word
        // is given.
        std::uint64_t word = home == kNoWord ? kNoWord : target_of(layer, home);
        // Every round either claims, or lowers a hint, or loses a race to a thread that makes progress. The bound
        // guards against scribbled metadata that changes for ever.
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

    // Lowers the hint of a word that had no room. If the word is a group that is used up, the groups beside it may be,
    // too: then lowers all of them at once.
    void lower_used_up(Search<Env> &search, unsigned target, std::uint64_t word, unsigned wanted) const {
        search.lower(target, word);
        if (target != 1 || !search.is_used_up(word)) return;
        for (unsigned left = search.hopeful_children(2, word / kUpperFanOut, wanted); left != 0; left &= left - 1) {
            const std::uint64_t group =
                word / kUpperFanOut * kUpperFanOut + static_cast<unsigned>(std::countr_zero(left));
            if (search.is_used_up(group)) search.lower(1, group);
        }
    }

    // For a block of half or a quarter of an upper word, whose home word is used up, or is another thread's, too: tries
    // the next free word, if the last search found nothing smaller than a free parent.
    bool try_next_word(const Self &self, unsigned layer, std::uint64_t home, Order order, IndexEntry grant,
                       Block &out) {
        if (!home_of(self, order).may_begin_next()) return false;
        const std::uint64_t next = home_beside(self, layer, order, home);
        return next != kNoWord && try_word(self, layer, next, order, grant, out).got;
    }

    // For a block as large as a leaf word, whose group is used up: tries the next group, if that is free, and if the
    // last search, too, found no group that was less than free.
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

    // Lowers the hints of the groups that the thread has passed by, which are too hopeful. So no search meets more of
    // them than the last group of each run, however large the pool is. At most 1023 groups.
    void lower_passed(const Self &self, Search<Env> &search) const {
        const Passed passed{self.homes->passed.load(std::memory_order_relaxed)};
        if (passed.count() == 0) [[likely]]
            return;
        self.homes->passed.store(0, std::memory_order_relaxed);
        for (std::uint64_t group = passed.first(); group < passed.first() + passed.count(); ++group)
            if (search.is_used_up(group)) search.lower(1, group);
    }

    // Tries the leaf words with this parent, beginning with child `start`, going round.
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

    // Tries, without hints, every word of the order's layer below (level, word) that is not closed. Reads one word for
    // 64 frames.
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

    static constexpr unsigned kMaxSearchRounds = 1 << 16;
};

}  // namespace numacre::engine
