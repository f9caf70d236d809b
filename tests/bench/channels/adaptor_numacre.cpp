// numacre's channels. The sender allocates the blocks and the receiver frees them; a round trip passes one block to and
// fro by two channels. Needs a daemon ($NUMACRE_RUNTIME_DIR); each process is a client.
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <string>

#include "measure.hpp"
#include "numacre/numacre.h"
#include "pool.hpp"

namespace numacre::bench {
namespace {

using Blocks = std::array<void *, kBurstMax>;

// One handle on a channel, in one process.
class Handle {
public:
    Handle(const Pool &pool, const std::string &name, unsigned capacity) {
        numacre_channel_options options{};
        options.struct_size = sizeof options;
        options.capacity = capacity;
        options.burst = kBurstMax;
        options.parties = 4;
        must("numacre_channel_open", numacre_channel_open(pool.get(), name.c_str(), &options, &channel_));
    }
    ~Handle() { (void)numacre_channel_close(channel_); }
    Handle(const Handle &) = delete;
    Handle &operator=(const Handle &) = delete;

    // Waits, awake, while the channel is full.
    void send(void *const *blocks, unsigned count) {
        int error = 0;
        while ((error = numacre_send(channel_, blocks, count)) == -EAGAIN) relax();
        must("numacre_send", error);
    }
    // 0: nothing is there.
    unsigned receive(void **blocks, unsigned most) {
        unsigned count = 0;
        const int error = numacre_receive(channel_, blocks, most, &count, nullptr);
        if (error != -EAGAIN) must("numacre_receive", error);
        return count;
    }
    numacre_channel *get() const { return channel_; }

private:
    numacre_channel *channel_ = nullptr;
};

class Channel {
public:
    // Before the fork: only the names. A forked process does not inherit a pool.
    explicit Channel(const Shape &shape) : capacity(shape.capacity) {
        require_daemon();
        static unsigned made = 0;
        there = "bench." + std::to_string(::getpid()) + "." + std::to_string(++made);
        back = there + ".back";
    }

    class Sender {
    public:
        explicit Sender(Channel &system) : channel_(pool_, system.there, system.capacity) {}
        template <class Fill>
        void send(unsigned count, Fill fill) {
            Blocks blocks;
            must("numacre_alloc_bulk", numacre_alloc_bulk(pool_.get(), kPayloadBytes, blocks.data(), count));
            for (unsigned i = 0; i < count; ++i) fill(blocks[i]);
            channel_.send(blocks.data(), count);
        }

    private:
        Pool pool_;
        Handle channel_;
    };

    class Receiver {
    public:
        explicit Receiver(Channel &system) : channel_(pool_, system.there, system.capacity) {}
        template <class Read>
        unsigned receive(unsigned most, Read read) {
            Blocks blocks;
            const unsigned count = channel_.receive(blocks.data(), most);
            for (unsigned i = 0; i < count; ++i) read(blocks[i]);
            if (count != 0) must("numacre_free_bulk", numacre_free_bulk(pool_.get(), blocks.data(), count));
            return count;
        }

    private:
        Pool pool_;
        Handle channel_;
    };

    class Asker {
    public:
        explicit Asker(Channel &system)
            : there_(pool_, system.there, system.capacity), back_(pool_, system.back, system.capacity) {
            must("numacre_alloc", numacre_alloc(pool_.get(), kPayloadBytes, &block_));
        }
        template <class Fill, class Read>
        void ask(Fill fill, Read read) {
            fill(block_);
            there_.send(&block_, 1);
            while (back_.receive(&block_, 1) == 0) relax();
            read(block_);
        }

    private:
        Pool pool_;
        Handle there_, back_;
        void *block_ = nullptr;
    };
    class Answerer {
    public:
        explicit Answerer(Channel &system)
            : there_(pool_, system.there, system.capacity), back_(pool_, system.back, system.capacity) {}
        template <class Read, class Fill>
        bool answer(Read read, Fill fill) {
            void *block = nullptr;
            if (there_.receive(&block, 1) == 0) return false;
            read(block);
            fill(block);
            back_.send(&block, 1);
            return true;
        }

    private:
        Pool pool_;
        Handle there_, back_;
    };

    class Waker {
    public:
        explicit Waker(Channel &system) : channel_(pool_, system.there, system.capacity) {}
        void wake(std::uint64_t sequence) {
            void *block = nullptr;
            must("numacre_alloc", numacre_alloc(pool_.get(), kPayloadBytes, &block));
            *static_cast<std::uint64_t *>(block) = sequence;
            channel_.send(&block, 1);
        }

    private:
        Pool pool_;
        Handle channel_;
    };
    class Waiter {
    public:
        explicit Waiter(Channel &system) : channel_(pool_, system.there, system.capacity) {}
        std::uint64_t wait() {
            void *block = nullptr;
            unsigned count = 0;
            must("numacre_receive_wait", numacre_receive_wait(channel_.get(), &block, 1, 0, &count, nullptr));
            const std::uint64_t sequence = *static_cast<std::uint64_t *>(block);
            must("numacre_free", numacre_free(pool_.get(), block));
            return sequence;
        }

    private:
        Pool pool_;
        Handle channel_;
    };

    unsigned capacity;
    std::string there, back;
};

const Registered channel{entry_of<Channel>("numacre")};

}  // namespace
}  // namespace numacre::bench
