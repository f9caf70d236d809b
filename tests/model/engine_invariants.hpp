// What must hold in an EngineModel: in every state, and when everybody is between operations. (Part of
// engine_model.hpp.)
#pragma once

#include "engine_model.hpp"

namespace numacre::model {

// Bits of the last leaf word that stand for no frame.
inline std::uint64_t EngineModel::beyond_the_end(std::uint64_t leaf_word) const {
    const std::uint64_t exist = setup_.geometry.frame_count - leaf_word * kLeafFrames;
    return exist >= kLeafFrames ? 0 : ~std::uint64_t{0} << exist;
}

// No frame of it is taken, no block above or below it allocated. Marks do not count.
inline bool EngineModel::is_free(Block block) const {
    for (std::uint64_t word = block.base.value / kLeafFrames;
         word * kLeafFrames < block.base.value + block.order.frames(); ++word) {
        const std::uint64_t mask = block.order.value >= kLeafOrder
                                       ? ~std::uint64_t{0}
                                       : leaf::mask(block.base.value % kLeafFrames, block.order.value);
        if ((view_.leaf[word].load() & mask) != 0) return false;
    }
    for (unsigned layer = 1; layer <= view_.top_layer; ++layer) {
        const unsigned child_order = word_order(layer - 1);
        for (std::uint64_t child = block.base.value >> child_order;
             child << child_order < block.base.value + block.order.frames(); ++child)
            if (UpperWord{view_.upper[layer][child / kUpperFanOut].load()}.closed_to_allocation(child % kUpperFanOut))
                return false;
    }
    return true;
}

// In weak memory "now" is nothing that two threads agree about: what the client cannot know yet it may miss.
inline bool EngineModel::is_up_to_date(std::size_t client, Block block) const {
    const auto thread = static_cast<int>(client);
    const std::uint64_t end = block.base.value + block.order.frames();
    for (std::uint64_t word = block.base.value / kLeafFrames; word * kLeafFrames < end; ++word)
        if (!explorer.knows_newest(thread, &view_.leaf[word])) return false;
    for (unsigned layer = 1; layer <= view_.top_layer; ++layer)
        for (std::uint64_t word = block.base.value >> word_order(layer); word << word_order(layer) < end; ++word)
            if (!explorer.knows_newest(thread, &view_.upper[layer][word])) return false;
    for (std::uint32_t slot = 0; slot < thread_slots_; ++slot)
        if (!explorer.knows_newest(thread, &pool_.threads[slot].intent)) return false;
    return true;
}

// Bit i: the i-th block of this order is free, and no operation on any of it is under way (a free counts when it has
// returned; one that has not may come after whatever goes on beside it). At most 64 blocks of an order are told apart.
inline std::uint64_t EngineModel::free_blocks(Order order, std::size_t client) const {
    std::uint64_t blocks = 0;
    const std::uint64_t count = setup_.geometry.frame_count >> order.value;
    for (std::uint64_t i = 0; i < count && i < 64; ++i) {
        const Block block{FrameIndex{i << order.value}, order};
        bool settled = is_free(block) && is_up_to_date(client, block);
        for (std::uint32_t slot = 0; slot < thread_slots_ && settled; ++slot) {
            const Intent intent{pool_.threads[slot].intent.load()};
            settled = !intent.active() || !overlaps(intent.block(), block);
        }
        if (settled) blocks |= std::uint64_t{1} << i;
    }
    return blocks;
}

inline void EngineModel::keep_history() {
    for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
        const std::uint64_t wanted = wanted_[client].load();
        const std::uint64_t before = free_throughout_[client].load();
        if (wanted == 0 || (before | some_always_free_[client].load()) == 0) continue;
        const std::uint64_t now = free_blocks(Order{static_cast<std::uint32_t>(wanted - 1)}, client);
        free_throughout_[client].store(before & now);
        if (now == 0) some_always_free_[client].store(0);
    }
}

inline std::vector<EngineModel::Owned> EngineModel::owned_blocks() const {
    std::vector<Owned> owned;
    for (const Place &place : places_) {
        const IndexEntry entry{place.entry->load()};
        if (entry.is_held() && entry.owner() != kOfflineOwner)
            owned.push_back({Block{place.base, entry.order()}, entry.owner()});
    }
    return owned;
}

