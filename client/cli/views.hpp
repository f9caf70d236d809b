// The output of the verbs for people.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "control.hpp"
#include "rates.hpp"
#include "terminal.hpp"

namespace numacre::cli {

struct PoolReport {
    v1::Pool pool;
    // No value if the daemon refused to count: it does not read a corrupt pool any more.
    std::optional<v1::GetStatsResponse> stats;
    std::string stats_error;
};

void print_status(std::ostream &out, const v1::Machine &machine, const std::vector<PoolReport> &pools,
                  std::int64_t now_unix_seconds, const Terminal &terminal);
void print_attributes(std::ostream &out, const google::protobuf::RepeatedPtrField<v1::PoolAttribute> &attributes);
void print_pools(std::ostream &out, const v1::ListPoolsResponse &pools);
// clients gives the holders' names.
// rates: one for each channel; empty: there was one look only.
void print_channels(std::ostream &out, const v1::ListChannelsResponse &channels,
                    const std::vector<std::optional<ChannelRates>> &rates);
void print_names(std::ostream &out, const v1::ListNamesResponse &names);
void print_blocks(std::ostream &out, const v1::ListBlocksResponse &blocks, const v1::ListClientsResponse &clients);
void print_clients(std::ostream &out, const std::vector<v1::Client> &clients, std::int64_t now_unix_seconds);
// True if this share of a pool lies on machine.nodes(index). A synthetic topology may put several numa nodes of its own
// on one of the kernel's. Then the order decides, for pools number the machine's numa nodes in that order.
bool lies_on(const v1::PoolNode &share, const v1::Machine &machine, int index);
// Like `numactl --hardware`, with hugepages and each pool's share.
void print_nodes(std::ostream &out, const v1::Machine &machine, const v1::ListPoolsResponse &pools);
// Like numastat: one column for each numa node; then one line for each order.
void print_stats(std::ostream &out, const std::string &pool, const v1::GetStatsResponse &stats);
// Like /proc/buddyinfo.
void print_buddyinfo(std::ostream &out, const std::string &pool, const v1::GetFragmentationResponse &fragmentation);
// Like /sys/kernel/debug/extfrag: unusable_index and extfrag_index.
void print_extfrag(std::ostream &out, const std::string &pool, const v1::GetFragmentationResponse &fragmentation);
// The heads of the columns of print_buddyinfo() and print_extfrag(): a block's size for each order.
void print_order_heads(std::ostream &out, const v1::Pool &pool, unsigned orders, bool ratios);
// Nothing where nobody pins.
void print_pins(std::ostream &out, const v1::GetMapResponse &map);
void print_holders(std::ostream &out, const google::protobuf::RepeatedPtrField<v1::BlockHolder> &holders);

std::vector<Cell> map_cells(const v1::GetMapResponse &map);

// "root:dpdk 0660"; "-" from a daemon that does not tell.
std::string access_text(const v1::Pool &pool);
// ", policy interleave"; empty if it is local.
std::string policy_text(const v1::Pool &pool);
// The sizes of the pool's blocks or objects.
std::string sizes_text(const v1::Pool &pool);
// "hugetlb (2 MiB pages)"
std::string backing_text(const v1::PoolNode &numa_node);
// "none", or "3 out of frames, 1 fragmented"
std::string failures_text(const v1::GetStatsResponse &stats);

}  // namespace numacre::cli
