// The kinds of pages that a pool's frames can lie on.
#pragma once

#include <cstdint>

#include "engine.hpp"
#include "numacre/shm/attach_wire.hpp"
#include "numacre/shm/layout.hpp"

namespace numacre::daemon {

// The only spelling of a backing: in the configuration, in logs, in metrics.
constexpr const char *backing_name(wire::Backing backing) {
    switch (backing) {
        case wire::Backing::private_memory:
            return "private";
        case wire::Backing::hugetlb:
            return "hugetlb";
        case wire::Backing::hugetlb_1g:
            return "hugetlb-1g";
        case wire::Backing::thp:
            return "thp";
        case wire::Backing::small_pages:
            return "small";
    }
    return "unknown";
}

// All backings, the best first. A pool gets the first one that the machine has, beginning with the one that it asks
// for.
inline constexpr wire::Backing kBackings[] = {wire::Backing::hugetlb_1g, wire::Backing::hugetlb, wire::Backing::thp,
                                              wire::Backing::small_pages};

constexpr bool is_hugetlb(wire::Backing backing) {
    return backing == wire::Backing::hugetlb || backing == wire::Backing::hugetlb_1g;
}

constexpr std::uint64_t page_bytes_of(wire::Backing backing) {
    switch (backing) {
        case wire::Backing::hugetlb_1g:
            return kGiganticPageBytes;
        case wire::Backing::hugetlb:
        case wire::Backing::thp:
            return kHugepageBytes;
        case wire::Backing::small_pages:
        case wire::Backing::private_memory:
            break;
    }
    return kPageBytes;
}

}  // namespace numacre::daemon
