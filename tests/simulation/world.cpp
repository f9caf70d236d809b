// A machine with a pool, client processes, a daemon, and what must hold: see README.md.
#include <cstdarg>
#include <deque>
#include <memory>

#include <sys/mman.h>

#include "client.hpp"
#include "plan.hpp"
#include "scheduler.hpp"

namespace numacre::simulation {
namespace {

constexpr int kDaemon = 0;  // Fiber::process; clients are the numbers of their instances
constexpr std::int32_t kFree = 0;
constexpr std::int32_t kOffline = -1;
constexpr unsigned kBulkMax = 40;

// What a word says, without a step.
template <class Word>
std::uint64_t peek(const Word &word) {
    return *reinterpret_cast<const std::uint64_t *>(&word);
}

struct Instance;

// A published block, for as long as anybody may know its reference.
struct Token {
    enum class State : std::uint8_t { live, taken, freed };
    std::uint64_t ref = 0;
    std::uint32_t numa_node = 0;
    Block block{};
    Instance *giver = nullptr;
    Instance *taker = nullptr;
    // Calls of the giver's threads that name the block by its address: what the taker does with the block must wait for
    // them, or the address might be another block's (README.md).
    unsigned giver_calls = 0;
    unsigned taker_calls = 0;
    bool withdrawn = false;
    State state = State::live;
};

struct Held {
    void *address = nullptr;
    std::uint32_t numa_node = 0;
    Block block{};
    Token *token = nullptr;  // by which it came; or by which it goes
};

struct Client;

// One life of a process.
struct Instance {
    int number = 0;  // 1, 2, ...: of the shadow
    unsigned seat = 0;
    std::uint16_t slot = 0;
    numacre_pool *pool = nullptr;
    std::vector<Client *> clients;
    std::vector<Held> shared;    // any thread's
    unsigned threads_freed = 0;  // that have given back all that was theirs
    bool alive = true;
    bool recovered = false;
    unsigned thread_count = 0;
};

// A thread.
struct Client {
    Instance *instance = nullptr;
    unsigned number = 0;
    int fiber = -1;
    Random random;
    std::vector<Held> held;
    std::uint64_t held_frames = 0;
    Token *taking = nullptr;
    Token *giving = nullptr;
    // The allocation that it is in: has there been a free block of its order at every moment so far, and which?
    struct Wish {
        bool active = false;
        bool always = false;
        int numa_node = -1;  // the only one that would do; -1: any
        Order order{};
        unsigned witness_node = 0;
        Block witness{};
    } wish;
    unsigned rounds_done = 0;
    void *blocks[kBulkMax] = {};
    bool ended = false;
};

enum class ChunkState : std::uint8_t { online, closing, offline, opening };

class Machine final : public World {
public:
    Machine(const Plan &plan, bool trace)
        : plan_(plan), trace_(trace), scheduler_(*this, plan.schedule), daemon_random_(plan.seed, 11) {}
    ~Machine() override {
        for (Instance &instance : instances_)
            if (instance.pool != nullptr) client::delete_choices(instance.pool);
        munmap(memory_, memory_bytes_);
    }

    Result run() {
        lay_out();
        for (unsigned seat = 0; seat < plan_.processes; ++seat) start_process(seat);
        start_daemon(false);
        scheduler_.run();
        Result result;
        result.steps = door.steps;
        if (scheduler_.cut_short() && failure_.empty()) {
            std::string states;
            for (const Fiber &fiber : scheduler_.fibers())
                states +=
                    " " + std::to_string(static_cast<int>(fiber.state)) + "@" + std::to_string(fiber.paused_until);
            record("somebody never ends:" + states);
        }
        if (failure_.empty()) check_at_end();
        for (Instance &instance : instances_) result.deaths += !instance.alive;
        result.deaths += daemon_deaths_;
        for (Node &view : views_) result.hand_offs += fold_counters(view, pool_.thread_slots).hand_offs;
        if (trace_)
            for (const Client &client : clients_)
                std::printf("process %d thread %u: %zu held\n", client.instance->number, client.number,
                            client.held.size());
        result.failure = failure_;
        result.operations = operations_;
        result.refusals = refusals_;
        return result;
    }

    // --- World
    // --------------------------------------------------------------------------------------------------------

    bool on_idle() override {
        if (!failure_.empty()) return false;
        if (scheduler_.resume_earliest_paused()) return true;
        check_wake_ups();
        if (!failure_.empty()) return false;
        bool client_parked = false, sleeping = false, all_ended = true;
        for (const Fiber &fiber : scheduler_.fibers()) {
            if (fiber.process != kDaemon && fiber.state == FiberState::parked) client_parked = true;
            if (fiber.process != kDaemon && fiber.state != FiberState::ended && fiber.state != FiberState::dead)
                all_ended = false;
            if (fiber.state == FiberState::sleeping) sleeping = true;
        }
        if (sleeping) return scheduler_.wake_earliest();
        if (all_ended) {
            if (daemon_ended_) return false;
            scheduler_.unpark_all();
            return true;
        }
        if (!client_parked) return false;  // nobody is left but the daemon, which has ended: a mistake of ours
        check_when_quiet();
        if (!failure_.empty()) return false;
        ++round_;
        jobs_left_ = plan_.jobs;
        scheduler_.unpark_all();
        return true;
    }

    std::uint64_t on_fault_due(std::uint64_t step) override {
        while (next_death_ < plan_.deaths.size() && plan_.deaths[next_death_] <= step) {
            ++next_death_;
            std::vector<Instance *> living;
            for (Instance &instance : instances_)
                if (instance.alive && !has_ended(instance)) living.push_back(&instance);
            if (!living.empty()) die(*living[scheduler_.random().below(living.size())]);
        }
        while (next_daemon_death_ < plan_.daemon_deaths.size() && plan_.daemon_deaths[next_daemon_death_] <= step) {
            ++next_daemon_death_;
            if (!daemon_ended_) daemon_dies();
        }
        std::uint64_t next = ~std::uint64_t{0};
        if (next_death_ < plan_.deaths.size()) next = plan_.deaths[next_death_];
        if (next_daemon_death_ < plan_.daemon_deaths.size())
            next = std::min(next, plan_.daemon_deaths[next_daemon_death_]);
        return next;
    }

    bool on_point_fault(Random &random) override {
        const int process = scheduler_.fibers()[static_cast<std::size_t>(scheduler_.current())].process;
        if (point_deaths_ >= plan_.point_deaths || !random.one_in(3)) return false;
        ++point_deaths_;
        if (process == kDaemon)
            daemon_dies();
        else
            die(instances_[static_cast<std::size_t>(process - 1)]);
        return true;
    }

    void on_look(const void *word) override {
        const int fiber = scheduler_.current();
        const auto at = static_cast<const char *>(word);
        for (Client &client : clients_) {
            if (client.fiber != fiber || !client.wish.active || client.wish.order.value != geometry_.largest_order ||
                looks_left_ == 0)
                continue;
            for (unsigned node = 0; node < plan_.numa_nodes; ++node) {
                const auto *const begin = reinterpret_cast<const char *>(views_[node].leaf);
                if (at < begin || at >= begin + views_[node].word_count[0] * 8) continue;
                const std::uint64_t chunk =
                    static_cast<std::uint64_t>(at - begin) / 8 * kLeafFrames >> geometry_.largest_order;
                const auto is_taken = [this, node, chunk] {
                    for (std::uint64_t frame = chunk << geometry_.largest_order;
                         frame < (chunk + 1) << geometry_.largest_order; frame += kLeafFrames)
                        if (peek(views_[node].leaf[frame / kLeafFrames]) != 0) return true;
                    return false;
                };
                --looks_left_;
                const std::function<bool()> holds = is_taken;
                scheduler_.let_others_until(holds, 3000);
            }
        }
    }

    void on_change(const void *word, std::uint64_t before, std::uint64_t after) override {
        const auto offset = static_cast<std::size_t>(static_cast<const char *>(word) - door.watched_begin);
        const std::size_t numa_node = offset / node_bytes_;
        const Node &view = views_[numa_node];
        Stamps &stamps = stamps_[numa_node];
        const std::uint64_t now = steps_done();
        const auto *const at = static_cast<const char *>(word);
        const auto place_in = [at](const auto *words, std::uint64_t count) {
            const auto *const begin = reinterpret_cast<const char *>(words);
            return at >= begin && at < begin + count * sizeof(std::uint64_t) ? (at - begin) / 8 : -1;
        };
        if (const auto leaf = place_in(view.leaf, view.word_count[0]); leaf >= 0) {
            for (std::uint64_t changed = before ^ after; changed != 0; changed &= changed - 1) {
                const std::size_t frame =
                    static_cast<std::size_t>(leaf) * kLeafFrames + static_cast<unsigned>(std::countr_zero(changed));
                stamps.frame[frame] = now;
                if ((after >> (frame % kLeafFrames) & 1) != 0)
                    note_taken(static_cast<unsigned>(numa_node), {FrameIndex{frame}, Order{0}});
                if ((after >> (frame % kLeafFrames) & 1) != 0) stamps.claimed[0][frame] = now;
            }
            return;
        }
        for (unsigned layer = 1; layer <= view.top_layer; ++layer) {
            const auto upper = place_in(view.upper[layer], view.word_count[layer]);
            if (upper < 0) continue;
            for (unsigned child = 0; child < kUpperFanOut; ++child) {
                const UpperWord old{before}, now_it_is{after};
                const std::size_t at_child = static_cast<std::size_t>(upper) * kUpperFanOut + child;
                if (old.allocated_here(child) != now_it_is.allocated_here(child) ||
                    old.draining(child) != now_it_is.draining(child)) {
                    stamps.child[layer][at_child] = now;
                    if (now_it_is.closed_to_allocation(child))
                        note_taken(static_cast<unsigned>(numa_node),
                                   {FrameIndex{at_child << word_order(layer - 1)}, Order{word_order(layer - 1)}});
                }
                if (now_it_is.allocated_here(child) && !old.allocated_here(child))
                    stamps.claimed[layer][at_child] = now;
            }
            return;
        }
    }

