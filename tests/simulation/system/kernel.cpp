#include "kernel.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "numacre/os/kernel.hpp"

namespace numacre::simulation {
namespace {

constexpr std::size_t kArenaBytes = std::size_t{8} << 20;
constexpr int kFamiliesMax = 128;
constexpr std::size_t kPage = 4096;
constexpr int kFirstFd = 3;
constexpr std::uint32_t kFirstPid = 100;
constexpr std::uint32_t kFirstServicePid = 10'000;

std::byte *arenas() {
    static std::byte *const place =
        static_cast<std::byte *>(::mmap(nullptr, kArenaBytes * kFamiliesMax, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    return place;
}

// From here on processes have their maps.
std::byte *addresses() {
    constexpr std::size_t kRoom = std::size_t{1} << 40, kAlignment = std::size_t{1} << 30;
    static std::byte *const place = [] {
        void *const found = ::mmap(nullptr, kRoom, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (found == MAP_FAILED) {
            std::perror("simulation_system: no addresses");
            std::exit(2);
        }
        const auto number = reinterpret_cast<std::uintptr_t>(found);
        return reinterpret_cast<std::byte *>((number + kAlignment - 1) / kAlignment * kAlignment);
    }();
    return place;
}

std::uintptr_t number_of(const void *address) {
    return reinterpret_cast<std::uintptr_t>(address);
}
void *address_of(std::uintptr_t number) {
    return reinterpret_cast<void *>(number);
}
std::size_t in_pages(std::size_t bytes) {
    return (bytes + kPage - 1) / kPage * kPage;
}
// Nobody's again, and inaccessible; nor do our own allocations get it.
void give_back(std::uintptr_t address, std::size_t bytes) {
    ::mmap(address_of(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
const std::uint32_t *key_of(const File *file) {
    return reinterpret_cast<const std::uint32_t *>(file);
}

bool tracing = false;

}  // namespace

Kernel *Kernel::running = nullptr;
void (*Kernel::on_failure)(const std::string &what) = nullptr;

void fail(const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    Kernel::on_failure(text);
}
bool is_tracing() {
    return tracing;
}
void set_tracing(bool on) {
    tracing = on;
}
void trace(const char *format, ...) {
    if (!tracing) return;
    std::printf("%9llu  ", static_cast<unsigned long long>(steps_done()));
    if (Kernel::running != nullptr && Kernel::running->in_process()) {
        const Process &who = Kernel::running->current();
        std::printf("%s/%d.%d ", who.comm.c_str(), who.id, Kernel::running->scheduler().current());
    }
    va_list arguments;
    va_start(arguments, format);
    std::vprintf(format, arguments);
    va_end(arguments);
    std::printf("\n");
    std::fflush(stdout);
}

File::~File() {
    if (kind == Kind::memory && real_fd >= 0) {
        ::close(real_fd);
        if (Kernel::running != nullptr) --Kernel::running->memory_files_;
    }
    if (kind != Kind::socket) return;
    if (const FilePtr other = peer.lock()) {
        other->has_hung_up = true;
        if (!queue.empty() || !is_accepted) other->was_reset = true;
        if (Kernel::running != nullptr) {
            Kernel::running->scheduler().wake_all(key_of(other.get()));
            Kernel::running->notify();
        }
    }
}

Kernel::Kernel(Scheduler &scheduler, const KernelPlan &plan, std::uint64_t seed)
    : scheduler_(scheduler), plan_(plan), random_(seed, 11) {
    running = this;
    next_address_ = number_of(addresses());
    (void)start_process("init", 0, false);
    processes_[0]->pid = 1;
}

Kernel::~Kernel() {
    for (const auto &process : processes_) {
        drop_mappings(*process);
        process->fds.clear();
        process->in_flight.clear();
    }
    listener_.reset();
    for (int family = 0; family < families_; ++family) {
        std::size_t used = 0;
        for (const auto &process : processes_)
            if (process->family == family) used = std::max(used, process->arena.used);
        if (used != 0) ::madvise(base_of(family), in_pages(used), MADV_DONTNEED);
    }
    load_client_globals(fresh_client_globals());
    running = nullptr;
}

std::byte *Kernel::base_of(int family) const {
    return arenas() + static_cast<std::size_t>(family) * kArenaBytes;
}

bool Kernel::in_process() const {
    return scheduler_.current() >= 0;
}
Process &Kernel::current() {
    return process(scheduler_.fibers()[static_cast<std::size_t>(scheduler_.current())].process);
}

// A number that nobody has; one that somebody had is as good.
std::uint32_t Kernel::free_pid(bool is_client) {
    // Those of services are no client's: what is said of a client whose number the daemon itself has by now (on old
    // kernels) stands in daemon/README.md.
    if (!is_client) return kFirstServicePid + static_cast<std::uint32_t>(processes_.size());
    for (std::uint32_t room = 6;; ++room) {
        const auto pid = static_cast<std::uint32_t>(kFirstPid + random_.below(room));
        if (by_pid(pid) == nullptr) return pid;
    }
}

int Kernel::start_process(const std::string &comm, std::uint32_t uid, bool is_client) {
    auto made = std::make_unique<Process>();
    made->pid = free_pid(is_client);
    made->id = static_cast<int>(processes_.size());
    made->comm = comm;
    made->uid = uid;
    made->is_client = is_client;
    made->start_ticks = last_ticks_ += 5;  // no number comes round within a tick
    made->stack_start = 0x7ff0'0000'0000 + random_.below(1 << 20) * 16;
    made->pidfd_inode = plan_.version == KernelPlan::Version::with_pidfs ? ++last_inode_ : 0;
    if (is_client) {
        made->globals = fresh_client_globals();
        made->family = families_++;
        if (families_ > kFamiliesMax) std::abort();
    }
    processes_.push_back(std::move(made));
    return processes_.back()->id;
}

Process *Kernel::by_pid(std::uint32_t pid) {
    for (const auto &process : processes_)
        if (process->is_alive && process->pid == pid) return process.get();
    return nullptr;
}

int Kernel::fork() {
    const int parent_id = current().id;
    const int id = start_process(current().comm, current().uid, true);
    Process &parent = process(parent_id);
    Process &child = process(id);
    child.stack_start = parent.stack_start;
    child.family = parent.family;
    child.arena = parent.arena;
    child.fds = parent.fds;
    child.fd_limit = parent.fd_limit;
    child.at_thread_end = parent.at_thread_end;
    child.in_forked_child = parent.in_forked_child;
    const std::byte *const base = base_of(parent.family);
    child.image.assign(base, base + parent.arena.used);
    for (const std::size_t offset : child.arena.wiped_in_child)
        std::fill_n(child.image.begin() + static_cast<std::ptrdiff_t>(offset), child.arena.live.at(offset),
                    std::byte{0});
    save_client_globals(parent.globals);
    forget_once_in_child();
    save_client_globals(child.globals);
    load_client_globals(parent.globals);
    return id;
}

void Kernel::exec() {
    Process &process = current();
    scheduler_.kill_others(process.id);
    ++process.program;
    drop_mappings(process);
    std::erase_if(process.fds, [](const auto &fd) { return fd.second->kind != File::Kind::programs; });
    if (const auto placed = placed_.find(process.family); placed != placed_.end() && placed->second == process.id)
        placed_.erase(placed);
    process.family = families_++;
    if (families_ > kFamiliesMax) std::abort();
    process.arena = {};
    process.image.clear();
    process.globals = fresh_client_globals();
    process.at_thread_end = nullptr;
    process.in_forked_child = nullptr;
    process.stack_start = 0x7ff0'0000'0000 + random_.below(1 << 20) * 16;
    load_client_globals(process.globals);
    ThreadLocals fresh;
    fresh.process = process.id;
    load_thread_locals(fresh);
    notify();
}

void Kernel::kill(int id) {
    Process &process = this->process(id);
    if (!process.is_alive) return;
    if (on_death) on_death(process);
    process.is_alive = false;
    scheduler_.kill(id);
    drop_mappings(process);
    auto closed = std::move(process.fds);
    auto let_go = std::move(process.in_flight);
    process.fds.clear();
    process.in_flight.clear();
    closed.clear();
    let_go.clear();
    if (const auto placed = placed_.find(process.family); placed != placed_.end() && placed->second == id)
        placed_.erase(placed);
    if (loaded_ == id) loaded_ = -1;
    if (process.comm == "numacred" && listener_ && !listener_->backlog.empty()) listener_->backlog.clear();
    notify();
}

void Kernel::exit_process() {
    const int id = current().id;
    kill(id);
    scheduler_.leave();
    std::abort();
}

void Kernel::drop_mappings(Process &process) {
    for (const auto &[address, mapping] : process.mappings) give_back(address, mapping.bytes);
    process.mappings.clear();
}

void Kernel::enter_process(int id) {
    loop_watch.enter(id);
    Process &next = process(id);
    if (!next.is_client || !next.is_alive) return;
    if (loaded_ != id) {
        if (loaded_ >= 0) save_client_globals(process(loaded_).globals);
        load_client_globals(next.globals);
        loaded_ = id;
    }
    place_family(next);
}

void Kernel::place_family(Process &next) {
    const auto placed = placed_.find(next.family);
    if (placed != placed_.end() && placed->second == next.id) return;
    std::byte *const base = base_of(next.family);
    if (placed != placed_.end()) {
        Process &before = process(placed->second);
        before.image.assign(base, base + before.arena.used);
        for (const auto &[address, mapping] : before.mappings)
            if (mapping.file) ::mprotect(address_of(address), mapping.bytes, PROT_NONE);
    }
    std::copy(next.image.begin(), next.image.end(), base);
    for (const auto &[address, mapping] : next.mappings)
        if (mapping.file) ::mprotect(address_of(address), mapping.bytes, PROT_READ | PROT_WRITE);
    placed_[next.family] = next.id;
}

void *Kernel::allocate(std::size_t bytes) {
    Process &process = current();
    const std::size_t room = bytes < kPage ? (bytes + 63) / 64 * 64 : in_pages(bytes);
    std::size_t offset = 0;
    if (auto &unused = process.arena.unused[room]; !unused.empty()) {
        offset = unused.back();
        unused.pop_back();
    } else {
        if (room >= kPage) process.arena.used = in_pages(process.arena.used);
        if (process.arena.used + room > kArenaBytes) return nullptr;
        offset = process.arena.used;
        process.arena.used += room;
    }
    process.arena.live[offset] = room;
    std::memset(base_of(process.family) + offset, 0, room);
    return base_of(process.family) + offset;
}

std::size_t Kernel::bytes_at(void *address) {
    Process &process = current();
    const auto offset = static_cast<std::size_t>(static_cast<std::byte *>(address) - base_of(process.family));
    const auto found = process.arena.live.find(offset);
    return found == process.arena.live.end() ? 0 : found->second;
}

bool Kernel::release(void *address) {
    Process &process = current();
    if (process.family < 0) return false;
    const std::byte *const base = base_of(process.family);
    auto *const place = static_cast<std::byte *>(address);
    if (place < base || place >= base + kArenaBytes) return false;
    const auto offset = static_cast<std::size_t>(place - base);
    const auto found = process.arena.live.find(offset);
    if (found == process.arena.live.end()) {
        fail("process %d gives back private memory that it has not (offset %zu)", process.id, offset);
        return true;
    }
    std::memset(place, 0xdd, found->second);  // who uses it after this is to notice
    process.arena.unused[found->second].push_back(offset);
    process.arena.wiped_in_child.erase(offset);
    process.arena.live.erase(found);
    return true;
}

namespace {
constexpr std::uint64_t kAnonymousInode = 8;
}

FilePtr Kernel::make_file(File::Kind kind) {
    auto made = std::make_shared<File>(kind);
    // What has no inode of its own has one in common.
    made->inode = kind == File::Kind::event || kind == File::Kind::programs ? kAnonymousInode : ++last_inode_;
    made->event_id = ++last_event_id_;
    return made;
}

FilePtr Kernel::file(int fd) {
    const auto found = current().fds.find(fd);
    if (found == current().fds.end()) {
        errno = EBADF;
        return nullptr;
    }
    return found->second;
}

int Kernel::install(const FilePtr &file) {
    Process &process = current();
    int fd = kFirstFd;
    while (process.fds.contains(fd)) ++fd;
    if (static_cast<unsigned>(fd) >= process.fd_limit) {
        errno = EMFILE;
        return -1;
    }
    process.fds[fd] = file;
    return fd;
}

int Kernel::listen() {
    const FilePtr made = make_file(File::Kind::listener);
    const int fd = install(made);
    if (fd >= 0) listener_ = made;
    return fd;
}

bool Kernel::is_ready(const File &file) const {
    switch (file.kind) {
        case File::Kind::socket:
            return !file.queue.empty() || file.has_hung_up || file.was_reset;
        case File::Kind::listener:
            return !file.backlog.empty();
        case File::Kind::pidfd:
            return !processes_[static_cast<std::size_t>(file.of_process)]->is_alive;
        default:
            return true;
    }
}

// Loops look again. They sleep on this object.
void Kernel::notify() {
    scheduler_.wake_all(reinterpret_cast<const std::uint32_t *>(this));
}

void Kernel::enter_call() {
    step();
    if (!in_process()) return;
    const Process &process = current();
    const std::uint64_t every = process.is_client            ? plan_.kill_client_every
                                : process.comm == "numacred" ? plan_.kill_daemon_every
                                                             : 0;
    if (process.is_client && fails(plan_.stall_every)) {
        constexpr std::uint64_t kLongest = 20'000;
        scheduler_.pause_for(random_.scaled(kLongest) + 1);
    }
    if (!fails(every)) return;
    trace("dies in a call");
    exit_process();
}

int Kernel::close(int fd) {
    const FilePtr found = file(fd);
    if (!found) return -1;
    if (found->kind == File::Kind::programs) {
        fail("process %d: the library closes descriptor %d, which is the program's", current().id, fd);
        return -1;
    }
    current().fds.erase(fd);
    return 0;
}

int Kernel::connect(int fd, const char *) {
    const FilePtr socket = file(fd);
    if (!socket) return -1;
    bool listens = false;
    for (const auto &process : processes_)
        for (const auto &entry : process->fds) listens = listens || (listener_ && entry.second == listener_);
    if (!listens) {
        errno = listener_ ? ECONNREFUSED : ENOENT;
        return -1;
    }
    const FilePtr other = make_file(File::Kind::socket);
    other->is_accepted = false;
    other->was_connected = socket->was_connected = true;
    other->peer = socket;
    socket->peer = other;
    other->connected_by = current().id;
    other->connected_by_pid = current().pid;
    listener_->backlog.push_back(other);
    notify();
    return 0;
}

ssize_t Kernel::send(int fd, Packet packet) {
    const FilePtr socket = file(fd);
    if (!socket) return -1;
    if (socket->kind == File::Kind::programs) {
        fail("process %d: the library writes to descriptor %d, which is the program's", current().id, fd);
        return -1;
    }
    if (socket->was_reset) {
        socket->was_reset = false;
        errno = ECONNRESET;
        return -1;
    }
    const FilePtr other = socket->peer.lock();
    if (!other) {
        errno = EPIPE;
        return -1;
    }
    const auto bytes = static_cast<ssize_t>(packet.bytes.size());
    other->queue.push_back(std::move(packet));
    scheduler_.wake_all(key_of(other.get()));
    notify();
    return bytes;
}

ssize_t Kernel::receive(int fd, bool peek, bool may_wait, Packet &packet) {
    std::weak_ptr<File> waited;  // no more than that on a stack that may never be left
    std::uint64_t deadline = 0;
    {
        const FilePtr socket = file(fd);
        if (!socket) return -1;
        if (socket->kind == File::Kind::programs) {
            fail("process %d: the library reads descriptor %d, which is the program's", current().id, fd);
            return -1;
        }
        waited = socket;
        deadline = socket->patience_ns == 0 ? kForEver : scheduler_.now_ns() + socket->patience_ns;
    }
    for (;;) {
        const std::uint32_t *key = nullptr;
        {
            const FilePtr socket = waited.lock();
            if (!socket) {
                errno = EBADF;
                return -1;
            }
            if (socket->was_reset) {
                socket->was_reset = false;
                errno = ECONNRESET;
                return -1;
            }
            if (!socket->queue.empty()) {
                packet = socket->queue.front();
                if (!peek) socket->queue.pop_front();
                return static_cast<ssize_t>(packet.bytes.size());
            }
            if (socket->has_hung_up) return 0;
            if (!may_wait || scheduler_.now_ns() >= deadline) {
                errno = EAGAIN;
                return -1;
            }
            if (fails(plan_.interrupt_every)) {
                errno = EINTR;
                return -1;
            }
            key = key_of(socket.get());
        }
        scheduler_.wait_on(key, deadline - scheduler_.now_ns());
    }
}

int Kernel::pidfd_of(int id) {
    if (fails(current().is_client ? 0 : plan_.emfile_every)) {
        errno = EMFILE;
        return -1;
    }
    const FilePtr made = make_file(File::Kind::pidfd);
    made->of_process = id;
    if (const std::uint64_t inode = process(id).pidfd_inode; inode != 0) made->inode = inode;
    return install(made);
}

int Kernel::open_pidfd(std::uint32_t pid) {
    const Process *const found = by_pid(pid);
    if (found == nullptr) {
        errno = ESRCH;
        return -1;
    }
    return pidfd_of(found->id);
}

namespace {
// What [address, address + bytes) has of this process's maps is cut out of them; `visit` learns of each piece.
template <class Visit>
void cut_out(Process &process, std::uintptr_t address, std::size_t bytes, const Visit &visit) {
    const std::uintptr_t end = address + bytes;
    auto at = process.mappings.upper_bound(address);
    if (at != process.mappings.begin()) --at;
    while (at != process.mappings.end() && at->first < end) {
        const std::uintptr_t first = at->first;
        const Mapping mapping = at->second;
        const std::uintptr_t last = first + mapping.bytes;
        if (last <= address) {
            ++at;
            continue;
        }
        at = process.mappings.erase(at);
        const std::uintptr_t from = std::max(first, address), to = std::min(last, end);
        visit(from, to - from);
        if (first < from) process.mappings[first] = {from - first, mapping.file, mapping.is_kept_from_children};
        if (to < last) process.mappings[to] = {last - to, mapping.file, mapping.is_kept_from_children};
        at = process.mappings.lower_bound(to);
    }
}
}  // namespace

void *Kernel::map(void *where, std::size_t bytes, int protection, int flags, int fd, off_t offset) {
    Process &process = current();
    if (fails(plan_.enomem_every)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    if ((flags & MAP_ANONYMOUS) != 0 && protection != PROT_NONE) {
        void *const place = allocate(bytes);
        if (place != nullptr) return place;
        errno = ENOMEM;
        return MAP_FAILED;
    }
    const FilePtr found = (flags & MAP_ANONYMOUS) != 0 ? nullptr : file(fd);
    if ((flags & MAP_ANONYMOUS) == 0 && !found) return MAP_FAILED;
    if (found && (found->kind != File::Kind::memory || (found->is_read_only && (protection & PROT_WRITE) != 0))) {
        errno = EACCES;
        return MAP_FAILED;
    }
    const std::size_t length = in_pages(bytes);
    if ((flags & MAP_FIXED) != 0) cut_out(process, number_of(where), length, [](std::uintptr_t, std::size_t) {});
    if ((flags & MAP_FIXED) == 0) {
        // Where each run has them, in the same way: sources look at the alignment of what they get. Never twice.
        next_address_ += (1 + random_.below(600)) * kPage;
        where = address_of(next_address_);
        next_address_ += length;
    }
    void *const place = ::mmap(where, length, protection, flags | MAP_FIXED, found ? found->real_fd : -1, offset);
    if (place == MAP_FAILED) return place;
    process.mappings[number_of(place)] = {length, found, false};
    return place;
}

int Kernel::protect(void *address, std::size_t bytes, int protection) {
    if (fails(plan_.enomem_every)) {
        errno = ENOMEM;
        return -1;
    }
    const File *const file = file_at(current().id, address);
    if (file != nullptr && file->is_read_only && (protection & PROT_WRITE) != 0) {
        errno = EACCES;
        return -1;
    }
    return ::mprotect(address, in_pages(bytes), protection);
}

int Kernel::unmap(void *address, std::size_t bytes) {
    if (release(address)) return 0;
    // Addresses outside this process's maps are ignored: another process may have a map there.
    cut_out(current(), number_of(address), in_pages(bytes),
            [](std::uintptr_t from, std::size_t length) { give_back(from, length); });
    return 0;
}

int Kernel::advise(void *address, std::size_t bytes, int advice) {
    Process &process = current();
    constexpr int kPopulateRead = 22, kPopulateWrite = 23, kCollapse = 25;
    if (advice == MADV_WIPEONFORK && process.family >= 0) {
        const auto offset = static_cast<std::size_t>(static_cast<std::byte *>(address) - base_of(process.family));
        if (process.arena.live.contains(offset)) process.arena.wiped_in_child.insert(offset);
    } else if (advice == MADV_DONTFORK) {
        const auto found = process.mappings.find(number_of(address));
        if (found != process.mappings.end()) found->second.is_kept_from_children = true;
    } else if (advice == kPopulateWrite) {
        if (fails(plan_.interrupt_every)) {
            errno = EINTR;
            return -1;
        }
        if (fails(plan_.enospc_every)) {
            errno = ENOMEM;
            return -1;
        }
        return ::madvise(address, bytes, advice);
    } else if (advice == kPopulateRead) {
        return ::madvise(address, bytes, advice);
    } else if (advice == kCollapse) {
        errno = EINVAL;
        return -1;
    }
    return 0;
}

const File *Kernel::file_at(int id, const void *address) const {
    const Process &process = *processes_[static_cast<std::size_t>(id)];
    auto at = process.mappings.upper_bound(number_of(address));
    if (at == process.mappings.begin()) return nullptr;
    --at;
    return number_of(address) < at->first + at->second.bytes ? at->second.file.get() : nullptr;
}
bool Kernel::has_mapped(int id, const void *address, const File *file) const {
    return file != nullptr && file_at(id, address) == file;
}

// One word, whatever address each process has it at.
const std::uint32_t *Kernel::futex_key(const std::uint32_t *word) {
    Process &process = current();
    auto at = process.mappings.upper_bound(number_of(word));
    if (at == process.mappings.begin()) return word;
    --at;
    const std::uintptr_t offset = number_of(word) - at->first;
    if (offset >= at->second.bytes || !at->second.file) return word;
    return reinterpret_cast<const std::uint32_t *>(at->second.file->inode << 32 | offset);
}

void Kernel::close_from_and_reopen() {
    Process &process = current();
    std::vector<int> numbers;
    for (const auto &entry : process.fds) numbers.push_back(entry.first);
    process.fds.clear();
    for (const int number : numbers) process.fds[number] = make_file(File::Kind::programs);
}
std::size_t Kernel::programs_files(const Process &process) const {
    return static_cast<std::size_t>(std::count_if(process.fds.begin(), process.fds.end(), [](const auto &entry) {
        return entry.second->kind == File::Kind::programs;
    }));
}

int Kernel::make_memory(const char *name) {
    const FilePtr made = make_file(File::Kind::memory);
    made->name = name;
    made->real_fd = static_cast<int>(::syscall(SYS_memfd_create, name, 1U));
    if (made->real_fd < 0) return -1;
    ++memory_files_;
    return install(made);
}

std::optional<std::uint32_t> Kernel::uid_of(std::uint32_t pid) {
    const Process *const found = by_pid(pid);
    if (found == nullptr || random_.percent(plan_.hidden_percent)) return std::nullopt;
    return found->uid;
}

int Kernel::open(const std::string &path) {
    const auto missing = [] {
        errno = ENOENT;
        return -1;
    };
    if (fails(current().is_client ? 0 : plan_.emfile_every)) {
        errno = EMFILE;
        return -1;
    }
    if (path == "/dev/zero") return install(make_file(File::Kind::zeroes));
    if (path.starts_with("/proc/self/fd/")) {
        const FilePtr of = file(std::atoi(path.c_str() + std::strlen("/proc/self/fd/")));
        if (!of) return missing();
        const FilePtr made = make_file(File::Kind::memory);
        made->real_fd = ::fcntl(of->real_fd, F_DUPFD_CLOEXEC, 0);
        ++memory_files_;
        made->inode = of->inode;
        made->bytes = of->bytes;
        made->seals = of->seals;
        made->is_read_only = true;
        return install(made);
    }
    if (path.starts_with("/proc/self/fdinfo/")) {
        const FilePtr of = file(std::atoi(path.c_str() + std::strlen("/proc/self/fdinfo/")));
        if (!of) return missing();
        const FilePtr made = make_file(File::Kind::text);
        made->text = "pos:\t0\nflags:\t02004002\n";
        if (of->kind == File::Kind::event)
            made->text += "eventfd-count: 0\neventfd-id: " + std::to_string(of->event_id) + "\n";
        return install(made);
    }
    if (path == "/proc/self/status") {
        const FilePtr made = make_file(File::Kind::text);
        made->text = "Name:\tnumacred\nNSpid:\t" + std::string(plan_.has_proc_of_strangers ? "4711\t" : "") +
                     std::to_string(current().pid) + "\nNSpgid:\t1\n";
        return install(made);
    }
    unsigned pid = 0;
    char name[32] = {};
    unsigned thread = 0;
    if (std::sscanf(path.c_str(), "/proc/%u/task/%u/%31s", &pid, &thread, name) == 3) {
        if (thread != pid) return missing();
    } else if (std::sscanf(path.c_str(), "/proc/%u/%31s", &pid, name) != 2) {
        return missing();
    }
    const Process *const found = by_pid(pid);
    if (found == nullptr || random_.percent(plan_.hidden_percent)) return missing();
    const FilePtr made = make_file(File::Kind::text);
    if (std::strcmp(name, "comm") == 0) {
        made->text = found->comm + "\n";
    } else if (std::strcmp(name, "cgroup") == 0) {
        made->text = "0::/simulated\n";
    } else if (std::strcmp(name, "stat") == 0) {
        made->text = std::to_string(found->pid) + " (" + found->comm + ") S";
        constexpr int kFirst = 4, kStart = 22, kStack = 28, kLast = 52;
        // A stranger is replaced by the next, too.
        const std::uint64_t start = plan_.has_proc_of_strangers ? random_.below(10'000) : found->start_ticks;
        const std::uint64_t stack = plan_.has_proc_of_strangers ? random_.below(1 << 20) * 16 : found->stack_start;
        for (int field = kFirst; field <= kLast; ++field)
            made->text += " " + std::to_string(field == kStart ? start : field == kStack ? stack : 0);
        made->text += "\n";
    } else {
        return missing();
    }
    return install(made);
}

}  // namespace numacre::simulation

// --- what the sources under test call
// ---------------------------------------------------------------------------------

namespace numacre::os {

using namespace simulation;

namespace {

// Of a word that has one address in all processes, which is not the same word in all of them.
const std::uint32_t *key_of_word(const void *word) {
    const auto process = static_cast<std::uintptr_t>(Kernel::running->current().id);
    return reinterpret_cast<const std::uint32_t *>(reinterpret_cast<std::uintptr_t>(word) ^ process << 48);
}

constexpr std::uint64_t kPidSpaceInode = 7;
constexpr long kPidFsMagic = 0x50494446;
constexpr int kPeerPidfd = 77;

// Outside a run, and once only: what the daemon's sources find out about the machine they run on.
bool is_idle() {
    return Kernel::running == nullptr || !Kernel::running->in_process();
}
Kernel &kernel() {
    return *Kernel::running;
}
int failed(int error) {
    errno = error;
    return -1;
}

}  // namespace

ssize_t readlink(const char *path, char *text, size_t bytes) {
    kernel().enter_call();
    int fd = -1;
    const FilePtr file = std::sscanf(path, "/proc/self/fd/%d", &fd) == 1 ? kernel().file(fd) : nullptr;
    if (!file) return failed(ENOENT);
    const std::string name = file->kind == File::Kind::event ? "anon_inode:[eventfd]" : "something else";
    const std::size_t part = std::min(bytes, name.size());
    std::memcpy(text, name.data(), part);
    return static_cast<ssize_t>(part);
}

int open(const char *path, int) {
    if (is_idle()) return failed(ENOENT);
    kernel().enter_call();
    return kernel().open(path);
}

ssize_t read(int fd, void *buffer, size_t bytes) {
    if (is_idle()) return failed(EBADF);
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    if (kernel().fails(kernel().plan().interrupt_every)) return failed(EINTR);
    switch (file->kind) {
        case File::Kind::text: {
            const std::size_t left = std::min(bytes, file->text.size() - file->offset);
            if (left == 0) return 0;
            // Short, now and then.
            const std::size_t got = kernel().random().one_in(4) ? kernel().random().between(1, left) : left;
            std::memcpy(buffer, file->text.data() + file->offset, got);
            file->offset += got;
            return static_cast<ssize_t>(got);
        }
        case File::Kind::zeroes: {
            const std::size_t got = kernel().random().one_in(4) ? kernel().random().between(1, bytes) : bytes;
            std::memset(buffer, 0, got);
            return static_cast<ssize_t>(got);
        }
        case File::Kind::event:
            if (file->count == 0) return failed(EAGAIN);
            std::memcpy(buffer, &file->count, sizeof file->count);
            file->count = 0;
            return sizeof file->count;
        case File::Kind::programs:
            simulation::fail("the library reads descriptor %d, which is the program's", fd);
            return failed(EBADF);
        default:
            return failed(EINVAL);
    }
}

int close(int fd) {
    if (is_idle()) return 0;
    kernel().enter_call();
    return kernel().close(fd);
}

int fstat(int fd, struct stat *status) {
    if (is_idle()) return failed(EBADF);
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    *status = {};
    if (file->kind == File::Kind::memory && ::fstat(file->real_fd, status) != 0) return -1;
    status->st_ino = file->inode;
    return 0;
}

int fstatfs(int fd, struct statfs *system) {
    if (is_idle()) return failed(EBADF);
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    *system = {};
    system->f_type =
        file->kind == File::Kind::pidfd && kernel().plan().version == KernelPlan::Version::with_pidfs ? kPidFsMagic : 1;
    return 0;
}

int stat(const char *path, struct stat *status) {
    *status = {};
    unsigned pid = 0;
    if (std::sscanf(path, "/proc/%u", &pid) == 1) {
        const auto uid = kernel().uid_of(pid);
        if (!uid) return failed(ENOENT);
        status->st_uid = *uid;
        return 0;
    }
    status->st_ino = kPidSpaceInode;  // /proc/self/ns/pid: there is one
    return 0;
}

int fchmod(int fd, mode_t) {
    kernel().enter_call();
    return kernel().file(fd) ? 0 : -1;
}

int ftruncate(int fd, off_t bytes) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    file->bytes = static_cast<std::uint64_t>(bytes);
    return ::ftruncate(file->real_fd, bytes);
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    if (kernel().fails(kernel().plan().interrupt_every)) return failed(EINTR);
    if ((mode & FALLOC_FL_PUNCH_HOLE) == 0 && kernel().fails(kernel().plan().enospc_every)) return failed(ENOSPC);
    return ::fallocate(file->real_fd, mode, offset, bytes);
}

ssize_t pread(int fd, void *buffer, size_t bytes, off_t offset) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    return file ? ::pread(file->real_fd, buffer, bytes, offset) : -1;
}

ssize_t pwrite(int fd, const void *buffer, size_t bytes, off_t offset) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    if (kernel().fails(kernel().plan().interrupt_every)) return failed(EINTR);
    if (kernel().fails(kernel().plan().enospc_every)) return failed(ENOSPC);
    return ::pwrite(file->real_fd, buffer, bytes, offset);
}

off_t lseek(int fd, off_t offset, int whence) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    return file ? ::lseek(file->real_fd, offset, whence) : -1;
}

int add_seals(int fd, int seals) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    file->seals |= seals;
    return 0;
}

int get_seals(int fd) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    return file ? file->seals : -1;
}

int memfd_create(const char *name, unsigned) {
    kernel().enter_call();
    return kernel().make_memory(name);
}

int eventfd(unsigned count, int) {
    kernel().enter_call();
    if (kernel().fails(kernel().plan().emfile_every)) return failed(EMFILE);
    const FilePtr made = kernel().make_file(File::Kind::event);
    made->count = count;
    return kernel().install(made);
}

int userfaultfd(int) {
    kernel().enter_call();
    if (!kernel().plan().has_userfaultfd) return failed(EPERM);
    return kernel().install(kernel().make_file(File::Kind::guard));
}

int ioctl(int fd, unsigned long, void *) {
    kernel().enter_call();
    return kernel().file(fd) ? 0 : -1;
}

void *mmap(void *where, size_t bytes, int protection, int flags, int fd, off_t offset) {
    kernel().enter_call();
    return kernel().map(where, bytes, protection, flags, fd, offset);
}
int mprotect(void *address, size_t bytes, int protection) {
    kernel().enter_call();
    return kernel().protect(address, bytes, protection);
}
int munmap(void *address, size_t bytes) {
    if (is_idle()) return 0;
    kernel().enter_call();
    return kernel().unmap(address, bytes);
}
int madvise(void *address, size_t bytes, int advice) {
    kernel().enter_call();
    return kernel().advise(address, bytes, advice);
}

int socket(int, int, int) {
    kernel().enter_call();
    return kernel().install(kernel().make_file(File::Kind::socket));
}
int connect(int fd, const sockaddr *address, socklen_t) {
    kernel().enter_call();
    return kernel().connect(fd, reinterpret_cast<const sockaddr_un *>(address)->sun_path);
}
int setsockopt(int fd, int, int option, const void *value, socklen_t) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    timeval patience{};
    std::memcpy(&patience, value, sizeof patience);
    if (option == SO_RCVTIMEO) file->patience_ns = static_cast<std::uint64_t>(patience.tv_sec) * 1'000'000'000;
    return 0;
}

int getsockopt(int fd, int, int option, void *value, socklen_t *bytes) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    switch (option) {
        case SO_PEERCRED: {
            const Process &who = kernel().process(file->connected_by);
            const ucred credentials{static_cast<pid_t>(file->connected_by_pid), who.uid, who.uid};
            std::memcpy(value, &credentials, sizeof credentials);
            return 0;
        }
        case SO_PEERGROUPS:
            *bytes = 0;
            return 0;
        case kPeerPidfd: {
            if (kernel().plan().version == KernelPlan::Version::old) return failed(ENOPROTOOPT);
            if (!kernel().process(file->connected_by).is_alive) return failed(ESRCH);
            const int pidfd = kernel().pidfd_of(file->connected_by);
            std::memcpy(value, &pidfd, sizeof pidfd);
            return pidfd < 0 ? -1 : 0;
        }
        default:
            return failed(ENOPROTOOPT);
    }
}

ssize_t send(int fd, const void *data, size_t bytes, int) {
    kernel().enter_call();
    const auto *const begin = static_cast<const std::byte *>(data);
    return kernel().send(fd, {{begin, begin + bytes}, {}});
}

ssize_t recv(int fd, void *data, size_t bytes, int flags) {
    kernel().enter_call();
    Packet packet;
    const ssize_t got = kernel().receive(fd, (flags & MSG_PEEK) != 0, (flags & MSG_DONTWAIT) == 0, packet);
    if (got <= 0) return got;
    const std::size_t part = std::min(bytes, packet.bytes.size());
    if (part != 0) std::memcpy(data, packet.bytes.data(), part);
    return static_cast<ssize_t>(part);
}

ssize_t sendmsg(int fd, const msghdr *message, int) {
    kernel().enter_call();
    Packet packet;
    const auto *const begin = static_cast<const std::byte *>(message->msg_iov->iov_base);
    packet.bytes.assign(begin, begin + message->msg_iov->iov_len);
    if (message->msg_controllen != 0) {
        const cmsghdr *const rights = CMSG_FIRSTHDR(message);
        const std::size_t count = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int number = -1;
            std::memcpy(&number, CMSG_DATA(rights) + i * sizeof number, sizeof number);
            const FilePtr file = kernel().file(number);
            if (!file) return failed(EBADF);
            packet.files.push_back(file);
        }
    }
    return kernel().send(fd, std::move(packet));
}

