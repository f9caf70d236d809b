#include "memory/missing_pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "engine.hpp"
#include "numacre/shm/layout.hpp"

namespace numacre::daemon {
namespace {

struct Range {
    std::atomic<std::uintptr_t> address{0};  // 0: none
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<bool> is_taken{false};
    std::atomic<bool> is_replaced{false};
};
constexpr std::size_t kRanges = 65536;
constinit std::array<Range, kRanges> ranges;
constinit std::atomic<std::size_t> ranges_end{0};  // at and above it there has never been one
constinit std::atomic<int> spare_file{-1};         // kSpareBytes, which have all their pages
constexpr std::uint64_t kSpareBytes = kHugepageBytes;

// Async-signal-safe. False: it is no page of ours, or the kernel has no room for the mappings.
bool replace(std::uintptr_t place) {
    const int file = spare_file.load(std::memory_order_relaxed);
    const std::size_t end = ranges_end.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < end; ++i) {
        // acquire: with the length. The thread that touches it keeps it from being unmapped.
        const std::uintptr_t first = ranges[i].address.load(std::memory_order_acquire);
        const std::uint64_t bytes = ranges[i].bytes.load(std::memory_order_relaxed);
        if (first == 0 || place < first || place - first >= bytes) continue;
        for (std::uint64_t at = 0; at < bytes; at += kSpareBytes)
            if (::mmap(reinterpret_cast<void *>(first + at), std::min(kSpareBytes, bytes - at), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, 0) == MAP_FAILED)
                return false;
        ranges[i].is_replaced.store(true, std::memory_order_relaxed);  // whoever looks a moment later sees it
        return true;
    }
    return false;
}

void on_bus_error(int number, siginfo_t *info, void *) {
    const int error = errno;
    // Otherwise it comes again when this returns, and is the end then.
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

WatchedPages::WatchedPages(void *address, std::uint64_t bytes) {
    for (std::size_t i = 0; i < kRanges; ++i) {
        if (ranges[i].is_taken.exchange(true, std::memory_order_acquire)) continue;
        number_ = i;
        break;
    }
    if (number_ == kNone) return;
    Range &range = ranges[number_];
    range.bytes.store(bytes, std::memory_order_relaxed);
    range.is_replaced.store(false, std::memory_order_relaxed);
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

bool WatchedPages::are_replaced() const {
    return number_ != kNone && ranges[number_].is_replaced.load(std::memory_order_relaxed);
}

}  // namespace numacre::daemon
