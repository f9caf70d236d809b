#include "search.hpp"

#include "die.hpp"

namespace numacre::model {

void Explorer::Search::start(StateSet &visited, Report &report) {
    started_ = std::chrono::steady_clock::now();
    explorer_.solo_known_ = std::make_unique<StateSet>();
    explorer_.failure_.clear();
    explorer_.weakened_ = 0;
    report.complete = true;
    path_.assign(1, Frame{});
    path_.back().before = explorer_.root_;
    visited.insert(explorer_.state_hash(), 0);
    explorer_.check_state();
    note_violation(report);
}

void Explorer::Search::end(const StateSet &visited, Report &report) {
    if (!explorer_.failure_.empty()) report.complete = false;
    path_.clear();
    explorer_.undo(explorer_.root_);
    explorer_.solo_known_.reset();
    report.states = visited.size();
    report.histories_cut = explorer_.weak_ && explorer_.weak_->was_cut();
    report.weakened = explorer_.weakened_;
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

// Takes the step and puts it on the path.
void Explorer::Search::enter(Step step) {
    Frame next;
    next.before = explorer_.position();
    next.taken = step;
    next.last_thread = step.kind == Step::Kind::run ? step.thread : path_.back().last_thread;
    next.preemptions = path_.back().preemptions;
    next.steps_without_end = path_.back().steps_without_end;
    path_.push_back(next);
    explorer_.take(step);
}

void Explorer::Search::leave() {
    explorer_.undo(path_.back().before);
    path_.pop_back();
}

bool Explorer::Search::next_step(Frame &frame, Step &step) const {
    for (;;) {
        const bool of_threads = frame.kind != Step::Kind::kill;
        while (frame.thread < (of_threads ? static_cast<int>(explorer_.threads_.size()) : explorer_.process_count_)) {
            step = {frame.kind, frame.thread, frame.option};
            const bool found = explorer_.possible(step);
            if (found && frame.kind == Step::Kind::run) {
                ++frame.option;
                return true;
            }
            ++frame.thread;
            frame.option = 0;
            if (found) return true;
        }
        if (frame.kind == Step::Kind::flush) return false;
        frame.kind = frame.kind == Step::Kind::run ? Step::Kind::kill : Step::Kind::flush;
        if (frame.kind == Step::Kind::flush && explorer_.buffers_ == nullptr) return false;
        frame.thread = 0;
    }
}

void Explorer::Search::note_violation(Report &report) {
    if (explorer_.failure_.empty()) return;
    report.violation = explorer_.failure_;
    report.schedule.clear();
    for (std::size_t depth = 1; depth < path_.size(); ++depth) report.schedule.push_back(path_[depth].taken);
}

bool Explorer::Search::capped(std::uint64_t states, std::uint64_t transitions) const {
    if (states >= options_.states_max) return true;
    if ((transitions & 0xfff) != 0) return false;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count() > options_.seconds_max;
}

// From the state at the path's end, a depth-first search of its own that follows only steps by which no operation ends:
// whatever it comes back to while it is there is a cycle of such steps. (As SPIN finds non-progress cycles. The search
// around it would miss some: the way by which it came to a state may hold the end of an operation, though another way
// does not.) `known`, kept from call to call: 1 on the way, 0 done with.
void Explorer::Search::find_livelock(StateSet &known, Report &report) {
    constexpr std::uint64_t kOnTheWay = 1;
    constexpr std::uint64_t kDone = 0;
    std::vector<Hash> way{explorer_.state_hash()};
    if (known.contains(way.back())) return;
    known.set(way.back(), kOnTheWay);
    const Frame outer = path_.back();
    const std::size_t bottom = path_.size();
    path_.back().kind = Step::Kind::run;
    path_.back().thread = path_.back().option = 0;
    while (!way.empty()) {
        Step step;
        if (!next_step(path_.back(), step)) {
            known.set(way.back(), kDone);
            way.pop_back();
            if (path_.size() > bottom) leave();
            continue;
        }
        if (!explorer_.takes_part_in_livelocks(step)) continue;
        if (path_.size() >= options_.depth_max || capped(known.size(), report.transitions)) {
            report.complete = false;
            continue;
        }
        enter(step);
        ++report.transitions;
        const Hash hash = explorer_.state_hash();
        std::uint64_t colour = kDone;
        const bool seen = known.get(hash, colour);
        if (explorer_.failure_.empty() && !explorer_.operation_ended_ && seen && colour == kOnTheWay) {
            explorer_.fail(kLivelockText);
            found_by_depth_ = true;
        }
        if (!explorer_.failure_.empty()) {
            note_violation(report);
            return;
        }
        if (explorer_.operation_ended_ || seen) {
            leave();
        } else {
            known.set(hash, kOnTheWay);
            way.push_back(hash);
        }
    }
    path_.back() = outer;
}

Report Explorer::Search::depth_first() {
    Report report;
    StateSet visited;
    StateSet without_end;
    start(visited, report);
    const bool bounded = options_.preemptions_max >= 0;
    if (options_.find_livelocks && bounded) die("find_livelocks needs a search without a preemption bound");
    if (options_.find_livelocks && explorer_.failure_.empty()) find_livelock(without_end, report);
    while (!path_.empty() && explorer_.failure_.empty()) {
        Step step;
        if (!next_step(path_.back(), step)) {
            leave();
            continue;
        }
        const int last = path_.back().last_thread;
        const bool preempts = step.kind == Step::Kind::run && last >= 0 && last != step.thread &&
                              explorer_.enabled(last) && !explorer_.idle(last);
        if (bounded && preempts && path_.back().preemptions >= static_cast<unsigned>(options_.preemptions_max))
            continue;
        enter(step);
        ++report.transitions;
        if (preempts) ++path_.back().preemptions;
        if (explorer_.has_gone_on_too_long(step, path_.back().steps_without_end)) {
            explorer_.fail(explorer_.too_long_text());
            found_by_depth_ = true;
        }
        bool expand = true;
        if (explorer_.failure_.empty()) {
            Hash hash = explorer_.state_hash();
            // Under the bound a state is worth another look if it was reached with fewer preemptions, and who ran last
            // decides who may go on for nothing.
            if (bounded) hash.b += scramble(static_cast<std::uint64_t>(path_.back().last_thread + 2));
            const StateSet::Seen seen = visited.insert(hash, bounded ? path_.back().preemptions : 0);
            expand = seen != StateSet::Seen::before;
            if (seen == StateSet::Seen::never) {
                explorer_.check_state();
                if (explorer_.all_idle_but(-1)) ++report.quiet_states;
                if (options_.find_livelocks && explorer_.failure_.empty()) find_livelock(without_end, report);
            }
        }
        if (report.clean()) note_violation(report);
        if (path_.size() > report.depth_max) report.depth_max = path_.size();
        if (expand && path_.size() >= options_.depth_max) {
            expand = false;
            report.complete = false;
        }
        if (!expand) leave();
        if (capped(visited.size(), report.transitions)) {
            report.complete = false;
            break;
        }
    }
    end(visited, report);
    return report;
}

// Layer by layer. A layer is the list of its states' paths, all of one length, in the order in which they were found:
// so neighbours share most of their path, and to get from one to the next is to undo a little and to take a few steps.
Report Explorer::Search::breadth_first(std::uint64_t transitions_max) {
    Report report;
    StateSet visited;
    start(visited, report);
    std::vector<Step> layer;
    std::size_t paths = 1;
    for (std::size_t depth = 0; paths > 0 && explorer_.failure_.empty() && report.complete; ++depth) {
        std::vector<Step> next_layer;
        std::size_t next_paths = 0;
        for (std::size_t path = 0; path < paths && explorer_.failure_.empty() && report.complete; ++path) {
            const Step *const steps = layer.data() + path * depth;
            std::size_t common = 0;
            while (common < depth && common + 1 < path_.size() && path_[common + 1].taken == steps[common]) ++common;
            while (path_.size() > common + 1) leave();
            while (path_.size() < depth + 1) enter(steps[path_.size() - 1]);
            Frame cursor;
            Step step;
            while (explorer_.failure_.empty() && next_step(cursor, step)) {
                enter(step);
                ++report.transitions;
                bool fresh = false;
                if (explorer_.failure_.empty()) {
                    fresh = visited.insert(explorer_.state_hash(), 0) == StateSet::Seen::never;
                    if (fresh) explorer_.check_state();
                    if (fresh && explorer_.all_idle_but(-1)) ++report.quiet_states;
                }
                note_violation(report);
                if (fresh) {
                    next_layer.insert(next_layer.end(), steps, steps + depth);
                    next_layer.push_back(step);
                    ++next_paths;
                }
                leave();
            }
            if (capped(visited.size(), report.transitions) || report.transitions >= transitions_max)
                report.complete = false;
        }
        layer.swap(next_layer);
        paths = next_paths;
        report.depth_max = depth + 1;
    }
    end(visited, report);
    return report;
}

}  // namespace numacre::model
