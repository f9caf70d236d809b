// A thread's homes: for each order the place where it goes on without a search. Policy, not correctness: every value
// here is a guess, and the claim decides.
#pragma once

#include <cstdint>

#include "numacre/shm/buddy/coalesce.hpp"

namespace numacre::engine {

template <class Env>
class BuddyPlacement : public BuddyCoalescing<Env> {
    using Base = BuddyCoalescing<Env>;

public:
    using Base::Base;
    using Base::searcher;
    using typename Base::Self;
    using typename Base::Word;

protected:
    using Base::first_frame;
    using Base::kNoWord;
    using Base::view_;

    // Sets the home after a search for a block as large as a word.
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

    // Sets the home after a search for a smaller block of an upper word: if the search had to begin a free word of a
    // free parent, the thread may go on to such words. (In the word where the thread was already, the result of an
    // earlier search holds: a preference.)
    void set_home_in_free(const Self &self, unsigned layer, Block block) {
        const std::uint64_t word = block.base.value >> word_order(layer);
        if (home_of(self, block.order).widest() == kUpperLevels && levels_around(layer, word) == kUpperLevels)
            set_home(self, block.order, Home::in_free(word, kUpperLevels, Home::kBegunMaxOfParts));
    }

    // Makes all other sizes of upper words search again after such a search: they may find a place in the rest of the
    // word that it has begun.
    void let_others_look_again(const Self &self, Order order) {
        for (unsigned other = kLeafOrder + 1; other <= view_.geometry.largest_order; ++other)
            if (other != order.value) set_home(self, Order{other}, home_of(self, Order{other}).without_next());
    }

    // The parent to go on at when the words of a layer with this parent (leaf words: this group) are used up: the next
    // parent, if its words are free; or the parent behind it, if those are used up, too, which is frequent, for the
    // thread may have begun there, where it had freed last. kNoWord: neither. A preference.
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

    // Whether all eight leaf words of a group, except the word `but`, are free.
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

    // Whether an ancestor of this word is allocated or draining in a layer above. A preference.
    bool is_closed_above(unsigned layer, std::uint64_t word) const {
        for (unsigned level = layer + 1; level <= view_.top_layer; ++level) {
            const unsigned child = word % kUpperFanOut;
            word /= kUpperFanOut;
            if (UpperWord{view_.upper[level][word].load(std::memory_order_relaxed)}.closed_to_allocation(child))
                return true;
        }
        return false;
    }

    // The next home in an upper layer: the same word; or, if it is used up and the last search found only free parents,
    // the word beside it. No branch.
    static Home go_on(Home found, std::uint64_t word, bool used_up) {
        return found.moved_to(word + (static_cast<std::uint64_t>(used_up && found.may_begin_next()) & has_next(word)));
    }

    // 1 if there is a next word in the leaf word's cache line or below the same parent, else 0. (At the pool's end the
    // next word may not exist: as a home it is nowhere.)
    static std::uint64_t has_next(std::uint64_t word) {
        return static_cast<std::uint64_t>((word + 1) % kUpperFanOut != 0);
    }

    // layer: the layer of the children.
    bool has_all_children(unsigned layer, std::uint64_t parent) const {
        return (parent + 1) * kUpperFanOut <= view_.word_count[layer];
    }

    // The empty ones of the words of an upper layer with this parent, as bits. A preference.
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

    // Levels of the hole that contains this word now, or contained it before.
    unsigned levels_around(unsigned layer, std::uint64_t word) const {
        const unsigned child = word % kUpperFanOut;
        const unsigned free = empty_words(layer, word / kUpperFanOut) | 1U << child;
        unsigned levels = 0;
        while (levels < kUpperLevels && (upper::group(child >> (levels + 1) << (levels + 1), levels + 1) & ~free) == 0)
            ++levels;
        return levels;
    }

    Home home_of(const Self &self, Order order) const {
        // relaxed: our own slot.
        return Home{self.homes->word[order.value].load(std::memory_order_relaxed)};
    }

    // The word where this thread goes on with blocks of this order. kNoWord: nowhere yet (or the home is scribbled).
    std::uint64_t home_word(const Self &self, unsigned layer, Order order) const {
        const std::uint64_t place = home_of(self, order).place();
        const std::uint64_t word = layer == 0 ? place / kLeafFrames : place;
        return word < view_.word_count[layer] ? word : kNoWord;
    }

    // home_word() for a block of an upper word. For a block as large as the word: once the word is taken, a word beside
    // it, below the same parent, in a hole no wider than the hole that the last search found.
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
            // Used up, and the last search found nothing smaller than a free group or parent.
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
};

}  // namespace numacre::engine
