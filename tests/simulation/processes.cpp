#include "processes.hpp"

namespace numacre::simulation {

bool Instance::has_ended() const {
    for (const Client *client : clients)
        if (!client->ended) return false;
    return true;
}

bool Client::draw_held(std::size_t &at) {
    if (held.empty()) return false;
    at = random.below(held.size());
    return !held[at].is_pinned();
}

Held Client::let_go(std::size_t at) {
    const Held block = held[at];
    held[at] = held.back();
    held.pop_back();
    return block;
}

Processes::~Processes() {
    for (Instance &instance : instances_)
        if (instance.pool != nullptr) client::delete_choices(instance.pool);
}

void Processes::start(unsigned seat) {
    Instance &instance = instances_.emplace_back();
    instance.number = static_cast<int>(instances_.size());
    instance.seat = seat;
    instance.slot = static_cast<std::uint16_t>(seat + 1);
    auto &record = memory_.pool.processes[instance.slot];
    record.generation.store(record.generation.load() + 1);
    if (plan_.counts) record.held.store(HeldFrames::of(0).bits());
    record.on_the_way.store(OnTheWay{record.on_the_way.load()}.forgotten().bits());
    record.state.store(static_cast<std::uint64_t>(ProcessState::active));

    open_pool(instance);
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

void Processes::open_pool(Instance &instance) {
    numacre_pool *const pool = client::new_handle();
    instance.pool = pool;
    pool->process = ProcessSlot{instance.slot};
    pool->client_id = static_cast<std::uint32_t>(instance.number);
    pool->numa_nodes = plan_.numa_nodes;
    pool->set_geometry(memory_.geometry);
    pool->reference_format = ReferenceFormat{memory_.geometry.frame_count, plan_.numa_nodes};
    pool->view = memory_.pool;
    pool->checks_frees = plan_.checks_frees;
    static constinit client::Env::Atomic<std::uint64_t> no_limit{0};
    pool->thread_limit = &no_limit;
    pool->data_bytes = memory_.geometry.capacity_bytes();
    pool->span_shift = static_cast<std::uint32_t>(std::bit_width(pool->data_bytes - 1)) + 1;
    pool->span_bytes = std::uint64_t{plan_.numa_nodes} << pool->span_shift;
    // Nobody touches the frames; each process sees them elsewhere.
    pool->span =
        reinterpret_cast<std::byte *>(std::uintptr_t{1} << 40) + (static_cast<std::uintptr_t>(instance.number) << 41);
    for (unsigned node = 0; node < plan_.numa_nodes; ++node) {
        pool->nodes[node].data = pool->span + (std::uint64_t{node} << pool->span_shift);
        new (pool->nodes[node].buddy_storage) Buddy<Env>(memory_.nodes[node], memory_.pool);
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
}

Instance *Processes::somebody_dead() {
    for (Instance &instance : instances_)
        if (!instance.alive && !instance.recovered) return &instance;
    return nullptr;
}

std::uint64_t Processes::deaths() const {
    std::uint64_t all = 0;
    for (const Instance &instance : instances_) all += !instance.alive;
    return all;
}

}  // namespace numacre::simulation
