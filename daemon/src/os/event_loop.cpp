#include "os/event_loop.hpp"

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "os/fd.hpp"
#include "os/log.hpp"

namespace numacre::daemon {

namespace {

constexpr unsigned kQueueEntries = 256;

struct Wait {
    enum class Kind : std::uint8_t { accept, receive, readable, signal, timer };
    Kind kind{};
    int fd = -1;
    bool cancelled = false;
    bool is_ending = false;  // stop_accepting()
    bool is_paused = false;  // a signal that the kernel does not know until it is submitted again
    std::function<void(int)> on_accept;
    std::function<void(int, std::span<const std::byte>)> on_packet;
    std::function<void()> on_event;
    std::function<void()> on_gone;  // of a cancelled wait
    iovec part{};
    msghdr message{};           // the kernel writes it, and reads it when the entry is submitted
    __kernel_timespec delay{};  // the kernel reads it when the entry is submitted
    std::uint64_t one = 1;      // the kernel reads it
    std::array<std::byte, EventLoop::kPacketBytes> packet{};  // the kernel writes it until the completion arrives
};

class UringLoop final : public EventLoop {
public:
    UringLoop(io_uring ring, Fd wake) : ring_(ring), wake_(std::move(wake)) {}
    ~UringLoop() override { io_uring_queue_exit(&ring_); }

    void run() override {
        watch_posts();
        // relaxed: stop() posts a wake-up, and the mutex around posts orders the flag.
        while (!stopping_.load(std::memory_order_relaxed)) {
            const int submitted = io_uring_submit_and_wait(&ring_, 1);
            if (submitted < 0 && submitted != -EINTR && submitted != -EAGAIN && submitted != -EBUSY)
                log::error("io_uring wait failed", {{"error", std::strerror(-submitted)}});
            complete_all();
        }
    }

    void stop() override {
        post([this] { stopping_.store(true, std::memory_order_relaxed); });  // relaxed: same thread as the reader
    }

