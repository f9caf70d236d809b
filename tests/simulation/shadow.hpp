// The owner of each frame, as the calls have said it: nobody gets what another owns, what is offline, what does not
// exist, nor what is claimed in a draining chunk.
#pragma once

#include <vector>

#include "tree_history.hpp"

namespace numacre::simulation {

class Shadow {
public:
    static constexpr std::int32_t kFree = 0;
    static constexpr std::int32_t kOffline = -1;

    Shadow(const PoolMemory &memory, const TreeHistory &history, Verdict &verdict);

    // The number of the instance that owns the frame, kFree or kOffline.
    std::int32_t owner(unsigned node, std::uint64_t frame) const { return owners_[node][frame]; }
    std::uint64_t owned_frames(unsigned node) const;
    std::uint64_t frames_held() const { return frames_held_; }  // of all numa nodes

    void set_offline(unsigned node, std::uint64_t chunk);
    void set_online(unsigned node, std::uint64_t chunk);
    // since: the step from which on nothing may be claimed there. 0: it does not drain, or perhaps not.
    void set_draining(unsigned node, std::uint64_t chunk, std::uint64_t since) { drained_at_[node][chunk] = since; }

    // The thread owns what a call has returned from here on. began: the call's first step. cached: the block may come
    // from a thread's cache.
    Held acquire(const Client &client, void *address, Order order, std::uint64_t began, bool cached);
    void own(const Client &client, const Held &held);
    // A call that gives the block back begins: from now on it may be anybody's.
    void disown(const Client &client, const Held &held);

    // The giver's no more: somebody has taken it.
    void end_of_giver(const Token &token);
    // A process that has died in the middle of a take has become the owner.
    void give_to_dead(const Token &token, const Instance &taker);
    // The daemon begins to recover it.
    void forget(const Instance &dead);

private:
    const PoolMemory &memory_;
    const TreeHistory &history_;
    Verdict &verdict_;
    // By numa node, then frame or chunk.
    std::vector<std::vector<std::int32_t>> owners_;
    std::vector<std::vector<std::uint64_t>> freed_at_;  // step
    std::vector<std::vector<std::uint64_t>> drained_at_;
    std::uint64_t frames_held_ = 0;
};

}  // namespace numacre::simulation
