// What is no allocator: the harness alone (subtracted from everything) and one locked instruction (the floor).
#include <atomic>

#include "measure.hpp"

namespace numacre::bench {
namespace {

// The compiler may not know what it gets: it has to keep the loop.
inline void *opaque(void *pointer) {
    asm volatile("" : "+r"(pointer));
    return pointer;
}

class Empty {
public:
    static constexpr Traits kTraits{.has_blocks = false, .sharing = Sharing::by_attaching};
    explicit Empty(const Run &) {}
    class Thread {
    public:
        Thread(Empty &, std::uint64_t) {}
        void *allocate(std::size_t) { return opaque(this); }
        void free(void *block) { opaque(block); }
    };
};

class LockedInstruction {
public:
    static constexpr Traits kTraits{.has_blocks = false, .sharing = Sharing::by_attaching};
    explicit LockedInstruction(const Run &) {}
    class Thread {
    public:
        Thread(LockedInstruction &, std::uint64_t) {}
        void *allocate(std::size_t) {
            // relaxed: only its cost is wanted, nothing is handed over.
            word_.fetch_add(1, std::memory_order_relaxed);
            return opaque(this);
        }
        void free(void *block) { opaque(block); }

    private:
        alignas(64) std::atomic<std::uint64_t> word_{0};
    };
};

const Registered empty{"empty", measure<Empty>};
const Registered locked_instruction{"rmw", measure<LockedInstruction>};

}  // namespace
}  // namespace numacre::bench
