#include "doctor.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <ostream>
#include <system_error>
#include <utility>

#include "bytes.hpp"

namespace numacre::cli {
namespace {

constexpr std::uint64_t kHugepageBytes = std::uint64_t{2} << 20;
constexpr std::uint64_t kDefaultOnlineBytes = std::uint64_t{256} << 20;
// Suffices for io_uring fixed buffers over a small pool, and is eight times the usual 8 MiB.
constexpr std::uint64_t kModestMemlockBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kModestShmBytes = std::uint64_t{16} << 20;
constexpr std::int64_t kWaitsTooLongSeconds = 60;  // a message that nobody receives
constexpr double kLookTooLong = 10;                // seconds; a look at a pool of many TiB takes as long by itself

std::string number(std::uint64_t value) {
    return std::to_string(value);
}

std::string error_text(int error) {
    return std::generic_category().message(error);
}

std::string sysfs_hugepages(int os_numa_node, std::uint64_t page_bytes) {
    return "/sys/devices/system/node/node" + std::to_string(os_numa_node) + "/hugepages/hugepages-" +
           number(page_bytes / 1024) + "kB/nr_hugepages";
}

std::string reserve_command(int os_numa_node, std::uint64_t page_bytes, std::uint64_t pages) {
    return "echo " + number(pages) + " > " + sysfs_hugepages(os_numa_node, page_bytes);
}

// As parse_bytes() reads it back: without rounding.
std::string exact_bytes(std::uint64_t bytes) {
    for (const auto &[unit, letter] : {std::pair{std::uint64_t{1} << 30, 'G'}, std::pair{std::uint64_t{1} << 20, 'M'},
                                       std::pair{std::uint64_t{1} << 10, 'K'}})
        if (bytes != 0 && bytes % unit == 0) return number(bytes / unit) + letter;
    return number(bytes);
}

// Makes an operator's pool again as it is, as far as the daemon's account of it goes.
std::string create_command(const v1::Pool &pool) {
    std::string command = "numacre create " + pool.name();
    const auto add = [&command](const char *option, const std::string &value, const char *left_out = "") {
        if (!value.empty() && value != left_out) command += std::string(" --") + option + " " + value;
    };
    if (pool.object_bytes() != 0) {
        add("object", number(pool.object_bytes()));
        add("count", number(pool.object_count()));
    } else {
        std::string online;
        bool alike = true;
        for (const v1::PoolNode &numa_node : pool.nodes()) {
            online += (online.empty() ? "" : "/") + exact_bytes(numa_node.online_bytes());
            alike = alike && numa_node.online_bytes() == pool.nodes(0).online_bytes();
        }
        if (pool.nodes_size() != 0) {
            add("capacity", exact_bytes(pool.nodes(0).capacity_bytes()));
            add("online", alike ? exact_bytes(pool.nodes(0).online_bytes()) : online);
        }
        if (pool.frame_bytes() != 0) add("frame", exact_bytes(pool.frame_bytes()), "4K");
        if (pool.largest_block_bytes() != 0) add("largest", exact_bytes(pool.largest_block_bytes()), "4M");
    }
    if (pool.wanted_backing() != v1::BACKING_UNSPECIFIED)
        add("backing", backing_name(pool.wanted_backing()), "hugetlb");
    if (pool.max_clients() != 0) add("max-clients", number(pool.max_clients()), "256");
    add("owner", pool.owner());
    add("group", pool.group());
    if (pool.mode() != 0) {
        std::array<char, 16> mode{};
        std::snprintf(mode.data(), mode.size(), "%04o", pool.mode());
        add("mode", mode.data(), "0660");
    }
    add("reclaim", pool.reclaim(), "fast");
    add("policy", pool.policy(), "local");
    add("autosize", pool.autosize(), "off");
    if (pool.low_watermark_bytes() != 0) add("low-watermark", exact_bytes(pool.low_watermark_bytes()));
    if (pool.quota_bytes() != 0) add("quota", exact_bytes(pool.quota_bytes()));
    if (pool.soft_quota_bytes() != 0) add("soft-quota", exact_bytes(pool.soft_quota_bytes()));
    return command;
}

class Examination {
public:
    Examination(const SystemFacts &system, const DaemonFacts &daemon, const std::string &cli_version)
        : system_(system), daemon_(daemon), cli_version_(cli_version) {}

