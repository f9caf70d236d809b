// The interface of a system that carries messages from one process to another, and the list of the systems that this
// executable has.
//
// A system is a class of this shape; everything is inlined into the measuring loops:
//
//     class System {
//     public:
//         explicit System(const Shape &shape);  // before the processes are forked; throws Unavailable
//         class Sender {                        // made and used in the sending process
//         public:
//             explicit Sender(System &system);  // throws Unavailable
//             // Sends `count` messages (up to kBurstMax) in order. Calls fill(block) for each before others see it.
//             // Waits, awake, while the queue is full or no buffer has come back.
//             template <class Fill> void send(unsigned count, Fill fill);
//         };
//         class Receiver {                      // made and used in the receiving process
//         public:
//             explicit Receiver(System &system);  // throws Unavailable
//             // Receives up to `most` messages, calls read(block) for each in order, and gives the buffers back.
//             // Returns their number; 0: none is there. Does not sleep.
//             template <class Read> unsigned receive(unsigned most, Read read);
//         };
//
//         // Optional: a round trip in which the buffer itself goes back. Without these two classes, a round trip goes
//         // through two systems, one for each direction.
//         class Asker {
//         public:
//             explicit Asker(System &system);
//             template <class Fill, class Read> void ask(Fill fill, Read read);  // waits for the answer, awake
//         };
//         class Answerer {
//         public:
//             explicit Answerer(System &system);
//             template <class Read, class Fill> bool answer(Read read, Fill fill);  // false: nothing to answer
//         };
//
//         // Optional: a receiver that sleeps.
//         class Waker {
//         public:
//             explicit Waker(System &system);
//             void wake(std::uint64_t sequence);  // sends a message that carries the number, and wakes the receiver
//         };
//         class Waiter {
//         public:
//             explicit Waiter(System &system);
//             std::uint64_t wait();  // sleeps in the kernel until there is a message; returns its number
//         };
//     };
//
// A system that has only Waker and Waiter is measured only there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace numacre::bench {

inline constexpr std::size_t kPayloadBytes = 2048, kLineBytes = 64;
inline constexpr unsigned kBurstMax = 32;

// The demands on a system.
struct Shape {
    unsigned capacity = 256;  // messages that may be under way; a power of two, at least twice kBurstMax
    bool hugepages = false;   // for memory that this program itself makes
};

// A fault that the sender makes on purpose, to show that the checks find it.
enum class Planted { nothing, lost, extra, swapped };

// One measurement.
struct Run {
    Shape shape;
    unsigned burst = 1;
    bool written = false;  // each cache line of the payload is written by the sender and read by the receiver
    std::uint64_t milliseconds = 100;
    Planted planted = Planted::nothing;
};

struct Outcome {
    // One-way: nanoseconds a message, the median of parts that are twice the queue's length. Round trip: the median.
    // Sleeping receiver: the median from just before the send until the receiver has returned.
    double ns = 0;
    double mean_ns = 0;  // one-way: all the time of all messages
    double p999_ns = 0;  // 99.9 percentile; not of one-way
    double send_ns = 0;  // sleeping receiver: the median time of the send
    std::uint64_t messages = 0;
    std::uint64_t lost = 0, extra = 0, misplaced = 0;  // messages; of round trips: requests and answers
};

// Not an error: this system cannot be measured here. Says why.
struct Unavailable : std::runtime_error {
    using std::runtime_error::runtime_error;
};

using Measure = Outcome (*)(const Run &run);

struct Entry {
    std::string_view name;
    Measure one_way, round_trip, wake_up;  // nullptr: not of this system
};

inline std::vector<Entry> &entries() {
    static std::vector<Entry> list;
    return list;
}

// An adaptor's file adds what it has; which files are compiled is CMake's choice.
struct Registered {
    explicit Registered(const Entry &entry) noexcept { entries().push_back(entry); }
};

}  // namespace numacre::bench
