// A stateful model checker for code that takes its atomics from an Env: it runs the real, compiled source under every
// interleaving of its atomic accesses (sequential consistency, or the weaker modes of Options::memory), and optionally
// under every death of a process.
//
// How: each virtual thread is a fiber with a stack in one arena at a fixed address, beside the shared memory. So a
// state is plain bytes: shared words + live stacks. Going back in the search is undoing: words written since are put
// back from a log, the fiber that moved gets its stack bytes back; nothing is run again. A state is known by 112 bits
// of hash: shared words contribute incrementally, a stack is hashed when its fiber has moved. README.md is the
// ten-minute introduction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "hash.hpp"
#include "schedule.hpp"
#include "shared_words.hpp"
#include "sim_env.hpp"
#include "sites.hpp"
#include "state_set.hpp"
#include "store_buffers.hpp"
#include "weak_memory.hpp"

namespace numacre::model {

class Explorer;

enum class SearchOrder : std::uint8_t {
    depth_first,    // fast; for scripts that end
    breadth_first,  // for scripts that go on for ever over finitely many states, and for hunting: the first violation
                    // found is one with the fewest steps
};

enum class MemoryMode : std::uint8_t {
    sequential,         // one memory, orders are ignored
    total_store_order,  // x86: stores wait in a buffer per thread, first in first out; seq_cst stores and RMWs drain it
    weak,               // the orders as they are written (weak_memory.hpp): C++20 without reads from the future
};

struct Options {
    SearchOrder search = SearchOrder::depth_first;
    std::uint64_t states_max = 20'000'000;
    std::uint64_t depth_max = 100'000;  // of the depth-first search
    double seconds_max = 600;
    unsigned kills_max = 0;     // deaths of processes that are not restartable
    unsigned restarts_max = 0;  // deaths of restartable ones
    // Depth-first only. A preemption takes the processor from a thread that could go on in the middle of an operation.
    // Few bugs need many.
    int preemptions_max = -1;  // -1: no bound
    // From every state, every thread in the middle of an operation must end it within so many steps when it runs alone
    // (obstruction freedom). 0: not checked.
    unsigned solo_steps_max = 0;
    // After a violation found depth-first: how many transitions to spend on finding the shortest schedule.
    std::uint64_t shorten_transitions_max = 5'000'000;
    MemoryMode memory = MemoryMode::sequential;
    unsigned store_buffer_max = 2;  // total_store_order: stores that a thread may have waiting
    // total_store_order: what a thread had buffered is lost when it dies. In reality it is not (a retired store does
    // become visible), so by default a death flushes.
    bool lose_buffers_at_death = false;
    bool barriers = false;       // weak: the program calls pass_barrier()
    unsigned history_max = 3;    // weak: values of a location that may still be read, the newest included
    Weakening weaken{};          // line 0: none
    bool collect_sites = false;  // for Explorer::sites()
    // Depth-first only, without a preemption bound. A violation: a cycle of steps in which no operation ends. Steps of
    // threads that may_wait_for_others take no part, nor does reading an old value for ever. Twice the time.
    bool find_livelocks = false;
    // Depth-first only. A violation: so many steps in a row in which no operation ends, other than of threads that
    // may_wait_for_others. For what find_livelocks cannot see because a counter grows all the time. 0: not checked.
    unsigned steps_without_end_max = 0;
    bool print = true;  // the report and the schedule of a violation, to stdout
};

struct Report {
    std::uint64_t states = 0;
    std::uint64_t transitions = 0;
    std::uint64_t quiet_states = 0;
    std::uint64_t depth_max = 0;
    double seconds = 0;
    bool complete = false;       // the whole space within kills, restarts and the preemption bound was seen
    bool histories_cut = false;  // MemoryMode::weak: some old value could have been read, but for history_max
    std::uint64_t weakened = 0;  // accesses that Options::weaken changed
    std::string violation;       // empty: none
    Schedule schedule;           // of the violation
    std::string trace;           // one line an access
    bool clean() const { return violation.empty(); }
};

// What a thread's script may ask of the scheduler. Only to be used inside that thread.
class Thread {
public:
    int index() const { return index_; }
    // Branches n ways. The thread is at rest here: between operations.
    int choose_operation(int options) { return choose(options, true); }
    // Branches n ways in the middle of an operation.
    int choose(int options) { return choose(options, false); }
    // Goes on when `condition()` holds; the scheduler evaluates it. Not at rest: nobody able to run is a deadlock.
    template <class Condition>
    void wait_until(const Condition &condition) {
        wait(condition, false);
    }
    // The same for a thread whose job is to wait for work: at rest while the condition does not hold.
    template <class Condition>
    void rest_until(const Condition &condition) {
        wait(condition, true);
    }
    // Calls operation() on a clean piece of stack, so that what earlier operations left behind does not make equal
    // states look different. Each operation of a script belongs into one.
    template <class Operation>
    void run_operation(const Operation &operation) {
        clear_stale_stack();
        call(operation);
        note_end();
    }
    // The thread uses memory that is not atomic and that the code under test gave to it alone. A violation unless all
    // earlier uses of the same address by others happen before this one. Only MemoryMode::weak can tell; no step of its
    // own.
    void touch(const void *address);
    // A violation found by the script itself. Does not return.
    [[noreturn]] void fail(const std::string &message);
    // The thread's own data that outlives its stack frames and that invariants may look at. Zeroed at start.
    template <class Local>
    Local &local();

private:
    friend class Explorer;
    Thread(Explorer &explorer, int index) : explorer_(explorer), index_(index) {}
    int choose(int options, bool at_rest);
    static void clear_stale_stack();
    void note_end();
    template <class Operation>
    [[gnu::noinline]] static void call(const Operation &operation) {
        operation();
    }
    template <class Condition>
    void wait(const Condition &condition, bool at_rest) {
        // The condition's object stays where it is, on this fiber's stack, while the scheduler looks at it.
        wait_raw(&condition, [](const void *object) { return (*static_cast<const Condition *>(object))(); }, at_rest);
    }
    void wait_raw(const void *condition, bool (*holds)(const void *), bool at_rest);

