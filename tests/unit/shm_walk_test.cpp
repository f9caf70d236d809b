// The walk of shm/README.md: one allocation, one free, one larger block, one death, over the real headers. Every write
// to shared memory is recorded; the tables of the page have to say the same, word for word, as have its other words and
// those of its picture. And the files and names that the page says to read exist.
//
// A table that differs is printed as it has to be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "numacre/shm/recovery.hpp"
#include "support/shm_pool.hpp"

namespace numacre {

using namespace engine;
namespace {

using test::ShmPool;
using ::testing::ElementsAreArray;

// --- an Env that tells of each write ---------------------------------------------------------------------------------

struct Died {};

struct Witness {
    virtual ~Witness() = default;
    virtual void wrote(const void *word, const char *how, std::uint64_t before, std::uint64_t after) = 0;
    virtual void passed(CrashPoint point) = 0;
};

struct WalkEnv {
    static constexpr std::uint64_t kRefusalRoundsMost = engine::ProductionEnv::kRefusalRoundsMost;
    static inline Witness *witness = nullptr;

    // One thread only. An operation that changes nothing because it lost a race does not happen.
    template <class T>
    class Atomic {
    public:
        T load(std::memory_order order) const { return value_.load(order); }
        void store(T to, std::memory_order order) {
            const T from = value_.load(std::memory_order_relaxed);
            value_.store(to, order);
            tell("store", from, to);
        }
        bool compare_exchange_strong(T &expected, T desired, std::memory_order success,
                                     std::memory_order = std::memory_order_relaxed) {
            const T from = expected;
            if (!value_.compare_exchange_strong(expected, desired, success, std::memory_order_relaxed)) return false;
            tell("CAS", from, desired);
            return true;
        }
        bool compare_exchange_weak(T &expected, T desired, std::memory_order success,
                                   std::memory_order failure = std::memory_order_relaxed) {
            return compare_exchange_strong(expected, desired, success, failure);
        }
        T fetch_and(T mask, std::memory_order order) {
            const T from = value_.fetch_and(mask, order);
            tell("AND", from, from & mask);
            return from;
        }

    private:
        void tell(const char *how, std::uint64_t from, std::uint64_t to) const {
            if (witness != nullptr) witness->wrote(this, how, from, to);
        }
        std::atomic<T> value_;
    };
    static_assert(sizeof(Atomic<std::uint64_t>) == sizeof(std::atomic<std::uint64_t>));

