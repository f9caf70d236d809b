// What the clients of an EngineModel do. (Part of engine_model.hpp.)
#pragma once

#include "engine_model.hpp"

namespace numacre::model {

inline void EngineModel::add_client(std::size_t client) {
    explorer.add_thread(
        {.name = "client" + std::to_string(client),
         .process = setup_.clients[client].process,
         .mortal = setup_.clients[client].mortal},
        [this, client](Thread &self) {
            Local &local = self.local<Local>();
            unsigned slot = 0;
            for (const Block block : initial_[identity_of(client)]) {
                local.blocks[slot] = block;
                local.held[slot++] = true;
            }
            for (const Block block : initially_cached_[identity_of(client)]) {
                local.blocks[slot] = block;
                local.cached[slot++] = true;
            }
            for (const int what : setup_.clients[client].script)
                self.run_operation([&] { follow_script(self, client, what); });
            if (!setup_.clients[client].script.empty()) return;
            for (unsigned round = 0; round < setup_.clients[client].operations; ++round)
                self.run_operation([&] { operate(self, client); });
        },
        sizeof(Local));
}

inline void EngineModel::operate(Thread &self, std::size_t client) {
    const Client &what = setup_.clients[client];
    const Local &local = self.local<Local>();
    std::array<unsigned, kHeldMax> held{};
    unsigned held_count = 0;
    unsigned room = kHeldMax;
    for (unsigned slot = 0; slot < kHeldMax; ++slot) {
        if (local.held[slot])
            held[held_count++] = slot;
        else if (room == kHeldMax)
            room = slot;
    }
    const auto allocations = held_count < what.held_max ? static_cast<unsigned>(what.orders.size()) : 0U;
    if (allocations + held_count == 0) return;
    const auto choice = static_cast<unsigned>(self.choose_operation(static_cast<int>(allocations + held_count)));
    if (choice < allocations)
        allocate_one(self, client, Order{static_cast<std::uint32_t>(what.orders[choice])}, room);
    else
        free_one(self, client, held[choice - allocations]);
}

inline void EngineModel::allocate_one(Thread &self, std::size_t client, Order order, unsigned slot) {
    Local &local = self.local<Local>();
    wanted_[client].store(order.value + 1U);
    free_throughout_[client].store(~std::uint64_t{0});
    some_always_free_[client].store(moments_are_common_ ? 1 : 0);
    Block block{};
    const Errc result = buddy_->allocate(actor_of(client), order, {}, block);
    const std::uint64_t was_free = free_throughout_[client].load();
    const bool some_was_free = some_always_free_[client].load() != 0;
    wanted_[client].store(0);
    free_throughout_[client].store(0);
    some_always_free_[client].store(0);
    if (result == Errc::ok) {
        if (block.order != order) self.fail("allocate gave another order than asked for");
        local.blocks[slot] = block;
        local.held[slot] = true;
        touch_frames(self, block);
    } else if (result != Errc::out_of_frames) {
        self.fail(std::string("allocate returned ") + error_row(result).name);
    } else if (was_free != 0) {
        self.fail("out of frames, though a block of order " + std::to_string(order.value) + " was free all the time");
    } else if (some_was_free) {
        self.fail("out of frames, though at every moment some block of order " + std::to_string(order.value) +
                  " was free");
    }
}

// What it saw may have gone meanwhile: it promises nothing.
inline void EngineModel::allocate_where_it_fits(Thread &self, std::size_t client, Order order, unsigned slot) {
    Local &local = self.local<Local>();
    Block block{};
    if (!FitLook{view_, order, Fit::best}.find(0, block) || !buddy_->allocate_at(actor_of(client), block, {})) return;
    local.blocks[slot] = block;
    local.held[slot] = true;
    touch_frames(self, block);
}

inline void EngineModel::free_one(Thread &self, std::size_t client, unsigned slot) {
    Local &local = self.local<Local>();
    const Block block = local.blocks[slot];
    local.held[slot] = false;  // from the call on it is the caller's no more
    local.blocks[slot] = {};
    touch_frames(self, block);
    Block freed{};
    const Errc result = buddy_->free(actor_of(client), block.base, freed);
    if (result != Errc::ok) self.fail(std::string("free of a held block returned ") + error_row(result).name);
    if (freed != block) self.fail("free freed another block: " + to_text(freed) + " instead of " + to_text(block));
}

inline void EngineModel::follow_script(Thread &self, std::size_t client, int what) {
    const Local &local = self.local<Local>();
    unsigned first = 0;
    unsigned room = 0;
    while (first < kHeldMax && !local.held[first]) ++first;
    while (room < kHeldMax && local.held[room]) ++room;
    if (what == kTake || what == kTakeMany) {
        if (room == kHeldMax) return;
        self.rest_until([this] { return mailbox_->load() != 0; });
        take_from_mailbox(self, client, room, what == kTakeMany ? Many::yes : Many::no);
        return;
    }
    if (what <= kCache && what >= kFlushOrFree) {
        self.choose_operation(1);
        use_cache(self, client, what);
        return;
    }
    if (what == kHold) {
        self.rest_until([this] { return notice_->load() != 0; });
        hold_noticed(self, client);
        return;
    }
    if (what == kDrop) {
        if (!local.reads[0] && !local.reads[1]) return;
        self.choose_operation(1);
        drop_first(self, client);
        return;
    }
    if (what == kTakeFound) {
        if (room == kHeldMax) return;
        self.choose_operation(1);
        take_found(self, client, room);
        return;
    }
    if (what <= kCacheInside) {
        self.choose_operation(1);
        if (what == kUncacheNamed)
            uncache_named(self, client);
        else if (what >= kUncacheInside)
            use_cache_inside(self, client, what);
        else
            gather(self, client, what == kGather);
        return;
    }
    if (what == kReferShared) {
        self.choose_operation(1);
        refer_to_shared(self, client);
        return;
    }
    if (what == kNudge) {
        self.choose_operation(1);
        nudge_waiters(pool_, true, nobody_to_wake);
        return;
    }
    if (what <= kFreeShared && what != kRelease) {
        use_shared(self, client, what, room);
        return;
    }
    if (what <= kWithdraw && what != kRelease) {
        if (!local.gave || room == kHeldMax) return;
        self.choose_operation(1);
        think_again(self, client, what, room);
        return;
    }
    if (what < 0 ? first == kHeldMax : room == kHeldMax) return;  // an allocation before may have found nothing
    self.choose_operation(1);
    if (what >= kFitting) {
        allocate_where_it_fits(self, client, Order{static_cast<std::uint32_t>(what - kFitting)}, room);
        return;
    }
    if (what >= kWait) {
        wait_for(self, client, Order{static_cast<std::uint32_t>(what % kTwo)}, what < kWaitBriefly, room);
        return;
    }
    if (what == kRelease) {
        free_and_serve(self, client, first);
        return;
    }
    if (what >= kTwo) {
        allocate_many(self, client, Order{static_cast<std::uint32_t>(what % kTwo)},
                      what >= kRefill ? BlockState::cached : BlockState::owned);
        return;
    }
    if (what == kFreeFirst)
        free_one(self, client, first);
    else if (what == kGive)
        put_into_mailbox(self, client, first);
    else
        allocate_one(self, client, Order{static_cast<std::uint32_t>(what)}, room);
}

struct OneNode {
    Buddy<SimEnv> &buddy;
    Buddy<SimEnv> &at(std::uint32_t) const { return buddy; }
    std::uint32_t count() const { return 1; }
    std::uint32_t nearest(std::uint32_t, std::uint32_t) const { return 0; }
};

inline void EngineModel::serve_if_somebody_waits(std::size_t client) {
    if ((pool_.header->attention.load() & Attention::kWaiters) == 0) return;
    const OneNode node{*buddy_};
    HandOff<SimEnv, OneNode>{pool_, node}.serve(actor_of(client), nobody_to_wake);
}

inline void EngineModel::free_and_serve(Thread &self, std::size_t client, unsigned slot) {
    if ((pool_.header->attention.load() & Attention::kWaiters) != 0) {
        Local &local = self.local<Local>();
        const Block block = local.blocks[slot];
        const OneNode node{*buddy_};
        const IndexEntry entry{view_.index_entry(block).load()};
        local.held[slot] = false;
        touch_frames(self, block);
        using Server = HandOff<SimEnv, OneNode>;
        const auto given = Server{pool_, node}.give(actor_of(client), 0, block, entry, nobody_to_wake);
        if (given != Server::Given::no) {
            local.blocks[slot] = {};
            if (given == Server::Given::undone) serve_if_somebody_waits(client);
            return;
        }
        local.held[slot] = true;
    }
    free_one(self, client, slot);
    serve_if_somebody_waits(client);
}

// As client/src/waiting.cpp, without looking again after a second.
inline void EngineModel::wait_for(Thread &self, std::size_t client, Order order, bool patient, unsigned slot) {
    Local &local = self.local<Local>();
    const OneNode node{*buddy_};
    HandOff<SimEnv, OneNode> hand_off{pool_, node};
    const Actor actor = actor_of(client);
    const Word &word = pool_.threads[actor.thread.value].waiting;
    WaitWord wish;
    // From here on nobody gives it anything of a chunk that drains already.
    const bool drains = !setup_.chunk_steps.empty() && buddy_->is_draining(Block{FrameIndex{0}, order});
    for (bool received = false; !received;) {
        if (!wish.is_waiting()) wish = hand_off.announce(actor, order, NumaNode{0}, 1);
        hand_off.serve(actor, nobody_to_wake);
        if (!patient && hand_off.withdraw(actor)) break;
        self.rest_until([&] { return word.load() != wish.bits(); });
        WaitWord now = hand_off.look(actor);
        if (now == wish.nudged()) now = hand_off.calm(actor, wish);
        if (!hand_off.has_ended(wish, now)) continue;
        std::uint32_t numa_node = 0;
        Block block{};
        received = hand_off.receive(actor, {}, numa_node, block);
        wish = WaitWord{};
        if (!received) continue;
        if (block.order != order) self.fail("a waiter was given another order than it wanted");
        if (drains && block.base.value >> setup_.geometry.largest_order == 0)
            self.fail("a block of a chunk that drains was handed on");
        local.blocks[slot] = block;
        local.held[slot] = true;
        touch_frames(self, block);
    }
    serve_if_somebody_waits(client);
}

inline void EngineModel::use_cache(Thread &self, std::size_t client, int what) {
    Local &local = self.local<Local>();
    unsigned held = 0;
    unsigned cached = 0;
    while (held < kHeldMax && !local.held[held]) ++held;
    while (cached < kHeldMax && !local.cached[cached]) ++cached;
    if (what == kCache && held < kHeldMax) {
        Word &slot = view_.index_entry(local.blocks[held]);
        local.held[held] = false;
        local.cached[held] = true;
        const IndexEntry entry = look_at(slot);
        if (!is_like(entry, IndexEntry::owned(actor_of(client).process, local.blocks[held].order, 0, {})))
            self.fail("a held block cannot be cached");
        into_cache(slot, entry, actor_of(client).thread);
    } else if (what == kUncache && cached < kHeldMax) {
        auto &slot = view_.index_entry(local.blocks[cached]);
        const IndexEntry entry = look_at(slot);
        const IndexEntry owned = IndexEntry::owned(actor_of(client).process, local.blocks[cached].order, 0, {});
        if (!is_cached(entry, owned, actor_of(client).thread)) {
            if (!somebody_forked()) self.fail("a block in our cache is not cached");
            local.cached[cached] = false;
            local.blocks[cached] = {};
            return;
        }
        out_of_cache(slot, entry, owned, actor_of(client).thread);
        local.cached[cached] = false;
        local.held[cached] = true;
        touch_frames(self, local.blocks[cached]);
    } else if (what == kFlush || what == kFreeAll || what == kFlushOrFree) {
        if (what != kFlush) free_many(self, client, BlockState::owned);
        free_many(self, client, BlockState::cached);
    }
}

// The client's part: as numacre_inline_enter() and answer_attention() (client/src/cache.cpp).
inline bool EngineModel::enter_cache(Thread &self, std::size_t client) {
    Local &local = self.local<Local>();
    auto &slot = pool_.threads[slot_of(client).value];
    numacre_inline_begin(test::place_of(slot.inside));
    if (Attention::requests(NUMACRE_INLINE_LOAD(test::place_of(*attention_))) == local.answered) return true;
    numacre_inline_end(test::place_of(slot.inside));
    const std::uint64_t now = attention_->load();
    for (unsigned cached = 0; cached < kHeldMax; ++cached) {
        if (!local.cached[cached]) continue;
        const FrameIndex base = local.blocks[cached].base;
        local.cached[cached] = false;
        local.blocks[cached] = {};
        (void)buddy_->free_many(actor_of(client), BlockState::cached, &base, 1, true);  // 0: somebody has it already
    }
    answer_request(slot, now);
    local.answered = Attention::requests(now);
    return false;
}

inline void EngineModel::use_cache_inside(Thread &self, std::size_t client, int what) {
    if (!enter_cache(self, client)) return;
    use_cache(self, client, what == kCacheInside ? kCache : kUncache);
    numacre_inline_end(test::place_of(pool_.threads[slot_of(client).value].inside));
}

// As numacre_alloc_ref_bulk (client/src/api.cpp).
inline void EngineModel::uncache_named(Thread &self, std::size_t client) {
    if (!enter_cache(self, client)) return;
    Local &local = self.local<Local>();
    const Actor actor = actor_of(client);
    Word &inside = pool_.threads[slot_of(client).value].inside;
    unsigned cached = 0;
    while (cached < kHeldMax && !local.cached[cached]) ++cached;
    Reference name;
    if (cached < kHeldMax) {
        const Block block = local.blocks[cached];
        Word &slot = view_.index_entry(block);
        const IndexEntry entry = look_at(slot);
        const IndexEntry owned = IndexEntry::owned(actor.process, block.order, 0, {}).published();
        if (!is_cached(entry, owned, actor.thread)) self.fail("a block in our cache is not cached");
        const IndexEntry named{handed_out(entry, owned, actor.thread)};
        name = buddy_->leaf_names(buddy_->view_of(actor), {}).name(block, named);
        touch_frames(self, block);
        out_of_cache_named(slot, named);
        local.cached[cached] = false;
        local.blocks[cached] = {};
        if (somebody_thinks_again()) {
            local.given = block;
            local.given_entry = named;
            local.gave = true;
        }
    }
    numacre_inline_end(test::place_of(inside));
    if (!(name == Reference{})) mailbox_->store(name.bits());
}

// The part of the thread that is short of memory: as take_back_idle_caches() (client/src/idle.cpp).
inline void EngineModel::gather(Thread &self, std::size_t client, bool fenced) {
    Local &local = self.local<Local>();
    const std::uint64_t now = attention_->fetch_add(Attention::kPressureStep) + Attention::kPressureStep;
    local.answered = Attention::requests(now);
    answer_request(pool_.threads[slot_of(client).value], now);
    if (fenced) pass_barrier(*attention_);
    (void)IdleCaches<SimEnv>{pool_, view_, local.answered}.take_back(
        actor_of(client), [](ProcessSlot, Block) {}, [](ProcessSlot, Block, bool) {});
}

inline void EngineModel::allocate_many(Thread &self, std::size_t client, Order order, BlockState state) {
    Local &local = self.local<Local>();
    std::array<FrameIndex, 2> bases{};
    const unsigned got = buddy_->allocate_many(actor_of(client), order, state, {}, bases.data(), 2);
    for (unsigned i = 0; i < got; ++i) {
        unsigned slot = 0;
        while (slot < kHeldMax && (local.held[slot] || local.cached[slot])) ++slot;
        if (slot == kHeldMax) self.fail("the script allocates more than the model can hold");
        local.blocks[slot] = Block{bases[i], order};
        (state == BlockState::owned ? local.held : local.cached)[slot] = true;
        touch_frames(self, local.blocks[slot]);
    }
}

inline void EngineModel::free_many(Thread &self, std::size_t client, BlockState state) {
    Local &local = self.local<Local>();
    auto &mine = state == BlockState::owned ? local.held : local.cached;
    std::array<FrameIndex, kHeldMax> bases{};
    unsigned count = 0;
    for (unsigned slot = 0; slot < kHeldMax; ++slot) {
        if (!mine[slot]) continue;
        bases[count++] = local.blocks[slot].base;
        touch_frames(self, local.blocks[slot]);
        mine[slot] = false;
        local.blocks[slot] = {};
    }
    if (count != 0 && buddy_->free_many(actor_of(client), state, bases.data(), count) != count)
        self.fail("free_many refused a block of ours");
}

// What threads of one process do to a block that each of them believes to have.
inline void EngineModel::use_shared(Thread &self, std::size_t client, int what, unsigned room) {
    Local &local = self.local<Local>();
    const Actor actor = actor_of(client);
    Word &slot = view_.index_entry(shared_);
    std::uint64_t sharers = 0;
    for (const Client &other : setup_.clients)
        for (const int step : other.script) sharers += step <= kFreeShared && step >= kCacheShared ? 1 : 0;
    const auto is_anothers = [&] {
        const IndexEntry entry{slot.load()};
        return entry.is_held() && entry.owner() != actor.process;
    };
    switch (what) {
        case kAwaitCached:
            self.rest_until([&] { return shared_ended_->load() == sharers; });
            return;
        case kAwaitFree:
            self.rest_until([&] { return is_free(shared_); });
            return;
        case kAwaitTaken:
            self.rest_until(is_anothers);
            return;
        default:
            self.choose_operation(1);
    }
    if (what == kFreeUnchecked) {
        Block freed{};
        (void)buddy_->free(actor, shared_.base, freed);
        shared_ended_->fetch_add(1);
    } else if (what == kFreeShared) {
        // Each has used it until now, or another thread of its process has: no touch().
        Block freed{};
        const Errc result = buddy_->free_checked(actor, shared_.base, freed);
        if (result == Errc::ok) shared_freed_->fetch_add(1);
        // not_owner: it is another process's by now.
        if (result != Errc::ok && result != Errc::stale_ref && result != Errc::not_owner)
            self.fail(std::string("free of a block that another thread frees returned ") + error_row(result).name);
        if (shared_freed_->load() > 1) self.fail("two have freed one block");
        if (shared_ended_->fetch_add(1) + 1 == sharers && shared_freed_->load() == 0)
            self.fail("nobody has freed what all have freed");
    } else if (what == kCacheShared || what == kCacheSlowly) {
        const IndexEntry entry = look_at(slot);
        if (entry.is_private(IndexEntry::private_to(actor.process))) {
            local.caches_shared = true;
            if (what == kCacheSlowly) self.wait_until(is_anothers);
            into_cache(slot, entry, actor.thread);
        }
        shared_ended_->fetch_add(1);
    } else if (local.caches_shared) {
        local.caches_shared = false;
        if (what == kFlushShared) {
            (void)buddy_->free_many(actor, BlockState::cached, &shared_.base, 1);
            return;
        }
        const IndexEntry entry = look_at(slot);
        const IndexEntry owned = IndexEntry::owned(actor.process, shared_.order, 0, {});
        if (!is_cached(entry, owned, actor.thread)) return;
        if (what == kUncacheSlowly) self.wait_until(is_anothers);
        out_of_cache(slot, entry, owned, actor.thread);
        local.blocks[room] = shared_;
        local.held[room] = true;
        touch_frames(self, shared_);
    }
}

// numacre_ref_of, beside other threads of the process that call it for the same block. Whoever comes second to the
// mailbox throws its reference away: two references to one block are worth no more than one.
inline void EngineModel::refer_to_shared(Thread &self, std::size_t client) {
    const Actor actor = actor_of(client);
    Reference name;
    if (layer_of(shared_.order) != 0 || !buddy_->publish_in_leaf(buddy_->view_of(actor), shared_.base, name)) {
        Block found{};
        IndexEntry entry;
        if (buddy_->find_entry(shared_.base, found, entry) != Errc::ok || entry.owner() != actor.process) return;
        name = buddy_->publish(found, entry);
    }
    if (name.bits() == 0) return;  // another process has it by now
    if (named_by(name) != shared_) self.fail("a reference names another block: " + to_text(named_by(name)));
    std::uint64_t empty = 0;
    (void)mailbox_->compare_exchange_strong(empty, name.bits());
}

inline void EngineModel::put_into_mailbox(Thread &self, std::size_t client, unsigned slot) {
    Local &local = self.local<Local>();
    const Block block = local.blocks[slot];
    local.held[slot] = false;
    local.blocks[slot] = {};
    touch_frames(self, block);
    const IndexEntry entry{view_.index_entry(block).load(std::memory_order_relaxed)};  // its own
    if (somebody_thinks_again()) {
        local.given = block;
        local.given_entry = entry.published();
        local.gave = true;
    }
    // As clients do it, here and in take_from_mailbox(): the short way first.
    Reference name;
    if (!buddy_->publish_in_leaf(buddy_->view_of(actor_of(client)), block.base, name)) {
        if (layer_of(block.order) == 0 && !entry.is_lent()) self.fail("the short way does not publish a held block");
        name = buddy_->publish(block, entry);
    }
    if (somebody_reads()) notice_->store(name.bits());
    mailbox_->store(name.bits());
}

// Of the giver and the taker exactly one has the block afterwards.
inline void EngineModel::think_again(Thread &self, std::size_t client, int what, unsigned room) {
    Local &local = self.local<Local>();
    const Block block = local.given;
    IndexEntry entry = local.given_entry;
    local.given = {};
    local.given_entry = {};
    local.gave = false;
    if (what == kWithdraw) {
        if (!buddy_->withdraw(block, entry)) return;
        if (entry.is_published()) self.fail("a withdrawn block is still published");
        local.blocks[room] = block;
        local.held[room] = true;
        touch_frames(self, block);
    } else if (what == kFreeGiven) {
        Block freed{};
        (void)buddy_->free(actor_of(client), block.base, freed);
    } else if (buddy_->free_many(actor_of(client), BlockState::owned, &block.base, 1) != 1 && somebody_reads()) {
        // As numacre_free_bulk.
        Block freed{};
        (void)buddy_->free_checked(actor_of(client), block.base, freed);
    }
}

// The giver's bytes are there, and stay until the drop.
inline void EngineModel::hold_noticed(Thread &self, std::size_t client) {
    Local &local = self.local<Local>();
    const auto self_view = buddy_->view_of(actor_of(client));
    // As clients do it: the short way first.
    HoldWords<SimEnv> &words = pool_.holds[slot_of(client).value];
    const Reference reference{notice_->load()};
    Block block = named_by(reference);
    const bool is_short = buddy_->hold_in_leaf(self_view, words, reference, [](FrameIndex) {});
    const Errc result = is_short ? Errc::ok : buddy_->hold(self_view, words, reference, block);
    if (result == Errc::stale_ref) return;
    if (result != Errc::ok) self.fail(std::string("hold returned ") + error_row(result).name);
    const unsigned place = local.reads[0] ? 1 : 0;
    local.read[place] = block;
    local.reads[place] = true;
    touch_as_reader(self, client, block);
}

inline void EngineModel::drop_first(Thread &self, std::size_t client) {
    Local &local = self.local<Local>();
    const unsigned first = local.reads[0] ? 0 : 1;
    const Block block = local.read[first];
    touch_as_reader(self, client, block);
    local.reads[first] = false;
    local.read[first] = {};
    const auto self_view = buddy_->view_of(actor_of(client));
    HoldWords<SimEnv> &words = pool_.holds[slot_of(client).value];
    const unsigned place = find_hold(*self_view.slot, words, NumaNode{0}, block.base);
    if (place == kHoldsMax) return self.fail("a block that is held is in none of the thread's words");
    (void)buddy_->drop(self_view, *self_view.slot, words, place);
}

inline void EngineModel::take_from_mailbox(Thread &self, std::size_t client, unsigned slot, Many many) {
    Local &local = self.local<Local>();
    std::uint64_t mail = mailbox_->load();
    const Reference reference{mail};
    Block block{};
    const auto self_view = buddy_->view_of(actor_of(client));
    const auto give = [&](unsigned, FrameIndex base) { block = Block{base, named_by(reference).order}; };
    const bool is_taken = many == Many::yes ? buddy_->take_many_in_leaf(self_view, &mail, 1, {}, give) == 1
                                            : buddy_->take_in_leaf(self_view, reference, {}, block);
    const Errc result = is_taken ? Errc::ok : buddy_->take(actor_of(client), reference, {}, block);
    (void)mailbox_->compare_exchange_strong(mail, 0);  // there may be another by now
    if (result == Errc::ok) {
        if (block != named_by(reference)) self.fail("take gave another block: " + to_text(block));
        // Its process has the block back, whose threads go on referring to it: it is no thread's in particular.
        if (several_refer_to_shared() && actor_of(client).process.value == process_slot_of(0)) return;
        local.blocks[slot] = block;
        local.held[slot] = true;
        touch_frames(self, block);
    } else if (result != Errc::stale_ref || !(somebody_died() || somebody_thinks_again() ||
                                              somebody_takes_what_it_finds() || several_refer_to_shared())) {
        self.fail(std::string("take of a block on its way returned ") + error_row(result).name);
    }
}

// As numacre_virt_to_ref and numacre_take: whoever knows the address may take the block, without a channel.
inline void EngineModel::take_found(Thread &self, std::size_t client, unsigned slot) {
    Local &local = self.local<Local>();
    const Reference name = buddy_->find_name(initially_cached_.front().front().base);
    if (name == Reference{}) return;
    Block block{};
    const Errc result = buddy_->take(actor_of(client), name, {}, block);
    if (result == Errc::stale_ref) return;
    if (result != Errc::ok) self.fail(std::string("take of a block that was found returned ") + error_row(result).name);
    local.blocks[slot] = block;
    local.held[slot] = true;
    touch_frames(self, block);
}

// The ends suffice.
inline void EngineModel::touch_frames(Thread &self, Block block) const {
    const std::uint64_t first = block.base.value >> frames_order_;
    const std::uint64_t last = (block.base.value + block.order.frames() - 1) >> frames_order_;
    self.touch(&frames_[first]);
    if (last != first) self.touch(&frames_[last]);
    const std::uint64_t frames = setup_.geometry.frame_count >> frames_order_;
    for (std::size_t client = 0; read_frames_ != nullptr && client < setup_.clients.size(); ++client)
        self.touch(&read_frames_[client * frames + first]);
}
inline void EngineModel::touch_as_reader(Thread &self, std::size_t client, Block block) const {
    const std::uint64_t frames = setup_.geometry.frame_count >> frames_order_;
    self.touch(&read_frames_[client * frames + (block.base.value >> frames_order_)]);
}

inline bool EngineModel::somebody_reads() const {
    for (const Client &client : setup_.clients)
        if (std::find(client.script.begin(), client.script.end(), kHold) != client.script.end()) return true;
    return false;
}

// Whether a client that lives holds it.
inline bool EngineModel::is_read(Block block) const {
    for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
        if (explorer.dead(setup_.clients[client].process)) continue;
        const Local &local = explorer.local<Local>(static_cast<int>(client));
        for (unsigned place = 0; place < local.reads.size(); ++place)
            if (local.reads[place] && local.read[place] == block) return true;
    }
    return false;
}