    Explorer &explorer_;
    int index_;
};

struct ThreadOptions {
    std::string name{};
    int process = -1;          // -1: a process of its own that nobody kills
    bool mortal = true;        // false: the process does not die, whatever kills_max says
    bool restartable = false;  // a death of this process starts its scripts again from the beginning
    // Obstruction freedom is asked for always (a client), or only while everybody else is at rest (a daemon may wait
    // for a client that is in the middle of something).
    bool may_wait_for_others = false;
};

// One per process at a time (the arena has a fixed address).
class Explorer {
public:
    using Script = std::function<void(Thread &)>;
    static constexpr std::size_t kFiberBytes = std::size_t{64} << 10;  // a thread's stack and local<T>()

    explicit Explorer(std::string name, Options options = {});
    ~Explorer();
    Explorer(const Explorer &) = delete;
    Explorer &operator=(const Explorer &) = delete;

    // --- set-up -----------------------------------------------------------------------------------------------------
    // Zeroed shared memory in the arena.
    void *allocate(std::size_t bytes, std::size_t alignment = 64) { return words_.allocate(bytes, alignment); }
    template <class T>
    T *make() {
        static_assert(std::is_trivially_destructible_v<T>);
        return new (allocate(sizeof(T), alignof(T) > 8 ? alignof(T) : 8)) T{};
    }
    // Accesses to these words are no steps, and their values do not tell states apart. Only for words that nobody's
    // behaviour depends on (tallies), or that never change.
    void ignore(const void *address, std::size_t bytes);
    // Accesses are no steps, but values count. Only for words that a single thread accesses.
    void keep_private(const void *address, std::size_t bytes);
    // A thread's loads of its own words are no steps. Only for words that nobody else writes while that thread lives.
    void written_only_by(int thread, const void *address, std::size_t bytes);
    // Accesses are no steps, values count, and a load also sees whatever the last writer had seen: for a pipe, a ring
    // or a lock outside of the code under test that threads hand things over by.
    void keep_as_channel(const void *address, std::size_t bytes);
    // Names words in traces: name[i], i counting elements of element_bytes.
    void label(const void *address, std::size_t bytes, std::string name, std::size_t element_bytes = 8) {
        words_.label(address, bytes, std::move(name), element_bytes);
    }
    // Adds to a trace line what the value of the word at `address` means. Empty: the hexadecimal value alone.
    void describe_values(std::function<std::string(const void *address, std::uint64_t value)> describe) {
        describe_ = std::move(describe);
    }
    // local_bytes: room for the script's local<T>(). Returns the thread's index.
    int add_thread(ThreadOptions options, Script script, std::size_t local_bytes = 0);
    // Called in each new state. May write shared memory: it is undone afterwards. Reports by fail().
    void on_state(std::function<void()> check) { on_state_ = std::move(check); }
    // Called in each new state in which every live thread is at rest and no waiting one has work.
    void on_quiet(std::function<void()> check) { on_quiet_ = std::move(check); }
    // Called when a process dies, after its threads stopped. Writes are part of the transition.
    void on_kill(std::function<void(int process)> hook) { on_kill_ = std::move(hook); }
    // Called at the end of each step, before the state is looked at: for history that a state must carry with it, kept
    // in words of allocate(). Writes are part of the transition.
    void on_step(std::function<void()> hook) { on_step_ = std::move(hook); }