    std::vector<Finding> run() {
        daemon();
        runtime_dir();
        hugepages();
        backing();
        hugetlb_cgroup();
        io_uring();
        memfd();
        userfaultfd();
        memlock();
        shm();
        overcommit();
        numa_balancing();
        thp();
        pools();
        clients();
        channels();
        return std::move(findings_);
    }

private:
    void ok(const char *check, std::string what) { findings_.push_back({check, Level::ok, std::move(what), "", ""}); }
    void warn(const char *check, std::string what, std::string meaning, std::string command) {
        findings_.push_back({check, Level::warning, std::move(what), std::move(meaning), std::move(command)});
    }
    void problem(const char *check, std::string what, std::string meaning, std::string command) {
        findings_.push_back({check, Level::problem, std::move(what), std::move(meaning), std::move(command)});
    }

    void daemon() {
        if (!daemon_.reachable) {
            problem("daemon", daemon_.error,
                    daemon_.denied ? "only root and the socket's group may look further"
                                   : "no pool can be attached, resized or watched; what is attached goes on",
                    daemon_.denied ? "ls -l " + system_.runtime_dir
                                   : "systemctl start numacred   # or: numacred --runtime-dir " + system_.runtime_dir);
            return;
        }
        const std::string &version = daemon_.machine.version();
        if (version != cli_version_) {
            warn("daemon", "numacred is " + version + ", this tool is " + cli_version_,
                 "one of the two was not restarted or upgraded; both speak numacre.v1, but newer fields are missing",
                 "systemctl restart numacred");
            return;
        }
        ok("daemon", "numacred " + version + " answers");
    }

    void runtime_dir() {
        if (!system_.runtime_dir_exists) {
            // Without the directory there is no daemon either, and the check `daemon` has said so.
            warn("runtime-dir", system_.runtime_dir + " does not exist", "clients look for the daemon's sockets there",
                 "systemctl start numacred   # makes it; by hand: install -d -m 0711 " + system_.runtime_dir);
            return;
        }
        static constexpr char kOctal[] = "01234567";
        std::string mode;
        for (const unsigned shift : {9U, 6U, 3U, 0U}) mode += kOctal[system_.runtime_dir_mode >> shift & 7];
        if ((system_.runtime_dir_mode & 0002) != 0) {
            problem("runtime-dir", system_.runtime_dir + " has mode " + mode + ": everybody may write there",
                    "anybody can put a socket of their own in the daemon's place", "chmod 0711 " + system_.runtime_dir);
        } else if ((system_.runtime_dir_mode & 0011) == 0) {
            warn("runtime-dir", system_.runtime_dir + " has mode " + mode + ": only its owner may enter",
                 "programs of other users cannot attach; pools have rights of their own",
                 "chmod 0711 " + system_.runtime_dir);
        } else if ((system_.runtime_dir_mode & 0004) != 0) {
            warn("runtime-dir", system_.runtime_dir + " has mode " + mode + ": everybody may read it",
                 "a user can keep the daemon from starting and ending", "chmod 0711 " + system_.runtime_dir);
        } else {
            ok("runtime-dir", system_.runtime_dir + " has mode " + mode);
        }
    }

