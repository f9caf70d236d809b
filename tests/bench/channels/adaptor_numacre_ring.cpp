// Blocks of a numacre pool, passed by their references in an rte_ring (mp_mc): how programs pass blocks on without a
// channel. Two ways to recirculate: the receiver frees and the sender allocates, or the receiver passes the block back.
// Needs a daemon ($NUMACRE_RUNTIME_DIR); each process is a client.
#include <rte_ring.h>

#include <array>
#include <string>

#include "measure.hpp"
#include "numacre/numacre.h"
#include "pool.hpp"
#include "rings.hpp"

namespace numacre::bench {
namespace {

using Blocks = std::array<void *, kBurstMax>;
using Refs = std::array<numacre_ref, kBurstMax>;

// A reference travels in a ring of pointers: both have 64 bits.
static_assert(sizeof(numacre_ref) == sizeof(void *));
void **as_pointers(Refs &refs) {
    return reinterpret_cast<void **>(refs.data());
}

void enqueue(rte_ring *ring, Refs &refs, unsigned count) {
    while (rte_ring_enqueue_bulk(ring, as_pointers(refs), count, nullptr) == 0) relax();
}

class Rings {
public:
    explicit Rings(const Shape &shape)
        : capacity(shape.capacity),
          memory_(2 * ring_bytes(shape.capacity), shape.hugepages),
          full(make_ring(memory_.get(), shape.capacity, 0)),
          back(make_ring(memory_.get() + ring_bytes(shape.capacity), shape.capacity, 0)) {
        require_daemon();
    }

    // One block goes to and fro.
    class Asker {
    public:
        explicit Asker(Rings &system) : full_(system.full), back_(system.back) {
            must("numacre_alloc_ref_bulk", numacre_alloc_ref_bulk(pool_.get(), kPayloadBytes, &block_, &ref_[0], 1));
        }
        template <class Fill, class Read>
        void ask(Fill fill, Read read) {
            fill(block_);
            enqueue(full_, ref_, 1);
            while (rte_ring_dequeue(back_, as_pointers(ref_)) != 0) relax();
            must("numacre_take", numacre_take(pool_.get(), ref_[0], &block_));
            read(block_);
            must("numacre_ref_bulk", numacre_ref_bulk(pool_.get(), &block_, ref_.data(), 1));
        }

    private:
        Pool pool_;
        rte_ring *full_, *back_;
        void *block_ = nullptr;
        Refs ref_{};
    };

    class Answerer {
    public:
        explicit Answerer(Rings &system) : full_(system.full), back_(system.back) {}
        template <class Read, class Fill>
        bool answer(Read read, Fill fill) {
            Refs ref{};
            if (rte_ring_dequeue(full_, as_pointers(ref)) != 0) return false;
            void *block = nullptr;
            must("numacre_take", numacre_take(pool_.get(), ref[0], &block));
            read(block);
            must("numacre_ref_bulk", numacre_ref_bulk(pool_.get(), &block, ref.data(), 1));
            fill(block);
            enqueue(back_, ref, 1);
            return true;
        }

    private:
        Pool pool_;
        rte_ring *full_, *back_;
    };

    unsigned capacity;

private:
    SharedMemory memory_;

public:
    rte_ring *full, *back;
};

// The receiver frees, the sender allocates.
class FreedBlocks : public Rings {
public:
    using Rings::Rings;
    class Sender {
    public:
        explicit Sender(FreedBlocks &system) : full_(system.full) {}
        template <class Fill>
        void send(unsigned count, Fill fill) {
            Blocks blocks;
            Refs refs;
            must("numacre_alloc_ref_bulk",
                 numacre_alloc_ref_bulk(pool_.get(), kPayloadBytes, blocks.data(), refs.data(), count));
            for (unsigned i = 0; i < count; ++i) fill(blocks[i]);
            enqueue(full_, refs, count);
        }

    private:
        Pool pool_;
        rte_ring *full_;
    };
    class Receiver {
    public:
        explicit Receiver(FreedBlocks &system) : full_(system.full) {}
        template <class Read>
        unsigned receive(unsigned most, Read read) {
            Refs refs;
            const unsigned count = rte_ring_dequeue_burst(full_, as_pointers(refs), most, nullptr);
            if (count == 0) return 0;
            Blocks blocks;
            must("numacre_take_bulk", numacre_take_bulk(pool_.get(), refs.data(), blocks.data(), count));
            for (unsigned i = 0; i < count; ++i) read(blocks[i]);
            must("numacre_free_bulk", numacre_free_bulk(pool_.get(), blocks.data(), count));
            return count;
        }

    private:
        Pool pool_;
        rte_ring *full_;
    };
};

// The receiver passes the blocks back, by new references.
class ReturnedBlocks : public Rings {
public:
    using Rings::Rings;
    class Sender {
    public:
        explicit Sender(ReturnedBlocks &system) : full_(system.full), back_(system.back), fresh_(system.capacity) {}
        template <class Fill>
        void send(unsigned count, Fill fill) {
            Blocks blocks;
            Refs refs;
            get(blocks, refs, count);
            for (unsigned i = 0; i < count; ++i) fill(blocks[i]);
            enqueue(full_, refs, count);
        }

    private:
        void get(Blocks &blocks, Refs &refs, unsigned count) {
            if (fresh_ >= count) {  // as many blocks as the other systems have
                must("numacre_alloc_ref_bulk",
                     numacre_alloc_ref_bulk(pool_.get(), kPayloadBytes, blocks.data(), refs.data(), count));
                fresh_ -= count;
                return;
            }
            while (rte_ring_dequeue_bulk(back_, as_pointers(refs), count, nullptr) == 0) relax();
            must("numacre_take_bulk", numacre_take_bulk(pool_.get(), refs.data(), blocks.data(), count));
            must("numacre_ref_bulk", numacre_ref_bulk(pool_.get(), blocks.data(), refs.data(), count));
        }
        Pool pool_;
        rte_ring *full_, *back_;
        unsigned fresh_;
    };
    class Receiver {
    public:
        explicit Receiver(ReturnedBlocks &system) : full_(system.full), back_(system.back) {}
        template <class Read>
        unsigned receive(unsigned most, Read read) {
            Refs refs;
            const unsigned count = rte_ring_dequeue_burst(full_, as_pointers(refs), most, nullptr);
            if (count == 0) return 0;
            Blocks blocks;
            must("numacre_take_bulk", numacre_take_bulk(pool_.get(), refs.data(), blocks.data(), count));
            for (unsigned i = 0; i < count; ++i) read(blocks[i]);
            must("numacre_ref_bulk", numacre_ref_bulk(pool_.get(), blocks.data(), refs.data(), count));
            enqueue(back_, refs, count);
            return count;
        }

    private:
        Pool pool_;
        rte_ring *full_, *back_;
    };
};

const Registered freed{entry_of<FreedBlocks>("numacre+ring")};
// Its round trip is that of the former.
const Registered returned{{"numacre+ring back", one_way<ReturnedBlocks>, nullptr, nullptr}};

}  // namespace
}  // namespace numacre::bench
