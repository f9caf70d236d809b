#include "survival/keeper.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "os/log.hpp"
#include "os/process_info.hpp"
#include "os/service_manager.hpp"
#include "survival/holder_wire.hpp"

namespace numacre::daemon {

namespace {

using holder::Message;
using holder::MessageType;

constexpr std::string_view kHolderProgram = "numacre-holder";
constexpr std::chrono::milliseconds kEndPatience{5000}, kEndPoll{100};

class NoKeeper final : public Keeper {
public:
    std::string_view kind() const override { return "off"; }
    Answer<std::map<std::string, Fd>> inherited() override { return std::map<std::string, Fd>{}; }
    void keep(const std::string &, int) override {}
    void drop(const std::string &) override {}
    void leave(std::span<const int>) override {}
};

// ---------------------------------------------------------------------------------------------------------------------

class SystemdKeeper final : public Keeper {
public:
    std::string_view kind() const override { return "systemd"; }

    Answer<std::map<std::string, Fd>> inherited() override {
        std::map<std::string, Fd> found;
        char **names = nullptr;
        const int count = ::sd_listen_fds_with_names(1, &names);
        if (count < 0)
            return Unexpected{Failure{Errc::corrupt, std::string("what systemd keeps cannot be read (LISTEN_FDS): ") +
                                                         std::strerror(-count)}};
        for (int i = 0; i < count; ++i) {
            const int number = SD_LISTEN_FDS_START + i;
            ::fcntl(number, F_SETFD, FD_CLOEXEC);
            found[names[i]] = Fd(number);
            stored_.insert(names[i]);
            std::free(names[i]);
        }
        std::free(static_cast<void *>(names));
        return found;
    }

    void keep(const std::string &name, int fd) override {
        const std::lock_guard lock(mutex_);
        // A pool of that name is made again: the old descriptor of the name has to go first.
        if (dropped_.contains(name) && remove(name)) dropped_.erase(name);
        // A stored descriptor is never dropped to be stored again: the daemon might die in between.
        if (!dropped_.contains(name) && (stored_.contains(name) || store(name, fd))) return;
        missing_[name] = fd;
        is_lost_ = true;
        log::error(
            "the service manager does not take a descriptor: the pool would not outlive the daemon; trying again "
            "until it does",
            {{"name", name}, {"error", std::strerror(errno)}});
    }
    void drop(const std::string &name) override {
        const std::lock_guard lock(mutex_);
        missing_.erase(name);
        stored_.erase(name);
        if (!remove(name)) dropped_.insert(name);
        is_lost_ = !missing_.empty() || !dropped_.empty();
    }
    bool is_lost() override { return is_lost_; }
    void revive() override {
        const std::lock_guard lock(mutex_);
        std::erase_if(dropped_, [this](const std::string &name) { return remove(name); });
        std::erase_if(missing_, [this](const auto &missing) {
            return !dropped_.contains(missing.first) && store(missing.first, missing.second);
        });
        if (missing_.empty() && dropped_.empty() && is_lost_.exchange(false))
            log::info("the service manager keeps everything again", {{"descriptors", stored_.size()}});
    }
    // While processes use the descriptors, these stay, until systemd has stopped us for good.
    void leave(std::span<const int> pidfds) override {
        const std::lock_guard lock(mutex_);
        if (!pidfds.empty()) return;
        for (const std::string &name : stored_) remove(name);
        stored_.clear();
    }

private:
    // mutex_ is held. False: errno has the reason.
    bool store(const std::string &name, int fd) {
        errno = service_manager::tell("FDSTORE=1\nFDPOLL=0\nFDNAME=" + name, patience_, {&fd, 1});
        if (errno == EAGAIN) patience_ = {};
        return errno == 0 && stored_.insert(name).second;
    }
    // mutex_ is held. False: the manager has not taken the message.
    bool remove(const std::string &name) {
        if (service_manager::tell("FDSTOREREMOVE=1\nFDNAME=" + name, patience_) != EAGAIN) return true;
        patience_ = {};
        return false;
    }

