// Preloaded into numacred: a kernel before 6.16, which does not know SO_PASSRIGHTS.
#include <dlfcn.h>
#include <sys/socket.h>

#include <cerrno>

extern "C" int setsockopt(int fd, int level, int option, const void *value, socklen_t size) noexcept {
    static const auto real =
        reinterpret_cast<int (*)(int, int, int, const void *, socklen_t)>(::dlsym(RTLD_NEXT, "setsockopt"));
    constexpr int kPassRights = 83;
    if (level == SOL_SOCKET && option == kPassRights) {
        errno = ENOPROTOOPT;
        return -1;
    }
    return real(fd, level, option, value, size);
}
