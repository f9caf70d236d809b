// Checks made before the pool manager is called: they refuse values that no pool could have. Only the pool manager
// knows whether *this* pool exists, and whether it has that numa node or that capacity. Each message names the value
// and the remedy.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine.hpp"
#include "numacre/shm/names.hpp"
#include "pool/pool_manager.hpp"

namespace numacre::daemon {

inline constexpr std::uint32_t kMaxMapCells = 65536;
inline constexpr std::uint32_t kMaxListedBlocks = 16384;  // fits the 4 MiB that gRPC allows by default
inline constexpr std::uint32_t kDefaultListedBlocks = 100;
inline constexpr std::chrono::seconds kMaxEvictGrace{300};
inline constexpr std::chrono::seconds kDefaultEvictGrace{5};

// A name has 1 .. 63 characters of [a-z0-9_.-], but is not "." or "..": a name may become a file's.
Answer<void> check_pool_name(std::string_view name);
// Likewise a name in a pool (numacre_name_set), and turns it into its words.
Answer<NameText> check_name(const std::string &name);
Answer<NumaNode> check_numa_node(std::uint32_t numa_node);
Answer<void> check_pool_spec(const PoolSpec &spec);
// Checks only that the size cannot overflow when rounded up.
Answer<void> check_online_bytes(std::uint64_t online_bytes);
Answer<void> check_map_cells(std::uint32_t cells);
Answer<void> check_listed_blocks(std::uint32_t limit);
Answer<void> check_client_id(std::uint32_t client_id);
// Accepts exactly one of a client, a user in a pool, and, if `pool_too`, a pool. Looks the user's name up.
Answer<Holder> check_holder(std::uint32_t client_id, const std::string &pool, const std::string &user, bool pool_too);
// Refuses a soft quota that is not below the hard quota: it could never be exceeded.
Answer<void> check_quota(std::uint64_t quota_bytes, std::uint64_t soft_bytes);
Answer<std::chrono::milliseconds> check_evict_grace(std::int64_t seconds, std::int32_t nanoseconds);

}  // namespace numacre::daemon
