// Boost.Interprocess: the allocation algorithm and the lock of managed_shared_memory, over an anonymous mapping.
#include <sys/mman.h>

#include <boost/interprocess/indexes/iset_index.hpp>
#include <boost/interprocess/managed_external_buffer.hpp>
#include <boost/interprocess/mem_algo/rbtree_best_fit.hpp>
#include <boost/interprocess/sync/mutex_family.hpp>
#include <new>

#include "measure.hpp"

namespace numacre::bench {
namespace {

namespace ipc = boost::interprocess;

// managed_external_buffer by default has no lock at all.
using Segment = ipc::basic_managed_external_buffer<char, ipc::rbtree_best_fit<ipc::mutex_family>, ipc::iset_index>;

class Boost {
public:
    static constexpr Traits kTraits{.writes_into_blocks = true};
    // A header a block: an eighth more than the pool, so that it holds as many blocks as the others.
    explicit Boost(const Run &run) : bytes_(run.pool_bytes + run.pool_bytes / 8) {
        memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory_ == MAP_FAILED) throw std::runtime_error("no memory for the pool");
        segment_ = Segment(ipc::create_only, memory_, bytes_);
    }
    ~Boost() { munmap(memory_, bytes_); }
    Boost(const Boost &) = delete;
    Boost &operator=(const Boost &) = delete;

    class Thread {
    public:
        explicit Thread(Boost &adaptor) : segment_(adaptor.segment_) {}
        void *allocate(std::size_t bytes) { return segment_.allocate(bytes, std::nothrow); }
        void free(void *block) { segment_.deallocate(block); }

    private:
        Segment &segment_;
    };

private:
    std::size_t bytes_;
    void *memory_ = nullptr;
    Segment segment_;
};

const Registered boost_interprocess{"boost", measure<Boost>};

}  // namespace
}  // namespace numacre::bench
