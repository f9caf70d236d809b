#include "verdict.hpp"

#include <cstdarg>
#include <cstdio>

namespace numacre::simulation {

void Verdict::record(const std::string &what) {
    if (is_clean()) failure_ = "step " + std::to_string(steps_done()) + ": " + what;
}

void Verdict::fail(const char *what, ...) {
    char text[400];
    va_list arguments;
    va_start(arguments, what);
    std::vsnprintf(text, sizeof text, what, arguments);
    va_end(arguments);
    record(text);
    scheduler_.stop();
}

void Verdict::say(const char *what, ...) {
    if (!trace_) return;
    const int fiber = scheduler_.current();
    std::printf("%9llu  ", static_cast<unsigned long long>(steps_done()));
    if (fiber < 0)
        std::printf("%-12s", "-");
    else if (const int process = scheduler_.fibers()[static_cast<std::size_t>(fiber)].process; process == kDaemon)
        std::printf("%-12s", "daemon");
    else
        std::printf("p%d fiber %-4d", process, fiber);
    va_list arguments;
    va_start(arguments, what);
    std::vprintf(what, arguments);
    va_end(arguments);
    std::printf("\n");
    std::fflush(stdout);
}

}  // namespace numacre::simulation
