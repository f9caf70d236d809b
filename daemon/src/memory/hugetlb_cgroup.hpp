// Limits that the cgroups of this process set on its hugepages and memory. hugetlb charges the allocating process,
// which is the daemon, whichever process uses the pages. The daemon asks before it allocates, because the kernel would
// first take all that is left, and then fail with the same ENOSPC as for a shortage of pages.
#pragma once

#include <cstdint>
#include <string>

#include "base/failure.hpp"

namespace numacre::daemon {

// The page size as the kernel spells it in the names of its files: "2MB", "1GB".
std::string hugetlb_size_name(std::uint64_t page_bytes);

// Checks that every hugetlb cgroup (v2 or v1) from ours up allows so many bytes more. The failure names the cgroup, its
// limit and how to raise it. Only tests pass another root.
Answer<void> check_hugetlb_cgroup(std::uint64_t page_bytes, std::uint64_t bytes, const std::string &root = "");

// How much memory of small pages may still be taken, and which limit that is.
struct MemoryLeft {
    std::uint64_t bytes = 0;
    std::string said_by;  // "the machine", or a cgroup with its file
};
// The minimum of the machine's available memory and of the bytes that each memory cgroup (v2 or v1) from ours up still
// allows; a cgroup's clean page cache counts as free. A file that cannot be read limits nothing.
MemoryLeft memory_left(const std::string &root = "");

}  // namespace numacre::daemon
