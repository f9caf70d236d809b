#include "shared_words.hpp"

#include "die.hpp"

namespace numacre::model {

void *SharedWords::allocate(std::size_t bytes, std::size_t alignment) {
    const std::size_t begin = (bytes_ + alignment - 1) / alignment * alignment;
    bytes_ = begin + (bytes + 7) / 8 * 8;
    if (bytes_ > kBytesMax) die("shared memory above " + std::to_string(kBytesMax) + " bytes: raise it");
    flags_.resize(bytes_ / 8);
    return begin_ + begin;
}

void SharedWords::set_flags(const void *address, std::size_t bytes, std::uint8_t flags) {
    const std::size_t first = place_of(address) / 8;
    for (std::size_t word = first; word < first + (bytes + 7) / 8; ++word) flags_.at(word) |= flags;
}

void SharedWords::label(const void *address, std::size_t bytes, std::string name, std::size_t element_bytes) {
    const auto *const begin = static_cast<const std::byte *>(address);
    labels_.push_back({begin, begin + bytes, std::move(name), element_bytes});
}

std::string SharedWords::name_of(const void *address) const {
    const auto *const byte = static_cast<const std::byte *>(address);
    for (const Label &label : labels_) {
        if (byte < label.begin || byte >= label.end) continue;
        if (static_cast<std::size_t>(label.end - label.begin) <= label.element_bytes) return label.name;
        return label.name + "[" + std::to_string(static_cast<std::size_t>(byte - label.begin) / label.element_bytes) +
               "]";
    }
    return "shared+" + hex(static_cast<std::uint64_t>(byte - begin_));
}

bool SharedWords::contains(const void *address) const {
    const auto *const byte = static_cast<const std::byte *>(address);
    return byte >= begin_ && byte < begin_ + bytes_;
}

std::size_t SharedWords::place_of(const void *address) const {
    return static_cast<std::size_t>(static_cast<const std::byte *>(address) - begin_);
}

void SharedWords::write_word(std::uint64_t *word, std::uint64_t value) {
    const std::uint64_t old = *word;
    if (old == value) return;
    log_.push_back({word, old});
    *word = value;
    const auto position = static_cast<std::size_t>(reinterpret_cast<std::byte *>(word) - begin_) / 8;
    if ((flags_[position] & kIgnored) != 0) return;
    const std::uint64_t place = scramble(position + 1);
    hash_.a += scramble(place ^ value) - scramble(place ^ old);
    hash_.b += scramble((place << 1 | 1) + value * 0x9e37'79b9'7f4a'7c15) -
               scramble((place << 1 | 1) + old * 0x9e37'79b9'7f4a'7c15);
}

void SharedWords::write(void *address, unsigned bytes, std::uint64_t value) {
    auto *const word = reinterpret_cast<std::uint64_t *>(  // NOLINT(performance-no-int-to-ptr)
        reinterpret_cast<std::uintptr_t>(address) & ~std::uintptr_t{7});
    std::uint64_t merged = *word;
    const auto offset = static_cast<std::byte *>(address) - reinterpret_cast<std::byte *>(word);
    std::memcpy(reinterpret_cast<std::byte *>(&merged) + offset, &value, bytes);
    write_word(word, merged);
}

}  // namespace numacre::model
