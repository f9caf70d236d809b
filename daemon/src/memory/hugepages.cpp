#include "memory/hugepages.hpp"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/bytes.hpp"
#include "os/lock_file.hpp"
#include "os/log.hpp"

namespace numacre::daemon {

namespace {

std::optional<std::uint64_t> read_count(const std::string &path) {
    std::ifstream file(path);
    std::uint64_t count = 0;
    if (file >> count) return count;
    return std::nullopt;
}

// Returns 0 or the errno.
int write_count(const std::string &path, std::uint64_t count) {
    const Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file) return errno;
    const std::string text = std::to_string(count);
    return ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : errno;
}

// A numa node's nr_hugepages reads as persistent and surplus pages together; a write to it sets the persistent ones.
std::uint64_t persistent_pages(const HugepagePool &pool) {
    return pool.total - std::min(pool.total, pool.surplus);
}

std::optional<HugepagePool> read_pool(const std::string &where, std::uint64_t page_bytes) {
    std::optional<HugepagePool> found;
    // All counts should be from one moment, if that can be had: while clients end, pages go.
    constexpr int kLooks = 8;
    for (int look = 0; look < kLooks; ++look) {
        const auto total = read_count(where + "/nr_hugepages");
        const auto free = read_count(where + "/free_hugepages");
        if (!total || !free) return std::nullopt;
        found = HugepagePool{page_bytes, *total, *free, read_count(where + "/surplus_hugepages").value_or(0), *free};
        if (read_count(where + "/nr_hugepages") == total) break;
    }
    return found;
}

// Makes the thread's memory come from one numa node, for the object's lifetime.
class ThreadPolicy {
public:
    explicit ThreadPolicy(int os_numa_node) {
        ::syscall(SYS_get_mempolicy, &mode_before_, mask_before_.data(), kBits, nullptr, 0);
        Mask mask{};
        mask[static_cast<std::size_t>(os_numa_node) / 64] = std::uint64_t{1} << (os_numa_node % 64);
        error_ = ::syscall(SYS_set_mempolicy, MPOL_BIND, mask.data(), kBits) == 0 ? 0 : errno;
    }
    ~ThreadPolicy() { ::syscall(SYS_set_mempolicy, mode_before_, mask_before_.data(), kBits); }
    ThreadPolicy(const ThreadPolicy &) = delete;
    ThreadPolicy &operator=(const ThreadPolicy &) = delete;
    int error() const { return error_; }

private:
    static constexpr unsigned long kBits = 1024;  // the largest number of numa nodes that a kernel is built for
    using Mask = std::array<std::uint64_t, kBits / 64>;
    int mode_before_ = MPOL_DEFAULT;
    Mask mask_before_{};
    int error_ = 0;
};

std::string size_folder(std::uint64_t page_bytes) {
    return "/hugepages-" + std::to_string(page_bytes / 1024) + "kB";
}

}  // namespace

Hugepages::Hugepages(bool may_reserve, std::string sysfs_nodes, std::string sysfs_machine, std::string lock_folder)
    : may_reserve_(may_reserve),
      sysfs_nodes_(std::move(sysfs_nodes)),
      sysfs_machine_(std::move(sysfs_machine)),
      lock_folder_(std::move(lock_folder)) {}