inline bool EngineModel::somebody_takes_what_it_finds() const {
    for (const Client &client : setup_.clients)
        if (std::find(client.script.begin(), client.script.end(), kTakeFound) != client.script.end()) return true;
    return false;
}

inline bool EngineModel::somebody_died() const {
    for (const Client &client : setup_.clients)
        if (explorer.dead(client.process)) return true;
    return false;
}

inline bool EngineModel::is_dead_or_corpse(std::uint16_t process) const {
    for (const Corpse &corpse : setup_.corpses)
        if (corpse.process == process) return true;
    return explorer.dead(process);
}

inline bool EngineModel::somebody_thinks_again() const {
    for (const Client &client : setup_.clients)
        for (const int what : client.script)
            if (what <= kWithdraw && what >= kBulkFreeGiven) return true;
    return false;
}

// The second reference may be to what has been taken by the first.
inline bool EngineModel::several_refer_to_shared() const {
    for (const Client &client : setup_.clients)
        for (const int what : client.script)
            if (what == kReferShared) return true;
    return false;
}

inline bool EngineModel::somebody_forked() const {
    for (const Client &client : setup_.clients)
        if (client.forked_from >= 0) return true;
    return false;
}

inline bool EngineModel::shares_its_slot(std::size_t client) const {
    for (std::size_t other = 0; other < setup_.clients.size(); ++other)
        if (other != client && slot_of(other) == slot_of(client)) return true;
    return false;
}

}  // namespace numacre::model
