#include "pool/names.hpp"

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>
#include <utility>

#include "numacre/os/kernel.hpp"

namespace numacre::daemon {

std::string text_of(const NameText &name) {
    const auto text = name.text();
    return {text.data(), ::strnlen(text.data(), text.size())};
}

Names::Names(const PoolLedger &ledger, Directory &published, std::string pool_name)
    : pool_name_(std::move(pool_name)),
      published_(published),
      reader_(published),
      writer_(published),
      book_(ledger.names()) {}

std::optional<NameEntry> Names::find(const NameText &name) const {
    const MutexLock lock(mutex_);
    const auto place = book_.find(name);
    return place ? std::optional(book_.at(*place)) : std::nullopt;
}

std::vector<NameEntry> Names::list() const {
    std::vector<NameEntry> entries;
    {
        const MutexLock lock(mutex_);
        for (std::uint32_t place = 0; place < kNames; ++place)
            if (book_.is_used(place)) entries.push_back(book_.at(place));
    }
    std::ranges::sort(entries, {}, [](const NameEntry &entry) { return entry.name.text(); });
    return entries;
}

std::uint32_t Names::count() const {
    const MutexLock lock(mutex_);
    std::uint32_t count = 0;
    for (std::uint32_t place = 0; place < kNames; ++place) count += book_.is_used(place) ? 1 : 0;
    return count;
}

std::optional<Failure> Names::check(const NameText &name, std::optional<std::uint32_t> place,
                                    const NameCondition &condition, const NameAsker &asker) const {
    const auto refused = [&](Errc code, const std::string &why) {
        return Failure{code, "name \"" + text_of(name) + "\" of pool \"" + pool_name_ + "\" " + why};
    };
    if (!place) {
        if (!condition || *condition == 0) return std::nullopt;
        return refused(Errc::no_such_name, "is not bound, and version " + std::to_string(*condition) +
                                               " was expected: bind it anew, or see numacre names");
    }
    const NameEntry entry = book_.at(*place);
    const std::string now = "is bound, in version " + std::to_string(entry.version);
    if (condition && *condition == 0)
        return refused(Errc::already_exists, now + ": use it, or another name, or remove it first");
    if (condition && *condition != entry.version)
        return refused(Errc::contended,
                       now + ", and version " + std::to_string(*condition) + " was expected: read it and try again");
    if (!asker.is_operator && entry.user != asker.user)
        return refused(Errc::access_denied, "is user " + std::to_string(entry.user) + "'s, and user " +
                                                std::to_string(asker.user) +
                                                " has asked: let that user or root change it, or use another name");
    return std::nullopt;
}

// A name that changes its owner counts as a new one of the new owner's.
std::optional<Failure> Names::check_quota(const std::optional<NameEntry> &before, const NameAsker &asker) const {
    if (asker.is_operator || (before && before->user == asker.user)) return std::nullopt;
    std::size_t of_user = 0;
    for (std::uint32_t place = 0; place < kNames; ++place)
        // Channels bring their names along, and have limits of their own.
        if (book_.is_used(place) && book_.at(place).user == asker.user && book_.at(place).kind != NameKind::channel)
            ++of_user;
    if (of_user < kOfUser) return std::nullopt;
    return Failure{Errc::over_quota, "user " + std::to_string(asker.user) + " has " + std::to_string(of_user) +
                                         " names in pool \"" + pool_name_ + "\", of at most " +
                                         std::to_string(kOfUser) + ": remove some (numacre names lists them)"};
}

Answer<std::uint64_t> Names::bind(NameEntry entry, const NameCondition &condition, const NameAsker &asker) {
    entry.user = asker.user;
    entry.client_id = entry.is_of_pool ? 0 : asker.client_id;
    std::uint32_t place = 0;
    std::uint64_t version = 0;
    {
        const MutexLock lock(mutex_);
        auto found = book_.find(entry.name);
        if (auto failure = check(entry.name, found, condition, asker)) return Unexpected{std::move(*failure)};
        const auto before = found ? std::optional(book_.at(*found)) : std::nullopt;
        if (auto failure = check_quota(before, asker)) return Unexpected{std::move(*failure)};
        if (!found) found = book_.free_place(entry.name);
        if (!found)
            return Unexpected{Failure{Errc::over_quota, "pool \"" + pool_name_ + "\" has its " +
                                                            std::to_string(kNames) +
                                                            " names: remove some (numacre names lists them)"}};
        place = *found;
        version = book_.bind(place, entry);
    }
    publish(place);
    publish_version();
    return version;
}

Answer<std::uint64_t> Names::unbind(const NameText &name, const NameCondition &condition, const NameAsker &asker) {
    std::uint32_t place = 0;
    std::uint64_t version = 0;
    {
        const MutexLock lock(mutex_);
        const auto found = book_.find(name);
        // "There must be none" is no condition for a removal.
        const NameCondition needed = condition && *condition == 0 ? std::nullopt : condition;
        if (auto failure = check(name, found, needed, asker)) return Unexpected{std::move(*failure)};
        if (!found)
            return Unexpected{Failure{Errc::no_such_name, "no name \"" + text_of(name) + "\" is bound in pool \"" +
                                                              pool_name_ + "\": see numacre names for those that are"}};
        place = *found;
        version = book_.unbind(place);
    }
    publish(place);
    publish_version();
    return version;
}

void Names::unbind_all(bool (*goes)(const NameEntry &, std::span<const std::uint32_t>),
                       std::span<const std::uint32_t> ids) {
    std::vector<std::uint32_t> gone;
    {
        const MutexLock lock(mutex_);
        for (std::uint32_t place = 0; place < kNames; ++place)
            if (book_.is_used(place) && goes(book_.at(place), ids)) gone.push_back(place);
        for (const std::uint32_t place : gone) book_.unbind(place);
    }
    for (const std::uint32_t place : gone) publish(place);
    if (!gone.empty()) publish_version();
}

void Names::end_of_client(std::uint32_t client_id) {
    unbind_all([](const NameEntry &entry, auto ids) { return !entry.is_of_pool && entry.client_id == ids.front(); },
               {&client_id, 1});
}

void Names::take_over(std::span<const std::uint32_t> client_ids) {
    for (std::uint32_t place = 0; place < kNames; ++place) {
        // relaxed: which of the copies does not count; any of them will do if somebody has scribbled over it.
        states_[place] = published_.heads[place].state.load(std::memory_order_relaxed);
        bool is_used = false;
        {
            const MutexLock lock(mutex_);
            is_used = book_.is_used(place);
        }
        if (is_used || states_[place] != 0 || published_.heads[place].hash.load(std::memory_order_relaxed) != 0)
            publish(place);
    }
    unbind_all([](const NameEntry &entry,
                  auto ids) { return !entry.is_of_pool && std::ranges::find(ids, entry.client_id) == ids.end(); },
               client_ids);
    {
        const MutexLock lock(mutex_);
        // In a pool without a name nobody has anything to look at.
        if (book_.version() != 0) book_.touch();
        reach_ = book_.reach();
    }
    // The daemon before may have died after the last name, and before this.
    writer_.set_reach(reach_);
    publish_version();
}

// The entry as the ledger has it now.
void Names::publish(std::uint32_t place) {
    NameEntry entry;
    {
        const MutexLock lock(mutex_);
        if (book_.is_used(place)) entry = book_.at(place);
        reach_ = book_.reach();
    }
    // Wider before the entry, closer after it.
    if (entry.kind != NameKind::none) writer_.set_reach(reach_);
    if (entry.kind == NameKind::none) {
        writer_.erase(place);
        states_[place] = 0;
        writer_.set_reach(reach_);
    } else {
        states_[place] = writer_.write(place, entry, states_[place]);
    }
}

void Names::publish_version() {
    {
        const MutexLock lock(mutex_);
        version_ = book_.version();
    }
    writer_.set_version(version_);
    wake();
}

void Names::wake() {
    auto *const low_half = reinterpret_cast<std::uint32_t *>(&published_.version);
    static_assert(std::endian::native == std::endian::little, "the futex word is the first half");
    os::futex_wake(low_half, INT_MAX);
}

std::string Names::damage() const {
    // relaxed, all: they are compared, not obeyed.
    constexpr auto relaxed = std::memory_order_relaxed;
    if (published_.version.load(relaxed) != version_ || published_.reach.load(relaxed) != reach_)
        return "the version of the names has been overwritten";
    for (std::uint32_t place = 0; place < kNames; ++place) {
        NameEntry ours, theirs;
        if (states_[place] != 0) {
            const MutexLock lock(mutex_);
            ours = book_.at(place);
        }
        const auto &head = published_.heads[place];
        const bool is_used = ours.kind != NameKind::none;
        const std::uint64_t hash = is_used ? ours.name.hash() : 0;
        const bool is_head_ours = head.state.load(relaxed) == states_[place] && head.hash.load(relaxed) == hash;
        const bool is_entry_ours =
            !is_used || (reader_.at(place, theirs) == NameReader<ProductionEnv>::Found::yes && theirs == ours);
        if (!is_head_ours || !is_entry_ours)
            return "the entry at place " + std::to_string(place) + " of the names has been overwritten";
    }
    return {};
}

}  // namespace numacre::daemon
