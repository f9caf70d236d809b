// Who may do what. Decisions are pure; names of users and groups come from the system's databases, which may be slow
// (a directory server): never ask them on the event loop.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/failure.hpp"
#include "engine.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

// Who asks, as the kernel says (SO_PEERCRED, SO_PEERGROUPS).
struct Credentials {
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;
    std::span<const std::uint32_t> groups;  // supplementary
};

// As for a file: the first class that fits (owner, group, others) decides alone, whatever a later one would allow. The
// trusted tier takes its w, the observer tier its r. root and the daemon's own user may always: they could take the
// memory without asking.
constexpr bool may_attach(const PoolAccess &access, const Credentials &who, wire::Tier tier, std::uint32_t daemon_uid) {
    if (who.uid == 0 || who.uid == daemon_uid) return true;
    constexpr std::uint32_t kRead = 4, kWrite = 2;
    constexpr unsigned kOwnerShift = 6, kGroupShift = 3;
    const auto is_member = [&] {
        if (who.gid == access.group) return true;
        for (const std::uint32_t group : who.groups)
            if (group == access.group) return true;
        return false;
    };
    const unsigned shift = who.uid == access.owner ? kOwnerShift : is_member() ? kGroupShift : 0;
    const std::uint32_t needed = tier == wire::Tier::observer ? kRead : kWrite;
    return (access.mode >> shift & needed) != 0;
}

// Whether the supplementary groups decide; they cost a system call of some length.
constexpr bool depends_on_groups(const PoolAccess &access, const Credentials &who, wire::Tier tier,
                                 std::uint32_t daemon_uid) {
    return may_attach(access, {who.uid, who.gid, {}}, tier, daemon_uid) !=
           may_attach(access, {who.uid, who.gid, {&access.group, 1}}, tier, daemon_uid);
}

// A name, or a number below 2^32 - 1. bad_argument: the system knows no such name.
Answer<std::uint32_t> parse_user(const std::string &text);
Answer<std::uint32_t> parse_group(const std::string &text);
// The name, or the number if it has none.
std::string user_name(std::uint32_t uid);
std::string group_name(std::uint32_t gid);

// Octal text such as "0660", at most 0666.
Answer<std::uint32_t> parse_mode(std::string_view text);
// Four octal digits.
std::string format_mode(std::uint32_t mode);

}  // namespace numacre::daemon
