// A side's figures at its end: aligned lines for people, one JSON object on one line for programs.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace relay {

class Report {
public:
    explicit Report(std::string side) : side_(std::move(side)) { add("side", side_); }

    void add(const std::string &name, std::uint64_t value) { add_raw(name, std::to_string(value)); }
    void add(const std::string &name, double value);
    void add(const std::string &name, const std::string &value) { add_raw(name, quoted(value)); }
    // Adds a value that is JSON. Only the JSON output has it.
    void add_json(const std::string &name, const std::string &value) { lines_.push_back({name, value, false}); }
    // Adds a line that only the output for people has.
    void add_text(const std::string &line) { text_ += "  " + line + "\n"; }

    // Writes the report with one call, so that two processes on one terminal do not mix their lines.
    void print(bool json) const;

    static std::string quoted(const std::string &text);

private:
    void add_raw(const std::string &name, std::string value) { lines_.push_back({name, std::move(value), true}); }

    struct Line {
        std::string name, value;
        bool for_people;
    };
    std::string side_;
    std::vector<Line> lines_;
    std::string text_;
};

}  // namespace relay