    // The pools' online bytes and capacity on one numa node, for one page size.
    struct Wanted {
        std::uint64_t online_bytes = 0;
        std::uint64_t capacity_bytes = 0;
        std::uint64_t fallback_bytes = 0;  // online, but not on pages of this size
        std::uint64_t fallback_pages = 0;  // pages for these bytes, at least one for each pool
    };
    Wanted wanted(int os_numa_node, std::uint64_t page_bytes) const {
        Wanted sum;
        for (const v1::Pool &pool : daemon_.pools) {
            for (const v1::PoolNode &numa_node : pool.nodes()) {
                if (numa_node.os_numa_node() != os_numa_node) continue;
                if (is_hugetlb(numa_node.backing()) && numa_node.page_bytes() == page_bytes) {
                    sum.online_bytes += numa_node.online_bytes();
                    sum.capacity_bytes += numa_node.capacity_bytes();
                }
                if (is_hugetlb(asked_backing(pool)) && is_fallback(pool, numa_node) &&
                    hugepage_bytes(asked_backing(pool)) == page_bytes) {
                    sum.fallback_bytes += numa_node.online_bytes();
                    sum.fallback_pages +=
                        std::max<std::uint64_t>(1, (numa_node.online_bytes() + page_bytes - 1) / page_bytes);
                }
            }
        }
        return sum;
    }
    // The nr_hugepages with which the pools that fell back get these pages. Pages in use and pages that mappings have
    // reserved stay as they are. Nothing: enough pages are free.
    std::optional<std::uint64_t> pages_to_have(int os_numa_node, std::uint64_t page_bytes) const {
        HugepageFacts here;  // all 0: the numa node has no page of this size
        for (const HugepageFacts &pages : system_.hugepages)
            if (pages.os_numa_node == os_numa_node && pages.page_bytes == page_bytes) here = pages;
        const std::uint64_t available = here.free - std::min(here.free, here.promised);
        const std::uint64_t needed = wanted(os_numa_node, page_bytes).fallback_pages;
        if (needed <= available) return std::nullopt;
        return here.total + needed - available;
    }

    bool nobody_asks_for_hugepages() const {
        return !daemon_.pools.empty() && std::ranges::none_of(daemon_.pools, [](const v1::Pool &pool) {
            return is_hugetlb(asked_backing(pool));
        });
    }

    void hugepages() {
        if (system_.hugepages.empty()) {
            problem("hugepages", "this kernel has no hugetlb pages",
                    "pools fall back to transparent hugepages or small pages: more TLB misses, no reservation",
                    "use a kernel with CONFIG_HUGETLBFS=y");
            return;
        }
        for (const HugepageFacts &pages : system_.hugepages) {
            const Wanted want = wanted(pages.os_numa_node, pages.page_bytes);
            // 1 GiB pages matter only to pools that use them.
            if (pages.page_bytes != kHugepageBytes && pages.total == 0 && want.capacity_bytes == 0 &&
                want.fallback_bytes == 0)
                continue;
            std::string what = "node " + std::to_string(pages.os_numa_node) + ", " + format_bytes(pages.page_bytes) +
                               ": " + number(pages.total) + " reserved, " + number(pages.free) + " free";
            if (pages.promised != 0) what += " (" + number(pages.promised) + " of them reserved by mappings)";
            if (pages.surplus != 0) what += ", " + number(pages.surplus) + " surplus";
            if (daemon_.reachable) {
                what += "; pools have " + format_bytes(want.online_bytes) + " online there";
                if (want.capacity_bytes > want.online_bytes) {
                    what += " and may grow by " + format_bytes(want.capacity_bytes - want.online_bytes);
                }
            }
            const auto advised = pages_to_have(pages.os_numa_node, pages.page_bytes);
            if (advised && want.fallback_bytes != 0) {
                warn(
                    "hugepages", what,
                    format_bytes(want.fallback_bytes) + " of the pools on this node could not get them",
                    reserve_command(pages.os_numa_node, pages.page_bytes, *advised) + "   # then create the pool anew");
            } else if (nobody_asks_for_hugepages()) {
                ok("hugepages", what + "; no pool asks for hugepages");
            } else if (pages.total == 0 && want.online_bytes == 0) {
                warn("hugepages", what,
                     "a pool gets hugepages only if the daemon may reserve them itself; reserve them early, while "
                     "memory "
                     "is not fragmented",
                     reserve_command(pages.os_numa_node, pages.page_bytes,
                                     std::max<std::uint64_t>(1, kDefaultOnlineBytes / pages.page_bytes)));
            } else {
                ok("hugepages", what);
            }
        }
    }

    void backing() {
        constexpr std::size_t kNamesMax = 8;
        bool any = false, fallback = false;
        std::vector<std::string> as_asked;  // without hugetlb pages
        for (const v1::Pool &pool : daemon_.pools) {
            bool fell_back = false;
            for (const v1::PoolNode &numa_node : pool.nodes()) {
                any = true;
                if (!is_fallback(pool, numa_node)) continue;
                fell_back = fallback = true;
                fallen_back(pool, numa_node);
            }
            if (!fell_back && !is_hugetlb(asked_backing(pool)))
                as_asked.push_back(pool.name() + " (" + backing_name(asked_backing(pool)) + ")");
        }
        if (!as_asked.empty()) {
            std::string names;
            for (std::size_t i = 0; i < std::min(kNamesMax, as_asked.size()); ++i)
                names += (i == 0 ? "" : ", ") + as_asked[i];
            if (as_asked.size() > kNamesMax) names += " and " + number(as_asked.size() - kNamesMax) + " more";
            ok("backing", "without hugetlb pages, as asked for: " + names);
        } else if (any && !fallback) {
            ok("backing", "every pool is on the hugepages that it asks for");
        }
    }

