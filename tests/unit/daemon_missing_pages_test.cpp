// A page of a watched mapping that cannot be had: here, for the file has become too short.
#include "memory/missing_pages.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <thread>
#include <vector>

namespace numacre::daemon {
namespace {

constexpr std::size_t kBytes = (std::size_t{5} << 20) + 4096;  // no multiple of what is mapped instead

class Mapping {
public:
    Mapping() : fd_(::memfd_create("missing pages", MFD_CLOEXEC)) {
        EXPECT_EQ(::ftruncate(fd_, kBytes), 0);
        address_ = static_cast<volatile char *>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0));
        EXPECT_NE(static_cast<void *>(const_cast<char *>(address_)), MAP_FAILED);
        address_[0] = 'a';
    }
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;
    ~Mapping() {
        ::munmap(address(), kBytes);
        ::close(fd_);
    }
    void lose_pages() { EXPECT_EQ(::ftruncate(fd_, 0), 0); }
    void *address() const { return const_cast<char *>(address_); }
    volatile char &operator[](std::size_t at) { return address_[at]; }

private:
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
                  WatchedPages before(mapping.address(), kBytes);
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

TEST(MissingPages, of_any_other_are_the_end) {
    EXPECT_EQ(end_of([] {
                  Mapping watched, other;
                  const WatchedPages pages(watched.address(), kBytes);
                  other.lose_pages();
                  other[0] = 'b';
              }),
              SIGBUS);
    EXPECT_EQ(end_of([] {
                  Mapping mapping;
                  {
                      const WatchedPages pages(mapping.address(), kBytes);
                  }
                  mapping.lose_pages();
                  mapping[0] = 'b';
              }),
              SIGBUS);
}

}  // namespace
}  // namespace numacre::daemon
