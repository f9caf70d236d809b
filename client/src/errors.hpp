// The calling thread's last failure, as a sentence.
#pragma once

#include "numacre/error.hpp"

namespace numacre::client {

// Remembers "<what>: <remedy>" for numacre_last_error() and returns -errno of code.
[[gnu::format(printf, 2, 3), gnu::cold]] int fail(Errc code, const char *what, ...);
// As fail(), for a failure whose remedy is not the usual one of its code.
[[gnu::format(printf, 2, 3), gnu::cold]] int fail_with_remedy(Errc code, const char *what_and_remedy, ...);
// Refuses a handle that this process has inherited from its parent.
[[gnu::cold]] inline int fail_forked() {
    return fail(Errc::forked_handle, "this pool handle was made before fork()");
}
const char *last_error();

}  // namespace numacre::client
