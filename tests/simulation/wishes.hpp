// Of each allocation under way: has there been a free block at every moment so far? And the adversary, which lets a
// searcher see a chunk only when it is taken.
#pragma once

#include <vector>

#include "processes.hpp"

namespace numacre::simulation {

class Wishes {
public:
    Wishes(const Plan &plan, const PoolMemory &memory, Processes &processes, Scheduler &scheduler)
        : plan_(plan),
          memory_(memory),
          processes_(processes),
          scheduler_(scheduler),
          fiber_of_slot_(memory.pool.thread_slots, -1) {}

    // node: the only one that would do; -1: any.
    void begin(Client &client, int node, Order order);
    void finish(Client &client);

    // The block is taken, or in somebody's hands, from this moment on.
    void note_taken(unsigned node, Block block);
    // The running fiber writes the intent of this thread slot.
    void note_intent(std::size_t thread, Intent intent);
    // The running fiber is about to read a word; the adversary may make it wait.
    void before_look(const void *word);

private:
    bool is_free_now(const Client &client, unsigned node, Block block) const;
    bool find_witness(Client &client);

    const Plan &plan_;
    const PoolMemory &memory_;
    Processes &processes_;
    Scheduler &scheduler_;
    std::vector<int> fiber_of_slot_;  // who has written its intent last
    unsigned active_ = 0;
    std::uint64_t looks_left_ = 0;  // with an adversary
};

}  // namespace numacre::simulation
