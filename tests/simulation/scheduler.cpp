#include "scheduler.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "support/fiber_switch.hpp"

namespace numacre::simulation {
namespace {

constexpr std::size_t kStackBytes = 256 << 10;
constexpr std::size_t kFibersMax = 512;
constexpr std::uint64_t kNoFault = ~std::uint64_t{0};

std::vector<std::byte *> free_stacks;  // kept from one run to the next

std::byte *take_stack() {
    if (!free_stacks.empty()) {
        std::byte *const stack = free_stacks.back();
        free_stacks.pop_back();
        return stack;
    }
    void *const memory =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        std::perror("simulation: no memory for a stack");
        std::exit(2);
    }
    return static_cast<std::byte *>(memory);
}

void close_door() {
    door.left = door.granted = kNever;
}

}  // namespace

Scheduler *Scheduler::running = nullptr;

void decide() {
    if (Scheduler::running == nullptr) {
        close_door();
        return;
    }
    Scheduler::running->decide();
}
void fault_at_point() {
    if (Scheduler::running == nullptr)
        door.points_left = kNever;
    else
        Scheduler::running->fault_at_point();
}
bool fails_without_cause() {
    if (Scheduler::running != nullptr) return Scheduler::running->fails_without_cause();
    door.spurious_left = kNever;
    return false;
}
void note_change(const void *word, std::uint64_t before, std::uint64_t after) {
    if (Scheduler::running != nullptr) Scheduler::running->note_change(word, before, after);
}

void note_access(const void *word) {
    if (Scheduler::running != nullptr) Scheduler::running->note_access(word);
}
void before_look(const void *word) {
    if (Scheduler::running != nullptr) Scheduler::running->before_look(word);
}
void note_store(const void *word, std::uint64_t before, std::uint64_t after) {
    if (Scheduler::running != nullptr) Scheduler::running->note_store(word, before, after);
}

Scheduler::Scheduler(World &world, const SchedulePlan &plan) : world_(world), plan_(plan), random_(plan.seed, 7) {
    running = this;
    door = Door{};
    close_door();
    door.steps = 0;
    door.points_left = door.spurious_left = kNever;
    fibers_.reserve(kFibersMax);  // fibers are referred to by their place; none may move while it runs
    for (unsigned i = 0; i < plan.changes; ++i) change_steps_.push_back(random_.below(plan.steps_expected));
    std::sort(change_steps_.begin(), change_steps_.end(), std::greater<>());
    next_pause_ = plan.pause_every == 0 ? kNoFault : random_.between(1, 2 * plan.pause_every);
}

Scheduler::~Scheduler() {
    for (Fiber &fiber : fibers_)
        if (fiber.stack != nullptr) free_stacks.push_back(fiber.stack);
    running = nullptr;
    close_door();
    door.points_left = door.spurious_left = kNever;
}

int Scheduler::spawn(int process, std::function<void()> body) {
    int place = static_cast<int>(fibers_.size());
    std::byte *stack = nullptr;
    if (fibers_.size() == fibers_.capacity()) {
        // The place of one that is gone.
        for (place = 0; place < static_cast<int>(fibers_.size()); ++place) {
            const FiberState state = fibers_[static_cast<std::size_t>(place)].state;
            if (place != current_ && (state == FiberState::ended || state == FiberState::dead)) break;
        }
        if (place == static_cast<int>(fibers_.size())) {
            std::fprintf(stderr, "simulation: more than %zu fibers at once\n", fibers_.size());
            std::abort();
        }
        stack = std::exchange(fibers_[static_cast<std::size_t>(place)].stack, nullptr);
        fibers_[static_cast<std::size_t>(place)] = Fiber{};
    } else {
        fibers_.emplace_back();
    }
    Fiber &fiber = fibers_[static_cast<std::size_t>(place)];
    fiber.process = process;
    fiber.locals.process = process;
    fiber.body = std::move(body);
    fiber.priority = random_.below(1'000'000) + 1'000'001;
    fiber.stack = stack != nullptr ? stack : take_stack();
    // As if it had been left by numacre_fiber_switch: saved registers, then where to go on.
    auto **top = reinterpret_cast<void **>(fiber.stack + kStackBytes);
    *--top = nullptr;  // what enter() would return to; keeps the stack aligned as after a call
    *--top = reinterpret_cast<void *>(&Scheduler::enter);
    for (std::size_t i = 0; i < kFiberSavedRegisters; ++i) *--top = nullptr;
    fiber.stack_pointer = top;
    return place;
}

