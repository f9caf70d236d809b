#include "pool/quarantine.hpp"

namespace numacre::daemon {

Quarantine::Era Quarantine::era(Clock::time_point now) {
    if (current_since_ && now - *current_since_ < era_length_) return current_;
    // The next code that no unlisted block has. Listed blocks may have it: they are gone before anybody looks at the
    // index again.
    constexpr std::uint32_t kCodes = std::uint32_t{1} << Era::kBits;
    for (std::uint32_t tried = 0; tried < kCodes; ++tried) {
        current_ = Era{current_.code() + 1};
        if (!eras_.contains(current_.code())) break;
    }
    current_since_ = now;
    return current_;
}

void Quarantine::add(engine::NumaNode numa_node, engine::Block block, Era era, Clock::time_point now) {
    const Clock::time_point due = now + hold_;
    if (eras_.empty() && listed_.size() < kListed) {
        // At the end, unless the hold has become shorter.
        listed_.insert(std::ranges::upper_bound(listed_, due, {}, &Seized::due), {numa_node, block, due});
        return;
    }
    Unlisted &unlisted = eras_[era.code()];
    unlisted.due = std::max(unlisted.due, due);
    ++unlisted.blocks;
}

std::optional<Quarantine::Seized> Quarantine::take_due(Clock::time_point now) {
    if (listed_.empty() || listed_.front().due > now) return std::nullopt;
    const Seized seized = listed_.front();
    listed_.pop_front();
    return seized;
}

void Quarantine::begin_listing() {
    for (auto &[code, unlisted] : eras_) unlisted.blocks = 0;
}

void Quarantine::list(engine::NumaNode numa_node, engine::Block block, Era era, Clock::time_point now) {
    // An era without an entry is unknown: somebody has scribbled over the block's index entry.
    const auto [found, is_new] = eras_.try_emplace(era.code(), Unlisted{now + hold_});
    if (found->second.due <= now && listed_.size() < kListed)
        listed_.push_back({numa_node, block, found->second.due});
    else
        ++found->second.blocks;
}

void Quarantine::end_listing() {
    std::erase_if(eras_, [](const auto &era) { return era.second.blocks == 0; });
}

Quarantine::Clock::time_point Quarantine::next_due() const {
    if (!listed_.empty()) return listed_.front().due;
    return std::ranges::min_element(eras_, {}, [](const auto &era) { return era.second.due; })->second.due;
}

void Quarantine::clear() {
    listed_.clear();
    eras_.clear();
}

}  // namespace numacre::daemon
