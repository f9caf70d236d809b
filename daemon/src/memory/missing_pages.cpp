#include "memory/missing_pages.hpp"

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <span>

#include "engine.hpp"
#include "numacre/shm/layout.hpp"
#include "spec/pool_spec.hpp"

namespace numacre::daemon {
namespace {

constexpr std::uint32_t kWindows = 16;
constexpr std::uint64_t kSpareBytes = kHugepageBytes;  // no window is larger
// About how many pieces a region has whose pieces are smaller than the spare file. With more pieces a window hides
// fewer of the clients' words. With fewer pieces a walk over a region without pages takes fewer signals.
constexpr std::uint64_t kPieces = 4096;

struct Range {
    std::atomic<std::uintptr_t> address{0};  // 0: no mapping is watched here
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<int> file{0};
    std::atomic<bool> is_taken{false};
    std::atomic<bool> is_replaced{false};
    std::atomic<bool> is_held{false};  // by a thread that changes the mapping
    // Guarded by is_held: the numbers of the pieces that show the spare file.
    std::uint32_t window_count = 0;
    std::array<std::uint32_t, kWindows> windows{};

    std::uint64_t piece_bytes() const {
        return std::clamp(std::bit_ceil(bytes.load(std::memory_order_relaxed) / kPieces), kSmallPageBytes, kSpareBytes);
    }
};
constexpr std::size_t kRanges = 65536;
constinit std::array<Range, kRanges> ranges;
constinit std::atomic<std::size_t> ranges_end{0};  // no range at or above this index has ever been used
constinit std::atomic<int> spare_file{-1};         // kSpareBytes long, with all its pages

// Async-signal-safe: the thread that holds a range touches no watched memory meanwhile, and so gets no SIGBUS.
class Hold {
public:
    explicit Hold(Range &range) : range_(range) {
        while (range_.is_held.exchange(true, std::memory_order_acquire)) ::poll(nullptr, 0, 1);
    }
    Hold(const Hold &) = delete;
    Hold &operator=(const Hold &) = delete;
    ~Hold() { range_.is_held.store(false, std::memory_order_release); }

private:
    Range &range_;
};

bool map_over(std::uintptr_t address, std::uint64_t bytes, int file) {
    return ::mmap(reinterpret_cast<void *>(address), bytes, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, 0) != MAP_FAILED;
}

// Makes the region one mapping of its own file again. The caller holds the range.
bool close_windows(Range &range) {
    if (range.window_count == 0) return true;
    if (!map_over(range.address.load(std::memory_order_relaxed), range.bytes.load(std::memory_order_relaxed),
                  range.file.load(std::memory_order_relaxed)))
        return false;
    range.window_count = 0;
    return true;
}

// Async-signal-safe. Opens a window at the place. False: the kernel has no room for the mappings.
bool open_window(Range &range, std::uint64_t offset) {
    const Hold hold(range);
    const std::uint64_t piece_bytes = range.piece_bytes();
    const auto piece = static_cast<std::uint32_t>(offset / piece_bytes);
    const auto windows = std::span(range.windows).first(range.window_count);
    if (std::ranges::find(windows, piece) != windows.end()) return true;  // another thread was here first
    // Closing the oldest window alone would not do: the bound on mappings would then rely on the kernel to join the
    // mappings beside it, and the kernel does so only where both have equal flags.
    if (range.window_count == kWindows && !close_windows(range)) return false;
    const std::uint64_t at = piece * piece_bytes;
    if (!map_over(range.address.load(std::memory_order_relaxed) + at,
                  std::min(piece_bytes, range.bytes.load(std::memory_order_relaxed) - at),
                  spare_file.load(std::memory_order_relaxed)))
        return false;
    range.windows[range.window_count++] = piece;
    range.is_replaced.store(true, std::memory_order_relaxed);  // a look a moment later sees it
    return true;
}

// Async-signal-safe. False: the place is in no watched mapping, or the kernel has no room for the mappings.
bool replace(std::uintptr_t place) {
    const std::size_t end = ranges_end.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < end; ++i) {
        // acquire: with the length. The thread that touches the page keeps it from being unmapped.
        const std::uintptr_t first = ranges[i].address.load(std::memory_order_acquire);
        const std::uint64_t bytes = ranges[i].bytes.load(std::memory_order_relaxed);
        if (first != 0 && place >= first && place - first < bytes) return open_window(ranges[i], place - first);
    }
    return false;
}

void on_bus_error(int number, siginfo_t *info, void *) {
    const int error = errno;
    // Otherwise the signal comes again when this handler returns, and then ends the process.
    if (info->si_code != BUS_ADRERR || !replace(reinterpret_cast<std::uintptr_t>(info->si_addr)))
        std::signal(number, SIG_DFL);
    errno = error;
}

}  // namespace

bool survive_missing_pages() {
    const int file = ::memfd_create("numacre:spare", MFD_CLOEXEC);
    if (file < 0) return false;
    void *spare = MAP_FAILED;
    if (::ftruncate(file, kSpareBytes) == 0)
        spare = ::mmap(nullptr, kSpareBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (spare == MAP_FAILED || ::madvise(spare, kSpareBytes, MADV_POPULATE_WRITE) != 0) {
        const int error = errno;
        if (spare != MAP_FAILED) ::munmap(spare, kSpareBytes);
        ::close(file);
        errno = error;
        return false;
    }
    ::munmap(spare, kSpareBytes);  // the file keeps its pages
    spare_file.store(file, std::memory_order_relaxed);
    struct sigaction action{};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    return ::sigaction(SIGBUS, &action, nullptr) == 0;
}

WatchedPages::WatchedPages(void *address, std::uint64_t bytes, int file) {
    for (std::size_t i = 0; i < kRanges; ++i) {
        if (ranges[i].is_taken.exchange(true, std::memory_order_acquire)) continue;
        number_ = i;
        break;
    }
    if (number_ == kNone) return;
    Range &range = ranges[number_];
    range.bytes.store(bytes, std::memory_order_relaxed);
    range.file.store(file, std::memory_order_relaxed);
    range.is_replaced.store(false, std::memory_order_relaxed);
    range.window_count = 0;
    range.address.store(reinterpret_cast<std::uintptr_t>(address), std::memory_order_release);
    std::size_t end = ranges_end.load(std::memory_order_relaxed);
    while (end <= number_ && !ranges_end.compare_exchange_weak(end, number_ + 1, std::memory_order_release)) {
    }
}

void WatchedPages::end() {
    if (number_ == kNone) return;
    ranges[number_].address.store(0, std::memory_order_relaxed);
    ranges[number_].is_taken.store(false, std::memory_order_release);
    number_ = kNone;
}

void WatchedPages::look_again() const {
    if (!are_replaced()) return;
    const Hold hold(ranges[number_]);
    (void)close_windows(ranges[number_]);  // on failure the windows stay as they were
}

bool WatchedPages::are_replaced() const {
    return number_ != kNone && ranges[number_].is_replaced.load(std::memory_order_relaxed);
}

}  // namespace numacre::daemon
