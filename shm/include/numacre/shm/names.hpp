// The names of a pool: a directory of short names, each bound to a reference, an object pool or a channel. The
// directory stands twice, in the same form: in the daemon's ledger, which is the truth, and in the pool's region, where
// clients read it without a system call, also while no daemon runs. In a private pool the region has the only one.
//
// One writer, any number of readers. Each place has two copies of its entry; the word `state` says which of the two
// counts, and the version of the change that made it so. A version is never given twice. The writer fills the copy that
// does not count and then stores `state`: the death of the writer at any store leaves the old entry or the new one. A
// reader looks at `state` before and after it reads the copy.
//
// A client may write anything into the region's directory. So a reader checks each value, and gives up after
// kReadRounds.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "numacre/shm/env.hpp"
#include "numacre/shm/records.hpp"

namespace numacre::engine {

inline constexpr std::uint32_t kNames = 256;       // a power of two
inline constexpr std::size_t kNameBytes = 48;      // with its terminating 0
inline constexpr unsigned kReadRounds = 1U << 10;  // in a row, in which the one writer has changed the entry

enum class NameKind : std::uint8_t { none = 0, reference = 1, objects = 2, channel = 3 };
inline constexpr unsigned kNameKinds = 4;

enum class NameFault : std::uint8_t { none, empty, too_long, bad_character };

// A name: 1 to kNameBytes - 1 characters from '!' to '~' without '/', and zeros behind them.
struct NameText {
    static constexpr std::size_t kWords = kNameBytes / sizeof(std::uint64_t);
    std::array<std::uint64_t, kWords> words{};

    // text: terminated by 0, or longer than a name can be.
    static NameFault read(const char *text, NameText &name) {
        std::array<char, kNameBytes> bytes{};
        std::size_t length = 0;
        for (; length < kNameBytes && text[length] != 0; ++length) bytes[length] = text[length];
        if (length == 0) return NameFault::empty;
        if (length == kNameBytes) return NameFault::too_long;
        std::memcpy(name.words.data(), bytes.data(), kNameBytes);
        return name.is_good() ? NameFault::none : NameFault::bad_character;
    }
    // False: somebody has scribbled over it.
    bool is_good() const {
        const std::array<char, kNameBytes> bytes = text();
        std::size_t length = 0;
        for (; length < kNameBytes && bytes[length] != 0; ++length)
            if (bytes[length] < '!' || bytes[length] > '~' || bytes[length] == '/') return false;
        for (std::size_t i = length; i < kNameBytes; ++i)
            if (bytes[i] != 0) return false;
        return length != 0 && length < kNameBytes;
    }
    std::array<char, kNameBytes> text() const {
        std::array<char, kNameBytes> bytes{};
        std::memcpy(bytes.data(), words.data(), kNameBytes);
        return bytes;
    }
    // Never 0.
    std::uint64_t hash() const {
        std::uint64_t hash = 0;
        for (const std::uint64_t word : words) {
            hash = (hash ^ word) * 0x9e37'79b9'7f4a'7c15;
            hash ^= hash >> 32;
        }
        return hash | 1;
    }
    // Its place, if that is free; else it has the next one that is.
    static std::uint32_t place_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 8) % kNames; }
    friend bool operator==(const NameText &, const NameText &) = default;
};

// The entry at a place.
struct NameEntry {
    NameText name;
    NameKind kind = NameKind::none;
    bool is_of_pool = false;                     // it stays when the client that has made it ends
    std::uint32_t user = 0;                      // the user that has made it
    std::uint32_t client_id = 0;                 // the client that owns it; 0: the pool does
    std::uint64_t version = 0;                   // of the change that made it so; never 0
    std::uint64_t value = 0;                     // the reference, or the channel's number
    std::array<char, kPoolNameBytes> objects{};  // the object pool's name, terminated by 0
    friend bool operator==(const NameEntry &, const NameEntry &) = default;
};

template <class Env>
struct NameCopy {
    using Word = typename Env::template Atomic<std::uint64_t>;
    static constexpr std::size_t kValueWords = kPoolNameBytes / sizeof(std::uint64_t);
    Word name[NameText::kWords];
    Word value[kValueWords];  // the object pool's name; or the first word is the reference or the channel's number
    Word owner;               // bits 0..31 the user, 32..63 the client
    Word kind;                // bits 0..7 NameKind, bit 8 is_of_pool
};

template <class Env>
struct NameHead {
    using Word = typename Env::template Atomic<std::uint64_t>;
    Word hash;   // of the name; 0: none
    Word state;  // 0: the place is free; else the version, shifted by 1, and the number of the copy that counts
};

