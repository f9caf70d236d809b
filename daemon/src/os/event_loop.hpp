// One thread's wait for everything: an io_uring. The implementation is the only user of liburing.
// All functions but post() and stop() belong to the thread that calls run(), and so do all callbacks. With nothing
// outstanding but waits, the loop sleeps in the kernel: there is no tick.
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
    // Names one outstanding wait; 0 names none. Never used again.
    using WaitId = std::uint64_t;

    // Fails with the remedy where the kernel or a container forbids io_uring.
    static Answer<std::unique_ptr<EventLoop>> create();
    virtual ~EventLoop() = default;

    // Until stop().
    virtual void run() = 0;
    // Any thread.
    virtual void stop() = 0;
    // Any thread: runs the function in the loop's thread, in order of posting. Dropped if the loop has ended.
    virtual void post(std::function<void()> function) = 0;

    // Each connection to a listening socket (blocking ones: io_uring does not wait on O_NONBLOCK files), until
    // cancelled. The argument is a new descriptor, or a negative errno.
    virtual WaitId accept_each(int listening_fd, std::function<void(int)> on_accept) = 0;
    // One packet of a SEQPACKET socket, of at most kPacketBytes: size is what the packet had (0: end of stream), or a
    // negative errno; the bytes are cut off at kPacketBytes and are valid during the call. A packet with descriptors is
    // -EBADMSG and stays where it is: taking it would close them here and now, which may take long (Closer).
    virtual WaitId receive_one(int fd, std::function<void(int size, std::span<const std::byte>)> on_packet) = 0;
    // Once, when the descriptor is readable (a pidfd: when its process has ended).
    virtual WaitId when_readable(int fd, std::function<void()> on_readable) = 0;
    // Adds 1 to an eventfd. May take as long as its readers like (they may make it block, and fill it), without anybody
    // waiting; tells when it is done, or cannot be. Where the kernel has no thread for it, it is tried again.
    virtual WaitId signal(int event_fd, std::function<void()> on_done) = 0;
    // Once.
    virtual WaitId after(std::chrono::milliseconds delay, std::function<void()> on_time) = 0;
    // Its callback is not called any more. Unknown and finished ones are ignored. on_gone is called when the kernel has
    // let go of the descriptor: before that, closing it is not what closes the file.
    virtual void cancel(WaitId wait, std::function<void()> on_gone = nullptr) = 0;
    // No more connections are accepted. Those that the kernel has accepted already are still delivered: whoever made
    // one would otherwise see it closed without a word.
    virtual void stop_accepting(WaitId wait) = 0;

    static constexpr std::size_t kPacketBytes = 256;
};

}  // namespace numacre::daemon
