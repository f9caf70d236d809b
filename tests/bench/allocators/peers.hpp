// The allocators that the parent process knows, and how each one's process is started.
#pragma once

#include <string>
#include <vector>

#include "adaptor.hpp"

namespace numacre::bench {

enum class Kind {
    floor,   // no allocator
    shared,  // every call goes to what all threads share
    cached,  // threads keep free blocks for themselves
};
const char *name_of(Kind kind);

struct Peer {
    std::string name;
    Kind kind;
    bool ours = false;
    bool holds_back = false;             // its adaptor keeps blocks in batches: a refusal may be true
    std::string preload = {};            // a library that replaces malloc
    std::string program = "allocators";  // beside the parent's
    bool known_faults = false;           // what goes wrong is reported, not held against the run
};
const std::vector<Peer> &peers();

struct Answer {
    Outcome outcome;
    std::string skip;       // not empty: cannot be measured, this is why
    std::string problem;    // not empty: it crashed, hung or talked nonsense
    bool too_slow = false;  // that is the problem
};

// Measures in a process of its own, and ends it if it takes longer than `seconds`.
// Processes of ours get a daemon, unless the run names one.
Answer measure_in_child(const Peer &peer, const Run &wanted, std::uint64_t seconds);

}  // namespace numacre::bench
