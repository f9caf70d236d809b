// An allocator that stamps its blocks: two owners of one byte range are noticed by whoever comes second.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "adaptor.hpp"
#include "stage.hpp"

namespace numacre::bench {

// A stamp stands at every base size of a block, so that a block inside another one is noticed too. The first one also
// holds how many there are. What is free has no stamp.
template <class Adaptor>
class Checked {
public:
    static constexpr Traits kTraits = Adaptor::kTraits;

    Checked(Adaptor &adaptor, const Run &run, Stage &stage) : adaptor_(adaptor), step_(run.size_bytes), stage_(stage) {}

    class Thread {
    public:
        Thread(Checked &checked, std::uint64_t number) : checked_(checked), thread_(checked.adaptor_, number) {}
        void *allocate(std::size_t bytes) {
            void *const block = thread_.allocate(bytes);
            if (block == nullptr) return nullptr;
            const std::uint64_t stamps = kTraits.fixed_size ? 1 : bytes / checked_.step_;
            for (std::uint64_t i = 0; i < stamps; ++i) {
                // acq_rel, here and in free: whoever sees a stamp or its absence sees it in the order of the owners.
                if (is_stamp(word(block, i).exchange(kStamp | (i == 0 ? stamps : 0), std::memory_order_acq_rel)))
                    checked_.count_overlap();
            }
            return block;
        }
        void free(void *block) {
            const std::uint64_t first = word(block, 0).load(std::memory_order_acquire);
            const std::uint64_t stamps = is_stamp(first) ? first & kCount : 1;
            if (stamps == 0) checked_.count_overlap();
            for (std::uint64_t i = 0; i < stamps; ++i) {
                const std::uint64_t found = word(block, i).exchange(0, std::memory_order_acq_rel);
                if (found != (kStamp | (i == 0 ? stamps : 0))) checked_.count_overlap();
            }
            thread_.free(block);
        }
        // The stamps stay in the block.
        void *pass_on(void *block)
            requires Passes<typename Adaptor::Thread>
        {
            return thread_.pass_on(block);
        }
        void *take_over(void *passed)
            requires Passes<typename Adaptor::Thread>
        {
            return thread_.take_over(passed);
        }

    private:
        std::atomic_ref<std::uint64_t> word(void *block, std::uint64_t stamp) const {
            return std::atomic_ref(
                *reinterpret_cast<std::uint64_t *>(static_cast<std::byte *>(block) + stamp * checked_.step_));
        }

        Checked &checked_;
        typename Adaptor::Thread thread_;
    };

private:
    static constexpr std::uint64_t kStamp = 0x9d3fb6c25e81a700;
    static constexpr std::uint64_t kCount = 0xff;
    static constexpr bool is_stamp(std::uint64_t word) { return (word & ~kCount) == kStamp; }
    // relaxed: read once all workers have ended.
    void count_overlap() { stage_.overlaps.fetch_add(1, std::memory_order_relaxed); }

    Adaptor &adaptor_;
    std::uint64_t step_;
    Stage &stage_;
};

}  // namespace numacre::bench
