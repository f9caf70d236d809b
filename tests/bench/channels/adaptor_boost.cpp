// Boost.Interprocess's message_queue: a lock and two condition variables, and each message is copied into the queue and
// out of it. Messages are pointers to blocks in shared memory, which come back by a second queue, or the payloads
// themselves.
#include <unistd.h>

#include <array>
#include <boost/interprocess/ipc/message_queue.hpp>
#include <string>
#include <vector>

#include "blocks.hpp"
#include "measure.hpp"

namespace numacre::bench {
namespace {

namespace ipc = boost::interprocess;

// Without a name once it is made: the processes inherit the mapping.
class Queue {
public:
    Queue(unsigned capacity, std::size_t message_bytes)
        : name_("numacre-channel-bench-" + std::to_string(getpid())),
          queue_(make(name_.c_str(), capacity, message_bytes)) {
        ipc::message_queue::remove(name_.c_str());
    }
    bool try_send(const void *message, std::size_t bytes) { return queue_.try_send(message, bytes, 0); }
    bool try_receive(void *message, std::size_t bytes) {
        ipc::message_queue::size_type received = 0;
        unsigned priority = 0;
        return queue_.try_receive(message, bytes, received, priority);
    }
    void send_block(void *block) {
        while (!try_send(static_cast<const void *>(&block), sizeof block)) relax();
    }
    void *receive_block() {
        void *block = nullptr;
        return try_receive(static_cast<void *>(&block), sizeof block) ? block : nullptr;
    }

private:
    static ipc::message_queue make(const char *name, unsigned capacity, std::size_t message_bytes) {
        ipc::message_queue::remove(name);
        return {ipc::create_only, name, capacity, message_bytes};
    }
    std::string name_;
    ipc::message_queue queue_;
};

class Pointers {
public:
    explicit Pointers(const Shape &shape)
        : blocks_(shape), full_(shape.capacity, sizeof(void *)), back_(shape.capacity, sizeof(void *)) {
        for (unsigned i = 0; i < shape.capacity; ++i) back_.send_block(blocks_.at(i));
    }
    class Sender {
    public:
        explicit Sender(Pointers &system) : full_(system.full_), back_(system.back_) {}
        template <class Fill>
        void send(unsigned count, Fill fill) {
            for (unsigned i = 0; i < count; ++i) {
                void *block = nullptr;
                while ((block = back_.receive_block()) == nullptr) relax();
                fill(block);
                full_.send_block(block);
            }
        }

    private:
        Queue &full_, &back_;
    };
    class Receiver {
    public:
        explicit Receiver(Pointers &system) : full_(system.full_), back_(system.back_) {}
        template <class Read>
        unsigned receive(unsigned most, Read read) {
            for (unsigned i = 0; i < most; ++i) {
                void *const block = full_.receive_block();
                if (block == nullptr) return i;
                read(block);
                back_.send_block(block);
            }
            return most;
        }

    private:
        Queue &full_, &back_;
    };
    // One block goes to and fro.
    class Asker {
    public:
        explicit Asker(Pointers &system) : full_(system.full_), back_(system.back_) {
            while (void *const block = back_.receive_block()) block_ = block;
        }
        template <class Fill, class Read>
        void ask(Fill fill, Read read) {
            fill(block_);
            full_.send_block(block_);
            while ((block_ = back_.receive_block()) == nullptr) relax();
            read(block_);
        }

    private:
        Queue &full_, &back_;
        void *block_ = nullptr;
    };
    class Answerer {
    public:
        explicit Answerer(Pointers &system) : full_(system.full_), back_(system.back_) {}
        template <class Read, class Fill>
        bool answer(Read read, Fill fill) {
            void *const block = full_.receive_block();
            if (block == nullptr) return false;
            read(block);
            fill(block);
            back_.send_block(block);
            return true;
        }

    private:
        Queue &full_, &back_;
    };

private:
    SharedBlocks blocks_;
    Queue full_, back_;
};

class Copies {
public:
    explicit Copies(const Shape &shape) : queue_(shape.capacity, kPayloadBytes) {}
    class Sender {
    public:
        explicit Sender(Copies &system) : queue_(system.queue_) {}
        template <class Fill>
        void send(unsigned count, Fill fill) {
            for (unsigned i = 0; i < count; ++i) {
                fill(payloads_.at(i));
                while (!queue_.try_send(payloads_.at(i), kPayloadBytes)) relax();
            }
        }

    private:
        Queue &queue_;
        OwnPayloads payloads_;
    };
    class Receiver {
    public:
        explicit Receiver(Copies &system) : queue_(system.queue_) {}
        template <class Read>
        unsigned receive(unsigned most, Read read) {
            for (unsigned i = 0; i < most; ++i) {
                if (!queue_.try_receive(payloads_.at(i), kPayloadBytes)) return i;
                read(payloads_.at(i));
            }
            return most;
        }

    private:
        Queue &queue_;
        OwnPayloads payloads_;
    };

private:
    Queue queue_;
};

const Registered pointers{entry_of<Pointers>("boost queue")};
const Registered copies{entry_of<Copies>("boost queue, copy")};

}  // namespace
}  // namespace numacre::bench
