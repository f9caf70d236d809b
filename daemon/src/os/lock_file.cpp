#include "os/lock_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <thread>

namespace numacre::daemon {

namespace {

constexpr mode_t kPrivate = S_IRUSR | S_IWUSR;

}  // namespace

Answer<Fd> open_lock_file(const std::string &path) {
    const auto refuse = [&path](const std::string &why) {
        return Unexpected{Failure{Errc::access_denied, "lock file " + path + " " + why}};
    };
    // O_NONBLOCK: opening a fifo that somebody has put there must not wait for its other end.
    constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    Fd file;
    // An existing file is tried first, without O_CREAT: fs.protected_regular refuses O_CREAT in a sticky directory with
    // an errno that says nothing of the owner. The loop tries again if another daemon makes or removes the file in
    // between.
    constexpr int kTries = 8;
    int error = ENOENT;
    for (int attempt = 0; attempt < kTries && !file && (error == ENOENT || error == EEXIST); ++attempt) {
        file = Fd(::open(path.c_str(), kFlags));
        if (!file && errno == ENOENT) {
            file = Fd(::open(path.c_str(), kFlags | O_CREAT | O_EXCL, kPrivate));
            // The mode must not depend on the umask at this moment (another thread may be making a socket).
            if (file) (void)::fchmod(file.get(), kPrivate);
        }
        error = file ? 0 : errno;
    }
    struct stat status{};
    const bool is_there = (file ? ::fstat(file.get(), &status) : ::lstat(path.c_str(), &status)) == 0;
    if (is_there && !S_ISREG(status.st_mode)) return refuse("is no regular file: remove it");
    if (is_there && status.st_uid != ::geteuid())
        return refuse("belongs to uid " + std::to_string(status.st_uid) + " and not to uid " +
                      std::to_string(::geteuid()) + ", which numacred runs as: remove it, and use a directory that " +
                      "only numacred's user can write to");
    // A hard link to a file of ours, made by another user: that file would be locked, and overwritten.
    if (is_there && status.st_nlink != 1) return refuse("has another name, too (a hard link): remove it");
    if (!file) return refuse(std::string("cannot be opened: ") + std::strerror(error));
    // A user who could open the file could hold the lock for ever.
    if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        return refuse("is open to other users, who may hold the lock: remove it");
    return file;
}

bool take_lock(const Fd &file, std::chrono::milliseconds patience) {
    constexpr std::chrono::milliseconds kPause{5};
    const auto deadline = std::chrono::steady_clock::now() + patience;
    // Polls, because flock() has no time limit, and a signal to end it would hit the wrong thread.
    while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) return false;
        if (std::chrono::steady_clock::now() >= deadline) return false;
        std::this_thread::sleep_for(kPause);
    }
    return true;
}

bool is_at(const Fd &file, const std::string &path) {
    struct stat opened{}, named{};
    return ::fstat(file.get(), &opened) == 0 && ::lstat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

void write_holder(const Fd &file) {
    const std::string text = std::to_string(::getpid()) + "\n";
    // The pid only makes a message better: a full disk is no reason not to start.
    if (::ftruncate(file.get(), 0) != 0) return;
    [[maybe_unused]] const ssize_t written = ::pwrite(file.get(), text.data(), text.size(), 0);
}

std::optional<int> read_holder(const Fd &file) {
    std::array<char, 16> text{};
    const ssize_t size = ::pread(file.get(), text.data(), text.size(), 0);
    int pid = 0;
    if (size <= 0 || std::from_chars(text.data(), text.data() + size, pid).ec != std::errc{} || pid <= 0)
        return std::nullopt;
    return pid;
}

}  // namespace numacre::daemon