    // --- work --------------------------------------------------------------------------------------------------------
    // Explores. With NUMACRE_REPLAY=<name>:<schedule> in the environment and this explorer's name: replays instead.
    Report run();
    // Runs one schedule and stops at its end or at the first violation.
    Report replay(const Schedule &schedule);
    // With Options::collect_sites: the accesses that were steps so far, by file and line.
    std::vector<Site> sites() const { return sites_.all(); }

    // --- questions, from callbacks and conditions --------------------------------------------------------------------
    void fail(const std::string &message);
    bool dead(int process) const;
    bool at_rest(int thread) const;
    // MemoryMode::weak: the thread cannot read an older value than the word's newest any more. Else always true.
    bool knows_newest(int thread, const void *address) const;
    template <class Local>
    const Local &local(int thread) const {
        return *static_cast<const Local *>(local_of(thread));
    }
    // Starts the scripts of a dead process again: for a daemon that has recovered its slot. Part of the running step.
    void respawn(int process);

private:
    friend class Thread;
    friend std::uint64_t access(const Request &);

    static constexpr std::size_t kGuardBytes = 4096;  // below each stack: an overflow is a fault, not a corruption

    enum class At : std::uint8_t { access, choice, resting_choice, condition, resting_condition, finished, dead };

    // All that must be put back, beside the stack bytes, when a fiber's step is undone.
    struct Fiber {
        std::byte *stack_pointer = nullptr;  // saved registers and return address are on the stack
        Hash hash;
        At at = At::finished;
        std::uint8_t options = 1;          // at a choice
        std::uint8_t option = 0;           // the scheduler's answer
        bool choice_just_made = false;     // the first access after a choice belongs to the same step
        const Request *request = nullptr;  // the access it stands before; on its stack
        std::uint64_t result = 0;          // of that access
        const void *condition = nullptr;
        bool (*holds)(const void *) = nullptr;
    };

    struct ThreadInfo {
        ThreadOptions options;
        Script script;
        std::byte *area = nullptr;       // kFiberBytes
        std::byte *local = nullptr;      // at the area's end
        std::byte *stack_low = nullptr;  // lowest stack pointer seen: what lies between it and the live part is stale
        Fiber fiber;
    };

    // What undo() goes back to: the lengths of the logs.
    struct Position {
        SharedWords::Position words;
        std::size_t images = 0;
        std::size_t weak_states = 0;
    };
    struct Image {
        int thread;
        Fiber fiber;
        std::size_t offset;  // into image_bytes_
    };
    class Search;

