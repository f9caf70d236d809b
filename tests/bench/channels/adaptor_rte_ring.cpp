// DPDK's rte_ring in shared memory, without EAL: a ring of pointers to blocks there, and a ring in which the receiver
// gives the blocks back. The blocks lie in the same memory.
#include <rte_ring.h>

#include <array>
#include <cstring>
#include <string>

#include "measure.hpp"
#include "rings.hpp"

namespace numacre::bench {
namespace {

template <unsigned kFlags>
class RteRing {
public:
    explicit RteRing(const Shape &shape)
        : capacity_(shape.capacity),
          memory_(2 * ring_bytes(shape.capacity) + shape.capacity * kPayloadBytes, shape.hugepages),
          full_(make_ring(memory_.get(), shape.capacity, kFlags)),
          back_(make_ring(memory_.get() + ring_bytes(shape.capacity), shape.capacity, kFlags)) {
        std::byte *const blocks = memory_.get() + 2 * ring_bytes(capacity_);
        for (unsigned i = 0; i < capacity_; ++i)
            if (rte_ring_enqueue(back_, blocks + i * kPayloadBytes) != 0)
                throw std::runtime_error("a ring is too small");
    }

    class Sender {
    public:
        explicit Sender(RteRing &system) : full_(system.full_), back_(system.back_) {}
        template <class Fill>
        void send(unsigned count, Fill fill) {
            std::array<void *, kBurstMax> blocks;
            while (rte_ring_dequeue_bulk(back_, blocks.data(), count, nullptr) == 0) relax();
            for (unsigned i = 0; i < count; ++i) fill(blocks[i]);
            while (rte_ring_enqueue_bulk(full_, blocks.data(), count, nullptr) == 0) relax();
        }

    private:
        rte_ring *full_, *back_;
    };

    class Receiver {
    public:
        explicit Receiver(RteRing &system) : full_(system.full_), back_(system.back_) {}
        template <class Read>
        unsigned receive(unsigned most, Read read) {
            std::array<void *, kBurstMax> blocks;
            const unsigned count = rte_ring_dequeue_burst(full_, blocks.data(), most, nullptr);
            if (count == 0) return 0;
            for (unsigned i = 0; i < count; ++i) read(blocks[i]);
            while (rte_ring_enqueue_bulk(back_, blocks.data(), count, nullptr) == 0) relax();
            return count;
        }

    private:
        rte_ring *full_, *back_;
    };

    // One block goes to and fro.
    class Asker {
    public:
        explicit Asker(RteRing &system) : full_(system.full_), back_(system.back_) {
            while (rte_ring_dequeue(back_, &block_) == 0) {
            }
        }
        template <class Fill, class Read>
        void ask(Fill fill, Read read) {
            fill(block_);
            while (rte_ring_enqueue(full_, block_) != 0) relax();
            while (rte_ring_dequeue(back_, &block_) != 0) relax();
            read(block_);
        }

    private:
        rte_ring *full_, *back_;
        void *block_ = nullptr;
    };

    class Answerer {
    public:
        explicit Answerer(RteRing &system) : full_(system.full_), back_(system.back_) {}
        template <class Read, class Fill>
        bool answer(Read read, Fill fill) {
            void *block = nullptr;
            if (rte_ring_dequeue(full_, &block) != 0) return false;
            read(block);
            fill(block);
            while (rte_ring_enqueue(back_, block) != 0) relax();
            return true;
        }

    private:
        rte_ring *full_, *back_;
    };

protected:
    unsigned capacity_;
    SharedMemory memory_;
    rte_ring *full_, *back_;
};

// As with an rte_mempool that has a cache: blocks come back by 32, whatever the burst.
class Cached : public RteRing<0> {
public:
    using RteRing::RteRing;
    class Sender {
    public:
        explicit Sender(Cached &system) : full_(system.full_), back_(system.back_) {}
        template <class Fill>
        void send(unsigned count, Fill fill) {
            while (cached_ < count) refill();
            cached_ -= count;
            void **const blocks = &cache_[cached_];
            for (unsigned i = 0; i < count; ++i) fill(blocks[i]);
            while (rte_ring_enqueue_bulk(full_, blocks, count, nullptr) == 0) relax();
        }

    private:
        void refill() {
            const unsigned got = rte_ring_dequeue_burst(back_, &cache_[cached_], kBurstMax, nullptr);
            cached_ += got;
            if (got == 0) relax();
        }
        rte_ring *full_, *back_;
        std::array<void *, std::size_t{2} * kBurstMax> cache_{};
        unsigned cached_ = 0;
    };
    class Receiver {
    public:
        explicit Receiver(Cached &system) : full_(system.full_), back_(system.back_) {}
        template <class Read>
        unsigned receive(unsigned most, Read read) {
            const unsigned count = rte_ring_dequeue_burst(full_, &cache_[cached_], most, nullptr);
            if (count == 0) return 0;
            for (unsigned i = 0; i < count; ++i) read(cache_[cached_ + i]);
            cached_ += count;
            if (cached_ < kBurstMax) return count;
            while (rte_ring_enqueue_bulk(back_, cache_.data(), cached_, nullptr) == 0) relax();
            cached_ = 0;
            return count;
        }

    private:
        rte_ring *full_, *back_;
        std::array<void *, std::size_t{2} * kBurstMax> cache_{};
        unsigned cached_ = 0;
    };
};

// Its round trip is that of rte_ring mp_mc.
const Registered cached{{"rte_ring cached", one_way<Cached>, nullptr, nullptr}};
const Registered mp_mc{entry_of<RteRing<0>>("rte_ring mp_mc")};
const Registered sp_sc{entry_of<RteRing<RING_F_SP_ENQ | RING_F_SC_DEQ>>("rte_ring sp_sc")};
const Registered rts{entry_of<RteRing<RING_F_MP_RTS_ENQ | RING_F_MC_RTS_DEQ>>("rte_ring rts")};

}  // namespace
}  // namespace numacre::bench
