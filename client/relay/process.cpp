#include "process.hpp"

#include <poll.h>
#include <unistd.h>

#include <csignal>

namespace relay {
namespace {

volatile std::sig_atomic_t stop_flag = 0;

}  // namespace

Fd::~Fd() {
    if (fd_ >= 0) ::close(fd_);
}

bool wait_until_readable(int fd, int timeout_ms) {
    pollfd waiting{fd, POLLIN, 0};
    return ::poll(&waiting, 1, timeout_ms) > 0;
}

bool stop_requested() {
    return stop_flag != 0;
}

void stop_on_signals() {
    struct sigaction action{};
    action.sa_handler = [](int) { stop_flag = 1; };
    // No SA_RESTART: a sleeping call must return, so that its caller looks at the flag.
    for (const int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
}

}  // namespace relay
