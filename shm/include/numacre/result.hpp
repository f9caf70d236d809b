// A value or an error, shaped like std::expected (C++23), without exceptions or heap of its own.
#pragma once

#include <utility>
#include <variant>

namespace numacre {

template <class E>
struct Unexpected {
    E error;
};
template <class E>
Unexpected(E) -> Unexpected<E>;

template <class T, class E>
class [[nodiscard]] Result {
public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    Result(Unexpected<E> failure) : state_(std::in_place_index<1>, std::move(failure.error)) {}

    bool has_value() const noexcept { return state_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }
    // Only when has_value() says so.
    T &value() & { return *std::get_if<0>(&state_); }
    const T &value() const & { return *std::get_if<0>(&state_); }
    T &&value() && { return std::move(*std::get_if<0>(&state_)); }
    T &operator*() & { return value(); }
    const T &operator*() const & { return value(); }
    T *operator->() { return std::get_if<0>(&state_); }
    const T *operator->() const { return std::get_if<0>(&state_); }
    // Only when !has_value().
    E &error() & { return *std::get_if<1>(&state_); }
    const E &error() const & { return *std::get_if<1>(&state_); }

private:
    std::variant<T, E> state_;
};

template <class E>
class [[nodiscard]] Result<void, E> {
public:
    Result() = default;
    Result(Unexpected<E> failure) : state_(std::in_place_index<1>, std::move(failure.error)) {}
    bool has_value() const noexcept { return state_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }
    E &error() & { return *std::get_if<1>(&state_); }
    const E &error() const & { return *std::get_if<1>(&state_); }

private:
    std::variant<std::monostate, E> state_;
};

}  // namespace numacre
