// Which socket a daemon removes when it ends: its own, and no other.
#include "os/socket_file.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "os/fd.hpp"

namespace numacre::daemon {
namespace {

class SocketFileTest : public testing::Test {
protected:
    void SetUp() override {
        char name[] = "/tmp/numacre-socket-XXXXXX";
        ASSERT_NE(::mkdtemp(name), nullptr);
        folder_ = name;
        path_ = folder_ / "attach.sock";
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    Fd bind() const {
        Fd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path_.c_str());
        EXPECT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr *>(&address), sizeof address), 0);
        return listener;
    }
    bool is_there() const { return std::filesystem::exists(std::filesystem::symlink_status(path_)); }

    std::filesystem::path folder_, path_;
};

TEST_F(SocketFileTest, is_removed_with_its_daemon_and_once) {
    const Fd listener = bind();
    {
        std::optional<SocketFile> last;
        {
            SocketFile first(path_);
            last.emplace(std::move(first));
        }
        EXPECT_TRUE(is_there()) << "what was moved from is nobody's";
    }
    EXPECT_FALSE(is_there());
}

TEST_F(SocketFileTest, stays_if_it_is_another_daemon_s_by_now) {
    const Fd listener = bind();  // open all the time, so that its inode is not used again
    Fd other;
    {
        const SocketFile ours(path_);
        std::filesystem::remove_all(folder_);
        std::filesystem::create_directory(folder_);
        other = bind();
    }
    EXPECT_TRUE(is_there());
}

TEST_F(SocketFileTest, that_has_gone_already_is_no_concern) {
    const Fd listener = bind();
    const SocketFile ours(path_);
    std::filesystem::remove(path_);
}

}  // namespace
}  // namespace numacre::daemon
