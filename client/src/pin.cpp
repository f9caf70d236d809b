// Pins: ranges that stay where they are while a device, or the kernel, has them registered. The daemon keeps them
// (daemon/src/memory/pins.hpp); here is the request, on a connection of its own, so that a pool whose daemon has been
// replaced can be pinned as well.
#include <cstdint>

#include "connect.hpp"
#include "errors.hpp"
#include "numacre/os/kernel.hpp"
#include "pool.hpp"
#include "report.hpp"

using namespace numacre;
using namespace numacre::client;

namespace {

// A step of a growth on the pool's worker comes first, and may take seconds.
constexpr unsigned kPinSeconds = 30;

}  // namespace

extern "C" int numacre_pin(numacre_pool *pool, const void *address, size_t size_bytes, int *pin) {
    if (pool == nullptr) return no_pool("numacre_pin");
    if (pin == nullptr) return no_result("numacre_pin");
    if (pool->fork_generation != fork_generation()) return fail_forked();
    const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte *>(address) - pool->span);
    const std::uint64_t numa_node = offset >> pool->span_shift;
    const std::uint64_t first_byte = offset - (numa_node << pool->span_shift);
    if (address == nullptr || offset >= pool->span_bytes || numa_node >= pool->numa_nodes || size_bytes == 0 ||
        first_byte >= pool->data_bytes || size_bytes > pool->data_bytes - first_byte)
        return fail_with_remedy(
            Errc::bad_argument,
            "%zu bytes at %p are no range of one numa node of the pool: pin a range that numacre_region() tells",
            size_bytes, address);
    if (is_private(pool)) {  // its memory never moves
        *pin = -1;
        return 0;
    }
    const NotCancelled not_cancelled;
    wire::PinRequest request;
    request.process_slot = pool->process.value;
    request.numa_node = static_cast<std::uint16_t>(numa_node);
    request.process_generation = pool->process_generation;
    request.instance_id = pool->instance_id;
    request.first_byte = first_byte;
    request.bytes = size_bytes;
    wire::PinReply reply;
    const int error = ask_daemon(pool->runtime_dir, &request, sizeof request, wire::MessageType::pin_reply, &reply,
                                 sizeof reply, pin, kPinSeconds);
    if (error == 0) pool->pins_inode = inode_of(*pin);
    return error;
}

extern "C" int numacre_unpin(numacre_pool *pool, int pin) {
    if (pool == nullptr) return no_pool("numacre_unpin");
    if (pin < 0 && is_private(pool)) return 0;
    // A program may pass a number that is another file's by now.
    const std::uint64_t inode = pool->pins_inode;
    if (pin < 0 || inode == 0 || inode_of(pin) != inode)
        return fail_with_remedy(Errc::bad_argument,
                                "descriptor %d is no pin of this pool: pass the one that numacre_pin stored", pin);
    os::close(pin);
    return 0;
}
