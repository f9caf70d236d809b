#include "spec/pool_attributes.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "base/nearest_key.hpp"
#include "spec/access.hpp"
#include "spec/autosize.hpp"
#include "spec/policy_text.hpp"
#include "spec/pool_spec.hpp"
#include "spec/reclaim.hpp"

namespace numacre::daemon {

namespace {

using Kind = PoolAttribute::Kind;

Answer<void> set_bytes(std::uint64_t &target, const std::string &text) {
    return set_parsed(target, parse_bytes(text));
}

template <class Number>
Answer<void> set_number(Number &target, const std::string &text) {
    Number value = 0;
    const auto [rest, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (fault != std::errc{} || rest != text.data() + text.size())
        return bad_argument("not a whole number from 0 to " + std::to_string(std::numeric_limits<Number>::max()));
    target = value;
    return {};
}

// "alice=1G 1000=2G/1536M": USER=SIZE, or USER=SIZE/SOFT.
Answer<void> set_user_quotas(std::vector<UserLimit> &target, const std::string &text) {
    std::istringstream words(text == "none" ? "" : text);
    std::vector<UserLimit> users;
    for (std::string word; words >> word;) {
        const std::size_t equals = word.find('=');
        if (equals == std::string::npos)
            return bad_argument("\"" + word + "\" is no USER=SIZE[/SOFT], such as alice=1G/768M");
        UserLimit user;
        if (auto known = set_parsed(user.uid, parse_user(word.substr(0, equals))); !known) return known;
        const std::string sizes = word.substr(equals + 1);
        const std::size_t slash = std::min(sizes.find('/'), sizes.size());
        if (auto quota = set_bytes(user.quota_bytes, sizes.substr(0, slash)); !quota) return quota;
        if (slash != sizes.size())
            if (auto soft = set_bytes(user.soft_quota_bytes, sizes.substr(slash + 1)); !soft) return soft;
        if (user.quota_bytes != 0 && user.soft_quota_bytes >= user.quota_bytes)
            return bad_argument("the soft quota in \"" + word + "\" is not below the quota: lower it");
        const auto is_same = [&](const UserLimit &other) { return other.uid == user.uid; };
        if (std::ranges::any_of(users, is_same)) return bad_argument("\"" + word + "\" names a user twice: keep one");
        users.push_back(user);
    }
    // As PoolLimits::describe() has them, so that equal quotas have equal texts.
    std::erase_if(users, [](const UserLimit &user) { return (user.quota_bytes | user.soft_quota_bytes) == 0; });
    std::ranges::sort(users, {}, &UserLimit::uid);
    target = std::move(users);
    return {};
}

std::string format_user_quotas(const std::vector<UserLimit> &users) {
    std::string text;
    for (const UserLimit &user : users) {
        text += (text.empty() ? "" : " ") + user_name(user.uid) + "=" + format_bytes(user.quota_bytes);
        if (user.soft_quota_bytes != 0) text += "/" + format_bytes(user.soft_quota_bytes);
    }
    return text;
}

Answer<void> set_online(PoolSpec &spec, const std::string &text) {
    auto sizes = parse_node_bytes(text);
    if (!sizes) return Unexpected{sizes.error()};
    spec.online_bytes = sizes->front();
    spec.node_online_bytes.clear();
    if (sizes->size() > 1) spec.node_online_bytes = std::move(*sizes);
    return {};
}

// A pool in use keeps its tables: fewer processes may attach than they have seats for, not more.
Answer<void> change_client_limit(PoolSpec &spec, const std::string &text) {
    std::uint32_t limit = 0;
    if (auto set = set_positive_count(limit, text); !set) return set;
    if (limit > spec.max_clients)
        return bad_argument("the pool was made for " + std::to_string(spec.max_clients) +
                            " processes: use at most that, or delete the pool, and make it again");
    spec.client_limit = limit;
    return {};
}

constexpr std::string_view kOnlyAtCreation = "it is set when the pool is made: delete the pool, and make it again";
constexpr std::string_view kObjectsStay =
    "an object pool is online as a whole: delete the pool, and make it again with another count";
constexpr std::string_view kGeometry =
    "the layout of the pool's shared memory depends on it: delete the pool, and make it again";

// clang-format off: a row is easier to compare with the next one if its parts stand in the same lines.
constexpr PoolAttribute kAttributes[] = {
    {"name", Kind::text, "Name of the pool", "default",
     [](PoolSpec &spec, const std::string &text) -> Answer<void> {
         if (!is_pool_name(text)) return bad_argument("use 1 to 63 characters of a-z, 0-9, '.', '_' and '-'");
         spec.name = text;
         return {};
     },
     [](const PoolSpec &spec) { return spec.name; },
     {}, "clients find the pool by its name: make another pool"},
    {"capacity", Kind::bytes, "Size to which each numa node's part may grow", "1G",
     [](PoolSpec &spec, const std::string &text) { return set_bytes(spec.capacity_bytes, text); },
     [](const PoolSpec &spec) { return format_bytes(spec.capacity_bytes); },
     {}, kGeometry},
    {"online", Kind::bytes, "Memory that each numa node's part begins with", "256M",
     set_online,
     format_node_bytes,
     "numacre resize", {}},
    {"frame", Kind::bytes, "Smallest block", "4K",
     [](PoolSpec &spec, const std::string &text) { return set_bytes(spec.frame_bytes, text); },
     [](const PoolSpec &spec) { return format_bytes(spec.frame_bytes); },
     {}, kGeometry},
    {"largest", Kind::bytes, "Largest block, and the step of sizing", "4M",
     [](PoolSpec &spec, const std::string &text) { return set_bytes(spec.largest_block_bytes, text); },
     [](const PoolSpec &spec) { return format_bytes(spec.largest_block_bytes); },
     {}, kGeometry},
    {"object", Kind::bytes, "Size of an object, for a pool of such objects only; a multiple of 64 bytes; 0: none",
     "0",
     [](PoolSpec &spec, const std::string &text) { return set_bytes(spec.object_bytes, text); },
     [](const PoolSpec &spec) { return format_bytes(spec.object_bytes); },
     {}, kGeometry},
    {"count", Kind::count, "Objects on each numa node, in a pool of objects", "0",
     [](PoolSpec &spec, const std::string &text) { return set_count(spec.object_count, text); },
     [](const PoolSpec &spec) { return std::to_string(spec.object_count); },
     {}, kGeometry},
    {"colouring", Kind::text, "Objects of 1K, 2K, 4K and so on lie 64 bytes further apart: on, off", "on",
     [](PoolSpec &spec, const std::string &text) -> Answer<void> {
         if (text != "on" && text != "off") return bad_argument("use on or off");
         spec.colours_objects = text == "on";
         return {};
     },
     [](const PoolSpec &spec) { return std::string(spec.colours_objects ? "on" : "off"); },
     {}, kGeometry},
    {"max-clients", Kind::count, "Processes that may use the pool at the same time", "256",
     [](PoolSpec &spec, const std::string &text) { return set_count(spec.max_clients, text); },
     [](const PoolSpec &spec) { return std::to_string(client_limit_of(spec)); },
     PoolAttribute::kSetCommand, {}, change_client_limit},
    {"max-threads", Kind::count, "Threads of all clients together that may use the pool at the same time", "4096",
     [](PoolSpec &spec, const std::string &text) { return set_count(spec.max_threads, text); },
     [](const PoolSpec &spec) { return std::to_string(spec.max_threads); },
     {}, kGeometry},
    {"max-threads-per-client", Kind::count, "Threads of one process that may use the pool at the same time",
     "max-threads",
     [](PoolSpec &spec, const std::string &text) { return set_positive_count(spec.max_threads_per_client, text); },
     [](const PoolSpec &spec) { return std::to_string(thread_limit_of(spec)); },
     {}, kOnlyAtCreation},
    {"backing", Kind::text, "Best kind of pages to try: hugetlb-1g, hugetlb, thp, small", "hugetlb",
     [](PoolSpec &spec, const std::string &text) { return set_parsed(spec.backing, parse_backing(text)); },
     [](const PoolSpec &spec) { return std::string(backing_name(spec.backing)); },
     {}, "the pool's memory has its pages already: delete the pool, and make it again"},
    {"reclaim", Kind::text, "Treatment of a dead client's blocks: fast, zero, quarantine:30s", "fast",
     [](PoolSpec &spec, const std::string &text) { return set_parsed(spec.reclaim, parse_reclaim(text)); },
     [](const PoolSpec &spec) { return format_reclaim(spec.reclaim); },
     PoolAttribute::kSetCommand, {}},
    {"pin-quarantine", Kind::text, "How long a dead client's blocks under a pin wait for devices: 1s to 24h", "5s",
     [](PoolSpec &spec, const std::string &text) {
         return set_parsed(spec.pin_quarantine, parse_pin_quarantine(text));
     },
     [](const PoolSpec &spec) { return std::to_string(spec.pin_quarantine.count()) + "s"; },
     PoolAttribute::kSetCommand, {}},
    {"low-watermark", Kind::bytes, "Less free memory than this on a numa node is an event; 0: none", "0",
     [](PoolSpec &spec, const std::string &text) { return set_bytes(spec.low_watermark_bytes, text); },
     [](const PoolSpec &spec) { return format_bytes(spec.low_watermark_bytes); },
     PoolAttribute::kSetCommand, {}},
    {"policy", Kind::text, "Numa nodes of the blocks: local, strict, preferred:1, interleave, interleave-frames",
     "local",
     [](PoolSpec &spec, const std::string &text) { return set_parsed(spec.policy, parse_policy(text)); },
     [](const PoolSpec &spec) { return format_policy(spec.policy); },
     PoolAttribute::kSetCommand, {}},
    {"autosize", Kind::text, "Growth and shrinking by itself: LOW-HIGH:MIN-MAX[:STEP[:AFTER]]", "off",
     [](PoolSpec &spec, const std::string &text) { return set_parsed(spec.autosize, parse_autosize(text)); },
     [](const PoolSpec &spec) { return format_autosize(spec.autosize); },
     PoolAttribute::kSetCommand, {}},
    {"quota", Kind::bytes, "Memory that all clients together may hold; 0: no limit", "0",
     [](PoolSpec &spec, const std::string &text) { return set_bytes(spec.quota_bytes, text); },
     [](const PoolSpec &spec) { return format_bytes(spec.quota_bytes); },
     PoolAttribute::kSetCommand, {}},
    {"soft-quota", Kind::bytes, "More memory than this, held by all clients together, is an event; 0: none", "0",
     [](PoolSpec &spec, const std::string &text) { return set_bytes(spec.soft_quota_bytes, text); },
     [](const PoolSpec &spec) { return format_bytes(spec.soft_quota_bytes); },
     PoolAttribute::kSetCommand, {}},
    {"fit", Kind::text, "Place of the blocks that no cache serves: nearby, compact, best", "nearby",
     [](PoolSpec &spec, const std::string &text) { return set_parsed(spec.fit, parse_fit(text)); },
     [](const PoolSpec &spec) { return std::string(fit_name(spec.fit)); },
     PoolAttribute::kSetCommand, {}},
    {"user-quota", Kind::text, "Quotas of users: USER=QUOTA[/SOFT], separated by blanks", "none",
     [](PoolSpec &spec, const std::string &text) { return set_user_quotas(spec.users, text); },
     [](const PoolSpec &spec) { return format_user_quotas(spec.users); },
     PoolAttribute::kSetCommand, {}},
    {"object-memory", Kind::bytes, "Memory of the object pools that clients make, all together; 0: only the owner's",
     "0",
     [](PoolSpec &spec, const std::string &text) { return set_bytes(spec.object_memory_bytes, text); },
     [](const PoolSpec &spec) { return format_bytes(spec.object_memory_bytes); },
     PoolAttribute::kSetCommand, {}},
    {"owner", Kind::text, "Owner of the pool, name or number", "the daemon's own user",
     [](PoolSpec &spec, const std::string &text) { return set_parsed(spec.access.owner, parse_user(text)); },
     [](const PoolSpec &spec) { return user_name(spec.access.owner); },
     PoolAttribute::kSetCommand, {}},
    {"group", Kind::text, "Group of the pool, name or number", "the daemon's own group",
     [](PoolSpec &spec, const std::string &text) { return set_parsed(spec.access.group, parse_group(text)); },
     [](const PoolSpec &spec) { return group_name(spec.access.group); },
     PoolAttribute::kSetCommand, {}},
    {"mode", Kind::text, "Octal mode, as of a file: w to use the pool, r to observe it", "0660",
     [](PoolSpec &spec, const std::string &text) { return set_parsed(spec.access.mode, parse_mode(text)); },
     [](const PoolSpec &spec) { return format_mode(spec.access.mode); },
     PoolAttribute::kSetCommand, {}},
};
// clang-format on

}  // namespace

Answer<void> set_count(std::uint64_t &target, const std::string &text) {
    return set_number(target, text);
}
Answer<void> set_count(std::uint32_t &target, const std::string &text) {
    return set_number(target, text);
}

Answer<void> set_positive_count(std::uint32_t &target, const std::string &text) {
    std::uint32_t value = 0;
    if (auto set = set_count(value, text); !set) return set;
    if (value == 0) return bad_argument("use 1 or more");
    target = value;
    return {};
}

std::span<const PoolAttribute> pool_attributes() {
    return kAttributes;
}

const PoolAttribute *find_pool_attribute(std::string_view key) {
    const auto *const found = std::ranges::find(kAttributes, key, &PoolAttribute::key);
    return found == std::end(kAttributes) ? nullptr : found;
}

std::string_view fixed_because(const PoolAttribute &attribute, const PoolSpec &spec) {
    if (spec.has_objects() && attribute.key == "online") return kObjectsStay;
    return attribute.fixed_because;
}

Answer<PoolSpec> changed(PoolSpec spec, const AttributeChanges &changes) {
    for (const auto &[key, text] : changes) {
        const PoolAttribute *const attribute = find_pool_attribute(key);
        if (attribute == nullptr)
            return bad_argument("unknown attribute \"" + key +
                                "\": " + likely_attribute(key, changeable_attribute_keys()));
        const std::string shown = key + " = " + text + ": ";
        if (const std::string_view fixed = fixed_because(*attribute, spec); !fixed.empty())
            return bad_argument(shown + "a pool in use keeps its " + key + ", for " + std::string(fixed));
        if (!attribute->is_changeable()) return bad_argument(shown + "use " + std::string(attribute->changed_by));
        const auto set = (attribute->change != nullptr ? attribute->change : attribute->parse)(spec, text);
        if (!set) return bad_argument(shown + set.error().message);
    }
    if (const auto sound = geometry_of(spec); !sound) return Unexpected{sound.error()};
    return spec;
}

namespace {
std::string keys_of(bool (*is_wanted)(const PoolAttribute &attribute)) {
    std::string keys;
    for (const PoolAttribute &attribute : kAttributes)
        if (is_wanted(attribute)) keys += (keys.empty() ? "" : ", ") + std::string(attribute.key);
    return keys;
}
}  // namespace

std::string pool_attribute_keys() {
    return keys_of([](const PoolAttribute &attribute) { return attribute.key != "name"; });
}

std::string changeable_attribute_keys() {
    return keys_of([](const PoolAttribute &attribute) { return attribute.is_changeable(); });
}

std::string likely_attribute(std::string_view unknown, const std::string &keys) {
    std::vector<std::string_view> names;
    for (const PoolAttribute &attribute : kAttributes) names.push_back(attribute.key);
    const std::string_view near = nearest_key(unknown, names);
    return near.empty() ? "use one of " + keys : "did you mean " + std::string(near) + "?";
}

}  // namespace numacre::daemon