// Every block that the index calls owned, whoever owns it and however far its allocation or its owner's death has come.
inline void EngineModel::check_owned(const std::vector<Owned> &owned) {
    for (std::size_t i = 0; i < owned.size(); ++i) {
        const Block block = owned[i].block;
        for (std::size_t j = i + 1; j < owned.size(); ++j)
            if (overlaps(block, owned[j].block))
                fail("two live blocks overlap: " + to_text(block) + " and " + to_text(owned[j].block));
        if (Chunks<SimEnv>{view_, pool_}.is_offline(block.base.value >> setup_.geometry.largest_order))
            fail("a live block lies in a chunk that is offline: " + to_text(block));
        const unsigned layer = layer_of(block.order);
        std::uint64_t word = block.base.value >> word_order(layer);
        if (layer == 0) {
            const std::uint64_t mask = leaf::mask(block.base.value % kLeafFrames, block.order.value);
            if ((view_.leaf[word].load() & mask) != mask)
                fail("a live block's frames are not taken: " + to_text(block));
        } else {
            const unsigned child_order = word_order(layer - 1);
            const std::uint8_t group = upper::group(
                static_cast<unsigned>(block.base.value >> child_order) % kUpperFanOut, block.order.value - child_order);
            const UpperWord state{view_.upper[layer][word].load()};
            if ((state.allocated_children() & group) != group)
                fail("a live block's children are not taken: " + to_text(block));
            if ((state.occupied_children() & group) != 0)
                fail("something is marked below a live block: " + to_text(block));
        }
        for (unsigned level = layer + 1; level <= view_.top_layer; ++level) {
            const UpperWord above{view_.upper[level][word / kUpperFanOut].load()};
            if (!above.occupied_below(word % kUpperFanOut)) fail("no mark above a live block: " + to_text(block));
            word /= kUpperFanOut;
        }
    }
}

inline void EngineModel::check_invariants() {
    const std::vector<Owned> owned = owned_blocks();
    const std::uint64_t last_word = setup_.geometry.word_count(0) - 1;
    if (const std::uint64_t beyond = beyond_the_end(last_word); (view_.leaf[last_word].load() & beyond) != beyond)
        fail("frames are open that do not exist");
    check_owned(owned);
    if (setup_.unit_chunks != 0) check_unit();
    for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
        if (explorer.dead(setup_.clients[client].process)) continue;
        const Local &local = explorer.local<Local>(static_cast<int>(client));
        for (unsigned place = 0; place < local.reads.size(); ++place) {
            if (!local.reads[place]) continue;
            const IndexEntry entry{view_.index_entry(local.read[place]).load()};
            if (!entry.is_lent() && !entry.is_lingering())
                fail("freed under its reader: " + to_text(local.read[place]));
        }
        for (unsigned slot = 0; slot < kHeldMax; ++slot) {
            if (!local.held[slot] && !local.cached[slot]) continue;
            // Others may have taken it back, and the client has not seen the request yet.
            if (local.cached[slot] && local.answered != Attention::requests(attention_->load())) continue;
            bool found = false;
            for (const Owned &entry : owned)
                found = found || (entry.block == local.blocks[slot] && entry.process.value == process_slot_of(client));
            if (!found) fail("a client holds " + to_text(local.blocks[slot]) + ", which the index does not say");
            for (std::size_t other = 0; other < client && local.held[slot]; ++other) {
                // Threads of one process may (Setup::shared): that is its own affair.
                const std::uint16_t process = setup_.clients[other].process;
                if (process == setup_.clients[client].process || explorer.dead(process)) continue;
                const Local &theirs = explorer.local<Local>(static_cast<int>(other));
                for (unsigned place = 0; place < kHeldMax; ++place)
                    if (theirs.held[place] && theirs.blocks[place] == local.blocks[slot])
                        fail("two processes hold " + to_text(local.blocks[slot]));
            }
        }
    }
}

// A thread that writes to a chunk without memory behind it gets memory that nobody counts, or a signal.
inline void EngineModel::check_unit() {
    if (unit_is_populated_->load() != 0) return;
    const Chunks<SimEnv> chunks{view_, pool_};
    for (unsigned chunk = 0; chunk < setup_.unit_chunks; ++chunk)
        if (!chunks.is_offline(chunk)) fail("chunk " + std::to_string(chunk) + " is open and has no memory");
}

inline void EngineModel::check_unit_when_quiet() {
    const Chunks<SimEnv> chunks{view_, pool_};
    const auto state = static_cast<UnitState>(unit_state_->load());
    for (unsigned chunk = 0; chunk < setup_.unit_chunks; ++chunk) {
        const std::string name = "quiet: chunk " + std::to_string(chunk);
        if (chunks.is_offline(chunk) != (state == UnitState::offline)) fail(name + " is not what the ledger says");
        const std::uint64_t child = chunk << setup_.geometry.largest_order >> word_order(view_.top_layer - 1);
        const UpperWord word{view_.upper[view_.top_layer][child / kUpperFanOut].load()};
        if (word.draining(child % kUpperFanOut) != (unit_is_draining_->load() != 0))
            fail(name + " is draining, or is not, and the ledger says otherwise");
    }
}