    static void pause() noexcept {}
    static void crash_point(CrashPoint point) {
        if (witness != nullptr) witness->passed(point);
    }
};

// --- how the page names and reads words ------------------------------------------------------------------------------

std::string hex(std::uint64_t value) {
    std::ostringstream text;
    text << "0x" << std::hex << value;
    return text.str();
}

const char *name_of(CrashPoint point) {
    switch (point) {
        case CrashPoint::allocate_after_intent:
            return "allocate_after_intent";
        case CrashPoint::allocate_after_claim:
            return "allocate_after_claim";
        case CrashPoint::allocate_after_climb:
            return "allocate_after_climb";
        case CrashPoint::allocate_after_commit:
            return "allocate_after_commit";
        case CrashPoint::free_after_intent:
            return "free_after_intent";
        case CrashPoint::free_after_ownership:
            return "free_after_ownership";
        case CrashPoint::free_after_unclaim:
            return "free_after_unclaim";
        case CrashPoint::free_after_hints:
            return "free_after_hints";
        case CrashPoint::clean_after_coalescing:
            return "clean_after_coalescing";
        default:
            return "a crash point that the walk does not come by";
    }
}

// "2..7", "1"; "-" for none.
std::string runs_of(std::uint64_t bits, std::uint64_t first) {
    std::string text;
    for (unsigned bit = 0; bit < 64; ++bit) {
        if ((bits >> bit & 1) == 0) continue;
        unsigned last = bit;
        while (last < 63 && (bits >> (last + 1) & 1) != 0) ++last;
        if (!text.empty()) text += ", ";
        text += std::to_string(first + bit);
        if (last != bit) text += ".." + std::to_string(first + last);
        bit = last;
    }
    return text.empty() ? "-" : text;
}

std::string of_leaf(std::uint64_t bits, std::uint64_t word) {
    if (bits == 0) return "nothing taken";
    return (std::has_single_bit(bits) ? "frame " : "frames ") + runs_of(bits, word * kLeafFrames);
}
std::string of_upper(std::uint64_t bits) {
    const UpperWord word{bits};
    std::string text = "P " + runs_of(word.occupied_children(), 0) + "; F " + runs_of(word.allocated_children(), 0);
    if (const std::uint64_t coalescing = bits >> 16 & 0xff; coalescing != 0) text += "; COAL " + runs_of(coalescing, 0);
    if (word.draining_children() != 0) text += "; DRAIN " + runs_of(word.draining_children(), 0);
    return text + "; tag " + std::to_string(word.tag());
}
std::string of_index(std::uint64_t bits) {
    const IndexEntry entry{bits};
    const std::string who = entry.is_owned()     ? "owned by process " + std::to_string(entry.owner().value)
                            : entry.is_freeing() ? "freeing by thread " + std::to_string(entry.freer().value)
                                                 : "neither owned nor freeing";
    return who + ", order " + std::to_string(entry.order().value) + ", generation " +
           std::to_string(entry.generation());
}
std::string of_intent(std::uint64_t bits) {
    const Intent intent{bits};
    if (!intent.active()) return "none";
    const std::string what = intent.kind() == IntentKind::allocate ? "allocate"
                             : intent.kind() == IntentKind::free   ? "free"
                                                                   : "several blocks";
    return what + " order " + std::to_string(intent.block().order.value) + " at frame " +
           std::to_string(intent.block().base.value);
}
std::string of_hint_work(std::uint64_t bits) {
    const HintWork work{bits};
    if (!work.active()) return "no hint is too low";
    return "perhaps too low: level " + std::to_string(work.level()) + ", word " + std::to_string(work.word());
}
std::string of_home(std::uint64_t bits, unsigned order) {
    return std::string("next at ") + (order <= kLeafOrder ? "frame " : "upper word ") +
           std::to_string(Home{bits}.place());
}
std::string of_owner(std::uint64_t bits) {
    const ThreadOwner owner{bits};
    return owner.in_use() ? "process " + std::to_string(owner.process().value) : "nobody";
}
std::string of_state(std::uint64_t bits) {
    return bits == static_cast<std::uint64_t>(ProcessState::dead) ? "dead" : "active or free";
}

struct WordName {
    std::string text;
    std::string reading;  // of the value that was asked about
};

// --- the walk --------------------------------------------------------------------------------------------------------

using Words = std::map<std::string, std::uint64_t>;

struct Chapter {
    Words before;
    std::vector<std::string> rows;  // as in the page
    Words after;
};

class Walk : Witness {
public:
    Walk() {
        WalkEnv::witness = this;
        pool_.online_all();
        const Actor a = pool_.actor(1, 1);
        pool_.actor(2, 1);  // the second thread of process 1: it does nothing
        const Actor b = pool_.actor(3, 2);
        Block small;
        Block large;
        Block last;

        chapter("### Allocate four frames", "A", [&] { allocate(a, 2, small); });
        chapter("### Free them", "F", [&] { free(a, small); });
        chapter("### Allocate all 128 frames", "L", [&] { allocate(b, 7, large); });
        // Not in the page's tables.
        free(b, large);
        allocate(a, 2, small);
        allocate(b, 0, last);
        chapter("### The client is killed", "D", [&] {
            dies_at_ = CrashPoint::allocate_after_claim;
            is_armed_ = true;
            Block never;
            EXPECT_THROW((void)buddy_.allocate(a, Order{2}, {}, never), Died);
        });
        chapter("### Recovery gives the memory back", "R", [&] {
            view_.processes[1].state.store(static_cast<std::uint64_t>(ProcessState::dead), std::memory_order_seq_cst);
            const NodeView<WalkEnv> nodes[] = {node_};
            Recovery<WalkEnv> recovery{view_, nodes};
            Reclaimed total;
            ThreadSlotIndex blocked_by;
            EXPECT_EQ(recovery.recover_process(ProcessSlot{1}, total, blocked_by), RecoveryStep::done);
            EXPECT_EQ(total.blocks, 1U);
            EXPECT_EQ(total.frames, 4U);
        });
        // The other client's frame is left; all else can be had.
        EXPECT_EQ(pool_.snapshot().used_frames, 1U);
        free(b, last);
        EXPECT_EQ(pool_.snapshot().used_frames, 0U);
        allocate(b, 7, large);
    }
    ~Walk() override { WalkEnv::witness = nullptr; }
    Walk(const Walk &) = delete;
    Walk &operator=(const Walk &) = delete;

