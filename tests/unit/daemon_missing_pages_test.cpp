// A page of a watched mapping that cannot be had: here, for the file has become too short.
#include "memory/missing_pages.hpp"

#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "managed_pool_fixture.hpp"
#include "numacre/os/kernel.hpp"
#include "os/fd.hpp"

namespace numacre::daemon {
namespace {

constexpr std::size_t kBytes = (std::size_t{5} << 20) + 4096;  // no multiple of what is mapped instead

class Mapping {
public:
    explicit Mapping(std::size_t bytes = kBytes) : bytes_(bytes), fd_(::memfd_create("missing pages", MFD_CLOEXEC)) {
        give_pages();
        address_ = static_cast<volatile char *>(
            ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0));
        EXPECT_NE(static_cast<void *>(const_cast<char *>(address_)), MAP_FAILED);
        address_[0] = 'a';
    }
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;
    ~Mapping() {
        ::munmap(address(), bytes_);
        ::close(fd_);
    }
    void lose_pages(std::size_t from = 0) { EXPECT_EQ(::ftruncate(fd_, static_cast<off_t>(from)), 0); }
    void give_pages() { EXPECT_EQ(::ftruncate(fd_, static_cast<off_t>(bytes_)), 0); }
    int fd() const { return fd_; }
    void *address() const { return const_cast<char *>(address_); }
    volatile char &operator[](std::size_t at) { return address_[at]; }

private:
    std::size_t bytes_;
    int fd_;
    volatile char *address_;
};

// The signal that ends a child which does this; 0: it ends by itself.
template <class Program>
int end_of(Program program) {
    const pid_t child = ::fork();
    if (child == 0) {
        if (!survive_missing_pages()) ::_exit(1);
        program();
        ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << WEXITSTATUS(status);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(MissingPages, of_a_watched_mapping_are_replaced_whoever_touches_them) {
    EXPECT_EQ(end_of([] {
                  Mapping mapping;
                  WatchedPages before(mapping.address(), kBytes, mapping.fd());
                  const WatchedPages watched(std::move(before));
                  if (watched.are_replaced()) ::_exit(3);
                  mapping.lose_pages();
                  std::vector<std::thread> threads;
                  for (std::size_t i = 0; i < 4; ++i)
                      threads.emplace_back([&mapping, i] {
                          for (std::size_t at = i; at < kBytes; at += 1000) mapping[at] = 'b';
                      });
                  for (std::thread &thread : threads) thread.join();
                  if (mapping[0] == 'a' || !watched.are_replaced()) ::_exit(2);
              }),
              0);
}

std::size_t count_mappings() {
    std::ifstream maps("/proc/self/maps");
    std::size_t count = 0;
    for (std::string line; std::getline(maps, line);) ++count;
    return count;
}

// A pool of 128 GiB in frames of 64 bytes has metadata as large as that. One mapping for each 2 MiB of it was half of
// what a process may have.
TEST(MissingPages, of_a_huge_region_take_few_mappings) {
    constexpr std::size_t kHuge = std::size_t{64} << 30;
    EXPECT_EQ(end_of([] {
                  Mapping mapping(kHuge);
                  const WatchedPages watched(mapping.address(), kHuge, mapping.fd());
                  mapping.lose_pages();
                  const std::size_t before = count_mappings();
                  const auto check = [&] {
                      if (const std::size_t now = count_mappings(); now > before + 40) {
                          std::fprintf(stderr, "%zu mappings, %zu before\n", now, before);
                          ::_exit(2);
                      }
                  };
                  mapping[kHuge / 2] = 'b';
                  check();
                  // No two windows beside each other, then in all of it.
                  constexpr std::size_t kPiece = std::size_t{2} << 20;
                  for (std::size_t at = 0; at < 100 * kPiece; at += 2 * kPiece) {
                      mapping[at] = 'b';
                      check();
                  }
                  for (std::size_t at = 0; at < kHuge; at += kPiece) mapping[at] = 'b';
                  check();
              }),
              0);
}

// What lies beside a page that is missing stays the clients', and so does the page when there is one again.
TEST(MissingPages, hide_only_themselves_and_until_somebody_looks_again) {
    constexpr std::size_t kBehind = std::size_t{2} << 20;
    EXPECT_EQ(end_of([] {
                  Mapping mapping;
                  const WatchedPages watched(mapping.address(), kBytes, mapping.fd());
                  mapping.lose_pages(kBehind);
                  mapping[kBehind] = 'b';
                  mapping[kBehind - 1] = 'c';
                  char beside = 0;
                  if (::pread(mapping.fd(), &beside, 1, kBehind - 1) != 1 || beside != 'c') ::_exit(2);
                  watched.look_again();
                  mapping[kBehind] = 'b';  // still missing
                  mapping.give_pages();
                  mapping[kBehind] = 'd';
                  char found = 0;
                  if (::pread(mapping.fd(), &found, 1, kBehind) != 1 || found == 'd') ::_exit(3);
                  watched.look_again();
                  mapping[kBehind] = 'd';
                  if (::pread(mapping.fd(), &found, 1, kBehind) != 1 || found != 'd') ::_exit(4);
                  if (!watched.are_replaced()) ::_exit(5);
              }),
              0);
}

TEST(MissingPages, of_any_other_are_the_end) {
    EXPECT_EQ(end_of([] {
                  Mapping watched, other;
                  const WatchedPages pages(watched.address(), kBytes, watched.fd());
                  other.lose_pages();
                  other[0] = 'b';
              }),
              SIGBUS);
    EXPECT_EQ(end_of([] {
                  Mapping mapping;
                  {
                      const WatchedPages pages(mapping.address(), kBytes, mapping.fd());
                  }
                  mapping.lose_pages();
                  mapping[0] = 'b';
              }),
              SIGBUS);
}

// A pool with a client that punches holes into the pool's own region. Until the daemon maps the file again, a page that
// is missing cannot be had there.
class PunchedPoolTest : public ManagedPoolTest {
protected:
    static constexpr std::size_t kPage = 4096;

    void SetUp() override {
        ASSERT_TRUE(survive_missing_pages());
        ManagedPoolTest::SetUp();
        const MetadataRegion &region = pool_->pool_region();
        clients_mapping_ = ::mmap(nullptr, region.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, region.fd(), 0);
        ASSERT_NE(clients_mapping_, MAP_FAILED);
        seen_ = PoolView<ProductionEnv>::at(clients_mapping_, pool_->process_slots(), pool_->thread_slots());

        userfault_ = Fd(os::userfaultfd(UFFD_USER_MODE_ONLY));
        uffdio_api api{};
        api.api = UFFD_API;
        api.features = UFFD_FEATURE_SIGBUS;
        if (!userfault_ || os::ioctl(userfault_.get(), UFFDIO_API, &api) != 0)
            GTEST_SKIP() << "userfaultfd is forbidden here";
        uffdio_register registered{};
        registered.range = {reinterpret_cast<std::uintptr_t>(region.address()), region.bytes()};
        registered.mode = UFFDIO_REGISTER_MODE_MISSING;
        ASSERT_EQ(os::ioctl(userfault_.get(), UFFDIO_REGISTER, &registered), 0);
    }
    void TearDown() override {
        if (clients_mapping_ != MAP_FAILED) ::munmap(clients_mapping_, pool_->pool_region().bytes());
    }

    // The number of the page of the pool's region.
    template <class Word>
    std::size_t page_of(const Word &word) const {
        return static_cast<std::size_t>(reinterpret_cast<const char *>(&word) -
                                        static_cast<const char *>(clients_mapping_)) /
               kPage;
    }
    void punch(std::size_t page) {
        EXPECT_EQ(::madvise(static_cast<char *>(clients_mapping_) + page * kPage, kPage, MADV_REMOVE), 0);
    }
    void expect_clients_are_told() {
        EXPECT_EQ(seen_.header->state.load(), static_cast<std::uint64_t>(PoolState::corrupt));
        EXPECT_NE(seen_.header->attention.load() & Attention::kLookAtState, 0U);
    }

    void *clients_mapping_ = MAP_FAILED;
    PoolView<ProductionEnv> seen_;

private:
    Fd userfault_;
};

TEST_F(PunchedPoolTest, is_damaged_and_its_clients_are_told) {
    const std::size_t page = page_of(seen_.processes[pool_->process_slots() - 1]);
    ASSERT_NE(page, page_of(*seen_.header));
    punch(page);
    EXPECT_TRUE(pool_->look_for_damage());
    EXPECT_TRUE(pool_->pool_region().is_lost());
    expect_clients_are_told();
    const std::array clients{*pool_->find_client(1)};
    pool_->set_news(clients, EventBits::kDamaged);
    EXPECT_EQ(seen_.processes[actor_.process.value].news.load(), EventBits::kDamaged);
}

TEST_F(PunchedPoolTest, that_has_a_page_again_tells_its_clients_what_it_could_not_tell_before) {
    punch(page_of(*seen_.header));
    EXPECT_TRUE(pool_->look_for_damage());
    expect_clients_are_told();
    punch(page_of(*seen_.header));
    pool_->tell_clients();
    expect_clients_are_told();
}

}  // namespace
}  // namespace numacre::daemon
