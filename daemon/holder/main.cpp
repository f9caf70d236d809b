// numacre-holder: a process that keeps the descriptors of numacred's memory open while there is no numacred, so that
// the next daemon finds the pools as the last one left them. The holder knows nothing of the files behind the
// descriptors, maps nothing, and is as small as it can be: killing it while no daemon runs throws the pools away.
//
// usage: numacre-holder SOCKET_PATH       started by numacred, with one connection as descriptor 3
//
// The holder ends when a daemon tells it to; when all processes that a stopped daemon named to it have ended; or when
// its socket's name is no longer its own (somebody removed the runtime directory) and nobody is connected.
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "os/fd.hpp"
#include "survival/holder_wire.hpp"

namespace {

using numacre::daemon::Fd;
using numacre::holder::Message;
using numacre::holder::MessageType;

constexpr int kLookAroundMs = 2000;
constexpr std::size_t kConnectionsMax = 4;

class Holder {
public:
    explicit Holder(std::string path) : path_(std::move(path)) {}

    bool listen() {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        // Bind to a name of our own first. It is shorter than the names that the daemon has found short enough.
        const std::string own = std::filesystem::path(path_).replace_filename("h." + std::to_string(::getpid()));
        if (path_.size() >= sizeof address.sun_path || own.size() >= sizeof address.sun_path) return false;
        std::copy(own.begin(), own.end(), address.sun_path);
        ::unlink(own.c_str());  // left by a holder that had our pid and died in this function
        listener_ = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        // The socket is closed to other users from the start: it leads to other people's memory.
        const mode_t before = ::umask(0177);
        const bool bound = ::bind(listener_.get(), reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0;
        ::umask(before);
        if (!bound) return false;
        // The socket listens before it gets the final name: a name that refuses connections belongs to a dead holder.
        // link() never replaces an existing name: the daemon that started us may have died meanwhile, and the next
        // daemon may have another holder by now.
        const bool named = ::listen(listener_.get(), kConnectionsMax) == 0 && ::link(own.c_str(), path_.c_str()) == 0 &&
                           ::lstat(path_.c_str(), &identity_) == 0;
        ::unlink(own.c_str());
        return named;
    }

    // Leaves the current directory: the holder lives as long as the memory, and must not keep a folder in use so long.
    void leave_folder() {
        std::error_code error;
        const auto absolute = std::filesystem::absolute(path_, error);
        if (error) return;
        path_ = absolute.string();
        (void)!::chdir("/");
    }

    void serve(Fd first) {
        welcome(std::move(first));
        finished_ = connections_.empty();  // the daemon that started us has gone already
        while (!finished_) {
            if (connections_.empty() && (is_forsaken() || !is_named())) break;
            std::vector<pollfd> waits{{listener_.get(), POLLIN, 0}};
            for (const Connection &connection : connections_) waits.push_back({connection.fd.get(), POLLIN, 0});
            if (::poll(waits.data(), waits.size(), connections_.empty() ? kLookAroundMs : -1) < 0) continue;
            for (std::size_t i = waits.size(); i-- > 1;) {
                if (waits[i].revents == 0 || answer(connections_[i - 1])) continue;
                connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i) - 1);
            }
            if (waits[0].revents != 0) accept();
        }
        if (is_named()) ::unlink(path_.c_str());
    }

private:
    struct Connection {
        Fd fd;
        std::vector<Fd> leaving;  // pidfds of a list that is not complete yet; a daemon that is killed leaves none
    };

    // True: a daemon has named the processes that still use the memory, and all of them have ended.
    bool is_forsaken() {
        if (users_.empty()) return false;
        std::erase_if(users_, [](const Fd &user) {
            pollfd wait{user.get(), POLLIN, 0};
            return ::poll(&wait, 1, 0) == 1;
        });
        return users_.empty();
    }

    bool is_named() const {
        struct stat now{};
        return ::lstat(path_.c_str(), &now) == 0 && now.st_dev == identity_.st_dev && now.st_ino == identity_.st_ino;
    }

    void accept() {
        Fd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!connection || connections_.size() >= kConnectionsMax) return;
        ucred peer{};
        socklen_t size = sizeof peer;
        if (::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return;
        if (peer.uid != ::geteuid() && peer.uid != 0) return;
        welcome(std::move(connection));
    }

    void welcome(Fd connection) {
        numacre::holder::limit_patience(connection.get());
        Message hello;
        hello.type = MessageType::hello;
        hello.value = static_cast<std::uint32_t>(::getpid());
        if (numacre::holder::send_message(connection.get(), hello)) connections_.push_back({std::move(connection), {}});
    }

    // False: the connection is to be closed.
    bool answer(Connection &one) {
        const int connection = one.fd.get();
        Message message;
        std::array<int, numacre::holder::kMaxFds> fds{};
        const int count = numacre::holder::receive_message(connection, message, fds);
        if (count < 0) return false;
        std::vector<Fd> came;
        for (int i = 0; i < count; ++i) came.emplace_back(fds[static_cast<std::size_t>(i)]);
        switch (message.type) {
            case MessageType::keep:
                if (came.size() != 1) return false;
                users_.clear();  // a daemon has taken over, and watches the processes itself
                kept_[message.name.data()] = std::move(came.front());
                break;
            case MessageType::drop:
                kept_.erase(message.name.data());
                break;
            case MessageType::list:
                for (const auto &[name, fd] : kept_) {
                    Message entry;
                    entry.type = MessageType::entry;
                    std::copy(name.begin(), name.end(), entry.name.begin());
                    const int number = fd.get();
                    if (numacre::holder::send_message(connection, entry, {&number, 1})) continue;
                    // ETOOMANYREFS: other sockets hold as many unread descriptors of our user as may be in flight.
                    entry.value = static_cast<std::uint32_t>(number);
                    if (errno != ETOOMANYREFS || !numacre::holder::send_message(connection, entry)) return false;
                }
                break;
            case MessageType::leave:
                for (Fd &user : came) one.leaving.push_back(std::move(user));
                if (message.value != 0) break;
                users_ = std::move(one.leaving);
                one.leaving.clear();
                break;
            case MessageType::finish:
                finished_ = true;
                kept_.clear();
                break;
            case MessageType::hello:
            case MessageType::entry:
            case MessageType::done:
                return false;
        }
        Message done;
        done.type = MessageType::done;
        return numacre::holder::send_message(connection, done);
    }

    std::string path_;
    struct stat identity_{};
    Fd listener_;
    std::vector<Connection> connections_;
    std::map<std::string, Fd> kept_;
    std::vector<Fd> users_;  // pidfds
    bool finished_ = false;
};

}  // namespace

int main(int argc, char **argv) {
    if (argc != 2) {
        std::fputs("numacre-holder is started by numacred and by nobody else; see numacred --help\n", stderr);
        return 2;
    }
    ::signal(SIGPIPE, SIG_IGN);
    // A terminal that goes away ends the daemon, but not the memory.
    ::signal(SIGHUP, SIG_IGN);
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        ::setrlimit(RLIMIT_NOFILE, &limit);
    }
    // Close files that the daemon's starter had open (a script's lock, a pipe that somebody reads to its end): they are
    // not ours to keep.
    (void)::syscall(SYS_close_range, numacre::holder::kFirstConnection + 1, ~0U, 0);
    Holder holder(argv[1]);
    if (!holder.listen()) return EXIT_FAILURE;
    holder.leave_folder();
    holder.serve(Fd(numacre::holder::kFirstConnection));
    return EXIT_SUCCESS;
}
