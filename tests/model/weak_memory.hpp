// What an access may see when memory is weaker than sequential consistency: the C++20 model, operationally, for
// programs without fences (the product has none but the barrier of all threads, pass_barrier()) and without accesses
// that read from the future (no load buffering).
//
// Each location has a history: its values, oldest first, in modification order. A *view* says of each location which
// message is the oldest that may still be read. A thread has a view; a message carries one if it was written with
// release order (or continues a release sequence), and an acquire load that reads it joins it. So
//   - a load reads any message that the thread's view permits,
//   - a store goes behind any message that the view permits, not always last: that is how stores become visible out of
//     order; an RMW goes directly behind the message that it read, and nothing ever comes between the two,
//   - seq_cst writes are numbered in the order in which they happen (S). A view also says how far in S it is; a seq_cst
//     load reads nothing older than the newest seq_cst write of the location up to there. It may stand in S earlier
//     than it runs: only what its thread knows keeps it from that.
//
// Kept finite and canonical: what no live thread can read any more is dropped, positions are counted from the oldest
// one left, places in S from what every live thread has passed. Besides, no more than history_max messages a location:
// the oldest goes, whoever could still have read it (was_cut() tells).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "hash.hpp"
#include "sim_env.hpp"

namespace numacre::model {

inline constexpr int kThreadsMax = 7;

class WeakMemory {
public:
    // barriers: the program calls pass_barrier(). Then what threads knew at their end is kept for it.
    WeakMemory(unsigned history_max, bool barriers);

    // How many ways there are for this access. Way 0 is what sequential consistency would do. `newest`: the location's
    // newest value, which the caller keeps; `place` tells locations apart (its offset in the arena).
    unsigned ways(int thread, const Request &request, std::size_t place, std::uint64_t newest) const;

    bool knows_newest(int thread, std::size_t place) const;

    struct Outcome {
        std::uint64_t before = 0;  // what the access read, or what a store went behind
        std::uint64_t after = 0;
        std::uint64_t newest = 0;    // the location's newest value now
        unsigned behind_newest = 0;  // how many newer messages the access passed over
    };
    Outcome perform(int thread, const Request &request, std::size_t place, std::uint64_t newest, unsigned way);
    // A channel outside of the code under test: always the newest value, with all that its writer knew.
    void pass_through_channel(int thread, const Request &request, std::size_t place, std::uint64_t newest);

    // Every other thread passes a full barrier, in an order that nobody knows: each knows from then on what this one
    // knew, and this one knows what each knew.
    void pass_barrier(int thread);

    // Memory that is not atomic. False: another thread touched it, and this one does not know.
    bool touch(int thread, std::size_t place);

    // A thread begins, with what the dead and the thread that starts it (-1: the kernel) knew.
    void start(int thread, int starter);
    void finish(int thread) {
        if (barriers_) view_of(kEnded).join(view_of(thread));
        view_of(thread) = View{};
    }
    void die(int thread);
    // The kernel has told it of a death: whatever the dead did is visible.
    void learn_of_deaths(int thread) { view_of(thread).join(view_of(kKernel)); }
    // After each step. live: bit a thread that has more to do.
    void tidy(unsigned live);

    void add_to_hash(std::uint64_t &a, std::uint64_t &b) const;
    bool was_cut() const { return was_cut_; }

    // A stack of states, for the search's way back.
    std::size_t saved_count() const { return saved_.size(); }
    void save();
    void restore(std::size_t count);

private:
    static constexpr unsigned kLocationsMax = 63;
    static constexpr unsigned kMessagesMax = 16;  // of one location, within a step
    static constexpr int kKernel = kThreadsMax;
    static constexpr int kEnded = kThreadsMax + 1;

    struct View {
        std::array<std::uint8_t, kLocationsMax> seen{};  // by location: index of the oldest message it may still read
        std::uint8_t order_seen = 0;                     // number of the last seq_cst write that it comes after in S
        void join(const View &other) {
            for (unsigned i = 0; i < kLocationsMax; ++i) seen[i] = std::max(seen[i], other.seen[i]);
            order_seen = std::max(order_seen, other.order_seen);
        }
        friend bool operator==(const View &, const View &) = default;
    };
    struct Message {
        View view;
        std::uint64_t value = 0;
        std::uint8_t location = 0;
        bool follows_closely = false;  // written by an RMW that read the message before it
        bool seq_cst = false;
        std::uint8_t number = 0;  // in S; 0: every live thread comes after it
    };
    // By thread; then what the dead knew, and what those knew that have come to their end.
    using Views = std::array<View, kThreadsMax + 2>;
    struct Way {
        unsigned message;  // read, or gone behind
        bool writes;
    };
    using Ways = std::array<Way, kMessagesMax>;
    struct Range {
        std::size_t first;
        unsigned count;  // 0: one message, which everybody knows and which carries no view; not kept
    };
    struct Saved {
        Views views;
        std::size_t message_count;
    };

    View &view_of(int thread) { return views_[static_cast<std::size_t>(thread)]; }
    const View &view_of(int thread) const { return views_[static_cast<std::size_t>(thread)]; }
    unsigned location_of(std::size_t place) const;
    unsigned make_location(std::size_t place);
    Range range_of(unsigned location) const;
    Range range_at(std::size_t first) const;
    unsigned list_ways(int thread, const Request &request, unsigned location, std::uint64_t newest, Ways &ways) const;
    void insert(int thread, const Request &request, unsigned location, unsigned behind, std::uint64_t value);
    template <class Function>
    void for_each_view(const Function &function);
    unsigned tidy_location(Range range, unsigned live);
    void tidy_numbers(unsigned live);

    unsigned history_max_;
    bool was_cut_ = false;
    std::vector<std::uint8_t> location_of_place_;  // + 1; 0: never written. No part of the state
    unsigned location_count_ = 0;
    bool barriers_;
    Views views_{};
    std::vector<Message> messages_;  // by location, oldest first
    std::vector<Saved> saved_;
    std::vector<Message> saved_messages_;
};

constexpr bool acquires(std::memory_order order) {
    return order == std::memory_order_acquire || order == std::memory_order_acq_rel ||
           order == std::memory_order_seq_cst;
}
constexpr bool releases(std::memory_order order) {
    return order == std::memory_order_release || order == std::memory_order_acq_rel ||
           order == std::memory_order_seq_cst;
}
// What the location holds after the access.
inline std::uint64_t result_of(const Request &request, std::uint64_t before) {
    const std::uint64_t mask = request.bytes < 8 ? (std::uint64_t{1} << (8 * request.bytes)) - 1 : ~std::uint64_t{0};
    switch (request.kind) {
        case Access::load:
        case Access::barrier:
            return before;
        case Access::store:
        case Access::exchange:
            return request.operand;
        case Access::compare_exchange:
            return before == request.expected ? request.operand : before;
        case Access::fetch_add:
            return (before + request.operand) & mask;
        case Access::fetch_sub:
            return (before - request.operand) & mask;
        case Access::fetch_and:
            return before & request.operand;
        case Access::fetch_or:
            return before | request.operand;
    }
    return before;
}

}  // namespace numacre::model
