// Boost.Interprocess: the allocation algorithm and the lock of managed_shared_memory, over an anonymous mapping.
#include <boost/interprocess/indexes/iset_index.hpp>
#include <boost/interprocess/managed_external_buffer.hpp>
#include <boost/interprocess/mem_algo/rbtree_best_fit.hpp>
#include <boost/interprocess/sync/mutex_family.hpp>
#include <new>

#include "measure.hpp"
#include "memory.hpp"

namespace numacre::bench {
namespace {

namespace ipc = boost::interprocess;

// managed_external_buffer by default has no lock at all.
using Segment = ipc::basic_managed_external_buffer<char, ipc::rbtree_best_fit<ipc::mutex_family>, ipc::iset_index>;

class Boost {
public:
    static constexpr Traits kTraits{.sharing = Sharing::by_fork, .writes_into_blocks = true};
    // A header a block: an eighth more than the pool, so that it holds as many blocks as the others.
    explicit Boost(const Run &run) : Boost(run.pool_bytes + run.pool_bytes / 8) {}

    class Thread {
    public:
        Thread(Boost &adaptor, std::uint64_t) : segment_(adaptor.segment_) {}
        void *allocate(std::size_t bytes) { return segment_.allocate(bytes, std::nothrow); }
        void free(void *block) { segment_.deallocate(block); }

    private:
        Segment &segment_;
    };

private:
    explicit Boost(std::size_t bytes)
        : memory_(bytes, Memory::With::processes), segment_(ipc::create_only, memory_.get(), bytes) {}

    Memory memory_;
    Segment segment_;
};

const Registered boost_interprocess{"boost", measure<Boost>};

}  // namespace
}  // namespace numacre::bench
