#include "schedule.hpp"

#include <cstdlib>

namespace numacre::model {

std::string to_text(const Schedule &schedule) {
    std::string text;
    for (const Step step : schedule) {
        if (!text.empty()) text += ',';
        if (step.kind == Step::Kind::kill) text += 'k';
        if (step.kind == Step::Kind::flush) text += 'f';
        text += std::to_string(step.thread);
        if (step.option != 0) text += '.' + std::to_string(step.option);
    }
    return text;
}

bool from_text(const std::string &text, Schedule &schedule) {
    schedule.clear();
    const char *at = text.c_str();
    const auto number = [&at](std::uint8_t &value) {
        char *end = nullptr;
        if (*at < '0' || *at > '9') return false;
        const unsigned long parsed = std::strtoul(at, &end, 10);
        at = end;
        value = static_cast<std::uint8_t>(parsed);
        return parsed <= 255;
    };
    while (*at != '\0') {
        Step step;
        if (*at == 'k' || *at == 'f') {
            step.kind = *at == 'k' ? Step::Kind::kill : Step::Kind::flush;
            ++at;
        }
        if (!number(step.thread)) return false;
        if (*at == '.' && (++at, !number(step.option))) return false;
        if (*at == ',' && at[1] != '\0') {
            ++at;
        } else if (*at != '\0') {
            return false;
        }
        schedule.push_back(step);
    }
    return true;
}

}  // namespace numacre::model
