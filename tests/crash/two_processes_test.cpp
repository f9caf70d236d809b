// The C ABI between processes, on a live daemon ($NUMACRE_RUNTIME_DIR, made by with_daemon.py): hand-over, foreign
// frees, fork, waiting. Each child is a process of its own that attaches by itself.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

#include "numacre/numacre.h"

namespace {

// Runs body in a new process; true if it returned true.
bool in_child(const std::function<bool()> &body) {
    const pid_t child = fork();
    if (child == 0) _exit(body() ? 0 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class TwoProcesses : public ::testing::Test {
protected:
    void SetUp() override { ASSERT_EQ(numacre_attach(nullptr, nullptr, &pool), 0) << numacre_last_error(); }
    void TearDown() override { numacre_detach(pool); }
    numacre_pool *pool = nullptr;
};

TEST_F(TwoProcesses, a_block_is_handed_over_with_its_contents) {
    void *block = nullptr;
    ASSERT_EQ(numacre_alloc(pool, 8192, &block), 0) << numacre_last_error();
    std::strcpy(static_cast<char *>(block) + 5000, "from the parent");
    const numacre_ref ref = numacre_ref_of(pool, block);
    EXPECT_TRUE(in_child([&] {
        numacre_pool *own = nullptr;
        void *taken = nullptr;
        if (numacre_attach(nullptr, nullptr, &own) != 0 || numacre_take(own, ref, &taken) != 0) return false;
        const bool same = std::strcmp(static_cast<char *>(taken) + 5000, "from the parent") == 0;
        return same && numacre_usable_size(own, taken) == 8192 && numacre_free(own, taken) == 0;
    }));
    EXPECT_EQ(numacre_free(pool, block), -ESTALE) << "the child took and freed it";
    void *again = nullptr;
    EXPECT_EQ(numacre_take(pool, ref, &again), -ESTALE);
}

// The mapping is not inherited (MADV_DONTFORK), so that its addresses are free in the child.
TEST_F(TwoProcesses, addresses_are_the_same_where_both_attach_at_one) {
    void *base = nullptr;
    std::size_t bytes = 0;
    ASSERT_EQ(numacre_region(pool, 0, &base, &bytes), 0);
    void *block = nullptr;
    ASSERT_EQ(numacre_alloc(pool, 8192, &block), 0) << numacre_last_error();
    std::strcpy(static_cast<char *>(block), "from the parent");
    const numacre_ref ref = numacre_ref_of(pool, block);
    EXPECT_TRUE(in_child([&] {
        const numacre_attach_options options{sizeof options, nullptr, nullptr, base, 0};
        numacre_pool *own = nullptr;
        void *taken = nullptr;
        if (numacre_attach_with(&options, &own) != 0 || numacre_take(own, ref, &taken) != 0) return false;
        return taken == block && std::strcmp(static_cast<char *>(taken), "from the parent") == 0 &&
               numacre_free(own, block) == 0;
    }));
}

// The child is no client: it maps the file that it has been given.
TEST_F(TwoProcesses, a_peer_maps_the_file_that_a_client_passes_on) {
    int fd = -1;
    std::uint64_t offset = 1;
    EXPECT_EQ(numacre_region_fd(pool, 0, &fd, &offset), -EINVAL);
    EXPECT_NE(std::string(numacre_last_error()).find("NUMACRE_KEEP_DESCRIPTORS"), std::string::npos);
    const numacre_attach_options options{sizeof options, nullptr, nullptr, nullptr, NUMACRE_KEEP_DESCRIPTORS};
    numacre_pool *own = nullptr;
    ASSERT_EQ(numacre_attach_with(&options, &own), 0) << numacre_last_error();
    void *base = nullptr, *block = nullptr;
    std::size_t bytes = 0;
    ASSERT_EQ(numacre_region(own, 0, &base, &bytes), 0);
    ASSERT_EQ(numacre_alloc(own, 8192, &block), 0) << numacre_last_error();
    std::strcpy(static_cast<char *>(block), "for the peer");
    const auto at = static_cast<std::size_t>(static_cast<char *>(block) - static_cast<char *>(base));
    ASSERT_EQ(numacre_region_fd(own, 0, &fd, &offset), 0) << numacre_last_error();
    EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_TRUE(in_child([&] {
        void *const mapped =
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, static_cast<off_t>(offset));
        if (mapped == MAP_FAILED || std::strcmp(static_cast<char *>(mapped) + at, "for the peer") != 0) return false;
        std::strcpy(static_cast<char *>(mapped) + at, "from the peer");
        int other = -1;
        std::uint64_t ignored = 0;
        return numacre_region_fd(own, 0, &other, &ignored) == -ECHILD;
    }));
    EXPECT_STREQ(static_cast<char *>(block), "from the peer");
    close(fd);
    int again = -1;
    ASSERT_EQ(numacre_region_fd(own, 0, &again, &offset), 0) << "the caller's descriptor is another one";
    close(again);
    EXPECT_EQ(numacre_region_fd(own, 7, &fd, &offset), -ENODEV);
    EXPECT_EQ(numacre_region_fd(own, 0, nullptr, &offset), -EINVAL);
    EXPECT_EQ(numacre_region_fd(own, 0, &fd, nullptr), -EINVAL);
    EXPECT_EQ(numacre_region_fd(nullptr, 0, &fd, &offset), -EINVAL);
    numacre_detach(own);
    const numacre_attach_options wrong{sizeof wrong, nullptr, nullptr, nullptr, 2};
    EXPECT_EQ(numacre_attach_with(&wrong, &own), -EINVAL);
    EXPECT_NE(std::string(numacre_last_error()).find("0x2"), std::string::npos) << numacre_last_error();
}

// Also where the padding between two numa nodes, or behind the last one, is larger than a page.
TEST_F(TwoProcesses, a_childs_addresses_are_free_behind_the_blocks_too) {
    numacre_pool *objects = nullptr;
    ASSERT_EQ(numacre_objects_open(pool, "padded", 2368, 1000, 0, &objects), 0) << numacre_last_error();
    void *base = nullptr;
    std::size_t bytes = 0;
    ASSERT_EQ(numacre_region(objects, 0, &base, &bytes), 0);
    EXPECT_TRUE(in_child([&] {
        const numacre_attach_options options{sizeof options, nullptr, "default.padded", base, 0};
        numacre_pool *own = nullptr;
        return numacre_attach_with(&options, &own) == 0;
    }));
    numacre_detach(objects);
}

TEST_F(TwoProcesses, an_attach_at_an_address_is_there_or_fails) {
    void *base = nullptr;
    std::size_t bytes = 0;
    ASSERT_EQ(numacre_region(pool, 0, &base, &bytes), 0);
    numacre_pool *other = nullptr;
    const auto attach_at = [&](void *address) {
        const numacre_attach_options options{sizeof options, nullptr, nullptr, address, 0};
        return numacre_attach_with(&options, &other);
    };
    const auto says = [](const char *words) {
        EXPECT_NE(std::string(numacre_last_error()).find(words), std::string::npos) << numacre_last_error();
    };
    EXPECT_EQ(attach_at(base), -EEXIST) << "the first handle is there";
    says("are not all free");
    EXPECT_EQ(attach_at(static_cast<char *>(base) + 4096), -EINVAL);
    says("is no multiple of");
    EXPECT_EQ(attach_at(reinterpret_cast<void *>(std::uintptr_t{1} << 62)), -ENOMEM) << "no program may have it";
    EXPECT_EQ(other, nullptr);
    struct {
        numacre_attach_options options{sizeof(numacre_attach_options) + 8, nullptr, nullptr, nullptr, 0};
        std::uint64_t of_tomorrow = 1;
    } newer;
    EXPECT_EQ(numacre_attach_with(&newer.options, &other), -EINVAL);
    says("use a newer library");
    EXPECT_EQ(numacre_attach_with(nullptr, nullptr), -EINVAL);
    // A program of before `address` was there.
    newer.options.struct_size = offsetof(numacre_attach_options, address);
    newer.options.address = base;
    ASSERT_EQ(numacre_attach_with(&newer.options, &other), 0) << numacre_last_error();
    numacre_detach(other);
    ASSERT_EQ(numacre_attach_with(nullptr, &other), 0) << numacre_last_error();
    numacre_detach(other);
    // Where it was once.
    numacre_detach(pool);
    ASSERT_EQ(attach_at(base), 0) << numacre_last_error();
    pool = other;
    void *again = nullptr;
    ASSERT_EQ(numacre_region(pool, 0, &again, &bytes), 0);
    EXPECT_EQ(again, base);
}

TEST_F(TwoProcesses, somebody_else_s_block_is_not_freed) {
    void *block = nullptr;
    ASSERT_EQ(numacre_alloc(pool, 4096, &block), 0);
    void *base = nullptr;
    std::size_t bytes = 0;
    ASSERT_EQ(numacre_region(pool, 0, &base, &bytes), 0);
    const auto offset = static_cast<char *>(block) - static_cast<char *>(base);
    EXPECT_TRUE(in_child([&] {
        numacre_pool *own = nullptr;
        void *own_base = nullptr;
        std::size_t own_bytes = 0;
        if (numacre_attach(nullptr, nullptr, &own) != 0 || numacre_region(own, 0, &own_base, &own_bytes) != 0)
            return false;
        void *const foreign = static_cast<char *>(own_base) + offset;
        const auto says = [](const char *part) {
            return std::string{numacre_last_error()}.find(part) != std::string::npos;
        };
        return numacre_free(own, foreign) == -EPERM && says("another process") &&
               numacre_ref_of(own, foreign) == NUMACRE_REF_NULL && says("numacre_ref_of: this handle owns no block") &&
               numacre_usable_size(own, foreign) == 0 && says("numacre_usable_size: this handle owns no block");
    }));
    EXPECT_EQ(numacre_free(pool, block), 0) << "still ours";
}

TEST_F(TwoProcesses, a_forked_child_is_refused_and_can_attach_anew) {
    void *block = nullptr;
    ASSERT_EQ(numacre_alloc(pool, 4096, &block), 0);
    std::uint32_t id = 0;
    ASSERT_EQ(numacre_client_id(pool, &id), 0);
    EXPECT_TRUE(in_child([&] {
        void *other = nullptr;
        if (numacre_alloc(pool, 4096, &other) != -ECHILD || numacre_free(pool, block) != -ECHILD) return false;
        numacre_detach(pool);
        numacre_pool *own = nullptr;
        std::uint32_t own_id = 0;
        return numacre_attach(nullptr, nullptr, &own) == 0 && numacre_client_id(own, &own_id) == 0 && own_id != id &&
               numacre_alloc(own, 4096, &other) == 0;
    }));
    EXPECT_EQ(numacre_free(pool, block), 0) << "the parent goes on: " << numacre_last_error();
}

TEST_F(TwoProcesses, an_unknown_pool_is_named) {
    numacre_pool *other = nullptr;
    EXPECT_EQ(numacre_attach(nullptr, "nosuchpool", &other), -ENOENT);
    EXPECT_NE(std::string{numacre_last_error()}.find("nosuchpool"), std::string::npos) << numacre_last_error();
}

TEST_F(TwoProcesses, a_waiter_gets_what_a_dead_client_held) {
    // The other process takes everything and is killed; nobody frees by a call.
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t hog = fork();
    if (hog == 0) {
        numacre_pool *own = nullptr;
        if (numacre_attach(nullptr, nullptr, &own) != 0) _exit(1);
        void *block = nullptr;
        while (numacre_alloc(own, 4096, &block) == 0) {
        }
        if (write(ready[1], "x", 1) != 1) _exit(1);
        pause();
        _exit(0);
    }
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    void *block = nullptr;
    EXPECT_EQ(numacre_alloc(pool, 4096, &block), -ENOMEM);
    ASSERT_EQ(kill(hog, SIGKILL), 0);
    EXPECT_EQ(numacre_alloc_on(pool, -1, 1 << 20, NUMACRE_WAIT_MS(30'000), &block), 0) << numacre_last_error();
    waitpid(hog, nullptr, 0);
    close(ready[0]);
    close(ready[1]);
}

}  // namespace
