// The output of --json. README.md documents the keys, which are only ever added to. Sizes are whole bytes, ratios are
// 0 .. 1, times are UTC as text, and an unknown value is null.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "control.hpp"
#include "rates.hpp"

namespace numacre::cli {

using Json = nlohmann::ordered_json;

const char *backing_name(v1::Backing backing);
bool is_hugetlb(v1::Backing backing);
// The backing that the pool asks for. Of a daemon that does not say: hugetlb, the default.
v1::Backing asked_backing(const v1::Pool &pool);
// Of hugetlb and hugetlb-1g.
std::uint64_t hugepage_bytes(v1::Backing backing);
// True if the numa node's backing is not as good as asked_backing().
bool is_fallback(const v1::Pool &pool, const v1::PoolNode &numa_node);
const char *pool_state_name(v1::PoolState state);

Json daemon_json(const v1::Machine &machine, std::int64_t now_unix_seconds);
Json machine_json(const v1::Machine &machine);
Json pool_json(const v1::Pool &pool);
Json attribute_json(const v1::PoolAttribute &attribute);
Json client_json(const v1::Client &client);
// rates: one for each channel; empty: there was one look only.
Json channels_json(const v1::ListChannelsResponse &channels, const std::vector<std::optional<ChannelRates>> &rates);
Json names_json(const v1::ListNamesResponse &names);
Json blocks_json(const v1::ListBlocksResponse &blocks);
Json stats_json(const std::string &pool, const v1::GetStatsResponse &stats);
// The four reasons of failures, each summed over the numa nodes.
Json failures_json(const v1::GetStatsResponse &stats);
Json fragmentation_json(const std::string &pool, const v1::GetFragmentationResponse &fragmentation);
Json buddyinfo_json(const v1::Pool &pool, const v1::GetFragmentationResponse &fragmentation);
Json map_json(const std::string &pool, std::uint32_t numa_node, const v1::GetMapResponse &map);
Json holders_json(const google::protobuf::RepeatedPtrField<v1::BlockHolder> &holders);
Json resize_json(const v1::ResizePoolRequest &request, const v1::ResizeProgress &progress);
Json drain_json(const v1::DrainChunkRequest &request, const v1::DrainChunkResponse &response);

// indent -1: all on one line. Bytes that are not UTF-8 are replaced: a process may give itself any name.
void print_json(std::ostream &out, const Json &json, int indent = 2);

}  // namespace numacre::cli
