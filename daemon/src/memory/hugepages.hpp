// The kernel's hugepage pools, per numa node, through sysfs. This class counts the pages by which it raised
// nr_hugepages, and never takes back more: hugepages that somebody else reserved stay reserved. Thread-safe.
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

// The folder where the daemons of this user agree on locks, whatever their runtime directories. Nobody else can write
// to it. The first of /run/numacre, /run/user/UID and /tmp/numacre-UID that this user has or can make.
std::string hugepage_lock_folder();

class Hugepages {
public:
    // may_reserve: whether nr_hugepages may be written. Only tests pass other folders.
    explicit Hugepages(bool may_reserve, std::string sysfs_nodes = "/sys/devices/system/node",
                       std::string sysfs_machine = "/sys/kernel/mm/hugepages",
                       std::string lock_folder = hugepage_lock_folder());

    using Key = std::pair<int, std::uint64_t>;  // numa node of the system, page bytes
    using Pages = std::map<Key, std::uint64_t>;

    bool may_reserve() const { return may_reserve_; }
    // From now on raised pages are recorded in the ledger too, which must outlive this object. Pages that an earlier
    // daemon has raised count as ours, also those that it was about to count. Call once, before anything is raised.
    void record_in(MachineLedger &ledger, std::span<const int> os_numa_nodes);
    // Nothing: the kernel has no hugepages of this size.
    std::optional<HugepagePool> pool(int os_numa_node, std::uint64_t page_bytes) const;
    // The pools of every page size.
    std::vector<HugepagePool> pools(int os_numa_node) const;

    // A lock that is held between "are there enough free pages?" and using them, so that two daemons do not count one
    // page twice. lock() blocks for as long as another daemon populates one batch, but for no longer than `patience`:
    // then the daemon goes on without the lock, says so in the log, and for kDistrust waits no more. Without the lock
    // the worst is a populate that fails and is rolled back; waiting for ever would end the reaping and resizing of all
    // pools. Threads of this daemon wait for each other likewise, for `patience_among_threads`: one of them may
    // populate a file that a client keeps busy, which must stop no other pool.
    class Lock {
        friend class Hugepages;
        std::unique_lock<std::timed_mutex> among_threads_;
        Fd among_daemons_;  // released first

    public:
        // True: other daemons are excluded, too.
        explicit operator bool() const { return static_cast<bool>(among_daemons_); }
    };
    Lock lock(int os_numa_node, std::uint64_t page_bytes, std::chrono::milliseconds patience = kLockPatience,
              std::chrono::milliseconds patience_among_threads = kThreadPatience) const;

    // Makes sure that so many pages are free, raising nr_hugepages if that is allowed. available_bytes: memory that the
    // numa node has besides; reserving never takes its last headroom. On failure nothing stays reserved. Returns by how
    // much nr_hugepages was raised, without pages that were surplus before. Call under lock().
    // A mapping by any user reserves pages without touching them. Such pages are free, but only the file in which they
    // are reserved can have them.
    enum class For { new_file, old_file };
    Answer<std::uint64_t> ensure_free(int os_numa_node, std::uint64_t page_bytes, std::uint64_t pages,
                                      std::uint64_t available_bytes, For file);
    // Lowers nr_hugepages by so many pages, but by no more than was raised. Pages that clients still have mapped become
    // surplus: the kernel takes them back when the last mapping goes. Call under lock().
    void give_back(int os_numa_node, std::uint64_t page_bytes, std::uint64_t pages);
    void give_back_all();
    // Gives back the raised pages that are free and more than pools use: an earlier daemon raised them for a pool that
    // it did not live to make, or to fill, or whose end it did not live to see. in_use: the pages behind the pools'
    // files. Call once, before anything is raised.
    void give_back_idle(const Pages &in_use);
    // Raising nr_hugepages turns surplus pages, such as pages that clients of an earlier daemon still have mapped, into
    // persistent ones, which would stay reserved when their last mapping goes. This call makes the pages surplus again.
    // Call it under lock(), once the pages that ensure_free() made free are in use: the kernel takes free pages first.
    void restore_surplus(int os_numa_node, std::uint64_t page_bytes);

private:
    static constexpr std::chrono::seconds kLockPatience{3};
    static constexpr std::chrono::seconds kThreadPatience{3};
    static constexpr std::chrono::seconds kDistrust{60};

    Fd lock_among_daemons(const Key &key, std::chrono::milliseconds patience) const;
    void warn_of_lock(const std::string &reason) const;
    std::string folder(int os_numa_node, std::uint64_t page_bytes) const;
    LedgerReservation *reservation(const Key &key) const;
    // Writes nr_hugepages. The change counts as raised, or as given back, at whatever instant the daemon dies. Returns
    // 0 or the errno.
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
    // Guarded by lock_mutex_: until then locks are tried and not waited for.
    mutable std::chrono::steady_clock::time_point distrusted_until_{}, threads_distrusted_until_{};
    mutable std::string lock_trouble_;  // guarded by lock_mutex_; the reason that was logged last
    // Held while nr_hugepages is changed and the change is counted, also by threads that go on without lock().
    std::recursive_mutex changing_;
    std::mutex mutex_;
    Pages raised_pages_;               // guarded by mutex_
    Pages lost_surplus_;               // guarded by mutex_; a part of the raised pages
    MachineLedger *ledger_ = nullptr;  // guarded by mutex_
};

// Reserving and populating leave so much to the rest of the machine, so that the kernel does not kill processes.
inline constexpr std::uint64_t kNodeHeadroomBytes = std::uint64_t{64} << 20;

}  // namespace numacre::daemon
