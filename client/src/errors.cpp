#include "errors.hpp"

#include <cstdarg>
#include <cstdio>

namespace numacre::client {
namespace {

thread_local char last_message[320] = "no error";

}  // namespace

int fail(Errc code, const char *what, ...) {
    va_list arguments;
    va_start(arguments, what);
    const int written = vsnprintf(last_message, sizeof last_message, what, arguments);
    va_end(arguments);
    if (written >= 0 && static_cast<std::size_t>(written) < sizeof last_message)
        snprintf(last_message + written, sizeof last_message - static_cast<std::size_t>(written), ": %s",
                 error_row(code).remedy);
    return -to_errno(code);
}

const char *last_error() {
    return last_message;
}

}  // namespace numacre::client