    // An intent that ends: what it named may have been free all the time for the tree, and was not settled.
    void on_store(const void *word, std::uint64_t before, std::uint64_t after) override {
        const auto offset = static_cast<std::size_t>(static_cast<const char *>(word) - door.slots_begin);
        if (offset % sizeof(ThreadSlot<Env>) != 0) return;
        fiber_of_slot_[offset / sizeof(ThreadSlot<Env>)] = scheduler_.current();
        if (const Intent intent{after}; intent.active()) note_taken(intent.numa_node().value, intent.block());
        if (const Intent intent{before}; intent.active()) {
            ended_intents_[intents_ended_ % kIntentsKept] = {steps_done(), intent};
            ++intents_ended_;
        }
    }

private:
    static constexpr std::size_t kIntentsKept = 16384;
    struct EndedIntent {
        std::uint64_t step;
        Intent intent;
    };
    struct Stamps {  // of the last change, by step
        std::vector<std::uint64_t> frame;
        std::array<std::vector<std::uint64_t>, kMaxUpperLayers + 1> child;
        std::array<std::vector<std::uint64_t>, kMaxUpperLayers + 1> claimed;
    };

    // --- failing
    // ------------------------------------------------------------------------------------------------------

    void record(const std::string &what) {
        if (failure_.empty()) failure_ = "step " + std::to_string(steps_done()) + ": " + what;
    }
    // Does not return to a fiber.
    [[gnu::format(printf, 2, 3)]] void fail(const char *what, ...) {
        char text[400];
        va_list arguments;
        va_start(arguments, what);
        std::vsnprintf(text, sizeof text, what, arguments);
        va_end(arguments);
        record(text);
        scheduler_.stop();
    }
    [[gnu::format(printf, 2, 3)]] void say(const char *what, ...) {
        if (!trace_) return;
        const int fiber = scheduler_.current();
        std::printf("%9llu  ", static_cast<unsigned long long>(steps_done()));
        if (fiber < 0)
            std::printf("%-12s", "-");
        else if (const int process = scheduler_.fibers()[static_cast<std::size_t>(fiber)].process; process == kDaemon)
            std::printf("%-12s", "daemon");
        else
            std::printf("p%d fiber %-4d", process, fiber);
        va_list arguments;
        va_start(arguments, what);
        std::vprintf(what, arguments);
        va_end(arguments);
        std::printf("\n");
        std::fflush(stdout);
    }

    // --- set-up
    // -------------------------------------------------------------------------------------------------------

    void lay_out() {
        geometry_ = Geometry{plan_.frame_shift, plan_.largest_order, plan_.chunks << plan_.largest_order};
        process_slots_ = plan_.processes + 1;
        thread_slots_ = 2;
        for (unsigned seat = 0; seat < plan_.processes; ++seat) thread_slots_ += plan_.threads[seat];
        const std::size_t pool_bytes = PoolLayout<Env>::of(process_slots_, thread_slots_).region_bytes;
        node_bytes_ = NodeLayout<Env>::of(geometry_, thread_slots_).region_bytes;
        memory_bytes_ = pool_bytes + node_bytes_ * plan_.numa_nodes;
        memory_ =
            mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory_ == MAP_FAILED) std::abort();
        format_pool_region<Env>(memory_, "simulated", 1, geometry_, plan_.numa_nodes, process_slots_, thread_slots_);
        pool_ = Pool::at(memory_, process_slots_, thread_slots_);
        char *const nodes = static_cast<char *>(memory_) + pool_bytes;
        stamps_.resize(plan_.numa_nodes);
        views_.reserve(plan_.numa_nodes);
        usage_.resize(process_slots_);
        fiber_of_slot_.resize(thread_slots_, -1);
        for (unsigned node = 0; node < plan_.numa_nodes; ++node) {
            const NumaNode number{static_cast<std::uint8_t>(node)};
            format_node_region<Env>(nodes + node * node_bytes_, geometry_, number, 1, thread_slots_);
            views_.push_back(Node::at(nodes + node * node_bytes_, geometry_, number, thread_slots_, plan_.numa_nodes));
            const Node &view = views_.back();
            stamps_[node].frame.resize(view.word_count[0] * kLeafFrames);
            stamps_[node].claimed[0].resize(view.word_count[0] * kLeafFrames);
            for (unsigned layer = 1; layer <= view.top_layer; ++layer) {
                stamps_[node].child[layer].resize(view.word_count[layer] * kUpperFanOut);
                stamps_[node].claimed[layer].resize(view.word_count[layer] * kUpperFanOut);
            }
            shadow_.emplace_back(geometry_.frame_count, kFree);
            freed_at_.emplace_back(geometry_.frame_count, 0);
            chunk_.emplace_back(geometry_.chunk_count(), ChunkState::online);
            drained_at_.emplace_back(geometry_.chunk_count(), 0);
            wants_drain_.emplace_back(geometry_.chunk_count(), false);
            Chunks<Env> chunks{view, pool_};
            for (std::uint64_t chunk = 0; chunk < geometry_.chunk_count(); ++chunk) {
                if (daemon_random_.percent(plan_.offline_percent)) {
                    set_offline(node, chunk);
                    continue;
                }
                chunks.bring_online(chunk);
            }
        }
        door.slots_begin = reinterpret_cast<const char *>(pool_.threads);
        door.slots_end = reinterpret_cast<const char *>(pool_.threads + thread_slots_);
        door.watched_begin = nodes;
        door.watched_end = nodes + plan_.numa_nodes * node_bytes_;
        pool_.header->accounting.store((plan_.counts ? Accounting::kCount : 0) |
                                       accounting_of(static_cast<Fit>(plan_.fit)));
        pool_.header->seats.store(process_slots_);
        jobs_left_ = plan_.jobs;
        forget_clients();
    }

    void start_process(unsigned seat) {
        Instance &instance = instances_.emplace_back();
        instance.number = static_cast<int>(instances_.size());
        instance.seat = seat;
        instance.slot = static_cast<std::uint16_t>(seat + 1);
        auto &record = pool_.processes[instance.slot];
        record.generation.store(record.generation.load() + 1);
        if (plan_.counts) record.held.store(HeldFrames::of(0).bits());
        record.on_the_way.store(OnTheWay{record.on_the_way.load()}.forgotten().bits());
        record.state.store(static_cast<std::uint64_t>(ProcessState::active));

        numacre_pool *const pool = client::new_handle();
        instance.pool = pool;
        pool->process = ProcessSlot{instance.slot};
        pool->client_id = static_cast<std::uint32_t>(instance.number);
        pool->numa_nodes = plan_.numa_nodes;
        pool->geometry = geometry_;
        pool->reference_format = ReferenceFormat{geometry_.frame_count, plan_.numa_nodes};
        pool->view = pool_;
        pool->checks_frees = plan_.checks_frees;
        static constinit client::Env::Atomic<std::uint64_t> no_limit{0};
        pool->thread_limit = &no_limit;
        pool->data_bytes = geometry_.capacity_bytes();
        pool->span_shift = static_cast<std::uint32_t>(std::bit_width(pool->data_bytes - 1)) + 1;
        pool->span_bytes = std::uint64_t{plan_.numa_nodes} << pool->span_shift;
        // Nobody touches the frames; each process sees them elsewhere.
        pool->span = reinterpret_cast<std::byte *>(std::uintptr_t{1} << 40) +
                     (static_cast<std::uintptr_t>(instance.number) << 41);
        for (unsigned node = 0; node < plan_.numa_nodes; ++node) {
            pool->nodes[node].data = pool->span + (std::uint64_t{node} << pool->span_shift);
            new (pool->nodes[node].buddy_storage) Buddy<Env>(views_[node], pool_);
            pool->dense_node_of[node] = static_cast<std::uint8_t>(node);
            // By distance on a line.
            unsigned rank = 0;
            for (unsigned distance = 0; distance < plan_.numa_nodes; ++distance) {
                if (node >= distance) pool->nearest[node][rank++] = static_cast<std::uint8_t>(node - distance);
                if (distance != 0 && node + distance < plan_.numa_nodes)
                    pool->nearest[node][rank++] = static_cast<std::uint8_t>(node + distance);
            }
        }
        pool->pool_policy = {PolicyMode::local, 0};
        if (client::make_choices(pool) != 0 || !client::register_handle(pool)) std::abort();
        instance.thread_count = plan_.threads[seat];
        for (unsigned thread = 0; thread < instance.thread_count; ++thread) {
            Client &client = clients_.emplace_back();
            client.instance = &instance;
            client.number = thread;
            client.random = Random(plan_.seed, 1000 + static_cast<std::uint64_t>(instance.number) * 16 + thread);
            client.rounds_done = round_;
            instance.clients.push_back(&client);
            client.fiber = scheduler_.spawn(instance.number, [this, &client] { live(client); });
        }
    }