// The shared block is nobody's in particular until the first has freed it, or as long as somebody caches it.
inline bool EngineModel::is_shared_and_held(const Owned &entry) const {
    if (setup_.shared < 0 || entry.block != shared_ || entry.process.value != process_slot_of(0) ||
        explorer.dead(entry.process.value))
        return false;
    bool held = shared_ended_->load() == 0;
    for (std::size_t client = 0; client < setup_.clients.size(); ++client)
        held = held || (process_slot_of(client) == entry.process.value &&
                        explorer.local<Local>(static_cast<int>(client)).caches_shared);
    return held;
}

// Names go on where a round ends: all entries began at the end of a round's second half, with era words that say the
// first (wrap_numbers()).
inline void EngineModel::check_eras() {
    for (const auto &place : places_) {
        const std::uint32_t generation = IndexEntry{place.entry->load()}.generation();
        const std::uint16_t era = view_.era_word(place.layer, Block{place.base, Order{0}}).load();
        const std::uint16_t expected = generation == kGenerationMax ? 1 : 2;
        if (era_of(era, generation) != expected)
            explorer.fail("era word " + std::to_string(era) + " at generation " + std::to_string(generation));
    }
}

inline void EngineModel::check_invariants_at_rest() {
    if (setup_.wrapping) check_eras();
    const std::vector<Owned> owned = owned_blocks();
    for (const Owned &entry : owned) {
        if (entry.process == kLingeringOwner) {
            if (!is_read(entry.block)) fail("quiet: nobody holds what lingers: " + to_text(entry.block));
            continue;
        }
        if (setup_.quarantine && entry.process == kDaemonProcess && is_read(entry.block)) continue;  // waits for it
        // A block in the mailbox still is its giver's.
        bool held = mailbox_->load() != 0 && named_by(Reference{mailbox_->load()}) == entry.block &&
                    !explorer.dead(entry.process.value);
        held = held || is_shared_and_held(entry);
        for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
            if (process_slot_of(client) != entry.process.value || explorer.dead(setup_.clients[client].process))
                continue;
            const Local &local = explorer.local<Local>(static_cast<int>(client));
            held = held || local.is_its(entry.block);
        }
        if (!held) fail("quiet: the index says owned, but nobody holds " + to_text(entry.block));
    }
    for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
        const bool is_gone = explorer.dead(setup_.clients[client].process);
        const Local &local = explorer.local<Local>(static_cast<int>(client));
        const auto wanted = is_gone ? 0 : static_cast<int>(local.reads[0]) + static_cast<int>(local.reads[1]);
        if (std::popcount(pool_.threads[slot_of(client).value].holds.load()) != wanted)
            fail("quiet: client " + std::to_string(client) + " says that it holds what it does not");
    }
    check_caches_when_quiet();
    if (setup_.unit_chunks != 0) check_unit_when_quiet();
    for (std::uint32_t thread = 0; thread < thread_slots_; ++thread) {
        if (pool_.threads[thread].intent.load() != 0)
            fail("quiet: an intent is left in slot " + std::to_string(thread));
        if (HintWork{pool_.threads[thread].hint_work.load()}.active())
            fail("quiet: hint work is left in slot " + std::to_string(thread));
        const WaitWord word{pool_.threads[thread].waiting.load()};
        if (word.is_given()) fail("quiet: a block is on its way to slot " + std::to_string(thread));
        for (std::uint64_t base = 0; word.is_waiting() && base < setup_.geometry.frame_count;
             base += word.order().frames())
            if (is_free(Block{FrameIndex{base}, word.order()}))
                fail("quiet: slot " + std::to_string(thread) + " waits for what is free");
    }
    check_words_when_quiet(owned);
    check_hints_when_quiet();
    check_that_free_memory_can_be_had();
}

// A block in a cache must not be freed by its user of before; one in use must not be called cached.
inline void EngineModel::check_caches_when_quiet() {
    if (somebody_forked()) return;  // a copy of a cache says what it likes
    for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
        if (explorer.dead(setup_.clients[client].process)) continue;
        const Local &local = explorer.local<Local>(static_cast<int>(client));
        for (unsigned slot = 0; slot < kHeldMax; ++slot) {
            if (!local.held[slot] && !local.cached[slot]) continue;
            if (local.cached[slot] && local.answered != Attention::requests(attention_->load())) continue;  // as above
            const IndexEntry entry{view_.index_entry(local.blocks[slot]).load()};
            if (entry.is_cached() != local.cached[slot])
                fail("quiet: " + to_text(local.blocks[slot]) + " is " + (local.cached[slot] ? "" : "not ") +
                     "in a cache, the index says otherwise");
        }
    }
}