namespace {

// True: the folder is ours, and nobody else can make, rename or remove files in it.
bool is_private_folder(const std::string &path) {
    struct stat status{};
    return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() &&
           (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// The number of raised pages after a change of nr_hugepages, given the number before it. Counts the part of the change
// that has come about, and no more than was wanted, whoever else writes there.
std::uint64_t raised_after(std::uint64_t raised_before, std::uint64_t nr_before, std::uint64_t nr_after,
                           std::uint64_t nr_now) {
    const auto [least, most] = std::minmax(nr_before, nr_after);
    const std::uint64_t reached = std::clamp(nr_now, least, most);
    return reached >= nr_before ? raised_before + (reached - nr_before)
                                : raised_before - std::min(raised_before, nr_before - reached);
}

}  // namespace

std::string hugepage_lock_folder() {
    const std::string uid = std::to_string(::geteuid());
    std::string last = "/tmp/numacre-" + uid;
    for (const std::string &folder : {std::string("/run/numacre"), "/run/user/" + uid, last}) {
        // mkdir() leaves an existing entry alone: an entry that another user has made stays as it is.
        if (folder != "/run/user/" + uid) ::mkdir(folder.c_str(), folder == last ? S_IRWXU : 0711);
        if (is_private_folder(folder) && ::access(folder.c_str(), W_OK) == 0) return folder;
    }
    return last;  // another user's: opening a file there reports that
}

void Hugepages::record_in(MachineLedger &ledger, std::span<const int> os_numa_nodes) {
    {
        const std::lock_guard lock(mutex_);
        ledger_ = &ledger;
    }
    for (const int os_numa_node : os_numa_nodes) {
        for (const std::uint64_t page_bytes : {kHugepageBytes, kGiganticPageBytes}) {
            const Key key{os_numa_node, page_bytes};
            LedgerReservation *const kept = reservation(key);
            if (kept == nullptr) continue;
            std::uint64_t raised = kept->raised_pages.load(std::memory_order_relaxed);  // relaxed: its writer is gone
            if (kept->is_changing.load(std::memory_order_acquire) != 0)
                raised = raised_after(kept->raised_before, kept->nr_before, kept->nr_after,
                                      persistent_pages_now(key, kept->nr_before));
            set_raised(key, raised);
        }
    }
}

LedgerReservation *Hugepages::reservation(const Key &key) const {
    return ledger_ != nullptr ? ledger_->reservation(key.first, key.second) : nullptr;
}

void Hugepages::set_raised(const Key &key, std::uint64_t pages) {
    {
        const std::lock_guard lock(mutex_);
        raised_pages_[key] = pages;
    }
    LedgerReservation *const kept = reservation(key);
    if (kept == nullptr) return;
    kept->raised_pages.store(pages, std::memory_order_release);
    kept->is_changing.store(0, std::memory_order_release);
}

std::uint64_t Hugepages::persistent_pages_now(const Key &key, std::uint64_t otherwise) const {
    const auto now = pool(key.first, key.second);
    return now ? persistent_pages(*now) : otherwise;
}

int Hugepages::change_reservation(const Key &key, std::uint64_t nr_before, std::uint64_t nr_after) {
    std::uint64_t raised = 0;
    {
        const std::lock_guard lock(mutex_);
        raised = raised_pages_[key];
    }
    if (LedgerReservation *const kept = reservation(key); kept != nullptr) {
        kept->raised_before = raised;
        kept->nr_before = nr_before;
        kept->nr_after = nr_after;
        kept->is_changing.store(1, std::memory_order_release);
    }
    const int error = write_reservation(key, nr_before, nr_after);
    set_raised(key, raised_after(raised, nr_before, nr_after, persistent_pages_now(key, nr_before)));
    return error;
}

// Before Linux 6.7 a write to one numa node's nr_hugepages adds the surplus pages of all others to the number: 8 become
// 24, and 0 leaves them there (seen with 6.1). In that case this function writes the machine's count, with a thread
// that may use that numa node only.
int Hugepages::write_reservation(const Key &key, std::uint64_t nr_before, std::uint64_t nr_after) const {
    const auto of_node = pool(key.first, key.second);
    const auto of_machine = read_pool(sysfs_machine_ + size_folder(key.second), key.second);
    if (!of_node || !of_machine || of_machine->surplus <= of_node->surplus)
        return write_count(folder(key.first, key.second) + "/nr_hugepages", nr_after);
    const ThreadPolicy bound(key.first);
    if (bound.error() != 0) return bound.error();
    const std::uint64_t others = persistent_pages(*of_machine) - std::min(persistent_pages(*of_machine), nr_before);
    return write_count(sysfs_machine_ + size_folder(key.second) + "/nr_hugepages_mempolicy", others + nr_after);
}

std::string Hugepages::folder(int os_numa_node, std::uint64_t page_bytes) const {
    return sysfs_nodes_ + "/node" + std::to_string(os_numa_node) + "/hugepages" + size_folder(page_bytes);
}

std::optional<HugepagePool> Hugepages::pool(int os_numa_node, std::uint64_t page_bytes) const {
    auto found = read_pool(folder(os_numa_node, page_bytes), page_bytes);
    // The kernel counts reserved pages for the machine, not for each numa node.
    const std::string machine = sysfs_machine_ + size_folder(page_bytes);
    const std::uint64_t reserved = read_count(machine + "/resv_hugepages").value_or(0);
    if (!found || reserved == 0) return found;
    if (const auto of_machine = read_pool(machine, page_bytes))
        found->unreserved = std::min(found->free, of_machine->free - std::min(of_machine->free, reserved));
    return found;
}

std::vector<HugepagePool> Hugepages::pools(int os_numa_node) const {
    std::vector<HugepagePool> found;
    std::error_code ignored;
    const std::string where = sysfs_nodes_ + "/node" + std::to_string(os_numa_node) + "/hugepages";
    for (const auto &entry : std::filesystem::directory_iterator(where, ignored)) {
        constexpr std::string_view kPrefix = "hugepages-";
        const std::string name = entry.path().filename();
        if (!name.starts_with(kPrefix)) continue;
        std::uint64_t kib = 0;
        std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), kib);
        if (const auto one = pool(os_numa_node, kib * 1024)) found.push_back(*one);
    }
    return found;
}

