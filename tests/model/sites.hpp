// The atomic accesses of the code under test by their place in its source, and what the explorer changes about their
// orders.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "sim_env.hpp"

namespace numacre::model {

// An atomic access in the code under test. A compare-and-swap's failure order is a second one of the same place.
struct Site {
    std::string file{};  // as the compiler was given it
    std::string function{};
    unsigned line = 0;
    unsigned column = 0;
    Access access = Access::load;
    std::memory_order order = std::memory_order_seq_cst;
    std::memory_order failure_order = std::memory_order_seq_cst;  // compare_exchange only
};

// Weakens (or strengthens: to try a remedy) one site while the explorer runs. Orders matter in MemoryMode::weak (and,
// of stores, in total_store_order).
struct Weakening {
    std::string file{};  // or the end of it
    unsigned line = 0;
    unsigned column = 0;   // 0: any
    bool failure = false;  // the failure order, not the other
    std::memory_order to = std::memory_order_relaxed;
};
// All that are one step weaker: seq_cst -> acq_rel (RMW), acquire (load), release (store); acq_rel -> acquire, release;
// acquire, release -> relaxed.
std::vector<Weakening> one_step_weaker(const Site &site);
// "claim.hpp:120 climb: cas seq_cst/seq_cst"
std::string to_text(const Site &site);
const char *to_text(std::memory_order order);
const char *to_text(Access access);

bool is_weakened(const Request &request, const Weakening &weaken);
// The request with the orders that it has under this weakening.
Request with_weakening(const Request &request, const Weakening &weaken);

// Each site once.
class SiteList {
public:
    void note(const Request &request);
    // By file and line.
    std::vector<Site> all() const;

private:
    std::vector<Request> requests_;  // one of each
};

}  // namespace numacre::model