    void start_daemon(bool again) {
        daemon_fiber_ = scheduler_.spawn(kDaemon, [this, again] { serve(again); });
    }

    // --- death
    // --------------------------------------------------------------------------------------------------------

    static bool has_ended(const Instance &instance) {
        for (const Client *client : instance.clients)
            if (!client->ended) return false;
        return true;
    }

    void die(Instance &instance) {
        for (Client *const client : instance.clients) end_wish(*client);
        say("process %d dies", instance.number);
        instance.alive = false;
        scheduler_.kill(instance.number);
        for (Client *const client : instance.clients) {
            if (Token *const token = client->taking) {
                // In the middle of a take: did it come to be the owner?
                --token->taker_calls;
                const IndexEntry entry{peek(views_[token->numa_node].index_entry(token->block))};
                if (token->state == Token::State::live && entry.is_owned() && entry.owner().value == instance.slot &&
                    entry.order() == token->block.order &&
                    entry.generation() == next_generation(generation_of(*token))) {
                    token->state = Token::State::taken;
                    token->taker = &instance;
                    for (std::uint64_t frame = first(token->block); frame < end(token->block); ++frame)
                        shadow_[token->numa_node][frame] = instance.number;
                }
            }
        }
        for (Token &token : tokens_)
            if (token.giver == &instance) token.giver_calls = 0;
        unpark_daemon();
    }

    void daemon_dies() {
        say("the daemon dies");
        ++daemon_deaths_;
        scheduler_.kill(kDaemon);
        start_daemon(true);
        Fiber &fiber = scheduler_.fibers()[static_cast<std::size_t>(daemon_fiber_)];
        fiber.state = FiberState::paused;
        fiber.paused_until = steps_done() + scheduler_.random().scaled(5000);
    }

    void unpark_daemon() {
        Fiber &fiber = scheduler_.fibers()[static_cast<std::size_t>(daemon_fiber_)];
        if (fiber.state == FiberState::parked) fiber.state = FiberState::ready;
    }

    Instance *somebody_dead() {
        for (Instance &instance : instances_)
            if (!instance.alive && !instance.recovered) return &instance;
        return nullptr;
    }

    // --- the shadow
    // ---------------------------------------------------------------------------------------------------

    static std::uint64_t first(Block block) { return block.base.value; }
    static std::uint64_t end(Block block) { return block.base.value + block.order.frames(); }
    std::uint64_t chunk_of(Block block) const { return block.base.value >> geometry_.largest_order; }

    void set_offline(unsigned node, std::uint64_t chunk) {
        for (std::uint64_t frame = chunk << geometry_.largest_order; frame < (chunk + 1) << geometry_.largest_order;
             ++frame) {
            if (shadow_[node][frame] != kFree)
                return fail("chunk %llu of numa node %u goes offline over frame %llu of process %d",
                            static_cast<unsigned long long>(chunk), node, static_cast<unsigned long long>(frame),
                            shadow_[node][frame]);
            shadow_[node][frame] = kOffline;
        }
        chunk_[node][chunk] = ChunkState::offline;
    }
    void set_online(unsigned node, std::uint64_t chunk) {
        for (std::uint64_t frame = chunk << geometry_.largest_order; frame < (chunk + 1) << geometry_.largest_order;
             ++frame)
            if (shadow_[node][frame] == kOffline) shadow_[node][frame] = kFree;
    }

    // What a call has returned is the thread's from here on. began: the call's first step. cached: it may come from a
    // thread's cache.
    Held acquire(Client &client, void *address, Order order, std::uint64_t began, bool cached) {
        const numacre_pool &pool = *client.instance->pool;
        const auto offset = static_cast<std::uint64_t>(static_cast<std::byte *>(address) - pool.span);
        Held held{address, static_cast<std::uint32_t>(offset >> pool.span_shift), {}, nullptr};
        const std::uint64_t in_node = offset & ((std::uint64_t{1} << pool.span_shift) - 1);
        held.block = {FrameIndex{in_node >> geometry_.frame_shift}, order};
        if (offset >= pool.span_bytes || (in_node & (geometry_.frame_bytes() - 1)) != 0 ||
            end(held.block) > geometry_.frame_count || (first(held.block) & (order.frames() - 1)) != 0) {
            fail(
                "process %d gets a block of order %u at frame %llu of numa node %u, which does not exist (%llu frames)",
                client.instance->number, order.value, static_cast<unsigned long long>(first(held.block)),
                held.numa_node, static_cast<unsigned long long>(geometry_.frame_count));
        }
        own(client, held);
        const std::uint64_t drained = drained_at_[held.numa_node][chunk_of(held.block)];
        if (drained != 0 && !cached) {
            const unsigned layer = layer_of(order);
            const std::size_t place = layer == 0 ? first(held.block) : first(held.block) >> word_order(layer - 1);
            if (stamps_[held.numa_node].claimed[layer][place] > drained)
                fail(
                    "process %d gets a block of order %u at frame %llu of numa node %u, claimed at step %llu: its "
                    "chunk has been "
                    "draining since step %llu",
                    client.instance->number, order.value, static_cast<unsigned long long>(first(held.block)),
                    held.numa_node, static_cast<unsigned long long>(stamps_[held.numa_node].claimed[layer][place]),
                    static_cast<unsigned long long>(drained));
            if (freed_at_[held.numa_node][first(held.block)] > drained)
                fail(
                    "process %d is handed a block of order %u at frame %llu of numa node %u, released at step %llu: "
                    "its chunk has been "
                    "draining since step %llu (the call began at %llu)",
                    client.instance->number, order.value, static_cast<unsigned long long>(first(held.block)),
                    held.numa_node, static_cast<unsigned long long>(freed_at_[held.numa_node][first(held.block)]),
                    static_cast<unsigned long long>(drained), static_cast<unsigned long long>(began));
        }
        return held;
    }
    void own(Client &client, const Held &held) {
        for (std::uint64_t frame = first(held.block); frame < end(held.block); ++frame) {
            std::int32_t &owner = shadow_[held.numa_node][frame];
            if (owner != kFree)
                fail("process %d gets a block of order %u at frame %llu of numa node %u; frame %llu %s %d",
                     client.instance->number, held.block.order.value,
                     static_cast<unsigned long long>(first(held.block)), held.numa_node,
                     static_cast<unsigned long long>(frame), owner == kOffline ? "is offline" : "is owned by process",
                     owner);
            owner = client.instance->number;
        }
        client.held_frames += held.block.order.frames();
        frames_held_ += held.block.order.frames();
    }
    // A call that gives the block back begins: from now on it may be anybody's.
    void disown(Client &client, const Held &held) {
        for (std::uint64_t frame = first(held.block); frame < end(held.block); ++frame) {
            if (shadow_[held.numa_node][frame] != client.instance->number)
                fail("process %d holds a block of order %u at frame %llu of numa node %u no more: frame %llu is %d's",
                     client.instance->number, held.block.order.value,
                     static_cast<unsigned long long>(first(held.block)), held.numa_node,
                     static_cast<unsigned long long>(frame), shadow_[held.numa_node][frame]);
            shadow_[held.numa_node][frame] = kFree;
            freed_at_[held.numa_node][frame] = steps_done();
        }
        frames_held_ -= held.block.order.frames();
    }

    // --- is there memory?
    // ---------------------------------------------------------------------------------------------

    // A block that is free, and of which nothing has changed since `since`. All of it read without a step.
    bool has_free_block(unsigned node, Order order, std::uint64_t since, Block &found) const {
        const Node &view = views_[node];
        const Stamps &stamps = stamps_[node];
        const auto children_are_free = [&](unsigned level, std::uint64_t begin, std::uint64_t behind) {
            for (std::uint64_t child = begin; child < behind && child < view.word_count[level] * kUpperFanOut; ++child)
                if (UpperWord{peek(view.upper[level][child / kUpperFanOut])}.closed_to_allocation(child %
                                                                                                  kUpperFanOut) ||
                    stamps.child[level][child] >= since)
                    return false;
            return true;
        };
        for (std::uint64_t base = 0; base + order.frames() <= geometry_.frame_count; base += order.frames()) {
            found = {FrameIndex{base}, order};
            bool free = true;
            for (std::uint64_t frame = base; free && frame < base + order.frames(); ++frame)
                free = (peek(view.leaf[frame / kLeafFrames]) >> frame % kLeafFrames & 1) == 0 &&
                       stamps.frame[frame] < since;
            for (unsigned level = 1; free && level <= view.top_layer; ++level) {
                const unsigned child_order = word_order(level - 1);
                const std::uint64_t begin = base >> child_order;
                free = children_are_free(level, begin, std::max(begin + 1, (base + order.frames()) >> child_order));
            }
            if (free && (since == ~std::uint64_t{0} || is_settled(node, found, since))) return true;
        }
        return false;
    }

