// Preloaded into numacred: something goes wrong at the n-th change of a pool's frames. $NUMACRE_FAULTS names a file;
// while it is there, it says what, by lines of "N WHAT", N counted from the file's appearance:
//   before, after   the process dies (SIGKILL) before the kernel has heard of it, or when it is done
//   nospace         the kernel has no pages
//   wait            nothing happens until $NUMACRE_FAULTS.go is there; $NUMACRE_FAULTS.reached is there meanwhile
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace {

std::atomic<unsigned> calls{0};

bool is_frames(int fd) {
    char name[256];
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t length = ::readlink(link.c_str(), name, sizeof name);
    return length > 0 && std::string(name, static_cast<std::size_t>(length)).find(":frames") != std::string::npos;
}

std::string fault_of_this_call(const std::string &path) {
    std::ifstream file(path);
    if (!file) {
        calls = 0;
        return {};
    }
    const unsigned call = ++calls;
    unsigned number = 0;
    for (std::string what; file >> number >> what;)
        if (number == call) return what;
    return {};
}

void wait_for_go(const std::string &path) {
    const std::string reached = path + ".reached";
    const int fd = ::open(reached.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    while (::access((path + ".go").c_str(), F_OK) != 0) ::usleep(1000);
    ::close(fd);
    ::unlink(reached.c_str());
}

}  // namespace

extern "C" int fallocate(int fd, int mode, off_t offset, off_t length) {
    static const auto real = reinterpret_cast<int (*)(int, int, off_t, off_t)>(::dlsym(RTLD_NEXT, "fallocate"));
    const char *const path = std::getenv("NUMACRE_FAULTS");
    const std::string fault = path != nullptr && is_frames(fd) ? fault_of_this_call(path) : std::string();
    if (fault == "before") ::kill(::getpid(), SIGKILL);
    if (fault == "wait") wait_for_go(path);
    if (fault == "nospace") {
        errno = ENOSPC;
        return -1;
    }
    const int result = real(fd, mode, offset, length);
    if (fault == "after") ::kill(::getpid(), SIGKILL);
    return result;
}
