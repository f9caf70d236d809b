#include "os/close_timer.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

namespace numacre::daemon {

namespace {

// Long enough for a close that does not wait; short, because there may be many closes in line.
constexpr long kPatienceNanoseconds = 2'000'000;

int interrupting_signal() {
    return SIGRTMIN + 3;
}

}  // namespace

CloseTimer::CloseTimer() {
    struct sigaction nothing{};
    nothing.sa_handler = [](int) {};  // without SA_RESTART: an interrupted call ends
    ::sigaction(interrupting_signal(), &nothing, nullptr);
    sigset_t ours;
    sigemptyset(&ours);
    sigaddset(&ours, interrupting_signal());
    ::pthread_sigmask(SIG_UNBLOCK, &ours, nullptr);
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = interrupting_signal();
    event._sigev_un._tid = ::gettid();
    timer_t timer{};
    if (::timer_create(CLOCK_MONOTONIC, &event, &timer) == 0) timer_ = timer;
}

CloseTimer::~CloseTimer() {
    if (timer_) ::timer_delete(*timer_);
}

void CloseTimer::set(bool armed) const {
    if (!timer_) return;
    const timespec patience{0, armed ? kPatienceNanoseconds : 0};
    const itimerspec times{patience, patience};
    ::timer_settime(*timer_, 0, &times, nullptr);
}

}  // namespace numacre::daemon
