// One schedule once more, with a line for each access.
#include "explorer.hpp"

#include <cinttypes>
#include <cstdio>

#include "die.hpp"

namespace numacre::model {

void Explorer::trace_access(const Request &request, std::uint64_t before, std::uint64_t after,
                            const std::string &remark) {
    const auto meaning = [this, &request](std::uint64_t value) {
        const std::string text = describe_ ? describe_(request.address, value) : std::string{};
        return text.empty() ? hex(value) : hex(value) + " {" + text + "}";
    };
    std::string line = to_text(request.kind);
    line.resize(line.size() < 10 ? 10 : line.size(), ' ');
    line += words_.name_of(request.address) + ": ";
    if (request.kind == Access::load) {
        line += meaning(before);
    } else if (request.kind == Access::compare_exchange && before != request.expected) {
        line += "fails, expected " + meaning(request.expected) + ", is " + meaning(before);
    } else {
        line += meaning(before) + " -> " + meaning(after);
    }
    trace_ += "           " + line + remark + "\n";
}

void Explorer::trace_step(Step step, std::uint64_t number) {
    std::string head = "  " + std::to_string(number);
    head.resize(7, ' ');
    const bool exists = step.thread < threads_.size();
    const std::string name = exists ? threads_[step.thread].options.name : "?";
    if (step.kind == Step::Kind::kill) {
        trace_ += head + "process " + std::to_string(step.thread) + " dies\n";
    } else if (step.kind == Step::Kind::flush) {
        trace_ += head + name + "'s oldest store becomes visible\n";
    } else {
        const bool at_choice = exists && threads_[step.thread].fiber.options > 1;
        trace_ += head + name + (at_choice ? " chooses " + std::to_string(step.option) : "") + "\n";
    }
}

Report Explorer::replay(const Schedule &schedule) {
    begin();
    solo_known_ = std::make_unique<StateSet>();
    failure_.clear();
    trace_.clear();
    Report report;
    unsigned steps_without_end = 0;
    std::vector<Hash> since_an_end{state_hash()};
    check_state();
    for (const Step step : schedule) {
        if (!failure_.empty()) break;
        ++report.transitions;
        trace_step(step, report.transitions);
        if (!possible(step)) {
            fail("replay: step " + std::to_string(report.transitions) + " of the schedule is not possible here");
            break;
        }
        const bool takes_part = takes_part_in_livelocks(step);
        tracing_ = true;
        take(step);
        tracing_ = false;
        report.schedule.push_back(step);
        if (has_gone_on_too_long(step, steps_without_end)) fail(too_long_text());
        if (options_.find_livelocks) {
            const Hash now = state_hash();
            if (operation_ended_ || !takes_part) since_an_end.clear();
            for (const Hash passed : since_an_end)
                if (passed == now) fail(kLivelockText);
            since_an_end.push_back(now);
        }
        if (failure_.empty()) check_state();
    }
    if (!failure_.empty()) trace_ += "   *** " + failure_ + "\n";
    report.violation = failure_;
    report.trace = trace_;
    undo(root_);
    if (options_.print) {
        std::printf("[%s] replay of %" PRIu64 " steps\n%s", name_.c_str(), report.transitions, trace_.c_str());
        std::fflush(stdout);
    }
    return report;
}

}  // namespace numacre::model
