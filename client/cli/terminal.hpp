// The terminal at the other end of standard output, if there is one, and the live screen of `top`.
#pragma once

#include <termios.h>

#include <chrono>
#include <optional>

#include "draw.hpp"

namespace numacre::cli {

struct Terminal {
    bool tty = false;  // standard output is a terminal
    unsigned columns = 80;
    unsigned rows = 24;
    Pen pen;
};

// Colours are on only for a terminal that is not "dumb", and not with NO_COLOR. Without a terminal the width is
// $COLUMNS, else 80.
Terminal look_at_terminal(bool ascii);

// From here on SIGINT, SIGTERM and SIGHUP only make interrupted() true, so that the caller can clean up. May be called
// again. Throws std::system_error.
void catch_interrupts();
bool interrupted();

// The alternate screen without echo or cursor; the destructor restores everything.
class LiveScreen {
public:
    LiveScreen();
    ~LiveScreen();
    LiveScreen(const LiveScreen &) = delete;
    LiveScreen &operator=(const LiveScreen &) = delete;

    // Waits for a key at most this long. No value if time ran out, the window changed its size or a signal came.
    std::optional<char> wait_key(std::chrono::milliseconds timeout);

private:
    std::optional<termios> saved_;
    bool input_ended_ = false;
};

// Sleeps, but returns early when interrupted() becomes true.
void sleep_unless_interrupted(std::chrono::milliseconds duration);

}  // namespace numacre::cli