Hugepages::Lock Hugepages::lock(int os_numa_node, std::uint64_t page_bytes, std::chrono::milliseconds patience,
                                std::chrono::milliseconds patience_among_threads) const {
    const Key key{os_numa_node, page_bytes};
    std::timed_mutex *of_threads = nullptr;
    {
        const std::lock_guard lock(lock_mutex_);
        of_threads = &thread_locks_[key];
        if (std::chrono::steady_clock::now() < threads_distrusted_until_) patience_among_threads = {};
    }
    Lock held;
    held.among_threads_ = std::unique_lock(*of_threads, patience_among_threads);
    // This thread has the lock among threads, so no other thread of the daemon wants the lock among daemons.
    if (held.among_threads_) {
        held.among_daemons_ = lock_among_daemons(key, patience);
        return held;
    }
    {
        const std::lock_guard lock(lock_mutex_);
        threads_distrusted_until_ = std::chrono::steady_clock::now() + kDistrust;
    }
    warn_of_lock("another pool of this daemon waits for its file");
    return held;
}

Fd Hugepages::lock_among_daemons(const Key &key, std::chrono::milliseconds patience) const {
    const std::string path =
        lock_folder_ + "/node" + std::to_string(key.first) + "-" + size_folder(key.second).substr(1) + ".lock";
    const auto begun = std::chrono::steady_clock::now();
    {
        const std::lock_guard lock(lock_mutex_);
        if (begun < distrusted_until_) patience = {};
    }
    for (;;) {
        auto file = open_lock_file(path);
        if (!file) {
            warn_of_lock(file.error().message);
            return {};
        }
        const auto left =
            std::chrono::ceil<std::chrono::milliseconds>(begun + patience - std::chrono::steady_clock::now());
        if (!take_lock(*file, std::max(left, std::chrono::milliseconds{0}))) {
            const auto holder = read_holder(*file);
            warn_of_lock("lock file " + path + " is held by another program" +
                         (holder ? " (pid " + std::to_string(*holder) + ")" : "") + " for too long: end it");
            return {};
        }
        // The file was removed meanwhile (systemd removes /run/numacre): the other daemons lock the new one.
        if (!is_at(*file, path)) continue;
        write_holder(*file);
        const std::lock_guard lock(lock_mutex_);
        distrusted_until_ = {};
        lock_trouble_.clear();
        return std::move(*file);
    }
}

// Logs each trouble once: a growth takes the lock for every 64 MiB.
void Hugepages::warn_of_lock(const std::string &reason) const {
    const auto now = std::chrono::steady_clock::now();
    {
        const std::lock_guard lock(lock_mutex_);
        const bool is_old = now < distrusted_until_ && lock_trouble_ == reason;
        if (now >= distrusted_until_) distrusted_until_ = now + kDistrust;
        if (is_old) return;
        lock_trouble_ = reason;
    }
    log::warn("hugepages are counted without their lock: two pools that grow at once may both fail",
              {{"reason", reason}});
}

