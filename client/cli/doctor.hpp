// Faults in this machine's set-up for numacre, and the commands that mend them. The gathering of facts and the
// judgement are separate, so that every judgement can be tested on a machine that is in order.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "control.hpp"
#include "json.hpp"
#include "terminal.hpp"

namespace numacre::cli {

struct HugepageFacts {
    int os_numa_node = 0;
    std::uint64_t page_bytes = 0;
    std::uint64_t total = 0;
    std::uint64_t free = 0;
    std::uint64_t surplus = 0;
    std::uint64_t promised = 0;  // free pages that mappings have reserved (HugePages_Rsvd): nobody else gets them
};

struct HugetlbLimit {
    std::string cgroup;  // as /proc/PID/cgroup names it
    std::uint64_t page_bytes = 0;
    std::uint64_t limit_bytes = 0;
    std::uint64_t used_bytes = 0;
};

// Facts from the kernel and the file system. An empty optional: the file does not exist, so the kernel has no such
// knob.
struct SystemFacts {
    std::vector<HugepageFacts> hugepages;
    std::optional<long> io_uring_disabled;
    int io_uring_errno = 0;     // of a real io_uring_setup(); 0: it works
    int memfd_errno = 0;        // of a real memfd_create(); 0: it works
    int userfaultfd_errno = 0;  // of a real userfaultfd(), opened as the library opens it; 0: it works
    std::optional<long> memfd_noexec;
    bool privileged = false;                       // the process of memlock_bytes has CAP_IPC_LOCK
    std::optional<std::uint64_t> memlock_bytes;    // none: unlimited
    std::optional<std::uint64_t> file_size_bytes;  // none: unlimited
    std::optional<std::uint64_t> shm_total_bytes;  // of /dev/shm
    std::optional<std::uint64_t> shm_free_bytes;
    std::optional<long> overcommit_memory;
    std::uint64_t overcommit_hugepages = 0;  // of the 2 MiB size
    std::optional<long> numa_balancing;
    int numa_nodes = 1;
    std::string thp_shmem;  // the choice in brackets of shmem_enabled
    std::vector<HugetlbLimit> hugetlb_limits;
    std::string limits_of;  // "numacred (pid 7)" or "this shell": the process of the memlock, file size and cgroup
    std::string runtime_dir;
    bool runtime_dir_exists = false;
    unsigned runtime_dir_mode = 0;
};

struct DaemonFacts {
    bool reachable = false;
    std::string error;  // the reason why the daemon is not reachable
    bool denied = false;
    v1::Machine machine;
    std::vector<v1::Pool> pools;
    std::vector<v1::Client> clients;
    std::vector<v1::Channel> channels;
};

enum class Level { ok, warning, problem };

struct Finding {
    std::string check;  // a stable name
    Level level = Level::ok;
    std::string what;     // the fact that was found, with the values
    std::string meaning;  // the consequence; empty if all is well
    std::string command;  // the command that mends it; empty if nothing has to be mended
};

// root is "" for this machine, or the root directory of a made-up one. daemon_pid 0: reads the limits of this process.
SystemFacts gather_system_facts(const std::string &root, const std::string &runtime_dir, int daemon_pid);
// The process that listens on the control socket; 0 if none does.
int listener_pid(const std::string &socket_path);

// cli_version finds a tool and a daemon of different releases.
std::vector<Finding> examine(const SystemFacts &system, const DaemonFacts &daemon, const std::string &cli_version);

const char *level_name(Level level);
Json findings_json(const std::vector<Finding> &findings);
void print_findings(std::ostream &out, const std::vector<Finding> &findings, const Pen &pen);
unsigned count_level(const std::vector<Finding> &findings, Level level);

}  // namespace numacre::cli
