#include "tokens.hpp"

namespace numacre::simulation {

void Tokens::share(Client &client) {
    std::size_t at = 0;
    if (!client.draw_held(at)) return;
    Held held = client.let_go(at);
    held.token = nullptr;
    client.instance->shared.push_back(held);
}

// Blocks of the process that are published, or about to be, and not taken.
bool Tokens::draw_shared(Client &client, std::size_t &at) {
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

void Tokens::publish(Client &client) {
    Instance &instance = *client.instance;
    if (instance.shared.empty() || client.random.one_in(4)) share(client);
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
    verdict_.say("ref_of frame %llu of numa node %u ...", static_cast<unsigned long long>(first(token.block)),
                 token.numa_node);
    numacre_ref ref = NUMACRE_REF_NULL;
    if (client.random.one_in(2))
        (void)numacre_ref_bulk(instance.pool, &address, &ref, 1);
    else
        ref = numacre_ref_of(instance.pool, address);
    verdict_.say("ref_of: %#llx", static_cast<unsigned long long>(ref));
    --token.giver_calls;
    if (ref == NUMACRE_REF_NULL) {
        if (token.state == Token::State::live && token.taker_calls == 0)
            verdict_.fail("process %d gets no reference to its own block", instance.number);
        return;
    }
    if (token.ref != 0 && token.ref != ref) {
        if (token.state == Token::State::live && token.taker_calls == 0)
            verdict_.fail("process %d gets two references to one block", instance.number);
        return;
    }
    if (token.ref == 0) mailbox_.push_back(&token);
    token.ref = ref;
}

// Of the block's entry, as long as the token's reference names it.
std::uint32_t Tokens::generation_of(const Token &token) const {
    const ReferenceFormat &format = memory_.nodes[token.numa_node].reference_format;
    return static_cast<std::uint32_t>(format.number(Reference{token.ref})) & kGenerationMax;
}

void Tokens::take(Client &client) {
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
    verdict_.say("take of %#llx ...", static_cast<unsigned long long>(token.ref));
    const int error = client.random.one_in(2) ? numacre_take_bulk(instance.pool, &token.ref, &address, 1)
                                              : numacre_take(instance.pool, token.ref, &address);
    verdict_.say("take of frame %llu of numa node %u: %d", static_cast<unsigned long long>(first(token.block)),
                 token.numa_node, error);
    client.taking = nullptr;
    --token.taker_calls;
    if (error == -ESTALE) {
        const IndexEntry entry{peek(memory_.nodes[token.numa_node].index_entry(token.block))};
        if (token.state == Token::State::live && entry.is_published(token.block.order) &&
            entry.generation() == generation_of(token))
            verdict_.fail("process %d is refused a published block", instance.number);
        return;
    }
    if (error != 0) verdict_.fail("process %d: a take fails: %d", instance.number, error);
    if (token.state == Token::State::taken)
        verdict_.fail("two take frame %llu of numa node %u by one reference",
                      static_cast<unsigned long long>(first(token.block)), token.numa_node);
    if (token.state == Token::State::freed)
        verdict_.fail("process %d takes a block that has been freed", instance.number);
    token.state = Token::State::taken;
    token.taker = &instance;
    const Held held{address, token.numa_node, token.block, &token};
    const auto offset = static_cast<std::uint64_t>(static_cast<std::byte *>(address) - instance.pool->span);
    if (offset !=
        (std::uint64_t{token.numa_node} << instance.pool->span_shift) + memory_.geometry.bytes_of(first(token.block)))
        verdict_.fail("process %d takes another block than the one that was given", instance.number);
    shadow_.end_of_giver(token);
    shadow_.own(client, held);
    client.held.push_back(held);
}

void Tokens::withdraw(Client &client) {
    std::size_t at = 0;
    if (!draw_shared(client, at)) return;
    std::vector<Held> &shared = client.instance->shared;
    const Held held = shared[at];
    // While others name it by its address it stays.
    if (held.token == nullptr || held.token->giver_calls != 0 || held.token->ref == 0 || held.token->withdrawn) return;
    shared[at] = shared.back();
    shared.pop_back();
    free_published(client, held);
}

void Tokens::free_published(Client &client, const Held &held) {
    Token &token = *held.token;
    token.withdrawn = true;
    ++token.giver_calls;
    shadow_.disown(client, held);
    verdict_.say("free of published frame %llu of numa node %u ...",
                 static_cast<unsigned long long>(first(token.block)), token.numa_node);
    const bool cached = client.random.one_in(2);
    client.blocks[0] = held.address;
    const unsigned way = static_cast<unsigned>(client.random.below(3));
    const int error = way == 0 ? numacre_free_bulk(client.instance->pool, client.blocks, 1)
                      : cached ? numacre_free(client.instance->pool, held.address)
                               : numacre_free_uncached(client.instance->pool, held.address);
    verdict_.say("free of published: %d", error);
    --token.giver_calls;
    if (error == 0) {
        if (token.state == Token::State::taken)
            verdict_.fail("process %d frees a block that another has taken", client.instance->number);
        token.state = Token::State::freed;
    } else if (token.state == Token::State::live && token.taker_calls == 0) {
        verdict_.fail("process %d: the free of an own, published block fails: %d", client.instance->number, error);
    }
}

void Tokens::note_death(Instance &dead) {
    for (Client *const client : dead.clients) {
        Token *const token = client->taking;
        if (token == nullptr) continue;
        --token->taker_calls;
        const IndexEntry entry{peek(memory_.nodes[token->numa_node].index_entry(token->block))};
        if (token->state == Token::State::live && entry.is_owned() && entry.owner().value == dead.slot &&
            entry.order() == token->block.order && entry.generation() == next_generation(generation_of(*token))) {
            token->state = Token::State::taken;
            token->taker = &dead;
            shadow_.give_to_dead(*token, dead);
        }
    }
    for (Token &token : tokens_)
        if (token.giver == &dead) token.giver_calls = 0;
}

bool Tokens::is_pinned_by_others(const Instance &dead) const {
    for (const Token &token : tokens_)
        if (token.taker == &dead && token.giver_calls != 0 && token.giver->alive) return true;
    return false;
}

}  // namespace numacre::simulation
