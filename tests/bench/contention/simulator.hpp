// Virtual cores on one real one: each is a fiber that runs up to its next access to an Atomic; a schedule then decides
// whose access is performed. What is counted is exact for the schedule and the same for the same seed; nothing is
// measured in real time. README.md says what is assumed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "contention_env.hpp"

namespace numacre::contention {

inline constexpr unsigned kCoresMax = 128;
inline constexpr std::size_t kLineBytes = 64;

// Assumptions of the timed schedule, in cycles of a core of about 4 GHz. A locked instruction measures 4.9 ns on a
// core's own line; a line's way between two cores measures 39 to 71 ns in a virtual machine, and is taken to be far
// less here, as between neighbours on one chip: the lower it is, the less contention is made of.
inline constexpr std::uint64_t kHitCycles = 4;   // a load or store of a line that the core has, and the code around it
inline constexpr std::uint64_t kRmwCycles = 18;  // a locked instruction on a line that the core has alone
inline constexpr std::uint64_t kTransferCycles = 80;  // more, if another core has the line, or nobody
inline constexpr std::uint64_t kPauseCycles = 40;
// The caller's own work after each allocation or free: something, or cores would march in step for ever.
inline constexpr std::uint64_t kWorkCyclesLeast = 16;
inline constexpr std::uint64_t kWorkCyclesMost = 32;

enum class Schedule : std::uint8_t {
    random,      // each step is a random core's
    timed,       // the core whose clock is behind all others' goes on; a line that is under way must be waited for
    adversarial  // a core that is about to compare and swap waits until another has changed the word
};

// xorshift64*
class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed * 0x9e37'79b9'7f4a'7c15 | 1) {}
    std::uint32_t next() {
        state_ ^= state_ >> 12;
        state_ ^= state_ << 25;
        state_ ^= state_ >> 27;
        return static_cast<std::uint32_t>((state_ * 0x2545'f491'4f6c'dd1d) >> 32);
    }
    std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(std::uint64_t{next()} * limit >> 32); }

private:
    std::uint64_t state_;
};

struct Counts {
    std::uint64_t loads = 0;
    std::uint64_t stores = 0;
    std::uint64_t rmws = 0;  // compare-and-swaps that fail are among them
    std::uint64_t failed_cas = 0;
    std::uint64_t transfers = 0;  // lines that had to come from, or be taken away from, another core
    std::uint64_t cold = 0;       // lines that no core had, or nobody ever wrote
    friend bool operator==(const Counts &, const Counts &) = default;
};

// Memory for what the cores share: the only place where an Atomic may lie. Zeroed.
class Arena {
public:
    explicit Arena(std::size_t bytes);
    ~Arena();
    Arena(const Arena &) = delete;
    Arena &operator=(const Arena &) = delete;
    // At the beginning of a page. `label` names it in Simulator::counts_by_label(); there may be 255 in all.
    std::byte *place(std::size_t bytes, const std::string &label);
    // Names a part of what is placed already.
    void label(const void *first, std::size_t bytes, const std::string &label);

    std::size_t line_of(const void *address) const;
    std::size_t line_count() const { return bytes_ / kLineBytes; }
    std::uint8_t label_of(std::size_t line) const { return labels_[line]; }
    const std::vector<std::string> &label_names() const { return names_; }

private:
    std::byte *memory_;
    std::size_t bytes_;
    std::size_t used_ = 0;
    std::vector<std::uint8_t> labels_;  // by line
    std::vector<std::string> names_;
};

struct Plan {
    Schedule schedule = Schedule::random;
    unsigned cores = 1;
    std::uint64_t seed = 1;
    std::uint64_t warm_up_operations = 0;  // of all cores together, not counted
    std::uint64_t operations = 1000;       // counted, then the cores are stopped where they are
    // An end also to loops that wait for others, or for ever: a quarter for warming up.
    std::uint64_t steps_max = 20'000'000;
};

struct Outcome {
    Counts counts;
    std::vector<Counts> by_label;  // as Arena::label_names()
    std::uint64_t operations = 0;
    std::uint64_t cycles = 0;  // timed only
    std::uint64_t steps = 0;
    bool cut_short = false;  // steps_max came first
    double per_operation(std::uint64_t count) const {
        return operations == 0 ? 0 : static_cast<double>(count) / static_cast<double>(operations);
    }
    double operations_per_kilocycle() const {
        return cycles == 0 ? 0 : 1000.0 * static_cast<double>(operations) / static_cast<double>(cycles);
    }
};

// One at a time in a process.
class Simulator {
public:
    Simulator(Arena &arena, const Plan &plan);
    ~Simulator();
    Simulator(const Simulator &) = delete;
    Simulator &operator=(const Simulator &) = delete;