template <class Env>
struct alignas(128) NameDirectory {
    using Word = typename Env::template Atomic<std::uint64_t>;
    Word version;  // of the last change; its low half is a futex word
    Word reach;    // no name lies further than so many places behind its own
    std::uint64_t reserved[14];
    NameHead<Env> heads[kNames];
    NameCopy<Env> copies[kNames][2];
};

// Reads a directory beside its writer. Lock-free; touches nothing but the directory.
template <class Env>
class NameReader {
public:
    // unsteady: the entry changed in each of kReadRounds rounds; damaged: it is none that a writer makes.
    enum class Found : std::uint8_t { yes, no, unsteady, damaged };

    explicit NameReader(const NameDirectory<Env> &directory) : directory_(directory) {}

    // acquire: with the entries as they were at that change.
    std::uint64_t version() const { return directory_.version.load(std::memory_order_acquire); }

    // place: of the name, if Found::yes.
    Found find(const NameText &name, NameEntry &entry, std::uint32_t &place) const {
        const std::uint64_t hash = name.hash();
        // acquire: as wide as the last name that was there before this call needs it.
        const std::uint64_t reach = directory_.reach.load(std::memory_order_acquire);
        const std::uint32_t first = NameText::place_of(hash);
        for (std::uint32_t distance = 0; distance < kNames && distance <= reach; ++distance) {
            place = (first + distance) % kNames;
            // acquire: before the entry's words.
            if (directory_.heads[place].hash.load(std::memory_order_acquire) != hash) continue;
            const Found found = at(place, entry);
            if (found == Found::no || (found == Found::yes && entry.name != name)) continue;
            return found;
        }
        return Found::no;
    }

    Found at(std::uint32_t place, NameEntry &entry) const {
        const auto &state = directory_.heads[place].state;
        for (unsigned round = 0; round < kReadRounds; ++round) {
            // EDGE name-to-use (acquire; partner: the release store of the state in NameWriter). Weakened: a reader
            // finds the copy half written.
            const std::uint64_t bits = state.load(std::memory_order_acquire);
            if (bits == 0) return Found::no;
            const bool is_good = read(directory_.copies[place][bits & 1], entry);
            entry.version = bits >> 1;
            // relaxed: the acquire loads of the copy come before it. A reader that has met a word of a later entry
            // there sees the state from before that word.
            if (state.load(std::memory_order_relaxed) == bits) return is_good ? Found::yes : Found::damaged;
            Env::pause();
        }
        return Found::unsteady;
    }

private:
    // False: no writer writes that. acquire, all: see at().
    static bool read(const NameCopy<Env> &copy, NameEntry &entry) {
        constexpr auto acquire = std::memory_order_acquire;
        for (std::size_t i = 0; i < NameText::kWords; ++i) entry.name.words[i] = copy.name[i].load(acquire);
        const std::uint64_t owner = copy.owner.load(acquire);
        const std::uint64_t kind = copy.kind.load(acquire);
        entry.user = static_cast<std::uint32_t>(owner);
        entry.client_id = static_cast<std::uint32_t>(owner >> 32);
        entry.kind = static_cast<NameKind>(kind & 0xff);
        entry.is_of_pool = (kind & 0x100) != 0;
        entry.objects = {};
        entry.value = 0;
        if (entry.kind == NameKind::objects) {
            std::array<std::uint64_t, NameCopy<Env>::kValueWords> words;
            for (std::size_t i = 0; i < words.size(); ++i) words[i] = copy.value[i].load(acquire);
            std::memcpy(entry.objects.data(), words.data(), sizeof words);
        } else {
            entry.value = copy.value[0].load(acquire);
        }
        return (kind & 0xff) != 0 && (kind & 0xff) < kNameKinds && kind < 0x200 && entry.objects.back() == 0;
    }

    const NameDirectory<Env> &directory_;
};

// Writes a directory. One writer at a time.
template <class Env>
class NameWriter {
public:
    explicit NameWriter(NameDirectory<Env> &directory) : directory_(directory) {}

