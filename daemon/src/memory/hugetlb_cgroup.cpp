#include "memory/hugetlb_cgroup.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"

namespace numacre::daemon {

namespace {

namespace fs = std::filesystem;

struct Hierarchy {
    fs::path mounted_at;
    fs::path ours;  // our cgroup, relative to mounted_at
    bool is_v1 = false;
};

// Nothing: the file does not exist, or says "max".
std::optional<std::uint64_t> read_bytes(const fs::path &path) {
    std::ifstream file(path);
    std::uint64_t bytes = 0;
    if (file >> bytes) return bytes;
    return std::nullopt;
}

// Returns the number that follows `name` in a file of lines "name number [...]".
std::optional<std::uint64_t> read_named(const fs::path &path, std::string_view name) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        std::istringstream fields(line);
        std::string found;
        std::uint64_t number = 0;
        if (fields >> found >> number && found == name) return number;
    }
    return std::nullopt;
}

// The mounted hierarchies that the controller may be in.
std::vector<Hierarchy> mounted(const std::string &root, const std::string &controller) {
    std::vector<Hierarchy> found;
    std::ifstream mounts(root + "/proc/self/mountinfo");
    for (std::string line; std::getline(mounts, line);) {
        // "id parent device root mountpoint options [tags] - type source superoptions"
        std::istringstream fields(line);
        std::string field, mountpoint, type, source, options;
        for (int i = 0; i < 5; ++i) fields >> mountpoint;
        while (fields >> field && field != "-") {
        }
        fields >> type >> source >> options;
        const bool is_v1 = type == "cgroup" && ("," + options + ",").find("," + controller + ",") != std::string::npos;
        if (is_v1 || type == "cgroup2") found.push_back({root + mountpoint, {}, is_v1});
    }
    return found;
}

// The mounted hierarchies, with our cgroup in each of them.
std::vector<Hierarchy> hierarchies(const std::string &root, const std::string &controller) {
    std::vector<Hierarchy> found = mounted(root, controller);
    std::ifstream membership(root + "/proc/self/cgroup");
    for (std::string line; std::getline(membership, line);) {
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool is_v1 = ("," + controllers + ",").find("," + controller + ",") != std::string::npos;
        if (!is_v1 && !controllers.empty()) continue;
        for (Hierarchy &hierarchy : found)
            if (hierarchy.is_v1 == is_v1) hierarchy.ours = fs::path(line.substr(second + 1)).relative_path();
    }
    return found;
}

}  // namespace

std::string hugetlb_size_name(std::uint64_t page_bytes) {
    constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
    return page_bytes >= kGiB ? std::to_string(page_bytes / kGiB) + "GB" : std::to_string(page_bytes >> 20) + "MB";
}

Answer<void> check_hugetlb_cgroup(std::uint64_t page_bytes, std::uint64_t bytes, const std::string &root) {
    for (const Hierarchy &hierarchy : hierarchies(root, "hugetlb")) {
        for (fs::path group = hierarchy.ours;; group = group.parent_path()) {
            // A file's pages are charged as reserved, too, so both limits apply.
            for (const char *const which : {"", ".rsvd"}) {
                const std::string prefix = "hugetlb." + hugetlb_size_name(page_bytes) + which;
                const fs::path folder = hierarchy.mounted_at / group;
                const fs::path limit_file = folder / (prefix + (hierarchy.is_v1 ? ".limit_in_bytes" : ".max"));
                const auto limit = read_bytes(limit_file);
                const auto used = read_bytes(folder / (prefix + (hierarchy.is_v1 ? ".usage_in_bytes" : ".current")));
                // Written without overflow: v1 writes "no limit" as a number near the greatest.
                if (!limit || !used || (*used <= *limit && bytes <= *limit - *used)) continue;
                return Unexpected{
                    Failure{Errc::out_of_frames,
                            "cgroup /" + group.string() + " lets numacred have " + format_bytes(*limit) +
                                " of hugepages of " + format_bytes(page_bytes) + ", " + format_bytes(*used) +
                                " are used and " + format_bytes(bytes) + " more are needed: raise the limit (echo " +
                                std::to_string(*used + bytes) + " > " + limit_file.string() + "), or ask for less"}};
            }
            if (group.empty()) break;
        }
    }
    return {};
}

MemoryLeft memory_left(const std::string &root) {
    constexpr std::uint64_t kKiB = 1024;
    MemoryLeft left{~std::uint64_t{0}, "the machine"};
    if (const auto available = read_named(root + "/proc/meminfo", "MemAvailable:")) left.bytes = *available * kKiB;
    for (const Hierarchy &hierarchy : hierarchies(root, "memory")) {
        for (fs::path group = hierarchy.ours;; group = group.parent_path()) {
            const fs::path folder = hierarchy.mounted_at / group;
            const fs::path limit_file = folder / (hierarchy.is_v1 ? "memory.limit_in_bytes" : "memory.max");
            const auto limit = read_bytes(limit_file);
            const auto used = read_bytes(folder / (hierarchy.is_v1 ? "memory.usage_in_bytes" : "memory.current"));
            if (limit && used) {
                const char *const cache = hierarchy.is_v1 ? "total_inactive_file" : "inactive_file";
                const std::uint64_t kept =
                    *used - std::min(*used, read_named(folder / "memory.stat", cache).value_or(0));
                const std::uint64_t bytes = *limit - std::min(*limit, kept);
                if (bytes < left.bytes) left = {bytes, "cgroup /" + group.string() + " (" + limit_file.string() + ")"};
            }
            if (group.empty()) break;
        }
    }
    return left;
}

}  // namespace numacre::daemon
