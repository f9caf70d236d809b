// The client processes of a run and their threads, and what each of them holds.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "pool_memory.hpp"
#include "scheduler.hpp"

namespace numacre::simulation {

inline constexpr unsigned kBulkMax = 40;

struct Instance;

// A published block, for as long as anybody may know its reference.
struct Token {
    enum class State : std::uint8_t { live, taken, freed };
    std::uint64_t ref = 0;
    std::uint32_t numa_node = 0;
    Block block{};
    Instance *giver = nullptr;
    Instance *taker = nullptr;
    // Calls of the giver's threads that name the block by its address: what the taker does with the block must wait for
    // them, or the address might be another block's (README.md).
    unsigned giver_calls = 0;
    unsigned taker_calls = 0;
    bool withdrawn = false;
    State state = State::live;
};

struct Held {
    void *address = nullptr;
    std::uint32_t numa_node = 0;
    Block block{};
    Token *token = nullptr;  // by which it came; or by which it goes

    // Its giver may still be in a call that names the block by its address.
    bool is_pinned() const { return token != nullptr && token->giver_calls != 0; }
};

struct Client;

// One life of a process.
struct Instance {
    int number = 0;  // 1, 2, ...: of the shadow
    unsigned seat = 0;
    std::uint16_t slot = 0;
    numacre_pool *pool = nullptr;
    std::vector<Client *> clients;
    std::vector<Held> shared;    // any thread's
    unsigned threads_freed = 0;  // that have given back all that was theirs
    bool alive = true;
    bool recovered = false;
    unsigned thread_count = 0;

    bool has_ended() const;
};

// A thread.
struct Client {
    Instance *instance = nullptr;
    unsigned number = 0;
    int fiber = -1;
    Random random;
    std::vector<Held> held;
    Token *taking = nullptr;
    // The allocation that it is in: has there been a free block of its order at every moment so far, and which?
    struct Wish {
        bool active = false;
        bool always = false;
        int numa_node = -1;  // the only one that would do; -1: any
        Order order{};
        unsigned witness_node = 0;
        Block witness{};
    } wish;
    unsigned rounds_done = 0;
    void *blocks[kBulkMax] = {};
    bool ended = false;

    // One of its blocks that it may name by the address. False: not this time.
    bool draw_held(std::size_t &at);
    // The block is the thread's no more.
    Held let_go(std::size_t at);
};

class Processes {
public:
    Processes(const Plan &plan, PoolMemory &memory, Scheduler &scheduler)
        : plan_(plan), memory_(memory), scheduler_(scheduler) {}
    ~Processes();
    Processes(const Processes &) = delete;
    Processes &operator=(const Processes &) = delete;

    std::function<void(Client &)> live;  // all that a thread does

    // A new process in this seat.
    void start(unsigned seat);
    Instance *somebody_dead();  // and not yet recovered
    std::uint64_t deaths() const;

    // The round that all are in. Threads of later processes have only its rest to do.
    unsigned round() const { return round_; }
    void begin_round() { ++round_; }
    // The run has had its steps: nothing new begins.
    bool are_winding_down() const { return steps_done() > plan_.steps; }

    std::deque<Instance> &instances() { return instances_; }
    const std::deque<Instance> &instances() const { return instances_; }
    std::deque<Client> &clients() { return clients_; }

private:
    void open_pool(Instance &instance);

    const Plan &plan_;
    PoolMemory &memory_;
    Scheduler &scheduler_;
    std::deque<Instance> instances_;
    std::deque<Client> clients_;
    unsigned round_ = 0;
};

}  // namespace numacre::simulation
