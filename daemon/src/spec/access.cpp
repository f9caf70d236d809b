#include "spec/access.hpp"

#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <limits>
#include <optional>
#include <system_error>
#include <vector>

namespace numacre::daemon {

namespace {

constexpr std::size_t kFirstRoom = 1024;
constexpr std::size_t kMostRoom = std::size_t{1} << 20;  // a group with very many members

// Calls one of the get..._r functions with as much room as it wants. No value: there is no such entry.
template <class Entry, class Ask>
std::optional<Entry> look_up(std::vector<char> &room, const Ask &ask) {
    for (room.resize(kFirstRoom);; room.resize(room.size() * 4)) {
        Entry entry{};
        Entry *found = nullptr;
        const int error = ask(&entry, room.data(), room.size(), &found);
        if (error == ERANGE && room.size() < kMostRoom) continue;
        if (error != 0 || found == nullptr) return std::nullopt;
        return entry;
    }
}

// No value: the text is no valid number. -1 means "nobody" to the kernel's own calls.
std::optional<std::uint32_t> parse_id(const std::string &text) {
    std::uint32_t id = 0;
    const auto [rest, fault] = std::from_chars(text.data(), text.data() + text.size(), id);
    if (fault != std::errc{} || rest != text.data() + text.size()) return std::nullopt;
    if (id == std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
    return id;
}

}  // namespace

Answer<std::uint32_t> parse_user(const std::string &text) {
    std::vector<char> room;
    const auto entry = look_up<passwd>(room, [&](passwd *at, char *buffer, std::size_t size, passwd **found) {
        return ::getpwnam_r(text.c_str(), at, buffer, size, found);
    });
    if (entry) return entry->pw_uid;
    if (const auto id = parse_id(text)) return *id;
    return bad_argument("this machine knows no such user: use one of `getent passwd`, or a number");
}

Answer<std::uint32_t> parse_group(const std::string &text) {
    std::vector<char> room;
    const auto entry = look_up<group>(room, [&](group *at, char *buffer, std::size_t size, group **found) {
        return ::getgrnam_r(text.c_str(), at, buffer, size, found);
    });
    if (entry) return entry->gr_gid;
    if (const auto id = parse_id(text)) return *id;
    return bad_argument(
        "this machine knows no such group: make it (`groupadd`), use one of `getent group`, or a number");
}

std::string user_name(std::uint32_t uid) {
    std::vector<char> room;
    const auto entry = look_up<passwd>(room, [&](passwd *at, char *buffer, std::size_t size, passwd **found) {
        return ::getpwuid_r(uid, at, buffer, size, found);
    });
    return entry ? entry->pw_name : std::to_string(uid);
}

std::string group_name(std::uint32_t gid) {
    std::vector<char> room;
    const auto entry = look_up<group>(room, [&](group *at, char *buffer, std::size_t size, group **found) {
        return ::getgrgid_r(gid, at, buffer, size, found);
    });
    return entry ? entry->gr_name : std::to_string(gid);
}

Answer<std::uint32_t> parse_mode(std::string_view text) {
    constexpr std::size_t kDigitsMax = 4;
    const bool is_octal =
        !text.empty() && text.size() <= kDigitsMax &&
        std::all_of(text.begin(), text.end(), [](char digit) { return digit >= '0' && digit <= '7'; });
    if (!is_octal) return bad_argument("no octal mode: use 0660, for example");
    std::uint32_t mode = 0;
    for (const char digit : text) mode = mode << 3 | static_cast<std::uint32_t>(digit - '0');
    if ((mode & ~PoolAccess::kWidestMode) != 0)
        return bad_argument("beyond 0666: only r (4) and w (2) mean something here, use " +
                            format_mode(mode & PoolAccess::kWidestMode));
    return mode;
}

std::string format_mode(std::uint32_t mode) {
    std::string text;
    for (const unsigned shift : {9U, 6U, 3U, 0U}) text += static_cast<char>('0' + (mode >> shift & 7));
    return text;
}

}  // namespace numacre::daemon
