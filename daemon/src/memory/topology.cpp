#include "memory/topology.hpp"

#include <numa.h>
#include <numaif.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <sstream>
#include <utility>

#include "base/bytes.hpp"
#include "numacre/shm/layout.hpp"

namespace numacre::daemon {

namespace {

constexpr std::string_view kSyntheticPrefix = "synthetic:";
constexpr unsigned kLocalDistance = 10;
constexpr unsigned kRemoteDistance = 20;

std::string sysfs_node(int os_numa_node) {
    return "/sys/devices/system/node/node" + std::to_string(os_numa_node);
}

std::string first_line(const std::string &path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// Sum of the named lines of a numa node's meminfo ("Node 0 MemFree:  123 kB"), in bytes. Nothing: the file cannot be
// read.
std::optional<std::uint64_t> meminfo_bytes(int os_numa_node, std::initializer_list<std::string_view> names) {
    std::ifstream file(sysfs_node(os_numa_node) + "/meminfo");
    if (!file) return std::nullopt;
    std::uint64_t kib = 0;
    std::string line;
    while (std::getline(file, line)) {
        std::istringstream words(line);
        std::string node_word, number_word, name;
        std::uint64_t amount = 0;
        if (!(words >> node_word >> number_word >> name >> amount)) continue;
        if (!name.empty() && name.back() == ':') name.pop_back();
        if (std::find(names.begin(), names.end(), name) != names.end()) kib += amount;
    }
    return kib * 1024;
}

std::uint64_t available_on(int os_numa_node) {
    if (const auto bytes = meminfo_bytes(os_numa_node, {"MemFree", "Active(file)", "Inactive(file)", "SReclaimable"}))
        return *bytes;
    long long free_bytes = 0;
    numa_node_size64(os_numa_node, &free_bytes);
    return free_bytes > 0 ? static_cast<std::uint64_t>(free_bytes) : 0;
}

// The numa nodes of the machine. A kernel built without NUMA still has memory: one numa node, number 0.
std::vector<MemoryNode> real_nodes() {
    std::vector<MemoryNode> nodes;
    if (numa_available() >= 0) {
        bitmask *const allowed = numa_get_mems_allowed();
        for (int number = 0; number <= numa_max_node() && nodes.size() < kMaxNumaNodes; ++number) {
            if (!numa_bitmask_isbitset(allowed, static_cast<unsigned>(number))) continue;
            const long long total = numa_node_size64(number, nullptr);
            if (total <= 0) continue;
            nodes.push_back(
                {number, static_cast<std::uint64_t>(total), first_line(sysfs_node(number) + "/cpulist"), {}});
        }
        numa_bitmask_free(allowed);
    }
    if (nodes.empty()) {
        const auto pages = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES));
        nodes.push_back({0,
                         pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)),
                         first_line("/sys/devices/system/cpu/online"),
                         {}});
    }
    return nodes;
}

unsigned real_distance(int from, int to) {
    if (from == to) return kLocalDistance;
    const int distance = numa_available() >= 0 ? numa_distance(from, to) : 0;
    return distance > 0 ? static_cast<unsigned>(distance) : kRemoteDistance;
}

class LibnumaTopology final : public Topology {
public:
    LibnumaTopology() {
        numa_nodes_ = real_nodes();
        for (MemoryNode &from : numa_nodes_)
            for (const MemoryNode &to : numa_nodes_)
                from.distances.push_back(real_distance(from.os_numa_node, to.os_numa_node));
        placement_needed_ = numa_nodes_.size() > 1;
    }
    std::string source() const override { return "libnuma"; }
    std::uint64_t available_bytes(NumaNode numa_node) const override {
        return available_on(numa_nodes_[numa_node.value].os_numa_node);
    }
    std::uint64_t unbooked_bytes(NumaNode) const override { return std::numeric_limits<std::uint64_t>::max(); }
    Answer<void> take(NumaNode, std::uint64_t) override { return {}; }
    void give_back(NumaNode, std::uint64_t) override {}
};