    std::mutex mutex_;
    std::set<std::string> stored_;        // guarded by mutex_
    std::map<std::string, int> missing_;  // guarded by mutex_: descriptors that the manager has not taken yet
    std::set<std::string> dropped_;       // guarded by mutex_: names that the manager still has to let go of
    std::atomic<bool> is_lost_{false};    // missing_ or dropped_ is not empty; written under mutex_
    // Guarded by mutex_. Once the manager has not read for so long, no call waits for it any more.
    std::chrono::milliseconds patience_ = kEndPatience;
};

// ---------------------------------------------------------------------------------------------------------------------

class HolderKeeper final : public Keeper {
public:
    HolderKeeper(std::string runtime_dir, std::string program)
        : path_(std::move(runtime_dir) + "/holder.sock"), program_(std::move(program)) {}
    ~HolderKeeper() override {
        if (child_ > 0) ::waitpid(child_, nullptr, WNOHANG);  // a holder that stays is init's child from now on
    }

    // Starts a holder only if there is none: a second holder would take the first one's name, and the first one would
    // let go of everything.
    Answer<void> begin() {
        for (auto until = std::chrono::steady_clock::now() + kEndPatience;; std::this_thread::sleep_for(kEndPoll)) {
            Fd connection;
            const int error = connect_to_running(connection);
            if (error == ECONNREFUSED) ::unlink(path_.c_str());  // a dead holder's: a new one takes no used name
            if (error == ENOENT || error == ECONNREFUSED) return start();
            if (greet_running(connection)) return {};
            // A holder that is ending (all processes for which it kept something have gone) accepts no daemon, and its
            // name is free soon.
            const bool is_ending = error == 0 && has_hung_up(connection);
            if (is_ending && std::chrono::steady_clock::now() < until) continue;
            return Unexpected{Failure{Errc::version_mismatch,
                                      "there is a holder at " + path_ +
                                          " that does not answer, or speaks another version: wait, use the numacred " +
                                          "that started it, or end that process to give up the pools that it keeps"}};
        }
    }

    // True if a holder is there and answers. Starts none.
    bool find() {
        Fd connection;
        return connect_to_running(connection) == 0 && greet_running(connection);
    }

    // To be called after begin() has failed.
    void miss(const std::string &reason) {
        const std::lock_guard lock(mutex_);
        is_missing_ = true;
        is_lost_ = true;
        log::warn("no holder process: the pools will not outlive the daemon; trying again until there is one",
                  {{"reason", reason}});
    }

    std::string_view kind() const override { return "holder"; }
    int death_fd() const override { return death_.get(); }
    bool can_be_revived() const override { return true; }
    bool is_lost() override { return is_lost_; }

    Answer<std::map<std::string, Fd>> inherited() override {
        const std::lock_guard lock(mutex_);
        const auto broken = [](int error) {
            // A part of the files would be taken for all of them, and the rest would be lost.
            return Unexpected{Failure{Errc::timed_out, std::string("the holder did not hand over what it keeps: ") +
                                                           std::strerror(error) +
                                                           "; raise the open file limit (LimitNOFILE=), try again"}};
        };
        std::map<std::string, Fd> found;
        if (is_missing_) return found;
        Message ask;
        ask.type = MessageType::list;
        if (!holder::send_message(connection_.get(), ask)) return broken(errno);
        for (;;) {
            Message entry;
            int fd = -1;
            errno = ECONNRESET;  // if there is no better reason
            const int count = holder::receive_message(connection_.get(), entry, {&fd, 1});
            if (count == 0 && entry.type == MessageType::done) return found;
            if (count < 0 || entry.type != MessageType::entry) return broken(errno);
            found[entry.name.data()] = count == 1 ? Fd(fd) : open_in_holder(entry.value);
            if (!found[entry.name.data()]) return broken(errno);
        }
    }

    void keep(const std::string &name, int fd) override {
        const std::lock_guard lock(mutex_);
        std::erase_if(kept_, [&name](const auto &kept) { return kept.first == name; });
        kept_.emplace_back(name, fd);
        std::erase(dropped_, name);
        if (tell(MessageType::keep, name, {&fd, 1})) return;
        if (is_missing_) return;  // the log has a line about it already
        log::error(
            "the holder does not take a descriptor: the pool would not outlive the daemon; trying again until it does",
            {{"name", name}, {"error", std::strerror(errno)}});
    }

