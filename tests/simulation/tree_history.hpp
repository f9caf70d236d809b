// When each frame and each upper entry of the trees has changed last, and which intents have ended: since when has a
// block been free, and was it rightly refused?
#pragma once

#include <array>
#include <vector>

#include "verdict.hpp"
#include "wishes.hpp"

namespace numacre::simulation {

class TreeHistory {
public:
    TreeHistory(const PoolMemory &memory, Wishes &wishes, Verdict &verdict);

    // A word of a numa node's memory has changed.
    void note_change(const void *word, std::uint64_t before, std::uint64_t after);
    // A word of a thread slot is written. An intent that ends: what it named may have been free all the time for the
    // tree, and was not settled.
    void note_store(const void *word, std::uint64_t before, std::uint64_t after);

    // A block that is free, and of which nothing has changed since `since`. All of it read without a step.
    bool has_free_block(unsigned node, Order order, std::uint64_t since, Block &found) const;
    static constexpr std::uint64_t kNow = ~std::uint64_t{0};  // as `since`: whatever has changed

    // The step at which it was taken from the tree last.
    std::uint64_t claimed_at(unsigned node, Block block) const;
    // A call that began at this step has been refused a block.
    void check_refusal(const Client &client, int node, Order order, std::uint64_t began) const;

private:
    struct Stamps {  // of the last change, by step
        std::vector<std::uint64_t> frame;
        std::array<std::vector<std::uint64_t>, kMaxUpperLayers + 1> child;
        std::array<std::vector<std::uint64_t>, kMaxUpperLayers + 1> claimed;
    };
    static constexpr std::size_t kIntentsKept = 16384;
    struct EndedIntent {
        std::uint64_t step;
        Intent intent;
    };

    bool is_settled(unsigned node, Block block, std::uint64_t since) const;

    const PoolMemory &memory_;
    Wishes &wishes_;
    Verdict &verdict_;
    std::vector<Stamps> stamps_;
    std::vector<EndedIntent> ended_intents_ = std::vector<EndedIntent>(kIntentsKept);
    std::size_t intents_ended_ = 0;
};

}  // namespace numacre::simulation
