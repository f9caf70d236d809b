// numacre's channels. The library has none yet, and the report says so.
//
// To be written here: the bodies of the classes, by numacre_channel_* and numacre.h; adaptor_numacre_ring.cpp has such
// classes over another queue. The loops, the checks and the report need nothing else.
#include <cstdint>
#include <string>

#include "measure.hpp"
#include "numacre/numacre.h"
#include "pool.hpp"

namespace numacre::bench {
namespace {

class Channel {
public:
    // Before the fork: a name for the ends to open, and no pool, because a forked process does not inherit it. A
    // channel has room for `shape.capacity` blocks.
    explicit Channel(const Shape &) { throw Unavailable("this libnumacre has no channels (numacre_channel_*)"); }

    // Attaches (Pool), and opens the sending end. send(): allocates `count` blocks of kPayloadBytes, fills them in, and
    // sends them by one call; relax() and again while the channel is full.
    class Sender {
    public:
        explicit Sender(Channel &) {}
        template <class Fill>
        void send(unsigned, Fill) {}
    };

    // Attaches, and opens the receiving end. receive(): takes up to `most` blocks by one call that does not sleep,
    // reads them, and frees them.
    class Receiver {
    public:
        explicit Receiver(Channel &) {}
        template <class Read>
        unsigned receive(unsigned, Read) {
            return 0;
        }
    };

    // Attach once, and open a channel for each direction; one block goes to and fro.
    class Asker {
    public:
        explicit Asker(Channel &) {}
        template <class Fill, class Read>
        void ask(Fill, Read) {}
    };
    class Answerer {
    public:
        explicit Answerer(Channel &) {}
        template <class Read, class Fill>
        bool answer(Read, Fill) {
            return false;
        }
    };

    // As Sender and Receiver, by the calls that wake and that sleep; the number stands in the first word of the block.
    class Waker {
    public:
        explicit Waker(Channel &) {}
        void wake(std::uint64_t) {}
    };
    class Waiter {
    public:
        explicit Waiter(Channel &) {}
        std::uint64_t wait() { return 0; }
    };
};

const Registered channel{entry_of<Channel>("numacre")};

}  // namespace
}  // namespace numacre::bench
