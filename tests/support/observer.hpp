// Looks at a served pool's metadata as an observer does: attached by the wire protocol itself, everything mapped
// read-only. For tests that have to know what is really there, at once and to the frame, and that may not trust the
// library's or the daemon's own account of it.
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "numacre/shm/attach_wire.hpp"
#include "numacre/shm/audit.hpp"
#include "numacre/shm/snapshot.hpp"

namespace numacre::test {

using namespace engine;

// The first numa node of a pool of the daemon that runs in $NUMACRE_RUNTIME_DIR. Stays attached until the process ends.
class Observer {
public:
    explicit Observer(const char *pool_name) {
        const char *const runtime_dir = std::getenv("NUMACRE_RUNTIME_DIR");
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::snprintf(address.sun_path, sizeof address.sun_path, "%s/attach.sock", runtime_dir ? runtime_dir : "");
        const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (connect(connection, reinterpret_cast<const sockaddr *>(&address), sizeof address) != 0)
            give_up(address.sun_path);

        wire::AttachRequest request;
        request.tier = wire::Tier::observer;
        std::snprintf(request.pool_name.data(), request.pool_name.size(), "%s", pool_name);
        if (send(connection, &request, sizeof request, MSG_NOSIGNAL) != sizeof request) give_up("attach request");

        wire::AttachReply reply;
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * wire::kMaxFds)];
        iovec part{&reply, sizeof reply};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        const bool whole = recvmsg(connection, &message, MSG_CMSG_CLOEXEC) == sizeof reply;
        const cmsghdr *const rights = CMSG_FIRSTHDR(&message);
        if (!whole || reply.error != 0 || rights == nullptr || rights->cmsg_len < CMSG_LEN(3 * sizeof(int)))
            give_up("attach reply");
        int fds[3];  // pool region, node region, data: attach_wire.hpp
        std::memcpy(fds, CMSG_DATA(rights), sizeof fds);
        pool_ =
            PoolView<ProductionEnv>::at(map(fds[0], reply.pool_region_bytes), reply.process_slots, reply.thread_slots);
        node_ = NodeView<ProductionEnv>::at(map(fds[1], reply.nodes[0].node_region_bytes), reply.geometry, NumaNode{0},
                                            reply.thread_slots);
    }

    const Geometry &geometry() const { return node_.geometry; }
    const NodeView<ProductionEnv> &node() const { return node_; }

    // What the only thread of this process, a client, is in the middle of.
    Intent intent_of(pid_t pid) const {
        const ThreadSlot<ProductionEnv> *const slot = slot_of(pid);
        // relaxed: the process stands still.
        return slot == nullptr ? Intent{} : Intent{slot->intent.load(std::memory_order_relaxed)};
    }
    // What it waits for, or has been given.
    WaitWord wait_word_of(pid_t pid) const {
        const ThreadSlot<ProductionEnv> *const slot = slot_of(pid);
        return slot == nullptr ? WaitWord{} : WaitWord{slot->waiting.load(std::memory_order_acquire)};
    }

    NodeSnapshot snapshot() const {
        NodeSnapshot result;
        scan_node<ProductionEnv>(node_, result, {});
        return result;
    }

    // What the daemon would take for damage.
    std::uint64_t damage() const {
        const std::array<NodeView<ProductionEnv>, 1> nodes{node_};
        std::vector<OwnerUsage> usage(pool_.process_slots);
        NodeSnapshot snapshot;
        scan_node<ProductionEnv>(node_, snapshot, usage);
        std::uint64_t found = snapshot.damaged_entries + snapshot.lost_blocks +
                              Audit<ProductionEnv>(pool_, node_).run() +
                              count_impossible_thread_slots<ProductionEnv>(pool_, nodes);
        for (std::size_t i = 0; i < snapshot.unheld_count; ++i)
            found += is_taken_by_nobody(pool_, node_, snapshot.unheld[i]) ? 1 : 0;
        return found;
    }

    // Clients that are alive or not wholly reaped yet, this one and every other observer included.
    unsigned clients() const {
        unsigned count = 0;
        for (std::uint32_t slot = 1; slot < pool_.process_slots; ++slot)  // slot 0 is the daemon
            // acquire: with all that recovery did before it freed the slot.
            count += pool_.processes[slot].state.load(std::memory_order_acquire) !=
                     static_cast<std::uint64_t>(ProcessState::free);
        return count;
    }

    // Of all thread slots, those that nobody knows of included.
    unsigned threads() const {
        unsigned count = 0;
        for (std::uint32_t thread = 1; thread < pool_.thread_slots; ++thread)  // slot 0 is the daemon's
            // acquire: as above.
            count += pool_.threads[thread].owner.load(std::memory_order_acquire) != 0;
        return count;
    }

private:
    const ThreadSlot<ProductionEnv> *slot_of(pid_t pid) const {
        for (std::uint32_t thread = 1; thread < pool_.threads_in_use_bound(); ++thread) {
            // relaxed: whoever asks knows that the process is attached.
            const ThreadOwner owner{pool_.threads[thread].owner.load(std::memory_order_relaxed)};
            if (owner.in_use() && owner.process().value < pool_.process_slots &&
                pool_.processes[owner.process().value].pid.load(std::memory_order_relaxed) ==
                    static_cast<std::uint64_t>(pid))
                return &pool_.threads[thread];
        }
        return nullptr;
    }
    static void *map(int fd, std::uint64_t bytes) {
        void *const address = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (address == MAP_FAILED) give_up("map");
        return address;
    }
    [[noreturn]] static void give_up(const char *what) {
        std::perror(what);
        std::exit(1);
    }

    PoolView<ProductionEnv> pool_;
    NodeView<ProductionEnv> node_;
};

}  // namespace numacre::test
