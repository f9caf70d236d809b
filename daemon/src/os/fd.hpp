// A file descriptor that closes itself. Move-only.
#pragma once

#include <utility>

#include "numacre/os/kernel.hpp"

namespace numacre::daemon {

class Fd {
public:
    Fd() = default;
    explicit Fd(int number) : number_(number) {}
    Fd(Fd &&other) noexcept : number_(std::exchange(other.number_, -1)) {}
    Fd &operator=(Fd &&other) noexcept {
        if (this != &other) {
            reset();
            number_ = std::exchange(other.number_, -1);
        }
        return *this;
    }
    ~Fd() { reset(); }

    int get() const { return number_; }
    explicit operator bool() const { return number_ >= 0; }
    // From here on the caller has to close the number.
    int release() { return std::exchange(number_, -1); }
    void reset() {
        if (number_ >= 0) os::close(std::exchange(number_, -1));
    }

private:
    int number_ = -1;
};

}  // namespace numacre::daemon
