// Fibers on one OS thread under a deterministic random scheduler, with a clock that nobody waits for: when all sleep,
// it jumps to whoever wakes first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "env.hpp"
#include "random.hpp"

namespace numacre::simulation {

enum class FiberState : std::uint8_t { ready, paused, sleeping, parked, ended, dead };

// What the client's sources keep a thread: swapped with the fiber (client.cpp).
struct ThreadLocals {
    void *lane = nullptr;
    std::byte table[32] = {};
    // The second stage's:
    int process = 0;
    int error = 0;          // errno
    void *value = nullptr;  // pthread_setspecific()
};

struct Fiber {
    int process = 0;  // of the world: who dies together
    FiberState state = FiberState::ready;
    std::uint64_t paused_until = 0;        // step
    std::uint64_t wake_ns = 0;             // sleeping
    const std::uint32_t *futex = nullptr;  // sleeping on it
    std::uint64_t priority = 0;
    ThreadLocals locals;
    std::function<void()> body;
    void *stack_pointer = nullptr;
    std::byte *stack = nullptr;
};

enum class Bias : std::uint8_t { uniform, runs, priorities, starve };

struct SchedulePlan {
    std::uint64_t seed = 0;
    Bias bias = Bias::uniform;
    std::uint64_t mean_run = 1;  // runs: accesses in a row
    unsigned changes = 0;        // priorities: how often one falls behind all others
    std::uint64_t steps_expected = 100'000;
    std::uint64_t point_every = 0;             // about every so many crash points a fault; 0: never
    std::uint64_t points = ~std::uint64_t{0};  // which, by CrashPoint's number
    std::uint64_t spurious_every = 0;          // weak compare-and-swaps
    bool adversary = false;                    // World::on_look() is asked
    std::uint64_t pause_every = 0;             // about every so many steps somebody stands still
    std::uint64_t pause_max = 20'000;
    std::uint64_t steps_max = 50'000'000;  // more: somebody never ends
    std::uint64_t step_ns = 100;
};

// What the scheduler asks of the world that it moves. Called outside fibers, but for locals.
struct World {
    virtual ~World() = default;
    // Nobody can go on. True: somebody can now. False: that was the end.
    virtual bool on_idle() = 0;
    // Steps of its own: deaths that are due. Returns the step of the next one.
    virtual std::uint64_t on_fault_due(std::uint64_t step) = 0;
    // A named crash point, by the running fiber's choice of fault: true if its process died there.
    virtual bool on_point_fault(Random &random) = 0;
    virtual void on_store(const void *word, std::uint64_t before, std::uint64_t after) = 0;
    // The running fiber is about to read a word; it may be made to wait.
    virtual void on_look(const void *word) = 0;
    virtual void on_change(const void *word, std::uint64_t before, std::uint64_t after) = 0;
    // The running fiber touches a word, while the door is watched.
    virtual void on_access(const void *) {}
};

void load_thread_locals(const ThreadLocals &locals);
void save_thread_locals(ThreadLocals &locals);

class Scheduler {
public:
    Scheduler(World &world, const SchedulePlan &plan);
    ~Scheduler();
    Scheduler(const Scheduler &) = delete;
    Scheduler &operator=(const Scheduler &) = delete;

    int spawn(int process, std::function<void()> body);
    // Until all have ended, or fail().
    void run();

    // By a fiber, about itself.
    void park();
    void sleep_ns(std::uint64_t nanoseconds);
    void leave();  // dead by now: does not return
    // nullptr: only for so long. False: the time is over.
    bool wait_on(const std::uint32_t *futex, std::uint64_t nanoseconds);
    void pause_for(std::uint64_t steps);
    // Others go on until holds() does, or for so many steps; then the caller goes on at once, and for a while.
    void let_others_until(const std::function<bool()> &holds, std::uint64_t steps);

    // By anybody.
    void stop();  // the run is over, whatever others are in the middle of; does not return to a fiber
    void wake(const std::uint32_t *futex);
    void wake_all(const std::uint32_t *futex);
    void kill_others(int process);  // all threads of it but the running one
    void kill(int process);
    void pause_process(int process, std::uint64_t steps);
    void unpark_all();
    bool resume_earliest_paused();
    bool wake_earliest();
    std::uint64_t earliest_wake_ns() const;  // the greatest number: nobody sleeps
    std::uint64_t now_ns() const { return jumped_ns_ + steps_done() * plan_.step_ns; }

    int current() const { return current_; }
    std::vector<Fiber> &fibers() { return fibers_; }
    const std::vector<Fiber> &fibers_of_all() const { return fibers_; }
    Random &random() { return random_; }
    bool cut_short() const { return cut_short_; }

    // The door's other side.
    void decide();
    void fault_at_point();
    bool fails_without_cause();
    void before_look(const void *word) {
        if (current_ != kNobody) world_.on_look(word);
    }
    void note_access(const void *word) {
        if (current_ != kNobody) world_.on_access(word);
    }
    void note_change(const void *word, std::uint64_t before, std::uint64_t after) {
        world_.on_change(word, before, after);
    }
    void note_store(const void *word, std::uint64_t before, std::uint64_t after) {
        world_.on_store(word, before, after);
    }
    static Scheduler *running;

private:
    static constexpr int kNobody = -1;

    int pick();
    void grant(int fiber);
    void leave_fiber();  // to the main loop
    void settle_steps();
    static void enter();

    World &world_;
    const SchedulePlan plan_;
    Random random_;
    std::vector<Fiber> fibers_;
    std::vector<std::uint64_t> change_steps_;
    void *main_stack_pointer_ = nullptr;
    int current_ = kNobody;
    int next_ = kNobody;
    int starved_ = kNobody;
    int urgent_ = kNobody;
    const std::function<bool()> *awaited_ = nullptr;  // by the urgent one
    std::uint64_t next_fault_ = 0;
    std::uint64_t next_pause_ = 0;
    std::uint64_t lowest_priority_ = 1'000'000;
    std::uint64_t jumped_ns_ = 1'000'000'000;
    bool stopped_ = false;
    bool cut_short_ = false;
};

}  // namespace numacre::simulation
