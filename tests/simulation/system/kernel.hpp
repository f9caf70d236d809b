// The simulated kernel: processes, descriptors, memory maps, sockets, pidfds, /proc, futexes. What is behind a memfd is
// a real one, mapped for real at an address of its own for each process, so that a touch of what is not mapped (any
// more) is a SIGSEGV here too; who has what, who lives and which number is whose is decided here. Each call is a place
// where the scheduler may switch, stop or kill, and where a plan may let it fail.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "loop_watch.hpp"
#include "random.hpp"
#include "scheduler.hpp"

namespace numacre::simulation {

// Which faults the kernel makes: about one in so many of the calls that may fail so; 0: never.
struct KernelPlan {
    enum class Version : std::uint8_t { with_pidfs, with_peer_pidfd, old } version = Version::with_pidfs;  // 6.9, 6.5
    unsigned hidden_percent = 0;         // of looks at another process's /proc
    bool has_proc_of_strangers = false;  // of another pid namespace: other processes under the same numbers
    std::uint64_t emfile_every = 0;
    std::uint64_t enomem_every = 0;
    std::uint64_t enospc_every = 0;
    std::uint64_t interrupt_every = 0;
    std::uint64_t stall_every = 0;        // calls of clients: they stand still for long
    std::uint64_t kill_client_every = 0;  // the caller dies in the call
    std::uint64_t kill_daemon_every = 0;
    bool has_userfaultfd = false;
};

struct File;
using FilePtr = std::shared_ptr<File>;

struct Packet {
    std::vector<std::byte> bytes;
    std::vector<FilePtr> files;
};

struct File {
    enum class Kind : std::uint8_t { memory, socket, listener, pidfd, event, guard, text, zeroes, programs };
    explicit File(Kind what) : kind(what) {}
    File(const File &) = delete;
    File &operator=(const File &) = delete;
    ~File();

    Kind kind;
    std::uint64_t inode = 0;
    std::uint64_t event_id = 0;
    bool is_read_only = false;
    // memory
    int real_fd = -1;
    std::uint64_t bytes = 0;
    int seals = 0;
    std::string name;
    // socket
    std::weak_ptr<File> peer;
    std::deque<Packet> queue;
    bool was_connected = false;
    bool is_accepted = true;
    bool has_hung_up = false;  // the other end
    bool was_reset = false;
    std::uint64_t patience_ns = 0;  // SO_RCVTIMEO; 0: for ever
    int connected_by = -1;          // process
    std::uint32_t connected_by_pid = 0;
    // listener
    std::deque<FilePtr> backlog;
    // pidfd
    int of_process = -1;
    // event
    std::uint64_t count = 0;
    // text
    std::string text;
    std::size_t offset = 0;
};

// A lock of a file description on a byte of the file: let go with the description.
struct FileLock {
    std::weak_ptr<File> of;
    std::uint64_t inode = 0;
    off_t byte = 0;
};

// A range of a file that a program has pinned, for as long as the description of the pin's descriptor is there.
struct PinnedRange {
    std::weak_ptr<File> pin;
    std::uint64_t inode = 0;
    std::uint64_t first_byte = 0, bytes = 0;
};

// A client's private memory. Processes of one family (who has forked whom) have it at the same addresses, and take
// turns there.
struct Arena {
    std::size_t used = 0;
    std::map<std::size_t, std::size_t> live;                 // offset, bytes
    std::map<std::size_t, std::vector<std::size_t>> unused;  // bytes, offsets
    std::set<std::size_t> wiped_in_child;                    // offsets
};

// What the client's sources keep a process: client.cpp.
struct ClientGlobals {
    alignas(16) std::byte bytes[512];
};
void save_client_globals(ClientGlobals &globals);
void load_client_globals(const ClientGlobals &globals);
const ClientGlobals &fresh_client_globals();
void forget_once_in_child();  // of the loaded process

struct Mapping {
    std::uint64_t bytes = 0;
    FilePtr file;  // null: a reservation
    bool is_kept_from_children = false;
};

struct Process {
    int id = 0;  // the scheduler's
    std::uint32_t pid = 0;
    std::uint32_t uid = 0;
    std::uint64_t start_ticks = 0;
    std::uint64_t stack_start = 0;
    std::uint64_t pidfd_inode = 0;
    std::string comm;
    bool is_client = false;
    bool is_alive = true;
    unsigned program = 0;  // counts exec
    unsigned fd_limit = 1024;
    std::map<int, FilePtr> fds;
    std::map<std::uint64_t, FilePtr> in_flight;  // held by the kernel for the event loop's waits
    std::map<std::uintptr_t, Mapping> mappings;
    int family = -1;
    Arena arena;
    ClientGlobals globals;
    std::vector<std::byte> image;  // of the arena, while another of the family has its place
    void (*at_thread_end)(void *) = nullptr;
    void (*in_forked_child)() = nullptr;
};

class Kernel {
public:
    Kernel(Scheduler &scheduler, const KernelPlan &plan, std::uint64_t seed);
    ~Kernel();
    Kernel(const Kernel &) = delete;
    Kernel &operator=(const Kernel &) = delete;
    static Kernel *running;
    static void (*on_failure)(const std::string &what);

