// Whose the sockets in the runtime directory are.
#include "os/runtime_dir.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace numacre::daemon {
namespace {

class RuntimeDirTest : public testing::Test {
protected:
    void SetUp() override {
        path_ = std::filesystem::temp_directory_path() / ("numacre-runtime-dir-" + std::to_string(::getpid()));
        auto opened = RuntimeDir::open(path_);
        ASSERT_TRUE(opened) << opened.error().message;
        directory_.emplace(std::move(*opened));
        auto listening = listen_for_clients(directory_->attach_socket());
        ASSERT_TRUE(listening) << listening.error().message;
        listener_ = std::move(*listening);
    }
    void TearDown() override { std::filesystem::remove_all(path_); }

    std::filesystem::path path_;
    std::optional<RuntimeDir> directory_;
    Fd listener_;
};

// The kernel takes down what a killed daemon's io_uring was accepting on after the process is gone: until then it
// answers, and nobody is there.
TEST_F(RuntimeDirTest, a_killed_daemons_socket_that_answers_for_a_moment_is_cleared) {
    std::thread kernel([this] {
        pollfd asked{listener_.get(), POLLIN, 0};
        EXPECT_EQ(::poll(&asked, 1, -1), 1);  // somebody has found it alive
        listener_.reset();
    });
    const auto cleared = directory_->clear_socket(directory_->attach_socket());
    kernel.join();
    EXPECT_TRUE(cleared) << cleared.error().message;
    EXPECT_FALSE(std::filesystem::exists(directory_->attach_socket()));
}

TEST_F(RuntimeDirTest, a_socket_that_goes_on_answering_is_somebody_elses) {
    const auto cleared = directory_->clear_socket(directory_->attach_socket(), std::chrono::milliseconds(50));
    ASSERT_FALSE(cleared);
    EXPECT_NE(cleared.error().message.find("taken by a running program"), std::string::npos) << cleared.error().message;
    EXPECT_TRUE(std::filesystem::exists(directory_->attach_socket()));
}

TEST_F(RuntimeDirTest, a_dead_socket_is_cleared) {
    listener_.reset();
    EXPECT_TRUE(directory_->clear_socket(directory_->attach_socket()));
    EXPECT_FALSE(std::filesystem::exists(directory_->attach_socket()));
}

// A user who could replace a socket in it could take the daemon's place.
TEST_F(RuntimeDirTest, a_directory_that_others_may_change_is_refused) {
    directory_.reset();
    std::filesystem::permissions(path_, std::filesystem::perms{0777});
    auto opened = RuntimeDir::open(path_);
    ASSERT_FALSE(opened);
    EXPECT_NE(opened.error().message.find("chmod o-w"), std::string::npos) << opened.error().message;
    // As /tmp: what is in it only its owner may replace.
    ASSERT_EQ(::chmod(path_.c_str(), 01777), 0);
    EXPECT_TRUE(RuntimeDir::open(path_));
    std::filesystem::permissions(path_, std::filesystem::perms{0755});
    EXPECT_TRUE(RuntimeDir::open(path_));
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
    ASSERT_EQ(::chown(path_.c_str(), 65534, 65534), 0);
    opened = RuntimeDir::open(path_);
    ASSERT_FALSE(opened);
    EXPECT_NE(opened.error().message.find("belongs to uid 65534"), std::string::npos) << opened.error().message;
}

}  // namespace
}  // namespace numacre::daemon
