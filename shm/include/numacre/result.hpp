// A value or an error, shaped like std::expected (C++23), without exceptions and without heap memory of its own.
#pragma once

#include <utility>
#include <variant>

namespace numacre {

// An error on its way into a Result.
template <class E>
struct Unexpected {
    E error;  // the later Result::error()
};
// Unexpected{error} needs no <E>.
template <class E>
Unexpected(E) -> Unexpected<E>;

// A T, or an E that says why there is no T.
template <class T, class E>
class [[nodiscard]] Result {
public:
    // Holds a value.
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    // Holds an error.
    Result(Unexpected<E> failure) : state_(std::in_place_index<1>, std::move(failure.error)) {}

    // Whether there is a value; if not, there is an error.
    bool has_value() const noexcept { return state_.index() == 0; }
    // Like has_value().
    explicit operator bool() const noexcept { return has_value(); }
    // The value. Requires has_value().
    T &value() & { return *std::get_if<0>(&state_); }
    const T &value() const & { return *std::get_if<0>(&state_); }
    T &&value() && { return std::move(*std::get_if<0>(&state_)); }
    // Like value().
    T &operator*() & { return value(); }
    const T &operator*() const & { return value(); }
    // A member of value().
    T *operator->() { return std::get_if<0>(&state_); }
    const T *operator->() const { return std::get_if<0>(&state_); }
    // The error. Requires !has_value().
    E &error() & { return *std::get_if<1>(&state_); }
    const E &error() const & { return *std::get_if<1>(&state_); }

private:
    std::variant<T, E> state_;
};

// Success without a value, or an error.
template <class E>
class [[nodiscard]] Result<void, E> {
public:
    // Success.
    Result() = default;
    // Holds an error.
    Result(Unexpected<E> failure) : state_(std::in_place_index<1>, std::move(failure.error)) {}
    // Whether there is no error.
    bool has_value() const noexcept { return state_.index() == 0; }
    // Like has_value().
    explicit operator bool() const noexcept { return has_value(); }
    // The error. Requires !has_value().
    E &error() & { return *std::get_if<1>(&state_); }
    const E &error() const & { return *std::get_if<1>(&state_); }

private:
    std::variant<std::monostate, E> state_;
};

}  // namespace numacre
