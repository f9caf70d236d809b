// The daemon: the steps of daemon/src (managed_pool, node_memory, sizing, reaper) on shm/, without its files and
// threads.
#pragma once

#include <vector>

#include "tokens.hpp"

namespace numacre::simulation {

class DaemonSteps {
public:
    // Brings the pool's chunks online, but for those that the plan leaves offline.
    DaemonSteps(const Plan &plan, PoolMemory &memory, Processes &processes, Shadow &shadow, const Tokens &tokens,
                Scheduler &scheduler, Verdict &verdict);

    void start() { spawn(false); }
    // Its successor follows, after a while.
    void die();
    // If it has nothing to do: a process has died.
    void unpark();
    void begin_round() { jobs_left_ = plan_.jobs; }

    bool has_ended() const { return ended_; }
    bool is_restarting() const { return is_restarting_; }
    std::uint64_t deaths() const { return deaths_; }

private:
    enum class ChunkState : std::uint8_t { online, closing, offline, opening };

    void spawn(bool again);
    Fiber &fiber();
    void serve(bool again);
    void finish_predecessor();
    bool clients_rest() const;
    bool clients_ended() const;
    void rest();
    void wake_waiters(bool all);

    void mark_dead();
    void reap(Instance &dead);
    void release_seized();

    void set_offline(unsigned node, std::uint64_t chunk);
    void drain(unsigned node, std::uint64_t chunk, bool wanted);
    void bring_online(unsigned node, std::uint64_t chunk);
    void try_take_offline(unsigned node, std::uint64_t chunk);

    void do_job();
    void look_for_damage(unsigned node);

    const Plan &plan_;
    PoolMemory &memory_;
    Processes &processes_;
    Shadow &shadow_;
    const Tokens &tokens_;
    Scheduler &scheduler_;
    Verdict &verdict_;
    Random random_;
    int fiber_ = -1;
    bool ended_ = false, is_restarting_ = false;
    std::uint64_t deaths_ = 0;
    std::uint64_t jobs_left_ = 0;
    std::uint64_t age_ = 0;
    std::vector<OwnerUsage> usage_;
    // By numa node, then chunk.
    std::vector<std::vector<ChunkState>> chunk_;
    std::vector<std::vector<bool>> wants_drain_;
    bool drain_unsure_ = false;
    unsigned drain_node_ = 0;
    std::uint64_t drain_chunk_ = 0;
};

}  // namespace numacre::simulation
