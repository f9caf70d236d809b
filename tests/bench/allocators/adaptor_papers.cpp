// The buddy systems of the NBBS papers, lock-free and under a spin lock, as tests/papers has them.
#include <sys/mman.h>

#include <atomic>
#include <bit>

#include "measure.hpp"
#include "numacre/shm/env.hpp"
#include "papers/buddy_spinlock.hpp"
#include "papers/nbbs_four_levels.hpp"
#include "papers/nbbs_one_level.hpp"
#include "papers/spinlock_variants.hpp"

namespace numacre::bench {
namespace {

template <class Allocator>
class Paper {
public:
    static constexpr Traits kTraits{};
    explicit Paper(const Run &run)
        : frames_(frames_of(run)), allocator_(frames_, std::countr_zero(kLargestBytes / kFrameBytes), kWorkersMax) {
        void *const memory = mmap(nullptr, frames_ * kFrameBytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) throw std::runtime_error("no memory for the pool");
        blocks_ = static_cast<std::byte *>(memory);
    }
    ~Paper() { munmap(blocks_, frames_ * kFrameBytes); }
    Paper(const Paper &) = delete;
    Paper &operator=(const Paper &) = delete;

    class Thread {
    public:
        // relaxed: only the number counts.
        explicit Thread(Paper &adaptor)
            : adaptor_(adaptor),
              number_(adaptor.threads_.fetch_add(1, std::memory_order_relaxed) % static_cast<unsigned>(kWorkersMax)) {}
        void *allocate(std::size_t bytes) {
            const auto order = static_cast<unsigned>(std::countr_zero(bytes / kFrameBytes));
            const auto frame = adaptor_.allocator_.allocate(order, number_);
            return frame ? adaptor_.blocks_ + *frame * kFrameBytes : nullptr;
        }
        void free(void *block) {
            const auto offset = static_cast<std::uint64_t>(static_cast<std::byte *>(block) - adaptor_.blocks_);
            adaptor_.allocator_.free(offset / kFrameBytes, number_);
        }

    private:
        Paper &adaptor_;
        unsigned number_;
    };

private:
    static std::uint64_t frames_of(const Run &run) {
        if (!std::has_single_bit(run.pool_bytes)) throw Unavailable("its pool must be a power of two");
        return run.pool_bytes / kFrameBytes;
    }

    std::uint64_t frames_;
    Allocator allocator_;
    std::atomic<unsigned> threads_{0};
    std::byte *blocks_ = nullptr;
};

using Env = ProductionEnv;
const Registered one_level{"nbbs-1lvl", measure<Paper<papers::NbbsOneLevel<Env>>>};
const Registered four_levels{"nbbs-4lvl", measure<Paper<papers::NbbsFourLevels<Env>>>};
const Registered one_level_locked{"nbbs-1lvl-lock", measure<Paper<papers::OneLevelSpinLock<Env>>>};
const Registered four_levels_locked{"nbbs-4lvl-lock", measure<Paper<papers::FourLevelsSpinLock<Env>>>};
const Registered buddy_locked{"buddy-lock", measure<Paper<papers::BuddySpinLock<Env>>>};

}  // namespace
}  // namespace numacre::bench
