// Conversions between the daemon's own types and proto messages. They decide nothing and ask nothing.
#pragma once

#include "base/failure.hpp"
#include "memory/machine_status.hpp"
#include "numacre/v1/control.pb.h"
#include "pool/event.hpp"
#include "pool/pool_status.hpp"
#include "spec/pool_attributes.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

v1::Pool to_proto(const PoolStatus &pool);
v1::Client to_proto(const ClientStatus &client);
v1::ListBlocksResponse to_proto(const BlockList &list);
v1::BoundName to_proto(const NameStatus &name);
v1::Channel to_proto(const ChannelStatus &channel);
v1::ResizeProgress to_proto(const ResizeStep &step);
v1::DrainChunkResponse to_proto(const DrainStatus &drain);
v1::GetMapResponse to_proto(const OccupancyMap &map);
v1::Event to_proto(const Event &event);
v1::Machine to_proto(const MachineStatus &machine);
v1::GetStatsResponse stats_of(const PoolStatus &pool);
v1::GetFragmentationResponse fragmentation_of(const PoolStatus &pool);

// All attributes, in the table's order, with the values that the description has.
void add_attributes(const PoolSpec &spec, google::protobuf::RepeatedPtrField<v1::PoolAttribute> &attributes);
// bad_argument: the request names no attribute.
Answer<AttributeChanges> to_changes(const v1::SetPoolAttributesRequest &request);

// Zero fields become the defaults that control.proto names, unless the map of attributes has them. Fails for an unknown
// backing, for text that cannot be parsed (owner, group, policy, reclaim, autosize, each attribute of the map), for an
// unknown attribute, and for one that is given twice.
Answer<PoolSpec> to_pool_spec(const v1::CreatePoolRequest &request);

}  // namespace numacre::daemon
