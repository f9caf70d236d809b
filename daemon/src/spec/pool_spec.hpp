// What may be asked of a pool, checked in one place for the config file, the flags and the control plane.
#pragma once

#include <string>
#include <string_view>

#include "base/failure.hpp"
#include "engine.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

inline constexpr std::uint64_t kSmallPageBytes = 4096;

// Online memory grows and shrinks by this: whole chunks and whole pages of the backing that was asked for.
std::uint64_t resize_unit_bytes(const PoolSpec &spec);

// The geometry of a spec that can be served; otherwise which value is impossible, and what would do.
Answer<Geometry> geometry_of(const PoolSpec &spec);

// How many threads of one client may work on the pool at once.
std::uint32_t thread_limit_of(const PoolSpec &spec);

// How many of the clients may be observers. Who may only look cannot take the seats of those who work; with one seat
// alone nobody can look.
std::uint32_t observer_limit_of(const PoolSpec &spec);

// 1 .. 63 of a-z, 0-9, '.', '_' and '-', but not "." or "..".
bool is_pool_name(std::string_view name);

// "hugetlb-1g, hugetlb, thp or small".
std::string backing_names();

Answer<wire::Backing> parse_backing(std::string_view text);
Answer<Fit> parse_fit(std::string_view text);

// What numa nodes begin with, as parse_node_bytes reads it.
std::string format_node_bytes(const PoolSpec &spec);

}  // namespace numacre::daemon