    void drop(const std::string &name) override {
        const std::lock_guard lock(mutex_);
        std::erase_if(kept_, [&name](const auto &kept) { return kept.first == name; });
        if (!tell(MessageType::drop, name, {})) dropped_.push_back(name);
    }

    void leave(std::span<const int> pidfds) override {
        const std::lock_guard lock(mutex_);
        if (pidfds.empty()) {
            if (!connection_ && !is_missing_) replace();
            const bool finished = tell(MessageType::finish, "", {});
            connection_.reset();
            if (finished && has_ended_soon()) return;
            // The holder stands still, and no process needs its files any more.
            if (death_) (void)send_signal(death_, SIGKILL);
            return;
        }
        // The holder may have ended, or lack a file, since the last revive().
        if (has_hung_up(connection_))
            replace();
        else if (is_lost_)
            give_everything();
        if (tell_who_stays(pidfds)) return;
        replace();
        if (!tell_who_stays(pidfds))
            log::error("no holder process has been told for whom the pools stay: the next daemon may not find them",
                       {{"processes", pidfds.size()}});
    }

    void revive() override {
        const std::lock_guard lock(mutex_);
        if (has_hung_up(connection_))
            replace();
        else if (is_lost_)
            give_everything();
        else if (death_ && has_ended(death_))
            death_.reset();  // from now on the connection shows the holder's end
    }

private:
    // If the daemon is killed in between, the list is not whole: then everything stays until the next daemon comes.
    // mutex_ is held.
    bool tell_who_stays(std::span<const int> pidfds) {
        while (!pidfds.empty()) {
            const std::span<const int> these = pidfds.first(std::min(holder::kMaxFds, pidfds.size()));
            pidfds = pidfds.subspan(these.size());
            if (!tell(MessageType::leave, "", these, static_cast<std::uint32_t>(pidfds.size()))) return false;
        }
        return true;
    }

    // Gives everything to the holder that there is, if it answers by now, or to a new one. mutex_ is held.
    void replace() {
        // A holder that does not answer is not judged dead: another holder would take its name, and until the other one
        // has everything, no process would have everything.
        if (death_ && !has_ended(death_)) {
            if (!std::exchange(is_silent_, true))
                log::error("the holder process does not answer: what is new will not outlive the daemon until it does",
                           {{"pools_descriptors", kept_.size()}});
        } else if (!is_missing_) {
            log::error(
                "the holder process has ended: the pools would not have outlived the daemon; starting another one",
                {{"pools_descriptors", kept_.size()}});
        }
        if (child_ > 0 && ::waitpid(child_, nullptr, WNOHANG) == child_) child_ = -1;
        connection_.reset();
        if (auto begun = begin(); !begun) {
            is_lost_ = true;
            // The end of the holder has been seen: a wait for it would see it again at once.
            if (death_ && has_ended(death_)) death_.reset();
            if (!is_silent_ && !std::exchange(is_missing_, true))
                log::error("no holder process: the pools will not outlive the daemon; trying again until there is one",
                           {{"reason", begun.error().message}});
            return;
        }
        is_missing_ = is_silent_ = false;
        give_everything();
    }

    // mutex_ is held.
    bool give_everything() {
        std::erase_if(dropped_, [this](const std::string &name) { return tell(MessageType::drop, name, {}); });
        const bool has_all = std::all_of(kept_.begin(), kept_.end(), [this](const auto &kept) {
            return tell(MessageType::keep, kept.first, {&kept.second, 1});
        });
        if (has_all) log::info("the holder process keeps everything again", {{"descriptors", kept_.size()}});
        is_lost_ = !has_all;
        return has_all;
    }

    bool tell(MessageType type, const std::string &name, std::span<const int> fds, std::uint32_t value = 0) {
        Message message;
        message.type = type;
        message.value = value;
        std::copy_n(name.begin(), std::min(name.size(), holder::kNameBytes - 1), message.name.begin());
        Message answer;
        if (connection_ && holder::send_message(connection_.get(), message, fds) &&
            holder::receive_message(connection_.get(), answer, {}) == 0 && answer.type == MessageType::done)
            return true;
        is_lost_ = true;
        // Nothing has been sent: the descriptors of our user that others have not read are as many as may be in flight.
        if (errno == ETOOMANYREFS) return false;
        // The holder may answer later, and that answer would be taken for the answer to the next request. revive()
        // connects anew, and gives the holder everything.
        const int error = errno;
        connection_.reset();
        errno = error;
        return false;
    }