    // In no operation's hands since `since`. What is on its way into the tree or out of it is free or not as one likes.
    bool is_settled(unsigned node, Block block, std::uint64_t since) const {
        for (std::uint32_t thread = 0; thread < thread_slots_; ++thread) {
            const Intent intent{peek(pool_.threads[thread].intent)};
            if (intent.active() && intent.numa_node().value == node && overlaps(intent.block(), block)) return false;
        }
        for (std::size_t back = 1; back <= kIntentsKept && back <= intents_ended_; ++back) {
            const EndedIntent &ended = ended_intents_[(intents_ended_ - back) % kIntentsKept];
            if (ended.step < since) return true;
            if (ended.intent.numa_node().value == node && overlaps(ended.intent.block(), block)) return false;
        }
        return intents_ended_ <= kIntentsKept;  // of a call that long nothing is known
    }

    // Free, and in nobody else's hands, at this moment.
    bool is_free_now(const Client &client, unsigned node, Block block) const {
        const Node &view = views_[node];
        for (std::uint64_t frame = first(block); frame < end(block);) {
            const auto bits = static_cast<unsigned>(std::min<std::uint64_t>(end(block) - frame, kLeafFrames));
            const std::uint64_t mask =
                leaf::mask(static_cast<unsigned>(frame % kLeafFrames), static_cast<unsigned>(std::bit_width(bits) - 1));
            if ((peek(view.leaf[frame / kLeafFrames]) & mask) != 0) return false;
            frame += bits;
        }
        for (unsigned level = 1; level <= view.top_layer; ++level) {
            const unsigned child_order = word_order(level - 1);
            const std::uint64_t begin = first(block) >> child_order;
            for (std::uint64_t child = begin; child < std::max(begin + 1, end(block) >> child_order); ++child)
                if (UpperWord{peek(view.upper[level][child / kUpperFanOut])}.closed_to_allocation(child % kUpperFanOut))
                    return false;
        }
        for (std::uint32_t thread = 0; thread < thread_slots_; ++thread) {
            const Intent intent{peek(pool_.threads[thread].intent)};
            if (intent.active() && fiber_of_slot_[thread] != client.fiber && intent.numa_node().value == node &&
                overlaps(intent.block(), block))
                return false;
        }
        return true;
    }
    bool find_witness(Client &client) {
        Client::Wish &wish = client.wish;
        for (unsigned node = 0; node < plan_.numa_nodes; ++node) {
            if (wish.numa_node >= 0 && static_cast<unsigned>(wish.numa_node) != node) continue;
            for (std::uint64_t base = 0; base + wish.order.frames() <= geometry_.frame_count;
                 base += wish.order.frames()) {
                const Block block{FrameIndex{base}, wish.order};
                if (!is_free_now(client, node, block)) continue;
                wish.witness_node = node;
                wish.witness = block;
                return true;
            }
        }
        return false;
    }
    void begin_wish(Client &client, int node, Order order) {
        // Where several numa nodes would do the search looks at one after the other, and proves nothing of all
        // together.
        if (node < 0 && plan_.numa_nodes == 1) node = 0;
        client.wish = {node >= 0, true, node, order, 0, {}};
        client.wish.always = node >= 0 && find_witness(client);
        client.wish.active = client.wish.always;
        looks_left_ = client.random.below(15);  // below what shm/README.md gives up at
        wishes_ += client.wish.active;
    }
    void end_wish(Client &client) {
        wishes_ -= client.wish.active;
        client.wish.active = false;
    }
    void note_taken(unsigned node, Block block) {
        if (wishes_ == 0) return;
        for (Client &client : clients_) {
            Client::Wish &wish = client.wish;
            if (!wish.active || wish.witness_node != node || !overlaps(wish.witness, block)) continue;
            if (is_free_now(client, node, wish.witness) || find_witness(client)) continue;
            wish.always = false;
            end_wish(client);
        }
    }

    void check_refusal(const Client &client, int node, Order order, std::uint64_t began) {
        ++refusals_;
        if (client.wish.always && order.value > kLeafOrder)
            fail(
                "process %d is refused a block of order %u, in a call that began at step %llu; at every moment one was "
                "free, at last at frame "
                "%llu of numa node %u",
                client.instance->number, order.value, static_cast<unsigned long long>(began),
                static_cast<unsigned long long>(first(client.wish.witness)), client.wish.witness_node);
        Block found;
        for (unsigned other = 0; other < plan_.numa_nodes; ++other)
            if ((node < 0 || other == static_cast<unsigned>(node)) && has_free_block(other, order, began, found))
                fail(
                    "process %d is refused a block of order %u, in a call that began at step %llu; all the time one "
                    "was free at frame %llu of "
                    "numa node %u",
                    client.instance->number, order.value, static_cast<unsigned long long>(began),
                    static_cast<unsigned long long>(first(found)), other);
    }

    // The quota of the thread's process does not allow it a block of this order: another thread has used up the quota
    // since the wish. Whoever frees a block of the process gives it to the thread.
    bool is_forbidden(std::uint32_t thread, Order order) {
        if ((peek(pool_.header->accounting) & Accounting::kCount) == 0) return false;
        const ThreadOwner owner{peek(pool_.threads[thread].owner)};
        if (!owner.in_use()) return false;
        const auto &record = pool_.processes[owner.process().value];
        const std::uint64_t quota = peek(record.quota_frames);
        const std::uint64_t held = HeldFrames{peek(record.held)}.frames() + OnTheWay{peek(record.on_the_way)}.frames();
        return quota != 0 && held + order.frames() > quota;
    }

    // Nobody can go on: then nobody waits for what is free.
    void check_wake_ups() {
        if (somebody_dead() != nullptr || daemon_is_restarting_) return;
        for (std::uint32_t thread = 0; thread < thread_slots_; ++thread) {
            const WaitWord wish{peek(pool_.threads[thread].waiting)};
            if (!wish.is_waiting()) continue;
            if (is_forbidden(thread, wish.order())) continue;
            const std::uint64_t nodes = peek(pool_.threads[thread].nodes);
            Block found;
            for (unsigned node = 0; node < plan_.numa_nodes; ++node)
                if ((nodes >> node & 1) != 0 && has_free_block(node, wish.order(), ~std::uint64_t{0}, found))
                    return record("thread slot " + std::to_string(thread) + " sleeps for a block of order " +
                                  std::to_string(wish.order().value) + " that is free at frame " +
                                  std::to_string(first(found)) + " of numa node " + std::to_string(node) +
                                  ", and nobody is about to tell it");
        }
    }

    // --- quiet
    // --------------------------------------------------------------------------------------------------------

    struct Compare {
        Machine &machine;
        unsigned node;
        std::uint64_t owned_frames = 0, free_frames = 0, offline_frames = 0;
        std::array<std::int64_t, kMaxOrder + 1> live{};
        std::vector<std::uint64_t> by_slot;

        void owned(Block block, IndexEntry entry) {
            const std::uint32_t slot = entry.owner().value;
            if (entry.owner() == kDaemonProcess) return;  // seized
            if (slot >= by_slot.size())
                return machine.record("frame " + std::to_string(first(block)) + " is held by slot " +
                                      std::to_string(slot));
            by_slot[slot] += block.order.frames();
            std::int32_t wanted = kFree;
            if (!entry.is_cached()) {
                for (const Instance &instance : machine.instances_)
                    if (instance.slot == slot && instance.alive) wanted = instance.number;
                owned_frames += block.order.frames();
                ++live[block.order.value];
            }
            expect(block, wanted, entry.is_cached() ? "cached" : "owned", slot);
        }
        void free(Block block) {
            free_frames += block.order.frames();
            expect(block, kFree, "free", 0);
        }
        void taken(FrameIndex frame, std::uint64_t frames) {
            machine.record("at rest, " + std::to_string(frames) + " frames from " + std::to_string(frame.value) +
                           " on of numa node " + std::to_string(node) + " are taken by nobody");
        }
        void offline(Block block) {
            offline_frames += block.order.frames();
            expect(block, kOffline, "offline", 0);
        }
        void damaged(Block block) {
            machine.record("at rest, the entry of frame " + std::to_string(first(block)) + " is damaged");
        }
        void lost(Block block) {
            machine.record("at rest, the block at frame " + std::to_string(first(block)) + " has lost frames");
        }
        void expect(Block block, std::int32_t wanted, const char *state, std::uint32_t slot) {
            for (std::uint64_t frame = first(block); frame < end(block); ++frame)
                if (machine.shadow_[node][frame] != wanted)
                    return machine.record("at rest, the block of order " + std::to_string(block.order.value) +
                                          " at frame " + std::to_string(first(block)) + " of numa node " +
                                          std::to_string(node) + " is " + state + " (slot " + std::to_string(slot) +
                                          "), frame " + std::to_string(frame) + " should be " +
                                          std::to_string(machine.shadow_[node][frame]) + "'s");
        }
    };

