// Series of measurements, and their tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "adaptor.hpp"

namespace numacre::bench {

// One system in one scenario.
struct Series {
    std::string name;
    std::vector<Outcome> rounds;
    std::string skipped, failed;  // why
};

enum class Kind { one_way, round_trip, wake_up };

struct Scenario {
    std::string title;
    Kind kind;
    std::string reference;  // the system whose figure of the same round is the divisor of the ratios
};

// Prints a row for each series that has rounds. A median stands before the least and the most of the rounds.
// `distances`: nanoseconds of a cache line's round trip, in each round.
void print(const Scenario &scenario, const std::vector<Series> &series, const std::vector<double> &distances);

// Returns the findings of the checks of count and order, as one sentence; empty: none.
std::string faults_of(const Series &series);

}  // namespace numacre::bench