    void fallen_back(const v1::Pool &pool, const v1::PoolNode &numa_node) {
        const v1::Backing asked = asked_backing(pool);
        const std::string &note = numa_node.backing_note();
        std::string command;
        if (is_hugetlb(asked)) {
            const std::uint64_t page = hugepage_bytes(asked);
            if (const auto advised = pages_to_have(numa_node.os_numa_node(), page))
                command = reserve_command(numa_node.os_numa_node(), page, *advised) + " && ";
        }
        std::string meaning = is_hugetlb(numa_node.backing())
                                  ? "more TLB misses"
                                  : "more TLB misses, and the memory is not reserved: the machine may run out of it "
                                    "under the pool";
        if (pool.made_within().empty()) {
            meaning +=
                "; what the new pool has that the command does not name is the default: see numacre get " + pool.name();
            command += "numacre delete " + pool.name() + " && " + create_command(pool);
        } else {
            meaning +=
                "; a client has made the pool, which goes ten seconds after its last one: end them all, and "
                "start them again later";
            command += "numacre clients " + pool.name();
        }
        warn("backing",
             "pool " + pool.name() + ", node " + number(numa_node.node()) + ": " + backing_name(numa_node.backing()) +
                 " instead of " + backing_name(asked) + (note.empty() ? "" : ": " + note),
             std::move(meaning), std::move(command));
    }

    void hugetlb_cgroup() {
        if (system_.hugetlb_limits.empty()) {
            ok("hugetlb-cgroup", "no cgroup limits the hugepages of " + system_.limits_of);
            return;
        }
        for (const HugetlbLimit &limit : system_.hugetlb_limits) {
            const std::string what = limit.cgroup + " allows " + format_bytes(limit.limit_bytes) + " of " +
                                     format_bytes(limit.page_bytes) + " pages, " + format_bytes(limit.used_bytes) +
                                     " used";
            std::uint64_t capacity = 0;
            for (const v1::Pool &pool : daemon_.pools) {
                for (const v1::PoolNode &numa_node : pool.nodes()) {
                    const bool is_on_them =
                        is_hugetlb(numa_node.backing()) && numa_node.page_bytes() == limit.page_bytes;
                    const bool asks_for_them = is_hugetlb(asked_backing(pool)) && is_fallback(pool, numa_node) &&
                                               hugepage_bytes(asked_backing(pool)) == limit.page_bytes;
                    if (is_on_them || asks_for_them) {
                        capacity += numa_node.capacity_bytes();
                    }
                }
            }
            if (limit.limit_bytes == 0 || limit.limit_bytes < capacity) {
                warn("hugetlb-cgroup", what,
                     "pools cannot get hugepages beyond it, free or not" +
                         (capacity != 0 ? "; they may grow to " + format_bytes(capacity) : std::string()),
                     "echo max > /sys/fs/cgroup" + limit.cgroup + (limit.cgroup.back() == '/' ? "" : "/") + "hugetlb." +
                         format_bytes_short(limit.page_bytes) + "B.max");
            } else {
                ok("hugetlb-cgroup", what);
            }
        }
    }

