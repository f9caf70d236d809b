// What the cgroups that this process is in let it have of hugepages, and of memory: hugetlb counts them for who
// allocates, and that is the daemon, whoever uses them. Asked before anything is allocated, for the kernel first eats
// all that is left and fails with the same ENOSPC as for a shortage of pages.
#pragma once

#include <cstdint>
#include <string>

#include "base/failure.hpp"

namespace numacre::daemon {

// As the kernel spells page sizes in the names of its files: "2MB", "1GB".
std::string hugetlb_size_name(std::uint64_t page_bytes);

// Whether so much more is allowed in every hugetlb cgroup (v2 or v1) from ours up. The failure names the cgroup, its
// limit and how to raise it. root: another one only in tests.
Answer<void> check_hugetlb_cgroup(std::uint64_t page_bytes, std::uint64_t bytes, const std::string &root = "");

// How much memory of small pages may still be taken, and who says so.
struct MemoryLeft {
    std::uint64_t bytes = 0;
    std::string said_by;  // "the machine", or a cgroup with its file
};
// The least of what the machine has available and what each memory cgroup (v2 or v1) from ours up still allows, its
// clean page cache counted as free. What cannot be read limits nothing.
MemoryLeft memory_left(const std::string &root = "");

}  // namespace numacre::daemon
