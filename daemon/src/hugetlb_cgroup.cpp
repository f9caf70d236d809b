#include "hugetlb_cgroup.hpp"

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "bytes.hpp"

namespace numacre::daemon {

namespace {

namespace fs = std::filesystem;

struct Hierarchy {
    fs::path mounted_at;
    fs::path ours;  // below it
    bool is_v1 = false;
};

// Nothing: no such file, or "max".
std::optional<std::uint64_t> read_bytes(const fs::path &path) {
    std::ifstream file(path);
    std::uint64_t bytes = 0;
    if (file >> bytes) return bytes;
    return std::nullopt;
}

// Where the hierarchies are mounted that hugetlb may be in.
std::vector<Hierarchy> mounted(const std::string &root) {
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
        const bool is_v1 = type == "cgroup" && ("," + options + ",").find(",hugetlb,") != std::string::npos;
        if (is_v1 || type == "cgroup2") found.push_back({root + mountpoint, {}, is_v1});
    }
    return found;
}

// Our place in each of them.
std::vector<Hierarchy> hierarchies(const std::string &root) {
    std::vector<Hierarchy> found = mounted(root);
    std::ifstream membership(root + "/proc/self/cgroup");
    for (std::string line; std::getline(membership, line);) {
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool is_v1 = ("," + controllers + ",").find(",hugetlb,") != std::string::npos;
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
    for (const Hierarchy &hierarchy : hierarchies(root)) {
        const std::string prefix = "hugetlb." + hugetlb_size_name(page_bytes);
        for (fs::path group = hierarchy.ours;; group = group.parent_path()) {
            const fs::path folder = hierarchy.mounted_at / group;
            const fs::path limit_file = folder / (prefix + (hierarchy.is_v1 ? ".limit_in_bytes" : ".max"));
            const auto limit = read_bytes(limit_file);
            const auto used = read_bytes(folder / (prefix + (hierarchy.is_v1 ? ".usage_in_bytes" : ".current")));
            // Without overflow: v1 writes "no limit" as a number near the greatest.
            if (limit && used && (*used > *limit || bytes > *limit - *used))
                return Unexpected{
                    Failure{Errc::out_of_frames,
                            "cgroup /" + group.string() + " lets numacred have " + format_bytes(*limit) +
                                " of hugepages of " + format_bytes(page_bytes) + ", " + format_bytes(*used) +
                                " are used and " + format_bytes(bytes) + " more are needed: raise the limit (echo " +
                                std::to_string(*used + bytes) + " > " + limit_file.string() + "), or ask for less"}};
            if (group.empty()) break;
        }
    }
    return {};
}

}  // namespace numacre::daemon