    void post(std::function<void()> function) override {
        {
            const std::lock_guard lock(posts_mutex_);
            posts_.push_back(std::move(function));
        }
        const std::uint64_t one = 1;
        // An eventfd refuses a write only at 2^64-2 unread posts.
        [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
    }

    WaitId accept_each(int listening_fd, std::function<void(int)> on_accept) override {
        auto wait = std::make_unique<Wait>();
        wait->kind = Wait::Kind::accept;
        wait->fd = listening_fd;
        wait->on_accept = std::move(on_accept);
        return begin(std::move(wait));
    }

    WaitId receive_one(int fd, std::function<void(int, std::span<const std::byte>)> on_packet) override {
        auto wait = std::make_unique<Wait>();
        wait->kind = Wait::Kind::receive;
        wait->fd = fd;
        wait->on_packet = std::move(on_packet);
        return begin(std::move(wait));
    }

    WaitId when_readable(int fd, std::function<void()> on_readable) override {
        auto wait = std::make_unique<Wait>();
        wait->kind = Wait::Kind::readable;
        wait->fd = fd;
        wait->on_event = std::move(on_readable);
        return begin(std::move(wait));
    }

    WaitId signal(int event_fd, std::function<void()> on_done) override {
        auto wait = std::make_unique<Wait>();
        wait->kind = Wait::Kind::signal;
        wait->fd = event_fd;
        wait->on_event = std::move(on_done);
        return begin(std::move(wait));
    }

    WaitId after(std::chrono::milliseconds delay, std::function<void()> on_time) override {
        auto wait = std::make_unique<Wait>();
        wait->kind = Wait::Kind::timer;
        wait->delay.tv_sec = delay.count() / 1000;
        wait->delay.tv_nsec = delay.count() % 1000 * 1'000'000;
        wait->on_event = std::move(on_time);
        return begin(std::move(wait));
    }

    void cancel(WaitId id, std::function<void()> on_gone) override {
        const auto found = waits_.find(id);
        if (found == waits_.end() || found->second->cancelled) {
            if (on_gone) on_gone();
            return;
        }
        if (found->second->is_paused) {
            waits_.erase(found);
            if (on_gone) on_gone();
            return;
        }
        // The entry stays until the kernel has let go of its buffer; its callback goes now, with all that it holds.
        Wait &wait = *found->second;
        wait.cancelled = true;
        wait.on_accept = nullptr;
        wait.on_packet = nullptr;
        wait.on_event = nullptr;
        wait.on_gone = std::move(on_gone);
        send_cancel(id);
    }

    void stop_accepting(WaitId id) override {
        const auto found = waits_.find(id);
        if (found == waits_.end() || found->second->cancelled || std::exchange(found->second->is_ending, true)) return;
        send_cancel(id);
    }

private:
    static constexpr WaitId kNobody = 0;

    void send_cancel(WaitId id) {
        io_uring_sqe *const entry = next_entry();
        io_uring_prep_cancel64(entry, id, 0);
        io_uring_sqe_set_data64(entry, kNobody);
        // Submitted at once: the caller may close the descriptor next, and its number may be used again.
        io_uring_submit(&ring_);
    }

    WaitId begin(std::unique_ptr<Wait> wait) {
        const WaitId id = ++last_id_;
        submit(id, *wait);
        waits_.emplace(id, std::move(wait));
        return id;
    }

    void submit(WaitId id, Wait &wait) {
        io_uring_sqe *const entry = next_entry();
        switch (wait.kind) {
            case Wait::Kind::accept:
                if (accepts_many_)
                    io_uring_prep_multishot_accept(entry, wait.fd, nullptr, nullptr, SOCK_CLOEXEC);
                else
                    io_uring_prep_accept(entry, wait.fd, nullptr, nullptr, SOCK_CLOEXEC);
                break;
            case Wait::Kind::receive:
                // MSG_TRUNC: the result is the packet's own size, so that a packet that is too long shows. MSG_PEEK:
                // descriptors in the packet show (MSG_CTRUNC), and are still in the socket.
                wait.part = {wait.packet.data(), wait.packet.size()};
                wait.message.msg_iov = &wait.part;
                wait.message.msg_iovlen = 1;
                io_uring_prep_recvmsg(entry, wait.fd, &wait.message, MSG_TRUNC | MSG_PEEK);
                break;
            case Wait::Kind::readable:
                io_uring_prep_poll_add(entry, wait.fd, POLLIN);
                break;
            case Wait::Kind::signal:
                io_uring_prep_write(entry, wait.fd, &wait.one, sizeof wait.one, 0);
                // A kernel thread does the write. A process that shares the file can fill it and make it block between
                // the kernel's check and the write; the write would then wait in this thread.
                entry->flags |= IOSQE_ASYNC;
                break;
            case Wait::Kind::timer:
                io_uring_prep_timeout(entry, &wait.delay, 0, 0);
                break;
        }
        io_uring_sqe_set_data64(entry, id);
    }

    io_uring_sqe *next_entry() {
        io_uring_sqe *entry = io_uring_get_sqe(&ring_);
        while (entry == nullptr) {  // full: hand over what is queued
            io_uring_submit(&ring_);
            entry = io_uring_get_sqe(&ring_);
        }
        return entry;
    }

    void complete_all() {
        io_uring_cqe *completion = nullptr;
        while (io_uring_peek_cqe(&ring_, &completion) == 0) {
            const WaitId id = io_uring_cqe_get_data64(completion);
            const int result = completion->res;
            const bool more = (completion->flags & IORING_CQE_F_MORE) != 0;
            io_uring_cqe_seen(&ring_, completion);
            complete(id, result, more);
        }
    }

    void complete(WaitId id, int result, bool more) {
        const auto found = waits_.find(id);
        if (found == waits_.end()) return;
        if (found->second->kind == Wait::Kind::accept) {
            complete_accept(id, *found->second, result, more);
            return;
        }
        if (found->second->kind == Wait::Kind::signal && !found->second->cancelled && is_worth_another_try(result)) {
            signal_later(id, *found->second);
            return;
        }
        const std::unique_ptr<Wait> wait = std::move(found->second);
        waits_.erase(found);
        if (wait->cancelled) {
            if (wait->on_gone) wait->on_gone();
            return;
        }
        if (wait->kind == Wait::Kind::receive) {
            if (result > 0) {
                if ((wait->message.msg_flags & MSG_CTRUNC) != 0)
                    result = -EBADMSG;
                else
                    (void)::recv(wait->fd, nullptr, 0, MSG_DONTWAIT);  // there is no other reader: it is that packet
            }
            const std::size_t kept = result > 0 ? std::min(static_cast<std::size_t>(result), wait->packet.size()) : 0;
            wait->on_packet(result, std::span<const std::byte>(wait->packet.data(), kept));
        } else {
            wait->on_event();
        }
    }

    void complete_accept(WaitId id, Wait &wait, int result, bool more) {
        if (wait.cancelled) {
            if (result >= 0) ::close(result);
            if (!more) waits_.erase(id);
            return;
        }
        // Before Linux 5.19 a submission accepts one connection.
        if (result == -EINVAL && !more && !wait.is_ending && std::exchange(accepts_many_, false)) {
            submit(id, wait);
            return;
        }
        const auto on_accept = wait.on_accept;  // a copy: it may cancel this wait
        if (!wait.is_ending || result >= 0) on_accept(result);
        const auto still = waits_.find(id);
        if (more || still == waits_.end()) return;
        if (still->second->cancelled || still->second->is_ending) {
            waits_.erase(still);
            return;
        }
        if (result >= 0) {
            submit(id, *still->second);
            return;
        }
        // Most likely no descriptor is left: accepting again at once would spin.
        after(kAcceptPause, [this, id] {
            const auto paused = waits_.find(id);
            if (paused == waits_.end()) return;
            if (paused->second->cancelled || paused->second->is_ending)
                waits_.erase(paused);
            else
                submit(id, *paused->second);
        });
    }

    // True if a write by a kernel thread should be tried again. ECANCELED: no thread can be had, as at a limit on
    // threads.
    static bool is_worth_another_try(int result) {
        return result == -ECANCELED || result == -EAGAIN || result == -ENOMEM || result == -EINTR;
    }

    // The wait keeps its number, so that it can be cancelled; the kernel has let go of its descriptor meanwhile. One
    // timer serves all paused signals.
    void signal_later(WaitId id, Wait &wait) {
        wait.is_paused = true;
        paused_signals_.push_back(id);
        if (paused_signals_.size() > 1) return;
        const auto now = std::chrono::steady_clock::now();
        if (!signals_told_ || now - *signals_told_ >= kSignalsToldEvery) {
            signals_told_ = now;
            log::warn(
                "clients are told of events late, for the kernel has no thread to be had that signals their "
                "descriptors: raise the limit on threads (pids.max of the cgroup, TasksMax= of the unit, ulimit -u)");
        }
        after(kSignalPause, [this] {
            for (const WaitId paused : std::exchange(paused_signals_, {})) {
                const auto found = waits_.find(paused);
                if (found == waits_.end()) continue;  // cancelled
                found->second->is_paused = false;
                submit(paused, *found->second);
            }
        });
    }

    void watch_posts() {
        when_readable(wake_.get(), [this] {
            std::uint64_t count = 0;
            [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
            watch_posts();
            std::vector<std::function<void()>> posts;
            {
                const std::lock_guard lock(posts_mutex_);
                posts.swap(posts_);
            }
            for (const auto &function : posts) function();
        });
    }

    static constexpr std::chrono::milliseconds kAcceptPause{100};
    static constexpr std::chrono::milliseconds kSignalPause{500};
    static constexpr std::chrono::minutes kSignalsToldEvery{1};

    io_uring ring_;
    Fd wake_;
    std::unordered_map<WaitId, std::unique_ptr<Wait>> waits_;
    WaitId last_id_ = 0;
    bool accepts_many_ = true;
    std::vector<WaitId> paused_signals_;  // to be sent again, or cancelled since; a timer is set if there are any
    std::optional<std::chrono::steady_clock::time_point> signals_told_;
    std::atomic<bool> stopping_{false};
    std::mutex posts_mutex_;
    std::vector<std::function<void()>> posts_;  // guarded by posts_mutex_
};

}  // namespace

Answer<std::unique_ptr<EventLoop>> EventLoop::create() {
    io_uring ring{};
    const char *call = "io_uring_setup";
    int failed = io_uring_queue_init(kQueueEntries, &ring, 0);
    if (failed >= 0) {
        // A filter may allow the set-up alone: the loop would spin, and hear no signal.
        call = "io_uring_enter";
        io_uring_prep_nop(io_uring_get_sqe(&ring));
        do failed = io_uring_submit_and_wait(&ring, 1);
        while (failed == -EINTR || failed == -EAGAIN);
        if (failed >= 0)
            io_uring_cq_advance(&ring, 1);
        else
            io_uring_queue_exit(&ring);
    }
    if (failed < 0) {
        std::string message = std::string(call) + " failed: " + std::strerror(-failed);
        if (failed == -ENOSYS || failed == -EPERM || failed == -EACCES)
            message +=
                "; a container's default seccomp profile forbids io_uring: allow io_uring_setup, io_uring_enter and "
                "io_uring_register in the profile (--security-opt seccomp=<profile>); on a bare machine check "
                "`sysctl kernel.io_uring_disabled` (0 allows it) and that the kernel is 5.15 or newer";
        else if (failed == -ENOMEM)
            message += "; raise the memlock limit (ulimit -l, LimitMEMLOCK=)";
        return Unexpected{Failure{Errc::access_denied, std::move(message)}};
    }
    Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake) {
        const int error = errno;
        io_uring_queue_exit(&ring);
        return Unexpected{Failure{Errc::access_denied, std::string("eventfd failed: ") + std::strerror(error) +
                                                           "; raise the open file limit (ulimit -n)"}};
    }
    return std::unique_ptr<EventLoop>(std::make_unique<UringLoop>(ring, std::move(wake)));
}

}  // namespace numacre::daemon
