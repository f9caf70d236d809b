#include "simulator.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "support/fiber_switch.hpp"

static_assert(std::endian::native == std::endian::little);

namespace numacre::contention {
namespace {

constexpr std::size_t kStackBytes = std::size_t{64} << 10;
constexpr std::size_t kPageBytes = 4096;
// Adversarial: a held core goes on after so many, changed word or not.
constexpr std::uint64_t kPatienceStepsPerCore = 64;
constexpr unsigned kNoLabel = 255;

Simulator *current = nullptr;

[[noreturn]] void die(const char *what) {
    std::fprintf(stderr, "contention simulator: %s\n", what);
    std::abort();
}

std::byte *map(std::size_t bytes) {
    void *const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) die("no memory");
    return static_cast<std::byte *>(memory);
}

std::uint64_t value_at(const Request &request) {
    std::uint64_t value = 0;
    std::memcpy(&value, request.address, request.bytes);
    return value;
}

// What the access leaves behind, given what it found.
std::uint64_t changed(const Request &request, std::uint64_t before) {
    switch (request.kind) {
        case Access::load:
        case Access::pause:
            return before;
        case Access::store:
        case Access::exchange:
            return request.operand;
        case Access::compare_exchange:
            return before == request.expected ? request.operand : before;
        case Access::fetch_add:
            return before + request.operand;
        case Access::fetch_sub:
            return before - request.operand;
        case Access::fetch_and:
            return before & request.operand;
        case Access::fetch_or:
            return before | request.operand;
    }
    die("no such access");
}

std::uint64_t perform_plainly(const Request &request) {
    if (request.kind == Access::pause) return 0;
    const std::uint64_t before = value_at(request);
    const std::uint64_t after = changed(request, before);
    std::memcpy(request.address, &after, request.bytes);
    return before;
}

}  // namespace

std::uint64_t access(const Request &request) {
    return current == nullptr ? perform_plainly(request) : current->access(request);
}

// ---------------------------------------------------------------------------------------------------------------------

Arena::Arena(std::size_t bytes)
    : memory_(map(bytes)), bytes_(bytes), labels_(bytes / kLineBytes, std::uint8_t{kNoLabel}) {}
Arena::~Arena() {
    munmap(memory_, bytes_);
}

std::byte *Arena::place(std::size_t bytes, const std::string &name) {
    const std::size_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    if (used_ + rounded > bytes_) die("the arena is too small");
    std::byte *const at = memory_ + used_;
    used_ += rounded;
    label(at, rounded, name);
    return at;
}

void Arena::label(const void *first, std::size_t bytes, const std::string &name) {
    auto known = std::find(names_.begin(), names_.end(), name);
    if (known == names_.end()) {
        if (names_.size() == kNoLabel) die("too many labels");
        known = names_.insert(names_.end(), name);
    }
    const std::size_t line = line_of(first);
    std::fill_n(labels_.begin() + static_cast<std::ptrdiff_t>(line), (bytes + kLineBytes - 1) / kLineBytes,
                static_cast<std::uint8_t>(known - names_.begin()));
}

std::size_t Arena::line_of(const void *address) const {
    const auto offset = static_cast<std::size_t>(static_cast<const std::byte *>(address) - memory_);
    if (offset >= bytes_) die("an Atomic lies outside the arena: nobody would count what it costs");
    return offset / kLineBytes;
}

// ---------------------------------------------------------------------------------------------------------------------

Simulator::Simulator(Arena &arena, const Plan &plan)
    : arena_(arena),
      plan_(plan),
      random_(plan.seed),
      lines_(arena.line_count()),
      cores_(plan.cores),
      by_label_(arena.label_names().size()) {
    if (current != nullptr) die("one simulation at a time");
    if (plan.cores == 0 || plan.cores > kCoresMax) die("so many cores are not built in");
}

Simulator::~Simulator() {
    for (const Core &core : cores_)
        if (core.stack != nullptr) munmap(core.stack, kStackBytes);
}

void Simulator::start_fiber(Core &core) {
    core.stack = map(kStackBytes);
    // What overflows hits a page that is not there, not another core's stack.
    if (mprotect(core.stack, kPageBytes, PROT_NONE) != 0) die("no guard page");
    auto *top = reinterpret_cast<void **>(core.stack + kStackBytes);
    *--top = nullptr;  // enter_fiber() finds the stack as if it had been called: 8 bytes off a multiple of 16
    *--top = reinterpret_cast<void *>(&Simulator::enter_fiber);
    top -= kFiberSavedRegisters;
    core.stack_pointer = top;
}

void Simulator::enter_fiber() {
    Simulator &simulator = *current;
    const int self = simulator.running_;
    simulator.body_(static_cast<unsigned>(self));
    simulator.cores_[static_cast<unsigned>(self)].ended = true;
    --simulator.alive_;
    simulator.yield_to_next();
    die("a core that has ended runs again");
}

