#include <bit>
#include <cerrno>

#include "batches.hpp"
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
                                              .flags = 0,
                                              .object_bytes = 0,
                                              .object_count = 0};
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

// The calls for many blocks at once.
class Bulk {
public:
    static constexpr Traits kTraits{.sharing = Sharing::by_attaching};
    explicit Bulk(const Run &run) : pool_(run), held_bytes_(run.pool_bytes / 256) {}
    class Thread : public Passing {
    public:
        Thread(Bulk &adaptor, std::uint64_t)
            : Passing(adaptor.pool_.get()), batches_({adaptor.pool_.get()}, adaptor.held_bytes_) {}
        [[gnu::always_inline]] void *allocate(std::size_t bytes) { return batches_.allocate(bytes); }
        [[gnu::always_inline]] void free(void *block) { batches_.free(block); }

    private:
        struct BulkCalls {
            numacre_pool *pool;
            bool take(void **blocks, unsigned count, std::size_t bytes) const {
                return numacre_alloc_bulk(pool, bytes, blocks, count) == 0;
            }
            void give_back(void *const *blocks, unsigned count) const {
                if (const int error = numacre_free_bulk(pool, blocks, count); error != 0) [[unlikely]]
                    give_up("numacre_free_bulk", error);
            }
        };
        Batches<BulkCalls> batches_;
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
