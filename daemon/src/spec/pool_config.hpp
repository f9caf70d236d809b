// The description of a pool: the attributes that the configuration, the flags, the ledger and the control plane know.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/backing.hpp"
#include "engine.hpp"
#include "numacre/shm/attach_wire.hpp"
#include "numacre/shm/fit.hpp"
#include "numacre/shm/policy.hpp"

namespace numacre::daemon {

constexpr const char *fit_name(Fit fit) {
    return fit == Fit::compact ? "compact" : fit == Fit::best ? "best" : "nearby";
}

// The treatment of the blocks of a client that is gone.
struct Reclaim {
    enum class Kind : std::uint32_t {
        fast,        // free at once, with the client's data in them
        zero,        // free when the daemon has zeroed them
        quarantine,  // not used for a while: late writes (of a device, of a peer with a pointer) hit no new owner
    };
    Kind kind = Kind::fast;
    std::chrono::seconds hold{0};  // quarantine only

    friend bool operator==(const Reclaim &, const Reclaim &) = default;
};

// When a numa node's part of a pool grows and shrinks by itself: autosize.hpp has the decision.
struct Autosize {
    bool is_on = false;
    std::uint32_t low_percent = 0;   // of the online memory: if less is free, the numa node grows
    std::uint32_t high_percent = 0;  // of the online memory: if more is free, the numa node shrinks
    std::uint64_t min_bytes = 0, max_bytes = 0;
    std::uint64_t step_bytes = std::uint64_t{64} << 20;
    std::chrono::seconds after{30};  // how long the condition has to last

    friend bool operator==(const Autosize &, const Autosize &) = default;
};

// The access rights of a pool, as the kernel has them of a file: access.hpp has the decision.
struct PoolAccess {
    static constexpr std::uint32_t kDefaultMode = 0660;
    static constexpr std::uint32_t kWidestMode = 0666;  // there is nothing to execute

    std::uint32_t owner = ::geteuid();
    std::uint32_t group = ::getegid();
    std::uint32_t mode = kDefaultMode;
    friend bool operator==(const PoolAccess &, const PoolAccess &) = default;
};

// The limits of all clients of a user in one pool together, and the memory promised to them. 0: none.
struct UserLimit {
    std::uint32_t uid = 0;
    std::uint64_t quota_bytes = 0, soft_quota_bytes = 0, reserved_bytes = 0;
    friend bool operator==(const UserLimit &, const UserLimit &) = default;
};

struct PoolSpec {
    std::string name = "default";
    std::uint64_t capacity_bytes = std::uint64_t{1} << 30;  // per numa node
    std::uint64_t online_bytes = std::uint64_t{256} << 20;  // per numa node, to begin with
    // Replaces online_bytes where numa nodes differ: one size for each numa node, the last one for all further numa
    // nodes. Used only when the pool is made.
    std::vector<std::uint64_t> node_online_bytes;
    std::uint64_t frame_bytes = 4096;
    std::uint64_t largest_block_bytes = std::uint64_t{4} << 20;
    // An object pool: so many objects on each numa node, all of this one size. The sizes above then follow from these
    // (set_object_sizes()). 0: a pool of blocks.
    std::uint64_t object_bytes = 0, object_count = 0;
    bool colours_objects = true;  // object_stride()
    // The pool whose clients have made this object pool: it goes with its last client. Empty: an operator's pool.
    std::string made_within;
    // The memory that object pools which clients make may take, all together; 0: only the owner and root make any.
    std::uint64_t object_memory_bytes = 0;
    std::uint32_t max_clients = 256;                 // process slots: the pool's tables have so many
    std::uint32_t client_limit = 0;                  // of max_clients, for who attaches from now on; 0: all
    std::uint32_t max_threads = 4096;                // thread slots of all clients together
    std::uint32_t max_threads_per_client = 0;        // of max_threads; 0: all
    wire::Backing backing = wire::Backing::hugetlb;  // the best to try; falls back to the next of kBackings
    Reclaim reclaim;
    // How long what a dead client had in a pinned range stays its own, once nobody has the pin any more.
    std::chrono::seconds pin_quarantine{5};
    std::uint64_t low_watermark_bytes = 0;  // per numa node: less free memory than this is an event; 0: none
    // For all clients together; 0: none. More use than the soft quota is an event.
    std::uint64_t quota_bytes = 0, soft_quota_bytes = 0;
    std::vector<UserLimit> users;  // to begin with
    Fit fit = Fit::nearby;         // how blocks are chosen for calls that do not say it themselves
    PoolAccess access;
    Policy policy{PolicyMode::local, 0};  // for clients that set none themselves
    Autosize autosize;

    bool has_objects() const { return object_bytes != 0; }
    std::uint64_t online_bytes_on(NumaNode numa_node) const {
        if (node_online_bytes.empty()) return online_bytes;
        return node_online_bytes[std::min<std::size_t>(numa_node.value, node_online_bytes.size() - 1)];
    }
};

}  // namespace numacre::daemon
