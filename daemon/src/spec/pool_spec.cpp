#include "spec/pool_spec.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>

#include "base/bytes.hpp"
#include "spec/access.hpp"

namespace numacre::daemon {

namespace {

std::string explain(GeometryFault fault, const PoolSpec &spec) {
    const std::string frame = "frame " + format_bytes(spec.frame_bytes);
    const std::string largest = "largest " + format_bytes(spec.largest_block_bytes);
    const std::string capacity = "capacity " + format_bytes(spec.capacity_bytes);
    switch (fault) {
        case GeometryFault::none:
            return {};
        case GeometryFault::frame_not_power_of_two:
            return frame + " is not a power of two: use 4K, for example";
        case GeometryFault::frame_out_of_range:
            return frame + " is out of range: use " + format_bytes(kMinFrameBytes) + " to " +
                   format_bytes(kMaxFrameBytes);
        case GeometryFault::block_not_power_of_two:
            return largest + " is not a power of two: use 4M, for example";
        case GeometryFault::block_smaller_than_frame:
            return largest + " is smaller than " + frame + ": make it at least one frame";
        case GeometryFault::block_too_large:
            return largest + " is too large for " + frame + ": use at most " +
                   format_bytes(std::min(kMaxBlockBytes, spec.frame_bytes << kMaxOrder));
        case GeometryFault::capacity_zero:
            return "capacity is 0: give the bytes that one numa node may grow to";
        case GeometryFault::capacity_not_whole_blocks:
            return capacity + " is not a whole number of largest blocks of " + format_bytes(spec.largest_block_bytes) +
                   ": use " + format_bytes(round_up(spec.capacity_bytes, spec.largest_block_bytes));
        case GeometryFault::capacity_too_large:
            return capacity + " is too large for " + frame + ": use at most " +
                   format_bytes(spec.frame_bytes << kMaxFrameIndexBits) + " or larger frames";
    }
    return "geometry refused";
}

Answer<void> check_objects_of(const PoolSpec &spec) {
    const std::string object = "object " + format_bytes(spec.object_bytes);
    switch (check_objects(spec.object_bytes, spec.object_count)) {
        case ObjectsFault::none:
            return {};
        case ObjectsFault::size_out_of_range:
            return bad_argument(object + " is out of range: use 64 to " + format_bytes(kMaxBlockBytes));
        case ObjectsFault::size_no_multiple:
            return bad_argument(object + " is not a multiple of 64 bytes: use " +
                                format_bytes(round_up(spec.object_bytes, kObjectStepBytes)));
        case ObjectsFault::count_zero:
            return bad_argument("count is 0: give the number of objects on each numa node");
        case ObjectsFault::too_many:
            return bad_argument("count " + std::to_string(spec.object_count) + " is too many: use at most " +
                                std::to_string(std::uint64_t{1} << kMaxFrameIndexBits));
        case ObjectsFault::too_large:
            return bad_argument("count " + std::to_string(spec.object_count) + " of " + object + " is more than " +
                                format_bytes(kMaxObjectBytes) + " a numa node: use at most " +
                                std::to_string(kMaxObjectBytes / (spec.object_bytes + kObjectStepBytes)));
    }
    return bad_argument("objects refused");
}

}  // namespace

bool is_pool_name(std::string_view name) {
    if (name.empty() || name.size() >= kPoolNameBytes || name == "." || name == "..") return false;
    return std::all_of(name.begin(), name.end(), [](char letter) {
        return (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9') || letter == '.' || letter == '_' ||
               letter == '-';
    });
}

std::string backing_names() {
    std::string names;
    for (const wire::Backing backing : kBackings) {
        if (!names.empty()) names += backing == std::end(kBackings)[-1] ? " or " : ", ";
        names += backing_name(backing);
    }
    return names;
}

Answer<wire::Backing> parse_backing(std::string_view text) {
    for (const wire::Backing backing : kBackings)
        if (text == backing_name(backing)) return backing;
    return bad_argument("\"" + std::string(text) + "\" is no backing: use " + backing_names());
}

Answer<Fit> parse_fit(std::string_view text) {
    for (const Fit fit : {Fit::nearby, Fit::compact, Fit::best})
        if (text == fit_name(fit)) return fit;
    return bad_argument("\"" + std::string(text) + "\" is no fit: use nearby, compact or best");
}

std::uint32_t thread_limit_of(const PoolSpec &spec) {
    return spec.max_threads_per_client == 0 ? spec.max_threads : spec.max_threads_per_client;
}

std::uint32_t client_limit_of(const PoolSpec &spec) {
    return spec.client_limit == 0 ? spec.max_clients : spec.client_limit;
}

std::uint32_t observer_limit_of(const PoolSpec &spec) {
    constexpr std::uint32_t kShare = 4;
    const std::uint32_t clients = client_limit_of(spec);
    return clients < 2 ? 0 : std::max(1U, clients / kShare);
}

PoolSpec objects_of_client(const PoolSpec &parent, const std::string &name, std::uint64_t object_bytes,
                           std::uint64_t object_count, bool colours_objects) {
    PoolSpec spec;
    spec.name = parent.name + "." + name;
    spec.object_bytes = object_bytes;
    spec.object_count = object_count;
    spec.colours_objects = colours_objects;
    spec.made_within = parent.name;
    spec.max_clients = parent.max_clients;
    spec.client_limit = parent.client_limit;
    spec.max_threads = parent.max_threads;
    spec.max_threads_per_client = parent.max_threads_per_client;
    spec.backing = parent.backing;
    if (parent.reclaim.kind == Reclaim::Kind::quarantine) spec.reclaim = parent.reclaim;  // zeroes nothing
    spec.pin_quarantine = parent.pin_quarantine;
    spec.policy = parent.policy;
    spec.access = parent.access;
    return spec;
}

std::uint64_t resize_unit_bytes(const PoolSpec &spec) {
    // Objects cross the ends of pages, and keep their content while they are free.
    if (spec.has_objects()) return spec.capacity_bytes;
    return std::max(spec.largest_block_bytes, page_bytes_of(spec.backing));
}

Answer<void> set_object_sizes(PoolSpec &spec, const std::function<bool(std::string_view)> &is_named) {
    if (!spec.has_objects()) {
        if (spec.object_count != 0 || !spec.colours_objects)
            return bad_argument(std::string(spec.object_count != 0 ? "count" : "colouring") +
                                " is for object pools: give the size of an object (object = 2368), or leave it out");
        return {};
    }
    if (auto sound = check_objects_of(spec); !sound) return sound;
    const std::uint64_t stride = object_stride(spec.object_bytes, spec.colours_objects);
    const std::uint64_t bytes = stride * spec.object_count;
    const auto follows = [&](std::string_view key, std::uint64_t given, std::uint64_t following) -> Answer<void> {
        if (!is_named(key) || given == following) return {};
        return bad_argument(std::string(key) + " " + format_bytes(given) + " beside object " +
                            format_bytes(spec.object_bytes) + " and count " + std::to_string(spec.object_count) +
                            ", from which " + format_bytes(following) + " follows: leave " + std::string(key) +
                            " out, or object and count");
    };
    for (const auto &[key, given, following] : {std::tuple{"capacity", spec.capacity_bytes, bytes},
                                                {"online", spec.online_bytes, bytes},
                                                {"frame", spec.frame_bytes, stride},
                                                {"largest", spec.largest_block_bytes, stride}})
        if (auto same = follows(key, given, following); !same) return same;
    for (const std::uint64_t online_bytes : spec.node_online_bytes)
        if (auto same = follows("online", online_bytes, bytes); !same) return same;
    spec.capacity_bytes = spec.online_bytes = bytes;
    spec.frame_bytes = spec.largest_block_bytes = stride;
    spec.node_online_bytes.clear();
    return {};
}

Answer<Geometry> geometry_of(const PoolSpec &spec) {
    if (!is_pool_name(spec.name))
        return bad_argument("pool name \"" + spec.name + "\" is refused: use 1 to " +
                            std::to_string(kPoolNameBytes - 1) + " characters of a-z, 0-9, '.', '_' and '-'");
    if (spec.has_objects()) {
        if (auto sound = check_objects_of(spec); !sound) return Unexpected{std::move(sound.error())};
        const std::uint64_t stride = object_stride(spec.object_bytes, spec.colours_objects);
        if (spec.frame_bytes != stride || spec.largest_block_bytes != stride ||
            spec.capacity_bytes != stride * spec.object_count)
            return bad_argument("capacity " + format_bytes(spec.capacity_bytes) + ", frame " +
                                format_bytes(spec.frame_bytes) + " and largest " +
                                format_bytes(spec.largest_block_bytes) + " are not those of " +
                                std::to_string(spec.object_count) + " objects of " + format_bytes(spec.object_bytes));
        if (spec.reclaim.kind == Reclaim::Kind::zero)
            return bad_argument(
                "reclaim zero is refused for an object pool, whose free objects keep their content: use fast or "
                "quarantine:30s");
        if (spec.autosize.is_on)
            return bad_argument("autosize is refused for an object pool, which is online as a whole: leave it out");
    } else {
        const GeometryFault fault = check_geometry(spec.frame_bytes, spec.largest_block_bytes, spec.capacity_bytes);
        if (fault != GeometryFault::none) return bad_argument(explain(fault, spec));
    }

    if (std::ranges::find(kBackings, spec.backing) == std::end(kBackings))
        return bad_argument("backing " + std::to_string(static_cast<unsigned>(spec.backing)) + " is unknown: use " +
                            backing_names());
    const std::uint64_t unit = resize_unit_bytes(spec);
    if (spec.capacity_bytes % unit != 0)
        return bad_argument("capacity " + format_bytes(spec.capacity_bytes) + " is not a whole number of " +
                            format_bytes(unit) + " pages: use " + format_bytes(round_up(spec.capacity_bytes, unit)) +
                            (spec.backing == wire::Backing::hugetlb_1g    ? ", or backing hugetlb"
                             : spec.backing == wire::Backing::small_pages ? ""
                                                                          : ", or backing small"));
    std::vector<std::uint64_t> begins = spec.node_online_bytes;
    begins.push_back(spec.online_bytes);
    for (const std::uint64_t online_bytes : begins) {
        if (online_bytes > spec.capacity_bytes)
            return bad_argument("online " + format_bytes(online_bytes) + " is more than capacity " +
                                format_bytes(spec.capacity_bytes) + ": lower online or raise capacity");
        if (online_bytes % unit != 0)
            return bad_argument("online " + format_bytes(online_bytes) + " is not a whole number of " +
                                format_bytes(unit) + " (the larger of largest block and page): use " +
                                format_bytes(round_up(online_bytes, unit)) +
                                (spec.backing == wire::Backing::hugetlb_1g ? ", or backing hugetlb" : ""));
    }
    if (spec.node_online_bytes.size() > kMaxNumaNodes)
        return bad_argument("online names " + std::to_string(spec.node_online_bytes.size()) +
                            " numa nodes: use at most " + std::to_string(kMaxNumaNodes));
    if (spec.autosize.max_bytes > spec.capacity_bytes)
        return bad_argument("autosize up to " + format_bytes(spec.autosize.max_bytes) + " is more than capacity " +
                            format_bytes(spec.capacity_bytes) + ": lower the one or raise the other");
    if (spec.autosize.is_on && std::max(round_up(spec.autosize.min_bytes, unit), unit) > spec.autosize.max_bytes)
        return bad_argument("autosize from " + format_bytes(spec.autosize.min_bytes) + " to " +
                            format_bytes(spec.autosize.max_bytes) +
                            " leaves no size to choose, for the pool grows and " + "shrinks by " + format_bytes(unit) +
                            " (the larger of largest block and page): use up to " +
                            format_bytes(round_up(spec.autosize.max_bytes, unit)));
    if (spec.low_watermark_bytes > spec.capacity_bytes)
        return bad_argument("low-watermark " + format_bytes(spec.low_watermark_bytes) + " is more than capacity " +
                            format_bytes(spec.capacity_bytes) + ": so much can never be free, use less");
    if (spec.quota_bytes != 0 && spec.soft_quota_bytes >= spec.quota_bytes)
        return bad_argument("soft-quota " + format_bytes(spec.soft_quota_bytes) + " is not below quota " +
                            format_bytes(spec.quota_bytes) +
                            ", so it would never be exceeded: lower it, or raise the quota");
    if (spec.users.size() >= kAccounts)
        return bad_argument("user-quota names " + std::to_string(spec.users.size()) + " users: use at most " +
                            std::to_string(kAccounts - 1));
    if (spec.max_clients == 0 || spec.max_clients >= kMaxProcessSlots)
        return bad_argument("max-clients " + std::to_string(spec.max_clients) + " is out of range: use 1 to " +
                            std::to_string(kMaxProcessSlots - 1));
    if (spec.client_limit > spec.max_clients)
        return bad_argument("max-clients " + std::to_string(spec.client_limit) + " is more than the " +
                            std::to_string(spec.max_clients) + " that the pool was made for: use at most that");
    if (spec.max_threads == 0 || spec.max_threads >= kMaxThreadSlots)
        return bad_argument("max-threads " + std::to_string(spec.max_threads) + " is out of range: use 1 to " +
                            std::to_string(kMaxThreadSlots - 1));
    if (spec.max_threads_per_client > spec.max_threads)
        return bad_argument("max-threads-per-client " + std::to_string(spec.max_threads_per_client) +
                            " is more than max-threads " + std::to_string(spec.max_threads) +
                            ", which is for all clients together: lower the one or raise the other");
    if ((spec.access.mode & ~PoolAccess::kWidestMode) != 0)
        return bad_argument("mode " + format_mode(spec.access.mode) +
                            " is beyond 0666: only r (4) and w (2) mean something");
    return spec.has_objects() ? make_object_geometry(spec.frame_bytes, spec.object_count)
                              : make_geometry(spec.frame_bytes, spec.largest_block_bytes, spec.capacity_bytes);
}

std::string format_node_bytes(const PoolSpec &spec) {
    if (spec.node_online_bytes.empty()) return format_bytes(spec.online_bytes);
    std::string text;
    for (const std::uint64_t size : spec.node_online_bytes) text += (text.empty() ? "" : "/") + format_bytes(size);
    return text;
}

}  // namespace numacre::daemon