    const std::map<std::string, Chapter> &chapters() const { return chapters_; }

private:
    template <class Body>
    void chapter(const std::string &heading, const char *prefix, const Body &body) {
        Chapter &chapter = chapters_[heading];
        chapter.before = words();
        prefix_ = prefix;
        rows_ = &chapter.rows;
        body();
        rows_ = nullptr;
        chapter.after = words();
    }
    void allocate(Actor actor, unsigned order, Block &block) {
        EXPECT_EQ(buddy_.allocate(actor, Order{order}, {}, block), Errc::ok);
    }
    void free(Actor actor, Block block) {
        Block freed;
        EXPECT_EQ(buddy_.free(actor, block.base, freed), Errc::ok);
        EXPECT_EQ(freed, block);
    }

    void wrote(const void *word, const char *how, std::uint64_t before, std::uint64_t after) override {
        if (rows_ == nullptr) return;
        const WordName name = look_up(word, after);
        rows_->push_back("| " + std::string(prefix_) + std::to_string(rows_->size() + 1) + " | `" + name.text + "` | " +
                         how + " | `" + hex(before) + "` | `" + hex(after) + "` | " + name.reading + " | |");
    }
    // In the last cell of the write before it. (Behind several, if a step writes nothing: then all are there.)
    void passed(CrashPoint point) override {
        if (rows_ != nullptr && !rows_->empty()) {
            std::string &row = rows_->back();
            row.resize(row.size() - 1);
            row += std::string("`") + name_of(point) + "` |";
        }
        if (is_armed_ && point == dies_at_) {
            is_armed_ = false;
            throw Died{};
        }
    }

    // True: the word is one of these `count` records; which, and how many bytes from its first.
    template <class Record>
    static bool is_in(const void *word, const Record *records, std::size_t count, std::size_t &index,
                      std::size_t &offset) {
        const auto at = reinterpret_cast<std::uintptr_t>(word) - reinterpret_cast<std::uintptr_t>(records);
        index = at / sizeof(Record);
        offset = at % sizeof(Record);
        return at < count * sizeof(Record);
    }
    WordName look_up(const void *word, std::uint64_t value) const {
        std::size_t i = 0;
        std::size_t offset = 0;
        const auto place = [&] { return "[" + std::to_string(i) + "]"; };
        if (is_in(word, node_.leaf, node_.word_count[0], i, offset)) return {"leaf" + place(), of_leaf(value, i)};
        if (is_in(word, node_.upper[1], node_.word_count[1], i, offset)) return {"upper[1]" + place(), of_upper(value)};
        for (unsigned layer = 0; layer <= node_.top_layer; ++layer)
            if (is_in(word, node_.index[layer], node_.geometry.index_entry_count(layer), i, offset))
                return {"index[" + std::to_string(layer) + "]" + place(), of_index(value)};
        if (is_in(word, view_.threads, view_.thread_slots, i, offset)) {
            using Slot = ThreadSlot<WalkEnv>;
            const std::string slot = "threads" + place();
            if (offset == offsetof(Slot, intent)) return {slot + ".intent", of_intent(value)};
            if (offset == offsetof(Slot, owner)) return {slot + ".owner", of_owner(value)};
            if (offset == offsetof(Slot, hint_work)) return {slot + ".hint_work", of_hint_work(value)};
        }
        if (is_in(word, node_.home, node_.thread_slots, i, offset)) {
            const auto order = static_cast<unsigned>(offset / sizeof(std::uint64_t));
            return {"home" + place() + ".word[" + std::to_string(order) + "]", of_home(value, order)};
        }
        if (is_in(word, node_.counters, node_.thread_slots, i, offset)) {
            using Counters = ThreadCounters<WalkEnv>;
            const std::string counters = "counters" + place();
            const bool is_free = offset >= offsetof(Counters, frees);
            EXPECT_LT(offset, offsetof(Counters, failures));
            const std::size_t order =
                (offset - (is_free ? offsetof(Counters, frees) : offsetof(Counters, allocations))) /
                sizeof(std::uint64_t);
            return {counters + (is_free ? ".frees[" : ".allocations[") + std::to_string(order) + "]",
                    std::to_string(value) + " so far"};
        }
        if (is_in(word, view_.processes, view_.process_slots, i, offset) && offset == 0)
            return {"processes" + place() + ".state", of_state(value)};
        return {"a word that the walk does not know", "?"};
    }

