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
    if (eras_.empty() && listed_.size() < kListed) {
        listed_.push_back({numa_node, block, now});
        return;
    }
    Unlisted &unlisted = eras_[era.code()];
    unlisted.since = now;
    ++unlisted.blocks;
}

std::optional<Quarantine::Seized> Quarantine::take_due(Clock::time_point now) {
    if (listed_.empty() || next_due() > now) return std::nullopt;
    const Seized seized = listed_.front();
    listed_.pop_front();
    return seized;
}

void Quarantine::begin_listing() {
    for (auto &[code, unlisted] : eras_) unlisted.blocks = 0;
}

void Quarantine::list(engine::NumaNode numa_node, engine::Block block, Era era, Clock::time_point now) {
    // An era without an entry is unknown: somebody has scribbled over the block's index entry.
    const auto [found, is_new] = eras_.try_emplace(era.code(), Unlisted{now});
    if (found->second.since + hold_ <= now && listed_.size() < kListed)
        listed_.push_back({numa_node, block, found->second.since});
    else
        ++found->second.blocks;
}

void Quarantine::end_listing() {
    std::erase_if(eras_, [](const auto &era) { return era.second.blocks == 0; });
}

Quarantine::Clock::time_point Quarantine::next_due() const {
    const Clock::time_point oldest =
        !listed_.empty()
            ? listed_.front().since
            : std::ranges::min_element(eras_, {}, [](const auto &era) { return era.second.since; })->second.since;
    return std::max(oldest + hold_, not_before_);
}

void Quarantine::clear() {
    listed_.clear();
    eras_.clear();
}

}  // namespace numacre::daemon
