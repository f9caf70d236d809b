// Names and meanings of an EngineModel's words, for traces. (Part of engine_model.hpp.)
#pragma once

#include "engine_model.hpp"

namespace numacre::model {

inline void EngineModel::label_words() {
    const Geometry &geometry = setup_.geometry;
    explorer.label(view_.leaf, geometry.word_count(0) * 8, "leaf");
    for (unsigned layer = 1; layer <= view_.top_layer; ++layer)
        explorer.label(view_.upper[layer], geometry.word_count(layer) * 8, "upper" + std::to_string(layer));
    for (unsigned level = 2; level <= view_.hint_levels; ++level)
        explorer.label(view_.hint[level], geometry.word_count(level) * 8, "hint" + std::to_string(level));
    for (unsigned layer = 0; layer <= view_.top_layer; ++layer) {
        explorer.label(view_.index[layer], geometry.index_entry_count(layer) * 8, "index" + std::to_string(layer));
        explorer.label(view_.era[layer], geometry.index_entry_count(layer) * 2, "era" + std::to_string(layer), 2);
    }
    for (std::uint32_t slot = 0; slot < thread_slots_; ++slot) {
        const std::string name = "slot" + std::to_string(slot);
        explorer.label(&pool_.threads[slot].intent, 8, name + ".intent");
        explorer.label(&pool_.threads[slot].owner, 8, name + ".owner");
        explorer.label(&pool_.threads[slot].hint_work, 8, name + ".hint_work");
        explorer.label(&pool_.threads[slot].inside, 8, name + ".inside");
        explorer.label(&pool_.threads[slot].answered, 8, name + ".answered");
        explorer.label(&pool_.threads[slot].holds, 8, name + ".holds");
        explorer.label(&pool_.holds[slot], sizeof pool_.holds[slot], name + ".hold_words");
        explorer.label(&view_.home[slot], sizeof view_.home[slot], name + ".home");
    }
    for (std::uint32_t slot = 0; slot < process_slots_; ++slot)
        explorer.label(&pool_.processes[slot].state, 8, "process" + std::to_string(slot) + ".state");
    explorer.describe_values([this](const void *address, std::uint64_t value) { return meaning(address, value); });
}

inline std::string EngineModel::meaning(const void *address, std::uint64_t value) const {
    const auto within = [address](const Word *first, std::uint64_t count) {
        return address >= first && address < first + count;
    };
    for (unsigned layer = 0; layer <= view_.top_layer; ++layer) {
        if (layer > 0 && within(view_.upper[layer], setup_.geometry.word_count(layer))) {
            const auto plane = [value](unsigned shift) { return std::to_string(value >> shift & 0xff); };
            return "P " + plane(0) + " F " + plane(8) + " COAL " + plane(16) + " tag " + std::to_string(value >> 32);
        }
        if (within(view_.index[layer], setup_.geometry.index_entry_count(layer))) {
            const IndexEntry entry{value};
            const std::string holder = std::to_string(entry.owner().value);
            const std::string state = entry.is_lingering() ? "lingering"
                                      : entry.is_lent()    ? "lent, of process " + holder
                                      : entry.is_owned()   ? "owned by process " + holder
                                      : entry.is_freeing() ? "freeing by slot " + holder
                                                           : "none";
            return state + ", order " + std::to_string(entry.order().value) + ", generation " +
                   std::to_string(entry.generation());
        }
    }
    for (std::uint32_t slot = 0; slot < thread_slots_; ++slot) {
        if (address != &pool_.threads[slot].intent) continue;
        const Intent intent{value};
        if (!intent.active()) return "none";
        return (intent.kind() == IntentKind::allocate ? "allocate " : "free ") + to_text(intent.block());
    }
    return {};
}

}  // namespace numacre::model
