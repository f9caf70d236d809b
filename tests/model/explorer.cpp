#include "explorer.hpp"

#include <sys/mman.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "die.hpp"
#include "search.hpp"

namespace numacre::model {

namespace {

constexpr std::size_t kTraceStepsMax = 300;  // longer schedules are not printed unasked

}  // namespace

Explorer *Explorer::current_ = nullptr;

namespace {

constexpr std::size_t kArenaBytes = SharedWords::kBytesMax + kThreadsMax * Explorer::kFiberBytes;
// Fixed, so that addresses on stacks are the same in every state and in every run.
constexpr std::uintptr_t kArenaAddress = 0x5100'0000'0000;

std::byte *map_arena() {
    // The address is a request to the kernel, not an object.
    void *const wanted = reinterpret_cast<void *>(kArenaAddress);  // NOLINT(performance-no-int-to-ptr)
    void *const got = mmap(wanted, kArenaBytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != wanted) die("address " + hex(kArenaAddress) + " is taken: choose another kArenaAddress");
    return static_cast<std::byte *>(got);
}

}  // namespace

Explorer::Explorer(std::string name, Options options)
    : name_(std::move(name)), options_(options), arena_(map_arena()), words_(arena_) {
    if (current_ != nullptr) die("two explorers at once: the arena has one fixed address");
    current_ = this;
    kills_used_ = static_cast<std::uint64_t *>(allocate(8, 8));
    restarts_used_ = static_cast<std::uint64_t *>(allocate(8, 8));
    threads_.reserve(kThreadsMax);  // fibers must not move: the running one writes its own
}

Explorer::~Explorer() {
    munmap(arena_, kArenaBytes);
    current_ = nullptr;
}

void Explorer::ignore(const void *address, std::size_t bytes) {
    words_.set_flags(address, bytes, SharedWords::kIgnored);
}

void Explorer::keep_private(const void *address, std::size_t bytes) {
    words_.set_flags(address, bytes, SharedWords::kPrivate);
}

void Explorer::keep_as_channel(const void *address, std::size_t bytes) {
    words_.set_flags(address, bytes, SharedWords::kPrivate | SharedWords::kChannel);
}

void Explorer::written_only_by(int thread, const void *address, std::size_t bytes) {
    words_.set_flags(address, bytes, static_cast<std::uint8_t>((thread + 1) << SharedWords::kWriterShift));
}

int Explorer::add_thread(ThreadOptions options, Script script, std::size_t local_bytes) {
    const int thread = static_cast<int>(threads_.size());
    if (thread == kThreadsMax) die("more than " + std::to_string(kThreadsMax) + " threads: raise kThreadsMax");
    ThreadInfo info;
    info.area = arena_ + SharedWords::kBytesMax + static_cast<std::size_t>(thread) * kFiberBytes;
    info.local = info.area + kFiberBytes - (local_bytes + 63) / 64 * 64;
    info.stack_low = info.local;
    if (mprotect(info.area, kGuardBytes, PROT_NONE) != 0) die("mprotect of a guard page failed");
    if (options.name.empty()) options.name = "thread" + std::to_string(thread);
    if (options.process >= process_count_) process_count_ = options.process + 1;
    info.options = std::move(options);
    info.script = std::move(script);
    threads_.push_back(std::move(info));
    return thread;
}

void Explorer::begin() {
    if (exploring_) return;
    if (options_.memory == MemoryMode::total_store_order)
        buffers_ =
            std::make_unique<StoreBuffers>(words_, static_cast<unsigned>(threads_.size()), options_.store_buffer_max);
    if (options_.memory == MemoryMode::weak)
        weak_ = std::make_unique<WeakMemory>(options_.history_max, options_.barriers);
    exploring_ = true;
    for (int thread = 0; thread < static_cast<int>(threads_.size()); ++thread) {
        prepare(thread);
        resume(thread, 0);
    }
    root_ = position();
}

bool Explorer::at_rest(int thread) const {
    return idle(thread);
}

bool Explorer::knows_newest(int thread, const void *address) const {
    return !weak_ || weak_->knows_newest(thread, words_.place_of(address));
}

bool Explorer::dead(int process) const {
    for (const ThreadInfo &info : threads_)
        if (info.options.process == process && info.fiber.at != At::dead) return false;
    return true;
}

void Explorer::fail(const std::string &message) {
    if (failure_.empty()) failure_ = message;
}

void Explorer::print_summary(const Report &report) const {
    std::printf("[%s] %" PRIu64 " states, %" PRIu64 " transitions, %" PRIu64 " quiet states, depth %" PRIu64
                ", %.1f s (%.2f M transitions/s) %s%s: %s\n",
                name_.c_str(), report.states, report.transitions, report.quiet_states, report.depth_max, report.seconds,
                static_cast<double>(report.transitions) / (report.seconds + 1e-9) / 1e6,
                report.complete ? "COMPLETE" : (report.clean() ? "CAPPED" : "STOPPED"),
                report.histories_cut ? ", histories cut" : "",
                report.clean() ? "no violation" : report.violation.c_str());
    std::fflush(stdout);
}

Report Explorer::run() {
    begin();
    if (const char *const wanted = std::getenv("NUMACRE_REPLAY"); wanted != nullptr) {
        const std::string text = wanted;
        if (text.rfind(name_ + ":", 0) == 0) {
            Schedule schedule;
            if (!from_text(text.substr(name_.size() + 1), schedule))
                die("NUMACRE_REPLAY is not NAME:STEP,STEP,... with steps like 0, 0.2 or k1: " + text);
            return replay(schedule);
        }
    }
    Search search(*this);
    Report report =
        options_.search == SearchOrder::depth_first ? search.depth_first() : search.breadth_first(UINT64_MAX);
    if (options_.print) print_summary(report);
    if (report.clean()) return report;
    // NUMACRE_MODEL_SHORTEN=0: for those who only ask whether there is a violation (tests/mutation).
    const char *const shorten = std::getenv("NUMACRE_MODEL_SHORTEN");
    const bool want_shortest = shorten == nullptr || shorten[0] != '0';
    if (options_.search == SearchOrder::depth_first && !search.found_by_depth() && want_shortest) {
        const Report shortest = Search(*this).breadth_first(options_.shorten_transitions_max);
        if (!shortest.clean()) {
            report.violation = shortest.violation;
            report.schedule = shortest.schedule;
        }
    }
    const bool print = options_.print;
    options_.print = false;
    report.trace = replay(report.schedule).trace;
    options_.print = print;
    if (print) {
        std::printf("%s", report.schedule.size() > kTraceStepsMax ? "(a long schedule: replay it to see the trace)\n"
                                                                  : report.trace.c_str());
        std::printf("REPLAY: NUMACRE_REPLAY=%s:%s\n", name_.c_str(), to_text(report.schedule).c_str());
        std::fflush(stdout);
    }
    return report;
}

}  // namespace numacre::model