void Scheduler::enter() {
    Scheduler &self = *running;
    self.fibers_[static_cast<std::size_t>(self.current_)].body();
    self.fibers_[static_cast<std::size_t>(self.current_)].state = FiberState::ended;
    self.leave_fiber();
    std::abort();
}

void Scheduler::settle_steps() {
    door.steps = steps_done();
    door.granted = door.left = 0;
}

// How long the chosen one goes on before the next decision.
void Scheduler::grant(int fiber) {
    std::uint64_t run = 1;
    switch (plan_.bias) {
        case Bias::uniform:
            break;
        case Bias::runs:
            run = random_.between(1, 2 * plan_.mean_run);
            break;
        case Bias::priorities:
            run = 64;
            if (!change_steps_.empty())
                run = std::min<std::uint64_t>(
                    run, std::max<std::uint64_t>(change_steps_.back(), door.steps + 1) - door.steps);
            break;
        case Bias::starve:
            run = random_.between(1, 2 * plan_.mean_run);
            break;
    }
    for (const std::uint64_t at : {next_fault_, next_pause_})
        if (at > door.steps) run = std::min(run, at - door.steps);
    (void)fiber;
    door.granted = door.left = static_cast<std::int64_t>(run);
}

int Scheduler::pick() {
    int ready[kFibersMax];
    int count = 0;
    const std::uint64_t now = now_ns();
    if (urgent_ != kNobody) {
        Fiber &fiber = fibers_[static_cast<std::size_t>(urgent_)];
        if (fiber.state == FiberState::paused && ((*awaited_)() || fiber.paused_until <= door.steps))
            fiber.state = FiberState::ready;
        if (fiber.state == FiberState::ready) return urgent_;
        if (fiber.state == FiberState::dead) urgent_ = kNobody;
    }
    for (std::size_t i = 0; i < fibers_.size(); ++i) {
        Fiber &fiber = fibers_[i];
        if (fiber.state == FiberState::ready) {
            ready[count++] = static_cast<int>(i);
        } else if ((fiber.state == FiberState::paused && fiber.paused_until <= door.steps) ||
                   (fiber.state == FiberState::sleeping && fiber.wake_ns <= now)) {
            fiber.state = FiberState::ready;
            fiber.futex = nullptr;
            ready[count++] = static_cast<int>(i);
        }
    }
    if (count == 0) return kNobody;
    if (plan_.bias == Bias::priorities) {
        while (!change_steps_.empty() && change_steps_.back() <= door.steps) {
            change_steps_.pop_back();
            if (current_ != kNobody) fibers_[static_cast<std::size_t>(current_)].priority = --lowest_priority_;
        }
        int best = ready[0];
        for (int i = 1; i < count; ++i)
            if (fibers_[static_cast<std::size_t>(ready[i])].priority > fibers_[static_cast<std::size_t>(best)].priority)
                best = ready[i];
        return best;
    }
    if (plan_.bias == Bias::starve && count > 1) {
        if (starved_ == kNobody || random_.one_in(5000)) starved_ = static_cast<int>(random_.below(fibers_.size()));
        const int chosen = ready[random_.below(static_cast<std::uint64_t>(count))];
        if (chosen != starved_ || random_.one_in(64)) return chosen;
    }
    return ready[random_.below(static_cast<std::uint64_t>(count))];
}

