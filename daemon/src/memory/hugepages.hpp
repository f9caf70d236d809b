// The kernel's hugepage pools, per numa node, through sysfs. What is raised here is counted, and never more than that
// is taken back: hugepages that somebody else reserved stay reserved. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/failure.hpp"
#include "memory/ledger.hpp"
#include "memory/machine_status.hpp"
#include "os/fd.hpp"

namespace numacre::daemon {

// Where the daemons of this user agree on locks, whatever their runtime directories: a folder that nobody else can
// write to. The first that this user has or can make of /run/numacre, /run/user/UID and /tmp/numacre-UID.
std::string hugepage_lock_folder();

class Hugepages {
public:
    // may_reserve: whether nr_hugepages may be written. Other folders only in tests.
    explicit Hugepages(bool may_reserve, std::string sysfs_nodes = "/sys/devices/system/node",
                       std::string sysfs_machine = "/sys/kernel/mm/hugepages",
                       std::string lock_folder = hugepage_lock_folder());

    using Key = std::pair<int, std::uint64_t>;  // numa node of the system, page bytes
    using Pages = std::map<Key, std::uint64_t>;

    bool may_reserve() const { return may_reserve_; }
    // From now on what is raised stands in the ledger too, which must outlive this; what a daemon before us has raised
    // counts as ours, also what it was about to count. Once, before anything is raised.
    void record_in(MachineLedger &ledger, std::span<const int> os_numa_nodes);
    // Nothing if the kernel has no hugepages of this size.
    std::optional<HugepagePool> pool(int os_numa_node, std::uint64_t page_bytes) const;
    // Of every page size.
    std::vector<HugepagePool> pools(int os_numa_node) const;

    // Held between "are there enough free pages?" and using them, so that two daemons do not count the same ones.
    // Blocks for as long as another daemon populates one batch, but for no longer than `patience`: then it goes on
    // without the lock, says so in the log, and for kDistrust waits no more. Without the lock the worst is a populate
    // that fails and is rolled back; waiting for ever would end the reaping and resizing of all pools.
    // Threads of this daemon wait for each other likewise, for `patience_among_threads`: one may populate a file that a
    // client keeps busy, which is to stop no other pool.
    class Lock {
        friend class Hugepages;
        std::unique_lock<std::timed_mutex> among_threads_;
        Fd among_daemons_;  // released first

    public:
        // Other daemons are excluded, too.
        explicit operator bool() const { return static_cast<bool>(among_daemons_); }
    };
    Lock lock(int os_numa_node, std::uint64_t page_bytes, std::chrono::milliseconds patience = kLockPatience,
              std::chrono::milliseconds patience_among_threads = kThreadPatience) const;

    // Makes sure that so many pages are free, raising nr_hugepages if that is allowed. available_bytes: what the numa
    // node has besides; reserving never takes its last headroom. On failure nothing stays reserved. By how much
    // nr_hugepages was raised, without what was surplus before. Call under lock().
    // A mapping, any user's, reserves pages without touching them: those are free and not to be had, but for the file
    // that they are reserved in.
    enum class For { new_file, old_file };
    Answer<std::uint64_t> ensure_free(int os_numa_node, std::uint64_t page_bytes, std::uint64_t pages,
                                      std::uint64_t available_bytes, For file);
    // Lowers nr_hugepages by so many pages, but by no more than was raised. Pages that clients still have mapped become
    // surplus: the kernel takes them back when the last mapping goes. Call under lock().
    void give_back(int os_numa_node, std::uint64_t page_bytes, std::uint64_t pages);
    void give_back_all();
    // Of what was raised, the pages that are free and more than pools use: they were for a pool that a daemon before us
    // did not live to make, or to fill, or whose end it did not live to see. in_use: behind the pools' files. Once,
    // before anything is raised.
    void give_back_idle(const Pages &in_use);
    // Raising nr_hugepages turns surplus pages, such as those that clients of a daemon before us still have mapped,
    // into persistent ones: they would stay reserved when their last mapping goes. Makes them surplus again. Call under
    // lock(), once what ensure_free() made free is in use: the kernel takes free pages first.
    void restore_surplus(int os_numa_node, std::uint64_t page_bytes);

private:
    static constexpr std::chrono::seconds kLockPatience{3};
    static constexpr std::chrono::seconds kThreadPatience{3};
    static constexpr std::chrono::seconds kDistrust{60};

    Fd lock_among_daemons(const Key &key, std::chrono::milliseconds patience) const;
    void warn_of_lock(const std::string &reason) const;
    std::string folder(int os_numa_node, std::uint64_t page_bytes) const;
    LedgerReservation *reservation(const Key &key) const;
    // Writes nr_hugepages; what changed by that counts as raised, or as given back, at whatever instant we die. 0 or
    // the errno.
    int change_reservation(const Key &key, std::uint64_t nr_before, std::uint64_t nr_after);
    int write_reservation(const Key &key, std::uint64_t nr_before, std::uint64_t nr_after) const;
    std::uint64_t persistent_pages_now(const Key &key, std::uint64_t otherwise) const;
    void set_raised(const Key &key, std::uint64_t pages);

    bool may_reserve_;
    std::string sysfs_nodes_;
    std::string sysfs_machine_;
    std::string lock_folder_;
    mutable std::mutex lock_mutex_;
    mutable std::map<Key, std::timed_mutex> thread_locks_;  // guarded by lock_mutex_, but for the locks themselves
    // Guarded by lock_mutex_: until when locks are tried and not waited for.
    mutable std::chrono::steady_clock::time_point distrusted_until_{}, threads_distrusted_until_{};
    mutable std::string lock_trouble_;  // guarded by lock_mutex_; what the log was told last
    // Held while nr_hugepages is changed, and what that was is counted: also by who goes on without lock().
    std::recursive_mutex changing_;
    std::mutex mutex_;
    Pages raised_pages_;               // guarded by mutex_
    Pages lost_surplus_;               // guarded by mutex_; some of the raised pages
    MachineLedger *ledger_ = nullptr;  // guarded by mutex_
};

// Reserving and populating leave this much to the rest of the machine, so that it does not start killing processes.
inline constexpr std::uint64_t kNodeHeadroomBytes = std::uint64_t{64} << 20;

}  // namespace numacre::daemon
