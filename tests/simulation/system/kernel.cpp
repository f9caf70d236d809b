#include "kernel.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
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