// A fiber's share is used up: who goes on?
void Scheduler::decide() {
    door.steps += static_cast<std::uint64_t>(door.granted);  // the access that comes next is counted again below
    door.granted = door.left = 0;
    if (current_ == kNobody) {
        close_door();
        return;
    }
    if (door.steps >= next_fault_ || door.steps >= next_pause_ || door.steps >= plan_.steps_max) {
        leave_fiber();
    } else if (const int next = pick(); next != current_) {
        next_ = next;
        if (next == kNobody) {
            leave_fiber();
        } else {
            Fiber &from = fibers_[static_cast<std::size_t>(current_)];
            Fiber &to = fibers_[static_cast<std::size_t>(next)];
            save_thread_locals(from.locals);
            load_thread_locals(to.locals);
            current_ = next;
            grant(next);
            numacre_fiber_switch(&from.stack_pointer, to.stack_pointer);
        }
    } else {
        grant(current_);
    }
    --door.left;
}

void Scheduler::fault_at_point() {
    if (plan_.point_every == 0) {
        door.points_left = kNever;
        return;
    }
    door.points_left = static_cast<std::int64_t>(random_.between(0, 2 * plan_.point_every));
    if (current_ == kNobody) return;
    if (world_.on_point_fault(random_))
        leave_fiber();  // for ever
    else
        pause_for(random_.scaled(plan_.pause_max) + 1);
}
bool Scheduler::fails_without_cause() {
    if (plan_.spurious_every == 0) {
        door.spurious_left = kNever;
        return false;
    }
    door.spurious_left = static_cast<std::int64_t>(random_.between(0, 2 * plan_.spurious_every));
    return current_ != kNobody;
}

void Scheduler::leave_fiber() {
    Fiber &from = fibers_[static_cast<std::size_t>(current_)];
    save_thread_locals(from.locals);
    settle_steps();
    numacre_fiber_switch(&from.stack_pointer, main_stack_pointer_);
}

void Scheduler::run() {
    next_fault_ = world_.on_fault_due(0);
    door.points_left =
        plan_.point_every == 0 ? kNever : static_cast<std::int64_t>(random_.between(1, 2 * plan_.point_every));
    door.points = plan_.points;
    door.has_adversary = plan_.adversary;
    door.spurious_left = plan_.spurious_every == 0 ? kNever : 0;
    while (!stopped_) {
        close_door();
        current_ = kNobody;
        if (door.steps >= plan_.steps_max) {
            cut_short_ = true;
            break;
        }
        if (door.steps >= next_fault_) {
            next_fault_ = world_.on_fault_due(door.steps);
            if (stopped_) break;
        }
        if (door.steps >= next_pause_) {
            next_pause_ = door.steps + random_.between(1, 2 * plan_.pause_every);
            const std::uint64_t steps = random_.scaled(plan_.pause_max) + 1;
            Fiber &fiber = fibers_[random_.below(fibers_.size())];
            if (random_.one_in(4)) {
                pause_process(fiber.process, steps);
            } else if (fiber.state == FiberState::ready) {
                fiber.state = FiberState::paused;
                fiber.paused_until = door.steps + steps;
            }
        }
        const int next = pick();
        if (next == kNobody) {
            if (!world_.on_idle()) break;
            continue;
        }
        current_ = next;
        Fiber &to = fibers_[static_cast<std::size_t>(next)];
        load_thread_locals(to.locals);
        grant(next);
        numacre_fiber_switch(&main_stack_pointer_, to.stack_pointer);
    }
    close_door();
    current_ = kNobody;
}