    bool has_ended_soon() {
        if (child_ <= 0) return true;
        pollfd wait{death_.get(), POLLIN, 0};
        if (death_ && ::poll(&wait, 1, static_cast<int>(kEndPatience.count())) == 0) return false;
        ::waitpid(std::exchange(child_, -1), nullptr, death_ ? 0 : WNOHANG);
        return true;
    }

    // Waits for the holder's greeting: from then on the holder listens and answers.
    bool greet(Fd &connection, Fd death) {
        holder::limit_patience(connection.get());
        Message hello;
        if (holder::receive_message(connection.get(), hello, {}) != 0 || hello.type != MessageType::hello) return false;
        death_ = std::move(death);
        connection_ = std::move(connection);
        return true;
    }

    // True if the other end is closed. The holder keeps its end open as long as it lives.
    static bool has_hung_up(const Fd &connection) {
        pollfd look{connection.get(), 0, 0};
        return !connection || ::poll(&look, 1, 0) != 0;
    }

    // Returns 0 or an errno.
    int connect_to_running(Fd &connection) const {
        connection = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        // The limit holds for connect(), too, which waits if the queue of a holder that stands still is full.
        holder::limit_patience(connection.get());
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        if (path_.size() >= sizeof address.sun_path) return ENOENT;
        std::copy(path_.begin(), path_.end(), address.sun_path);
        const auto *const where = reinterpret_cast<const sockaddr *>(&address);
        return ::connect(connection.get(), where, sizeof address) == 0 ? 0 : errno;
    }

    bool greet_running(Fd &connection) {
        if (!belongs_to_us(connection.get())) return false;
        // The kernel gives the pidfd: the pid that the holder says is a number of its pid namespace, and in ours a
        // stranger's. If the kernel cannot give it, the connection is looked at.
        Fd death = pidfd_of_peer(connection.get());
        return greet(connection, std::move(death));
    }