    void check_when_quiet() {
        say("-- quiet --");
        std::vector<std::uint64_t> held(process_slots_, 0);
        const bool nobody_died = deaths() == 0;
        for (unsigned node = 0; node < plan_.numa_nodes && failure_.empty(); ++node) {
            Compare compare{*this, node, 0, 0, 0, {}, std::vector<std::uint64_t>(process_slots_, 0)};
            walk_all(views_[node], compare);
            std::uint64_t owned = 0;
            for (const std::int32_t owner : shadow_[node]) owned += owner > 0;
            if (owned != compare.owned_frames)
                record(std::to_string(owned) + " frames of numa node " + std::to_string(node) +
                       " have owners, the tree knows of " + std::to_string(compare.owned_frames));
            for (std::uint32_t slot = 0; slot < process_slots_; ++slot) held[slot] += compare.by_slot[slot];
            const CounterTotals totals = fold_counters(views_[node], thread_slots_);
            for (unsigned order = 0; nobody_died && order <= geometry_.largest_order; ++order)
                if (static_cast<std::int64_t>(totals.allocations[order] - totals.frees[order]) != compare.live[order])
                    record("counters of order " + std::to_string(order) + " on numa node " + std::to_string(node) +
                           " say " +
                           std::to_string(static_cast<std::int64_t>(totals.allocations[order] - totals.frees[order])) +
                           " blocks, there are " + std::to_string(compare.live[order]));
            if (const std::uint64_t words = Audit<Env>(pool_, views_[node]).run(); words != 0)
                record("at rest, the audit finds " + std::to_string(words) + " impossible words");
        }
        for (std::uint32_t slot = 1; plan_.counts && nobody_died && slot < process_slots_; ++slot)
            if (const HeldFrames counted{peek(pool_.processes[slot].held)};
                counted.is_counted() && counted.frames() != held[slot])
                record("process slot " + std::to_string(slot) + " counts " + std::to_string(counted.frames()) +
                       " frames and holds " + std::to_string(held[slot]));
        for (std::uint32_t slot = 1; plan_.counts && nobody_died && slot < process_slots_; ++slot)
            if (const OnTheWay coming{peek(pool_.processes[slot].on_the_way)}; coming.frames() != 0)
                record("at rest, " + std::to_string(coming.frames()) + " frames are on the way to process slot " +
                       std::to_string(slot));
        check_slots(false);
    }

    void check_slots(bool ended) {
        if (const std::uint64_t found = count_impossible_thread_slots<Env>(pool_, views_); found != 0)
            record("at rest, " + std::to_string(found) + " thread slots are impossible");
        for (std::uint32_t thread = 0; thread < thread_slots_; ++thread) {
            const auto &slot = pool_.threads[thread];
            const std::string where = "at rest, thread slot " + std::to_string(thread);
            if (Intent{peek(slot.intent)}.active()) record(where + " has an intent");
            if (HintWork{peek(slot.hint_work)}.active()) record(where + " changes hints");
            if (peek(slot.waiting) != 0) record(where + " has a word of waiting");
            if (ended && thread != 0 && peek(slot.owner) != 0) record(where + " is taken");
        }
    }

    std::uint64_t deaths() const {
        std::uint64_t all = daemon_deaths_;
        for (const Instance &instance : instances_) all += !instance.alive;
        return all;
    }

    void check_at_end() {
        check_when_quiet();
        check_slots(true);
        for (unsigned node = 0; node < plan_.numa_nodes && failure_.empty(); ++node) {
            NodeSnapshot snapshot;
            scan_node(views_[node], snapshot, std::span<OwnerUsage>{});
            if (snapshot.free_frames != geometry_.frame_count)
                record("at the end " + std::to_string(snapshot.free_frames) + " of " +
                       std::to_string(geometry_.frame_count) + " frames of numa node " + std::to_string(node) +
                       " are free");
            Buddy<Env> buddy{views_[node], pool_};
            for (std::uint64_t chunk = 0; chunk < geometry_.chunk_count() && failure_.empty(); ++chunk) {
                Block block;
                if (buddy.allocate({kDaemonThread, kDaemonProcess}, geometry_.largest(), {}, block) != Errc::ok)
                    record("at the end only " + std::to_string(chunk) + " of " +
                           std::to_string(geometry_.chunk_count()) + " largest blocks of numa node " +
                           std::to_string(node) + " can be found");
            }
        }
    }

    // --- clients
    // ------------------------------------------------------------------------------------------------------

    bool winding_down() const { return steps_done() > plan_.steps; }

    void live(Client &client) {
        while (client.rounds_done < plan_.rounds) {
            for (unsigned operation = 0; operation < plan_.operations && !winding_down(); ++operation) operate(client);
            ++client.rounds_done;
            scheduler_.park();
        }
        Instance &instance = *client.instance;
        while (!client.held.empty()) {
            Held &last = client.held.back();
            if (is_pinned(last)) {
                scheduler_.pause_for(100);
                continue;
            }
            give_back(client, client.held.size() - 1, false);
        }
        if (++instance.threads_freed == instance.thread_count) {
            while (!instance.shared.empty()) {
                const Held held = instance.shared.back();
                instance.shared.pop_back();
                if (held.token != nullptr && held.token->state != Token::State::live) continue;
                if (held.token != nullptr) {
                    withdraw(client, held, *held.token);
                } else {
                    disown(client, held);
                    expect_ok(client, numacre_free(instance.pool, held.address), "free of a shared block");
                }
            }
        }
        say("leaves");
        client::leave_pool(instance.pool);
        client.ended = true;
    }

    void expect_ok(const Client &client, int error, const char *what) {
        if (error != 0) fail("process %d: %s fails: %d", client.instance->number, what, error);
    }
    // Its giver may still be in a call that names the block by its address.
    static bool is_pinned(const Held &held) { return held.token != nullptr && held.token->giver_calls != 0; }

    void operate(Client &client) {
        ++operations_;
        Random &random = client.random;
        if (plan_.numa_nodes > 1)
            set_os_numa_node_of(client, static_cast<std::uint32_t>(random.below(plan_.numa_nodes)));
        const Plan::Work &work = plan_.work;
        const std::uint64_t share = plan_.numa_nodes * geometry_.frame_count;
        const bool wants_more =
            plan_.held_max != 0 ? client.held.size() < plan_.held_max : frames_held_ * 100 < share * plan_.fill_percent;
        const std::uint64_t favour = wants_more ? 3 : plan_.held_max != 0 ? 0 : 1, disfavour = wants_more ? 1 : 3;
        std::uint64_t all = 0;
        const auto chance = [&](std::uint64_t weight) { return all += weight; };
        const std::uint64_t allocate = chance(work.allocate * favour), on = chance(work.allocate_on * favour),
                            bulk = chance(work.bulk * favour), free = chance(work.free * disfavour),
                            uncached = chance(work.free_uncached * disfavour),
                            free_bulk = chance(work.free_bulk * disfavour), publish = chance(work.publish),
                            share_it = chance(work.share), take = chance(work.take), withdraw = chance(work.withdraw),
                            ask = chance(work.ask), stop = chance(work.stop);
        const std::uint64_t drawn = random.below(all);
        if (drawn < allocate) return allocate_plainly(client);
        if (drawn < on) return allocate_on(client);
        if (drawn < bulk) return allocate_many(client);
        if (drawn < free) return free_some(client, false);
        if (drawn < uncached) return free_some(client, true);
        if (drawn < free_bulk) return free_many(client);
        if (drawn < publish) return publish_some(client);
        if (drawn < share_it) return share_some(client);
        if (drawn < take) return take_some(client);
        if (drawn < withdraw) return withdraw_some(client);
        if (drawn < ask) return ask_size(client);
        if (drawn < stop) scheduler_.pause_for(random.scaled(2000));
    }

    void set_os_numa_node_of(Client &, std::uint32_t node) { set_os_numa_node(node); }

    Order draw_order(Client &client) {
        Random &random = client.random;
        const unsigned most = geometry_.largest_order;
        unsigned order = 0;
        switch (plan_.order_spread) {
            case 0:
                while (order < most && random.one_in(2)) ++order;
                break;
            case 1:
                order = static_cast<unsigned>(random.below(most + 1));
                break;
            case 2:
                order = most;
                while (order > 0 && random.one_in(2)) --order;
                break;
            case 4:
                order = random.one_in(5) ? most : static_cast<unsigned>(random.below(3));
                break;
            default:
                order = random.one_in(6) ? static_cast<unsigned>(random.below(most + 1)) : plan_.one_order;
        }
        return Order{order};
    }
    // A size that needs this order.
    std::size_t draw_size(Client &client, Order order) const {
        const std::uint64_t most = order.frames() << geometry_.frame_shift;
        const std::uint64_t least = order.value == 0 ? 1 : most / 2 + 1;
        return client.random.one_in(2) ? most : client.random.between(least, most);
    }

