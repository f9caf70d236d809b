#include "store_buffers.hpp"

#include "die.hpp"

namespace numacre::model {

StoreBuffers::StoreBuffers(SharedWords &words, unsigned threads, unsigned stores_max)
    : words_(words),
      threads_(threads),
      stores_max_(stores_max),
      buffers_(static_cast<std::uint64_t *>(words.allocate(threads * (1 + 2 * std::size_t{stores_max}) * 8, 8))) {}

bool StoreBuffers::are_empty() const {
    for (unsigned thread = 0; thread < threads_; ++thread)
        if (!is_empty(static_cast<int>(thread))) return false;
    return true;
}

void StoreBuffers::put(int thread, const Request &store) {
    std::uint64_t *const count = count_of(thread);
    auto *const entry = reinterpret_cast<std::uint64_t *>(stores_of(thread) + *count);
    words_.write_word(entry,
                      reinterpret_cast<std::uintptr_t>(store.address) | std::uint64_t{store.bytes} << kBytesShift);
    words_.write_word(entry + 1, store.operand);
    words_.write_word(count, *count + 1);
}

Request StoreBuffers::take_oldest(int thread) {
    std::uint64_t *const count = count_of(thread);
    auto *const entries = reinterpret_cast<std::uint64_t *>(stores_of(thread));
    Request store{};
    store.kind = Access::store;
    store.bytes = static_cast<std::uint32_t>(entries[0] >> kBytesShift);
    store.address = reinterpret_cast<void *>(entries[0] << 8 >> 8);  // NOLINT(performance-no-int-to-ptr)
    store.operand = entries[1];
    const std::uint64_t used = 2 * *count;
    for (std::uint64_t i = 0; i < used; ++i) words_.write_word(entries + i, i + 2 < used ? entries[i + 2] : 0);
    words_.write_word(count, *count - 1);
    return store;
}

void StoreBuffers::lose_all(int thread) {
    std::uint64_t *const entries = count_of(thread);
    for (std::size_t i = 0; i < 1 + 2 * stores_max_; ++i) words_.write_word(entries + i, 0);
}

bool StoreBuffers::forwards(int thread, const Request &load, std::uint64_t &value) const {
    const auto wanted = reinterpret_cast<std::uintptr_t>(load.address);
    for (std::uint64_t i = *count_of(thread); i-- > 0;) {
        const Store &store = stores_of(thread)[i];
        const std::uint64_t address = store.address_and_bytes & ((std::uint64_t{1} << kBytesShift) - 1);
        const std::uint64_t bytes = store.address_and_bytes >> kBytesShift;
        if (address >= wanted + load.bytes || wanted >= address + bytes) continue;
        if (address != wanted || bytes != load.bytes) die("accesses of different sizes overlap");
        value = store.value;
        return true;
    }
    return false;
}

}  // namespace numacre::model
