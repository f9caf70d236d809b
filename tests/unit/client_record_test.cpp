// The recorder: which lines a program leaves behind, also when it is killed. Each program is a child of this one, as
// the library looks at NUMACRE_TRACE once in a process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "numacre/numacre.h"

namespace {

struct Line {
    unsigned long long time_ns = 0, size_bytes = 0;
    std::string lifetime, block;
};

std::vector<Line> lines_of(const std::filesystem::path &path) {
    std::ifstream file(path);
    std::string text;
    std::getline(file, text);
    EXPECT_EQ(text, "time_ns,size_bytes,lifetime_ns,block");
    std::vector<Line> lines;
    while (std::getline(file, text)) {
        std::replace(text.begin(), text.end(), ',', ' ');
        std::istringstream fields(text);
        Line line;
        EXPECT_TRUE(fields >> line.time_ns >> line.size_bytes >> line.lifetime >> line.block) << text;
        if (!lines.empty()) {
            EXPECT_GE(line.time_ns, lines.back().time_ns);
        }
        lines.push_back(line);
    }
    return lines;
}

class Record : public ::testing::Test {
protected:
    void SetUp() override {
        std::string name = (std::filesystem::temp_directory_path() / "numacre-record-XXXXXX").string();
        ASSERT_NE(mkdtemp(name.data()), nullptr);
        folder_ = name;
        trace_ = folder_ / "trace";
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    // Returns the child's wait status; the program ends with exit status 0 if it returns.
    int run(const std::function<void()> &program) {
        const pid_t child = fork();
        if (child == 0) {
            setenv("NUMACRE_TRACE", trace_.c_str(), 1);
            program();
            _exit(0);
        }
        child_ = child;
        int status = 0;
        EXPECT_EQ(waitpid(child, &status, 0), child);
        return status;
    }

    std::filesystem::path folder_, trace_;
    pid_t child_ = 0;
};

void check(bool right, int line) {
    if (right) return;
    std::fprintf(stderr, "line %d: %s\n", line, numacre_last_error());
    _exit(1);
}
#define CHECK_CALL(call) check((call) == 0, __LINE__)

numacre_pool *open_pool() {
    numacre_pool *pool = nullptr;
    CHECK_CALL(numacre_open_private(nullptr, &pool));
    return pool;
}

TEST_F(Record, has_every_way_to_allocate_and_to_free) {
    EXPECT_EQ(run([] {
                  numacre_pool *const pool = open_pool();
                  void *block = nullptr;
                  for (int i = 0; i < 3; ++i) {  // through the cache, which is the hot path when nothing is recorded
                      CHECK_CALL(numacre_alloc(pool, 100, &block));
                      CHECK_CALL(numacre_free(pool, block));
                  }
                  CHECK_CALL(numacre_alloc_on(pool, -1, 200, NUMACRE_UNCACHED, &block));
                  CHECK_CALL(numacre_free_uncached(pool, block));
                  CHECK_CALL(numacre_alloc_on(pool, 0, 300, NUMACRE_ZERO, &block));
                  CHECK_CALL(numacre_free(pool, block));
                  void *blocks[2];
                  CHECK_CALL(numacre_alloc_bulk(pool, 400, blocks, 2));
                  CHECK_CALL(numacre_free_bulk(pool, blocks, 2));
                  CHECK_CALL(numacre_alloc(pool, 500, &block));  // ended by the detach
                  numacre_detach(pool);
              }),
              0);
    const std::vector<Line> lines = lines_of(trace_);
    ASSERT_EQ(lines.size(), 8U);
    const unsigned long long sizes[] = {100, 100, 100, 200, 300, 400, 400, 500};
    for (std::size_t i = 0; i < lines.size(); ++i) {
        EXPECT_EQ(lines[i].size_bytes, sizes[i]);
        EXPECT_NE(lines[i].lifetime, "never") << "line " << i;
        EXPECT_EQ(lines[i].block.rfind("private." + std::to_string(child_) + ".", 0), 0U) << lines[i].block;
    }
    EXPECT_NE(lines[5].block, lines[6].block);
}

TEST_F(Record, of_what_is_refused_says_nothing) {
    EXPECT_EQ(run([] {
                  numacre_pool *const pool = open_pool();
                  void *block = nullptr;
                  check(numacre_alloc(pool, 0, &block) == -EINVAL, __LINE__);
                  CHECK_CALL(numacre_alloc(pool, 1, &block));
                  check(numacre_free(pool, static_cast<char *>(block) + 1) == -EINVAL, __LINE__);
                  check(numacre_free(pool, nullptr) == -EINVAL, __LINE__);
              }),
              0);
    const std::vector<Line> lines = lines_of(trace_);
    ASSERT_EQ(lines.size(), 1U);
    EXPECT_EQ(lines[0].lifetime, "never");
}

TEST_F(Record, of_a_take_ends_the_line_before_and_begins_one) {
    EXPECT_EQ(run([] {
                  numacre_pool *const pool = open_pool();
                  void *block = nullptr;
                  CHECK_CALL(numacre_alloc(pool, 5000, &block));
                  CHECK_CALL(numacre_take(pool, numacre_ref_of(pool, block), &block));
              }),
              0);
    const std::vector<Line> lines = lines_of(trace_);
    ASSERT_EQ(lines.size(), 2U);
    EXPECT_EQ(lines[1].size_bytes, 8192U);
    EXPECT_EQ(lines[0].block, lines[1].block);
    EXPECT_EQ(lines[0].time_ns + std::stoull(lines[0].lifetime), lines[1].time_ns);
    EXPECT_EQ(lines[1].lifetime, "never");
}

TEST_F(Record, of_a_killed_process_is_whole) {
    const int status = run([] {
        numacre_pool *const pool = open_pool();
        void *block = nullptr;
        for (unsigned i = 1; i <= 1000; ++i) {
            CHECK_CALL(numacre_alloc(pool, i, &block));
            if (i % 2 == 0) CHECK_CALL(numacre_free(pool, block));
        }
        raise(SIGKILL);
    });
    EXPECT_TRUE(WIFSIGNALED(status));
    const std::vector<Line> lines = lines_of(trace_);
    ASSERT_EQ(lines.size(), 1000U);
    for (unsigned i = 1; i <= 1000; ++i) {
        EXPECT_EQ(lines[i - 1].size_bytes, i);
        EXPECT_EQ(lines[i - 1].lifetime == "never", i % 2 != 0) << i;
    }
}

TEST_F(Record, of_many_threads_has_all_lines_in_order_and_no_block_twice_at_a_time) {
    constexpr unsigned kThreads = 4, kPairs = 2000;
    EXPECT_EQ(run([] {
                  numacre_pool *const pool = open_pool();
                  std::vector<std::thread> threads;
                  for (unsigned t = 0; t < kThreads; ++t)
                      threads.emplace_back([pool, t] {
                          for (unsigned i = 0; i < kPairs; ++i) {
                              void *block = nullptr;
                              CHECK_CALL(numacre_alloc_on(pool, -1, 4096 << t, NUMACRE_UNCACHED, &block));
                              CHECK_CALL(numacre_free_uncached(pool, block));
                          }
                      });
                  for (std::thread &thread : threads) thread.join();
                  numacre_detach(pool);
              }),
              0);
    const std::vector<Line> lines = lines_of(trace_);
    ASSERT_EQ(lines.size(), kThreads * kPairs);
    std::vector<std::pair<std::string, unsigned long long>> ends;
    for (const Line &line : lines) {
        ASSERT_NE(line.lifetime, "never");
        const auto held =
            std::find_if(ends.begin(), ends.end(), [&](const auto &end) { return end.first == line.block; });
        if (held == ends.end()) {
            ends.emplace_back(line.block, line.time_ns + std::stoull(line.lifetime));
        } else {
            ASSERT_LE(held->second, line.time_ns) << "allocated again before it was freed";
            held->second = line.time_ns + std::stoull(line.lifetime);
        }
    }
}

TEST_F(Record, leaves_a_file_that_is_there_alone_and_gives_a_forked_child_its_own) {
    std::ofstream(trace_) << "mine\n";
    EXPECT_EQ(run([] {
                  numacre_pool *const pool = open_pool();
                  void *block = nullptr;
                  CHECK_CALL(numacre_alloc(pool, 1, &block));
                  const pid_t child = fork();
                  if (child == 0) {
                      check(numacre_free(pool, block) == -ECHILD, __LINE__);
                      numacre_pool *const own = open_pool();
                      CHECK_CALL(numacre_alloc(own, 2, &block));
                      numacre_detach(pool);  // the parent's: nothing happens to its line
                      numacre_detach(own);
                      _exit(0);
                  }
                  int status = 0;
                  waitpid(child, &status, 0);
                  check(status == 0, __LINE__);
                  CHECK_CALL(numacre_alloc(pool, 3, &block));
              }),
              0);
    std::ifstream mine(trace_);
    std::string text;
    std::getline(mine, text);
    EXPECT_EQ(text, "mine");
    const std::vector<Line> parents = lines_of(trace_.string() + "." + std::to_string(child_));
    ASSERT_EQ(parents.size(), 2U);
    EXPECT_EQ(parents[0].lifetime, "never");
    EXPECT_EQ(parents[1].size_bytes, 3U);
    unsigned files = 0;
    for (const auto &entry : std::filesystem::directory_iterator(folder_)) {
        ++files;
        const std::string name = entry.path().string();
        if (name == trace_ || name == trace_.string() + "." + std::to_string(child_)) continue;
        const std::vector<Line> childs = lines_of(entry.path());
        ASSERT_EQ(childs.size(), 1U);
        EXPECT_EQ(childs[0].size_bytes, 2U);
        EXPECT_NE(childs[0].lifetime, "never");
    }
    EXPECT_EQ(files, 3U);
}

// As a daemon to be does: it closes all descriptors, and opens files of its own that get their numbers.
TEST_F(Record, touches_no_file_that_has_got_the_number_of_its_own) {
    const std::string own = (folder_ / "own").string();
    EXPECT_EQ(run([&] {
                  numacre_pool *const pool = open_pool();
                  void *block = nullptr;
                  CHECK_CALL(numacre_alloc(pool, 100, &block));
                  for (int fd = 3; fd < 64; ++fd) close(fd);
                  int fds[61];
                  for (int &fd : fds) fd = open(own.c_str(), O_RDWR | O_CREAT, 0600);
                  CHECK_CALL(numacre_free(pool, block));
                  CHECK_CALL(numacre_alloc(pool, 200, &block));
                  const pid_t child = fork();
                  if (child == 0) {
                      for (const int fd : fds) check(fcntl(fd, F_GETFD) >= 0, __LINE__);
                      _exit(0);
                  }
                  int status = 1;
                  check(waitpid(child, &status, 0) == child && status == 0, __LINE__);
                  numacre_detach(pool);
                  for (const int fd : fds) check(fcntl(fd, F_GETFD) >= 0, __LINE__);
              }),
              0);
    EXPECT_EQ(std::filesystem::file_size(own), 0U);
    EXPECT_EQ(lines_of(trace_).size(), 1U) << "what was written before stays";
}

// A write beyond the limit is a signal that ends the process.
TEST_F(Record, ends_where_the_limit_on_files_is_and_the_program_goes_on) {
    constexpr rlim_t kLimit = 8192;
    const int status = run([] {
        rlimit limit{kLimit, kLimit};
        check(setrlimit(RLIMIT_FSIZE, &limit) == 0, __LINE__);
        numacre_pool *const pool = open_pool();
        void *block = nullptr;
        for (int i = 0; i < 1000; ++i) {
            CHECK_CALL(numacre_alloc(pool, 100, &block));
            CHECK_CALL(numacre_free(pool, block));
        }
        numacre_detach(pool);
    });
    EXPECT_EQ(status, 0);
    const std::size_t lines = lines_of(trace_).size();
    EXPECT_GT(lines, 0U);
    EXPECT_LT(lines, 1000U);
    EXPECT_LE(std::filesystem::file_size(trace_), kLimit);
    trace_ = folder_ / "none";
    EXPECT_EQ(run([] {
                  rlimit limit{0, 0};
                  check(setrlimit(RLIMIT_FSIZE, &limit) == 0, __LINE__);
                  void *block = nullptr;
                  CHECK_CALL(numacre_alloc(open_pool(), 100, &block));
              }),
              0);
}

TEST_F(Record, that_cannot_be_made_fails_the_opening_with_the_reason) {
    trace_ = folder_ / "missing" / "trace";
    EXPECT_EQ(run([this] {
                  numacre_pool *pool = nullptr;
                  check(numacre_open_private(nullptr, &pool) == -EINVAL && pool == nullptr, __LINE__);
                  const std::string said = numacre_last_error();
                  check(said.find(trace_) != std::string::npos, __LINE__);
                  check(said.find("No such file or directory") != std::string::npos, __LINE__);
                  check(numacre_attach(folder_.c_str(), "default", &pool) == -EINVAL, __LINE__);
              }),
              0);
}

}  // namespace
