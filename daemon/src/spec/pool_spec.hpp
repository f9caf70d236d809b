// Checks of a pool's description, in one place for the config file, the flags and the control plane.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/failure.hpp"
#include "engine.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

inline constexpr std::uint64_t kSmallPageBytes = 4096;

// The unit by which online memory grows and shrinks: whole chunks and whole pages of the wanted backing.
std::uint64_t resize_unit_bytes(const PoolSpec &spec);

// The geometry of a spec that can be served; otherwise the impossible value and the remedy.
Answer<Geometry> geometry_of(const PoolSpec &spec);

// Sets the sizes of an object pool that follow from its objects; a pool of blocks stays as it is. is_named(key): the
// description names the attribute. bad_argument: the objects are impossible, or the description names a size that is
// another one.
Answer<void> set_object_sizes(PoolSpec &spec, const std::function<bool(std::string_view)> &is_named);

// The description of the object pool that a client of `parent` makes: access, limits and pages are the parent's.
PoolSpec objects_of_client(const PoolSpec &parent, const std::string &name, std::uint64_t object_bytes,
                           std::uint64_t object_count, bool colours_objects);

// The number of threads of one client that may work on the pool at once.
std::uint32_t thread_limit_of(const PoolSpec &spec);

// The number of processes that may use the pool at the same time.
std::uint32_t client_limit_of(const PoolSpec &spec);

// The number of clients that may be observers. Observers cannot take the seats of clients that work; with only one seat
// there can be no observer.
std::uint32_t observer_limit_of(const PoolSpec &spec);

// True for 1 .. 63 characters of a-z, 0-9, '.', '_' and '-', but not for "." or "..".
bool is_pool_name(std::string_view name);

// "hugetlb-1g, hugetlb, thp or small".
std::string backing_names();

Answer<wire::Backing> parse_backing(std::string_view text);
Answer<Fit> parse_fit(std::string_view text);

// The initial online size of the numa nodes, in the notation that parse_node_bytes reads.
std::string format_node_bytes(const PoolSpec &spec);

}  // namespace numacre::daemon
