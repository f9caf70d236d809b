// The operations of the threads: calls of the client's library, drawn by the plan's weights.
#pragma once

#include "tokens.hpp"

namespace numacre::simulation {

class Operations {
public:
    Operations(const Plan &plan, const PoolMemory &memory, const Processes &processes, Wishes &wishes,
               const TreeHistory &history, Shadow &shadow, Tokens &tokens, Scheduler &scheduler, Verdict &verdict)
        : plan_(plan),
          memory_(memory),
          processes_(processes),
          wishes_(wishes),
          history_(history),
          shadow_(shadow),
          tokens_(tokens),
          scheduler_(scheduler),
          verdict_(verdict) {}

    // A thread's life: its rounds, then it gives back all that it holds.
    void live(Client &client);

    std::uint64_t done() const { return done_; }
    std::uint64_t refusals() const { return refusals_; }

private:
    void operate(Client &client);
    void allocate_plainly(Client &client);
    void allocate_on(Client &client);
    void allocate_many(Client &client);
    void free_some(Client &client, bool uncached);
    void free_many(Client &client);
    void ask_size(Client &client);

    Order draw_order(Client &client) const;
    std::size_t draw_size(Client &client, Order order) const;
    bool enter_play();
    void give_back(Client &client, std::size_t at, bool uncached);
    void give_back_shared(Client &client);
    void refused(Client &client, int error, int node, Order order, std::uint64_t began, bool waited);
    void expect_ok(const Client &client, int error, const char *what);

    const Plan &plan_;
    const PoolMemory &memory_;
    const Processes &processes_;
    Wishes &wishes_;
    const TreeHistory &history_;
    Shadow &shadow_;
    Tokens &tokens_;
    Scheduler &scheduler_;
    Verdict &verdict_;
    unsigned in_play_ = 0;  // blocks that are held, or in the hands of a call
    std::uint64_t done_ = 0, refusals_ = 0;
};

}  // namespace numacre::simulation