Outcome Simulator::run(const std::function<void(unsigned core)> &body) {
    body_ = body;
    alive_ = plan_.cores;
    for (unsigned core = 0; core < plan_.cores; ++core) {
        start_fiber(cores_[core]);
        if (plan_.schedule != Schedule::timed) continue;
        cores_[core].clock = random_.below(kTransferCycles * 4);  // nobody starts in the same moment
        turns_.push_back({cores_[core].clock, random_.next(), core});
    }
    std::make_heap(turns_.begin(), turns_.end());
    if (plan_.warm_up_operations == 0) begin_counting();

    current = this;
    yield_to_next();
    current = nullptr;

    Outcome outcome;
    outcome.counts = counts_;
    outcome.by_label = by_label_;
    outcome.operations = counting_ ? operations_ : 0;
    outcome.steps = steps_;
    outcome.cut_short = operations_ < plan_.operations || !counting_;
    if (plan_.schedule == Schedule::timed && counting_) {
        std::uint64_t now = 0;
        // Where the last core to move stands; all others' next steps are later than that.
        if (running_ != kNobody) now = cores_[static_cast<unsigned>(running_)].clock;
        outcome.cycles = now > cycles_at_start_ ? now - cycles_at_start_ : 0;
    }
    return outcome;
}

void Simulator::end_operation() {
    if (current != nullptr) current->count_operation();
}

void Simulator::count_operation() {
    ++operations_;
    if (plan_.schedule == Schedule::timed)
        cores_[static_cast<unsigned>(running_)].clock +=
            kWorkCyclesLeast + random_.below(kWorkCyclesMost - kWorkCyclesLeast + 1);
    if (!counting_ && operations_ >= plan_.warm_up_operations) begin_counting();
}

void Simulator::begin_counting() {
    counting_ = true;
    operations_ = 0;
    counts_ = {};
    std::fill(by_label_.begin(), by_label_.end(), Counts{});
    cycles_at_start_ = running_ == kNobody ? 0 : cores_[static_cast<unsigned>(running_)].clock;
}

std::uint64_t Simulator::access(const Request &request) {
    const auto self = static_cast<unsigned>(running_);
    Core &core = cores_[self];
    core.pending = &request;
    if (plan_.schedule == Schedule::timed) {
        turns_.push_back({core.clock, random_.next(), self});
        std::push_heap(turns_.begin(), turns_.end());
    } else if (plan_.schedule == Schedule::adversarial) {
        hold_at_compare_exchange(self);
    }
    yield_to_next();
    return perform(core, request);
}

void Simulator::yield_to_next() {
    ++steps_;
    if (!counting_ && steps_ >= plan_.steps_max / 4) begin_counting();
    switch_to(finished() || alive_ == 0 ? kNobody : choose());
}

void Simulator::switch_to(int next) {
    if (next == running_) return;
    void *unused = nullptr;
    void **const save = running_ == kNobody ? &main_stack_pointer_
                        : cores_[static_cast<unsigned>(running_)].ended
                            ? &unused
                            : &cores_[static_cast<unsigned>(running_)].stack_pointer;
    if (next == kNobody) {
        // running_ stays: it says who moved last.
        numacre_fiber_switch(save, main_stack_pointer_);
        return;
    }
    running_ = next;
    numacre_fiber_switch(save, cores_[static_cast<unsigned>(next)].stack_pointer);
}

int Simulator::choose() {
    switch (plan_.schedule) {
        case Schedule::random:
            return choose_random();
        case Schedule::timed:
            return choose_timed();
        case Schedule::adversarial:
            return choose_adversarial();
    }
    die("no such schedule");
}

int Simulator::choose_random() {
    for (;;) {
        const unsigned core = random_.below(plan_.cores);
        if (!cores_[core].ended) return static_cast<int>(core);
    }
}

int Simulator::choose_timed() {
    for (;;) {
        std::pop_heap(turns_.begin(), turns_.end());
        const Turn turn = turns_.back();
        turns_.pop_back();
        if (!must_wait(turn)) return static_cast<int>(turn.core);
    }
}

// The line that the core needs is on its way to another one, or a locked instruction holds it there. First come, first
// served.
bool Simulator::must_wait(const Turn &turn) {
    Core &core = cores_[turn.core];
    if (core.pending == nullptr || core.pending->kind == Access::pause) return false;
    const std::size_t at = arena_.line_of(core.pending->address);
    Line &line = lines_[at];
    if (line.busy_until <= core.clock || reach(turn.core, line, core.pending->kind != Access::load) == Reach::hit)
        return false;
    if (line.awaited && !core.first_in_line) {
        waiting_[at].push_back(turn.core);
        return true;
    }
    line.awaited = true;
    core.first_in_line = true;
    core.clock = line.busy_until;
    turns_.push_back({core.clock, random_.next(), turn.core});
    std::push_heap(turns_.begin(), turns_.end());
    return true;
}

// The first in line has got it: there is a new first.
void Simulator::pass_on(std::size_t at, Line &line) {
    const auto found = waiting_.find(at);
    line.awaited = found != waiting_.end() && !found->second.empty();
    if (!line.awaited) return;
    const unsigned next = found->second.front();
    found->second.pop_front();
    Core &core = cores_[next];
    core.first_in_line = true;
    core.clock = std::max(core.clock, line.busy_until);
    turns_.push_back({core.clock, random_.next(), next});
    std::push_heap(turns_.begin(), turns_.end());
}

