#include "control/checks.hpp"

#include <string>

#include "control/printable.hpp"
#include "spec/access.hpp"
#include "spec/pool_spec.hpp"

namespace numacre::daemon {
namespace {

using std::to_string;

constexpr std::uint64_t kMaxCapacityBytes = kMaxFrameBytes << kMaxFrameIndexBits;

// Formats any number that was sent as a mode; format_mode() takes valid modes only.
std::string octal(std::uint32_t number) {
    std::string text;
    for (; number != 0; number >>= 3) text.insert(text.begin(), static_cast<char>('0' + (number & 7)));
    return "0" + text;
}

bool is_name_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
}

std::string describe(GeometryFault fault, const PoolSpec &spec) {
    const std::string frame = "frame_bytes " + to_string(spec.frame_bytes);
    const std::string block = "largest_block_bytes " + to_string(spec.largest_block_bytes);
    const std::string capacity = "capacity_bytes " + to_string(spec.capacity_bytes);
    switch (fault) {
        case GeometryFault::none:
            return {};
        case GeometryFault::frame_not_power_of_two:
            return frame + " is not a power of two: use one from 64 to 2097152, such as 4096";
        case GeometryFault::frame_out_of_range:
            return frame + " is out of range: use a power of two from 64 to 2097152, such as 4096";
        case GeometryFault::block_not_power_of_two:
            return block + " is not a power of two: use one from the frame size to 1073741824, such as 4194304";
        case GeometryFault::block_smaller_than_frame:
            return block + " is less than " + frame + ": use at least one frame";
        case GeometryFault::block_too_large:
            return block + " is too large with " + frame + ": use at most 1073741824 and at most " +
                   to_string(std::uint64_t{1} << kMaxOrder) + " frames";
        case GeometryFault::capacity_zero:
            return "capacity_bytes is 0: give the most bytes that a numa node of the pool may ever have online";
        case GeometryFault::capacity_not_whole_blocks:
            return capacity + " is not a multiple of " + block + ": round it up, or make the largest block smaller";
        case GeometryFault::capacity_too_large:
            return capacity + " is too large with " + frame + ": use at most " +
                   to_string(std::uint64_t{1} << kMaxFrameIndexBits) + " frames a numa node, or larger frames";
    }
    return {};
}

}  // namespace

Answer<void> check_pool_name(std::string_view name) {
    const std::string rule = "a pool's name has 1 to 63 characters of a-z, 0-9, '_', '.' and '-'";
    if (name.empty()) return bad_argument("the pool's name is empty: " + rule + "; see `numacre pools`");
    if (name.size() >= kPoolNameBytes)
        return bad_argument("the pool name " + quoted(name) + " has " + to_string(name.size()) +
                            " characters: " + rule);
    for (const char c : name)
        if (!is_name_character(c))
            return bad_argument("the pool name " + quoted(name) + " has the character " + quoted({&c, 1}) + ": " +
                                rule);
    if (name == "." || name == "..") return bad_argument("the pool name " + quoted(name) + " is reserved: use another");
    return {};
}

Answer<NameText> check_name(const std::string &name) {
    NameText words;
    // A 0 inside: the rest would be left out.
    if (name.find('\0') == std::string::npos && NameText::read(name.c_str(), words) == NameFault::none) return words;
    return bad_argument("the name " + quoted(name) + " is none: a name in a pool has 1 to " +
                        to_string(kNameBytes - 1) + " printable ASCII characters without space and '/'");
}

Answer<NumaNode> check_numa_node(std::uint32_t numa_node) {
    if (numa_node >= kMaxNumaNodes)
        return Unexpected{Failure{Errc::no_such_node, "node " + to_string(numa_node) + ": no pool has more than " +
                                                          to_string(kMaxNumaNodes) +
                                                          " numa nodes, counted from 0; see `numacre nodes`"}};
    return NumaNode{static_cast<std::uint8_t>(numa_node)};
}

