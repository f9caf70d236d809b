#include "memory/region.hpp"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/bytes.hpp"
#include "memory/hugetlb_cgroup.hpp"
#include "numacre/os/kernel.hpp"
#include "os/log.hpp"
#include "spec/pool_spec.hpp"

namespace numacre::daemon {

// A mapping of part of a file at an address that is a multiple of page_bytes, which is 2 MiB at least. Making and
// ending it takes the lock of the daemon's whole address space, and the kernel may wait meanwhile for a client that
// punches holes into the file: so callers that need the mapping often keep it.
class AlignedWindow {
public:
    AlignedWindow(int fd, std::uint64_t offset, std::uint64_t bytes, int protection,
                  std::uint64_t page_bytes = kHugepageBytes)
        : reserved_bytes_(bytes + page_bytes), bytes_(bytes) {
        reserved_ = os::mmap(nullptr, reserved_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (reserved_ == MAP_FAILED) return;
        const auto start = round_up(reinterpret_cast<std::uintptr_t>(reserved_), page_bytes);
        void *const address = os::mmap(reinterpret_cast<void *>(start), bytes, protection,
                                       MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, static_cast<off_t>(offset));
        if (address != MAP_FAILED) address_ = address;
    }
    AlignedWindow(const AlignedWindow &) = delete;
    AlignedWindow &operator=(const AlignedWindow &) = delete;
    ~AlignedWindow() {
        const int error = errno;
        if (reserved_ != MAP_FAILED) os::munmap(reserved_, reserved_bytes_);
        errno = error;
    }
    void *address() const { return address_; }  // null: errno says why
    std::uint64_t bytes() const { return bytes_; }

private:
    void *reserved_ = MAP_FAILED;
    std::uint64_t reserved_bytes_;
    void *address_ = nullptr;
    std::uint64_t bytes_;
};

namespace {

// Debian 12's headers lack flags that the kernel knows.
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

Unexpected<Failure> failed(Errc code, const std::string &what, int error, const std::string &remedy = {}) {
    return Unexpected{Failure{code, what + ": " + std::strerror(error) + (remedy.empty() ? "" : "; " + remedy)}};
}

Errc code_of(int error) {
    if (error == EMFILE || error == ENFILE) return Errc::too_many_clients;
    // EFAULT: MADV_POPULATE_WRITE of memory that may not be committed (vm.overcommit_memory=2).
    return error == ENOSPC || error == ENOMEM || error == EFAULT ? Errc::out_of_frames : Errc::access_denied;
}

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Answer<Fd> make_memfd(const std::string &name, std::uint64_t bytes, unsigned flags) {
    // Through syscall(): one spelling for every glibc, and flags that its headers do not know yet.
    Fd fd(os::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
    if (!fd)
        return failed(code_of(errno), "memfd_create for " + name, errno, "raise the open file limit (LimitNOFILE=)");
    // The kernel makes memfds with mode 0777: a process that was given a read-only descriptor could open the file again
    // by /proc/self/fd, writable.
    if (os::fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0)
        return failed(code_of(errno), "taking away the mode of the memfd of " + name, errno);
    if (os::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
        return failed(code_of(errno), "a file of " + format_bytes(bytes) + " for " + name, errno, "lower the capacity");
    if (os::add_seals(fd.get(), kSeals) != 0) return failed(code_of(errno), "sealing the memfd of " + name, errno);
    return fd;
}

// Returns the size of a memfd that make_memfd() made in another process. corrupt: the file is shorter, or not sealed.
Answer<std::uint64_t> check_adopted(int fd, std::uint64_t bytes_at_least) {
    struct stat status{};
    const std::uint64_t bytes = os::fstat(fd, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
    if (bytes < bytes_at_least || (os::get_seals(fd) & kSeals) != kSeals)
        return Unexpected{Failure{Errc::corrupt, "a region that was kept has " + std::to_string(bytes) +
                                                     " bytes instead of " + std::to_string(bytes_at_least) +
                                                     ", or not our seals"}};
    return bytes;
}

std::uint64_t backed_bytes_of(int fd) {
    struct stat status{};
    return os::fstat(fd, &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * 512 : 0;
}

// False: the kernel did not make hugepages of the window's small pages, or not of all of them.
bool make_hugepages(const AlignedWindow &window) {
    if (window.address() == nullptr) return false;
    // One small page of each hugepage is mapped first: where there is no page table yet, Linux 6.1 answers EINVAL,
    // though it could collapse. The page is mapped by madvise, not by a read: where a client has punched a hole and no
    // page can be had, madvise fails and a read is a SIGBUS.
    for (std::uint64_t at = 0; at < window.bytes(); at += kHugepageBytes)
        if (os::madvise(static_cast<std::byte *>(window.address()) + at, kSmallPageBytes, MADV_POPULATE_READ) != 0)
            return false;
    return os::madvise(window.address(), window.bytes(), MADV_COLLAPSE) == 0;
}

}  // namespace

Answer<Fd> reopen_read_only(int fd) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    // O_NONBLOCK: a process of our user may have a lease on the file (fcntl(2)), and the kernel would wait 45 s for it.
    Fd reader(os::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!reader && errno == EWOULDBLOCK)
        return Unexpected{Failure{
            Errc::contended, "a process of the daemon's user has a lease on " + path + ": end it, and attach again"}};
    if (!reader && (errno == EMFILE || errno == ENFILE))
        return failed(Errc::too_many_clients, "opening " + path + " for reading", errno,
                      "the daemon has no descriptor left: raise its open file limit");
    if (!reader) return failed(Errc::access_denied, "opening " + path + " for reading", errno, "is /proc mounted?");
    return reader;
}

// ---------------------------------------------------------------------------------------------------------------------

Answer<MetadataRegion> MetadataRegion::create(const std::string &name, std::uint64_t bytes) {
    auto fd = make_memfd(name, bytes, 0);
    if (!fd) return Unexpected{fd.error()};
    return map(std::move(*fd), bytes);
}

Answer<MetadataRegion> MetadataRegion::adopt(Fd fd, std::uint64_t bytes_at_least) {
    const auto bytes = check_adopted(fd.get(), bytes_at_least);
    if (!bytes) return Unexpected{bytes.error()};
    return map(std::move(fd), *bytes);
}

Answer<MetadataRegion> MetadataRegion::map(Fd fd, std::uint64_t bytes) {
    void *const address = os::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
    if (address == MAP_FAILED)
        return failed(Errc::out_of_frames, "mapping " + format_bytes(bytes) + " of metadata", errno,
                      "raise the address space limit (ulimit -v), or lower the capacity");
    return MetadataRegion(std::move(fd), address, bytes);
}

void MetadataRegion::prefer(const Topology &topology, NumaNode home) const {
    // Preferred, not bound: metadata on the wrong node is slow, no metadata is fatal.
    if (const auto placed = topology.bind_shared_pages(address_, bytes_, home, false); !placed)
        log::warn("metadata may land on another numa node",
                  {{"numa_node", home.value}, {"error", placed.error().message}});
}

MetadataRegion::MetadataRegion(Fd fd, void *address, std::uint64_t bytes)
    : fd_(std::move(fd)),
      address_(address),
      bytes_(bytes),
      watched_(address, bytes, fd_.get()),
      is_populated_(bytes / kSmallPageBytes, false),
      populated_pages_(bytes / kHugepageBytes, 0) {}

MetadataRegion::MetadataRegion(MetadataRegion &&other) noexcept
    : fd_(std::move(other.fd_)),
      address_(std::exchange(other.address_, nullptr)),
      bytes_(other.bytes_),
      watched_(std::move(other.watched_)),
      is_populated_(std::move(other.is_populated_)),
      populated_pages_(std::move(other.populated_pages_)) {}

MetadataRegion::~MetadataRegion() {
    watched_.end();
    if (address_ != nullptr) os::munmap(address_, bytes_);
}

Answer<void> MetadataRegion::populate(std::uint64_t offset, std::uint64_t bytes) {
    const std::uint64_t first = offset / kSmallPageBytes * kSmallPageBytes;
    const std::uint64_t last = round_up(offset + bytes, kSmallPageBytes);
    // By faults: fallocate() waits for the holder of the file's lock, and a client can hold that lock for ever (a
    // write() from a page that is never there).
    while (os::madvise(static_cast<std::byte *>(address_) + first, last - first, MADV_POPULATE_WRITE) != 0)
        if (errno != EINTR && errno != EAGAIN)
            // EFAULT: see code_of(). The text "Bad address" would tell nobody anything.
            return failed(code_of(errno), "allocating " + format_bytes(last - first) + " of metadata",
                          errno == EFAULT ? ENOMEM : errno,
                          "free memory on the machine, or raise the cgroup's limit or vm.overcommit_ratio");
    constexpr std::uint64_t kSmallPages = kHugepageBytes / kSmallPageBytes;
    for (std::uint64_t page = first / kSmallPageBytes; page < last / kSmallPageBytes; ++page) {
        if (is_populated_[page]) continue;
        is_populated_[page] = true;
        const std::uint64_t hugepage = page / kSmallPages;
        if (hugepage < populated_pages_.size() && ++populated_pages_[hugepage] == kSmallPages) collapse(hugepage);
    }
    return {};
}

void MetadataRegion::collapse(std::uint64_t hugepage) const {
    const AlignedWindow window(fd_.get(), hugepage * kHugepageBytes, kHugepageBytes, PROT_READ | PROT_WRITE);
    // On failure the small pages stay, and only speed is lost.
    (void)make_hugepages(window);
}

std::uint64_t MetadataRegion::resident_bytes() const {
    return backed_bytes_of(fd_.get());
}

Answer<std::uint64_t> MetadataRegion::bring_home(const Topology &topology, NumaNode home) const {
    std::uint64_t moved = 0;
    for (off_t end = 0;;) {
        const off_t begin = os::lseek(fd_.get(), end, SEEK_DATA);
        if (begin < 0) return moved;  // ENXIO: no data behind `end`
        end = os::lseek(fd_.get(), begin, SEEK_HOLE);
        if (end <= begin) return moved;
        auto *const address = static_cast<std::byte *>(address_) + begin;
        const auto bytes = static_cast<std::uint64_t>(end - begin);
        // By madvise, not by a read, for the reason in make_hugepages().
        if (os::madvise(address, bytes, MADV_POPULATE_READ) != 0) continue;
        const auto home_now = topology.bring_home(address, bytes, kSmallPageBytes, home);
        if (!home_now) return home_now;
        moved += *home_now;
    }
}

// ---------------------------------------------------------------------------------------------------------------------

namespace {
unsigned memfd_flags(wire::Backing backing) {
    switch (backing) {
        case wire::Backing::hugetlb_1g:
            return MFD_HUGETLB | MFD_HUGE_1GB;
        case wire::Backing::hugetlb:
            return MFD_HUGETLB | MFD_HUGE_2MB;
        default:
            return 0;
    }
}
}  // namespace

DataRegion::DataRegion(Fd fd, std::uint64_t bytes, wire::Backing backing)
    : fd_(std::move(fd)), bytes_(bytes), backing_(backing) {}
DataRegion::DataRegion(DataRegion &&) noexcept = default;
DataRegion::~DataRegion() = default;

Answer<DataRegion> DataRegion::create(const std::string &name, std::uint64_t bytes, wire::Backing backing,
                                      const Topology &topology, NumaNode home) {
    auto fd = make_memfd(name, bytes, memfd_flags(backing));
    if (!fd) return Unexpected{fd.error()};
    if (!is_hugetlb(backing)) {
        const AlignedWindow window(fd->get(), 0, bytes, PROT_NONE);
        if (window.address() == nullptr)
            return failed(Errc::out_of_frames, "mapping " + format_bytes(bytes) + " for " + name, errno,
                          "raise the address space limit (ulimit -v), or lower the capacity");
        if (const auto placed = topology.bind_shared_pages(window.address(), bytes, home, true); !placed)
            return Unexpected{placed.error()};
    }
    DataRegion made(std::move(*fd), bytes, backing);
    // Mapped now, while no client can make the kernel wait. On failure window() tries again when it is needed.
    if (is_hugetlb(backing) || topology.is_placement_needed()) (void)made.window();
    return made;
}

Answer<DataRegion> DataRegion::adopt(Fd fd, std::uint64_t bytes, wire::Backing backing) {
    if (const auto sound = check_adopted(fd.get(), bytes); !sound) return Unexpected{sound.error()};
    return DataRegion(std::move(fd), bytes, backing);
}

std::uint64_t DataRegion::page_bytes() const {
    return page_bytes_of(backing_);
}

std::uint64_t DataRegion::backed_bytes() const {
    return backed_bytes_of(fd_.get());
}

Answer<void> DataRegion::populate(std::uint64_t offset, std::uint64_t bytes) const {
    while (os::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
        const int error = errno;
        if (error == EINTR) continue;
        punch(offset, bytes);
        return failed(code_of(error),
                      "allocating " + format_bytes(bytes) + " of " + std::string(backing_name(backing_)) + " memory",
                      error,
                      is_hugetlb(backing_) ? "hugepages were taken meanwhile, or the cgroup's hugetlb." +
                                                 hugetlb_size_name(page_bytes()) + ".max or .rsvd.max is reached"
                                           : "free memory on the machine, or raise the cgroup's limit");
    }
    return {};
}

bool DataRegion::collapse(std::uint64_t offset, std::uint64_t bytes) const {
    return make_hugepages(AlignedWindow(fd_.get(), offset, bytes, PROT_READ | PROT_WRITE));
}

Answer<void> DataRegion::zero(std::uint64_t offset, std::uint64_t bytes) const {
    // By the kernel, not by memset: a client has this file too, and may punch it under us. The kernel's own access to a
    // page that cannot be had is an error; an access by the daemon would be its end. Through a mapping, not by pwrite:
    // a hugetlb file has no write, and clients share the flags of the open file. With O_APPEND no page would be zeroed.
    auto *const begin = static_cast<std::byte *>(window());
    if (begin == nullptr) return failed(code_of(errno), "mapping " + format_bytes(bytes_) + " to zero some", errno);
    const Fd zeroes(os::open("/dev/zero", O_RDONLY | O_CLOEXEC));
    for (std::uint64_t done = 0; done < bytes;) {
        const ssize_t more = os::read(zeroes.get(), begin + offset + done, bytes - done);
        if (more > 0)
            done += static_cast<std::uint64_t>(more);
        else if (more == 0 || errno != EINTR)
            return failed(Errc::corrupt, "zeroing " + format_bytes(bytes) + " at " + std::to_string(offset), errno);
    }
    return {};
}

void *DataRegion::window() const {
    if (!window_ || window_->address() == nullptr)
        window_ = std::make_unique<AlignedWindow>(fd_.get(), 0, bytes_, PROT_READ | PROT_WRITE,
                                                  std::max(page_bytes(), kHugepageBytes));
    return window_->address();
}

Answer<std::uint64_t> DataRegion::bring_home(const Topology &topology, NumaNode home, std::uint64_t offset,
                                             std::uint64_t bytes) const {
    if (window() == nullptr)
        return failed(code_of(errno), "mapping " + format_bytes(bytes_) + " to see where they are", errno);
    auto *const begin = static_cast<std::byte *>(window()) + offset;
    // By madvise, not by a read, for the reason in make_hugepages().
    const auto is_there = [](void *address, std::uint64_t length) {
        return os::madvise(address, length, MADV_POPULATE_READ) == 0;
    };
    constexpr int kRoundsMax = 4;
    std::uint64_t moved = 0;
    if (is_hugetlb(backing_)) {
        if (!is_there(begin, bytes)) return moved;
        return topology.bring_home(begin, bytes, page_bytes(), home);
    }
    for (std::uint64_t at = 0; at < bytes; at += kHugepageBytes) {
        const std::uint64_t part = std::min(kHugepageBytes, bytes - at);
        if (!is_there(begin + at, kSmallPageBytes)) continue;
        auto sample = topology.bring_home(begin + at, part, kHugepageBytes, home);
        if (!sample) return sample;
        moved += *sample;
        if (*sample == 0 || !is_there(begin + at, part)) continue;
        // Several rounds, until no page moves: a page that the kernel was using stays behind, and once the sample is at
        // home nobody looks for it.
        for (int round = 0; round < kRoundsMax; ++round) {
            const auto others = topology.bring_home(begin + at, part, kSmallPageBytes, home);
            if (!others) return others;
            if (*others == 0) break;
            moved += *others;
        }
    }
    // Take the pages out of our page tables: mapped pages count as ours where the kernel looks for a process to end.
    (void)os::madvise(begin, bytes, MADV_DONTNEED);
    return moved;
}

void DataRegion::punch(std::uint64_t offset, std::uint64_t bytes) const {
    while (os::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                         static_cast<off_t>(bytes)) != 0) {
        if (errno == EINTR) continue;
        log::error("memory could not be given back",
                   {{"offset", offset}, {"bytes", bytes}, {"error", std::strerror(errno)}});
        return;
    }
}

}  // namespace numacre::daemon