// Whoever stands between what it read and its compare-and-swap is held there, and goes on when another has changed the
// word: then it fails.
int Simulator::choose_adversarial() {
    while (!goes_next_.empty()) {
        const unsigned core = goes_next_.back();
        goes_next_.pop_back();
        if (!cores_[core].ended) return static_cast<int>(core);
    }
    std::array<unsigned, kCoresMax> ready{};
    unsigned ready_count = 0;
    unsigned longest = plan_.cores;
    for (unsigned core = 0; core < plan_.cores; ++core) {
        if (cores_[core].ended) continue;
        if (!cores_[core].held)
            ready[ready_count++] = core;
        else if (longest == plan_.cores || cores_[core].held_since < cores_[longest].held_since)
            longest = core;
    }
    const bool out_of_patience =
        longest != plan_.cores && steps_ - cores_[longest].held_since >= kPatienceStepsPerCore * plan_.cores;
    if (ready_count != 0 && !out_of_patience) return static_cast<int>(ready[random_.below(ready_count)]);
    cores_[longest].held = false;
    return static_cast<int>(longest);
}

// If another one stands before the same word already, that one goes now, and this one will fail.
void Simulator::hold_at_compare_exchange(unsigned core) {
    if (cores_[core].pending->kind != Access::compare_exchange) return;
    // It would fail already.
    if (value_at(*cores_[core].pending) != cores_[core].pending->expected) return;
    cores_[core].held = true;
    cores_[core].held_since = steps_;
    for (unsigned other = 0; other < plan_.cores; ++other) {
        if (other == core || !cores_[other].held || cores_[other].pending->address != cores_[core].pending->address)
            continue;
        cores_[other].held = false;
        goes_next_.push_back(other);
        return;
    }
}

void Simulator::release_those_who_will_fail(const void *address, unsigned by) {
    for (unsigned other = 0; other < plan_.cores; ++other) {
        if (other == by || !cores_[other].held || cores_[other].pending->address != address) continue;
        cores_[other].held = false;
        goes_next_.push_back(other);
    }
}

// ---------------------------------------------------------------------------------------------------------------------

// What the access needs of the line: a load needs it at all, a write needs it alone.
Simulator::Reach Simulator::reach(unsigned core, Line &line, bool write) const {
    const bool has = (line.holders[core / 64] >> core % 64 & 1) != 0;
    if (!write) {
        if (has) return Reach::hit;
        return line.writer >= 0 ? Reach::transfer : Reach::cold;
    }
    bool others = false;
    for (unsigned part = 0; part < line.holders.size(); ++part)
        others = others || (line.holders[part] & ~(part == core / 64 ? std::uint64_t{1} << core % 64 : 0)) != 0;
    if (others) return Reach::transfer;
    return has ? Reach::hit : Reach::cold;
}

void Simulator::take(unsigned core, Line &line, bool write) {
    if (write) {
        line.holders = {};
        line.writer = static_cast<std::int16_t>(core);
    }
    line.holders[core / 64] |= std::uint64_t{1} << core % 64;
}

std::uint64_t Simulator::perform(Core &core, const Request &request) {
    if (request.kind == Access::pause) {
        core.clock += kPauseCycles;
        return 0;
    }
    const auto self = static_cast<unsigned>(running_);
    const std::size_t at = arena_.line_of(request.address);
    Line &line = lines_[at];
    const bool write = request.kind != Access::load;
    const Reach how = reach(self, line, write);
    take(self, line, write);
    if (plan_.schedule == Schedule::timed) {
        core.clock += (is_rmw(request.kind) ? kRmwCycles : kHitCycles) + (how == Reach::hit ? 0 : kTransferCycles);
        if (write || how == Reach::transfer) line.busy_until = std::max(line.busy_until, core.clock);
        if (std::exchange(core.first_in_line, false)) pass_on(at, line);
    }
    const std::uint64_t before = perform_plainly(request);
    const bool failed = request.kind == Access::compare_exchange && before != request.expected;
    if (counting_) count(at, request, how, failed);
    if (plan_.schedule == Schedule::adversarial && write && value_at(request) != before)
        release_those_who_will_fail(request.address, self);
    return before;
}

void Simulator::count(std::size_t line, const Request &request, Reach how, bool failed) {
    Counts one;
    one.loads = request.kind == Access::load ? 1 : 0;
    one.stores = request.kind == Access::store ? 1 : 0;
    one.rmws = is_rmw(request.kind) ? 1 : 0;
    one.failed_cas = failed ? 1 : 0;
    one.transfers = how == Reach::transfer ? 1 : 0;
    one.cold = how == Reach::cold ? 1 : 0;
    const auto add = [&one](Counts &sum) {
        sum.loads += one.loads;
        sum.stores += one.stores;
        sum.rmws += one.rmws;
        sum.failed_cas += one.failed_cas;
        sum.transfers += one.transfers;
        sum.cold += one.cold;
    };
    add(counts_);
    const std::uint8_t label = arena_.label_of(line);
    if (label != kNoLabel) add(by_label_[label]);
}

}  // namespace numacre::contention
