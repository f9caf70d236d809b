#include "errors.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace numacre::client {

namespace {

// initial-exec: in a library that dlopen() has loaded, a thread's first access to a variable of another model may call
// malloc(). A signal handler whose call fails may have interrupted malloc().
thread_local char last_message[320] __attribute__((tls_model("initial-exec"))) = "no error";
// Of fail_often(); nullptr: the last failure is another one.
thread_local const char *often_what __attribute__((tls_model("initial-exec"))) = nullptr;
thread_local Errc often_code __attribute__((tls_model("initial-exec"))) = Errc::ok;
thread_local char kept_message[sizeof last_message] __attribute__((tls_model("initial-exec")));

void write_often() {
    if (often_what == nullptr) return;
    snprintf(last_message, sizeof last_message, "%s: %s", often_what, error_row(often_code).remedy);
    often_what = nullptr;
}

[[gnu::format(printf, 1, 0)]] void remember(const char *what, va_list arguments, const char *remedy) {
    often_what = nullptr;
    const int written = vsnprintf(last_message, sizeof last_message, what, arguments);
    if (written >= 0 && static_cast<std::size_t>(written) < sizeof last_message)
        snprintf(last_message + written, sizeof last_message - static_cast<std::size_t>(written), ": %s", remedy);
}

}  // namespace

int fail(Errc code, const char *what, ...) {
    va_list arguments;
    va_start(arguments, what);
    remember(what, arguments, error_row(code).remedy);
    va_end(arguments);
    return -to_errno(code);
}

int fail_often(Errc code, const char *what) {
    often_code = code;
    often_what = what;
    return -to_errno(code);
}

int fail_without_memory(const char *what, ...) {
    va_list arguments;
    va_start(arguments, what);
    remember(what, arguments, "let the process free some, or raise its limit (ulimit -v, MemoryMax=)");
    va_end(arguments);
    return -to_errno(Errc::out_of_frames);
}

int fail_with_remedy(Errc code, const char *what_and_remedy, ...) {
    va_list arguments;
    va_start(arguments, what_and_remedy);
    often_what = nullptr;
    vsnprintf(last_message, sizeof last_message, what_and_remedy, arguments);
    va_end(arguments);
    return -to_errno(code);
}

void FirstFailure::keep(int error) {
    write_often();
    if (error_ == 0) {
        error_ = error;
        memcpy(kept_message, last_message, sizeof kept_message);
    } else {
        memcpy(last_message, kept_message, sizeof last_message);
    }
}

const char *last_error() {
    write_often();
    return last_message;
}

}  // namespace numacre::client