inline bool EngineModel::is_offline_child(unsigned layer, std::uint64_t child) const {
    const std::uint64_t chunk = child << word_order(layer - 1) >> setup_.geometry.largest_order;
    return layer == view_.top_layer && Chunks<SimEnv>{view_, pool_}.is_offline(chunk);
}

// Marks too many are allowed (check_that_free_memory_can_be_had), marks too few are check_owned's business.
inline void EngineModel::check_words_when_quiet(const std::vector<Owned> &owned) {
    std::vector<std::uint64_t> leaf = taken_;
    leaf.back() |= beyond_the_end(leaf.size() - 1);
    std::array<std::vector<std::uint8_t>, kMaxUpperLayers + 1> allocated;
    for (unsigned layer = 1; layer <= view_.top_layer; ++layer)
        allocated[layer].resize(setup_.geometry.word_count(layer));
    for (const Owned &entry : owned) {
        const unsigned layer = layer_of(entry.block.order);
        const std::uint64_t word = entry.block.base.value >> word_order(layer);
        if (layer == 0) {
            leaf[word] |= leaf::mask(entry.block.base.value % kLeafFrames, entry.block.order.value);
        } else {
            const unsigned child_order = word_order(layer - 1);
            allocated[layer][word] |=
                upper::group(static_cast<unsigned>(entry.block.base.value >> child_order) % kUpperFanOut,
                             entry.block.order.value - child_order);
        }
    }
    for (std::uint64_t word = 0; word < leaf.size(); ++word) {
        const std::uint64_t extra = view_.leaf[word].load() & ~leaf[word];
        if (extra != 0) fail("quiet: frames are lost in leaf word " + std::to_string(word));
    }
    for (unsigned layer = 1; layer <= view_.top_layer; ++layer) {
        for (std::uint64_t word = 0; word < allocated[layer].size(); ++word) {
            const UpperWord state{view_.upper[layer][word].load()};
            const std::string where = " in word " + std::to_string(word) + " of layer " + std::to_string(layer);
            for (unsigned child = 0; child < kUpperFanOut; ++child) {
                const std::uint64_t below = word * kUpperFanOut + child;
                if (below >= setup_.geometry.word_count(layer - 1)) continue;  // beyond the pool: closed for ever
                if (state.allocated_here(child) && (allocated[layer][word] >> child & 1) == 0 &&
                    !is_offline_child(layer, below))
                    fail("quiet: memory is lost, a child stays allocated" + where);
            }
        }
    }
}

// Too high costs time, too low hides memory.
inline void EngineModel::check_hints_when_quiet() {
    const Search<SimEnv> search = buddy_->searcher(Actor{kDaemonThread, kDaemonProcess});
    const unsigned ceiling = search.ceiling();
    for (unsigned level = 1; level < view_.hint_levels; ++level) {
        for (std::uint64_t word = 0; word < setup_.geometry.word_count(level); ++word) {
            const HintWord hint{view_.hint[level + 1][word / kUpperFanOut].load()};
            const unsigned promised = hint.value(word % kUpperFanOut, ceiling);
            if (promised >= search.value_of(level, word)) continue;
            if (level < view_.top_layer) {
                // Closed below an allocated block: whoever frees that one raises it.
                const UpperWord above{view_.upper[level + 1][word / kUpperFanOut].load()};
                if (above.allocated_here(word % kUpperFanOut)) continue;
            }
            fail("quiet: the hint for word " + std::to_string(word) + " of level " + std::to_string(level) +
                 " is too low");
        }
    }
}

// Alone, as the daemon: each order can be had exactly if a free block of it is there. Undone by the explorer.
inline void EngineModel::check_that_free_memory_can_be_had() {
    for (unsigned value = 0; value <= setup_.geometry.largest_order; ++value) {
        const Order order{value};
        bool some = false;
        for (std::uint64_t i = 0; i < setup_.geometry.frame_count >> value && !some; ++i)
            some = is_free({FrameIndex{i << value}, order});
        const Actor prober{kDaemonThread, kDaemonProcess};
        Block block{};
        const Errc result = buddy_->allocate(prober, order, {}, block);
        if (result != (some ? Errc::ok : Errc::out_of_frames))
            fail(std::string("quiet: memory of order ") + std::to_string(value) + (some ? " is free" : " is not free") +
                 ", but allocate says " + error_row(result).name);
        if (result != Errc::ok) continue;
        Block freed{};
        if (buddy_->free(prober, block.base, freed) != Errc::ok || freed != block)
            fail("quiet: what was just allocated cannot be freed");
    }
}

}  // namespace numacre::model
