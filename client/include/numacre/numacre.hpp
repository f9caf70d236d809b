// The C++ interface of numacre.h: a pool that detaches itself, blocks that free themselves, a
// std::pmr::memory_resource. It is header-only over the C ABI, so that it does not matter which compiler built the
// library. Only PoolResource throws exceptions, as std::pmr demands.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "numacre/error.hpp"
#include "numacre/numacre.h"
#include "numacre/result.hpp"

namespace numacre {

// The error of a failed call: its code, and the library's sentence about it.
struct Error {
    Errc code = Errc::ok;  // the code of the errno value; bad_argument if kErrors has no row for that value
    std::string message;   // numacre_last_error()
};

// A T, or the reason why there is no T.
template <class T>
using Expected = Result<T, Error>;

namespace detail {

inline Errc errc_of(int negative_errno) {
    for (const ErrorRow &row : kErrors)
        if (row.errno_value == -negative_errno) return row.code;
    return Errc::bad_argument;
}
inline Unexpected<Error> failure(int negative_errno) {
    return {Error{errc_of(negative_errno), numacre_last_error()}};
}

}  // namespace detail

// A reference that another process can take. Trivially copyable: write it to a ring, a pipe, a file.
struct Ref {
    numacre_ref value = NUMACRE_REF_NULL;  // the reference as the C functions use it
    // False for NUMACRE_REF_NULL.
    explicit operator bool() const { return value != NUMACRE_REF_NULL; }
    // True if both name the same use of the same block.
    friend bool operator==(Ref, Ref) = default;
};

namespace detail {

// A Ref is its value and nothing else.
static_assert(sizeof(Ref) == sizeof(numacre_ref) && alignof(Ref) == alignof(numacre_ref));
inline numacre_ref *values_of(std::span<Ref> refs) {
    return refs.empty() ? nullptr : &refs.front().value;
}
inline const numacre_ref *values_of(std::span<const Ref> refs) {
    return refs.empty() ? nullptr : &refs.front().value;
}
inline Unexpected<Error> different_sizes(std::size_t addresses, std::size_t refs) {
    return {Error{Errc::bad_argument,
                  std::to_string(addresses) + " addresses and " + std::to_string(refs) + " references: give as many"}};
}

}  // namespace detail

// Owns one block; the destructor frees it. Move-only. Must not outlive its Pool.
class Block {
public:
    // No block.
    Block() = default;
    // The block at `address`, which this process owns. size: the block's numacre_usable_size, which Pool::own() looks
    // up.
    Block(numacre_pool *pool, void *address, std::size_t size) : pool_(pool), address_(address), size_(size) {}
    // Leaves no block in `other`.
    Block(Block &&other) noexcept
        : pool_(other.pool_), address_(std::exchange(other.address_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    // Frees the block that this object owned; leaves no block in `other`.
    Block &operator=(Block &&other) noexcept {
        if (this != &other) {
            reset();
            pool_ = other.pool_;
            address_ = std::exchange(other.address_, nullptr);
            size_ = std::exchange(other.size_, 0);
        }
        return *this;
    }
    Block(const Block &) = delete;
    Block &operator=(const Block &) = delete;
    // Frees the block.
    ~Block() { reset(); }

    // True if there is a block.
    explicit operator bool() const noexcept { return address_ != nullptr; }
    // The block's address in this process; null if there is none.
    void *data() const noexcept { return address_; }
    // The number of usable bytes; 0 if there is no block.
    std::size_t size() const noexcept { return size_; }
    // All of the block.
    std::span<std::byte> bytes() const noexcept { return {static_cast<std::byte *>(address_), size_}; }
    // The block's name for other processes. This object owns the block until a process takes it.
    Ref ref() const noexcept { return {numacre_ref_of(pool_, address_)}; }
    // Gives up the block without freeing it, because another owner takes, or has taken, the block. Returns its address.
    void *release() noexcept {
        size_ = 0;
        return std::exchange(address_, nullptr);
    }
    // Frees the block, as numacre_free. Errors are ignored: after -EUSERS the block stays allocated until the pool's
    // handle is detached.
    void reset() noexcept {
        size_ = 0;
        if (address_ != nullptr) (void)numacre_free(pool_, std::exchange(address_, nullptr));
    }

private:
    numacre_pool *pool_ = nullptr;
    void *address_ = nullptr;
    std::size_t size_ = 0;
};

// Holds one block to read it, whoever owns it; the destructor drops it. Belongs to the thread that has made it.
// Move-only. Must not outlive its Pool.
class Hold {
public:
    // Holds nothing.
    Hold() = default;
    // Takes over a hold of this thread, by the address that numacre_hold has stored.
    Hold(numacre_pool *pool, const void *address) : pool_(pool), address_(address) {}
    // Leaves nothing in `other`.
    Hold(Hold &&other) noexcept : pool_(other.pool_), address_(std::exchange(other.address_, nullptr)) {}
    // Drops what this object held; leaves nothing in `other`.
    Hold &operator=(Hold &&other) noexcept {
        if (this != &other) {
            reset();
            pool_ = other.pool_;
            address_ = std::exchange(other.address_, nullptr);
        }
        return *this;
    }
    Hold(const Hold &) = delete;
    Hold &operator=(const Hold &) = delete;
    // Drops the block.
    ~Hold() { reset(); }

    // True if a block is held.
    explicit operator bool() const noexcept { return address_ != nullptr; }
    // The block's address in this process; null if none is held.
    const void *data() const noexcept { return address_; }
    // Drops the block, as numacre_drop, if one is held. Errors are ignored: another thread than the one that holds
    // drops nothing.
    void reset() noexcept {
        if (address_ != nullptr) (void)numacre_drop(pool_, const_cast<void *>(std::exchange(address_, nullptr)));
    }

private:
    numacre_pool *pool_ = nullptr;
    const void *address_ = nullptr;
};

// The free space that an allocation of a private pool takes when the thread's cache is empty; see NUMACRE_PRIVATE_....
enum class Fit : unsigned {
    quick = 0,  // takes a nearby free space, without a look at the rest
    compact = NUMACRE_PRIVATE_COMPACT,
    best = NUMACRE_PRIVATE_BEST_FIT,
};

// How to attach to a pool. Null means the default of numacre_attach_options.
struct AttachOptions {
    const char *pool_name = nullptr;    // numacre_attach_options::pool_name
    const char *runtime_dir = nullptr;  // numacre_attach_options::runtime_dir
    void *address = nullptr;            // numacre_attach_options::address
    bool keep_descriptors = false;      // NUMACRE_KEEP_DESCRIPTORS
};

// The file that has the blocks of a numa node, and the place of the region in it. The caller closes the descriptor.
struct RegionFile {
    int fd = -1;               // numacre_region_fd
    std::uint64_t offset = 0;  // numacre_region_fd
};

// A range of a pool's memory that stays where it is (numacre_pin). Movable; may outlive its pool's handle.
class Pin {
public:
    // Pins nothing.
    Pin() = default;
    // Takes a descriptor that numacre_pin has stored.
    explicit Pin(int descriptor) : descriptor_(descriptor) {}
    // Moves; the other pins nothing then.
    Pin(Pin &&other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
    // Exchanges both pins.
    Pin &operator=(Pin &&other) noexcept {
        std::swap(descriptor_, other.descriptor_);
        return *this;
    }
    // Closes the descriptor.
    ~Pin() {
        if (descriptor_ >= 0) ::close(descriptor_);
    }
    // To be passed on with a device's descriptor; -1: nothing is pinned, or the pool is private.
    int descriptor() const { return descriptor_; }

private:
    int descriptor_ = -1;
};

// The kind of what a name of a pool is bound to; see NUMACRE_NAME_....
enum class NameKind : std::uint32_t {
    any = 0,                             // Pool::name(): whatever the name is bound to
    reference = NUMACRE_NAME_REFERENCE,  // NUMACRE_NAME_REFERENCE
    objects = NUMACRE_NAME_OBJECTS,      // NUMACRE_NAME_OBJECTS
    channel = NUMACRE_NAME_CHANNEL,      // NUMACRE_NAME_CHANNEL
};

// A name of a pool, and what it is bound to (numacre_name).
struct Name {
    std::string name;             // numacre_name::name
    NameKind kind{};              // numacre_name::kind
    Ref ref;                      // numacre_name::reference
    std::string objects;          // numacre_name::objects
    std::uint64_t channel = 0;    // numacre_name::channel
    bool of_pool = false;         // NUMACRE_NAME_POOL
    std::uint64_t version = 0;    // numacre_name::version
    std::uint32_t user = 0;       // numacre_name::user
    std::uint32_t client_id = 0;  // numacre_name::client_id
};

// The names of a pool at one moment.
struct NameList {
    std::vector<Name> names;    // in no order
    std::uint64_t version = 0;  // of the directory, for Pool::watch_names
};

// How to bind a name.
struct NameOptions {
    bool of_pool = false;                                 // NUMACRE_NAME_POOL
    std::optional<std::uint64_t> version = std::nullopt;  // the one that the name has to have; 0: no such name
};

namespace detail {

inline Name name_of(const numacre_name &found) {
    return {found.name,     static_cast<NameKind>(found.kind),      {found.reference}, found.objects,
            found.channel,  (found.flags & NUMACRE_NAME_POOL) != 0, found.version,     found.user,
            found.client_id};
}
inline numacre_name binding_of(NameKind kind, const NameOptions &options) {
    numacre_name binding{};
    binding.struct_size = sizeof binding;
    binding.kind = static_cast<std::uint32_t>(kind);
    binding.flags = (options.of_pool ? NUMACRE_NAME_POOL : 0) | (options.version ? NUMACRE_NAME_COMPARE : 0);
    binding.version = options.version.value_or(0);
    return binding;
}

}  // namespace detail

// A channel as it is to be made; see numacre_channel_options. 0 is the default of each size.
struct ChannelOptions {
    std::uint32_t capacity = 0;  // numacre_channel_options::capacity
    std::uint32_t burst = 0;     // numacre_channel_options::burst
    std::uint32_t parties = 0;   // numacre_channel_options::parties
    bool sends = true;           // NUMACRE_CHANNEL_SENDS, unless it receives as well
    bool receives = true;        // NUMACRE_CHANNEL_RECEIVES, unless it sends as well
    bool existing = false;       // NUMACRE_CHANNEL_EXISTING
    bool stays = false;          // NUMACRE_CHANNEL_STAYS
    bool broadcast = false;      // NUMACRE_CHANNEL_BROADCAST
    std::uint32_t last = 0;      // numacre_channel_options::last
};

// A block from a channel.
struct Received {
    Block block;                  // the receiver's now
    bool is_redelivered = false;  // another receiver had taken it out of the channel, and died
};

// The result of Channel::read: the first `count` addresses are those of blocks.
struct ReadBlocks {
    std::size_t count = 0;        // addresses
    std::uint64_t overtaken = 0;  // blocks that were overwritten before this reader came to them
};

// A handle on a channel; the destructor closes it. For one thread at a time. Move-only. Must not outlive its Pool.
class Channel {
public:
    // No channel.
    Channel() = default;
    // Takes a handle that numacre_channel_open has made. pool: the channel's.
    Channel(numacre_pool *pool, numacre_channel *channel) : pool_(pool), channel_(channel) {}
    // Moves; the other is no channel then.
    Channel(Channel &&other) noexcept : pool_(other.pool_), channel_(std::exchange(other.channel_, nullptr)) {}
    // Exchanges both channels.
    Channel &operator=(Channel &&other) noexcept {
        std::swap(pool_, other.pool_);
        std::swap(channel_, other.channel_);
        return *this;
    }
    // Closes the handle.
    ~Channel() {
        if (channel_ != nullptr) (void)numacre_channel_close(channel_);
    }

    // The handle for the C functions.
    numacre_channel *handle() const { return channel_; }

    // Sends a block, as numacre_send. On failure the caller still owns it.
    Expected<void> send(Block &block) {
        void *const address = block.data();
        return sent(block, numacre_send(channel_, &address, 1));
    }
    // Sends a block, and waits for room, as numacre_send_wait. timeout: 0: for ever.
    Expected<void> send_wait(Block &block, std::chrono::milliseconds timeout = {}) {
        void *const address = block.data();
        return sent(block, numacre_send_wait(channel_, &address, 1, milliseconds_of(timeout)));
    }
    // Sends blocks by their addresses, all or none, as numacre_send: for loops in which an object for each block costs
    // too much.
    Expected<void> send_bulk(std::span<void *const> addresses) {
        const auto count = static_cast<unsigned>(addresses.size());
        if (const int error = numacre_send(channel_, addresses.data(), count)) return detail::failure(error);
        return {};
    }

    // Sends a block, and frees the oldest ones if there is no room, as numacre_send_over. Returns how many.
    Expected<unsigned> send_over(Block &block) {
        void *const address = block.data();
        unsigned dropped = 0;
        auto done = sent(block, numacre_send_over(channel_, &address, 1, &dropped));
        if (!done) return Unexpected<Error>{std::move(done.error())};
        return dropped;
    }

    // Reads up to addresses.size() blocks of a broadcast channel, as numacre_channel_read. They stay the channel's, and
    // readable until the next read, end_read() or the end of this object.
    Expected<ReadBlocks> read(std::span<const void *> addresses) {
        unsigned count = 0;
        std::uint64_t overtaken = 0;
        const auto most = static_cast<unsigned>(addresses.size());
        return read(count, overtaken, numacre_channel_read(channel_, addresses.data(), most, &count, &overtaken));
    }
    // Reads as read(), and waits for something, as numacre_channel_read_wait. timeout: 0: for ever.
    Expected<ReadBlocks> read_wait(std::span<const void *> addresses, std::chrono::milliseconds timeout = {}) {
        unsigned count = 0;
        std::uint64_t overtaken = 0;
        const auto most = static_cast<unsigned>(addresses.size());
        return read(
            count, overtaken,
            numacre_channel_read_wait(channel_, addresses.data(), most, milliseconds_of(timeout), &count, &overtaken));
    }
    // Ends the reading of what the last read has returned, as numacre_channel_read_end.
    Expected<void> end_read() {
        if (const int error = numacre_channel_read_end(channel_)) return detail::failure(error);
        return {};
    }

    // Receives a block, as numacre_receive.
    Expected<Received> receive() {
        void *address = nullptr;
        unsigned count = 0;
        int redelivered = 0;
        return received(address, redelivered, numacre_receive(channel_, &address, 1, &count, &redelivered));
    }
    // Receives a block, and waits for one, as numacre_receive_wait. timeout: 0: for ever.
    Expected<Received> receive_wait(std::chrono::milliseconds timeout = {}) {
        void *address = nullptr;
        unsigned count = 0;
        int redelivered = 0;
        const int error = numacre_receive_wait(channel_, &address, 1, milliseconds_of(timeout), &count, &redelivered);
        return received(address, redelivered, error);
    }
    // Receives up to addresses.size() blocks, as numacre_receive, and returns their number. The caller owns them:
    // Pool::own(), Pool::free_bulk().
    Expected<std::size_t> receive_bulk(std::span<void *> addresses, bool *is_redelivered = nullptr) {
        unsigned count = 0;
        int redelivered = 0;
        const auto most = static_cast<unsigned>(addresses.size());
        if (const int error = numacre_receive(channel_, addresses.data(), most, &count, &redelivered))
            return detail::failure(error);
        if (is_redelivered != nullptr) *is_redelivered = redelivered != 0;
        return std::size_t{count};
    }

    // The descriptor to wait by, as numacre_channel_fd; this object's.
    Expected<int> descriptor() {
        int fd = -1;
        if (const int error = numacre_channel_fd(channel_, &fd)) return detail::failure(error);
        return fd;
    }
    // Has the descriptor signalled once, as numacre_channel_arm. room: blocks.
    Expected<void> arm(bool messages, unsigned room = 0) {
        if (const int error = numacre_channel_arm(channel_, messages ? 1 : 0, room)) return detail::failure(error);
        return {};
    }

    // Ends the stream, as numacre_channel_end.
    Expected<void> end() {
        if (const int error = numacre_channel_end(channel_)) return detail::failure(error);
        return {};
    }
    // The channel as it is, as numacre_channel_get_info.
    Expected<numacre_channel_info> info() const {
        numacre_channel_info now{};
        now.struct_size = sizeof now;
        if (const int error = numacre_channel_get_info(channel_, &now)) return detail::failure(error);
        return now;
    }

private:
    // 0 is for ever in C: a time between 0 and 1 ms is 1 ms.
    static unsigned milliseconds_of(std::chrono::milliseconds timeout) {
        constexpr std::chrono::milliseconds::rep kMost = 0xffff'ffff;
        const auto asked = timeout.count();
        return static_cast<unsigned>(asked < 0 ? 1 : asked > kMost ? kMost : asked);
    }
    static Expected<ReadBlocks> read(const unsigned &count, const std::uint64_t &overtaken, int error) {
        if (error != 0) return detail::failure(error);
        return ReadBlocks{count, overtaken};
    }
    static Expected<void> sent(Block &block, int error) {
        if (error != 0) return detail::failure(error);
        (void)block.release();
        return {};
    }
    Expected<Received> received(void *address, int redelivered, int error) const {
        if (error != 0) return detail::failure(error);
        return Received{Block{pool_, address, numacre_usable_size(pool_, address)}, redelivered != 0};
    }

    numacre_pool *pool_ = nullptr;
    numacre_channel *channel_ = nullptr;
};

// A message of a TypedChannel: a T in a block, which is freed with this object.
template <class T>
class Message {
public:
    // A message in a block that is large enough for a T.
    Message(Block block, bool is_redelivered) : block_(std::move(block)), is_redelivered_(is_redelivered) {}
    // The message.
    T &operator*() const { return *static_cast<T *>(block_.data()); }
    // A member of the message.
    T *operator->() const { return static_cast<T *>(block_.data()); }
    // Another receiver had taken it out of the channel, and died.
    bool is_redelivered() const { return is_redelivered_; }
    // The block, to be kept or sent on.
    Block &block() { return block_; }

private:
    Block block_;
    bool is_redelivered_;
};

// A Channel whose messages are trivially copyable objects, each in a block of its own. A receiver reads what a sender
// has written: both agree on T.
template <class T>
class TypedChannel {
    static_assert(std::is_trivially_copyable_v<T>, "a message is read by another process, as bytes");

public:
    // The messages go through this channel of this pool.
    TypedChannel(numacre_pool *pool, Channel channel) : pool_(pool), channel_(std::move(channel)) {}

    // Sends a copy. Errors: also those of numacre_alloc.
    Expected<void> send(const T &message) { return send(message, false, {}); }
    // Sends a copy, and waits for room. timeout: 0: for ever.
    Expected<void> send_wait(const T &message, std::chrono::milliseconds timeout = {}) {
        return send(message, true, timeout);
    }
    // Receives a message.
    Expected<Message<T>> receive() { return message_of(channel_.receive()); }
    // Receives a message, and waits for one. timeout: 0: for ever.
    Expected<Message<T>> receive_wait(std::chrono::milliseconds timeout = {}) {
        return message_of(channel_.receive_wait(timeout));
    }
    // The channel, for whole blocks and for its end.
    Channel &channel() { return channel_; }

private:
    Expected<void> send(const T &message, bool waits, std::chrono::milliseconds timeout) {
        void *address = nullptr;
        if (const int error = numacre_alloc(pool_, sizeof(T), &address)) return detail::failure(error);
        Block block{pool_, address, sizeof(T)};
        new (address) T(message);
        return waits ? channel_.send_wait(block, timeout) : channel_.send(block);
    }
    static Expected<Message<T>> message_of(Expected<Received> received) {
        if (!received) return Unexpected<Error>{std::move(received.error())};
        if (received->block.size() < sizeof(T))
            return Unexpected<Error>{Error{Errc::bad_argument, "a message of " +
                                                                   std::to_string(received->block.size()) +
                                                                   " bytes is shorter than the type that is read: let "
                                                                   "senders and receivers agree on it"}};
        return Message<T>{std::move(received->block), received->is_redelivered};
    }

    numacre_pool *pool_;
    Channel channel_;
};

// The geometry of a private pool. 0 means the default of numacre_private_options.
struct PrivateOptions {
    std::uint64_t capacity_bytes = 0;       // numacre_private_options::capacity_bytes
    std::uint64_t frame_bytes = 0;          // numacre_private_options::frame_bytes
    std::uint64_t largest_block_bytes = 0;  // numacre_private_options::largest_block_bytes
    Fit fit = Fit::quick;                   // numacre_private_options::flags
    std::uint64_t object_bytes = 0;         // numacre_private_options::object_bytes
    std::uint64_t object_count = 0;         // numacre_private_options::object_count
    bool plain_objects = false;             // NUMACRE_PRIVATE_PLAIN_OBJECTS
};

// A policy, which chooses the numa nodes of blocks; see NUMACRE_POLICY_....
enum class PolicyMode : int {
    unset = NUMACRE_POLICY_DEFAULT,
    local = NUMACRE_POLICY_LOCAL,
    strict = NUMACRE_POLICY_STRICT,
    preferred = NUMACRE_POLICY_PREFERRED,
    interleave = NUMACRE_POLICY_INTERLEAVE,
    interleave_frames = NUMACRE_POLICY_INTERLEAVE_FRAMES,
};

// Options of an allocation; see the NUMACRE_ flags.
struct AllocateOptions {
    int numa_node = -1;                    // -1: the calling thread's, or the one that a policy chooses
    bool strict = false;                   // NUMACRE_STRICT
    bool zero = false;                     // NUMACRE_ZERO
    bool uncached = false;                 // NUMACRE_UNCACHED
    bool interleave = false;               // NUMACRE_INTERLEAVE: numa_node -1
    bool local = false;                    // NUMACRE_LOCAL: numa_node -1, regardless of policies
    bool compact = false;                  // NUMACRE_COMPACT: prefers fuller chunks
    bool wait = false;                     // NUMACRE_WAIT
    std::chrono::milliseconds timeout{0};  // with wait; 0: for ever; below 0: 1 ms; at most 2^24 - 1 ms (4.6 h)
};

// A handle on a pool; the destructor detaches it. Move-only. Its functions call the C functions, whose rules on
// threads, signals and fork apply here.
class Pool {
public:
    // Attaches to a pool of the daemon, as numacre_attach.
    static Expected<Pool> attach(const char *pool_name = nullptr, const char *runtime_dir = nullptr) {
        numacre_pool *handle = nullptr;
        if (const int error = numacre_attach(runtime_dir, pool_name, &handle)) return detail::failure(error);
        return Pool{handle};
    }
    // Attaches with options, as numacre_attach_with.
    static Expected<Pool> attach_with(const AttachOptions &options) {
        const numacre_attach_options raw{sizeof raw, options.runtime_dir, options.pool_name, options.address,
                                         options.keep_descriptors ? NUMACRE_KEEP_DESCRIPTORS : 0};
        numacre_pool *handle = nullptr;
        if (const int error = numacre_attach_with(&raw, &handle)) return detail::failure(error);
        return Pool{handle};
    }
    // Attaches to an object pool of this one, which is made before if there is none, as numacre_objects_open.
    Expected<Pool> open_objects(const char *name, std::uint64_t object_bytes, std::uint64_t object_count,
                                unsigned flags = 0) const {
        numacre_pool *handle = nullptr;
        if (const int error = numacre_objects_open(handle_, name, object_bytes, object_count, flags, &handle))
            return detail::failure(error);
        return Pool{handle};
    }
    // Makes a private pool, as numacre_open_private.
    static Expected<Pool> open_private(const PrivateOptions &options = {}) {
        const unsigned plain = options.plain_objects ? NUMACRE_PRIVATE_PLAIN_OBJECTS : 0;
        const numacre_private_options raw{sizeof raw,
                                          options.capacity_bytes,
                                          options.frame_bytes,
                                          options.largest_block_bytes,
                                          static_cast<unsigned>(options.fit) | plain,
                                          options.object_bytes,
                                          options.object_count};
        numacre_pool *handle = nullptr;
        if (const int error = numacre_open_private(&raw, &handle)) return detail::failure(error);
        return Pool{handle};
    }

    // `other` has no pool afterwards.
    Pool(Pool &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    // Detaches the pool that this object had. `other` has no pool afterwards.
    Pool &operator=(Pool &&other) noexcept {
        if (this != &other) {
            numacre_detach(handle_);
            handle_ = std::exchange(other.handle_, nullptr);
        }
        return *this;
    }
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;
    // Detaches the pool, as numacre_detach.
    ~Pool() { numacre_detach(handle_); }

    // Allocates a block, as numacre_alloc.
    Expected<Block> allocate(std::size_t size_bytes) {
        void *address = nullptr;
        if (const int error = numacre_alloc(handle_, size_bytes, &address)) return detail::failure(error);
        return Block{handle_, address, numacre_usable_size(handle_, address)};
    }
    // Allocates a block with options, as numacre_alloc_on.
    Expected<Block> allocate(std::size_t size_bytes, const AllocateOptions &options) {
        constexpr std::chrono::milliseconds::rep kMost = 0xff'ffff;  // the largest time of NUMACRE_WAIT_MS
        const auto asked = options.timeout.count();
        const auto milliseconds = static_cast<unsigned>(asked == 0 ? 0 : asked < 1 ? 1 : asked > kMost ? kMost : asked);
        const unsigned flags = (options.strict ? NUMACRE_STRICT : 0) | (options.zero ? NUMACRE_ZERO : 0) |
                               (options.uncached ? NUMACRE_UNCACHED : 0) | (options.compact ? NUMACRE_COMPACT : 0) |
                               (options.interleave ? NUMACRE_INTERLEAVE : 0) | (options.local ? NUMACRE_LOCAL : 0) |
                               (options.wait ? NUMACRE_WAIT_MS(milliseconds) : 0);
        void *address = nullptr;
        if (const int error = numacre_alloc_on(handle_, options.numa_node, size_bytes, flags, &address))
            return detail::failure(error);
        return Block{handle_, address, numacre_usable_size(handle_, address)};
    }
    // Allocates addresses.size() blocks, or none: after a failure the addresses are as they were. This is for loops in
    // which an object for each block costs too much: nothing frees these blocks automatically. own() makes a Block of
    // an address, and free_bulk() frees the blocks together.
    Expected<void> allocate_bulk(std::size_t size_bytes, std::span<void *> addresses) {
        const auto count = static_cast<unsigned>(addresses.size());
        if (const int error = numacre_alloc_bulk(handle_, size_bytes, addresses.data(), count))
            return detail::failure(error);
        return {};
    }
    // Frees blocks, as numacre_free_bulk: after an address that cannot be freed, the call continues with the next one,
    // and returns the first error.
    Expected<void> free_bulk(std::span<void *const> addresses) {
        const auto count = static_cast<unsigned>(addresses.size());
        if (const int error = numacre_free_bulk(handle_, addresses.data(), count)) return detail::failure(error);
        return {};
    }
    // Allocates memory in one piece, as numacre_alloc_run. The caller frees it by free_run().
    Expected<std::span<std::byte>> allocate_run(std::size_t size_bytes, std::size_t alignment_bytes = 0,
                                                int numa_node = -1) {
        void *run = nullptr;
        if (const int error = numacre_alloc_run(handle_, numa_node, size_bytes, alignment_bytes, &run))
            return detail::failure(error);
        return std::span<std::byte>{static_cast<std::byte *>(run), size_bytes};
    }
    // Frees a run, or whole blocks of one, as numacre_free_run.
    Expected<void> free_run(std::span<std::byte> run) {
        if (const int error = numacre_free_run(handle_, run.data(), run.size())) return detail::failure(error);
        return {};
    }
    // Allocates blocks together with their references, as numacre_alloc_ref_bulk. Both spans have one size: if not,
    // nothing is done, and the code is bad_argument.
    Expected<void> allocate_bulk(std::size_t size_bytes, std::span<void *> addresses, std::span<Ref> refs) {
        if (addresses.size() != refs.size()) return detail::different_sizes(addresses.size(), refs.size());
        const auto count = static_cast<unsigned>(addresses.size());
        if (const int error =
                numacre_alloc_ref_bulk(handle_, size_bytes, addresses.data(), detail::values_of(refs), count))
            return detail::failure(error);
        return {};
    }
    // Stores the references of blocks, as numacre_ref_bulk: an address that this process does not own gets an empty
    // one, and the call returns the first error. Both spans have one size.
    Expected<void> ref_bulk(std::span<void *const> addresses, std::span<Ref> refs) {
        if (addresses.size() != refs.size()) return detail::different_sizes(addresses.size(), refs.size());
        const auto count = static_cast<unsigned>(addresses.size());
        if (const int error = numacre_ref_bulk(handle_, addresses.data(), detail::values_of(refs), count))
            return detail::failure(error);
        return {};
    }
    // Takes blocks, as numacre_take_bulk: a reference that names no block any more gets a null address, and the call
    // returns the first error. Both spans have one size. Nothing frees these blocks automatically.
    Expected<void> take_bulk(std::span<const Ref> refs, std::span<void *> addresses) {
        if (addresses.size() != refs.size()) return detail::different_sizes(addresses.size(), refs.size());
        const auto count = static_cast<unsigned>(refs.size());
        if (const int error = numacre_take_bulk(handle_, detail::values_of(refs), addresses.data(), count))
            return detail::failure(error);
        return {};
    }
    // Frees the block that a reference names, whichever process owns it, as numacre_free_ref.
    Expected<void> free(Ref ref) {
        if (const int error = numacre_free_ref(handle_, ref.value)) return detail::failure(error);
        return {};
    }
    // The reference of a block that begins at this address, whichever process owns it; empty if the block has none.
    Ref ref_at(const void *address) const { return {numacre_virt_to_ref(handle_, address)}; }
    // Returns a Block for an address from allocate_bulk(), Block::release() or the C functions. The Block is empty if
    // this process owns no block there.
    Block own(void *address) {
        const std::size_t size = numacre_usable_size(handle_, address);
        return size == 0 ? Block{} : Block{handle_, address, size};
    }
    // Sets the policy of this handle. numa_nodes: bit n is numa node n of the pool. See numacre_set_policy.
    Expected<void> set_policy(PolicyMode mode, std::uint64_t numa_nodes = 0) {
        if (const int error = numacre_set_policy(handle_, static_cast<int>(mode), numa_nodes))
            return detail::failure(error);
        return {};
    }
    // Allocates by a policy of this call alone. flags: see numacre_alloc_policy.
    Expected<Block> allocate_by(PolicyMode mode, std::uint64_t numa_nodes, std::size_t size_bytes, unsigned flags = 0) {
        void *address = nullptr;
        if (const int error =
                numacre_alloc_policy(handle_, static_cast<int>(mode), numa_nodes, size_bytes, flags, &address))
            return detail::failure(error);
        return Block{handle_, address, numacre_usable_size(handle_, address)};
    }
    // Holds a referenced block for this thread, as numacre_hold.
    Expected<Hold> hold(Ref ref) {
        void *address = nullptr;
        if (const int error = numacre_hold(handle_, ref.value, &address)) return detail::failure(error);
        return Hold{handle_, address};
    }
    // Makes this process the owner of a block that another process (or this one) has named by a reference.
    Expected<Block> take(Ref ref) {
        void *address = nullptr;
        if (const int error = numacre_take(handle_, ref.value, &address)) return detail::failure(error);
        return Block{handle_, address, numacre_usable_size(handle_, address)};
    }
    // The geometry of the pool, as numacre_get_info.
    numacre_pool_info info() const {
        numacre_pool_info found{};
        found.struct_size = sizeof found;
        (void)numacre_get_info(handle_, &found);
        return found;
    }
    // The mapping of all blocks of one numa node, up to the pool's capacity: for registering the memory with a device.
    Expected<std::span<std::byte>> region(int numa_node = 0) const {
        void *base = nullptr;
        std::size_t size_bytes = 0;
        if (const int error = numacre_region(handle_, numa_node, &base, &size_bytes)) return detail::failure(error);
        return std::span<std::byte>{static_cast<std::byte *>(base), size_bytes};
    }
    // The file of that mapping, as numacre_region_fd: for a peer that maps the memory itself.
    Expected<RegionFile> region_file(int numa_node = 0) const {
        RegionFile file;
        if (const int error = numacre_region_fd(handle_, numa_node, &file.fd, &file.offset))
            return detail::failure(error);
        return file;
    }
    // Makes the client a member of a group, as numacre_join.
    Expected<void> join(std::uint64_t group) {
        if (const int error = numacre_join(handle_, group)) return detail::failure(error);
        return {};
    }
    // Makes the client the owner of blocks of its group, as numacre_adopt_bulk; the caller frees them.
    Expected<void> adopt(std::span<void *const> blocks) {
        if (const int error = numacre_adopt_bulk(handle_, blocks.data(), static_cast<unsigned>(blocks.size())))
            return detail::failure(error);
        return {};
    }
    // Opens a channel, as numacre_channel_open. Closed by the result's destructor.
    Expected<Channel> channel(const std::string &name, const ChannelOptions &options = {}) {
        numacre_channel_options wanted{};
        wanted.struct_size = sizeof wanted;
        wanted.capacity = options.capacity;
        wanted.burst = options.burst;
        wanted.parties = options.parties;
        wanted.last = options.last;
        wanted.flags = (options.sends && !options.receives ? NUMACRE_CHANNEL_SENDS : 0) |
                       (options.receives && !options.sends ? NUMACRE_CHANNEL_RECEIVES : 0) |
                       (options.existing ? NUMACRE_CHANNEL_EXISTING : 0) | (options.stays ? NUMACRE_CHANNEL_STAYS : 0) |
                       (options.broadcast ? NUMACRE_CHANNEL_BROADCAST : 0);
        numacre_channel *opened = nullptr;
        if (const int error = numacre_channel_open(handle_, name.c_str(), &wanted, &opened))
            return detail::failure(error);
        return Channel{handle_, opened};
    }
    // Opens a channel of messages of one type.
    template <class T>
    Expected<TypedChannel<T>> channel_of(const std::string &name, const ChannelOptions &options = {}) {
        auto opened = channel(name, options);
        if (!opened) return Unexpected<Error>{std::move(opened.error())};
        return TypedChannel<T>{handle_, std::move(*opened)};
    }
    // Removes a channel, as numacre_channel_remove.
    Expected<void> remove_channel(const std::string &name) {
        if (const int error = numacre_channel_remove(handle_, name.c_str())) return detail::failure(error);
        return {};
    }
    // Keeps a range of a region where it is for as long as the result lives, as numacre_pin.
    Expected<Pin> pin(std::span<const std::byte> range) {
        int descriptor = -1;
        if (const int error = numacre_pin(handle_, range.data(), range.size(), &descriptor))
            return detail::failure(error);
        return Pin{descriptor};
    }
    // Binds a name to a block, as numacre_name_set. Returns the name's version.
    Expected<std::uint64_t> set_name(const std::string &name, Ref ref, const NameOptions &options = {}) {
        numacre_name binding = detail::binding_of(NameKind::reference, options);
        binding.reference = ref.value;
        return bind(name, binding);
    }
    // Binds a name to an object pool, by that pool's whole name, as numacre_name_set. Returns the name's version.
    Expected<std::uint64_t> set_name(const std::string &name, const std::string &objects,
                                     const NameOptions &options = {}) {
        numacre_name binding = detail::binding_of(NameKind::objects, options);
        if (objects.size() >= sizeof binding.objects)
            return Unexpected<Error>{Error{Errc::bad_argument, "object pool name '" + objects + "' is too long: use " +
                                                                   std::to_string(sizeof binding.objects - 1) +
                                                                   " characters at most"}};
        objects.copy(binding.objects, objects.size());
        return bind(name, binding);
    }
    // Looks a name up, as numacre_name_get.
    Expected<Name> name(const std::string &name, NameKind kind = NameKind::any) const {
        numacre_name found{};
        found.struct_size = sizeof found;
        if (const int error = numacre_name_get(handle_, name.c_str(), static_cast<std::uint32_t>(kind), &found))
            return detail::failure(error);
        return detail::name_of(found);
    }
    // Unbinds a name, as numacre_name_remove. version: the one that the name has to have; 0: any.
    Expected<void> remove_name(const std::string &name, std::uint64_t version = 0) {
        if (const int error = numacre_name_remove(handle_, name.c_str(), version)) return detail::failure(error);
        return {};
    }
    // All names, as numacre_name_list.
    Expected<NameList> names() const {
        NameList list;
        std::vector<numacre_name> found;
        for (std::size_t count = 1; found.size() < count;) {
            found.assign(count + 16, numacre_name{});
            found.front().struct_size = sizeof(numacre_name);
            if (const int error = numacre_name_list(handle_, found.data(), found.size(), &count, &list.version))
                return detail::failure(error);
            if (count <= found.size()) {
                found.resize(count);
                break;
            }
        }
        for (const numacre_name &each : found) list.names.push_back(detail::name_of(each));
        return list;
    }
    // Sleeps until the directory has another version, and returns that, as numacre_name_watch. timeout below 0: for
    // ever.
    Expected<std::uint64_t> watch_names(std::uint64_t version,
                                        std::chrono::milliseconds timeout = std::chrono::milliseconds{-1}) const {
        if (const int error = numacre_name_watch(handle_, &version, static_cast<int>(timeout.count())))
            return detail::failure(error);
        return version;
    }
    // The client id of this handle, as numacre_client_id.
    std::uint32_t client_id() const {
        std::uint32_t id = 0;
        (void)numacre_client_id(handle_, &id);
        return id;
    }
    // A descriptor that is readable when events() has an event. The descriptor belongs to the pool.
    Expected<int> event_fd() {
        int fd = -1;
        if (const int error = numacre_event_fd(handle_, &fd)) return detail::failure(error);
        return fd;
    }
    // The NUMACRE_EVENT_... bits of events since the last call.
    std::uint32_t events() {
        std::uint32_t events = 0;
        (void)numacre_events(handle_, &events);
        return events;
    }
    // The handle, for the C functions. This object still owns the handle.
    numacre_pool *handle() const noexcept { return handle_; }

private:
    explicit Pool(numacre_pool *handle) : handle_(handle) {}
    Expected<std::uint64_t> bind(const std::string &name, const numacre_name &binding) {
        std::uint64_t version = 0;
        if (const int error = numacre_name_set(handle_, name.c_str(), &binding, &version))
            return detail::failure(error);
        return version;
    }
    numacre_pool *handle_;
};

// A std::pmr::memory_resource over a pool. Every allocation is a block of whole frames: for small objects, put a pool
// resource of the standard library in front of this one. Such a resource asks rarely, and for large blocks, so
// allocations go past the thread's cache: a pool that is nearly full is packed better. Thread-safe. Throws
// std::bad_alloc when the pool is full or damaged, or the request too large, and in an object pool also when it has a
// larger alignment than the objects.
class PoolResource final : public std::pmr::memory_resource {
public:
    // Allocates from `pool`, without owning it.
    explicit PoolResource(Pool &pool, int numa_node = -1) : handle_(pool.handle()), numa_node_(numa_node) {}

private:
    void *do_allocate(std::size_t bytes, std::size_t alignment) override {
        // A block is aligned to its own size, but for objects, which are aligned to 64 B or to their distance.
        const std::size_t size = bytes > alignment ? bytes : alignment;
        void *address = nullptr;
        if (numacre_alloc_on(handle_, numa_node_, size == 0 ? 1 : size, NUMACRE_UNCACHED, &address) != 0)
            throw std::bad_alloc();
        if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0) {
            (void)numacre_free_uncached(handle_, address);
            throw std::bad_alloc();
        }
        return address;
    }
    void do_deallocate(void *address, std::size_t, std::size_t) override {
        (void)numacre_free_uncached(handle_, address);
    }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
        const auto *const same = dynamic_cast<const PoolResource *>(&other);
        return same != nullptr && same->handle_ == handle_;
    }

    numacre_pool *handle_;
    int numa_node_;
};

}  // namespace numacre
