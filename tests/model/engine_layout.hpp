// How an EngineModel begins: its regions, the blocks that are taken from the beginning, and what the explorer has to
// know of each word. (Part of engine_model.hpp.)
#pragma once

#include "engine_model.hpp"

namespace numacre::model {

inline EngineModel::EngineModel(const std::string &name, const Options &options, Setup setup)
    : explorer(name, options), setup_(std::move(setup)) {
    moments_are_common_ = options.memory == MemoryMode::sequential;
    for (const Client &client : setup_.clients)
        if (client.process >= process_slots_) process_slots_ = client.process + 1U;
    for (std::size_t client = 0; client < setup_.clients.size(); ++client)
        if (slot_of(client).value >= thread_slots_) thread_slots_ = slot_of(client).value + 1U;
    for (const Corpse &corpse : setup_.corpses) {
        process_slots_ = std::max(process_slots_, corpse.process + 1U);
        thread_slots_ = std::max(thread_slots_, corpse.thread_slot() + 1U);
    }
    lay_out();
    label_words();
    for (std::size_t client = 0; client < setup_.clients.size(); ++client) add_client(client);
    if (setup_.daemon) add_daemon();
    if (!setup_.chunk_steps.empty()) add_operator();
    explorer.on_step([this] { keep_history(); });
    explorer.on_state([this] { check_invariants(); });
    explorer.on_quiet([this] { check_invariants_at_rest(); });
}

// One function for the same reason as the order of the files at the end of engine_model.hpp: cut, it leaves the counts
// of states some percent lower.
inline void EngineModel::lay_out() {
    const Geometry &geometry = setup_.geometry;
    const std::size_t pool_bytes = PoolLayout<SimEnv>::of(process_slots_, thread_slots_).region_bytes;
    const std::size_t node_bytes = NodeLayout<SimEnv>::of(geometry, thread_slots_).region_bytes;
    void *const pool_region = explorer.allocate(pool_bytes, kPageBytes);
    void *const node_region = explorer.allocate(node_bytes, kPageBytes);
    format_pool_region<SimEnv>(pool_region, "model", 1, geometry, 1, process_slots_, thread_slots_);
    format_node_region<SimEnv>(node_region, geometry, NumaNode{0}, 1, thread_slots_);
    pool_ = PoolView<SimEnv>::at(pool_region, process_slots_, thread_slots_);
    view_ = NodeView<SimEnv>::at(node_region, geometry, NumaNode{0}, thread_slots_);
    buddy_ = std::make_unique<Buddy<SimEnv>>(view_, pool_);

    Chunks<SimEnv> chunks{view_, pool_};
    for (std::uint64_t chunk = 0; chunk < geometry.chunk_count(); ++chunk) chunks.bring_online(chunk);
    if (setup_.wrapping) wrap_numbers();
    for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
        const Actor actor = actor_of(client);
        pool_.processes[actor.process.value].state.store(static_cast<std::uint64_t>(ProcessState::active));
        pool_.threads[actor.thread.value].owner.store(ThreadOwner{actor.process}.bits());
    }
    for (const Corpse &corpse : setup_.corpses) {
        pool_.processes[corpse.process].state.store(static_cast<std::uint64_t>(ProcessState::dead));
        pool_.threads[corpse.thread_slot()].owner.store(ThreadOwner{ProcessSlot{corpse.process}}.bits());
        pool_.threads[corpse.thread_slot()].intent.store(Intent{corpse.kind, NumaNode{0}, corpse.block}.bits());
    }
    pool_.header->thread_high_water.store(thread_slots_);
    take_beforehand();
    for (std::size_t client = 0; client < setup_.clients.size(); ++client)
        for (unsigned order = 0; order <= kLeafOrder && setup_.clients[client].home >= 0; ++order)
            view_.home[slot_of(client).value].word[order].store(
                static_cast<std::uint64_t>(setup_.clients[client].home) * kLeafFrames + 1);

    for (std::size_t client = 0; client < setup_.clients.size(); ++client)
        for (const auto &[order, word] : setup_.clients[client].homes)
            view_.home[slot_of(client).value].word[order].store(word * kLeafFrames + 1);