    // Runs body(core) on each core until enough operations are done. A body may return; if all do, that is the end.
    // Bodies are abandoned in the middle: nothing on their stack may need its destructor.
    Outcome run(const std::function<void(unsigned core)> &body);

    // Called by a body: one allocation or free is done.
    static void end_operation();

    // The one door's other side.
    std::uint64_t access(const Request &request);

private:
    struct Line {
        std::array<std::uint64_t, kCoresMax / 64> holders{};  // who has it
        std::uint64_t busy_until = 0;                         // timed: it is on its way to somebody
        std::int16_t writer = -1;                             // who changed it last
        bool awaited = false;                                 // timed: somebody is first in line
    };
    struct Core {
        void *stack_pointer = nullptr;
        std::byte *stack = nullptr;
        const Request *pending = nullptr;  // on its stack; null: has not begun
        std::uint64_t clock = 0;
        std::uint64_t held_since = 0;
        bool held = false;           // adversarial: waits for another to change the word
        bool first_in_line = false;  // timed: of those who wait for the line, the one that gets it next
        bool ended = false;
    };
    // Timed: who is next. Ties are broken by lot, or low numbers would always be first at a contended line.
    struct Turn {
        std::uint64_t clock;
        std::uint32_t lot;
        unsigned core;
        bool operator<(const Turn &other) const {
            return clock != other.clock ? clock > other.clock : lot > other.lot;  // the heap's top is the earliest
        }
    };
    enum class Reach : std::uint8_t { hit, transfer, cold };

    static void enter_fiber();
    void start_fiber(Core &core);
    void yield_to_next();
    void switch_to(int next);
    int choose();
    int choose_random();
    int choose_timed();
    int choose_adversarial();
    std::uint64_t perform(Core &core, const Request &request);
    Reach reach(unsigned core, Line &line, bool write) const;
    static void take(unsigned core, Line &line, bool write);
    bool must_wait(const Turn &turn);
    void pass_on(std::size_t at, Line &line);
    void count(std::size_t line, const Request &request, Reach how, bool failed);
    void hold_at_compare_exchange(unsigned core);
    void release_those_who_will_fail(const void *address, unsigned by);
    void count_operation();
    void begin_counting();
    bool finished() const { return counting_ && (operations_ >= plan_.operations || steps_ >= plan_.steps_max); }

    static constexpr int kNobody = -1;

    Arena &arena_;
    const Plan plan_;
    Random random_;
    std::vector<Line> lines_;
    std::vector<Core> cores_;
    std::vector<Turn> turns_;  // a heap of all but those who wait behind the first in line
    std::unordered_map<std::size_t, std::deque<unsigned>> waiting_;  // by line, behind the first
    std::vector<unsigned> goes_next_;
    std::function<void(unsigned)> body_;
    void *main_stack_pointer_ = nullptr;
    int running_ = kNobody;
    unsigned alive_ = 0;
    std::uint64_t steps_ = 0;
    std::uint64_t operations_ = 0;
    std::uint64_t cycles_at_start_ = 0;
    bool counting_ = false;
    Counts counts_;
    std::vector<Counts> by_label_;
};

}  // namespace numacre::contention
