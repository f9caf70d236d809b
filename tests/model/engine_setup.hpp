// What an EngineModel is made of: the pool, the clients and what each does, who dies, and what an operator does.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "numacre/shm/buddy.hpp"
#include "numacre/shm/format.hpp"

namespace numacre::model {

using namespace engine;

struct Client {
    std::uint16_t process = 1;       // 1, 2, ...; clients may share one. 0 is the daemon
    std::vector<unsigned> orders{};  // what it may allocate
    unsigned operations = 2;         // how many allocations and frees, in any order, then it ends
    unsigned held_max = 2;
    std::vector<unsigned> holds{};   // orders of blocks that it has from the beginning, allocated in this sequence
    std::vector<unsigned> caches{};  // orders of blocks that are in its cache from the beginning
    std::vector<unsigned> used{};    // orders of blocks that it had and freed before anybody held anything
    // Instead of `operations`: these and no others, in this sequence. An order, or one of the below.
    std::vector<int> script{};
    // Decides where it likes to search. 0: 2 * its number + 1, so that all like the same half of the pool.
    std::uint16_t thread_slot = 0;
    bool mortal = true;                                       // with Options::kills_max
    int home = -1;                                            // the leaf word in which it looks first; -1: none yet
    std::vector<std::pair<unsigned, std::uint64_t>> homes{};  // the same by order
    // It is a process that this client (by number) has forked, and that nobody refuses what its private memory says: it
    // acts in its parent's slots, and has a copy of what that holds and caches. The daemon does not know it.
    int forked_from = -1;
};

inline constexpr int kFreeFirst = -1;    // frees the first block that it holds
inline constexpr int kGive = -2;         // puts the first block that it holds into the mailbox
inline constexpr int kTake = -3;         // becomes the owner of what is in the mailbox
inline constexpr int kCache = -4;        // frees the first block that it holds into its cache
inline constexpr int kUncache = -5;      // allocates the first block of its cache
inline constexpr int kFlush = -6;        // gives back all of its cache, in one call
inline constexpr int kFreeAll = -7;      // frees all that it holds, in one call
inline constexpr int kFlushOrFree = -8;  // ... and all of its cache
// What it gave (kGive) and what may have been taken by now:
inline constexpr int kWithdraw = -9;        // wants it back
inline constexpr int kFreeGiven = -10;      // frees it
inline constexpr int kBulkFreeGiven = -11;  // frees it by a bulk call
// The block that all threads of a process want to get rid of (Setup::shared):
inline constexpr int kFreeShared = -12;     // frees it, checked
inline constexpr int kFreeUnchecked = -13;  // frees it, on its word that nobody else does
inline constexpr int kCacheShared = -14;    // ... into its cache
inline constexpr int kUncacheShared = -15;  // allocates it, if it is in its cache
inline constexpr int kFlushShared = -16;    // gives it back, if it is in its cache
inline constexpr int kAwaitCached = -17;    // waits until all have done kCacheShared
inline constexpr int kAwaitFree = -18;      // waits until it is free
inline constexpr int kAwaitTaken = -19;     // waits until another process has it
// As kCacheShared, kUncacheShared, but between its look at the entry and its store it stops until another process has
// the block.
inline constexpr int kCacheSlowly = -20;
inline constexpr int kUncacheSlowly = -21;
inline constexpr int kRelease = -22;  // frees the first block that it holds as clients do, who look for those who wait
inline constexpr int kReferShared = -23;  // makes a reference to the shared block, if it is its process's, and mails it
inline constexpr int kNudge = -24;        // nudges all who wait, as the daemon does when it has released something
// The steps of a cache where others take back what is cached and not used (idle_caches.hpp). If somebody has asked for
// it, the client answers, and does nothing else:
inline constexpr int kCacheInside = -25;     // as kCache
inline constexpr int kUncacheInside = -26;   // as kUncache
inline constexpr int kGather = -27;          // asks, passes a barrier, and takes back what all idle threads have cached
inline constexpr int kGatherUnfenced = -28;  // ... without the barrier
// As kUncacheInside, but the block is published when it comes out of the cache, and goes into the mailbox.
inline constexpr int kUncacheNamed = -29;
inline constexpr int kTakeMany = -30;  // as kTake, by the steps of a call about many references
// Looks for the name of the first block that client 0 had in its cache, and takes the block if it has one.
inline constexpr int kTakeFound = -31;
// The block that was given last, by the reference of kGive; it may have been taken or freed by now:
inline constexpr int kHold = -32;  // holds it, if the reference is not stale
inline constexpr int kDrop = -33;  // drops the first block that it holds so
// Waits for a block of an order: kWait + order; looks whether there is one and gives up: kWaitBriefly + order.
inline constexpr int kWait = 300;
inline constexpr int kWaitBriefly = 400;
// Two blocks of an order in one call: kTwo + order; the same into the cache: kRefill + order.
inline constexpr int kTwo = 100;
inline constexpr int kRefill = 200;
// A block of an order where it fits best, if there is one: kFitting + order.
inline constexpr int kFitting = 500;

// What an operator does with chunk 0 (or a unit of several: Setup::unit_chunks), in a thread of its own.
enum class ChunkStep : std::uint8_t { drain, undrain, offline, online };

// As the daemon's ledger has them.
enum class UnitState : std::uint8_t { offline, filling, opening, online, closing, closed };

// Has died before anything else happens, with this intent and nothing done yet. Its thread slot is its process slot's
// number: not a client's.
struct Corpse {
    std::uint16_t process = 0;
    IntentKind kind = IntentKind::allocate;
    Block block{};
    std::uint16_t thread_slot() const { return static_cast<std::uint16_t>(2 * process); }  // no client's
};

inline constexpr ProcessSlot kTakesForEver{kMaxProcessSlots};

struct Setup {
    Geometry geometry{.frame_bytes = 4096, .largest_order = 7, .frame_count = 128};
    // (leaf word, frames): taken from the beginning, for ever, by one who is no client here.
    std::vector<std::pair<std::uint64_t, std::uint64_t>> taken{};
    std::vector<Client> clients{};
    bool exhausted = false;   // what the clients hold is the last: a search has found out, and lowered all hints
    bool wrapping = false;    // generations and tags are at their last value: the next is the first again
    bool daemon = false;      // recovers processes that die; needed with Options::kills_max and corpses
    bool quarantine = false;  // what they held is the daemon's for a while
    std::vector<Corpse> corpses{};
    std::vector<ChunkStep> chunk_steps{};  // not together with `daemon`
    // 0: chunk_steps are those of chunk 0. Else of a unit, the first so many chunks, as the daemon's NodeMemory takes
    // them: with a ledger that outlives the daemon, and memory behind the chunks.
    unsigned unit_chunks = 0;
    // Not -1: the order of a block that client 0's process has, and that its threads free as if each alone had it.
    int shared = -1;
};

}  // namespace numacre::model
