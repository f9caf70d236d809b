// The machine's memory and hugepages, by numa node.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace numacre::daemon {

struct HugepagePool {
    std::uint64_t page_bytes = 0, total = 0, free = 0, surplus = 0;
    std::uint64_t unreserved = 0;  // free pages that no mapping has reserved (resv_hugepages)
};
struct MachineNode {
    int os_numa_node = 0;
    std::uint64_t total_bytes = 0, free_bytes = 0;
    std::vector<HugepagePool> hugepages;
    std::string cpus;
    std::vector<unsigned> distances;
};
struct MachineStatus {
    std::vector<MachineNode> nodes;
    std::string topology_source;
    std::chrono::system_clock::time_point started;
    std::string metrics_address, runtime_dir;
};

}  // namespace numacre::daemon