    void io_uring() {
        const long disabled = system_.io_uring_disabled.value_or(0);
        if (disabled == 2) {
            problem("io_uring", "kernel.io_uring_disabled is 2: nobody may use io_uring", "numacred cannot start",
                    "sysctl -w kernel.io_uring_disabled=0");
        } else if (disabled == 1) {
            warn("io_uring", "kernel.io_uring_disabled is 1: only a group and CAP_SYS_ADMIN may use io_uring",
                 "numacred must run with that right; programs that use pools for io_uring buffers too",
                 "sysctl -w kernel.io_uring_disabled=0");
        } else if (system_.io_uring_errno != 0) {
            problem("io_uring", "io_uring_setup fails: " + error_text(system_.io_uring_errno),
                    system_.io_uring_errno == ENOMEM
                        ? "the memlock limit is too small for a ring on this kernel"
                        : "a seccomp filter (a container's default profile) or an old kernel "
                          "keeps numacred from starting here",
                    system_.io_uring_errno == ENOMEM ? "ulimit -l unlimited"
                                                     : "run the container with a seccomp profile that allows io_uring");
        } else {
            ok("io_uring", "allowed, and a ring could be made");
        }
    }

    void userfaultfd() {
        if (system_.userfaultfd_errno == 0) {
            ok("userfaultfd", "allowed: a touch of memory that is offline is a SIGBUS");
            return;
        }
        warn("userfaultfd", "userfaultfd fails: " + error_text(system_.userfaultfd_errno),
             "a client that touches memory that is offline, by a stale pointer, gets a new page unseen: it is missing "
             "elsewhere until the pool grows or ends",
             "allow userfaultfd in the container's seccomp profile (Linux 5.11 or later, CONFIG_USERFAULTFD)");
    }

    void memfd() {
        if (system_.memfd_errno != 0) {
            problem("memfd", "memfd_create fails: " + error_text(system_.memfd_errno), "pools are made of memfds",
                    system_.memfd_noexec.value_or(0) == 2 ? "sysctl -w vm.memfd_noexec=1"
                                                          : "allow memfd_create in the container's seccomp profile");
        } else if (system_.memfd_noexec.value_or(0) == 2) {
            problem("memfd", "vm.memfd_noexec is 2", "memfds without MFD_NOEXEC_SEAL are refused: no pool can be made",
                    "sysctl -w vm.memfd_noexec=1");
        } else if (system_.file_size_bytes) {
            problem("memfd",
                    "the file size limit of " + system_.limits_of + " is " + format_bytes(*system_.file_size_bytes),
                    "a pool's memfd is as large as its capacity: making it ends in SIGXFSZ",
                    "ulimit -f unlimited   # systemd: LimitFSIZE=infinity");
        } else {
            ok("memfd", "allowed, without a size limit");
        }
    }

    void memlock() {
        if (!system_.memlock_bytes) {
            ok("memlock", system_.limits_of + ": unlimited");
        } else if (system_.privileged) {
            ok("memlock",
               system_.limits_of + ": " + format_bytes(*system_.memlock_bytes) + ", but CAP_IPC_LOCK lifts it");
        } else if (*system_.memlock_bytes < kModestMemlockBytes) {
            warn("memlock", system_.limits_of + " may lock " + format_bytes(*system_.memlock_bytes),
                 "io_uring fixed buffers over a pool count against it and fail with ENOMEM beyond it",
                 "ulimit -l unlimited   # for good: '* - memlock unlimited' in /etc/security/limits.conf; systemd: "
                 "LimitMEMLOCK=infinity");
        } else {
            ok("memlock", system_.limits_of + " may lock " + format_bytes(*system_.memlock_bytes));
        }
    }

    void shm() {
        if (!system_.shm_total_bytes || !system_.shm_free_bytes) {
            warn("shm", "/dev/shm is not there",
                 "pools do not need it, but programs that pass references through shm_open do",
                 "mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /dev/shm");
        } else if (*system_.shm_free_bytes < kModestShmBytes) {
            warn("shm",
                 "/dev/shm has " + format_bytes(*system_.shm_free_bytes) + " free of " +
                     format_bytes(*system_.shm_total_bytes),
                 "pools do not need it, but programs that pass references through shm_open do",
                 "mount -o remount,size=256M /dev/shm   # podman, docker: --shm-size 256m");
        } else {
            ok("shm", "/dev/shm has " + format_bytes(*system_.shm_free_bytes) + " free of " +
                          format_bytes(*system_.shm_total_bytes));
        }
    }