    for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
        for (const unsigned order : setup_.clients[client].used) {
            Block block{};
            Block freed{};
            if (buddy_->allocate(actor_of(client), Order{order}, {}, block) != Errc::ok ||
                buddy_->free(actor_of(client), block.base, freed) != Errc::ok)
                fail("set-up: a client cannot use what it shall have used");
        }
    }

    initial_.resize(setup_.clients.size());
    for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
        for (const unsigned order : setup_.clients[client].holds) {
            Block block{};
            if (buddy_->allocate(actor_of(client), Order{order}, {}, block) != Errc::ok)
                fail("set-up: a client cannot hold what it shall hold");
            initial_[client].push_back(block);
        }
    }
    initially_cached_.resize(setup_.clients.size());
    for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
        for (const unsigned order : setup_.clients[client].caches) {
            FrameIndex base{};
            const Order wanted{order};
            if (buddy_->allocate_many(actor_of(client), wanted, BlockState::cached, {}, &base, 1) != 1)
                fail("set-up: a client cannot cache what it shall cache");
            initially_cached_[client].push_back({base, wanted});
        }
    }
    if (setup_.shared >= 0 &&
        buddy_->allocate(actor_of(0), Order{static_cast<std::uint32_t>(setup_.shared)}, {}, shared_) != Errc::ok)
        fail("set-up: there is no room for the shared block");
    if (setup_.exhausted) {
        Block block{};
        if (buddy_->allocate({kDaemonThread, kDaemonProcess}, Order{0}, {}, block) != Errc::out_of_frames)
            fail("set-up: memory shall be exhausted and is not");
    }

    free_throughout_ = static_cast<Word *>(explorer.allocate(setup_.clients.size() * sizeof(Word)));
    some_always_free_ = static_cast<Word *>(explorer.allocate(setup_.clients.size() * sizeof(Word)));
    explorer.keep_private(some_always_free_, setup_.clients.size() * sizeof(Word));
    wanted_ = static_cast<Word *>(explorer.allocate(setup_.clients.size() * sizeof(Word)));
    daemon_died_ = explorer.make<Word>();
    attention_ = explorer.make<Word>();
    explorer.label(attention_, sizeof(Word), "attention");
    explorer.keep_private(free_throughout_, setup_.clients.size() * sizeof(Word));
    explorer.keep_private(wanted_, setup_.clients.size() * sizeof(Word));
    mailbox_ = explorer.make<Word>();
    explorer.keep_private(daemon_died_, sizeof(Word));
    explorer.keep_as_channel(mailbox_, sizeof(Word));
    notice_ = explorer.make<Word>();
    explorer.keep_as_channel(notice_, sizeof(Word));
    shared_freed_ = explorer.make<Word>();
    shared_ended_ = explorer.make<Word>();
    explorer.keep_as_channel(shared_freed_, sizeof(Word));
    explorer.keep_as_channel(shared_ended_, sizeof(Word));
    // Steps like all others, although nobody else looks: the daemon may die between any two of them.
    unit_state_ = explorer.make<Word>();
    unit_is_draining_ = explorer.make<Word>();
    unit_is_populated_ = explorer.make<Word>();
    unit_state_->store(static_cast<std::uint64_t>(UnitState::online));
    unit_is_populated_->store(1);
    explorer.label(unit_state_, sizeof(Word), "unit.state");
    explorer.label(unit_is_draining_, sizeof(Word), "unit.is_draining");
    explorer.label(unit_is_populated_, sizeof(Word), "unit.is_populated");
    // Nothing the allocator does depends on tallies, and these two never change here.
    explorer.ignore(view_.counters, thread_slots_ * sizeof(ThreadCounters<SimEnv>));
    explorer.ignore(pool_.header, sizeof(PoolHeader<SimEnv>));
    std::vector<bool> in_use(thread_slots_, false);
    in_use[kDaemonThread.value] = true;
    for (const Corpse &corpse : setup_.corpses) in_use[corpse.thread_slot()] = true;
    for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
        const auto thread = static_cast<int>(client);
        const std::size_t slot = slot_of(client).value;
        in_use[slot] = true;
        if (shares_its_slot(client)) continue;
        explorer.keep_private(&view_.home[slot], sizeof view_.home[slot]);
        explorer.written_only_by(thread, &pool_.threads[slot].intent, sizeof(Word));
        explorer.written_only_by(thread, &pool_.threads[slot].hint_work, sizeof(Word));
        explorer.written_only_by(thread, &pool_.threads[slot].holds, sizeof(Word));
        explorer.written_only_by(thread, &pool_.holds[slot], sizeof pool_.holds[slot]);
    }
    for (std::uint32_t slot = 0; slot < thread_slots_; ++slot) {
        if (in_use[slot]) continue;  // the others never change
        explorer.keep_private(&pool_.threads[slot], sizeof pool_.threads[slot]);
        explorer.keep_private(&view_.home[slot], sizeof view_.home[slot]);
    }

    // Only where an allocation of a listed order can begin.
    std::vector<bool> wanted(kMaxOrder + 1, false);
    for (const Client &client : setup_.clients) {
        for (const unsigned order : client.orders) wanted[order] = true;
        for (const int what : client.script)
            if (what >= 0) wanted[static_cast<unsigned>(what % kTwo)] = true;
        for (const unsigned order : client.holds) wanted[order] = true;
        for (const unsigned order : client.caches) wanted[order] = true;
        for (const unsigned order : client.used) wanted[order] = true;
    }
    if (setup_.shared >= 0) wanted[static_cast<unsigned>(setup_.shared)] = true;
    if (!setup_.chunk_steps.empty()) wanted[geometry.largest_order] = true;  // an offline chunk has an entry
    for (unsigned order = 0; order <= kMaxOrder; ++order)
        if (wanted[order] && order < frames_order_) frames_order_ = order;
    const std::uint64_t frames_bytes = (geometry.frame_count >> frames_order_) * sizeof(Word);
    frames_ = static_cast<Word *>(explorer.allocate(frames_bytes));
    explorer.keep_private(frames_, frames_bytes);
    explorer.label(frames_, frames_bytes, "frames");
    if (somebody_reads()) {
        read_frames_ = static_cast<Word *>(explorer.allocate(setup_.clients.size() * frames_bytes));
        explorer.keep_private(read_frames_, setup_.clients.size() * frames_bytes);
    }
    for (std::uint32_t slot = 0; slot < thread_slots_; ++slot) {
        if (in_use[slot] && slot != kDaemonThread.value && somebody_reads()) continue;
        explorer.keep_private(&pool_.threads[slot].holds, sizeof(Word));
        explorer.keep_private(&pool_.holds[slot], sizeof pool_.holds[slot]);
    }
    for (unsigned layer = 0; layer <= view_.top_layer; ++layer) {
        for (std::uint64_t entry = 0; entry < geometry.index_entry_count(layer); ++entry) {
            const FrameIndex base{entry << geometry.index_granule(layer)};
            bool possible = false;
            for (unsigned order = 0; order <= geometry.largest_order; ++order) {
                const Block block{base, Order{order}};
                if (!wanted[order] || layer_of(block.order) != layer || !view_.contains(block)) continue;
                bool room = true;
                for (std::uint64_t word = 0; word < taken_.size(); ++word)
                    for (unsigned frame = 0; frame < kLeafFrames; ++frame)
                        if ((taken_[word] >> frame & 1) != 0 &&
                            overlaps(block, Block{FrameIndex{word * kLeafFrames + frame}, Order{0}}))
                            room = false;
                possible = possible || room;
            }
            // Where none can begin an entry never changes, so reading it is no step.
            if (possible)
                places_.push_back({layer, base, &view_.index[layer][entry]});
            else
                explorer.keep_private(&view_.index[layer][entry], sizeof(Word));
        }
        // Nobody comes to the end of a half round unless generations begin there.
        if (!setup_.wrapping)
            explorer.keep_private(view_.era[layer], geometry.index_entry_count(layer) * sizeof(*view_.era[layer]));
    }
}