    Words words() const {
        constexpr auto relaxed = std::memory_order_relaxed;
        Words found;
        for (std::uint64_t i = 0; i < node_.word_count[0]; ++i)
            found["leaf[" + std::to_string(i) + "]"] = node_.leaf[i].load(relaxed);
        found["upper[1][0]"] = node_.upper[1][0].load(relaxed);
        for (std::uint64_t i = 0; i < node_.geometry.index_entry_count(0); ++i)
            found["index[0][" + std::to_string(i) + "]"] = node_.index[0][i].load(relaxed);
        found["index[1][0]"] = node_.index[1][0].load(relaxed);
        found["hint[2][0]"] = node_.hint[2][0].load(relaxed);
        for (std::uint32_t i = 0; i < view_.thread_slots; ++i) {
            const std::string slot = "threads[" + std::to_string(i) + "]";
            found[slot + ".intent"] = view_.threads[i].intent.load(relaxed);
            found[slot + ".owner"] = view_.threads[i].owner.load(relaxed);
        }
        for (std::uint32_t i = 0; i < view_.process_slots; ++i)
            found["processes[" + std::to_string(i) + "].state"] = view_.processes[i].state.load(relaxed);
        return found;
    }

    // 128 frames of 4 KiB in one chunk: the smallest pool in which there is a word above leaf words.
    ShmPool pool_{4096, 128 * 4096, 1};
    NodeView<WalkEnv> node_ =
        NodeView<WalkEnv>::at(pool_.node_memory.address(), pool_.geometry, NumaNode{0}, pool_.thread_slots);
    PoolView<WalkEnv> view_ =
        PoolView<WalkEnv>::at(pool_.pool_memory.address(), ShmPool::kProcesses, pool_.thread_slots);
    Buddy<WalkEnv> buddy_{node_, view_};
    std::map<std::string, Chapter> chapters_;
    const char *prefix_ = "";
    std::vector<std::string> *rows_ = nullptr;
    bool is_armed_ = false;
    CrashPoint dies_at_{};
};

const std::map<std::string, Chapter> &chapters() {
    static const Walk walk;
    return walk.chapters();
}

// --- the page --------------------------------------------------------------------------------------------------------

std::string source_dir() {
    const char *const said = std::getenv("NUMACRE_SOURCE_DIR");
    return said == nullptr ? "." : said;
}
std::string text_of(const std::string &path) {
    std::ifstream file(source_dir() + "/" + path);
    std::ostringstream text;
    text << file.rdbuf();
    return file ? text.str() : "";
}
const std::string kPage = "shm/README.md";

// The lines from behind this heading to the next one.
std::vector<std::string> section(const std::string &heading) {
    std::istringstream page(text_of(kPage));
    std::vector<std::string> lines;
    bool is_inside = false;
    for (std::string line; std::getline(page, line);) {
        if (line.starts_with("#"))
            is_inside = line == heading;
        else if (is_inside)
            lines.push_back(line);
    }
    return lines;
}
// The rows of the section's table, without its head.
std::vector<std::string> table_of(const std::vector<std::string> &lines) {
    std::vector<std::string> rows;
    for (const std::string &line : lines)
        if (line.starts_with("|")) rows.push_back(line);
    if (rows.size() >= 2) rows.erase(rows.begin(), rows.begin() + 2);
    return rows;
}

// What stands between an opening and the next closing, again and again.
std::vector<std::string> between(const std::string &text, const std::string &opening, const std::string &closing) {
    std::vector<std::string> found;
    for (auto at = text.find(opening); at != std::string::npos; at = text.find(opening, at)) {
        at += opening.size();
        const auto end = text.find(closing, at);
        if (end == std::string::npos) break;
        found.push_back(text.substr(at, end - at));
        at = end + closing.size();
    }
    return found;
}
constexpr const char *kHexDigits = "0123456789abcdef";
// The number that begins here by 0x.
std::string number_at(const std::string &text, std::size_t at) {
    const auto end = text.find_first_not_of(kHexDigits, at + 2);
    return text.substr(at, end == std::string::npos ? end : end - at);
}
std::set<std::string> numbers_in(const std::string &text) {
    std::set<std::string> numbers;
    for (auto at = text.find("0x"); at != std::string::npos; at = text.find("0x", at + 2))
        numbers.insert(number_at(text, at));
    return numbers;
}
// "leaf[1] = 0xf" and its like, anywhere in the text, also across a line's end: has to be so. Returns how many there
// were.
std::size_t expect_words(std::string text, const Words &words) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    const std::string is = " = ";
    std::size_t found = 0;
    for (auto at = text.find(is + "0x"); at != std::string::npos; at = text.find(is + "0x", at + 1)) {
        const auto before = text.find_last_not_of("abcdefghijklmnopqrstuvwxyz_.[]0123456789", at - 1);
        const std::string name = text.substr(before + 1, at - (before + 1));
        ++found;
        const auto word = words.find(name);
        if (word == words.end())
            ADD_FAILURE() << name << ": no such word";
        else
            EXPECT_EQ(number_at(text, at + is.size()), hex(word->second)) << name;
    }
    return found;
}
std::string joined(const std::vector<std::string> &lines) {
    std::string text;
    for (const std::string &line : lines) text += line + "\n";
    return text;
}

TEST(Walk, tables_of_the_page_are_every_write_of_the_real_code) {
    for (const auto &[heading, chapter] : chapters()) {
        SCOPED_TRACE(kPage + ", " + heading);
        EXPECT_THAT(table_of(section(heading)), ElementsAreArray(chapter.rows)) << "the table has to be:\n\n"
                                                                                << joined(chapter.rows);
    }
}

TEST(Walk, words_in_the_text_of_the_page_are_those_of_the_real_code) {
    for (const auto &[heading, chapter] : chapters()) {
        SCOPED_TRACE(kPage + ", " + heading);
        std::string above;
        std::string below;
        bool is_below = false;
        for (const std::string &line : section(heading)) {
            if (line.starts_with("|"))
                is_below = true;
            else
                (is_below ? below : above) += line + "\n";
        }
        const std::size_t found = expect_words(above, chapter.before) + expect_words(below, chapter.after);
        EXPECT_GT(found, 0U) << "a chapter says what stands before or after it";
        // Whatever other number the text names is one of the table, or of the words before and after.
        std::set<std::string> known = numbers_in(joined(chapter.rows));
        for (const auto &[name, value] : chapter.before) known.insert(hex(value));
        for (const auto &[name, value] : chapter.after) known.insert(hex(value));
        for (const std::string &number : numbers_in(above + below)) EXPECT_TRUE(known.contains(number)) << number;
    }
}

TEST(Walk, a_search_changes_no_hint_where_nothing_is_used_up) {
    for (const auto &[heading, chapter] : chapters())
        EXPECT_EQ(chapter.after.at("hint[2][0]"), chapters().begin()->second.before.at("hint[2][0]")) << heading;
}

TEST(Walk, picture_of_the_tree_has_the_words_that_the_allocation_leaves) {
    const std::string picture = text_of("shm/pictures/tree.svg");
    EXPECT_GE(expect_words(picture, chapters().at("### Allocate four frames").after), 4U);
    EXPECT_NE(text_of(kPage).find("(pictures/tree.svg)"), std::string::npos);
    EXPECT_NE(text_of(kPage).find("(pictures/overview.svg)"), std::string::npos);
    EXPECT_NE(text_of("shm/pictures/overview.svg"), "");
}

// Rows: | number | [file](link) | `name`, `name` ... | what it says |
TEST(Walk, files_and_names_to_read_exist) {
    const auto rows = table_of(section("## Read in this order"));
    EXPECT_GE(rows.size(), 8U);
    bool claims = false;
    for (const std::string &row : rows) {
        const auto links = between(row, "](", ")");
        ASSERT_EQ(links.size(), 1U) << row;
        const std::string text = text_of("shm/" + links[0]);
        EXPECT_NE(text, "") << links[0] << " is not there";
        const auto names = between(row, "`", "`");
        EXPECT_FALSE(names.empty()) << row;
        for (const std::string &name : names) {
            EXPECT_NE(text.find(name), std::string::npos) << links[0] << " has no " << name;
            claims |= name.find("compare_exchange_strong") != std::string::npos;
        }
    }
    EXPECT_TRUE(claims) << "the way has to lead to the line that claims a frame";
}

}  // namespace
}  // namespace numacre
