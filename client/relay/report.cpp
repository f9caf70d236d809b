#include "report.hpp"

#include <unistd.h>

#include <cstdio>

namespace relay {

void Report::add(const std::string &name, double value) {
    char text[64];
    std::snprintf(text, sizeof text, "%.6f", value);
    add_raw(name, text);
}

std::string Report::quoted(const std::string &text) {
    std::string result = "\"";
    for (const char character : text) {
        if (character == '"' || character == '\\') {
            result += '\\';
            result += character;
        } else if (static_cast<unsigned char>(character) < 0x20) {
            char escaped[8];
            std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(character));
            result += escaped;
        } else {
            result += character;
        }
    }
    return result + '"';
}

void Report::print(bool json) const {
    std::string output;
    if (json) {
        for (const Line &line : lines_) output += (output.empty() ? "{" : ", ") + quoted(line.name) + ": " + line.value;
        output += "}\n";
    } else {
        output = "relay " + side_ + "\n";
        for (const Line &line : lines_) {
            if (!line.for_people || line.name == "side") continue;
            std::string name = line.name;
            for (char &character : name)
                if (character == '_') character = ' ';
            std::string value = line.value;
            if (value.front() == '"') value = value.substr(1, value.size() - 2);
            char text[256];
            std::snprintf(text, sizeof text, "  %-28s %20s\n", name.c_str(), value.c_str());
            output += text;
        }
        output += text_;
    }
    for (std::size_t written = 0; written < output.size();) {
        const ssize_t bytes = ::write(STDOUT_FILENO, output.data() + written, output.size() - written);
        if (bytes <= 0) return;
        written += static_cast<std::size_t>(bytes);
    }
}

}  // namespace relay
