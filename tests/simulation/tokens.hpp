// Blocks that processes give to each other by reference: published, taken by one, or freed by the giver.
#pragma once

#include <deque>
#include <vector>

#include "shadow.hpp"

namespace numacre::simulation {

class Tokens {
public:
    Tokens(const PoolMemory &memory, Shadow &shadow, Verdict &verdict)
        : memory_(memory), shadow_(shadow), verdict_(verdict) {}

    // Operations of a thread.
    void share(Client &client);
    void publish(Client &client);
    void take(Client &client);
    void withdraw(Client &client);
    // By the last thread of a process: what nobody has taken goes back.
    void free_published(Client &client, const Held &held);

    // A process has died, perhaps in the middle of a take: did it come to be the owner?
    void note_death(Instance &dead);
    // A call of a living giver names a block of the dead by its address: see Token.
    bool is_pinned_by_others(const Instance &dead) const;

private:
    static bool draw_shared(Client &client, std::size_t &at);
    std::uint32_t generation_of(const Token &token) const;

    const PoolMemory &memory_;
    Shadow &shadow_;
    Verdict &verdict_;
    std::deque<Token> tokens_;
    std::vector<Token *> mailbox_;
};

}  // namespace numacre::simulation
