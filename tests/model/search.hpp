// The explorer's search for a violation: which step comes next, and which states have been seen.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "explorer.hpp"
#include "state_set.hpp"

namespace numacre::model {

// For one search: the explorer is at its beginning before and after.
class Explorer::Search {
public:
    explicit Search(Explorer &explorer) : explorer_(explorer), options_(explorer.options_) {}

    Report depth_first();
    Report breadth_first(std::uint64_t transitions_max);
    // Whether the violation is one that a breadth-first search does not look for.
    bool found_by_depth() const { return found_by_depth_; }

private:
    // A place on the path from the root, with what was tried from there.
    struct Frame {
        Position before;  // where the step that led here began
        Step taken;
        int last_thread = -1;  // who ran last: for counting preemptions
        unsigned preemptions = 0;
        unsigned steps_without_end = 0;
        // Next step to try. kind: which sort; a kill's `thread` counts processes.
        Step::Kind kind = Step::Kind::run;
        std::uint8_t thread = 0;
        std::uint8_t option = 0;
    };

    void start(StateSet &visited, Report &report);
    void end(const StateSet &visited, Report &report);
    void enter(Step step);
    void leave();
    bool next_step(Frame &frame, Step &step) const;
    void note_violation(Report &report);
    bool capped(std::uint64_t states, std::uint64_t transitions) const;
    void find_livelock(StateSet &known, Report &report);

    Explorer &explorer_;
    const Options &options_;
    std::vector<Frame> path_;
    std::chrono::steady_clock::time_point started_;
    bool found_by_depth_ = false;
};

}  // namespace numacre::model
