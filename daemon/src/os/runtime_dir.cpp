#include "os/runtime_dir.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "os/fd_passing.hpp"
#include "os/lock_file.hpp"
#include "os/log.hpp"
#include "os/umask.hpp"

namespace numacre::daemon {

namespace {

constexpr mode_t kAttachSocketMode = 0666;
constexpr const char *kLockName = "numacred.lock";

Unexpected<Failure> refuse(Errc code, std::string message) {
    return Unexpected{Failure{code, std::move(message)}};
}

bool fill_address(const std::string &path, sockaddr_un &address) {
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) return false;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    return true;
}

// True if a process listens there, whatever kind of socket it is.
bool is_answered(const sockaddr_un &address) {
    for (const int type : {SOCK_SEQPACKET, SOCK_STREAM}) {
        const Fd probe(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (::connect(probe.get(), reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0) return true;
        // EAGAIN: a listener whose queue is full. EPROTOTYPE: a live socket of another type, or a dead one: the loop
        // tries the next type.
        if (errno == EAGAIN) return true;
    }
    return false;
}

}  // namespace

Answer<RuntimeDir> RuntimeDir::open(const std::string &path, std::chrono::milliseconds patience) {
    const std::string remedy = "; make it writable for this user, or choose another with --runtime-dir";
    sockaddr_un address{};
    if (!fill_address(path + "/control.sock", address))
        return refuse(Errc::bad_argument,
                      "runtime directory " + path + " is too long for a unix socket's path (" +
                          std::to_string(sizeof address.sun_path - 1) +
                          " bytes with the socket's name): choose a shorter one with --runtime-dir");
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
    // Clients need only x, because they know the names. A user who may read the directory can keep the kernel from
    // changing it, and so the daemon from starting and ending (own_proc.hpp says how).
    constexpr mode_t kSearchable = S_IRWXU | S_IXGRP | S_IXOTH;
    if (::mkdir(path.c_str(), kSearchable) != 0 && errno != EEXIST) error.assign(errno, std::generic_category());
    if (error)
        return refuse(Errc::access_denied,
                      "runtime directory " + path + " cannot be made: " + error.message() + remedy);
    struct stat status{};
    // The owner of a symbolic link can turn it to another directory later.
    if (::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode) && status.st_uid != 0 &&
        status.st_uid != ::geteuid())
        return refuse(
            Errc::access_denied,
            "runtime directory " + path + " is a symbolic link of uid " + std::to_string(status.st_uid) +
                ", who could lead clients to another socket: remove it, or choose another with --runtime-dir");
    const Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder || ::fstat(folder.get(), &status) != 0)
        return refuse(Errc::access_denied,
                      "runtime directory " + path + " cannot be opened: " + std::strerror(errno) + remedy);
    // The directory's owner, and any user who may write to it, can put another socket in the place of ours.
    if (status.st_uid != 0 && status.st_uid != ::geteuid())
        return refuse(Errc::access_denied,
                      "runtime directory " + path + " belongs to uid " + std::to_string(status.st_uid) +
                          ", who could put another socket in the place of the daemon's: remove it, or choose another "
                          "with --runtime-dir");
    if ((status.st_mode & S_IWGRP) != 0 && status.st_gid != 0 && status.st_gid != ::getegid())
        return refuse(Errc::access_denied,
                      "runtime directory " + path + " may be written to by the group " + std::to_string(status.st_gid) +
                          ", whose members could put another socket in the place of the daemon's: chmod g-w it, or "
                          "choose another with --runtime-dir");
    if ((status.st_mode & (S_IWOTH | S_ISVTX)) == S_IWOTH)
        return refuse(Errc::access_denied,
                      "runtime directory " + path +
                          " may be written to by everybody, who could put another socket in the place of the daemon's: "
                          "chmod o-w it, or choose another with --runtime-dir");
    if ((status.st_mode & S_IROTH) != 0)
        log::warn("the runtime directory may be read by everybody: a user can keep the daemon from starting and ending",
                  {{"directory", path}, {"remedy", "chmod o-r it: clients need x only"}});
    if (::faccessat(AT_FDCWD, path.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
        return refuse(Errc::access_denied,
                      "runtime directory " + path + " is not writable: " + std::strerror(errno) + remedy);
    const std::string lock_path = path + "/" + kLockName;
    const auto deadline = std::chrono::steady_clock::now() + patience;
    for (;;) {
        auto lock = open_lock_file(lock_path);
        if (!lock)
            return refuse(lock.error().code, lock.error().message + ", or choose another directory with --runtime-dir");
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
        if (!take_lock(*lock, std::max(left, std::chrono::milliseconds{0}))) {
            const auto holder = read_holder(*lock);
            return refuse(Errc::access_denied,
                          "another numacred" + (holder ? " (pid " + std::to_string(*holder) + ")" : "") + " serves " +
                              path + ": stop it, or choose another directory with --runtime-dir");
        }
        // Otherwise the file was removed during the wait, and the next daemon would lock another file.
        if (!is_at(*lock, lock_path)) continue;
        write_holder(*lock);
        return RuntimeDir(path, std::move(*lock));
    }
}

Answer<void> RuntimeDir::clear_socket(const std::string &socket_path, std::chrono::milliseconds patience) const {
    struct stat status{};
    if (::lstat(socket_path.c_str(), &status) != 0) {
        if (errno == ENOENT) return {};
        return refuse(Errc::access_denied, socket_path + " cannot be examined: " + std::strerror(errno));
    }
    if (!S_ISSOCK(status.st_mode))
        return refuse(Errc::access_denied,
                      socket_path + " is there and is no socket: remove it, or choose another --runtime-dir");
    sockaddr_un address{};
    const bool has_address = fill_address(socket_path, address);
    const auto begun = std::chrono::steady_clock::now();
    constexpr std::chrono::milliseconds kPause{10};
    bool is_taken = has_address && is_answered(address);
    while (is_taken && std::chrono::steady_clock::now() - begun < patience) {
        std::this_thread::sleep_for(kPause);
        is_taken = is_answered(address);
    }
    if (is_taken)
        return refuse(Errc::access_denied, "socket " + socket_path +
                                               " is taken by a running program: stop it, or choose " +
                                               "another directory with --runtime-dir");
    if (::unlink(socket_path.c_str()) != 0)
        return refuse(Errc::access_denied, "stale socket " + socket_path +
                                               " cannot be removed: " + std::strerror(errno) + "; remove it by hand");
    return {};
}

Answer<Fd> listen_for_clients(const std::string &socket_path) {
    const auto failed = [&](const char *call) {
        return refuse(Errc::access_denied, std::string(call) + " for " + socket_path + " failed: " +
                                               std::strerror(errno) + "; choose another directory with --runtime-dir");
    };
    // The socket is made under another name: at its own name no client is to find it before it may be used, and
    // listens.
    const std::string new_path = socket_path + "+";
    sockaddr_un address{};
    if (!fill_address(new_path, address)) {
        errno = ENAMETOOLONG;
        return failed("bind");
    }
    // Removes the socket of a daemon that was killed in this function. If that fails, it belongs to another user, or is
    // no file.
    if (::unlink(new_path.c_str()) != 0 && errno != ENOENT) {
        struct stat status{};
        const bool is_there = ::lstat(new_path.c_str(), &status) == 0;
        return refuse(Errc::access_denied,
                      new_path + " is in the way" +
                          (is_there ? " (it belongs to uid " + std::to_string(status.st_uid) + ")" : std::string()) +
                          ": remove it, or choose another directory with --runtime-dir");
    }
    Fd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!listener) return failed("socket");
    {
        // The mode is right from the beginning: a chmod() by name could hit another file that has been put there
        // meanwhile.
        const UmaskFor masked(kAttachSocketMode);
        if (::bind(listener.get(), reinterpret_cast<const sockaddr *>(&address), sizeof address) != 0)
            return failed("bind");
    }
    refuse_descriptors(listener.get());
    if (::listen(listener.get(), SOMAXCONN) != 0) return failed("listen");
    if (::rename(new_path.c_str(), socket_path.c_str()) != 0) return failed("rename");
    return listener;
}

}  // namespace numacre::daemon
