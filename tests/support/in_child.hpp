// A test in a process of its own: for what a process has once, or what may hang or end it.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace numacre::test {

// 0: the child's function returned true. Otherwise its wait status. A child that hangs is the alarm's.
// fork_it: as fork().
inline int in_child(pid_t (*fork_it)(), const std::function<bool()> &child) {
    const pid_t pid = fork_it();
    if (pid == 0) {
        alarm(60);
        _exit(child() ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return status;
}
inline int in_child(const std::function<bool()> &child) {
    return in_child(fork, child);
}

}  // namespace numacre::test
