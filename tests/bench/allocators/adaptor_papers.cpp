// The buddy systems of the NBBS papers, lock-free and under a spin lock, as tests/papers has them.
#include <bit>

#include "measure.hpp"
#include "memory.hpp"
#include "numacre/shm/env.hpp"
#include "papers/buddy_spinlock.hpp"
#include "papers/nbbs_four_levels.hpp"
#include "papers/nbbs_one_level.hpp"
#include "papers/spinlock_variants.hpp"

namespace numacre::bench {

using namespace engine;
namespace {

template <class Allocator>
class Paper {
public:
    static constexpr Traits kTraits{.sharing = Sharing::by_fork};
    explicit Paper(const Run &run)
        : frames_(frames_of(run)),
          blocks_(frames_ * kFrameBytes, with(run)),
          tree_(Allocator::memory_bytes(frames_, kLargestOrder, kWorkersMax), with(run)),
          allocator_(frames_, kLargestOrder, kWorkersMax, tree_.get()) {}

    class Thread {
    public:
        Thread(Paper &adaptor, std::uint64_t number) : adaptor_(adaptor), number_(static_cast<unsigned>(number)) {}
        void *allocate(std::size_t bytes) {
            const auto order = static_cast<unsigned>(std::countr_zero(bytes / kFrameBytes));
            const auto frame = adaptor_.allocator_.allocate(order, number_);
            return frame ? adaptor_.blocks_.get() + *frame * kFrameBytes : nullptr;
        }
        void free(void *block) {
            const auto offset = static_cast<std::uint64_t>(static_cast<std::byte *>(block) - adaptor_.blocks_.get());
            adaptor_.allocator_.free(offset / kFrameBytes, number_);
        }

    private:
        Paper &adaptor_;
        unsigned number_;
    };

private:
    static constexpr unsigned kLargestOrder = std::countr_zero(kLargestBytes / kFrameBytes);
    static Memory::With with(const Run &run) {
        return run.processes == 0 ? Memory::With::threads : Memory::With::processes;
    }
    static std::uint64_t frames_of(const Run &run) {
        if (!std::has_single_bit(run.pool_bytes)) throw Unavailable("its pool must be a power of two");
        return run.pool_bytes / kFrameBytes;
    }

    std::uint64_t frames_;
    Memory blocks_, tree_;
    Allocator allocator_;  // itself without anything that changes
};

using Env = ProductionEnv;
const Registered one_level{"nbbs-1lvl", measure<Paper<papers::NbbsOneLevel<Env>>>};
const Registered four_levels{"nbbs-4lvl", measure<Paper<papers::NbbsFourLevels<Env>>>};
const Registered one_level_locked{"nbbs-1lvl-lock", measure<Paper<papers::OneLevelSpinLock<Env>>>};
const Registered four_levels_locked{"nbbs-4lvl-lock", measure<Paper<papers::FourLevelsSpinLock<Env>>>};
const Registered buddy_locked{"buddy-lock", measure<Paper<papers::BuddySpinLock<Env>>>};

}  // namespace
}  // namespace numacre::bench
