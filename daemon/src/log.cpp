#include "log.hpp"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <atomic>
#include <memory>

namespace numacre::daemon::log {

namespace {

std::atomic<Format> line_format{Format::text};

constexpr std::array<std::string_view, 6> kLevels{"trace", "debug", "info", "warn", "error", "off"};

// Both JSON and text use the same escapes. Bytes outside ASCII are escaped as well: command names need not be UTF-8.
std::string escaped(std::string_view text) {
    static constexpr char kHex[] = "0123456789abcdef";
    std::string out;
    out.reserve(text.size());
    for (const char letter : text) {
        const auto byte = static_cast<unsigned char>(letter);
        if (letter == '"' || letter == '\\') {
            out += '\\';
            out += letter;
        } else if (byte < 0x20 || byte >= 0x7f) {
            out += "\\u00";
            out += kHex[byte >> 4];
            out += kHex[byte & 15];
        } else {
            out += letter;
        }
    }
    return out;
}

bool needs_quotes(std::string_view text) {
    if (text.empty()) return true;
    for (const char letter : text)
        if (letter <= ' ' || letter == '"' || letter == '=' || letter == '\\' || letter >= 0x7f) return true;
    return false;
}

void write(spdlog::level::level_enum level, std::string_view message, std::initializer_list<Field> fields) {
    if (!spdlog::should_log(level)) return;
    // relaxed: set once before any thread starts.
    spdlog::log(level, "{}", render(message, fields, line_format.load(std::memory_order_relaxed)));
}

// What a line says, as JSON members. Lines that were written through spdlog itself are bare sentences.
class JsonMembers final : public spdlog::custom_flag_formatter {
public:
    void format(const spdlog::details::log_msg &line, const std::tm &, spdlog::memory_buf_t &out) override {
        const std::string_view payload(line.payload.data(), line.payload.size());
        const std::string members =
            payload.starts_with(kMessageMember) ? std::string(payload) : render(payload, {}, Format::json);
        out.append(members.data(), members.data() + members.size());
    }
    std::unique_ptr<custom_flag_formatter> clone() const override {
        return spdlog::details::make_unique<JsonMembers>();
    }

private:
    static constexpr std::string_view kMessageMember = "\"message\":";
};

}  // namespace

std::string render(std::string_view message, std::initializer_list<Field> fields, Format format) {
    std::string line;
    if (format == Format::json) {
        line = "\"message\":\"" + escaped(message) + "\"";
        for (const Field &field : fields) {
            line += ",\"" + escaped(field.key) + "\":";
            line += field.is_text ? "\"" + escaped(field.value) + "\"" : field.value;
        }
        return line;
    }
    // The sentence is ours except where an error text was put into it; it has to stay on its line.
    for (const char letter : message) line += (letter == '\n' || letter == '\r') ? ' ' : letter;
    for (const Field &field : fields) {
        line += ' ' + field.key + '=';
        line += field.is_text && needs_quotes(field.value) ? "\"" + escaped(field.value) + "\"" : field.value;
    }
    return line;
}

bool is_level(std::string_view level) {
    for (const std::string_view known : kLevels)
        if (known == level) return true;
    return false;
}

Answer<void> setup(std::string_view level, Format format) {
    if (!is_level(level))
        return Unexpected{Failure{Errc::bad_argument, "log level \"" + std::string(level) +
                                                          "\" is unknown: use trace, debug, info, warn, error or off"}};
    line_format.store(format, std::memory_order_relaxed);  // relaxed: no thread has been started yet
    auto logger = std::make_shared<spdlog::logger>("numacred", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<JsonMembers>('*');
    formatter->set_pattern(format == Format::json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%*})"
                                                  : "%Y-%m-%dT%H:%M:%S.%e %l %v");
    logger->set_formatter(std::move(formatter));
    logger->set_level(spdlog::level::from_str(std::string(level)));
    logger->flush_on(spdlog::level::trace);
    spdlog::set_default_logger(std::move(logger));
    return {};
}

void debug(std::string_view message, std::initializer_list<Field> fields) {
    write(spdlog::level::debug, message, fields);
}
void info(std::string_view message, std::initializer_list<Field> fields) {
    write(spdlog::level::info, message, fields);
}
void warn(std::string_view message, std::initializer_list<Field> fields) {
    write(spdlog::level::warn, message, fields);
}
void error(std::string_view message, std::initializer_list<Field> fields) {
    write(spdlog::level::err, message, fields);
}

}  // namespace numacre::daemon::log