Answer<void> check_pool_spec(const PoolSpec &spec) {
    if (auto name = check_pool_name(spec.name); !name) return name;
    if (spec.has_objects()) {
        if (const auto sound = geometry_of(spec); !sound) return Unexpected{sound.error()};
        return {};
    }
    const GeometryFault fault = check_geometry(spec.frame_bytes, spec.largest_block_bytes, spec.capacity_bytes);
    if (fault != GeometryFault::none) return bad_argument(describe(fault, spec));
    for (const std::uint64_t online_bytes : spec.node_online_bytes)
        if (online_bytes > spec.capacity_bytes)
            return bad_argument("node_online_bytes " + to_string(online_bytes) + " is more than capacity_bytes " +
                                to_string(spec.capacity_bytes) + ": bring less online, or raise the capacity");
    if (spec.online_bytes > spec.capacity_bytes)
        return bad_argument("online_bytes " + to_string(spec.online_bytes) + " is more than capacity_bytes " +
                            to_string(spec.capacity_bytes) + ": bring less online, or raise the capacity");
    if (spec.autosize.max_bytes > spec.capacity_bytes)
        return bad_argument("autosize up to " + to_string(spec.autosize.max_bytes) + " bytes is more than " +
                            "capacity_bytes " + to_string(spec.capacity_bytes) + ": lower the one or raise the other");
    if (spec.low_watermark_bytes > spec.capacity_bytes)
        return bad_argument("low_watermark_bytes " + to_string(spec.low_watermark_bytes) +
                            " is more than capacity_bytes " + to_string(spec.capacity_bytes) +
                            ": so much can never be free, use less");
    // Slot 0 belongs to the daemon.
    if (spec.max_clients == 0 || spec.max_clients >= kMaxProcessSlots)
        return bad_argument("max_clients " + to_string(spec.max_clients) + " is out of range: use 1 to " +
                            to_string(kMaxProcessSlots - 1));
    if ((spec.access.mode & ~PoolAccess::kWidestMode) != 0)
        return bad_argument("mode " + to_string(spec.access.mode) + " is " + octal(spec.access.mode) +
                            " in octal, beyond 0666: only r (4) and w (2) mean something");
    return {};
}

Answer<void> check_online_bytes(std::uint64_t online_bytes) {
    if (online_bytes > kMaxCapacityBytes)
        return bad_argument("online_bytes " + to_string(online_bytes) + " is more than any pool can have (" +
                            to_string(kMaxCapacityBytes) + "): use at most the pool's capacity");
    return {};
}

Answer<void> check_map_cells(std::uint32_t cells) {
    if (cells > kMaxMapCells)
        return bad_argument("cells " + to_string(cells) + " is more than " + to_string(kMaxMapCells) +
                            ": ask for fewer, or 0 for one a chunk");
    return {};
}

Answer<void> check_listed_blocks(std::uint32_t limit) {
    if (limit > kMaxListedBlocks)
        return bad_argument("limit " + to_string(limit) + " is more than " + to_string(kMaxListedBlocks) +
                            ": ask for fewer, those that are held longest come first");
    return {};
}

Answer<void> check_client_id(std::uint32_t client_id) {
    if (client_id == 0) return bad_argument("client_id 0 is nobody's: see `numacre clients` for the ids");
    return {};
}

Answer<Holder> check_holder(std::uint32_t client_id, const std::string &pool, const std::string &user, bool pool_too) {
    Holder holder;
    if (client_id != 0) {
        if (!pool.empty() || !user.empty())
            return bad_argument("client_id " + to_string(client_id) +
                                " and a pool or user beside it: name one of them");
        holder.client_id = client_id;
        return holder;
    }
    if (pool.empty() || (user.empty() && !pool_too))
        return bad_argument(std::string("client_id 0 is nobody's: give a client (`numacre clients` has the ids), or ") +
                            (pool_too ? "a pool, or a user and a pool" : "a user and a pool"));
    if (const auto name = check_pool_name(pool); !name) return Unexpected{name.error()};
    holder.kind = user.empty() ? Holder::Kind::pool : Holder::Kind::user;
    holder.pool = pool;
    if (user.empty()) return holder;
    const auto uid = parse_user(user);
    if (!uid) return bad_argument("user " + quoted(user) + ": " + uid.error().message);
    holder.uid = *uid;
    return holder;
}

Answer<void> check_quota(std::uint64_t quota_bytes, std::uint64_t soft_bytes) {
    if (quota_bytes != 0 && soft_bytes >= quota_bytes)
        return bad_argument("soft_bytes " + to_string(soft_bytes) + " is not below quota_bytes " +
                            to_string(quota_bytes) + ", so it would never be exceeded: lower it, or raise the quota");
    return {};
}

Answer<std::chrono::milliseconds> check_evict_grace(std::int64_t seconds, std::int32_t nanoseconds) {
    const bool out_of_range = seconds < 0 || nanoseconds < 0 || nanoseconds > 999'999'999 ||
                              seconds > kMaxEvictGrace.count() ||
                              (seconds == kMaxEvictGrace.count() && nanoseconds != 0);
    if (out_of_range)
        return bad_argument("grace of " + to_string(seconds) + " s and " + to_string(nanoseconds) +
                            " ns is out of range: use 0 to " + to_string(kMaxEvictGrace.count()) + " s");
    return std::chrono::seconds{seconds} +
           std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::nanoseconds{nanoseconds});
}

}  // namespace numacre::daemon
