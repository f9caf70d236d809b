// The shared memory of the system under test: words, what each is to the explorer, and the log by which writes are
// taken back. Every write of a step goes through here, so that it is undone and hashed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "hash.hpp"

namespace numacre::model {

inline std::uint64_t bits_at(const void *address, unsigned bytes) {
    std::uint64_t bits = 0;
    if (bytes == 8)
        std::memcpy(&bits, address, 8);
    else
        std::memcpy(&bits, address, bytes);
    return bits;
}

class SharedWords {
public:
    static constexpr std::size_t kBytesMax = std::size_t{16} << 20;

    // Flags of a word.
    static constexpr std::uint8_t kIgnored = 1;
    static constexpr std::uint8_t kPrivate = 2;
    static constexpr std::uint8_t kChannel = 4;
    static constexpr unsigned kWriterShift = 3;  // above: 1 + the only thread that writes the word, 0: no such

    // begin: of kBytesMax zeroed bytes, which the caller keeps.
    explicit SharedWords(std::byte *begin) : begin_(begin) {}

    void *allocate(std::size_t bytes, std::size_t alignment);
    bool contains(const void *address) const;
    // Its offset from the beginning.
    std::size_t place_of(const void *address) const;
    void set_flags(const void *address, std::size_t bytes, std::uint8_t flags);
    std::uint8_t flags_of(const void *address) const { return flags_[place_of(address) / 8]; }
    void label(const void *address, std::size_t bytes, std::string name, std::size_t element_bytes);
    std::string name_of(const void *address) const;

    void write_word(std::uint64_t *word, std::uint64_t value);
    // Within one word.
    void write(void *address, unsigned bytes, std::uint64_t value);

    // What undo() goes back to.
    struct Position {
        std::size_t log = 0;
        Hash hash{};
    };
    Position position() const { return {log_.size(), hash_}; }
    void undo(const Position &to) {
        while (log_.size() > to.log) {
            *log_.back().word = log_.back().value;
            log_.pop_back();
        }
        hash_ = to.hash;
    }
    // Of the values that tell states apart.
    const Hash &hash() const { return hash_; }

private:
    struct LogEntry {
        std::uint64_t *word;
        std::uint64_t value;
    };
    struct Label {
        const std::byte *begin;
        const std::byte *end;
        std::string name;
        std::size_t element_bytes;
    };

    std::byte *begin_;
    std::size_t bytes_ = 0;
    std::vector<std::uint8_t> flags_;  // by word
    std::vector<Label> labels_;
    std::vector<LogEntry> log_;
    Hash hash_;
};

}  // namespace numacre::model
