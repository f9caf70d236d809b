#include "operations.hpp"

namespace numacre::simulation {

void Operations::live(Client &client) {
    while (client.rounds_done < plan_.rounds) {
        for (unsigned operation = 0; operation < plan_.operations && !processes_.are_winding_down(); ++operation)
            operate(client);
        ++client.rounds_done;
        scheduler_.park();
    }
    while (!client.held.empty()) {
        if (client.held.back().is_pinned()) {
            scheduler_.pause_for(100);
            continue;
        }
        give_back(client, client.held.size() - 1, false);
    }
    Instance &instance = *client.instance;
    if (++instance.threads_freed == instance.thread_count) give_back_shared(client);
    verdict_.say("leaves");
    client::leave_pool(instance.pool);
    client.ended = true;
}

// By the last thread of the process.
void Operations::give_back_shared(Client &client) {
    Instance &instance = *client.instance;
    while (!instance.shared.empty()) {
        const Held held = instance.shared.back();
        instance.shared.pop_back();
        if (held.token != nullptr && held.token->state != Token::State::live) continue;
        if (held.token != nullptr) {
            tokens_.free_published(client, held);
        } else {
            shadow_.disown(client, held);
            expect_ok(client, numacre_free(instance.pool, held.address), "free of a shared block");
        }
    }
}

void Operations::operate(Client &client) {
    ++done_;
    Random &random = client.random;
    if (plan_.numa_nodes > 1) set_os_numa_node(static_cast<std::uint32_t>(random.below(plan_.numa_nodes)));
    const Plan::Work &work = plan_.work;
    const std::uint64_t share = plan_.numa_nodes * memory_.geometry.frame_count;
    const bool wants_more = plan_.held_max != 0 ? client.held.size() < plan_.held_max
                                                : shadow_.frames_held() * 100 < share * plan_.fill_percent;
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
    if (drawn < publish) return tokens_.publish(client);
    if (drawn < share_it) return tokens_.share(client);
    if (drawn < take) return tokens_.take(client);
    if (drawn < withdraw) return tokens_.withdraw(client);
    if (drawn < ask) return ask_size(client);
    if (drawn < stop) scheduler_.pause_for(random.scaled(2000));
}

Order Operations::draw_order(Client &client) const {
    Random &random = client.random;
    const unsigned most = memory_.geometry.largest_order;
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
std::size_t Operations::draw_size(Client &client, Order order) const {
    const std::uint64_t most = memory_.geometry.bytes_of(order.frames());
    const std::uint64_t least = order.value == 0 ? 1 : most / 2 + 1;
    return client.random.one_in(2) ? most : client.random.between(least, most);
}

// False: enough is in play.
bool Operations::enter_play() {
    if (plan_.in_play_max != 0 && in_play_ >= plan_.in_play_max) return false;
    ++in_play_;
    return true;
}

void Operations::allocate_plainly(Client &client) {
    const Order order = draw_order(client);
    const std::size_t size = draw_size(client, order);
    const std::uint64_t began = steps_done();
    void *address = nullptr;
    verdict_.say("alloc of order %u ...", order.value);
    wishes_.begin(client, -1, order);
    const int error = numacre_alloc(client.instance->pool, size, &address);
    wishes_.finish(client);
    if (error != 0) return refused(client, error, -1, order, began, false);
    client.held.push_back(shadow_.acquire(client, address, order, began, true));
    verdict_.say("alloc: order %u at frame %llu of numa node %u (began at %llu)", order.value,
                 static_cast<unsigned long long>(first(client.held.back().block)), client.held.back().numa_node,
                 static_cast<unsigned long long>(began));
}

void Operations::allocate_on(Client &client) {
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
    verdict_.say("alloc_on %d of order %u, flags %#x ...", asked, order.value, flags);
    wishes_.begin(client, node, order);
    if (waits) client.wish.always = false;
    const int error = numacre_alloc_on(client.instance->pool, asked, size, flags, &address);
    wishes_.finish(client);
    if (error != 0) {
        --in_play_;
        return refused(client, error, node, order, began, waits);
    }
    client.held.push_back(
        shadow_.acquire(client, address, order, began, (flags & (NUMACRE_UNCACHED | NUMACRE_COMPACT)) == 0));
    verdict_.say("alloc_on: order %u at frame %llu of numa node %u (began at %llu)", order.value,
                 static_cast<unsigned long long>(first(client.held.back().block)), client.held.back().numa_node,
                 static_cast<unsigned long long>(began));
    if (strict && client.held.back().numa_node != static_cast<std::uint32_t>(node))
        verdict_.fail("a strict allocation is from another numa node");
}

void Operations::allocate_many(Client &client) {
    const Order order = draw_order(client);
    const std::size_t size = draw_size(client, order);
    const auto count = static_cast<unsigned>(client.random.scaled(kBulkMax - 1) + 1);
    const std::uint64_t began = steps_done();
    verdict_.say("alloc_bulk of %u of order %u ...", count, order.value);
    client.wish.always = false;
    if (const int error = numacre_alloc_bulk(client.instance->pool, size, client.blocks, count); error != 0)
        return count == 1 ? refused(client, error, -1, order, began, false) : void();
    for (unsigned i = 0; i < count; ++i)
        client.held.push_back(shadow_.acquire(client, client.blocks[i], order, began, true));
    verdict_.say("alloc_bulk: %u of order %u", count, order.value);
}

void Operations::give_back(Client &client, std::size_t at, bool uncached) {
    const Held held = client.let_go(at);
    shadow_.disown(client, held);
    verdict_.say("free%s of order %u at frame %llu of numa node %u ...", uncached ? "_uncached" : "",
                 held.block.order.value, static_cast<unsigned long long>(first(held.block)), held.numa_node);
    numacre_pool *const pool = client.instance->pool;
    if (plan_.in_play_max != 0) uncached = true;
    expect_ok(client, uncached ? numacre_free_uncached(pool, held.address) : numacre_free(pool, held.address),
              "free of an own block");
    --in_play_;
    verdict_.say("freed");
}

void Operations::free_some(Client &client, bool uncached) {
    std::size_t at = 0;
    if (client.draw_held(at)) give_back(client, at, uncached);
}

void Operations::free_many(Client &client) {
    unsigned count = 0;
    const auto wanted = static_cast<unsigned>(client.random.scaled(kBulkMax - 1) + 1);
    for (unsigned i = 0; i < wanted; ++i) {
        std::size_t at = 0;
        if (!client.draw_held(at)) break;
        const Held held = client.let_go(at);
        shadow_.disown(client, held);
        client.blocks[count++] = held.address;
    }
    verdict_.say("free_bulk of %u ...", count);
    if (count != 0)
        expect_ok(client, numacre_free_bulk(client.instance->pool, client.blocks, count), "free_bulk of own blocks");
    verdict_.say("freed");
}

void Operations::ask_size(Client &client) {
    std::size_t at = 0;
    if (!client.draw_held(at)) return;
    const Held held = client.held[at];
    if (const std::size_t size = numacre_usable_size(client.instance->pool, held.address);
        size != memory_.geometry.bytes_of(held.block.order.frames()))
        verdict_.fail(
            "process %d holds a block of order %u at frame %llu of numa node %u: its usable size is said to be %zu",
            client.instance->number, held.block.order.value, static_cast<unsigned long long>(first(held.block)),
            held.numa_node, size);
}

void Operations::refused(Client &client, int error, int node, Order order, std::uint64_t began, bool waited) {
    verdict_.say("order %u on numa node %d: error %d", order.value, node, error);
    if (error == -ENOMEM) {
        ++refusals_;
        history_.check_refusal(client, node, order, began);
    } else if (!(error == -EDQUOT && plan_.counts) && !(error == -ETIMEDOUT && waited)) {
        verdict_.fail("process %d: an allocation of order %u fails: %d", client.instance->number, order.value, error);
    }
}

void Operations::expect_ok(const Client &client, int error, const char *what) {
    if (error != 0) verdict_.fail("process %d: %s fails: %d", client.instance->number, what, error);
}

}  // namespace numacre::simulation
