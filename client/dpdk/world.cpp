// The part that all mempools of a DPDK world share: a memzone that the first process makes and the others look up.
#include <rte_errno.h>
#include <rte_memzone.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "driver.hpp"

namespace numacre::dpdk {

std::uint64_t random_number() {
    std::uint64_t number = 0;
    while (getrandom(&number, sizeof number, 0) != sizeof number || number == 0) {
    }
    return number;
}

World *world() {
    static std::atomic<World *> known;
    World *here = known.load(std::memory_order_acquire);
    if (here != nullptr) return here;
    constexpr char kName[] = "numacre world";
    const rte_memzone *zone = rte_memzone_lookup(kName);
    if (zone == nullptr) zone = rte_memzone_reserve(kName, sizeof(World), SOCKET_ID_ANY, 0);
    if (zone == nullptr && rte_errno == EEXIST) zone = rte_memzone_lookup(kName);  // another process was first
    if (zone == nullptr) {
        NUMACRE_LOG(ERR, "no memzone %s: %s\n", kName, rte_strerror(rte_errno));
        return nullptr;
    }
    // All fields begin as 0, which a memzone does as well.
    here = static_cast<World *>(zone->addr);
    std::uint64_t none = 0;
    here->group.compare_exchange_strong(none, random_number(), std::memory_order_acq_rel);
    known.store(here, std::memory_order_release);
    return here;
}

std::uint32_t claim_slot(World &world) {
    for (std::uint32_t word = 0; word < kMaxMempools / 64; ++word) {
        std::uint64_t bits = world.slots[word].load(std::memory_order_relaxed);
        while (~bits != 0) {
            const auto bit = static_cast<std::uint32_t>(__builtin_ctzll(~bits));
            if (world.slots[word].compare_exchange_weak(bits, bits | std::uint64_t{1} << bit, std::memory_order_acq_rel,
                                                        std::memory_order_relaxed))
                return word * 64 + bit;
        }
    }
    return kMaxMempools;
}

void release_slot(World &world, std::uint32_t slot) {
    world.slots[slot / 64].fetch_and(~(std::uint64_t{1} << slot % 64), std::memory_order_release);
}

}  // namespace numacre::dpdk
