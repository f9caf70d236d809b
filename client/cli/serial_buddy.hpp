// The textbook's buddy system, serial (Knuth, volume 1, 2.5): a list of free blocks for each order, the smallest
// sufficient block is split, buddies coalesce at once. Other engines are measured against this one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace numacre::cli {

// Which block of a list is taken. The textbook leaves this open: the block freed latest, as a linked list gives it
// (Knuth; Linux), or the block at the lowest address.
enum class Choice { latest, lowest };

// Blocks are named by their first frame's number.
template <Choice kChoice>
class SerialBuddy {
public:
    SerialBuddy(std::uint64_t chunks, unsigned largest_order)
        : largest_order_(largest_order), lists_(largest_order + 1), ranks_(largest_order + 1) {
        for (std::uint64_t chunk = chunks; chunk-- > 0;) insert(chunk << largest_order_, largest_order_);
    }
    std::optional<std::uint64_t> allocate(unsigned order) {
        unsigned from = order;
        while (from <= largest_order_ && lists_[from].empty()) ++from;
        if (from > largest_order_) return std::nullopt;
        const std::uint64_t base = lists_[from].begin()->second;
        erase(base, from);
        while (from > order) {
            --from;
            insert(base + (std::uint64_t{1} << from), from);
        }
        return base;
    }
    void release(std::uint64_t base, unsigned order) {
        while (order < largest_order_ && erase(base ^ std::uint64_t{1} << order, order))
            base &= ~(std::uint64_t{1} << order++);
        insert(base, order);
    }
    // The number of free blocks of the largest order.
    std::uint64_t largest_free() const { return lists_[largest_order_].size(); }

private:
    void insert(std::uint64_t base, unsigned order) {
        const std::uint64_t rank = kChoice == Choice::lowest ? base : --latest_;
        lists_[order].emplace(rank, base);
        ranks_[order].emplace(base, rank);
    }
    bool erase(std::uint64_t base, unsigned order) {
        const auto found = ranks_[order].find(base);
        if (found == ranks_[order].end()) return false;
        lists_[order].erase(found->second);
        ranks_[order].erase(found);
        return true;
    }

    unsigned largest_order_;
    std::vector<std::map<std::uint64_t, std::uint64_t>> lists_;  // by order: rank to base; lowest rank goes first
    std::vector<std::map<std::uint64_t, std::uint64_t>> ranks_;  // by order: base to rank
    std::uint64_t latest_ = ~std::uint64_t{0};
};

}  // namespace numacre::cli