    void refused(Client &client, int error, int node, Order order, std::uint64_t began, bool waited) {
        say("order %u on numa node %d: error %d", order.value, node, error);
        if (error == -ENOMEM)
            check_refusal(client, node, order, began);
        else if (!(error == -EDQUOT && plan_.counts) && !(error == -ETIMEDOUT && waited))
            fail("process %d: an allocation of order %u fails: %d", client.instance->number, order.value, error);
    }

    void allocate_plainly(Client &client) {
        const Order order = draw_order(client);
        const std::size_t size = draw_size(client, order);
        const std::uint64_t began = steps_done();
        void *address = nullptr;
        say("alloc of order %u ...", order.value);
        begin_wish(client, -1, order);
        const int error = numacre_alloc(client.instance->pool, size, &address);
        end_wish(client);
        if (error != 0) return refused(client, error, -1, order, began, false);
        client.held.push_back(acquire(client, address, order, began, true));
        say("alloc: order %u at frame %llu of numa node %u (began at %llu)", order.value,
            static_cast<unsigned long long>(first(client.held.back().block)), client.held.back().numa_node,
            static_cast<unsigned long long>(began));
    }
    // False: enough is in play.
    bool enter_play() {
        if (plan_.in_play_max != 0 && in_play_ >= plan_.in_play_max) return false;
        ++in_play_;
        return true;
    }

    void allocate_on(Client &client) {
        if (!enter_play()) return scheduler_.pause_for(30);
        Random &random = client.random;
        const Order order = draw_order(client);
        const std::size_t size = draw_size(client, order);
        unsigned flags = plan_.in_play_max != 0 || random.percent(70) ? NUMACRE_UNCACHED : 0;
        int node = random.percent(40) ? -1 : static_cast<int>(random.below(plan_.numa_nodes));
        // -1 and strict: where the thread runs.
        const bool strict = node >= 0 && random.percent(plan_.strict_percent);
        if (strict) flags |= NUMACRE_STRICT;
        if (node < 0 && random.one_in(5)) flags |= random.one_in(2) ? NUMACRE_INTERLEAVE : NUMACRE_LOCAL;
        if (random.percent(plan_.compact_percent)) flags |= NUMACRE_COMPACT;
        // Rather with empty hands, or soon all wait for what they hold themselves.
        const bool waits = random.percent(plan_.wait_percent) && (client.held.empty() || random.one_in(8));
        if (waits) flags |= NUMACRE_WAIT_MS(random.scaled(3000) + 1);
        if (!strict) node = -1;
        const int asked = node < 0 && (flags & (NUMACRE_INTERLEAVE | NUMACRE_LOCAL)) == 0 && random.one_in(3)
                              ? static_cast<int>(random.below(plan_.numa_nodes))
                              : node;
        const std::uint64_t began = steps_done();
        void *address = nullptr;
        say("alloc_on %d of order %u, flags %#x ...", asked, order.value, flags);
        begin_wish(client, node, order);
        if (waits) client.wish.always = false;
        const int error = numacre_alloc_on(client.instance->pool, asked, size, flags, &address);
        end_wish(client);
        if (error != 0) {
            --in_play_;
            return refused(client, error, node, order, began, waits);
        }
        client.held.push_back(
            acquire(client, address, order, began, (flags & (NUMACRE_UNCACHED | NUMACRE_COMPACT)) == 0));
        say("alloc_on: order %u at frame %llu of numa node %u (began at %llu)", order.value,
            static_cast<unsigned long long>(first(client.held.back().block)), client.held.back().numa_node,
            static_cast<unsigned long long>(began));
        if (strict && client.held.back().numa_node != static_cast<std::uint32_t>(node))
            fail("a strict allocation is from another numa node");
    }
    void allocate_many(Client &client) {
        const Order order = draw_order(client);
        const std::size_t size = draw_size(client, order);
        const auto count = static_cast<unsigned>(client.random.scaled(kBulkMax - 1) + 1);
        const std::uint64_t began = steps_done();
        say("alloc_bulk of %u of order %u ...", count, order.value);
        client.wish.always = false;
        if (const int error = numacre_alloc_bulk(client.instance->pool, size, client.blocks, count); error != 0)
            return count == 1 ? refused(client, error, -1, order, began, false) : void();
        for (unsigned i = 0; i < count; ++i)
            client.held.push_back(acquire(client, client.blocks[i], order, began, true));
        say("alloc_bulk: %u of order %u", count, order.value);
    }

    void give_back(Client &client, std::size_t at, bool uncached) {
        const Held held = client.held[at];
        client.held[at] = client.held.back();
        client.held.pop_back();
        disown(client, held);
        client.held_frames -= held.block.order.frames();
        say("free%s of order %u at frame %llu of numa node %u ...", uncached ? "_uncached" : "", held.block.order.value,
            static_cast<unsigned long long>(first(held.block)), held.numa_node);
        numacre_pool *const pool = client.instance->pool;
        if (plan_.in_play_max != 0) uncached = true;
        expect_ok(client, uncached ? numacre_free_uncached(pool, held.address) : numacre_free(pool, held.address),
                  "free of an own block");
        --in_play_;
        say("freed");
    }
    bool draw_held(Client &client, std::size_t &at) const {
        if (client.held.empty()) return false;
        at = client.random.below(client.held.size());
        return !is_pinned(client.held[at]);
    }
    void free_some(Client &client, bool uncached) {
        std::size_t at = 0;
        if (draw_held(client, at)) give_back(client, at, uncached);
    }
    void free_many(Client &client) {
        unsigned count = 0;
        const auto wanted = static_cast<unsigned>(client.random.scaled(kBulkMax - 1) + 1);
        for (unsigned i = 0; i < wanted; ++i) {
            std::size_t at = 0;
            if (!draw_held(client, at)) break;
            const Held held = client.held[at];
            client.held[at] = client.held.back();
            client.held.pop_back();
            disown(client, held);
            client.held_frames -= held.block.order.frames();
            client.blocks[count++] = held.address;
        }
        say("free_bulk of %u ...", count);
        if (count != 0)
            expect_ok(client, numacre_free_bulk(client.instance->pool, client.blocks, count),
                      "free_bulk of own blocks");
        say("freed");
    }

    void share_some(Client &client) {
        std::size_t at = 0;
        if (!draw_held(client, at)) return;
        Held held = client.held[at];
        client.held[at] = client.held.back();
        client.held.pop_back();
        client.held_frames -= held.block.order.frames();
        held.token = nullptr;
        client.instance->shared.push_back(held);
    }

    // Blocks of the process that are published, or about to be, and not taken.
    bool draw_shared(Client &client, std::size_t &at) {
        std::vector<Held> &shared = client.instance->shared;
        for (std::size_t i = shared.size(); i-- > 0;)
            if (shared[i].token != nullptr && shared[i].token->state != Token::State::live) {
                shared[i] = shared.back();
                shared.pop_back();
            }
        if (shared.empty()) return false;
        // Rather the newest: two are to meet there.
        at = client.random.one_in(2) ? shared.size() - 1 : client.random.below(shared.size());
        return true;
    }

    void publish_some(Client &client) {
        Instance &instance = *client.instance;
        if (instance.shared.empty() || client.random.one_in(4)) share_some(client);
        std::size_t at = 0;
        if (!draw_shared(client, at)) return;
        Held &held = instance.shared[at];
        if (held.token != nullptr && held.token->withdrawn) return;
        if (held.token == nullptr) {
            Token &token = tokens_.emplace_back();
            token.numa_node = held.numa_node;
            token.block = held.block;
            token.giver = &instance;
            held.token = &token;
        }
        Token &token = *held.token;
        void *const address = held.address;
        ++token.giver_calls;
        client.giving = &token;
        say("ref_of frame %llu of numa node %u ...", static_cast<unsigned long long>(first(token.block)),
            token.numa_node);
        const numacre_ref ref = numacre_ref_of(instance.pool, address);
        say("ref_of: %#llx", static_cast<unsigned long long>(ref));
        client.giving = nullptr;
        --token.giver_calls;
        if (ref == NUMACRE_REF_NULL) {
            if (token.state == Token::State::live && token.taker_calls == 0)
                fail("process %d gets no reference to its own block", instance.number);
            return;
        }
        if (token.ref != 0 && token.ref != ref) {
            if (token.state == Token::State::live && token.taker_calls == 0)
                fail("process %d gets two references to one block", instance.number);
            return;
        }
        if (token.ref == 0) mailbox_.push_back(&token);
        token.ref = ref;
    }

    // Of the block's entry, as long as the token's reference names it.
    std::uint32_t generation_of(const Token &token) const {
        const ReferenceFormat &format = views_[token.numa_node].reference_format;
        return static_cast<std::uint32_t>(format.number(Reference{token.ref})) & kGenerationMax;
    }