    void overcommit() {
        if (system_.overcommit_memory.value_or(0) == 2) {
            warn("overcommit", "vm.overcommit_memory is 2: address space is accounted strictly",
                 "every client maps a pool's whole capacity; attach may fail with ENOMEM though memory is free",
                 "sysctl -w vm.overcommit_memory=0");
        } else {
            ok("overcommit", "vm.overcommit_memory is " + std::to_string(system_.overcommit_memory.value_or(0)));
        }
        ok("overcommit-hugepages", system_.overcommit_hugepages == 0
                                       ? std::string("vm.nr_overcommit_hugepages is 0: pools get reserved pages only")
                                       : "vm.nr_overcommit_hugepages is " + number(system_.overcommit_hugepages) +
                                             ": beyond the reservation, pages may come and go as surplus");
    }

    void numa_balancing() {
        if (system_.numa_balancing.value_or(0) != 0 && system_.numa_nodes > 1) {
            warn(
                "numa-balancing", "kernel.numa_balancing is " + std::to_string(*system_.numa_balancing),
                "the kernel unmaps pages now and then to see who uses them: faults on small-page pools, and pages that "
                "leave the node the pool put them on",
                "sysctl -w kernel.numa_balancing=0");
        } else {
            ok("numa-balancing", system_.numa_nodes > 1 ? "off" : "one numa node: nothing to balance");
        }
    }

    void thp() {
        if (system_.thp_shmem.empty()) {
            ok("thp", "this kernel has no transparent hugepages for shared memory; hugetlb does not need them");
            return;
        }
        bool small = false;
        for (const v1::Pool &pool : daemon_.pools) {
            for (const v1::PoolNode &numa_node : pool.nodes())
                small = small || (numa_node.backing() == v1::BACKING_SMALL_PAGES && is_fallback(pool, numa_node));
        }
        if (small && (system_.thp_shmem == "never" || system_.thp_shmem == "deny")) {
            warn("thp", "shmem_enabled is " + system_.thp_shmem + ", and a pool is on small pages unasked",
                 "the next best after hugetlb is not used either",
                 "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled");
        } else {
            ok("thp", "shmem_enabled is " + system_.thp_shmem);
        }
    }

    void pools() {
        if (!daemon_.reachable) return;
        bool troubled = false;
        for (const v1::Pool &pool : daemon_.pools) {
            if (pool.looking_seconds() > kLookTooLong) {
                troubled = true;
                warn("pools",
                     "a look at pool " + pool.name() + " has lasted for " +
                         format_duration(std::chrono::duration<double>(pool.looking_seconds())),
                     "its figures are old; if the log says that the pool's files are kept busy, a client does that, "
                     "and nobody attaches to the pool",
                     "numacre clients " + pool.name() + ", then numacre evict of one after the other");
            }
            if (pool.state() != v1::POOL_STATE_CORRUPT) continue;
            troubled = true;
            problem("pools", "pool " + pool.name() + " is corrupt: " + pool.corrupt_reason(),
                    "a client wrote into the allocator's metadata; the daemon serves the pool no more",
                    "its clients keep the blocks that they hold: list them (numacre clients " + pool.name() +
                        ") and let them save what they need; only then numacre delete " + pool.name() +
                        " --force, which destroys the contents, and " +
                        (pool.made_within().empty() ? create_command(pool)
                                                    : "start the clients again, which make the pool"));
        }
        if (troubled) return;
        if (daemon_.pools.empty()) {
            warn("pools", "there is no pool", "nobody can attach",
                 "numacre create default --capacity 1G --online 256M");
            return;
        }
        ok("pools",
           number(daemon_.pools.size()) + (daemon_.pools.size() == 1 ? " pool, serving" : " pools, all serving"));
    }

    void clients() {
        if (!daemon_.reachable) return;
        bool troubled = false;
        for (const v1::Client &client : daemon_.clients) {
            if (client.state() != "lost connection" && client.state() != "recovering") continue;
            troubled = true;
            const bool lost = client.state() == "lost connection";
            if (client.waits_for_client_id() != 0) {
                const std::string other = number(client.waits_for_client_id());
                warn("clients",
                     "client " + number(client.client_id()) + " (" + client.comm() + ", pid " + number(client.pid()) +
                         ") of pool " + client.pool() + " is dead, and its recovery waits for client " + other,
                     "client " + other +
                         " stands still (stopped, or not scheduled) in the middle of an operation on an overlapping "
                         "block; nobody else waits",
                     "kill -CONT its pid, or: numacre evict " + other + " --grace 5s");
                continue;
            }
            warn("clients",
                 "client " + number(client.client_id()) + " (" + client.comm() + ", pid " + number(client.pid()) +
                     ") of pool " + client.pool() + ": " + client.state() + ", holds " +
                     format_bytes(client.used_bytes()),
                 lost ? "the process lives but does not talk to the daemon: its blocks come back when it ends"
                      : "its process is dead and its blocks are being given back; look again",
                 lost ? "numacre evict " + number(client.client_id()) + " --grace 5s"
                      : "numacre clients " + client.pool());
        }
        const auto processes = std::ranges::count_if(
            daemon_.clients, [](const v1::Client &client) { return client.state() != "channel"; });
        if (!troubled) ok("clients", number(static_cast<std::uint64_t>(processes)) + " attached, none in trouble");
    }

