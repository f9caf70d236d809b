#include "explorer.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <tuple>

#include "support/fiber_switch.hpp"

namespace numacre::model {

namespace {

constexpr std::size_t kSharedBytes = std::size_t{16} << 20;
// Fixed, so that addresses on stacks are the same in every state and in every run.
constexpr std::uintptr_t kArenaAddress = 0x5100'0000'0000;
// A step uses some stack below the pointer it is suspended at; cleared so that leftovers do not tell states apart.
constexpr std::size_t kStaleBytes = 1024;

constexpr const char *kLivelock = "livelock: the last steps lead in a circle, and no operation ends";
constexpr std::size_t kTraceStepsMax = 300;  // longer schedules are not printed unasked

constexpr std::uint8_t kIgnored = 1;
constexpr std::uint8_t kPrivate = 2;
constexpr std::uint8_t kChannel = 4;
constexpr unsigned kWriterShift = 3;  // above: 1 + the only thread that writes the word, 0: no such

[[noreturn]] void die(const std::string &message) {
    std::fprintf(stderr, "model explorer: %s\n", message.c_str());
    std::abort();
}

constexpr std::uint64_t scramble(std::uint64_t x) {
    x = (x ^ (x >> 32)) * 0xd6e8'feb8'6659'fd93;
    x = (x ^ (x >> 32)) * 0xd6e8'feb8'6659'fd93;
    return x ^ (x >> 32);
}

std::uint64_t bits_at(const void *address, unsigned bytes) {
    std::uint64_t bits = 0;
    if (bytes == 8)
        std::memcpy(&bits, address, 8);
    else
        std::memcpy(&bits, address, bytes);
    return bits;
}

std::string hex(std::uint64_t value) {
    char text[24];
    std::snprintf(text, sizeof text, "%#" PRIx64, value);
    return text;
}

}  // namespace

const char *to_text(Access kind) {
    switch (kind) {
        case Access::load:
            return "load";
        case Access::store:
            return "store";
        case Access::exchange:
            return "exchange";
        case Access::compare_exchange:
            return "cas";
        case Access::fetch_add:
            return "fetch_add";
        case Access::fetch_sub:
            return "fetch_sub";
        case Access::fetch_and:
            return "fetch_and";
        case Access::fetch_or:
            return "fetch_or";
    }
    return "?";
}

const char *to_text(std::memory_order order) {
    switch (order) {
        case std::memory_order_relaxed:
            return "relaxed";
        case std::memory_order_consume:
            return "consume";
        case std::memory_order_acquire:
            return "acquire";
        case std::memory_order_release:
            return "release";
        case std::memory_order_acq_rel:
            return "acq_rel";
        case std::memory_order_seq_cst:
            return "seq_cst";
    }
    return "?";
}

std::string to_text(const Site &site) {
    std::string text = site.file.substr(site.file.find_last_of('/') + 1) + ":" + std::to_string(site.line) + " " +
                       site.function + ": " + to_text(site.access) + " " + to_text(site.order);
    if (site.access == Access::compare_exchange) text += std::string("/") + to_text(site.failure_order);
    return text;
}

std::vector<Weakening> one_step_weaker(const Site &site) {
    std::vector<Weakening> all;
    const auto add = [&](std::memory_order to, bool failure) {
        all.push_back({site.file, site.line, site.column, failure, to});
    };
    const bool is_load = site.access == Access::load;
    const bool is_store = site.access == Access::store;
    switch (site.order) {
        case std::memory_order_seq_cst:
            add(is_load    ? std::memory_order_acquire
                : is_store ? std::memory_order_release
                           : std::memory_order_acq_rel,
                false);
            break;
        case std::memory_order_acq_rel:
            add(std::memory_order_acquire, false);
            add(std::memory_order_release, false);
            break;
        case std::memory_order_acquire:
        case std::memory_order_consume:
        case std::memory_order_release:
            add(std::memory_order_relaxed, false);
            break;
        case std::memory_order_relaxed:
            break;
    }
    if (site.access != Access::compare_exchange) return all;
    if (site.failure_order == std::memory_order_seq_cst) add(std::memory_order_acquire, true);
    if (site.failure_order == std::memory_order_acquire) add(std::memory_order_relaxed, true);
    return all;
}

std::string to_text(const Schedule &schedule) {
    std::string text;
    for (const Step step : schedule) {
        if (!text.empty()) text += ',';
        if (step.kind == Step::Kind::kill) text += 'k';
        if (step.kind == Step::Kind::flush) text += 'f';
        text += std::to_string(step.thread);
        if (step.option != 0) text += '.' + std::to_string(step.option);
    }
    return text;
}

bool from_text(const std::string &text, Schedule &schedule) {
    schedule.clear();
    const char *at = text.c_str();
    const auto number = [&at](std::uint8_t &value) {
        char *end = nullptr;
        if (*at < '0' || *at > '9') return false;
        const unsigned long parsed = std::strtoul(at, &end, 10);
        at = end;
        value = static_cast<std::uint8_t>(parsed);
        return parsed <= 255;
    };
    while (*at != '\0') {
        Step step;
        if (*at == 'k' || *at == 'f') {
            step.kind = *at == 'k' ? Step::Kind::kill : Step::Kind::flush;
            ++at;
        }
        if (!number(step.thread)) return false;
        if (*at == '.' && (++at, !number(step.option))) return false;
        if (*at == ',' && at[1] != '\0') {
            ++at;
        } else if (*at != '\0') {
            return false;
        }
        schedule.push_back(step);
    }
    return true;
}

// Open addressing, 16 bytes a state: 112 bits of hash and the lowest cost at which the state was reached.
class Explorer::HashSet {
public:
    enum class Seen : std::uint8_t { never, dearer, before };