class SyntheticNodes final : public Topology {
public:
    explicit SyntheticNodes(SyntheticTopology shape) : shape_(shape), taken_(shape.node_count, 0) {
        const std::vector<MemoryNode> real = real_nodes();
        for (unsigned i = 0; i < shape.node_count; ++i) {
            const MemoryNode &under = real[i % real.size()];
            MemoryNode made{under.os_numa_node, shape.bytes_each, under.cpus, {}};
            for (unsigned other = 0; other < shape.node_count; ++other)
                made.distances.push_back(i == other ? kLocalDistance : kRemoteDistance);
            numa_nodes_.push_back(std::move(made));
        }
        placement_needed_ = real.size() > 1;
    }
    std::string source() const override {
        return std::string(kSyntheticPrefix) + std::to_string(shape_.node_count) + "x" +
               format_bytes(shape_.bytes_each);
    }
    std::uint64_t available_bytes(NumaNode numa_node) const override {
        return available_on(numa_nodes_[numa_node.value].os_numa_node);
    }
    std::uint64_t unbooked_bytes(NumaNode numa_node) const override {
        const std::lock_guard lock(mutex_);
        return shape_.bytes_each - taken_[numa_node.value];
    }
    Answer<void> take(NumaNode numa_node, std::uint64_t bytes) override {
        const std::lock_guard lock(mutex_);
        const std::uint64_t left = shape_.bytes_each - taken_[numa_node.value];
        if (bytes > left)
            return Unexpected{Failure{Errc::out_of_frames,
                                      "numa node " + std::to_string(numa_node.value) + " of the topology " + source() +
                                          " has " + format_bytes(left) + " left, " + format_bytes(bytes) +
                                          " are needed: ask for less, or give the synthetic nodes more memory"}};
        taken_[numa_node.value] += bytes;
        return {};
    }
    void give_back(NumaNode numa_node, std::uint64_t bytes) override {
        const std::lock_guard lock(mutex_);
        taken_[numa_node.value] -= std::min(bytes, taken_[numa_node.value]);
    }

private:
    SyntheticTopology shape_;
    mutable std::mutex mutex_;
    std::vector<std::uint64_t> taken_;  // bytes, guarded by mutex_
};

Unexpected<Failure> placement_refused(const char *call, int os_numa_node, int error) {
    std::string message =
        std::string(call) + " for numa node " + std::to_string(os_numa_node) + " failed: " + std::strerror(error);
    if (error == EPERM || error == ENOSYS)
        message += "; a container's seccomp profile forbids it: allow set_mempolicy and mbind (or add CAP_SYS_NICE)";
    return Unexpected{Failure{Errc::access_denied, std::move(message)}};
}

}  // namespace

ThreadBinding::ThreadBinding(ThreadBinding &&other) noexcept : bound_(std::exchange(other.bound_, false)) {}

ThreadBinding::~ThreadBinding() {
    if (bound_) set_mempolicy(MPOL_DEFAULT, nullptr, 0);
}

std::vector<NumaNode> Topology::nearest(NumaNode numa_node) const {
    std::vector<NumaNode> order;
    for (std::size_t i = 0; i < numa_nodes_.size(); ++i) order.push_back(NumaNode{static_cast<std::uint8_t>(i)});
    const auto &distances = numa_nodes_[numa_node.value].distances;
    std::sort(order.begin(), order.end(), [&](NumaNode a, NumaNode b) {
        const auto key = [&](NumaNode n) { return std::pair(n == numa_node ? 0U : distances[n.value], n.value); };
        return key(a) < key(b);
    });
    return order;
}

Answer<ThreadBinding> Topology::bind_this_thread(NumaNode numa_node) const {
    ThreadBinding binding;
    if (!placement_needed_) return binding;
    const int os_numa_node = numa_nodes_[numa_node.value].os_numa_node;
    bitmask *const mask = numa_allocate_nodemask();
    numa_bitmask_setbit(mask, static_cast<unsigned>(os_numa_node));
    const long failed = set_mempolicy(MPOL_BIND, mask->maskp, mask->size + 1);
    const int error = errno;
    numa_bitmask_free(mask);
    if (failed != 0) return placement_refused("set_mempolicy", os_numa_node, error);
    binding.bound_ = true;
    return binding;
}

