#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>

#include "measure.hpp"
#include "numacre/inline.h"
#include "numacre/numacre.h"

namespace numacre::bench {
namespace {

class Pool {
public:
    explicit Pool(const Run &run) {
        const numacre_private_options options{.struct_size = sizeof options,
                                              .capacity_bytes = run.pool_bytes,
                                              .frame_bytes = kFrameBytes,
                                              .largest_block_bytes = kLargestBytes,
                                              .flags = 0};
        const int error = run.attach.empty() ? numacre_open_private(&options, &pool_)
                                             : numacre_attach(run.attach.c_str(), nullptr, &pool_);
        if (error != 0) throw std::runtime_error(std::string("no pool: ") + numacre_last_error());
    }
    ~Pool() { numacre_detach(pool_); }
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    numacre_pool *get() const { return pool_; }

private:
    numacre_pool *pool_ = nullptr;
};

// From process to process a block goes by its reference, which stands in a pointer's place.
class Passing {
public:
    void *pass_on(void *block) const {
        const numacre_ref ref = numacre_ref_of(pool_, block);
        if (ref == NUMACRE_REF_NULL) [[unlikely]]
            give_up("numacre_ref_of", -EPERM);
        return std::bit_cast<void *>(ref);
    }
    void *take_over(void *passed) const {
        void *block = nullptr;
        if (const int error = numacre_take(pool_, std::bit_cast<numacre_ref>(passed), &block); error != 0) [[unlikely]]
            give_up("numacre_take", error);
        return block;
    }

protected:
    explicit Passing(numacre_pool *pool) : pool_(pool) {}

    numacre_pool *pool_;
};

// As applications call it: functions, or the same compiled into the caller.
enum class Calls { functions, inlined };
template <Calls kCalls>
class Cached {
public:
    static constexpr Traits kTraits{.sharing = Sharing::by_attaching};
    explicit Cached(const Run &run) : pool_(run) {}
    class Thread : public Passing {
    public:
        Thread(Cached &adaptor, std::uint64_t) : Passing(adaptor.pool_.get()) {}
        [[gnu::always_inline]] void *allocate(std::size_t bytes) {
            void *block = nullptr;
            const int error = kCalls == Calls::inlined ? numacre_alloc_inline(pool_, bytes, &block)
                                                       : numacre_alloc(pool_, bytes, &block);
            return error == 0 ? block : nullptr;
        }
        [[gnu::always_inline]] void free(void *block) {
            const int error = kCalls == Calls::inlined ? numacre_free_inline(pool_, block) : numacre_free(pool_, block);
            if (error != 0) [[unlikely]]
                give_up("numacre_free", error);
        }
    };

private:
    Pool pool_;
};

// Every call goes to the shared tree.
class Tree {
public:
    static constexpr Traits kTraits{.sharing = Sharing::by_attaching};
    explicit Tree(const Run &run) : pool_(run) {}
    class Thread : public Passing {
    public:
        Thread(Tree &adaptor, std::uint64_t) : Passing(adaptor.pool_.get()) {}
        void *allocate(std::size_t bytes) {
            void *block = nullptr;
            return numacre_alloc_on(pool_, -1, bytes, NUMACRE_UNCACHED, &block) == 0 ? block : nullptr;
        }
        void free(void *block) {
            if (const int error = numacre_free_uncached(pool_, block); error != 0) [[unlikely]]
                give_up("numacre_free_uncached", error);
        }
    };

private:
    Pool pool_;
};

// The calls for many blocks at once. Blocks are taken from one batch and freed into another: each goes through the
// pool.
class Bulk {
public:
    static constexpr Traits kTraits{.sharing = Sharing::by_attaching};
    explicit Bulk(const Run &run) : pool_(run), held_bytes_(run.pool_bytes / 256) {}
    class Thread : public Passing {
    public:
        Thread(Bulk &adaptor, std::uint64_t) : Passing(adaptor.pool_.get()), held_bytes_(adaptor.held_bytes_) {}
        ~Thread() {
            for (Batch &ready : ready_) give_back(ready);
            give_back(freed_);
        }
        Thread(const Thread &) = delete;
        Thread &operator=(const Thread &) = delete;

        void *allocate(std::size_t bytes) {
            Batch &ready = ready_[static_cast<std::size_t>(std::countr_zero(bytes / kFrameBytes))];
            if (ready.count == 0 && !refill(ready, bytes)) return nullptr;
            return ready.blocks[--ready.count];
        }
        void free(void *block) {
            freed_.blocks[freed_.count++] = block;
            if (freed_.count == kBatch) give_back(freed_);
        }

    private:
        static constexpr unsigned kBatch = 32;
        static constexpr std::size_t kSizes = std::bit_width(kLargestBytes / kFrameBytes);
        struct Batch {
            std::array<void *, kBatch> blocks;
            unsigned count = 0;
        };

        bool refill(Batch &ready, std::size_t bytes) {
            // Of large blocks a whole batch would be a good part of a small pool.
            const unsigned wanted = static_cast<unsigned>(std::clamp<std::size_t>(held_bytes_ / bytes, 1, kBatch));
            if (take(ready, bytes, wanted)) return true;
            give_back(freed_);
            return take(ready, bytes, wanted) || take(ready, bytes, 1);
        }
        bool take(Batch &ready, std::size_t bytes, unsigned count) {
            if (numacre_alloc_bulk(pool_, bytes, ready.blocks.data(), count) != 0) return false;
            ready.count = count;
            return true;
        }
        void give_back(Batch &batch) {
            if (const int error = numacre_free_bulk(pool_, batch.blocks.data(), batch.count); error != 0) [[unlikely]]
                give_up("numacre_free_bulk", error);
            batch.count = 0;
        }

        std::size_t held_bytes_;
        std::array<Batch, kSizes> ready_;
        Batch freed_;
    };

private:
    Pool pool_;
    std::size_t held_bytes_;
};

const Registered by_default{"numacre", measure<Cached<Calls::functions>>};
const Registered inlined{"numacre-inline", measure<Cached<Calls::inlined>>};
const Registered tree{"numacre-tree", measure<Tree>};
const Registered bulk{"numacre-bulk", measure<Bulk>};

}  // namespace
}  // namespace numacre::bench