ssize_t recvmsg(int fd, msghdr *message, int flags) {
    kernel().enter_call();
    Packet packet;
    const ssize_t got = kernel().receive(fd, (flags & MSG_PEEK) != 0, (flags & MSG_DONTWAIT) == 0, packet);
    if (got < 0) return got;
    message->msg_flags = 0;
    const std::size_t room = message->msg_iovlen == 0 ? 0 : message->msg_iov->iov_len;
    const std::size_t part = std::min(room, packet.bytes.size());
    if (part != 0) std::memcpy(message->msg_iov->iov_base, packet.bytes.data(), part);
    if (part < packet.bytes.size()) message->msg_flags |= MSG_TRUNC;
    const std::size_t fds_room =
        message->msg_controllen < CMSG_LEN(0) ? 0 : (message->msg_controllen - CMSG_LEN(0)) / sizeof(int);
    std::vector<int> installed;
    for (const FilePtr &file : packet.files) {
        const int number = installed.size() < fds_room && (flags & MSG_PEEK) == 0 ? kernel().install(file) : -1;
        if (number < 0) {
            message->msg_flags |= MSG_CTRUNC;
            break;
        }
        installed.push_back(number);
    }
    if (installed.empty()) {
        message->msg_controllen = 0;
    } else {
        cmsghdr *const rights = CMSG_FIRSTHDR(message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(installed.size() * sizeof(int));
        std::memcpy(CMSG_DATA(rights), installed.data(), installed.size() * sizeof(int));
        message->msg_controllen = CMSG_SPACE(installed.size() * sizeof(int));
    }
    return static_cast<ssize_t>(part);
}

uid_t geteuid() {
    return 0;
}
int pidfd_open(pid_t pid) {
    if (is_idle()) return failed(EPERM);
    kernel().enter_call();
    return kernel().open_pidfd(static_cast<std::uint32_t>(pid));
}
int pidfd_send_signal(int pidfd, int signal_number) {
    const bool only_asks = signal_number == 0;
    if (!only_asks) kernel().enter_call();
    const FilePtr file = kernel().file(pidfd);
    if (!file) return -1;
    const int whose = file->of_process;
    if (!kernel().process(whose).is_alive) return failed(ESRCH);
    if (!only_asks && kernel().process(whose).is_client) kernel().kill(whose);
    return 0;
}
int poll(pollfd *fds, nfds_t count, int) {
    if (is_idle()) return 0;
    kernel().enter_call();
    int ready = 0;
    for (nfds_t i = 0; i < count; ++i) {
        const FilePtr file = kernel().file(fds[i].fd);
        fds[i].revents = static_cast<short>(!file ? POLLNVAL : kernel().is_ready(*file) ? POLLIN : 0);
        if (fds[i].revents != 0) ++ready;
    }
    return ready;
}
ssize_t getrandom(void *buffer, size_t bytes) {
    kernel().enter_call();
    for (std::size_t i = 0; i < bytes; ++i)
        static_cast<std::byte *>(buffer)[i] = static_cast<std::byte>(kernel().random().next());
    return static_cast<ssize_t>(bytes);
}

int futex_wait(uint32_t *word, uint32_t value, const timespec *duration) {
    kernel().enter_call();
    if (*word != value) return EAGAIN;
    if (kernel().random().one_in(16)) return 0;
    const bool is_woken = kernel().scheduler().wait_on(
        kernel().futex_key(word),
        static_cast<std::uint64_t>(duration->tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(duration->tv_nsec));
    return is_woken ? 0 : ETIMEDOUT;
}
void futex_wake(uint32_t *word, int) {
    kernel().enter_call();
    kernel().scheduler().wake(kernel().futex_key(word));
}
int clock_gettime(clockid_t, timespec *time) {
    const std::uint64_t now = Scheduler::running == nullptr ? 1 : Scheduler::running->now_ns();
    time->tv_sec = static_cast<time_t>(now / 1'000'000'000);
    time->tv_nsec = static_cast<long>(now % 1'000'000'000);
    return 0;
}
int sched_yield() {
    step();
    return 0;
}
int pthread_sigmask(int, const sigset_t *, sigset_t *) {
    return 0;
}
int pthread_once(pthread_once_t *once, void (*routine)()) {
    constexpr int kUnderWay = 1, kDone = 2;
    while (*once == kUnderWay) kernel().scheduler().wait_on(key_of_word(once), Kernel::kForEver);
    if (*once == kDone) return 0;
    *once = kUnderWay;
    routine();
    *once = kDone;
    kernel().scheduler().wake_all(key_of_word(once));
    return 0;
}
int pthread_mutex_lock(pthread_mutex_t *mutex) {
    return ::pthread_mutex_lock(mutex);
}
int pthread_mutex_unlock(pthread_mutex_t *mutex) {
    return ::pthread_mutex_unlock(mutex);
}
pid_t gettid() {
    return 1 + kernel().scheduler().current();
}
pid_t getpid() {
    return static_cast<pid_t>(kernel().current().pid);
}
bool thread_is_gone(pid_t thread) {
    return kernel().scheduler().fibers()[static_cast<std::size_t>(thread - 1)].state == FiberState::dead;
}
int pthread_key_create(pthread_key_t *key, void (*at_thread_end)(void *)) {
    *key = 0;
    kernel().current().at_thread_end = at_thread_end;
    return 0;
}
int pthread_setspecific(pthread_key_t, const void *value) {
    kernel().scheduler().fibers()[static_cast<std::size_t>(kernel().scheduler().current())].locals.value =
        const_cast<void *>(value);
    return 0;
}
int pthread_atfork(void (*)(), void (*)(), void (*in_child)()) {
    kernel().current().in_forked_child = in_child;
    return 0;
}

}  // namespace numacre::os
