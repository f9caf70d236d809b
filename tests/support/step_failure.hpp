// How the tests that step through a client's instructions fail: with the command line that shows the kill again.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <thread>

namespace numacre::test {

inline char now_at[80];  // what to add to the command line to see this kill again

// Says what is wrong, and ends the process at once: a child has its parent's memory.
[[noreturn, gnu::format(printf, 1, 2)]] inline void fail(const char *format, ...) {
    std::fprintf(stderr, "%s %s: ", program_invocation_short_name, now_at);
    va_list arguments;
    va_start(arguments, format);
    std::vfprintf(stderr, format, arguments);
    va_end(arguments);
    std::fputc('\n', stderr);
    _exit(1);
}

// Fails after a minute.
void wait_until(const char *what, auto condition) {
    const auto begin = std::chrono::steady_clock::now();
    while (!condition()) {
        if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(60)) fail("still not so: %s", what);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
}

}  // namespace numacre::test
