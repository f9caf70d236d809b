// The bells (shm/channel/bells.hpp) of a channel's handle: its own, by which its thread waits, and those of others,
// which it rings. The daemon makes them. A bell of somebody else is fetched when it is to be rung for the first time,
// without waiting for the daemon's reply: the daemon rings it then (attach_server_bells.cpp). In a private pool the
// process makes its bells itself.
#pragma once

#include <cstdint>

#include "engine.hpp"
#include "numacre/numacre.h"
#include "numacre/shm/channel/layout.hpp"

namespace numacre::client {

// A descriptor that the library keeps, and by which it recognises the file later (is_ours()).
struct KeptFd {
    int fd = -1;
    std::uint64_t inode = 0;
};

struct OtherBell {
    std::uint64_t serial = 0;  // 0: not known
    KeptFd bell;
    KeptFd asking;  // the connection on which it is being fetched
};

// Of one handle, and so for one thread at a time.
struct HandleBells {
    std::uint64_t serial = 0;  // of the own bell; 0: the handle has none
    KeptFd bell;
    std::uint64_t bell_id = 0;        // the kernel's number of that eventfd (eventfd_id_of()); 0: not known
    KeptFd lifeline;                  // the connection by which the daemon knows the bell
    unsigned long hang_up_watch = 0;  // aio_context_t: the kernel rings the bell at the lifeline's end; 0: it does not
    OtherBell others[kPartiesMost];   // by party - 1
    std::uint32_t asking = 0;         // how many of them are being fetched
    std::uint64_t not_before = 0;     // ns: the daemon could not be asked, and is left alone until then
    std::uint64_t owed = 0;           // kMessages, kRoom: somebody waits for this who could not be rung
};

// After a change of the ring. what: ArmedWord::kMessages, kRoom. Rings for all who wait by their descriptors. Never
// waits. errno is kept.
[[gnu::cold]] void ring_bells(numacre_channel *channel, std::uint64_t what);
// Rings for those who could not be rung before: without a descriptor to ask the daemon by, or while it did not answer.
// At each call on the handle, as they may sleep beside what they wait for.
[[gnu::cold]] void ring_owed(numacre_channel *channel);
// The handle is being closed: its party has left already.
void close_bells(numacre_channel *channel);
// In a forked child: closes what it has inherited, and tells nobody.
void drop_inherited_bells(numacre_channel *channel);

}  // namespace numacre::client
