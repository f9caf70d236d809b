// Names through the C ABI and the C++ face, in private pools: what a call takes and refuses, and who wakes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "numacre/numacre.hpp"

namespace numacre {
namespace {

class ClientNames : public testing::Test {
protected:
    ClientNames() { EXPECT_EQ(numacre_open_private(nullptr, &pool_), 0) << numacre_last_error(); }
    ~ClientNames() override { numacre_detach(pool_); }

    static numacre_name to_block(std::uint64_t reference) {
        numacre_name binding{};
        binding.struct_size = sizeof binding;
        binding.kind = NUMACRE_NAME_REFERENCE;
        binding.reference = reference;
        return binding;
    }
    int set(const char *name, std::uint64_t reference) {
        const numacre_name binding = to_block(reference);
        return numacre_name_set(pool_, name, &binding, nullptr);
    }
    int get(const char *name, numacre_name &found, std::uint32_t kind = 0) {
        found = {};
        found.struct_size = sizeof found;
        return numacre_name_get(pool_, name, kind, &found);
    }

    numacre_pool *pool_ = nullptr;
};

TEST_F(ClientNames, a_name_is_bound_found_and_removed) {
    numacre_name binding = to_block(7), found;
    std::uint64_t version = 0;
    ASSERT_EQ(numacre_name_set(pool_, "n", &binding, &version), 0) << numacre_last_error();
    EXPECT_EQ(version, 1U);
    ASSERT_EQ(get("n", found), 0) << numacre_last_error();
    EXPECT_EQ(found.reference, 7U);
    EXPECT_EQ(found.version, 1U);
    EXPECT_EQ(found.user, ::geteuid());
    EXPECT_STREQ(found.name, "n");
    EXPECT_EQ(get("m", found), -ENODATA);
    EXPECT_NE(std::strstr(numacre_last_error(), "'m'"), nullptr) << numacre_last_error();
    EXPECT_EQ(get("n", found, NUMACRE_NAME_CHANNEL), -EINVAL);
    EXPECT_NE(std::strstr(numacre_last_error(), "bound to a reference"), nullptr) << numacre_last_error();
    binding.flags = NUMACRE_NAME_COMPARE;
    EXPECT_EQ(numacre_name_set(pool_, "n", &binding, nullptr), -EEXIST);
    binding.version = 2;
    EXPECT_EQ(numacre_name_set(pool_, "n", &binding, nullptr), -EAGAIN);
    EXPECT_EQ(numacre_name_set(pool_, "m", &binding, nullptr), -ENODATA);
    binding.version = 1;
    binding.reference = 8;
    EXPECT_EQ(numacre_name_set(pool_, "n", &binding, &version), 0) << numacre_last_error();
    EXPECT_EQ(version, 2U);
    EXPECT_EQ(numacre_name_remove(pool_, "n", 1), -EAGAIN);
    EXPECT_EQ(numacre_name_remove(pool_, "n", 2), 0) << numacre_last_error();
    EXPECT_EQ(numacre_name_remove(pool_, "n", 0), -ENODATA);
}

TEST_F(ClientNames, what_cannot_be_bound_is_refused_with_the_remedy) {
    numacre_name binding = to_block(7);
    const auto refused = [&](const char *words, const char *name = "n") {
        EXPECT_EQ(numacre_name_set(pool_, name, &binding, nullptr), -EINVAL);
        EXPECT_NE(std::strstr(numacre_last_error(), words), nullptr) << numacre_last_error() << " / " << words;
        binding = to_block(7);
    };
    refused("is NULL", nullptr);
    refused("is empty", "");
    refused("too long", std::string(48, 'a').c_str());
    refused("character 2 of the name, 0x20", "a b");
    binding.struct_size = 0;
    refused("struct_size");
    binding.kind = NUMACRE_NAME_CHANNEL;
    refused("the daemon alone");
    binding.kind = 0;
    refused("kind is 0");
    binding.reference = 0;
    refused("NUMACRE_REF_NULL");
    binding.flags = 4;
    refused("flags is 0x4");
    binding.kind = NUMACRE_NAME_OBJECTS;
    std::memset(binding.objects, 'a', sizeof binding.objects);
    refused("no name of a pool");
    EXPECT_EQ(numacre_name_set(pool_, "n", nullptr, nullptr), -EINVAL);
    std::array<std::byte, sizeof(numacre_name) + 8> newer{};
    newer.back() = std::byte{1};
    binding = to_block(7);
    binding.struct_size = newer.size();
    std::memcpy(newer.data(), &binding, sizeof binding);
    EXPECT_EQ(numacre_name_set(pool_, "n", reinterpret_cast<const numacre_name *>(newer.data()), nullptr), -EINVAL);
    EXPECT_EQ(numacre_name_set(nullptr, "n", &binding, nullptr), -EINVAL);
    numacre_name found;
    EXPECT_EQ(get("n", found), -ENODATA);
    found.struct_size = 4;
    EXPECT_EQ(numacre_name_get(pool_, "n", 0, &found), -EINVAL);
}

TEST_F(ClientNames, a_list_has_as_many_as_there_is_room_for_and_tells_how_many_there_are) {
    constexpr std::size_t kAll = 256;
    for (std::size_t i = 0; i < kAll; ++i) ASSERT_EQ(set(("n" + std::to_string(i)).c_str(), i + 1), 0);
    EXPECT_EQ(set("more", 1), -EDQUOT);
    EXPECT_NE(std::strstr(numacre_last_error(), "256 names"), nullptr) << numacre_last_error();
    std::size_t count = 0;
    std::uint64_t version = 0;
    EXPECT_EQ(numacre_name_list(pool_, nullptr, 0, &count, &version), 0);
    EXPECT_EQ(count, kAll);
    EXPECT_EQ(version, kAll);
    // An older program's structs: they end before the last field.
    constexpr std::size_t kOlder = offsetof(numacre_name, objects);
    std::vector<std::byte> room(3 * kOlder + 8, std::byte{0x5a});
    const std::size_t size = kOlder;
    std::memcpy(room.data(), &size, sizeof size);
    EXPECT_EQ(numacre_name_list(pool_, reinterpret_cast<numacre_name *>(room.data()), 3, &count, nullptr), 0);
    EXPECT_EQ(room.back(), std::byte{0x5a});
    for (std::size_t i = 0; i < 3; ++i) {
        numacre_name found{};
        std::memcpy(static_cast<void *>(&found), room.data() + i * kOlder, kOlder);
        EXPECT_EQ(found.struct_size, kOlder);
        EXPECT_EQ(found.name[0], 'n');
    }
    EXPECT_EQ(numacre_name_list(pool_, nullptr, 1, &count, nullptr), -EINVAL);
    EXPECT_EQ(numacre_name_list(pool_, nullptr, 0, nullptr, nullptr), -EINVAL);
}

TEST_F(ClientNames, a_watcher_wakes_for_a_change_and_for_none_else) {
    std::uint64_t version = 0;
    EXPECT_EQ(numacre_name_watch(pool_, &version, 0), -ETIMEDOUT);
    EXPECT_EQ(numacre_name_watch(pool_, &version, 20), -ETIMEDOUT);
    EXPECT_EQ(version, 0U);
    std::atomic<bool> has_woken{false};
    std::thread watcher([&] {
        EXPECT_EQ(numacre_name_watch(pool_, &version, -1), 0) << numacre_last_error();
        has_woken = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_FALSE(has_woken);
    EXPECT_EQ(set("n", 1), 0);
    watcher.join();
    EXPECT_EQ(version, 1U);
    EXPECT_EQ(numacre_name_watch(pool_, nullptr, 0), -EINVAL);
}

TEST_F(ClientNames, of_threads_that_want_a_free_name_one_gets_it) {
    for (int round = 0; round < 200; ++round) {
        const std::string name = "n" + std::to_string(round % 100);
        if (round >= 100) {
            EXPECT_EQ(numacre_name_remove(pool_, name.c_str(), 0), 0);
        }
        std::atomic<unsigned> won{0}, lost{0}, ready{0};
        std::vector<std::thread> threads;
        for (unsigned i = 1; i <= 3; ++i)
            threads.emplace_back([&, i] {
                numacre_name binding = to_block(i);
                binding.flags = NUMACRE_NAME_COMPARE;
                for (ready.fetch_add(1); ready.load() < 3;) {
                }
                const int error = numacre_name_set(pool_, name.c_str(), &binding, nullptr);
                ++(error == 0 ? won : lost);
            });
        for (auto &thread : threads) thread.join();
        EXPECT_EQ(won, 1U);
        EXPECT_EQ(lost, 2U);
    }
}

TEST(ClientNamesFace, the_cpp_face_has_all_of_it) {
    auto opened = Pool::open_private({});
    ASSERT_TRUE(opened) << opened.error().message;
    Pool &pool = *opened;
    const auto first = pool.set_name("block", Ref{42});
    ASSERT_TRUE(first) << first.error().message;
    const auto second = pool.set_name("orders", std::string("default.orders"), {true, 0});
    ASSERT_TRUE(second) << second.error().message;
    EXPECT_EQ(pool.set_name("orders", std::string("x"), {true, 0}).error().code, Errc::already_exists);
    EXPECT_EQ(pool.set_name("orders", std::string(64, 'x')).error().code, Errc::bad_argument);
    EXPECT_EQ(pool.name("block")->ref, Ref{42});
    const auto orders = pool.name("orders", NameKind::objects);
    ASSERT_TRUE(orders);
    EXPECT_EQ(orders->objects, "default.orders");
    EXPECT_TRUE(orders->of_pool);
    EXPECT_EQ(orders->version, *second);
    EXPECT_EQ(pool.name("nobody").error().code, Errc::no_such_name);
    const auto all = pool.names();
    ASSERT_TRUE(all);
    EXPECT_EQ(all->names.size(), 2U);
    EXPECT_EQ(*pool.watch_names(*first), all->version);
    EXPECT_EQ(pool.watch_names(all->version, std::chrono::milliseconds{0}).error().code, Errc::timed_out);
    EXPECT_TRUE(pool.remove_name("block", *first));
    EXPECT_EQ(pool.remove_name("block").error().code, Errc::no_such_name);
}

}  // namespace
}  // namespace numacre
