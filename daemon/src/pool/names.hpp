// The names of a pool (shm/names.hpp): the directory in the ledger, which is the truth, and its copy in the pool's
// region, which clients read. The copy is written, and compared for damage, but never believed.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/failure.hpp"
#include "base/thread_safety.hpp"
#include "engine.hpp"
#include "memory/ledger.hpp"
#include "numacre/shm/names.hpp"
#include "pool/pool_status.hpp"

namespace numacre::daemon {

// The process or operator that asks for a change.
struct NameAsker {
    std::uint32_t user = 0;
    std::uint32_t client_id = 0;  // 0: no client
    bool is_operator = false;     // root or the daemon's own user: may change any name, and has no quota
};

// The version that a name must have, for the change to be made; 0: there is no such name.
using NameCondition = std::optional<std::uint64_t>;

// For messages.
std::string text_of(const NameText &name);

// Calls that write the region's copy say so: whoever calls them holds the pool's record lock, and is not the event
// loop. All others are for any thread.
class Names {
public:
    using Directory = NameDirectory<ProductionEnv>;
    static constexpr std::size_t kOfUser = 64;

    // ledger, published: outlive this object. pool_name: for messages.
    Names(const PoolLedger &ledger, Directory &published, std::string pool_name);
    Names(const Names &) = delete;
    Names &operator=(const Names &) = delete;

    std::optional<NameEntry> find(const NameText &name) const;
    std::vector<NameEntry> list() const;  // by name
    std::uint32_t count() const;

    // Binds the name anew, or to something else, and returns the version. entry: its name, kind, value and is_of_pool;
    // the rest follows from who asks. no_such_name, already_exists, contended: the condition does not hold;
    // access_denied: the name is another user's; over_quota: the user, or the pool, has too many. Writes the copy. A
    // death of the daemon inside leaves the old binding or the new one.
    Answer<std::uint64_t> bind(NameEntry entry, const NameCondition &condition, const NameAsker &asker);
    // Likewise; returns the version of the change.
    Answer<std::uint64_t> unbind(const NameText &name, const NameCondition &condition, const NameAsker &asker);
    // The names that are the client's own go. Writes the copy.
    void end_of_client(std::uint32_t client_id);
    // The daemon before may have died between the ledger and the copy, and clients have been without a daemon: makes
    // the copy anew, without names of clients that are none of these. Writes the copy.
    void take_over(std::span<const std::uint32_t> client_ids);
    // Wakes those who watch, though nothing has changed: the pool goes.
    void wake();

    // Returns what somebody has written over in the copy; empty: nothing. With the record lock held.
    std::string damage() const;

private:
    // Nothing: the condition holds and the change is allowed.
    std::optional<Failure> check(const NameText &name, std::optional<std::uint32_t> place,
                                 const NameCondition &condition, const NameAsker &asker) const NUMACRE_REQUIRES(mutex_);
    std::optional<Failure> check_quota(const std::optional<NameEntry> &before, const NameAsker &asker) const
        NUMACRE_REQUIRES(mutex_);
    void publish(std::uint32_t place);
    void publish_version();
    void unbind_all(bool (*goes)(const NameEntry &, std::span<const std::uint32_t>),
                    std::span<const std::uint32_t> ids);

    const std::string pool_name_;
    Directory &published_;
    NameReader<ProductionEnv> reader_;            // of the copy
    NameWriter<ProductionEnv> writer_;            // of the copy
    std::array<std::uint64_t, kNames> states_{};  // of the copy's places, as we have written them: the record lock
    std::uint64_t reach_ = 0, version_ = 0;       // of the copy, likewise
    mutable Mutex mutex_;
    NameBook<ProductionEnv> book_ NUMACRE_GUARDED_BY(mutex_);  // the ledger
};

}  // namespace numacre::daemon
