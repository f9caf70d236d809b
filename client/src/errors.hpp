// The calling thread's last failure, as a sentence.
#pragma once

#include "numacre/error.hpp"

namespace numacre::client {

// Remembers "<what>: <remedy>" for numacre_last_error() and returns -errno of code. The remedy is that of the code's
// row in error.hpp: only for a sentence without a remedy of its own.
[[gnu::format(printf, 2, 3), gnu::cold]] int fail(Errc code, const char *what, ...);
// As fail(), for a failure whose sentence has a remedy of its own.
[[gnu::format(printf, 2, 3), gnu::cold]] int fail_with_remedy(Errc code, const char *what_and_remedy, ...);
// As fail(), for answers that a program asks for again and again: no sentence is made before somebody wants to read it.
// what: outlives the thread.
int fail_often(Errc code, const char *what);
// The process itself has no memory, or no address space, for something: more memory of a pool would not help.
[[gnu::format(printf, 1, 2), gnu::cold]] int fail_without_memory(const char *what, ...);
// Refuses a handle that this process has inherited from its parent.
[[gnu::cold]] inline int fail_forked() {
    return fail(Errc::forked_handle, "this pool handle was made before fork()");
}
const char *last_error();

// The first failure of a call on many blocks: its result, and its sentence, which a later failure would replace.
class FirstFailure {
public:
    // error: of the step that has just ended; 0: it did not fail.
    void note(int error) {
        if (error != 0) [[unlikely]]
            keep(error);
    }
    int error() const { return error_; }

private:
    [[gnu::cold]] void keep(int error);

    int error_ = 0;
};

}  // namespace numacre::client
