#include "terminal.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

namespace numacre::cli {
namespace {

// A signal may interrupt any thread, also one of gRPC's, and may come just before a wait. Only an event that poll()
// sees reaches the waiting thread then. interrupt_event is never drained, so each later wait ends at once.
int interrupt_event = -1;
int resize_event = -1;

void raise_event(int event) {
    const int saved = errno;
    const std::uint64_t one = 1;
    // The write fails only when the count is full, and then the event is raised already.
    [[maybe_unused]] const ssize_t written = ::write(event, &one, sizeof one);
    errno = saved;
}

void write_all(std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return;  // The terminal is gone: there is no one to tell.
        text.remove_prefix(static_cast<std::size_t>(written));
    }
}

}  // namespace

Terminal look_at_terminal(bool ascii) {
    Terminal terminal;
    terminal.pen.ascii = ascii;
    terminal.tty = ::isatty(STDOUT_FILENO) == 1;
    winsize size{};
    if (terminal.tty && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0) {
        terminal.columns = size.ws_col;
        if (size.ws_row != 0) terminal.rows = size.ws_row;
    } else if (const char *columns = std::getenv("COLUMNS")) {
        const long value = std::strtol(columns, nullptr, 10);
        if (value >= 20 && value <= 1000) terminal.columns = static_cast<unsigned>(value);
    }
    // no-color.org: the variable counts if it is present and not empty.
    const char *no_color = std::getenv("NO_COLOR");
    const char *term = std::getenv("TERM");
    terminal.pen.colour = terminal.tty && (no_color == nullptr || *no_color == '\0') && term != nullptr &&
                          std::string_view(term) != "dumb";
    return terminal;
}

void catch_interrupts() {
    if (interrupt_event >= 0) return;
    interrupt_event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    resize_event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (interrupt_event < 0 || resize_event < 0) {
        // Without the eventfds the signals keep their usual meaning.
        throw std::system_error(errno, std::generic_category(), "cannot make an eventfd; raise `ulimit -n`");
    }
    struct sigaction action{};
    action.sa_handler = [](int) { raise_event(interrupt_event); };
    sigemptyset(&action.sa_mask);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
    action.sa_handler = [](int) { raise_event(resize_event); };
    ::sigaction(SIGWINCH, &action, nullptr);
}

bool interrupted() {
    pollfd event{interrupt_event, POLLIN, 0};
    return interrupt_event >= 0 && ::poll(&event, 1, 0) == 1;
}

LiveScreen::LiveScreen() {
    termios settings{};
    if (::tcgetattr(STDIN_FILENO, &settings) == 0) {
        saved_ = settings;
        // ISIG stays on: control-C must work even if the program hangs.
        settings.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
        settings.c_cc[VMIN] = 0;
        settings.c_cc[VTIME] = 0;
        ::tcsetattr(STDIN_FILENO, TCSANOW, &settings);
    }
    write_all("\033[?1049h\033[?25l");
}

LiveScreen::~LiveScreen() {
    write_all("\033[?25h\033[?1049l");
    if (saved_) ::tcsetattr(STDIN_FILENO, TCSANOW, &*saved_);
}

std::optional<char> LiveScreen::wait_key(std::chrono::milliseconds timeout) {
    // poll() passes over negative descriptors.
    std::array<pollfd, 3> events{
        {{input_ended_ ? -1 : STDIN_FILENO, POLLIN, 0}, {interrupt_event, POLLIN, 0}, {resize_event, POLLIN, 0}}};
    if (::poll(events.data(), events.size(), static_cast<int>(timeout.count())) <= 0) return std::nullopt;
    if (events[2].revents != 0) {
        std::uint64_t count = 0;
        [[maybe_unused]] const ssize_t drained = ::read(resize_event, &count, sizeof count);
    }
    if (events[0].revents == 0) return std::nullopt;
    std::array<char, 1> key{};
    const ssize_t got = ::read(STDIN_FILENO, key.data(), key.size());
    if (got == 1) return key[0];
    // A standard input that has ended is readable for ever: without this flag the loop would spin.
    if (got == 0 || errno != EINTR) input_ended_ = true;
    return std::nullopt;
}

void sleep_unless_interrupted(std::chrono::milliseconds duration) {
    const auto end = std::chrono::steady_clock::now() + duration;
    while (!interrupted()) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
        if (left.count() <= 0) return;
        pollfd event{interrupt_event, POLLIN, 0};
        ::poll(&event, 1, static_cast<int>(left.count() < 60'000 ? left.count() : 60'000));
    }
}

}  // namespace numacre::cli
