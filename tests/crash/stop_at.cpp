// Preloaded into a client: it stops itself (SIGSTOP) once, where $NUMACRE_STOP_AT says:
//   map N, mapped N   before and after the n-th mapping of a pool's file
//   unmap N           before the n-th of these is unmapped
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

namespace {

std::mutex mutex;
std::vector<void *> mapped;  // guarded by mutex
std::atomic<unsigned> mapped_count{0}, unmapped_count{0};
std::atomic<bool> has_stopped{false};

bool is_of_a_pool(int fd) {
    char name[256];
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t length = ::readlink(link.c_str(), name, sizeof name);
    return length > 0 &&
           std::string(name, static_cast<std::size_t>(length)).find("memfd:numacre:") != std::string::npos;
}

void stop_at(const char *what, unsigned number) {
    const char *const where = std::getenv("NUMACRE_STOP_AT");
    if (where != nullptr && where == what + (" " + std::to_string(number)) && !has_stopped.exchange(true))
        ::kill(::getpid(), SIGSTOP);
}

}  // namespace

extern "C" void *mmap(void *where, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
    static const auto real =
        reinterpret_cast<void *(*)(void *, size_t, int, int, int, off_t)>(::dlsym(RTLD_NEXT, "mmap"));
    const bool counts = fd >= 0 && (flags & MAP_SHARED) != 0 && is_of_a_pool(fd);
    const unsigned number = counts ? ++mapped_count : 0;
    if (counts) stop_at("map", number);
    void *const address = real(where, bytes, protection, flags, fd, offset);
    if (!counts || address == MAP_FAILED) return address;
    {
        const std::lock_guard lock(mutex);
        mapped.push_back(address);
    }
    stop_at("mapped", number);
    return address;
}

extern "C" int munmap(void *address, size_t bytes) noexcept {
    static const auto real = reinterpret_cast<int (*)(void *, size_t)>(::dlsym(RTLD_NEXT, "munmap"));
    bool counts = false;
    {
        const std::lock_guard lock(mutex);
        const auto found = std::find(mapped.begin(), mapped.end(), address);
        counts = found != mapped.end();
        if (counts) mapped.erase(found);
    }
    if (counts) stop_at("unmap", ++unmapped_count);
    return real(address, bytes);
}