    // Opens the file of a descriptor anew that the holder could not send. Empty: errno has the reason.
    Fd open_in_holder(std::uint32_t number) const {
        ucred peer{};
        socklen_t size = sizeof peer;
        if (::getsockopt(connection_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return Fd();
        const std::string path = "/proc/" + std::to_string(peer.pid) + "/fd/" + std::to_string(number);
        return Fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    }

    static bool belongs_to_us(int connection) {
        ucred peer{};
        socklen_t size = sizeof peer;
        return ::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
               (peer.uid == ::geteuid() || peer.uid == 0);
    }

    Answer<void> start() {
        const auto failed = [](const std::string &what, int error) {
            return Unexpected{
                Failure{Errc::access_denied, what + ": " + std::strerror(error) + "; or use --keep-memory=off"}};
        };
        if (program_.empty()) return failed("where numacred's own program is (is /proc mounted?)", ENOENT);
        // Removes the temporary names of holders that died before they had the real name.
        std::error_code ignored;
        for (const auto &entry :
             std::filesystem::directory_iterator(std::filesystem::path(path_).parent_path(), ignored))
            if (entry.path().filename().string().starts_with("h.")) ::unlink(entry.path().c_str());
        std::array<int, 2> ends{};
        if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
            return failed("a socket for the holder process", errno);
        Fd ours(ends[0]), theirs(ends[1]);

        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        // Standard error, too: a process that reads our output to its end must not wait for the holder.
        for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
            posix_spawn_file_actions_addopen(&actions, standard, "/dev/null", O_RDWR, 0);
        // dup2 onto itself would leave CLOEXEC set.
        if (theirs.get() == holder::kFirstConnection) theirs = Fd(::fcntl(theirs.get(), F_DUPFD_CLOEXEC, 10));
        posix_spawn_file_actions_adddup2(&actions, theirs.get(), holder::kFirstConnection);
        posix_spawnattr_t attributes;
        posix_spawnattr_init(&attributes);
        // The holder gets a session away from our terminal and process group, and the signals that we block for
        // ourselves.
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
        sigset_t none;
        sigemptyset(&none);
        posix_spawnattr_setsigmask(&attributes, &none);
        std::string name(kHolderProgram), path = path_;
        std::array<char *, 3> arguments{name.data(), path.data(), nullptr};
        const int refused = ::posix_spawn(&child_, program_.c_str(), &actions, &attributes, arguments.data(), environ);
        posix_spawn_file_actions_destroy(&actions);
        posix_spawnattr_destroy(&attributes);
        if (refused != 0) {
            child_ = -1;
            return failed("starting " + program_, refused);
        }
        theirs.reset();
        Fd death(static_cast<int>(::syscall(SYS_pidfd_open, child_, 0)));
        if (!greet(ours, std::move(death))) return failed("the holder process " + program_ + " does not answer", errno);
        return {};
    }

    std::string path_;
    std::string program_;
    std::mutex mutex_;
    Fd connection_;                     // guarded by mutex_
    bool is_missing_ = false;           // guarded by mutex_: the last start failed
    bool is_silent_ = false;            // guarded by mutex_: the holder does not answer, and the log says so
    std::vector<std::string> dropped_;  // guarded by mutex_: names that a holder that did not answer still has
    // The holder does not have all of kept_, or there is no holder. Written under mutex_, and read also while another
    // thread holds it.
    std::atomic<bool> is_lost_{false};
    Fd death_;  // changed by revive(), on the loop's thread, and by leave()
    pid_t child_ = -1;
    std::vector<std::pair<std::string, int>> kept_;  // guarded by mutex_; in the order of the keep() calls
};

}  // namespace

namespace {

// Refuses a daemon that keeps its memory otherwise, or not at all, in the runtime directory of a daemon with a holder:
// the holder's pools would go on with their clients, and no daemon would reap, resize or show them.
Answer<void> check_no_holder_keeps_pools(const std::string &runtime_dir, std::string_view kind) {
    HolderKeeper other(runtime_dir, "");
    if (!other.find()) return {};
    const auto kept = other.inherited();
    if (kept &&
        std::ranges::none_of(*kept, [](const auto &file) { return file.first.find('/') != std::string::npos; })) {
        other.leave({});  // the holder has no pool to stay for
        return {};
    }
    return Unexpected{
        Failure{Errc::already_exists,
                "a holder process in " + runtime_dir + " keeps pools of a daemon before, and this one keeps " +
                    "its memory otherwise (" + std::string(kind) +
                    "): start with --keep-memory=holder, or give those pools up: numacred --runtime-dir " +
                    runtime_dir + " --keep-memory=holder --discard-kept"}};
}

}  // namespace

bool is_keeper_kind(std::string_view text) {
    return text == "auto" || text == "systemd" || text == "holder" || text == "off";
}

std::string find_holder_program() {
    std::error_code error;
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
    // Whatever the text says, the path has to lead to this program: any user may have put another one at a wrong path.
    if (error || !self.is_absolute() || !std::filesystem::equivalent(self, "/proc/self/exe", error)) return {};
    return (self.parent_path() / kHolderProgram).string();
}

Answer<std::unique_ptr<Keeper>> Keeper::create(std::string_view kind, const std::string &runtime_dir,
                                               const std::string &holder_program) {
    const char *const notify = std::getenv("NOTIFY_SOCKET");
    const bool under_systemd = notify != nullptr && *notify != 0;
    const bool by_systemd = kind == "systemd" || (kind == "auto" && under_systemd);
    if (kind == "off" || by_systemd)
        if (auto free = check_no_holder_keeps_pools(runtime_dir, by_systemd ? "systemd" : kind); !free)
            return Unexpected{free.error()};
    if (kind == "off") return std::unique_ptr<Keeper>(std::make_unique<NoKeeper>());
    if (by_systemd) return std::unique_ptr<Keeper>(std::make_unique<SystemdKeeper>());
    auto keeper = std::make_unique<HolderKeeper>(runtime_dir, holder_program);
    if (auto begun = keeper->begin(); !begun) {
        if (kind == "holder" || begun.error().code == Errc::version_mismatch) return Unexpected{begun.error()};
        keeper->miss(begun.error().message);
    }
    return std::unique_ptr<Keeper>(std::move(keeper));
}

}  // namespace numacre::daemon