    void take_some(Client &client) {
        if (mailbox_.empty()) return;
        Instance &instance = *client.instance;
        const std::size_t newest = mailbox_.size() < 8 ? 0 : mailbox_.size() - 8;
        Token &token = *mailbox_[client.random.one_in(8) ? client.random.below(mailbox_.size())
                                                         : client.random.between(newest, mailbox_.size() - 1)];
        if (token.giver == &instance) {
            // From then on the address is the process's again, whichever thread's: no call of the giver's may name it.
            if (token.giver_calls != 0 || token.withdrawn) return;
            token.withdrawn = true;
        }
        ++token.taker_calls;
        client.taking = &token;
        void *address = nullptr;
        say("take of %#llx ...", static_cast<unsigned long long>(token.ref));
        const int error = numacre_take(instance.pool, token.ref, &address);
        say("take of frame %llu of numa node %u: %d", static_cast<unsigned long long>(first(token.block)),
            token.numa_node, error);
        client.taking = nullptr;
        --token.taker_calls;
        if (error == -ESTALE) {
            const IndexEntry entry{peek(views_[token.numa_node].index_entry(token.block))};
            if (token.state == Token::State::live && entry.is_published(token.block.order) &&
                entry.generation() == generation_of(token))
                fail("process %d is refused a published block", instance.number);
            return;
        }
        if (error != 0) fail("process %d: a take fails: %d", instance.number, error);
        if (token.state == Token::State::taken)
            fail("two take frame %llu of numa node %u by one reference",
                 static_cast<unsigned long long>(first(token.block)), token.numa_node);
        if (token.state == Token::State::freed) fail("process %d takes a block that has been freed", instance.number);
        token.state = Token::State::taken;
        token.taker = &instance;
        const Held held{address, token.numa_node, token.block, &token};
        const auto offset = static_cast<std::uint64_t>(static_cast<std::byte *>(address) - instance.pool->span);
        if (offset != (std::uint64_t{token.numa_node} << instance.pool->span_shift) +
                          (first(token.block) << geometry_.frame_shift))
            fail("process %d takes another block than the one that was given", instance.number);
        std::uint64_t were_owned = 0;
        for (std::uint64_t frame = first(token.block); frame < end(token.block); ++frame) {
            std::int32_t &owner = shadow_[token.numa_node][frame];
            if (owner == token.giver->number) {
                owner = kFree;
                ++were_owned;
            }
        }
        frames_held_ -= were_owned;
        own(client, held);
        client.held.push_back(held);
    }

    void withdraw_some(Client &client) {
        std::size_t at = 0;
        if (!draw_shared(client, at)) return;
        std::vector<Held> &shared = client.instance->shared;
        const Held held = shared[at];
        // While others name it by its address it stays.
        if (held.token == nullptr || held.token->giver_calls != 0 || held.token->ref == 0 || held.token->withdrawn)
            return;
        shared[at] = shared.back();
        shared.pop_back();
        withdraw(client, held, *held.token);
    }
    void withdraw(Client &client, const Held &held, Token &token) {
        token.withdrawn = true;
        ++token.giver_calls;
        disown(client, held);
        say("free of published frame %llu of numa node %u ...", static_cast<unsigned long long>(first(token.block)),
            token.numa_node);
        const bool cached = client.random.one_in(2);
        client.blocks[0] = held.address;
        const unsigned way = static_cast<unsigned>(client.random.below(3));
        const int error = way == 0 ? numacre_free_bulk(client.instance->pool, client.blocks, 1)
                          : cached ? numacre_free(client.instance->pool, held.address)
                                   : numacre_free_uncached(client.instance->pool, held.address);
        say("free of published: %d", error);
        --token.giver_calls;
        if (error == 0) {
            if (token.state == Token::State::taken)
                fail("process %d frees a block that another has taken", client.instance->number);
            token.state = Token::State::freed;
        } else if (token.state == Token::State::live && token.taker_calls == 0) {
            fail("process %d: the free of an own, published block fails: %d", client.instance->number, error);
        }
    }

    void ask_size(Client &client) {
        std::size_t at = 0;
        if (!draw_held(client, at)) return;
        const Held held = client.held[at];
        if (const std::size_t size = numacre_usable_size(client.instance->pool, held.address);
            size != held.block.order.frames() << geometry_.frame_shift)
            fail(
                "process %d holds a block of order %u at frame %llu of numa node %u: its usable size is said to be %zu",
                client.instance->number, held.block.order.value, static_cast<unsigned long long>(first(held.block)),
                held.numa_node, size);
    }

    // --- the daemon
    // --------------------------------------------------------------------------------------------------- The steps of
    // daemon/src (managed_pool, node_memory, sizing, reaper) on shm/, without its files and threads.

    bool clients_rest() const {
        for (const Fiber &fiber : scheduler_.fibers_of_all())
            if (fiber.process != kDaemon && fiber.state != FiberState::parked && fiber.state != FiberState::ended &&
                fiber.state != FiberState::dead)
                return false;
        return true;
    }
    bool clients_ended() const {
        for (const Fiber &fiber : scheduler_.fibers_of_all())
            if (fiber.process != kDaemon && fiber.state != FiberState::ended && fiber.state != FiberState::dead)
                return false;
        return true;
    }

    void rest() { scheduler_.sleep_ns(daemon_random_.below(2 * plan_.daemon_rest_ns) + 100); }

    void wake_waiters(bool all) {
        nudge_waiters(pool_, all, [this](ThreadSlotIndex thread) {
            scheduler_.wake(reinterpret_cast<const std::uint32_t *>(&pool_.threads[thread.value].waiting));
        });
    }

    void serve(bool again) {
        daemon_is_restarting_ = again;
        if (again) finish_predecessor();
        daemon_is_restarting_ = false;
        for (;;) {
            if (Instance *const dead = somebody_dead()) {
                reap(*dead);
            } else if (clients_ended()) {
                break;
            } else if (clients_rest() || jobs_left_ == 0 || winding_down()) {
                scheduler_.park();
            } else {
                --jobs_left_;
                do_job();
                rest();
            }
        }
        release_seized();
        for (unsigned node = 0; node < plan_.numa_nodes; ++node)
            for (std::uint64_t chunk = 0; chunk < geometry_.chunk_count(); ++chunk) {
                if (wants_drain_[node][chunk]) drain(node, chunk, false);
                if (chunk_[node][chunk] == ChunkState::offline) bring_online(node, chunk);
            }
        daemon_ended_ = true;
    }

    void finish_predecessor() {
        say("a daemon begins anew");
        Recovery<Env> recovery(pool_, std::span<const Node>(views_));
        ThreadSlotIndex blocked_by;
        while (recovery.resume(blocked_by) == RecoveryStep::blocked) {
            say("resume is blocked by thread slot %u", blocked_by.value);
            rest();
            mark_dead();
        }
        for (unsigned node = 0; node < plan_.numa_nodes; ++node) {
            Chunks<Env> chunks{views_[node], pool_};
            for (std::uint64_t chunk = 0; chunk < geometry_.chunk_count(); ++chunk) {
                if (chunk_[node][chunk] == ChunkState::closing) {
                    if (chunks.is_offline(chunk))
                        set_offline(node, chunk);
                    else
                        chunk_[node][chunk] = ChunkState::online;
                } else if (chunk_[node][chunk] == ChunkState::opening) {
                    if (chunks.is_offline(chunk)) chunks.bring_online(chunk);
                    chunk_[node][chunk] = ChunkState::online;
                }
                if (drain_unsure_ && drain_node_ == node && drain_chunk_ == chunk)
                    drain(node, chunk, wants_drain_[node][chunk]);
            }
        }
        release_seized();
        wake_waiters(false);
    }

    // As soon as the kernel says so, whatever else the daemon is busy with.
    void mark_dead() {
        for (Instance &instance : instances_)
            if (!instance.alive && !instance.recovered)
                pool_.processes[instance.slot].state.store(static_cast<std::uint64_t>(ProcessState::dead),
                                                           std::memory_order_seq_cst);
    }

    void reap(Instance &dead) {
        // A call of a living giver that names a block by its address: see Token.
        const auto is_pinned_by_others = [&] {
            for (const Token &token : tokens_)
                if (token.taker == &dead && token.giver_calls != 0 && token.giver->alive) return true;
            return false;
        };
        while (is_pinned_by_others()) rest();
        say("reaps process %d", dead.number);
        mark_dead();
        for (std::vector<std::int32_t> &shadow : shadow_)
            for (std::int32_t &owner : shadow)
                if (owner == dead.number) {
                    owner = kFree;
                    --frames_held_;
                }
        Recovery<Env> recovery(pool_, std::span<const Node>(views_));
        Reclaimed total;
        ThreadSlotIndex blocked_by;
        const ProcessSlot slot{dead.slot};
        while ((plan_.seizes ? recovery.seize_process(slot, total, blocked_by, [](NumaNode, Block) {})
                             : recovery.recover_process(slot, total, blocked_by)) == RecoveryStep::blocked) {
            say("recovery is blocked by thread slot %u", blocked_by.value);
            rest();
            mark_dead();  // perhaps it is they who are in the way
        }
        if (plan_.seizes) {
            rest();
            release_seized();
        }
        wake_waiters(false);
        auto &record = pool_.processes[dead.slot];
        record.quota_frames.store(0);
        record.held.store(0);
        record.on_the_way.store(OnTheWay{record.on_the_way.load()}.forgotten().bits());
        record.state.store(static_cast<std::uint64_t>(ProcessState::free));
        dead.recovered = true;
        say("process %d is recovered", dead.number);
        if (round_ < plan_.rounds && instances_.size() < 20 && !winding_down() && daemon_random_.percent(70))
            start_process(dead.seat);
    }