    HashSet() { reserve(1 << 16); }
    ~HashSet() { std::free(slots_); }
    HashSet(const HashSet &) = delete;
    HashSet &operator=(const HashSet &) = delete;

    std::uint64_t size() const { return size_; }

    Seen insert(Hash hash, std::uint64_t cost) {
        if (size_ * 10 > capacity_ * 7) reserve(capacity_ * 2);
        Slot &slot = find(slots_, capacity_, pack(hash));
        const std::uint64_t kept_cost = cost < kCostMask ? cost : kCostMask;
        if (slot.a == 0) {
            slot = pack(hash);
            slot.b |= kept_cost;
            ++size_;
            return Seen::never;
        }
        if ((slot.b & kCostMask) <= kept_cost) return Seen::before;
        slot.b = (slot.b & ~kCostMask) | kept_cost;
        return Seen::dearer;
    }

    bool contains(Hash hash) const { return find(slots_, capacity_, pack(hash)).a != 0; }

    // As a map: the cost that was set last.
    bool get(Hash hash, std::uint64_t &cost) const {
        const Slot &slot = find(slots_, capacity_, pack(hash));
        cost = slot.b & kCostMask;
        return slot.a != 0;
    }
    void set(Hash hash, std::uint64_t cost) {
        insert(hash, cost);
        Slot &slot = find(slots_, capacity_, pack(hash));
        slot.b = (slot.b & ~kCostMask) | cost;
    }

private:
    struct Slot {
        std::uint64_t a;  // 0: empty
        std::uint64_t b;
    };
    static constexpr std::uint64_t kCostMask = 0xffff;

    static Slot pack(Hash hash) { return {hash.a != 0 ? hash.a : 1, hash.b & ~kCostMask}; }

    static Slot &find(Slot *slots, std::uint64_t capacity, Slot wanted) {
        std::uint64_t at = wanted.a & (capacity - 1);
        while (slots[at].a != 0 && (slots[at].a != wanted.a || (slots[at].b & ~kCostMask) != wanted.b))
            at = (at + 1) & (capacity - 1);
        return slots[at];
    }

    void reserve(std::uint64_t capacity) {
        auto *const slots = static_cast<Slot *>(std::calloc(capacity, sizeof(Slot)));
        if (slots == nullptr) die("no memory for " + std::to_string(capacity) + " states: lower states_max");
        for (std::uint64_t at = 0; at < capacity_; ++at) {
            if (slots_[at].a == 0) continue;
            find(slots, capacity, {slots_[at].a, slots_[at].b & ~kCostMask}) = slots_[at];
        }
        std::free(slots_);
        slots_ = slots;
        capacity_ = capacity;
    }