    // Returns the place's state after it. before: its state until now, by the writer's own knowledge.
    std::uint64_t write(std::uint32_t place, const NameEntry &entry, std::uint64_t before) {
        const std::uint64_t index = (before & 1) ^ 1;
        NameCopy<Env> &copy = directory_.copies[place][index];
        // EDGE name-state-to-copy (release stores of the copy, acquire loads in NameReader::read()): a reader that
        // meets one of these words sees every earlier store of `state`. Weakened: it takes a mixture of two entries
        // for the old one.
        constexpr auto release = std::memory_order_release;
        for (std::size_t i = 0; i < NameText::kWords; ++i) copy.name[i].store(entry.name.words[i], release);
        std::array<std::uint64_t, NameCopy<Env>::kValueWords> words{};
        if (entry.kind == NameKind::objects)
            std::memcpy(words.data(), entry.objects.data(), sizeof words);
        else
            words[0] = entry.value;
        for (std::size_t i = 0; i < words.size(); ++i) copy.value[i].store(words[i], release);
        copy.owner.store(std::uint64_t{entry.client_id} << 32 | entry.user, release);
        copy.kind.store(static_cast<std::uint64_t>(entry.kind) | (entry.is_of_pool ? 0x100 : 0), release);
        auto &head = directory_.heads[place];
        head.hash.store(entry.name.hash(), release);
        const std::uint64_t state = entry.version << 1 | index;
        head.state.store(state, release);  // EDGE name-to-use
        return state;
    }
    void erase(std::uint32_t place) {
        directory_.heads[place].state.store(0, std::memory_order_release);
        directory_.heads[place].hash.store(0, std::memory_order_release);
    }
    void set_reach(std::uint64_t reach) { directory_.reach.store(reach, std::memory_order_release); }
    // Last: after the change that has this version.
    void set_version(std::uint64_t version) { directory_.version.store(version, std::memory_order_release); }

private:
    NameDirectory<Env> &directory_;
};

// The directory that is the truth: the ledger's, or a private pool's. One thread at a time; readers of the directory
// itself need no lock. Versions begin at 1, and go on where a writer before has ended.
template <class Env>
class NameBook {
public:
    explicit NameBook(NameDirectory<Env> &directory) : directory_(directory), reader_(directory), writer_(directory) {}

    // The version of the last change. The writer before may have died between a change and its version.
    std::uint64_t version() const {
        std::uint64_t last = reader_.version();
        for (const auto &head : directory_.heads) {
            const std::uint64_t version = head.state.load(std::memory_order_relaxed) >> 1;  // relaxed: our own
            if (version > last) last = version;
        }
        return last;
    }
    bool is_used(std::uint32_t place) const {
        return directory_.heads[place].state.load(std::memory_order_relaxed) != 0;
    }
    NameEntry at(std::uint32_t place) const {
        NameEntry entry;
        return reader_.at(place, entry) == NameReader<Env>::Found::yes ? entry : NameEntry{};
    }
    std::optional<std::uint32_t> find(const NameText &name) const {
        NameEntry entry;
        std::uint32_t place = 0;
        if (reader_.find(name, entry, place) != NameReader<Env>::Found::yes) return std::nullopt;
        return place;
    }
    // For a name that has none. Nothing: all places are taken.
    std::optional<std::uint32_t> free_place(const NameText &name) const {
        const std::uint32_t first = NameText::place_of(name.hash());
        for (std::uint32_t distance = 0; distance < kNames; ++distance)
            if (const std::uint32_t place = (first + distance) % kNames; !is_used(place)) return place;
        return std::nullopt;
    }
    // Makes the entry the place's; returns its version, which is the directory's from now on.
    std::uint64_t bind(std::uint32_t place, NameEntry entry) {
        entry.version = version() + 1;
        const std::uint64_t distance = distance_of(place, entry.name);
        // Wider first: a reader that finds the name's state knows how far to look.
        if (distance > reach()) writer_.set_reach(distance);
        (void)writer_.write(place, entry, directory_.heads[place].state.load(std::memory_order_relaxed));
        writer_.set_version(entry.version);
        return entry.version;
    }
    std::uint64_t unbind(std::uint32_t place) {
        const std::uint64_t next = version() + 1;
        writer_.erase(place);
        std::uint64_t reach = 0;
        for (std::uint32_t i = 0; i < kNames; ++i)
            if (is_used(i) && distance_of(i, at(i).name) > reach) reach = distance_of(i, at(i).name);
        writer_.set_reach(reach);
        writer_.set_version(next);
        return next;
    }
    std::uint64_t reach() const { return directory_.reach.load(std::memory_order_relaxed); }
    // A change of nothing: whoever watches looks anew.
    std::uint64_t touch() {
        const std::uint64_t next = version() + 1;
        writer_.set_version(next);
        return next;
    }

private:
    static std::uint64_t distance_of(std::uint32_t place, const NameText &name) {
        return (place - NameText::place_of(name.hash())) % kNames;
    }

    NameDirectory<Env> &directory_;
    NameReader<Env> reader_;
    NameWriter<Env> writer_;
};

static_assert(sizeof(NameHead<ProductionEnv>) == 16);
static_assert(sizeof(NameCopy<ProductionEnv>) == 128);
static_assert(sizeof(NameDirectory<ProductionEnv>) == 128 + kNames * (16 + 2 * 128));

}  // namespace numacre::engine
