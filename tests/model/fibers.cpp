// The explorer's virtual threads: fibers that are started, run to their next access and looked at.
#include "explorer.hpp"

#include <array>
#include <cstring>

#include "die.hpp"
#include "support/fiber_switch.hpp"

namespace numacre::model {

namespace {

// A step uses some stack below the pointer it is suspended at; cleared so that leftovers do not tell states apart.
constexpr std::size_t kStaleBytes = 1024;

}  // namespace

void Explorer::prepare(int thread) {
    ThreadInfo &info = threads_[static_cast<std::size_t>(thread)];
    std::memset(info.area + kGuardBytes, 0, kFiberBytes - kGuardBytes);
    // What numacre_fiber_switch pops: six registers, then "return" into fiber_entry with the alignment of a call.
    auto *const return_address = reinterpret_cast<void (**)()>(info.local - 16);
    *return_address = &Explorer::fiber_entry;
    info.fiber = Fiber{};
    info.fiber.stack_pointer = info.local - 16 - kFiberSavedRegisters * 8;
    info.fiber.at = At::access;
    if (weak_) weak_->start(thread, running_);
    rehash(thread);
}

void Explorer::fiber_entry() {
    Explorer &explorer = *current_;
    Thread self{explorer, explorer.running_};
    explorer.threads_[static_cast<std::size_t>(self.index())].script(self);
    explorer.suspend(At::finished);
    die("a finished fiber was resumed");
}

void Explorer::resume(int thread, int option) {
    ThreadInfo &info = threads_[static_cast<std::size_t>(thread)];
    Fiber &fiber = info.fiber;
    fiber.option = static_cast<std::uint8_t>(option);
    // On the scheduler's stack: on the fiber's it would leave something behind that tells equal states apart.
    if (fiber.request != nullptr) fiber.result = perform(thread, *fiber.request, option);
    fiber.request = nullptr;
    std::byte *const bottom = info.area + kGuardBytes;
    std::byte *const stale =
        info.stack_low - bottom > static_cast<std::ptrdiff_t>(kStaleBytes) ? info.stack_low - kStaleBytes : bottom;
    std::memset(stale, 0, static_cast<std::size_t>(fiber.stack_pointer - stale));
    running_ = thread;
    numacre_fiber_switch(&scheduler_stack_, fiber.stack_pointer);
    running_ = -1;
    if (fiber.stack_pointer < info.stack_low) info.stack_low = fiber.stack_pointer;
    if (fiber.at == At::finished) {
        fiber.stack_pointer = info.local;  // only what the script left in local<T>() remains
        // If its process may still die, it is then that others learn of what it did.
        if (weak_ && (info.options.process < 0 || options_.kills_max == 0)) weak_->finish(thread);
    }
    if (at_resting_point(thread)) operation_ended_ = true;
    rehash(thread);
}

// Runs on the fiber.
void Explorer::suspend(At at) {
    Fiber &fiber = threads_[static_cast<std::size_t>(running_)].fiber;
    fiber.at = at;
    fiber.choice_just_made = false;
    numacre_fiber_switch(&fiber.stack_pointer, scheduler_stack_);
}

bool Explorer::is_step(std::uint8_t flags, Access kind) const {
    if ((flags & (SharedWords::kIgnored | SharedWords::kPrivate)) != 0) return false;
    return kind != Access::load || flags >> SharedWords::kWriterShift != running_ + 1;
}

// Runs on the fiber. In one file with suspend(): what the compiler makes of both lies on the fiber's stack.
std::uint64_t access(const Request &request) {
    Explorer *const explorer = Explorer::current_;
    const bool exploring = explorer != nullptr && explorer->exploring_;
    const bool shared = exploring && explorer->words_.contains(request.address);
    const bool in_fiber = exploring && explorer->running_ >= 0;
    if (shared && !in_fiber) return explorer->access_in_order(request, true);
    if (!shared) {
        const std::uint64_t before = bits_at(request.address, request.bytes);
        const std::uint64_t after = result_of(request, before);
        if (after == before) return before;
        if (in_fiber) {
            const auto *const byte = static_cast<const std::byte *>(request.address);
            const Explorer::ThreadInfo &info = explorer->threads_[static_cast<std::size_t>(explorer->running_)];
            if (byte < info.area || byte >= info.area + Explorer::kFiberBytes)
                die("a thread wrote an Atomic at " + hex(reinterpret_cast<std::uintptr_t>(request.address)) +
                    ", which is not in the arena: the explorer could not take it back. Use Explorer::allocate.");
        }
        std::memcpy(request.address, &after, request.bytes);
        return before;
    }
    const bool in_order = explorer->options_.memory == MemoryMode::sequential;
    const std::uint8_t flags = explorer->words_.flags_of(request.address);
    if (!explorer->is_step(flags, request.kind))
        return in_order ? explorer->access_in_order(request, true) : explorer->access_silently(request, flags);
    if (explorer->options_.collect_sites) explorer->sites_.note(request);
    Explorer::Fiber &fiber = explorer->threads_[static_cast<std::size_t>(explorer->running_)].fiber;
    // The first access after a choice is one step with it, but not where the access has choices of its own.
    if (fiber.choice_just_made && in_order) {
        fiber.choice_just_made = false;
        return explorer->access_in_order(request, false);
    }
    fiber.request = &request;
    explorer->suspend(Explorer::At::access);
    return fiber.result;
}

void Explorer::rehash(int thread) {
    const ThreadInfo &info = threads_[static_cast<std::size_t>(thread)];
    const auto *word = reinterpret_cast<const std::uint64_t *>(info.fiber.stack_pointer);
    const auto *const end = reinterpret_cast<const std::uint64_t *>(info.area + kFiberBytes);
    const auto seed = static_cast<std::uint64_t>(thread) << 32 | static_cast<std::uint64_t>(end - word) << 8 |
                      static_cast<std::uint64_t>(info.fiber.at);
    // Four words a round, by four chains that do not wait for each other: two pair the words one way, two another.
    std::array<std::uint64_t, 4> chain{seed, seed, seed, seed};
    for (; end - word >= 4; word += 4) {
        chain[0] = fold(word[0] ^ 0x9e37'79b9'7f4a'7c15, word[1] ^ chain[0]);
        chain[1] = fold(word[2] ^ 0xc2b2'ae3d'27d4'eb4f, word[3] ^ chain[1]);
        chain[2] = fold(word[0] ^ 0xff51'afd7'ed55'8ccd, word[3] ^ chain[2]);
        chain[3] = fold(word[1] ^ 0xc4ce'b9fe'1a85'ec53, word[2] ^ chain[3]);
    }
    for (; word != end; ++word) {
        chain[0] = fold(*word ^ 0x9e37'79b9'7f4a'7c15, chain[0] ^ 0xa076'1d64'78bd'642f);
        chain[2] = fold(*word ^ 0xff51'afd7'ed55'8ccd, chain[2] ^ 0xe703'7ed1'a0b4'28db);
    }
    threads_[static_cast<std::size_t>(thread)].fiber.hash = {scramble(chain[0] + scramble(chain[1])),
                                                             scramble(chain[2] + scramble(chain[3]))};
}

bool Explorer::enabled(int thread) const {
    const Fiber &fiber = threads_[static_cast<std::size_t>(thread)].fiber;
    switch (fiber.at) {
        case At::access:
            return !waits_for_flush(thread);
        case At::choice:
        case At::resting_choice:
            return true;
        case At::condition:
        case At::resting_condition:
            return fiber.holds(fiber.condition);
        case At::finished:
        case At::dead:
            return false;
    }
    return false;
}

unsigned Explorer::options_of(int thread) const {
    const Fiber &fiber = threads_[static_cast<std::size_t>(thread)].fiber;
    if (!weak_ || fiber.request == nullptr) return fiber.options;
    return weak_->ways(thread, as_ordered(*fiber.request), words_.place_of(fiber.request->address),
                       bits_at(fiber.request->address, fiber.request->bytes));
}

// Between operations, or at work that waits for something to do.
bool Explorer::at_resting_point(int thread) const {
    const At at = threads_[static_cast<std::size_t>(thread)].fiber.at;
    return at == At::resting_choice || at == At::resting_condition || at == At::finished || at == At::dead;
}

// Not in the middle of an operation, no work waiting, and all that it stored is visible.
bool Explorer::idle(int thread) const {
    const Fiber &fiber = threads_[static_cast<std::size_t>(thread)].fiber;
    if (!at_resting_point(thread) || !drained(thread)) return false;
    return fiber.at != At::resting_condition || !fiber.holds(fiber.condition);
}

bool Explorer::all_idle_but(int thread) const {
    for (int other = 0; other < static_cast<int>(threads_.size()); ++other)
        if (other != thread && !idle(other)) return false;
    return true;
}

void Explorer::respawn(int process) {
    for (int thread = 0; thread < static_cast<int>(threads_.size()); ++thread) {
        if (threads_[static_cast<std::size_t>(thread)].options.process != process) continue;
        if (threads_[static_cast<std::size_t>(thread)].fiber.at != At::dead) die("respawn of a live process");
        save_image(thread);
        prepare(thread);
        to_start_.push_back(thread);
    }
}

// Whatever frames come next on this stack find zeros.
[[gnu::noinline]] void Thread::clear_stale_stack() {
    volatile std::uint64_t stale[256];
    for (volatile std::uint64_t &word : stale) word = 0;
}

int Thread::choose(int options, bool at_rest) {
    if (options < 1 || options > 255) die("a choice among " + std::to_string(options) + ": 1 to 255 are possible");
    Explorer::Fiber &fiber = explorer_.threads_[static_cast<std::size_t>(index_)].fiber;
    fiber.options = static_cast<std::uint8_t>(options);
    explorer_.suspend(at_rest ? Explorer::At::resting_choice : Explorer::At::choice);
    fiber.options = 1;
    fiber.choice_just_made = true;
    return fiber.option;
}

void Thread::wait_raw(const void *condition, bool (*holds)(const void *), bool at_rest) {
    Explorer::Fiber &fiber = explorer_.threads_[static_cast<std::size_t>(index_)].fiber;
    fiber.condition = condition;
    fiber.holds = holds;
    explorer_.suspend(at_rest ? Explorer::At::resting_condition : Explorer::At::condition);
    if (explorer_.weak_) explorer_.weak_->learn_of_deaths(index_);
}

void Thread::touch(const void *address) {
    if (explorer_.tracing_) explorer_.trace_ += "           uses      " + explorer_.words_.name_of(address) + "\n";
    if (explorer_.weak_ == nullptr || explorer_.weak_->touch(index_, explorer_.words_.place_of(address))) return;
    fail("a data race: others' use of " + explorer_.words_.name_of(address) + " does not happen before ours");
}

void Thread::note_end() {
    explorer_.operation_ended_ = true;
}

void Thread::fail(const std::string &message) {
    explorer_.fail(message);
    explorer_.suspend(Explorer::At::finished);
    die("a failed fiber was resumed");
}

}  // namespace numacre::model
