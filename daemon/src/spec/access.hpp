// Access rights. The decisions are pure. Names of users and groups come from the system's databases, which may be slow
// (a directory server): never look them up on the event loop.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/failure.hpp"
#include "engine.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

// The process that asks for access, as the kernel reports it (SO_PEERCRED, SO_PEERGROUPS).
struct Credentials {
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;
    std::span<const std::uint32_t> groups;  // supplementary
};

// The rule is that of files: the first class that fits (owner, group, others) decides alone, whatever a later class
// would allow. The trusted tier needs its w, the observer tier its r. root and the daemon's own user may always attach:
// they could take the memory without asking.
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

// True if the supplementary groups decide; to read them is a system call that takes some time.
constexpr bool depends_on_groups(const PoolAccess &access, const Credentials &who, wire::Tier tier,
                                 std::uint32_t daemon_uid) {
    return may_attach(access, {who.uid, who.gid, {}}, tier, daemon_uid) !=
           may_attach(access, {who.uid, who.gid, {&access.group, 1}}, tier, daemon_uid);
}

// Parses a name, or a number below 2^32 - 1. bad_argument: the system knows no such name.
Answer<std::uint32_t> parse_user(const std::string &text);
Answer<std::uint32_t> parse_group(const std::string &text);
// The name, or the number if there is no name.
std::string user_name(std::uint32_t uid);
std::string group_name(std::uint32_t gid);

// Parses octal text such as "0660", at most 0666.
Answer<std::uint32_t> parse_mode(std::string_view text);
// Formats four octal digits.
std::string format_mode(std::uint32_t mode);

}  // namespace numacre::daemon
