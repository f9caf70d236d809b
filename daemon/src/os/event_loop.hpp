// The one place where a thread waits for everything: an io_uring. The implementation is the only user of liburing. All
// functions but post() and stop() belong to the thread that calls run(), and so do all callbacks. While only waits are
// outstanding, the loop sleeps in the kernel: there is no tick.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/failure.hpp"

namespace numacre::daemon {

class EventLoop {
public:
    // Names one outstanding wait; 0 names none. A number is never used again.
    using WaitId = std::uint64_t;

    // Fails, with the remedy, where the kernel or a container forbids io_uring.
    static Answer<std::unique_ptr<EventLoop>> create();
    virtual ~EventLoop() = default;

    // Returns after stop().
    virtual void run() = 0;
    // Any thread.
    virtual void stop() = 0;
    // Any thread: runs the function in the loop's thread, in order of posting. Dropped if the loop has ended.
    virtual void post(std::function<void()> function) = 0;

    // Accepts each connection to a listening socket, until cancelled. The socket must be blocking: io_uring does not
    // wait on O_NONBLOCK files. The argument of the callback is a new descriptor, or a negative errno.
    virtual WaitId accept_each(int listening_fd, std::function<void(int)> on_accept) = 0;
    // Receives one packet of a SEQPACKET socket. size is the packet's own size (0: end of stream), or a negative errno.
    // The bytes are cut off at kPacketBytes and are valid during the call. A packet with descriptors is -EBADMSG and
    // stays in the socket: to take it would close the descriptors here and now, which may take long (Closer).
    virtual WaitId receive_one(int fd, std::function<void(int size, std::span<const std::byte>)> on_packet) = 0;
    // Calls back once, when the descriptor is readable (a pidfd: when its process has ended).
    virtual WaitId when_readable(int fd, std::function<void()> on_readable) = 0;
    // Adds 1 to an eventfd. The write may take as long as the eventfd's readers like (they may make it block, and fill
    // it), but no thread of ours waits. on_done is called when the write is done, or cannot be done. If the kernel has
    // no thread for the write, it is tried again.
    virtual WaitId signal(int event_fd, std::function<void()> on_done) = 0;
    // Calls back once.
    virtual WaitId after(std::chrono::milliseconds delay, std::function<void()> on_time) = 0;
    // The callback of the wait is not called any more. Unknown and finished waits are ignored. on_gone is called when
    // the kernel has let go of the descriptor: before that, closing the descriptor does not close the file.
    virtual void cancel(WaitId wait, std::function<void()> on_gone = nullptr) = 0;
    // No more connections are accepted. Connections that the kernel has accepted already are still delivered: otherwise
    // their callers would see them closed without a word.
    virtual void stop_accepting(WaitId wait) = 0;

    static constexpr std::size_t kPacketBytes = 256;
};

}  // namespace numacre::daemon