Answer<std::uint64_t> Hugepages::ensure_free(int os_numa_node, std::uint64_t page_bytes, std::uint64_t pages,
                                             std::uint64_t available_bytes, For file) {
    const std::lock_guard changing(changing_);
    const std::string where = folder(os_numa_node, page_bytes);
    const std::string numa_node = "numa node " + std::to_string(os_numa_node);
    const auto before = pool(os_numa_node, page_bytes);
    if (!before)
        return Unexpected{
            Failure{Errc::out_of_frames, numa_node + " has no hugepages of " + format_bytes(page_bytes) + " (" + where +
                                             " cannot be read): this kernel or CPU has none of that size"}};
    if (before->unreserved >= pages) return std::uint64_t{0};
    // A process that may only read an old file can reserve pages in it: the missing pages may be reserved for it.
    const bool may_do = file == For::old_file && before->free >= pages;

    const std::uint64_t reserved = before->free - before->unreserved;
    const std::string shortage =
        numa_node + " has " + std::to_string(before->free) + " free hugepages of " + format_bytes(page_bytes) +
        (reserved != 0 ? ", " + std::to_string(reserved) + " of them reserved by mappings (HugePages_Rsvd)" : "") +
        ", " + std::to_string(pages) + " are needed";
    const std::uint64_t missing = pages - before->unreserved;
    const std::uint64_t wanted = before->total + missing;
    const std::string remedy = "reserve them: echo " + std::to_string(wanted) + " > " + where + "/nr_hugepages";
    const bool has_memory = missing * page_bytes + kNodeHeadroomBytes <= available_bytes;
    if (may_do && !(may_reserve_ && has_memory)) return std::uint64_t{0};
    if (!may_reserve_) return Unexpected{Failure{Errc::out_of_frames, shortage + "; " + remedy}};
    if (!has_memory)
        return Unexpected{
            Failure{Errc::out_of_frames, shortage + ", and only " + std::to_string(available_bytes >> 20) +
                                             "M of memory are available there: ask for less, or free some"}};

    // Surplus pages that the kernel turns into persistent ones by this write have to be given back as well.
    const std::uint64_t persistent = persistent_pages(*before);
    const int error = change_reservation({os_numa_node, page_bytes}, persistent, wanted);
    if (error != 0)
        return Unexpected{Failure{Errc::out_of_frames, shortage + ", and writing " + where + "/nr_hugepages failed: " +
                                                           std::strerror(error) + "; as root, " + remedy}};
    const auto after = pool(os_numa_node, page_bytes);
    const std::uint64_t raised =
        after && persistent_pages(*after) > persistent ? persistent_pages(*after) - persistent : 0;
    // Raised pages that were surplus before are not new. Only restore_surplus() may give such pages back.
    const std::uint64_t converted =
        after ? std::min(raised, before->surplus - std::min(before->surplus, after->surplus)) : 0;
    {
        const std::lock_guard lock(mutex_);
        lost_surplus_[{os_numa_node, page_bytes}] += converted;
    }
    if (after && (may_do || after->unreserved >= pages)) {
        log::debug("reserved hugepages", {{"numa_node", os_numa_node}, {"pages", raised}, {"page_bytes", page_bytes}});
        return raised - converted;
    }
    give_back(os_numa_node, page_bytes, raised - converted);
    // Where others have free pages, the kernel would take the free pages. The next call that succeeds restores the
    // surplus, or the daemon's end does.
    if (before->free == 0) restore_surplus(os_numa_node, page_bytes);
    return Unexpected{Failure{Errc::out_of_frames, shortage + ", and the kernel found memory for only " +
                                                       std::to_string(raised) + " more (fragmented): reserve them at " +
                                                       "boot (hugepagesz=" + format_bytes(page_bytes) +
                                                       " hugepages=), or ask for less"}};
}

void Hugepages::give_back(int os_numa_node, std::uint64_t page_bytes, std::uint64_t pages) {
    const std::lock_guard changing(changing_);
    const Key key{os_numa_node, page_bytes};
    std::uint64_t lower_by = 0;
    {
        const std::lock_guard lock(mutex_);
        const std::uint64_t raised = raised_pages_[key];
        lower_by = std::min(pages, raised - std::min(raised, lost_surplus_[key]));
    }
    if (lower_by == 0) return;
    const auto now = pool(os_numa_node, page_bytes);
    if (!now) return;
    const std::uint64_t persistent = persistent_pages(*now);
    const int error = change_reservation(key, persistent, persistent - std::min(persistent, lower_by));
    if (error != 0)
        log::warn("hugepages could not be given back",
                  {{"numa_node", os_numa_node}, {"pages", lower_by}, {"error", std::strerror(error)}});
    else
        log::debug("gave hugepages back",
                   {{"numa_node", os_numa_node}, {"pages", lower_by}, {"page_bytes", page_bytes}});
}

void Hugepages::restore_surplus(int os_numa_node, std::uint64_t page_bytes) {
    const std::lock_guard changing(changing_);
    std::uint64_t lost = 0;
    {
        const std::lock_guard lock(mutex_);
        lost = std::exchange(lost_surplus_[{os_numa_node, page_bytes}], 0);
    }
    give_back(os_numa_node, page_bytes, lost);
}

void Hugepages::give_back_idle(const Pages &in_use) {
    Pages all;
    {
        const std::lock_guard lock(mutex_);
        all = raised_pages_;
    }
    for (const auto &[key, pages] : all) {
        const auto used = in_use.find(key);
        // Free pages may belong to others by now: to an administrator who has reserved more.
        const std::uint64_t idle = pages - std::min(pages, used == in_use.end() ? 0 : used->second);
        if (idle == 0) continue;
        const Lock held = lock(key.first, key.second);
        if (const auto now = pool(key.first, key.second))
            give_back(key.first, key.second, std::min(idle, now->unreserved));
    }
}

void Hugepages::give_back_all() {
    Pages all;
    {
        const std::lock_guard lock(mutex_);
        all = raised_pages_;
        lost_surplus_.clear();
    }
    for (const auto &[key, pages] : all) {
        if (pages == 0) continue;
        const Lock held = lock(key.first, key.second);
        give_back(key.first, key.second, pages);
    }
}

}  // namespace numacre::daemon