    // fibers.cpp
    void prepare(int thread);
    void resume(int thread, int option);
    void suspend(At at);
    static void fiber_entry();
    bool is_step(std::uint8_t flags, Access kind) const;
    bool enabled(int thread) const;
    unsigned options_of(int thread) const;
    bool at_resting_point(int thread) const;
    bool idle(int thread) const;
    bool all_idle_but(int thread) const;
    void rehash(int thread);
    void *local_of(int thread) const { return threads_[static_cast<std::size_t>(thread)].local; }

    // memory_modes.cpp
    Request as_ordered(const Request &request) const { return with_weakening(request, options_.weaken); }
    std::uint64_t perform(int thread, const Request &request, int option);
    std::uint64_t access_in_order(const Request &request, bool silent);
    std::uint64_t access_buffered(int thread, const Request &request);
    std::uint64_t access_weak(int thread, const Request &request, unsigned way);
    std::uint64_t access_silently(const Request &request, std::uint8_t flags);
    bool drained(int thread) const { return buffers_ == nullptr || buffers_->is_empty(thread); }
    bool all_drained() const { return buffers_ == nullptr || buffers_->are_empty(); }
    bool waits_for_flush(int thread) const;
    void flush(int thread);
    void empty_buffer_of_dead(int thread);

    // steps.cpp
    Position position() const { return {words_.position(), images_.size(), weak_ ? weak_->saved_count() : 0}; }
    void save_image(int thread);
    void undo(const Position &to);
    void take(Step step);
    void kill(int process);
    bool possible(Step step) const;
    bool killable(int process) const;
    bool restartable(int process) const;
    Hash state_hash() const;
    void check_state();
    void check_solo(int thread);
    unsigned live_threads() const;
    // A step of which a cycle may not consist for ever while nobody ends an operation.
    bool takes_part_in_livelocks(Step step) const;
    // After a step. steps_without_end: so many, in a row, by which no operation ended.
    bool has_gone_on_too_long(Step step, unsigned &steps_without_end) const;
    std::string too_long_text() const;

    // replay.cpp
    void trace_access(const Request &request, std::uint64_t before, std::uint64_t after, const std::string &remark);
    void trace_step(Step step, std::uint64_t number);

    // explorer.cpp
    void begin();
    void print_summary(const Report &report) const;

    static constexpr const char *kLivelockText = "livelock: the last steps lead in a circle, and no operation ends";
    static Explorer *current_;

    std::string name_;
    Options options_;
    std::byte *arena_;  // the shared words, then the fibers
    SharedWords words_;
    std::vector<ThreadInfo> threads_;
    int process_count_ = 0;
    std::uint64_t *kills_used_ = nullptr;  // shared words, so that they are hashed and undone like all else
    std::uint64_t *restarts_used_ = nullptr;
    std::function<void()> on_state_;
    std::function<void()> on_quiet_;
    std::function<void(int)> on_kill_;
    std::function<void()> on_step_;
    std::function<std::string(const void *, std::uint64_t)> describe_;

    std::unique_ptr<StoreBuffers> buffers_;  // total_store_order
    std::unique_ptr<WeakMemory> weak_;       // weak
    SiteList sites_;
    std::uint64_t weakened_ = 0;

    std::vector<int> to_start_;  // respawned in the running step, not yet at their first stop
    Position root_;
    bool operation_ended_ = false;  // in the last step
    bool exploring_ = false;        // false: set-up, accesses are plain
    int running_ = -1;
    void *scheduler_stack_ = nullptr;
    std::vector<Image> images_;
    std::vector<std::byte> image_bytes_;
    std::string failure_;
    bool tracing_ = false;
    std::string trace_;
    std::unique_ptr<StateSet> solo_known_;  // (state, thread) pairs from which the thread ends its operation alone
};

template <class Local>
Local &Thread::local() {
    static_assert(std::is_trivially_copyable_v<Local>);
    return *static_cast<Local *>(explorer_.local_of(index_));
}

}  // namespace numacre::model