    void release_seized() {
        Recovery<Env> recovery(pool_, std::span<const Node>(views_));
        bool released = false;
        recovery.for_each_seized(
            [&](NumaNode node, Block block, PoolAge) { released = recovery.release(node, block) || released; });
        if (released) wake_waiters(false);
    }

    void drain(unsigned node, std::uint64_t chunk, bool wanted) {
        say("%s chunk %llu of numa node %u ...", wanted ? "drains" : "stops draining",
            static_cast<unsigned long long>(chunk), node);
        wants_drain_[node][chunk] = wanted;
        drained_at_[node][chunk] = 0;
        drain_unsure_ = true;
        drain_node_ = node;
        drain_chunk_ = chunk;
        Chunks<Env>{views_[node], pool_}.set_drain(chunk, wanted);
        drain_unsure_ = false;
        if (wanted && views_[node].top_layer != 0) drained_at_[node][chunk] = steps_done();
        if (!wanted) wake_waiters(false);
        say("done");
    }
    void bring_online(unsigned node, std::uint64_t chunk) {
        say("brings chunk %llu of numa node %u online ...", static_cast<unsigned long long>(chunk), node);
        set_online(node, chunk);
        chunk_[node][chunk] = ChunkState::opening;
        if (!Chunks<Env>{views_[node], pool_}.bring_online(chunk)) fail("an offline chunk cannot be brought online");
        chunk_[node][chunk] = ChunkState::online;
        wake_waiters(false);
    }
    void try_take_offline(unsigned node, std::uint64_t chunk) {
        if (chunk_[node][chunk] != ChunkState::online) return;
        say("would take chunk %llu of numa node %u offline ...", static_cast<unsigned long long>(chunk), node);
        chunk_[node][chunk] = ChunkState::closing;
        if (Chunks<Env>{views_[node], pool_}.try_take_offline(chunk)) {
            set_offline(node, chunk);
            say("has");
        } else {
            chunk_[node][chunk] = ChunkState::online;
            // What was claimed for a moment is free again.
            say("cannot");
        }
    }

    void do_job() {
        Random &random = daemon_random_;
        const Plan::Jobs &jobs = plan_.daemon;
        std::uint64_t all = 0;
        const auto chance = [&](std::uint64_t weight) { return all += weight; };
        const std::uint64_t nudge = chance(jobs.nudge), twice = chance(jobs.nudge_twice), draining = chance(jobs.drain),
                            offline = chance(jobs.offline), online = chance(jobs.online), audit = chance(jobs.audit),
                            snapshot = chance(jobs.snapshot), pressure = chance(jobs.pressure), age = chance(jobs.age),
                            quota = chance(jobs.quota);
        if (all == 0) return;
        const std::uint64_t drawn = random.below(all);
        const auto node = static_cast<unsigned>(random.below(plan_.numa_nodes));
        const std::uint64_t chunk = random.below(geometry_.chunk_count());
        if (drawn < nudge) {
            wake_waiters(random.one_in(2));
        } else if (drawn < twice) {
            for (std::uint64_t times = random.between(2, 6); times > 0; --times) wake_waiters(true);
        } else if (drawn < draining) {
            drain(node, chunk, !wants_drain_[node][chunk]);
        } else if (drawn < offline) {
            try_take_offline(node, chunk);
        } else if (drawn < online) {
            if (chunk_[node][chunk] == ChunkState::offline) bring_online(node, chunk);
        } else if (drawn < audit) {
            look_for_damage(node);
        } else if (drawn < snapshot) {
            NodeSnapshot seen;
            scan_node(views_[node], seen, std::span<OwnerUsage>{});
            if (seen.free_frames > geometry_.frame_count || seen.offline_frames > geometry_.frame_count)
                fail("a snapshot counts more than there is");
        } else if (drawn < pressure) {
            pool_.header->attention.fetch_add(Attention::kPressureStep, std::memory_order_relaxed);
        } else if (drawn < age) {
            std::uint64_t bits = pool_.header->attention.load(std::memory_order_relaxed);
            // That a chunk is draining is a preference there: clients may see it late, or for ever.
            (void)pool_.header->attention.compare_exchange_weak(
                bits, Attention::told(bits, PoolAge::of_seconds(++age_), true, random.one_in(2)),
                std::memory_order_relaxed);
        } else if (drawn < quota) {
            pool_.processes[random.between(1, plan_.processes)].quota_frames.store(
                random.one_in(3) ? 0 : random.scaled(geometry_.frame_count));
            wake_waiters(false);  // as ManagedPool::set_quota(): there may be more for them
        }
    }

    // ManagedPool::damage_to_numa_node().
    void look_for_damage(unsigned node) {
        const Node &view = views_[node];
        NodeSnapshot snapshot;
        scan_node(view, snapshot, std::span<OwnerUsage>(usage_));
        if (snapshot.damaged_entries != 0 || snapshot.lost_blocks != 0) {
            NodeSnapshot once_more;
            scan_node(view, once_more, std::span<OwnerUsage>(usage_));
            if (snapshot.damaged_entries != 0 && once_more.damaged_entries != 0)
                fail("an audit finds impossible index entries");
            if (snapshot.lost_blocks != 0 && once_more.lost_blocks != 0)
                fail("an audit finds live blocks that have lost frames");
        }
        if (const std::uint64_t words = Audit<Env>(pool_, view).run(); words != 0)
            fail("an audit finds %llu impossible words of the tree of numa node %u",
                 static_cast<unsigned long long>(words), node);
        for (std::size_t i = 0; i < snapshot.unheld_count; ++i)
            if (is_taken_by_nobody(pool_, view, snapshot.unheld[i]) &&
                is_taken_by_nobody(pool_, view, snapshot.unheld[i]))
                fail("an audit finds frame %llu of numa node %u taken by nobody",
                     static_cast<unsigned long long>(snapshot.unheld[i].first.value), node);
        if (count_impossible_thread_slots<Env>(pool_, views_) != 0) {
            for (std::uint32_t thread = 0; thread < thread_slots_; ++thread) {
                const auto &slot = pool_.threads[thread];
                say("thread slot %u: owner %#llx, intent %#llx, hint work %#llx", thread,
                    static_cast<unsigned long long>(peek(slot.owner)),
                    static_cast<unsigned long long>(peek(slot.intent)),
                    static_cast<unsigned long long>(peek(slot.hint_work)));
            }
            fail("an audit finds impossible thread slots");
        }
    }

    const Plan plan_;
    const bool trace_;
    Scheduler scheduler_;
    Random daemon_random_;
    Geometry geometry_{};
    std::uint32_t process_slots_ = 0, thread_slots_ = 0;
    void *memory_ = nullptr;
    std::size_t memory_bytes_ = 0, node_bytes_ = 0;
    Pool pool_;
    std::vector<Node> views_;
    std::vector<Stamps> stamps_;
    std::vector<OwnerUsage> usage_;
    // By numa node, then frame or chunk.
    std::vector<std::vector<std::int32_t>> shadow_;     // the instance that owns it, kFree, kOffline
    std::vector<std::vector<std::uint64_t>> freed_at_;  // step
    std::vector<std::vector<ChunkState>> chunk_;
    std::vector<std::vector<std::uint64_t>> drained_at_;  // step; 0: it does not drain, or perhaps not
    std::vector<std::vector<bool>> wants_drain_;
    bool drain_unsure_ = false;
    unsigned drain_node_ = 0;
    std::uint64_t drain_chunk_ = 0;
    std::vector<EndedIntent> ended_intents_ = std::vector<EndedIntent>(kIntentsKept);
    std::size_t intents_ended_ = 0;
    std::vector<int> fiber_of_slot_;  // who has written its intent last
    unsigned wishes_ = 0;
    std::uint64_t looks_left_ = 0;  // with an adversary
    unsigned in_play_ = 0;
    std::deque<Instance> instances_;
    std::deque<Client> clients_;
    std::deque<Token> tokens_;
    std::vector<Token *> mailbox_;
    std::uint64_t frames_held_ = 0;
    int daemon_fiber_ = -1;
    bool daemon_ended_ = false, daemon_is_restarting_ = false;
    std::uint64_t jobs_left_ = 0;
    std::uint64_t age_ = 0;
    unsigned round_ = 0;
    std::size_t next_death_ = 0, next_daemon_death_ = 0;
    unsigned point_deaths_ = 0;
    std::uint64_t daemon_deaths_ = 0;
    std::uint64_t operations_ = 0, refusals_ = 0;
    std::string failure_;
};

}  // namespace

Result run(const Plan &plan, bool trace) {
    Machine machine(plan, trace);
    return machine.run();
}

}  // namespace numacre::simulation