inline void EngineModel::wrap_numbers() {
    const std::uint64_t last_generation = IndexEntry::freeing(kDaemonThread, Order{0}, kGenerationMax).bits() &
                                          ~IndexEntry::freeing(kDaemonThread, Order{0}, 0).bits();
    constexpr std::uint64_t kLastTag = ~std::uint64_t{0} << 32;
    for (unsigned layer = 0; layer <= view_.top_layer; ++layer) {
        for (std::uint64_t place = 0; place < setup_.geometry.index_entry_count(layer); ++place)
            view_.index[layer][place].store(view_.index[layer][place].load() | last_generation);
        for (std::uint64_t word = 0; layer != 0 && word < setup_.geometry.word_count(layer); ++word)
            view_.upper[layer][word].store(view_.upper[layer][word].load() | kLastTag);
    }
}

inline void EngineModel::take_beforehand() {
    taken_.resize(setup_.geometry.word_count(0));
    for (const auto &[word, frames] : setup_.taken) {
        taken_[word] = frames;
        view_.leaf[word].store(frames | beyond_the_end(word));
        // Bits that no entry covers are what recovery clears, if somebody dies with an intent on the word.
        for (unsigned frame = 0; frame < kLeafFrames; ++frame)
            if ((frames >> frame & 1) != 0)
                view_.index[0][word * kLeafFrames + frame].store(
                    IndexEntry::owned(kTakesForEver, Order{0}, 1, {}).bits());
        std::uint64_t child = word;
        for (unsigned layer = 1; layer <= view_.top_layer && frames != 0; ++layer, child /= kUpperFanOut) {
            Word &state = view_.upper[layer][child / kUpperFanOut];
            state.store(UpperWord{state.load()}.with_mark(child % kUpperFanOut).bits());
        }
    }
}

}  // namespace numacre::model
