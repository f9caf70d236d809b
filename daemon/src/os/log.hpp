// Structured log lines on stderr: a sentence and key=value fields, as text or as one JSON object a line. Thread-safe.
// Logging never waits for a reader of stderr: lines are queued, and a thread of its own writes them. A full queue drops
// its oldest lines, counts them, and says so in their place. Queued lines are lost when the process crashes. Values may
// come from clients (names, command names): they are escaped, so that no value can forge a line.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/failure.hpp"

namespace numacre::daemon::log {

struct Field {
    std::string key;
    std::string value;
    bool is_text = true;

    Field(std::string_view name, std::string_view text) : key(name), value(text) {}
    Field(std::string_view name, const std::string &text) : key(name), value(text) {}
    Field(std::string_view name, const char *text) : key(name), value(text) {}
    Field(std::string_view name, bool yes) : key(name), value(yes ? "true" : "false"), is_text(false) {}
    Field(std::string_view name, double number) : key(name), value(std::to_string(number)), is_text(false) {}
    template <std::integral T>
    Field(std::string_view name, T number) : key(name), value(std::to_string(number)), is_text(false) {}
};

enum class Format : std::uint8_t { text, json };

// The number of lines that were dropped since the start. Any thread.
std::uint64_t dropped();
// Blocks until all logged lines are written, or for `patience`.
void flush(std::chrono::milliseconds patience);

// level: one of trace debug info warn error off. Call once, before threads start.
Answer<void> setup(std::string_view level, Format format);
bool is_level(std::string_view level);

void debug(std::string_view message, std::initializer_list<Field> fields = {});
void info(std::string_view message, std::initializer_list<Field> fields = {});
void warn(std::string_view message, std::initializer_list<Field> fields = {});
void error(std::string_view message, std::initializer_list<Field> fields = {});

// The text of a line, without time and level.
std::string render(std::string_view message, std::initializer_list<Field> fields, Format format);

}  // namespace numacre::daemon::log
