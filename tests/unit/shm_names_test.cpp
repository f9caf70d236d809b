// The directory of names: every name is found however full it is, a reader beside a writer finds whole entries, a
// writer that dies at any store leaves the old entry or the new one, and words that nobody wrote harm nobody.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "numacre/shm/names.hpp"

namespace numacre::engine {
namespace {

NameText text(const std::string &name) {
    NameText words;
    EXPECT_EQ(NameText::read(name.c_str(), words), NameFault::none) << name;
    return words;
}
NameEntry reference(const std::string &name, std::uint64_t value, std::uint32_t client_id = 1) {
    NameEntry entry;
    entry.name = text(name);
    entry.kind = NameKind::reference;
    entry.value = value;
    entry.user = 1000;
    entry.client_id = client_id;
    return entry;
}
NameEntry objects(const std::string &name, const std::string &pool) {
    NameEntry entry;
    entry.name = text(name);
    entry.kind = NameKind::objects;
    entry.is_of_pool = true;
    pool.copy(entry.objects.data(), kPoolNameBytes - 1);
    return entry;
}

template <class Env>
struct Names {
    std::unique_ptr<NameDirectory<Env>> directory = std::make_unique<NameDirectory<Env>>();
    NameBook<Env> book{*directory};
    NameReader<Env> reader{*directory};

    std::uint64_t bind(const NameEntry &entry) {
        auto place = book.find(entry.name);
        if (!place) place = book.free_place(entry.name);
        EXPECT_TRUE(place);
        return book.bind(*place, entry);
    }
    void unbind(const std::string &name) {
        const auto place = book.find(text(name));
        ASSERT_TRUE(place);
        book.unbind(*place);
    }
    std::pair<typename NameReader<Env>::Found, NameEntry> look(const std::string &name) const {
        NameEntry entry;
        std::uint32_t place = 0;
        const auto found = reader.find(text(name), entry, place);
        return {found, entry};
    }
};
using Plain = Names<ProductionEnv>;
using Found = NameReader<ProductionEnv>::Found;

TEST(NameText, only_printable_ascii_without_space_and_slash_is_a_name) {
    NameText name;
    EXPECT_EQ(NameText::read("", name), NameFault::empty);
    EXPECT_EQ(NameText::read(std::string(kNameBytes, 'a').c_str(), name), NameFault::too_long);
    EXPECT_EQ(NameText::read(std::string(1000, 'a').c_str(), name), NameFault::too_long);
    EXPECT_EQ(NameText::read(std::string(kNameBytes - 1, '~').c_str(), name), NameFault::none);
    for (int letter = 1; letter < 256; ++letter) {
        const bool is_good = letter >= '!' && letter <= '~' && letter != '/';
        const std::string one{'a', static_cast<char>(letter)};
        EXPECT_EQ(NameText::read(one.c_str(), name), is_good ? NameFault::none : NameFault::bad_character) << letter;
    }
    ASSERT_EQ(NameText::read("abc", name), NameFault::none);
    EXPECT_STREQ(name.text().data(), "abc");
    EXPECT_TRUE(name.is_good());
    auto bytes = name.text();
    bytes.back() = 'x';  // behind its end
    std::memcpy(name.words.data(), bytes.data(), bytes.size());
    EXPECT_FALSE(name.is_good());
}

TEST(Names, an_entry_is_found_as_it_was_bound_and_only_by_its_name) {
    Plain names;
    EXPECT_EQ(names.look("a").first, Found::no);
    EXPECT_EQ(names.bind(reference("a", 7)), 1U);
    EXPECT_EQ(names.bind(objects("b", std::string(63, 'p'))), 2U);
    NameEntry wanted = reference("a", 7);
    wanted.version = 1;
    EXPECT_EQ(names.look("a"), std::pair(Found::yes, wanted));
    wanted = objects("b", std::string(63, 'p'));
    wanted.version = 2;
    EXPECT_EQ(names.look("b"), std::pair(Found::yes, wanted));
    EXPECT_EQ(names.look("c").first, Found::no);
    EXPECT_EQ(names.bind(objects("a", "other")), 3U) << "of another kind now";
    EXPECT_EQ(names.look("a").second.value, 0U);
    EXPECT_EQ(names.bind(reference("b", 9)), 4U);
    EXPECT_EQ(names.look("b").second.objects[0], 0);
    names.unbind("a");
    EXPECT_EQ(names.look("a").first, Found::no);
    EXPECT_EQ(names.reader.version(), 5U);
    EXPECT_EQ(names.bind(reference("a", 1)), 6U);
}

// Against a map, in a directory that is full at times: each name keeps its place, so that those behind a gap have to be
// found past it.
TEST(Names, every_name_is_found_however_full_the_directory_is) {
    Plain names;
    std::map<std::string, std::uint64_t> model;
    std::mt19937_64 random(7);
    for (int step = 0; step < 20'000; ++step) {
        const std::string name = "name" + std::to_string(random() % 300);
        if (random() % 3 == 0 && model.contains(name)) {
            names.unbind(name);
            model.erase(name);
        } else if (model.contains(name) || model.size() < kNames) {
            const std::uint64_t value = random() | 1;
            names.bind(reference(name, value));
            model[name] = value;
            ASSERT_EQ(names.look(name).second.value, value) << "at once, wherever it lies";
        } else {
            EXPECT_FALSE(names.book.free_place(text(name)));
        }
        if (step % 500 != 0) continue;
        for (int i = 0; i < 300; ++i) {
            const std::string each = "name" + std::to_string(i);
            const auto [found, entry] = names.look(each);
            const auto there = model.find(each);
            ASSERT_EQ(found, there == model.end() ? Found::no : Found::yes) << each << " after step " << step;
            if (there != model.end()) {
                ASSERT_EQ(entry.value, there->second);
            }
        }
    }
    EXPECT_GT(model.size(), kNames / 2);
}

TEST(Names, a_reader_beside_a_writer_finds_whole_entries) {
    Plain names;
    names.bind(reference("n", 1, 1));
    std::atomic<bool> is_over{false};
    std::thread writer([&] {
        for (std::uint32_t i = 2; !is_over.load(std::memory_order_relaxed); ++i) {
            if (i % 5 == 0) names.unbind("n");
            names.bind(i % 2 == 0 ? objects("n", std::string(i % 60 + 1, static_cast<char>('a' + i % 26)))
                                  : reference("n", i, i));
        }
    });
    unsigned found = 0;
    for (int i = 0; i < 300'000; ++i) {
        const auto [how, entry] = names.look("n");
        if (how == Found::no) continue;
        EXPECT_EQ(how, Found::yes);
        if (how != Found::yes) break;
        ++found;
        if (entry.kind == NameKind::reference) {
            ASSERT_EQ(entry.value, entry.client_id);
        } else {
            const std::string pool(entry.objects.data());
            ASSERT_EQ(pool, std::string(pool.size(), pool[0]));
            ASSERT_EQ((pool[0] - 'a' + 26 - static_cast<int>(pool.size() - 1) % 26) % 2, 0) << pool;
        }
    }
    is_over = true;
    writer.join();
    EXPECT_GT(found, 1000U);
}

TEST(Names, an_entry_that_no_writer_makes_is_refused) {
    Plain names;
    names.bind(objects("n", std::string(63, 'p')));
    const std::uint32_t place = *names.book.find(text("n"));
    auto &copy = names.directory->copies[place][names.directory->heads[place].state & 1];
    const auto refused = [&](std::atomic<std::uint64_t> &word, std::uint64_t bits) {
        const std::uint64_t before = word.exchange(bits);
        const Found found = names.look("n").first;
        word = before;
        return found == Found::damaged;
    };
    EXPECT_TRUE(refused(copy.value[7], copy.value[7] | 1ULL << 63)) << "a text without its end";
    EXPECT_TRUE(refused(copy.kind, 0));
    EXPECT_TRUE(refused(copy.kind, kNameKinds));
    EXPECT_TRUE(refused(copy.kind, copy.kind | 0x200));
    EXPECT_EQ(names.look("n").first, Found::yes);
}

// Counts the accesses, and acts between two of them.
struct WatchedEnv {
    static inline std::function<void()> before_load, before_store;
    static void call(std::function<void()> &hook) {
        if (const auto act = std::exchange(hook, nullptr)) {
            act();
            if (!hook) hook = act;
        }
    }

