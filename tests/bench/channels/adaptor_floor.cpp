// The machine's and the kernel's own part: a word that goes from one CPU to the other and back, and a bare futex.
// Neither is a queue.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <new>

#include "measure.hpp"

namespace numacre::bench {
namespace {

// A word for each direction, on a cache line of its own, and one block of payload.
class Line {
    struct Shared {
        alignas(kLineBytes) std::atomic<std::uint64_t> request{0};
        alignas(kLineBytes) std::atomic<std::uint64_t> answer{0};
        alignas(kLineBytes) std::byte payload[kPayloadBytes]{};
    };

public:
    explicit Line(const Shape &) : memory_(sizeof(Shared), false), shared_(new (memory_.get()) Shared) {}
    class Asker {
    public:
        explicit Asker(Line &system) : shared_(*system.shared_) {}
        template <class Fill, class Read>
        void ask(Fill fill, Read read) {
            fill(shared_.payload);
            shared_.request.store(++asked_, std::memory_order_release);
            while (shared_.answer.load(std::memory_order_acquire) != asked_) relax();
            read(shared_.payload);
        }

    private:
        Shared &shared_;
        std::uint64_t asked_ = 0;
    };
    class Answerer {
    public:
        explicit Answerer(Line &system) : shared_(*system.shared_) {}
        template <class Read, class Fill>
        bool answer(Read read, Fill fill) {
            const std::uint64_t request = shared_.request.load(std::memory_order_acquire);
            if (request == answered_) return false;
            read(shared_.payload);
            fill(shared_.payload);
            answered_ = request;
            shared_.answer.store(request, std::memory_order_release);
            return true;
        }

    private:
        Shared &shared_;
        std::uint64_t answered_ = 0;
    };

private:
    SharedMemory memory_;
    Shared *shared_;
};

// The yardstick of every wake-up.
class Futex {
public:
    explicit Futex(const Shape &) : memory_(sizeof(Word), false), word_(new (memory_.get()) Word{0}) {}
    class Waker {
    public:
        explicit Waker(Futex &system) : word_(*system.word_) {}
        void wake(std::uint64_t sequence) {
            word_.store(static_cast<std::uint32_t>(sequence) + 1, std::memory_order_release);
            syscall(SYS_futex, &word_, FUTEX_WAKE, 1, nullptr, nullptr, 0);
        }

    private:
        std::atomic<std::uint32_t> &word_;
    };
    class Waiter {
    public:
        explicit Waiter(Futex &system) : word_(*system.word_) {}
        std::uint64_t wait() {
            std::uint32_t word = 0;
            while ((word = word_.load(std::memory_order_acquire)) == last_)
                syscall(SYS_futex, &word_, FUTEX_WAIT, last_, nullptr, nullptr, 0);
            last_ = word;
            return word - 1;
        }

    private:
        std::atomic<std::uint32_t> &word_;
        std::uint32_t last_ = 0;
    };

private:
    using Word = std::atomic<std::uint32_t>;
    SharedMemory memory_;
    Word *word_;
};

const Registered line{{"cache line", nullptr, round_trip<Line>, nullptr}};
const Registered futex{entry_of<Futex>("futex")};

}  // namespace
}  // namespace numacre::bench