    Slot *slots_ = nullptr;
    std::uint64_t capacity_ = 0;
    std::uint64_t size_ = 0;
};

Explorer *Explorer::current_ = nullptr;

// ---------------------------------------------------------------------------------------------------------------------
// Set-up

Explorer::Explorer(std::string name, Options options) : name_(std::move(name)), options_(options) {
    if (current_ != nullptr) die("two explorers at once: the arena has one fixed address");
    const std::size_t arena_bytes = kSharedBytes + kThreadsMax * kFiberBytes;
    // The address is a request to the kernel, not an object.
    void *const wanted = reinterpret_cast<void *>(kArenaAddress);  // NOLINT(performance-no-int-to-ptr)
    void *const got = mmap(wanted, arena_bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != wanted) die("address " + hex(kArenaAddress) + " is taken: choose another kArenaAddress");
    arena_ = static_cast<std::byte *>(got);
    current_ = this;
    kills_used_ = static_cast<std::uint64_t *>(allocate(8, 8));
    restarts_used_ = static_cast<std::uint64_t *>(allocate(8, 8));
    threads_.reserve(kThreadsMax);  // fibers must not move: the running one writes its own
}

Explorer::~Explorer() {
    munmap(arena_, kSharedBytes + kThreadsMax * kFiberBytes);
    current_ = nullptr;
}

void *Explorer::allocate(std::size_t bytes, std::size_t alignment) {
    const std::size_t begin = (shared_bytes_ + alignment - 1) / alignment * alignment;
    shared_bytes_ = begin + (bytes + 7) / 8 * 8;
    if (shared_bytes_ > kSharedBytes) die("shared memory above " + std::to_string(kSharedBytes) + " bytes: raise it");
    word_flags_.resize(shared_bytes_ / 8);
    return arena_ + begin;
}

void Explorer::flag_words(const void *address, std::size_t bytes, std::uint8_t flags) {
    const auto first = static_cast<std::size_t>(static_cast<const std::byte *>(address) - arena_) / 8;
    for (std::size_t word = first; word < first + (bytes + 7) / 8; ++word) word_flags_.at(word) |= flags;
}

void Explorer::ignore(const void *address, std::size_t bytes) {
    flag_words(address, bytes, kIgnored);
}

void Explorer::keep_private(const void *address, std::size_t bytes) {
    flag_words(address, bytes, kPrivate);
}

void Explorer::keep_as_channel(const void *address, std::size_t bytes) {
    flag_words(address, bytes, kPrivate | kChannel);
}

void Explorer::written_only_by(int thread, const void *address, std::size_t bytes) {
    flag_words(address, bytes, static_cast<std::uint8_t>((thread + 1) << kWriterShift));
}

bool Explorer::is_step(std::uint8_t flags, Access kind) const {
    if ((flags & (kIgnored | kPrivate)) != 0) return false;
    return kind != Access::load || flags >> kWriterShift != running_ + 1;
}

void Explorer::label(const void *address, std::size_t bytes, std::string name, std::size_t element_bytes) {
    const auto *const begin = static_cast<const std::byte *>(address);
    labels_.push_back({begin, begin + bytes, std::move(name), element_bytes});
}

int Explorer::add_thread(ThreadOptions options, Script script, std::size_t local_bytes) {
    const int thread = static_cast<int>(threads_.size());
    if (thread == kThreadsMax) die("more than " + std::to_string(kThreadsMax) + " threads: raise kThreadsMax");
    ThreadInfo info;
    info.area = arena_ + kSharedBytes + static_cast<std::size_t>(thread) * kFiberBytes;
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

// ---------------------------------------------------------------------------------------------------------------------
// Fibers

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
    return weak_->ways(thread, as_ordered(*fiber.request), place_of(fiber.request->address),
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

bool Explorer::at_rest(int thread) const {
    return idle(thread);
}

bool Explorer::knows_newest(int thread, const void *address) const {
    return !weak_ || weak_->knows_newest(thread, place_of(address));
}

bool Explorer::dead(int process) const {
    for (const ThreadInfo &info : threads_)
        if (info.options.process == process && info.fiber.at != At::dead) return false;
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
    if (explorer_.tracing_) explorer_.trace_ += "           uses      " + explorer_.name_of(address) + "\n";
    if (explorer_.weak_ == nullptr || explorer_.weak_->touch(index_, explorer_.place_of(address))) return;
    fail("a data race: others' use of " + explorer_.name_of(address) + " does not happen before ours");
}

void Thread::note_end() {
    explorer_.operation_ended_ = true;
}

void Thread::fail(const std::string &message) {
    explorer_.fail(message);
    explorer_.suspend(Explorer::At::finished);
    die("a failed fiber was resumed");
}

void Explorer::fail(const std::string &message) {
    if (failure_.empty()) failure_ = message;
}

// ---------------------------------------------------------------------------------------------------------------------
// Shared words

bool Explorer::is_shared(const void *address) const {
    const auto *const byte = static_cast<const std::byte *>(address);
    return byte >= arena_ && byte < arena_ + shared_bytes_;
}

void Explorer::write_word(std::uint64_t *word, std::uint64_t value) {
    const std::uint64_t old = *word;
    if (old == value) return;
    log_.push_back({word, old});
    *word = value;
    const auto position = static_cast<std::size_t>(reinterpret_cast<std::byte *>(word) - arena_) / 8;
    if ((word_flags_[position] & kIgnored) != 0) return;
    const std::uint64_t place = scramble(position + 1);
    memory_hash_.a += scramble(place ^ value) - scramble(place ^ old);
    memory_hash_.b += scramble((place << 1 | 1) + value * 0x9e37'79b9'7f4a'7c15) -
                      scramble((place << 1 | 1) + old * 0x9e37'79b9'7f4a'7c15);
}

void Explorer::write(void *address, unsigned bytes, std::uint64_t value) {
    auto *const word = reinterpret_cast<std::uint64_t *>(  // NOLINT(performance-no-int-to-ptr)
        reinterpret_cast<std::uintptr_t>(address) & ~std::uintptr_t{7});
    std::uint64_t merged = *word;
    const auto offset = static_cast<std::byte *>(address) - reinterpret_cast<std::byte *>(word);
    std::memcpy(reinterpret_cast<std::byte *>(&merged) + offset, &value, bytes);
    write_word(word, merged);
}

std::uint64_t Explorer::access_in_order(const Request &request, bool silent) {
    const std::uint64_t before = bits_at(request.address, request.bytes);
    if (request.kind == Access::load && silent) return before;
    const std::uint64_t after = result_of(request, before);
    if (after != before) write(request.address, request.bytes, after);
    if (tracing_ && !silent) trace_access(request, before, after, {});
    return before;
}

std::uint64_t access(const Request &request) {
    Explorer *const explorer = Explorer::current_;
    const bool exploring = explorer != nullptr && explorer->exploring_;
    const bool shared = exploring && explorer->is_shared(request.address);
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
    const std::uint8_t flags = explorer->word_flags_[explorer->place_of(request.address) / 8];
    if (!explorer->is_step(flags, request.kind))
        return in_order ? explorer->access_in_order(request, true) : explorer->access_silently(request, flags);
    if (explorer->options_.collect_sites) explorer->note_site(request);
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

std::uint64_t Explorer::perform(int thread, const Request &request, int option) {
    switch (options_.memory) {
        case MemoryMode::sequential:
            break;
        case MemoryMode::total_store_order:
            return access_buffered(thread, request);
        case MemoryMode::weak:
            return access_weak(thread, request, static_cast<unsigned>(option));
    }
    return access_in_order(request, false);
}

// ---------------------------------------------------------------------------------------------------------------------
// Weaker memory

std::size_t Explorer::place_of(const void *address) const {
    return static_cast<std::size_t>(static_cast<const std::byte *>(address) - arena_);
}

bool Explorer::is_weakened(const Request &request) const {
    const Weakening &weaken = options_.weaken;
    if (weaken.line == 0 || request.where.line() != weaken.line) return false;
    if (weaken.column != 0 && request.where.column() != weaken.column) return false;
    return std::string_view(request.where.file_name()).ends_with(weaken.file);
}

Request Explorer::as_ordered(const Request &request) const {
    Request ordered = request;
    if (is_weakened(request)) (options_.weaken.failure ? ordered.failure_order : ordered.order) = options_.weaken.to;
    return ordered;
}

void Explorer::note_site(const Request &request) {
    for (const Request &known : sites_)
        if (known.where.line() == request.where.line() && known.where.column() == request.where.column() &&
            known.kind == request.kind && known.where.file_name() == request.where.file_name())
            return;
    sites_.push_back(request);
}

std::vector<Site> Explorer::sites() const {
    std::vector<Site> sites;
    for (const Request &request : sites_) {
        // "Errc numacre::Buddy<Env>::free(...) [with ...]": the name before the parameters.
        std::string function = request.where.function_name();
        constexpr std::string_view kNameless = "(anonymous namespace)";  // clang's
        if (const std::size_t at = function.find(kNameless); at != std::string::npos)
            function.erase(at, kNameless.size());
        function.resize(std::min(function.find('('), function.size()));
        function.erase(0, function.find_last_of(" :*&") + 1);
        sites.push_back({request.where.file_name(), function, request.where.line(), request.where.column(),
                         request.kind, request.order, request.failure_order});
    }
    std::sort(sites.begin(), sites.end(), [](const Site &a, const Site &b) {
        return std::tie(a.file, a.line, a.column) < std::tie(b.file, b.line, b.column);
    });
    // A header's name may be there once for each translation unit.
    sites.erase(std::unique(sites.begin(), sites.end(),
                            [](const Site &a, const Site &b) {
                                return std::tie(a.file, a.line, a.column, a.access) ==
                                       std::tie(b.file, b.line, b.column, b.access);
                            }),
                sites.end());
    return sites;
}

std::uint64_t *Explorer::buffer_count(int thread) const {
    return store_buffers_ + static_cast<std::size_t>(thread) * (1 + 2 * options_.store_buffer_max);
}

Explorer::Buffered *Explorer::buffer(int thread) const {
    return reinterpret_cast<Buffered *>(buffer_count(thread) + 1);
}

bool Explorer::all_drained() const {
    for (int thread = 0; thread < static_cast<int>(threads_.size()); ++thread)
        if (!drained(thread)) return false;
    return true;
}

bool Explorer::waits_for_flush(int thread) const {
    const Request *const request = threads_[static_cast<std::size_t>(thread)].fiber.request;
    if (request == nullptr || drained(thread) || request->kind == Access::load) return false;
    const bool needs_empty = request->kind != Access::store || as_ordered(*request).order == std::memory_order_seq_cst;
    return needs_empty || *buffer_count(thread) == options_.store_buffer_max;
}

// The value of the thread's own youngest store to the place, if it is still in the buffer.
bool Explorer::forwarded(int thread, const Request &request, std::uint64_t &value) const {
    constexpr unsigned kBytesShift = 56;
    const auto wanted = reinterpret_cast<std::uintptr_t>(request.address);
    for (std::uint64_t i = *buffer_count(thread); i-- > 0;) {
        const Buffered &store = buffer(thread)[i];
        const std::uint64_t address = store.address_and_bytes & ((std::uint64_t{1} << kBytesShift) - 1);
        const std::uint64_t bytes = store.address_and_bytes >> kBytesShift;
        if (address >= wanted + request.bytes || wanted >= address + bytes) continue;
        if (address != wanted || bytes != request.bytes) die("accesses of different sizes overlap");
        value = store.value;
        return true;
    }
    return false;
}

std::uint64_t Explorer::access_buffered(int thread, const Request &asked) {
    const Request request = as_ordered(asked);
    if (is_weakened(asked)) ++weakened_;
    std::uint64_t before = bits_at(request.address, request.bytes);
    if (request.kind == Access::load) {
        const bool own = forwarded(thread, request, before);
        if (tracing_) trace_access(request, before, before, own ? " (from its buffer)" : "");
        return before;
    }
    // RMWs and seq_cst stores find the buffer empty: waits_for_flush().
    if (request.kind != Access::store || request.order == std::memory_order_seq_cst)
        return access_in_order(request, false);
    std::uint64_t *const count = buffer_count(thread);
    auto *const entry = reinterpret_cast<std::uint64_t *>(buffer(thread) + *count);
    write_word(entry, reinterpret_cast<std::uintptr_t>(request.address) | std::uint64_t{request.bytes} << 56);
    write_word(entry + 1, request.operand);
    write_word(count, *count + 1);
    if (tracing_) trace_access(request, before, request.operand, " (into its buffer)");
    return before;
}

void Explorer::flush(int thread) {
    std::uint64_t *const count = buffer_count(thread);
    auto *const words = reinterpret_cast<std::uint64_t *>(buffer(thread));
    Request request{};
    request.kind = Access::store;
    request.bytes = static_cast<std::uint32_t>(words[0] >> 56);
    request.address = reinterpret_cast<void *>(words[0] << 8 >> 8);  // NOLINT(performance-no-int-to-ptr)
    request.operand = words[1];
    access_in_order(request, false);
    const std::uint64_t used = 2 * *count;
    for (std::uint64_t i = 0; i < used; ++i) write_word(words + i, i + 2 < used ? words[i + 2] : 0);
    write_word(count, *count - 1);
}

void Explorer::empty_buffer_of_dead(int thread) {
    if (!options_.lose_buffers_at_death) {
        while (!drained(thread)) flush(thread);
    } else if (!drained(thread)) {
        std::uint64_t *const words = buffer_count(thread);
        for (unsigned i = 0; i < 1 + 2 * options_.store_buffer_max; ++i) write_word(words + i, 0);
    }
}

std::uint64_t Explorer::access_weak(int thread, const Request &asked, unsigned way) {
    const Request request = as_ordered(asked);
    if (is_weakened(asked)) ++weakened_;
    const std::uint64_t newest = bits_at(request.address, request.bytes);
    const WeakMemory::Outcome outcome = weak_->perform(thread, request, place_of(request.address), newest, way);
    if (outcome.newest != newest) write(request.address, request.bytes, outcome.newest);
    if (tracing_) {
        std::string remark;
        if (outcome.behind_newest != 0)
            remark = (request.kind == Access::store ? " (before " : " (old: before ") +
                     std::to_string(outcome.behind_newest) + " newer)";
        trace_access(request, outcome.before, outcome.after, remark);
    }
    return outcome.before;
}

// Runs on the fiber: words that are no steps. They are as good as one thread's own, but for channels and a thread's
// loads of words that only it writes.
std::uint64_t Explorer::access_silently(const Request &request, std::uint8_t flags) {
    if (store_buffers_ != nullptr) {
        std::uint64_t value = 0;
        if (request.kind == Access::load && forwarded(running_, request, value)) return value;
        // What goes through a channel is later than all that its writer stored.
        while ((flags & kChannel) != 0 && request.kind != Access::load && !drained(running_)) flush(running_);
    }
    if (weak_ && (flags & kChannel) != 0)
        weak_->pass_through_channel(running_, request, place_of(request.address),
                                    bits_at(request.address, request.bytes));
    return access_in_order(request, true);
}

unsigned Explorer::live_threads() const {
    unsigned live = 0;
    for (std::size_t thread = 0; thread < threads_.size(); ++thread) {
        const At at = threads_[thread].fiber.at;
        if (at != At::finished && at != At::dead) live |= 1U << thread;
    }
    return live;
}

std::string Explorer::name_of(const void *address) const {
    const auto *const byte = static_cast<const std::byte *>(address);
    for (const Label &label : labels_) {
        if (byte < label.begin || byte >= label.end) continue;
        if (static_cast<std::size_t>(label.end - label.begin) <= label.element_bytes) return label.name;
        return label.name + "[" + std::to_string(static_cast<std::size_t>(byte - label.begin) / label.element_bytes) +
               "]";
    }
    return "shared+" + hex(static_cast<std::uint64_t>(byte - arena_));
}

void Explorer::trace_access(const Request &request, std::uint64_t before, std::uint64_t after,
                            const std::string &remark) {
    const auto meaning = [this, &request](std::uint64_t value) {
        const std::string text = describe_ ? describe_(request.address, value) : std::string{};
        return text.empty() ? hex(value) : hex(value) + " {" + text + "}";
    };
    std::string line = to_text(request.kind);
    line.resize(line.size() < 10 ? 10 : line.size(), ' ');
    line += name_of(request.address) + ": ";
    if (request.kind == Access::load) {
        line += meaning(before);
    } else if (request.kind == Access::compare_exchange && before != request.expected) {
        line += "fails, expected " + meaning(request.expected) + ", is " + meaning(before);
    } else {
        line += meaning(before) + " -> " + meaning(after);
    }
    trace_ += "           " + line + remark + "\n";
}

// ---------------------------------------------------------------------------------------------------------------------
// Steps and their undoing

void Explorer::save_image(int thread) {
    const ThreadInfo &info = threads_[static_cast<std::size_t>(thread)];
    const auto bytes = static_cast<std::size_t>(info.area + kFiberBytes - info.fiber.stack_pointer);
    const std::size_t offset = image_bytes_.size();
    image_bytes_.resize(offset + bytes);
    std::memcpy(image_bytes_.data() + offset, info.fiber.stack_pointer, bytes);
    images_.push_back({thread, info.fiber, offset});
}

void Explorer::undo(const Undo &to) {
    while (log_.size() > to.log) {
        *log_.back().word = log_.back().value;
        log_.pop_back();
    }
    while (images_.size() > to.images) {
        const Image &image = images_.back();
        ThreadInfo &info = threads_[static_cast<std::size_t>(image.thread)];
        info.fiber = image.fiber;
        std::memcpy(info.fiber.stack_pointer, image_bytes_.data() + image.offset, image_bytes_.size() - image.offset);
        image_bytes_.resize(image.offset);
        images_.pop_back();
    }
    if (weak_) weak_->restore(to.weak_states);
    memory_hash_ = to.memory_hash;
}

bool Explorer::restartable(int process) const {
    for (const ThreadInfo &info : threads_)
        if (info.options.process == process) return info.options.restartable;
    return false;
}

bool Explorer::killable(int process) const {
    bool exists = false;
    bool busy = false;
    for (int thread = 0; thread < static_cast<int>(threads_.size()); ++thread) {
        const ThreadInfo &info = threads_[static_cast<std::size_t>(thread)];
        if (info.options.process != process || info.fiber.at == At::dead) continue;
        exists = exists || info.options.mortal;
        busy = busy || !idle(thread);
    }
    // One that starts again from the beginning and was at rest would only be where it was.
    if (restartable(process)) return exists && busy && *restarts_used_ < options_.restarts_max;
    return exists && *kills_used_ < options_.kills_max;
}

bool Explorer::possible(Step step) const {
    if (step.kind == Step::Kind::kill) return step.thread < process_count_ && killable(step.thread);
    if (step.thread >= threads_.size()) return false;
    if (step.kind == Step::Kind::flush) return !drained(step.thread);
    return enabled(step.thread) && step.option < options_of(step.thread);
}

void Explorer::take(Step step) {
    if (weak_) weak_->save();
    operation_ended_ = false;
    if (step.kind == Step::Kind::run) {
        save_image(step.thread);
        resume(step.thread, step.option);
        if (threads_[step.thread].options.may_wait_for_others) operation_ended_ = false;
    } else if (step.kind == Step::Kind::flush) {
        flush(step.thread);
    } else {
        kill(step.thread);
    }
    while (!to_start_.empty()) {
        const int thread = to_start_.back();
        to_start_.pop_back();
        resume(thread, 0);
    }
    if (on_step_) on_step_();
    if (weak_) weak_->tidy(live_threads());
}

void Explorer::kill(int process) {
    const bool again = restartable(process);
    std::uint64_t *const used = again ? restarts_used_ : kills_used_;
    write_word(used, *used + 1);
    for (int thread = 0; thread < static_cast<int>(threads_.size()); ++thread) {
        ThreadInfo &info = threads_[static_cast<std::size_t>(thread)];
        if (info.options.process != process || info.fiber.at == At::dead) continue;
        save_image(thread);
        empty_buffer_of_dead(thread);
        if (weak_) weak_->die(thread);
        if (again) {
            prepare(thread);
            to_start_.push_back(thread);
        } else {
            info.fiber = Fiber{};
            info.fiber.at = At::dead;
            info.fiber.stack_pointer = info.local;
            rehash(thread);
        }
    }
    if (on_kill_) on_kill_(process);
    operation_ended_ = true;
}

bool Explorer::next_step(Frame &frame, Step &step) const {
    for (;;) {
        const bool of_threads = frame.kind != Step::Kind::kill;
        while (frame.thread < (of_threads ? static_cast<int>(threads_.size()) : process_count_)) {
            step = {frame.kind, frame.thread, frame.option};
            const bool found = possible(step);
            if (found && frame.kind == Step::Kind::run) {
                ++frame.option;
                return true;
            }
            ++frame.thread;
            frame.option = 0;
            if (found) return true;
        }
        if (frame.kind == Step::Kind::flush) return false;
        frame.kind = frame.kind == Step::Kind::run ? Step::Kind::kill : Step::Kind::flush;
        if (frame.kind == Step::Kind::flush && store_buffers_ == nullptr) return false;
        frame.thread = 0;
    }
}

Explorer::Hash Explorer::state_hash() const {
    Hash hash = memory_hash_;
    for (const ThreadInfo &info : threads_) {
        hash.a += info.fiber.hash.a;
        hash.b += info.fiber.hash.b;
    }
    if (weak_) weak_->add_to_hash(hash.a, hash.b);
    return {scramble(hash.a), scramble(hash.b)};
}

void Explorer::check_state() {
    const Undo here = mark();
    // With stores on their way memory does not tell yet what their owners did. Flushing them leads to states in which
    // it does.
    if (on_state_ && all_drained()) on_state_();
    undo(here);
    if (failure_.empty()) {
        bool somebody_can_run = !all_drained();
        for (int thread = 0; thread < static_cast<int>(threads_.size()); ++thread)
            somebody_can_run = somebody_can_run || enabled(thread);
        if (all_idle_but(-1)) {
            if (on_quiet_) on_quiet_();
            undo(here);
        } else if (!somebody_can_run) {
            fail("deadlock: nobody can go on, and not everybody is at rest");
        }
    }
    if (options_.solo_steps_max == 0) return;
    for (int thread = 0; thread < static_cast<int>(threads_.size()) && failure_.empty(); ++thread) {
        if (idle(thread)) continue;
        if (threads_[static_cast<std::size_t>(thread)].options.may_wait_for_others && !all_idle_but(thread)) continue;
        check_solo(thread);
    }
}

void Explorer::check_solo(int thread) {
    const auto key = [this, thread] {
        const Hash hash = state_hash();
        const auto salt = static_cast<std::uint64_t>(thread + 1);
        return Hash{scramble(hash.a + salt), scramble(hash.b + salt)};
    };
    const Undo here = mark();
    std::vector<Hash> passed;
    const std::string &name = threads_[static_cast<std::size_t>(thread)].options.name;
    while (failure_.empty() && !idle(thread)) {
        const Hash now = key();
        if (solo_known_->contains(now)) break;
        passed.push_back(now);
        if (!drained(thread) && (at_resting_point(thread) || !enabled(thread))) {
            take({Step::Kind::flush, static_cast<std::uint8_t>(thread), 0});
        } else if (!enabled(thread)) {
            fail(name + " waits for somebody in the middle of its operation");
        } else if (passed.size() > options_.solo_steps_max) {
            fail(name + " does not end its operation within " + std::to_string(options_.solo_steps_max) +
                 " steps though it runs alone");
        } else {
            take({Step::Kind::run, static_cast<std::uint8_t>(thread), 0});
        }
    }
    undo(here);
    if (!failure_.empty()) return;
    for (const Hash hash : passed) solo_known_->insert(hash, 0);
}

void Explorer::begin() {
    if (exploring_) return;
    if (options_.memory == MemoryMode::total_store_order)
        store_buffers_ = static_cast<std::uint64_t *>(
            allocate(threads_.size() * (1 + 2 * std::size_t{options_.store_buffer_max}) * 8, 8));
    if (options_.memory == MemoryMode::weak) weak_ = std::make_unique<WeakMemory>(options_.history_max);
    exploring_ = true;
    for (int thread = 0; thread < static_cast<int>(threads_.size()); ++thread) {
        prepare(thread);
        resume(thread, 0);
    }
    root_ = mark();
}

// ---------------------------------------------------------------------------------------------------------------------
// Search

void Explorer::start_search(HashSet &visited, Report &report) {
    started_ = std::chrono::steady_clock::now();
    solo_known_ = std::make_unique<HashSet>();
    failure_.clear();
    found_by_depth_ = false;
    weakened_ = 0;
    report.complete = true;
    path_.assign(1, Frame{});
    path_.back().undo = root_;
    visited.insert(state_hash(), 0);
    check_state();
    note_violation(report);
}

void Explorer::end_search(const HashSet &visited, Report &report) {
    if (!failure_.empty()) report.complete = false;
    path_.clear();
    undo(root_);
    solo_known_.reset();
    report.states = visited.size();
    report.histories_cut = weak_ && weak_->was_cut();
    report.weakened = weakened_;
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

// Takes the step and puts it on the path.
void Explorer::enter(Step step) {
    Frame next;
    next.undo = mark();
    next.taken = step;
    next.last_thread = step.kind == Step::Kind::run ? step.thread : path_.back().last_thread;
    next.preemptions = path_.back().preemptions;
    next.steps_without_end = path_.back().steps_without_end;
    path_.push_back(next);
    take(step);
}

void Explorer::leave() {
    undo(path_.back().undo);
    path_.pop_back();
}

void Explorer::note_violation(Report &report) {
    if (failure_.empty()) return;
    report.violation = failure_;
    report.schedule.clear();
    for (std::size_t depth = 1; depth < path_.size(); ++depth) report.schedule.push_back(path_[depth].taken);
}

bool Explorer::capped(std::uint64_t states, std::uint64_t transitions) const {
    if (states >= options_.states_max) return true;
    if ((transitions & 0xfff) != 0) return false;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count() > options_.seconds_max;
}

// A step of which a cycle may not consist for ever while nobody ends an operation.
bool Explorer::takes_part_in_livelocks(Step step) const {
    if (step.kind != Step::Kind::run) return step.kind == Step::Kind::flush;
    const ThreadInfo &info = threads_[step.thread];
    const bool old_value = info.fiber.request != nullptr && step.option != 0;
    return !info.options.may_wait_for_others && !old_value;
}

void Explorer::count_steps_without_end(Step step, unsigned &count) {
    if (operation_ended_) count = 0;
    if (step.kind != Step::Kind::run || threads_[step.thread].options.may_wait_for_others) return;
    if (options_.steps_without_end_max == 0 || ++count <= options_.steps_without_end_max) return;
    fail("no operation has ended in " + std::to_string(options_.steps_without_end_max) + " steps");
    found_by_depth_ = true;
}

// From the state at the path's end, a depth-first search of its own that follows only steps by which no operation ends:
// whatever it comes back to while it is there is a cycle of such steps. (As SPIN finds non-progress cycles. The search
// around it would miss some: the way by which it came to a state may hold the end of an operation, though another way
// does not.) `known`, kept from call to call: 1 on the way, 0 done with.
void Explorer::search_livelock(HashSet &known, Report &report) {
    constexpr std::uint64_t kOnTheWay = 1;
    constexpr std::uint64_t kDone = 0;
    std::vector<Hash> way{state_hash()};
    if (known.contains(way.back())) return;
    known.set(way.back(), kOnTheWay);
    const Frame outer = path_.back();
    const std::size_t bottom = path_.size();
    path_.back().kind = Step::Kind::run;
    path_.back().thread = path_.back().option = 0;
    while (!way.empty()) {
        Step step;
        if (!next_step(path_.back(), step)) {
            known.set(way.back(), kDone);
            way.pop_back();
            if (path_.size() > bottom) leave();
            continue;
        }
        if (!takes_part_in_livelocks(step)) continue;
        if (path_.size() >= options_.depth_max || capped(known.size(), report.transitions)) {
            report.complete = false;
            continue;
        }
        enter(step);
        ++report.transitions;
        const Hash hash = state_hash();
        std::uint64_t colour = kDone;
        const bool seen = known.get(hash, colour);
        if (failure_.empty() && !operation_ended_ && seen && colour == kOnTheWay) {
            fail(kLivelock);
            found_by_depth_ = true;
        }
        if (!failure_.empty()) {
            note_violation(report);
            return;
        }
        if (operation_ended_ || seen) {
            leave();
        } else {
            known.set(hash, kOnTheWay);
            way.push_back(hash);
        }
    }
    path_.back() = outer;
}

void Explorer::search_depth_first(Report &report) {
    HashSet visited;
    HashSet without_end;
    start_search(visited, report);
    const bool bounded = options_.preemptions_max >= 0;
    if (options_.find_livelocks && bounded) die("find_livelocks needs a search without a preemption bound");
    if (options_.find_livelocks && failure_.empty()) search_livelock(without_end, report);
    while (!path_.empty() && failure_.empty()) {
        Step step;
        if (!next_step(path_.back(), step)) {
            leave();
            continue;
        }
        const int last = path_.back().last_thread;
        const bool preempts =
            step.kind == Step::Kind::run && last >= 0 && last != step.thread && enabled(last) && !idle(last);
        if (bounded && preempts && path_.back().preemptions >= static_cast<unsigned>(options_.preemptions_max))
            continue;
        enter(step);
        ++report.transitions;
        if (preempts) ++path_.back().preemptions;
        count_steps_without_end(step, path_.back().steps_without_end);
        bool expand = true;
        if (failure_.empty()) {
            Hash hash = state_hash();
            // Under the bound a state is worth another look if it was reached with fewer preemptions, and who ran last
            // decides who may go on for nothing.
            if (bounded) hash.b += scramble(static_cast<std::uint64_t>(path_.back().last_thread + 2));
            const HashSet::Seen seen = visited.insert(hash, bounded ? path_.back().preemptions : 0);
            expand = seen != HashSet::Seen::before;
            if (seen == HashSet::Seen::never) {
                check_state();
                if (all_idle_but(-1)) ++report.quiet_states;
                if (options_.find_livelocks && failure_.empty()) search_livelock(without_end, report);
            }
        }
        if (report.clean()) note_violation(report);
        if (path_.size() > report.depth_max) report.depth_max = path_.size();
        if (expand && path_.size() >= options_.depth_max) {
            expand = false;
            report.complete = false;
        }
        if (!expand) leave();
        if (capped(visited.size(), report.transitions)) {
            report.complete = false;
            break;
        }
    }
    end_search(visited, report);
}

// Layer by layer. A layer is the list of its states' paths, all of one length, in the order in which they were found:
// so neighbours share most of their path, and to get from one to the next is to undo a little and to take a few steps.
void Explorer::search_breadth_first(std::uint64_t transitions_max, Report &report) {
    HashSet visited;
    start_search(visited, report);
    std::vector<Step> layer;
    std::size_t paths = 1;
    for (std::size_t depth = 0; paths > 0 && failure_.empty() && report.complete; ++depth) {
        std::vector<Step> next_layer;
        std::size_t next_paths = 0;
        for (std::size_t path = 0; path < paths && failure_.empty() && report.complete; ++path) {
            const Step *const steps = layer.data() + path * depth;
            std::size_t common = 0;
            while (common < depth && common + 1 < path_.size() && path_[common + 1].taken == steps[common]) ++common;
            while (path_.size() > common + 1) leave();
            while (path_.size() < depth + 1) enter(steps[path_.size() - 1]);
            Frame cursor;
            Step step;
            while (failure_.empty() && next_step(cursor, step)) {
                enter(step);
                ++report.transitions;
                bool fresh = false;
                if (failure_.empty()) {
                    fresh = visited.insert(state_hash(), 0) == HashSet::Seen::never;
                    if (fresh) check_state();
                    if (fresh && all_idle_but(-1)) ++report.quiet_states;
                }
                note_violation(report);
                if (fresh) {
                    next_layer.insert(next_layer.end(), steps, steps + depth);
                    next_layer.push_back(step);
                    ++next_paths;
                }
                leave();
            }
            if (capped(visited.size(), report.transitions) || report.transitions >= transitions_max)
                report.complete = false;
        }
        layer.swap(next_layer);
        paths = next_paths;
        report.depth_max = depth + 1;
    }
    end_search(visited, report);
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
    Report report;
    if (options_.search == SearchOrder::depth_first)
        search_depth_first(report);
    else
        search_breadth_first(UINT64_MAX, report);
    if (options_.print) {
        std::printf("[%s] %" PRIu64 " states, %" PRIu64 " transitions, %" PRIu64 " quiet states, depth %" PRIu64
                    ", %.1f s (%.2f M transitions/s) %s%s: %s\n",
                    name_.c_str(), report.states, report.transitions, report.quiet_states, report.depth_max,
                    report.seconds, static_cast<double>(report.transitions) / (report.seconds + 1e-9) / 1e6,
                    report.complete ? "COMPLETE" : (report.clean() ? "CAPPED" : "STOPPED"),
                    report.histories_cut ? ", histories cut" : "",
                    report.clean() ? "no violation" : report.violation.c_str());
        std::fflush(stdout);
    }
    if (report.clean()) return report;
    // NUMACRE_MODEL_SHORTEN=0: for those who only ask whether there is a violation (tests/mutation).
    const char *const shorten = std::getenv("NUMACRE_MODEL_SHORTEN");
    const bool want_shortest = shorten == nullptr || shorten[0] != '0';
    if (options_.search == SearchOrder::depth_first && !found_by_depth_ && want_shortest) {
        Report shortest;
        search_breadth_first(options_.shorten_transitions_max, shortest);
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

Report Explorer::replay(const Schedule &schedule) {
    begin();
    solo_known_ = std::make_unique<HashSet>();
    failure_.clear();
    trace_.clear();
    Report report;
    unsigned steps_without_end = 0;
    std::vector<Hash> since_an_end{state_hash()};
    check_state();
    for (const Step step : schedule) {
        if (!failure_.empty()) break;
        ++report.transitions;
        std::string head = "  " + std::to_string(report.transitions);
        head.resize(7, ' ');
        if (step.kind == Step::Kind::kill) {
            trace_ += head + "process " + std::to_string(step.thread) + " dies\n";
        } else if (step.kind == Step::Kind::flush) {
            trace_ += head + (step.thread < threads_.size() ? threads_[step.thread].options.name : "?") +
                      "'s oldest store becomes visible\n";
        } else {
            const std::string name = step.thread < threads_.size() ? threads_[step.thread].options.name : "?";
            const bool at_choice = step.thread < threads_.size() && threads_[step.thread].fiber.options > 1;
            trace_ += head + name + (at_choice ? " chooses " + std::to_string(step.option) : "") + "\n";
        }
        if (!possible(step)) {
            fail("replay: step " + std::to_string(report.transitions) + " of the schedule is not possible here");
            break;
        }
        const bool takes_part = takes_part_in_livelocks(step);
        tracing_ = true;
        take(step);
        tracing_ = false;
        report.schedule.push_back(step);
        count_steps_without_end(step, steps_without_end);
        if (options_.find_livelocks) {
            const Hash now = state_hash();
            if (operation_ended_ || !takes_part) since_an_end.clear();
            for (const Hash passed : since_an_end)
                if (passed.a == now.a && passed.b == now.b) fail(kLivelock);
            since_an_end.push_back(now);
        }
        if (failure_.empty()) check_state();
    }
    if (!failure_.empty()) trace_ += "   *** " + failure_ + "\n";
    report.violation = failure_;
    report.trace = trace_;
    undo(root_);
    if (options_.print) {
        std::printf("[%s] replay of %" PRIu64 " steps\n%s", name_.c_str(), report.transitions, trace_.c_str());
        std::fflush(stdout);
    }
    return report;
}

}  // namespace numacre::model