    void channels() {
        if (!daemon_.reachable) return;
        bool troubled = false;
        for (const v1::Channel &channel : daemon_.channels) {
            if (channel.receivers() != 0 || channel.oldest_waits_for().seconds() < kWaitsTooLongSeconds) continue;
            troubled = true;
            const bool is_open = channel.clients_size() != 0;
            const std::uint64_t messages = std::uint64_t{channel.waiting_messages()} + channel.returned_messages();
            warn("channels",
                 "channel " + channel.name() + " of pool " + channel.pool() + " has " + number(messages) +
                     (messages == 1 ? " message (" : " messages (") + format_bytes(channel.waiting_bytes()) +
                     "), the oldest for " +
                     format_duration(std::chrono::seconds(channel.oldest_waits_for().seconds())) + ", and nobody " +
                     (is_open ? "receives" : "has it open"),
                 "the messages' blocks stay in use" +
                     std::string(is_open ? ", and senders wait or fail once the channel is full" : "") +
                     ": start a receiver, or remove the channel with what is in it",
                 "numacre channels " + channel.pool() + " --remove " + channel.name() + (is_open ? " --force" : ""));
        }
        if (!troubled) ok("channels", number(daemon_.channels.size()) + " in all pools, no message left behind");
    }

    const SystemFacts &system_;
    const DaemonFacts &daemon_;
    const std::string &cli_version_;
    std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> examine(const SystemFacts &system, const DaemonFacts &daemon, const std::string &cli_version) {
    return Examination(system, daemon, cli_version).run();
}

const char *level_name(Level level) {
    switch (level) {
        case Level::ok:
            return "ok";
        case Level::warning:
            return "warning";
        case Level::problem:
            return "problem";
    }
    return "unknown";
}

unsigned count_level(const std::vector<Finding> &findings, Level level) {
    return static_cast<unsigned>(std::count_if(findings.begin(), findings.end(),
                                               [&](const Finding &finding) { return finding.level == level; }));
}

Json findings_json(const std::vector<Finding> &findings) {
    Json checks = Json::array();
    for (const Finding &finding : findings) {
        checks.push_back({{"check", finding.check},
                          {"level", level_name(finding.level)},
                          {"what", finding.what},
                          {"meaning", finding.meaning},
                          {"command", finding.command}});
    }
    return {{"problems", count_level(findings, Level::problem)},
            {"warnings", count_level(findings, Level::warning)},
            {"checks", checks}};
}

void print_findings(std::ostream &out, const std::vector<Finding> &findings, const Pen &pen) {
    for (const Finding &finding : findings) {
        std::string mark = level_name(finding.level);
        mark.resize(9, ' ');
        if (pen.colour) {
            const char *colour = finding.level == Level::ok        ? "\033[32m"
                                 : finding.level == Level::warning ? "\033[33m"
                                                                   : "\033[31m";
            mark = colour + mark + "\033[0m";
        }
        out << mark << finding.check << ": " << printable(finding.what) << '\n';
        if (!finding.meaning.empty()) out << "         " << printable(finding.meaning) << '\n';
        if (!finding.command.empty()) out << "         $ " << printable(finding.command) << '\n';
    }
    const unsigned problems = count_level(findings, Level::problem), warnings = count_level(findings, Level::warning);
    out << '\n'
        << problems << (problems == 1 ? " problem, " : " problems, ") << warnings
        << (warnings == 1 ? " warning\n" : " warnings\n");
}

}  // namespace numacre::cli