    template <class T>
    class Atomic : public std::atomic<T> {
    public:
        using std::atomic<T>::atomic;
        T load(std::memory_order order) const {
            if (before_load) call(before_load);
            return std::atomic<T>::load(order);
        }
        void store(T value, std::memory_order order) {
            if (before_store) call(before_store);
            std::atomic<T>::store(value, order);
        }
    };
    static void pause() {}
    static constexpr void crash_point(CrashPoint) {}
};
struct Death {};

TEST(Names, a_reader_that_is_overtaken_between_any_two_loads_finds_whole_entries) {
    for (unsigned at = 0;; ++at) {
        Names<WatchedEnv> names;
        names.bind(reference("n", 1, 1));
        unsigned load = 0;
        bool is_overtaken = false;
        WatchedEnv::before_load = [&] {
            if (load++ != at || std::exchange(is_overtaken, true)) return;
            // Twice: both copies are other ones.
            names.bind(reference("n", 2, 2));
            names.bind(reference("n", 3, 3));
        };
        const auto [found, entry] = names.look("n");
        WatchedEnv::before_load = nullptr;
        if (!is_overtaken) break;
        EXPECT_EQ(found, NameReader<WatchedEnv>::Found::yes) << at;
        EXPECT_EQ(entry.value, entry.client_id) << at;
        EXPECT_TRUE(entry.version == 1 ? entry.value == 1 : entry.value == 3) << at;
    }
}

TEST(Names, a_reader_gives_up_on_an_entry_that_never_stands_still) {
    Names<WatchedEnv> names;
    names.bind(reference("n", 1));
    const auto place = names.book.find(text("n"));
    std::uint64_t state = 2;
    WatchedEnv::before_load = [&] {
        names.directory->heads[*place].state.store(state += 2, std::memory_order_relaxed);
    };
    EXPECT_EQ(names.look("n").first, NameReader<WatchedEnv>::Found::unsteady);
    WatchedEnv::before_load = nullptr;
}

// The change that dies is of each kind; the next writer goes on.
TEST(Names, a_writer_that_dies_at_any_store_leaves_the_old_entry_or_the_new_one) {
    using Change = std::function<void(Names<WatchedEnv> &)>;
    const std::vector<std::pair<const char *, Change>> changes{
        {"new", [](auto &names) { names.bind(reference("new", 5, 5)); }},
        {"again", [](auto &names) { names.bind(reference("old", 5, 5)); }},
        {"other kind", [](auto &names) { names.bind(objects("old", "pool")); }},
        {"gone", [](auto &names) { names.unbind("old"); }},
    };
    for (const auto &[what, change] : changes) {
        for (unsigned at = 0;; ++at) {
            SCOPED_TRACE(std::string(what) + ", store " + std::to_string(at));
            Names<WatchedEnv> names;
            names.bind(reference("old", 1, 1));
            names.bind(reference("old", 2, 2));
            const std::uint64_t before = names.book.version();
            unsigned store = 0;
            WatchedEnv::before_store = [&] {
                if (store++ == at) throw Death{};
            };
            bool has_died = false;
            try {
                change(names);
            } catch (const Death &) {
                has_died = true;
            }
            WatchedEnv::before_store = nullptr;
            const auto [found_old, old] = names.look("old");
            const auto [found_new, fresh] = names.look("new");
            using WatchedFound = NameReader<WatchedEnv>::Found;
            EXPECT_TRUE(found_old == WatchedFound::yes || found_old == WatchedFound::no);
            if (found_old == WatchedFound::yes && old.kind == NameKind::reference) {
                EXPECT_EQ(old.value, old.client_id);
            }
            if (found_new == WatchedFound::yes) {
                EXPECT_EQ(fresh.value, 5U);
            }
            if (found_old == WatchedFound::no) {
                EXPECT_STREQ(what, "gone");
            }
            NameBook<WatchedEnv> next(*names.directory);
            EXPECT_GE(next.version(), before);
            EXPECT_GE(next.version(), old.version);
            const std::uint64_t last = next.version();
            EXPECT_GT(names.bind(reference("old", 9, 9)), last);
            EXPECT_GT(names.bind(reference("new", 9, 9)), last + 1);
            EXPECT_EQ(names.look("old").second.value, 9U);
            EXPECT_EQ(names.look("new").second.value, 9U);
            if (!has_died) {
                EXPECT_GT(at, 0U);
                break;
            }
        }
    }
}

TEST(Names, random_words_in_the_directory_lead_nobody_astray) {
    std::mt19937_64 random(11);
    Plain names;
    names.bind(reference("n", 7));
    auto *const words = reinterpret_cast<std::uint64_t *>(names.directory.get());
    constexpr std::size_t kWords = sizeof(NameDirectory<ProductionEnv>) / 8;
    std::vector<std::uint64_t> clean(words, words + kWords);
    std::map<Found, unsigned> seen;
    const std::uint32_t place = *names.book.find(text("n"));
    for (int trial = 0; trial < 20'000; ++trial) {
        std::copy(clean.begin(), clean.end(), words);
        // Most of them where the reader looks: the head and the copies of the place.
        const auto head =
            static_cast<std::size_t>(reinterpret_cast<std::uint64_t *>(&names.directory->heads[place]) - words);
        const auto copies =
            static_cast<std::size_t>(reinterpret_cast<std::uint64_t *>(&names.directory->copies[place]) - words);
        for (unsigned i = 0; i < 1 + random() % 4; ++i) {
            const std::size_t at = random() % 3 == 0   ? random() % kWords
                                   : random() % 2 == 0 ? head + random() % 2
                                                       : copies + random() % 32;
            words[at] = random() % 2 == 0 ? random() : random() % 4 == 0 ? 0 : words[at] ^ 1ULL << random() % 64;
        }
        const auto [found, entry] = names.look("n");
        ++seen[found];
        if (found == Found::yes) {
            EXPECT_EQ(entry.name, text("n"));
            EXPECT_TRUE(entry.kind != NameKind::none && static_cast<unsigned>(entry.kind) < kNameKinds);
            EXPECT_EQ(entry.objects.back(), 0);
        }
        for (std::uint32_t i = 0; i < kNames; ++i) {
            NameEntry any;
            if (names.reader.at(i, any) == Found::yes) {
                EXPECT_EQ(any.objects.back(), 0);
            }
        }
    }
    EXPECT_GT(seen[Found::yes], 100U);
    EXPECT_GT(seen[Found::no], 100U);
    EXPECT_GT(seen[Found::damaged], 100U);
}

}  // namespace
}  // namespace numacre::engine