Answer<void> Topology::bind_shared_pages(void *address, std::uint64_t bytes, NumaNode numa_node, bool strict) const {
    if (!placement_needed_) return {};
    const int os_numa_node = numa_nodes_[numa_node.value].os_numa_node;
    bitmask *const mask = numa_allocate_nodemask();
    numa_bitmask_setbit(mask, static_cast<unsigned>(os_numa_node));
    const long failed = mbind(address, bytes, strict ? MPOL_BIND : MPOL_PREFERRED, mask->maskp, mask->size + 1, 0);
    const int error = errno;
    numa_bitmask_free(mask);
    if (failed != 0) return placement_refused("mbind", os_numa_node, error);
    return {};
}

Answer<std::uint64_t> Topology::bring_home(void *address, std::uint64_t bytes, std::uint64_t step_bytes,
                                           NumaNode home) const {
    if (!placement_needed_) return 0;
    constexpr std::uint64_t kAtOnce = 4096;
    const int os_numa_node = numa_nodes_[home.value].os_numa_node;
    std::uint64_t moved = 0;
    std::vector<void *> pages, strays;
    for (std::uint64_t offset = 0; offset < bytes;) {
        pages.clear();
        strays.clear();
        for (; offset < bytes && pages.size() < kAtOnce; offset += step_bytes)
            pages.push_back(static_cast<std::byte *>(address) + offset);
        std::vector<int> status(pages.size(), -1);
        if (move_pages(0, pages.size(), pages.data(), nullptr, status.data(), 0) != 0)
            return placement_refused("move_pages", os_numa_node, errno);
        for (std::size_t i = 0; i < pages.size(); ++i)
            if (status[i] >= 0 && status[i] != os_numa_node) strays.push_back(pages[i]);
        if (strays.empty()) continue;
        const std::vector<int> nodes(strays.size(), os_numa_node);
        status.assign(strays.size(), -1);
        if (move_pages(0, strays.size(), strays.data(), nodes.data(), status.data(), MPOL_MF_MOVE_ALL) < 0)
            return placement_refused("move_pages", os_numa_node, errno);
        moved += static_cast<std::uint64_t>(std::count(status.begin(), status.end(), os_numa_node));
    }
    return moved;
}

Answer<SyntheticTopology> parse_synthetic(std::string_view text) {
    const auto refuse = [&](const std::string &why) {
        return Unexpected{Failure{Errc::bad_argument,
                                  "topology \"" + std::string(kSyntheticPrefix) + std::string(text) + "\": " + why +
                                      "; write synthetic:<nodes>x<bytes each>, " + "such as synthetic:2x512M"}};
    };
    const std::size_t times = text.find('x');
    if (times == std::string_view::npos) return refuse("no 'x' between node count and bytes");
    SyntheticTopology shape;
    const char *const end = text.data() + times;
    const auto [rest, fault] = std::from_chars(text.data(), end, shape.node_count);
    if (fault != std::errc{} || rest != end)
        return refuse("\"" + std::string(text.substr(0, times)) + "\" is not a node count");
    if (shape.node_count == 0 || shape.node_count > kMaxNumaNodes)
        return refuse(std::to_string(shape.node_count) + " nodes are out of range 1 .. " +
                      std::to_string(kMaxNumaNodes));
    const auto bytes = parse_bytes(text.substr(times + 1));
    if (!bytes) return refuse(bytes.error().message);
    if (*bytes == 0) return refuse("a node of 0 bytes");
    shape.bytes_each = *bytes;
    return shape;
}

Answer<void> check_topology_spec(std::string_view spec) {
    if (spec == "libnuma") return {};
    if (spec.starts_with(kSyntheticPrefix)) {
        const auto shape = parse_synthetic(spec.substr(kSyntheticPrefix.size()));
        if (!shape) return Unexpected{shape.error()};
        return {};
    }
    return Unexpected{Failure{Errc::bad_argument, "topology \"" + std::string(spec) +
                                                      "\" is unknown: use libnuma or synthetic:<nodes>x<bytes each>"}};
}

Answer<std::unique_ptr<Topology>> make_topology(std::string_view spec) {
    const auto wording = check_topology_spec(spec);
    if (!wording) return Unexpected{wording.error()};
    if (spec == "libnuma") return std::unique_ptr<Topology>(std::make_unique<LibnumaTopology>());
    const auto shape = parse_synthetic(spec.substr(kSyntheticPrefix.size()));
    return std::unique_ptr<Topology>(std::make_unique<SyntheticNodes>(*shape));
}

}  // namespace numacre::daemon