    Scheduler &scheduler() { return scheduler_; }
    Random &random() { return random_; }
    KernelPlan &plan() { return plan_; }

    // --- for the world ---
    int start_process(const std::string &comm, std::uint32_t uid, bool is_client);
    // From the running fiber's process; the child has no thread yet.
    int fork();
    // The running fiber's process replaces its program; this fiber goes on as its only thread.
    void exec();
    void kill(int process);
    // The running fiber's; does not return.
    [[noreturn]] void exit_process();
    Process &process(int id) { return *processes_[static_cast<std::size_t>(id)]; }
    Process &current();
    bool in_process() const;
    // Closes what the program has above its standard descriptors, and opens others that get the numbers.
    void close_from_and_reopen();
    bool has_mapped(int process, const void *address, const File *file) const;
    const File *file_at(int process, const void *address) const;
    // Memfds that somebody still has open, mapped or in a socket.
    std::size_t memory_files() const { return memory_files_; }
    std::vector<FileLock> &locks() { return locks_; }
    std::vector<PinnedRange> &pinned() { return pinned_; }
    std::size_t programs_files(const Process &process) const;
    std::function<void(const Process &)> on_death;
    LoopWatch loop_watch;

    // --- for the event loop and the keeper ---
    FilePtr file(int fd);
    int install(const FilePtr &file);  // -1, errno
    int listen();                      // a descriptor of the attach socket, in place of the one before
    void notify();                     // something has become ready
    bool is_ready(const File &file) const;

    // --- for os::, by the running fiber ---
    void enter_call();
    bool fails(std::uint64_t every) { return every != 0 && random_.one_in(every); }
    int close(int fd);
    int connect(int fd, const char *path);
    ssize_t send(int fd, Packet packet);
    // 0: it would block.
    ssize_t receive(int fd, bool peek, bool may_wait, Packet &packet);
    int open_pidfd(std::uint32_t pid);
    int pidfd_of(int process);
    void *map(void *where, std::size_t bytes, int protection, int flags, int fd, off_t offset);
    int protect(void *address, std::size_t bytes, int protection);
    int unmap(void *address, std::size_t bytes);
    int advise(void *address, std::size_t bytes, int advice);
    const std::uint32_t *futex_key(const std::uint32_t *word);
    FilePtr make_file(File::Kind kind);
    std::optional<std::uint32_t> uid_of(std::uint32_t pid);
    int open(const std::string &path);
    int make_memory(const char *name);
    Process *by_pid(std::uint32_t pid);

    // The private memory of the running fiber's process.
    void *allocate(std::size_t bytes);
    bool release(void *address);  // false: it is none of it
    std::size_t bytes_at(void *address);

    // By the scheduler.
    void enter_process(int id);

    static constexpr std::uint64_t kForEver = std::uint64_t{1} << 62;

private:
    friend struct File;
    void drop_mappings(Process &process);
    void place_family(Process &process);
    std::uint32_t free_pid(bool is_client);
    std::byte *base_of(int family) const;

    Scheduler &scheduler_;
    KernelPlan plan_;
    Random random_;
    std::vector<std::unique_ptr<Process>> processes_;
    int loaded_ = -1;            // whose globals are in place
    std::map<int, int> placed_;  // family, process whose image is in place
    int families_ = 0;
    std::uintptr_t next_address_ = 0;
    std::uint64_t last_inode_ = 1000;
    std::uint64_t last_event_id_ = 0;
    std::uint64_t last_ticks_ = 1000;
    std::size_t memory_files_ = 0;
    FilePtr listener_;
    std::vector<FileLock> locks_;
    std::vector<PinnedRange> pinned_;
};

bool is_tracing();
void set_tracing(bool on);
void trace(const char *format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace numacre::simulation
