#include "trace.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <istream>
#include <optional>

#include "bytes.hpp"

namespace numacre::cli {
namespace {

constexpr std::string_view kTime = "time_ns", kSize = "size_bytes", kLifetime = "lifetime_ns", kBlock = "block";
constexpr std::string_view kNever = "never";
constexpr std::size_t kShown = 60;  // characters of a bad value in a message

std::string_view trimmed(std::string_view text) {
    constexpr std::string_view kBlanks = " \t\r";
    const std::size_t begin = text.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

class Reader {
public:
    Reader(std::istream &in, std::string_view source, BlockNames &names) : in_(in), source_(source), names_(names) {}

    std::vector<Allocation> read() {
        if (!next_line()) refuse("the trace is empty", head_remedy());
        read_head();
        std::vector<Allocation> trace;
        while (next_line()) {
            const Allocation allocation = read_allocation();
            if (!trace.empty() && allocation.time_ns < trace.back().time_ns) {
                refuse("its time " + std::to_string(allocation.time_ns) + " is before that of the line above, " +
                           std::to_string(trace.back().time_ns),
                       "sort the lines by " + std::string(kTime));
            }
            if (trace.size() == std::numeric_limits<std::uint32_t>::max())
                refuse("more allocations than 2^32 - 1", "cut the trace");
            trace.push_back(allocation);
        }
        if (in_.bad()) refuse("the file cannot be read further", "look at the disk");
        if (trace.empty()) refuse("a head and no allocation", "record a program that allocates");
        return trace;
    }

private:
    static std::string head_remedy() {
        return "begin with the head '" + std::string(kTime) + "," + std::string(kSize) + "," + std::string(kLifetime) +
               "'";
    }

    [[noreturn]] void refuse(const std::string &what, const std::string &remedy) const {
        throw ArgumentError(source_ + ", line " + std::to_string(std::max<std::uint64_t>(line_number_, 1)) + ": " +
                            what + "; " + remedy);
    }

    // The next line that is neither empty nor a comment, split at its commas.
    bool next_line() {
        while (std::getline(in_, line_)) {
            ++line_number_;
            const std::string_view text = trimmed(line_);
            if (text.empty() || text.front() == '#') continue;
            fields_.clear();
            for (std::size_t begin = 0; begin <= line_.size();) {
                const std::size_t end = std::min(line_.find(',', begin), line_.size());
                fields_.push_back(trimmed(std::string_view(line_).substr(begin, end - begin)));
                begin = end + 1;
            }
            return true;
        }
        return false;
    }

    void read_head() {
        columns_ = fields_.size();
        const auto find = [&](std::string_view name) -> std::optional<std::size_t> {
            const auto at = std::find(fields_.begin(), fields_.end(), name);
            if (at == fields_.end()) return std::nullopt;
            return static_cast<std::size_t>(at - fields_.begin());
        };
        const auto need = [&](std::string_view name) {
            const auto column = find(name);
            if (!column) refuse("the head has no column '" + std::string(name) + "'", head_remedy());
            return *column;
        };
        time_ = need(kTime);
        size_ = need(kSize);
        lifetime_ = need(kLifetime);
        block_ = find(kBlock);
    }

    std::uint64_t number(std::size_t column, std::string_view name, const char *remedy) const {
        const std::string_view text = fields_[column];
        std::uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc{} || end != text.data() + text.size()) {
            refuse(std::string(name) + " is '" + printable(text.substr(0, kShown)) + "'", remedy);
        }
        return value;
    }

    Allocation read_allocation() {
        if (fields_.size() != columns_) {
            refuse(
                std::to_string(fields_.size()) + " fields instead of " + std::to_string(columns_) + ", as in the head",
                "complete the line or delete it");
        }
        Allocation allocation;
        allocation.time_ns = number(time_, kTime, "give whole nanoseconds since the start");
        allocation.size_bytes = number(size_, kSize, "give whole bytes, 1 or more");
        if (allocation.size_bytes == 0) refuse(std::string(kSize) + " is 0", "give whole bytes, 1 or more");
        if (fields_[lifetime_] != kNever) {
            allocation.lifetime_ns =
                number(lifetime_, kLifetime, "give whole nanoseconds, or never for what is not freed");
            if (allocation.lifetime_ns >= Allocation::kForEver - allocation.time_ns) {
                refuse(std::string(kTime) + " + " + std::string(kLifetime) + " is more than 64 bits hold",
                       "write never for what is not freed");
            }
        }
        if (block_ && !fields_[*block_].empty()) {
            const auto next = static_cast<std::uint32_t>(names_.size() + 1);
            allocation.block = names_.try_emplace(std::string(fields_[*block_]), next).first->second;
        }
        return allocation;
    }

    std::istream &in_;
    std::string source_;
    BlockNames &names_;
    std::string line_;
    std::uint64_t line_number_ = 0;
    std::vector<std::string_view> fields_;
    std::size_t columns_ = 0, time_ = 0, size_ = 0, lifetime_ = 0;
    std::optional<std::size_t> block_;
};

}  // namespace

std::vector<Allocation> read_trace(std::istream &in, std::string_view source, BlockNames &names) {
    return Reader(in, source, names).read();
}

std::vector<Allocation> join_traces(std::vector<std::vector<Allocation>> traces) {
    struct Line {
        Allocation allocation;
        std::size_t trace;
    };
    std::vector<Line> lines;
    for (std::size_t trace = 0; trace < traces.size(); ++trace) {
        for (const Allocation &allocation : traces[trace]) lines.push_back({allocation, trace});
    }
    std::stable_sort(lines.begin(), lines.end(), [](const Line &left, const Line &right) {
        return left.allocation.time_ns < right.allocation.time_ns;
    });
    // A block belongs to one process at a time. So a line that begins while another process's line of the same block
    // lasts means that this process takes the block over. The end in the giver's line is then worthless: the giver did
    // not see it.
    struct Holder {
        std::size_t trace, joined;
    };
    std::unordered_map<std::uint32_t, Holder> holders;
    std::vector<Allocation> joined;
    for (const Line &line : lines) {
        const Allocation &allocation = line.allocation;
        if (allocation.block != Allocation::kUnnamed) {
            const auto [holder, first] = holders.try_emplace(allocation.block, Holder{line.trace, joined.size()});
            if (!first) {
                Allocation &held = joined[holder->second.joined];
                if (holder->second.trace != line.trace && allocation.time_ns < held.end_ns()) {
                    held.lifetime_ns = allocation.end_ns() == Allocation::kForEver ? Allocation::kForEver
                                                                                   : allocation.end_ns() - held.time_ns;
                    holder->second.trace = line.trace;
                    continue;
                }
                holder->second = {line.trace, joined.size()};
            }
        }
        joined.push_back(allocation);
    }
    return joined;
}

std::vector<Allocation> read_trace_files(const std::vector<std::string> &paths) {
    BlockNames names;
    std::vector<std::vector<Allocation>> traces;
    for (const std::string &path : paths) {
        errno = 0;
        std::ifstream file(path);
        if (!file) throw ArgumentError("cannot open the trace " + path + ": " + std::strerror(errno));
        traces.push_back(read_trace(file, path, names));
    }
    return traces.size() == 1 ? std::move(traces.front()) : join_traces(std::move(traces));
}

}  // namespace numacre::cli
