// A schedule: the decisions that lead from a model's beginning to a state, and its text, by which it is replayed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace numacre::model {

// One decision of the scheduler: thread `thread` goes on (with `option`, if it stands at a choice or its access can go
// several ways), process `thread` dies, or the oldest store that thread `thread` buffered becomes visible.
struct Step {
    enum class Kind : std::uint8_t { run, kill, flush };
    Kind kind = Kind::run;
    std::uint8_t thread = 0;
    std::uint8_t option = 0;
    friend bool operator==(const Step &, const Step &) = default;
};
using Schedule = std::vector<Step>;

// "0.2,1,1,f1,k0": thread 0 takes option 2, thread 1 takes two steps, a store of thread 1 leaves its buffer, process 0
// dies.
std::string to_text(const Schedule &schedule);
// False if the text is not one; `schedule` then holds the steps up to the bad one.
bool from_text(const std::string &text, Schedule &schedule);

}  // namespace numacre::model