void Scheduler::park() {
    fibers_[static_cast<std::size_t>(current_)].state = FiberState::parked;
    leave_fiber();
}
void Scheduler::sleep_ns(std::uint64_t nanoseconds) {
    (void)wait_on(nullptr, nanoseconds);
}
bool Scheduler::wait_on(const std::uint32_t *futex, std::uint64_t nanoseconds) {
    Fiber &fiber = fibers_[static_cast<std::size_t>(current_)];
    fiber.state = FiberState::sleeping;
    fiber.futex = futex;
    fiber.wake_ns = now_ns() + nanoseconds;
    const std::uint64_t end = fiber.wake_ns;
    leave_fiber();
    return now_ns() < end;
}
void Scheduler::pause_for(std::uint64_t steps) {
    Fiber &fiber = fibers_[static_cast<std::size_t>(current_)];
    fiber.state = FiberState::paused;
    fiber.paused_until = steps_done() + steps;
    leave_fiber();
}
void Scheduler::let_others_until(const std::function<bool()> &holds, std::uint64_t steps) {
    Fiber &fiber = fibers_[static_cast<std::size_t>(current_)];
    if (urgent_ != kNobody || holds()) return;
    urgent_ = current_;
    awaited_ = &holds;
    fiber.state = FiberState::paused;
    fiber.paused_until = steps_done() + steps;
    leave_fiber();
    urgent_ = kNobody;
    awaited_ = nullptr;
}
void Scheduler::stop() {
    stopped_ = true;
    if (current_ != kNobody) leave_fiber();
}

void Scheduler::wake(const std::uint32_t *futex) {
    for (Fiber &fiber : fibers_)
        if (fiber.state == FiberState::sleeping && fiber.futex == futex) {
            fiber.state = FiberState::ready;
            fiber.futex = nullptr;
            return;
        }
}
void Scheduler::wake_all(const std::uint32_t *futex) {
    for (Fiber &fiber : fibers_)
        if (fiber.state == FiberState::sleeping && fiber.futex == futex) {
            fiber.state = FiberState::ready;
            fiber.futex = nullptr;
        }
}
void Scheduler::leave() {
    leave_fiber();
    std::abort();
}
void Scheduler::kill_others(int process) {
    for (std::size_t i = 0; i < fibers_.size(); ++i)
        if (fibers_[i].process == process && static_cast<int>(i) != current_ && fibers_[i].state != FiberState::ended)
            fibers_[i].state = FiberState::dead;
}
void Scheduler::kill(int process) {
    for (Fiber &fiber : fibers_)
        if (fiber.process == process && fiber.state != FiberState::ended) fiber.state = FiberState::dead;
}
void Scheduler::pause_process(int process, std::uint64_t steps) {
    for (Fiber &fiber : fibers_)
        if (fiber.process == process && fiber.state == FiberState::ready) {
            fiber.state = FiberState::paused;
            fiber.paused_until = door.steps + steps;
        }
}
void Scheduler::unpark_all() {
    for (Fiber &fiber : fibers_)
        if (fiber.state == FiberState::parked) fiber.state = FiberState::ready;
}
bool Scheduler::resume_earliest_paused() {
    Fiber *first = nullptr;
    for (Fiber &fiber : fibers_)
        if (fiber.state == FiberState::paused && (first == nullptr || fiber.paused_until < first->paused_until))
            first = &fiber;
    if (first == nullptr) return false;
    first->state = FiberState::ready;
    return true;
}
std::uint64_t Scheduler::earliest_wake_ns() const {
    std::uint64_t earliest = ~std::uint64_t{0};
    for (const Fiber &fiber : fibers_)
        if (fiber.state == FiberState::sleeping) earliest = std::min(earliest, fiber.wake_ns);
    return earliest;
}
bool Scheduler::wake_earliest() {
    const Fiber *first = nullptr;
    for (const Fiber &fiber : fibers_)
        if (fiber.state == FiberState::sleeping && (first == nullptr || fiber.wake_ns < first->wake_ns)) first = &fiber;
    if (first == nullptr) return false;
    const std::uint64_t now = now_ns();
    if (first->wake_ns > now) jumped_ns_ += first->wake_ns - now;
    return true;
}

}  // namespace numacre::simulation
