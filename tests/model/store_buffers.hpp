// MemoryMode::total_store_order: the stores of each thread that are on their way to memory, first in first out.
#pragma once

#include <cstdint>

#include "shared_words.hpp"
#include "sim_env.hpp"

namespace numacre::model {

class StoreBuffers {
public:
    // The buffers are shared words themselves, so they are hashed and undone like all else.
    StoreBuffers(SharedWords &words, unsigned threads, unsigned stores_max);

    bool is_empty(int thread) const { return *count_of(thread) == 0; }
    bool are_empty() const;
    bool is_full(int thread) const { return *count_of(thread) == stores_max_; }
    // Not into a full one.
    void put(int thread, const Request &store);
    // Out of one that is not empty: a store to perform.
    Request take_oldest(int thread);
    void lose_all(int thread);
    // The value of the thread's own youngest store to the place, if it is still in the buffer.
    bool forwards(int thread, const Request &load, std::uint64_t &value) const;

private:
    static constexpr unsigned kBytesShift = 56;
    struct Store {
        std::uint64_t address_and_bytes;  // bytes above kBytesShift
        std::uint64_t value;
    };

    std::uint64_t *count_of(int thread) const {
        return buffers_ + static_cast<std::size_t>(thread) * (1 + 2 * stores_max_);
    }
    Store *stores_of(int thread) const { return reinterpret_cast<Store *>(count_of(thread) + 1); }

    SharedWords &words_;
    unsigned threads_;
    std::size_t stores_max_;
    std::uint64_t *buffers_;  // per thread a count and so many Store
};

}  // namespace numacre::model
