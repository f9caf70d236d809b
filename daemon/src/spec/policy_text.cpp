#include "spec/policy_text.hpp"

#include <array>
#include <charconv>
#include <optional>
#include <system_error>
#include <utility>

namespace numacre::daemon {

namespace {

struct Spelling {
    std::string_view text;
    PolicyMode mode;
};
constexpr std::array<Spelling, 5> kSpellings{{{"local", PolicyMode::local},
                                              {"strict", PolicyMode::strict},
                                              {"preferred", PolicyMode::preferred},
                                              {"interleave", PolicyMode::interleave},
                                              {"interleave-frames", PolicyMode::interleave_frames}}};
constexpr std::string_view kNearest = "nearest";  // the behaviour of local once the local numa node is full

// Parses "0-2+5". No value: the text is no such list.
std::optional<std::uint64_t> parse_numa_nodes(std::string_view text) {
    std::uint64_t nodes = 0;
    const char *at = text.data();
    const char *const end = at + text.size();
    const auto take = [&](std::uint32_t &number) {
        const auto [rest, fault] = std::from_chars(at, end, number);
        at = rest;
        return fault == std::errc{} && number < kMaxNumaNodes;
    };
    for (;;) {
        std::uint32_t first = 0;
        if (!take(first)) return {};
        std::uint32_t last = first;
        if (at != end && *at == '-') {
            ++at;
            if (!take(last)) return {};
        }
        if (last < first) return {};
        nodes |= first_numa_nodes(last + 1) & ~first_numa_nodes(first);
        if (at == end) return nodes;
        if (*at++ != '+') return {};
    }
}

}  // namespace

Answer<Policy> parse_policy(std::string_view text) {
    const std::size_t colon = text.find(':');
    std::string_view mode = text.substr(0, colon);
    if (mode == kNearest) mode = kSpellings[0].text;
    for (const Spelling &spelling : kSpellings) {
        if (spelling.text != mode) continue;
        if (colon == std::string_view::npos && spelling.mode != PolicyMode::preferred) return Policy{spelling.mode, 0};
        if (colon == std::string_view::npos || spelling.mode == PolicyMode::local) break;
        if (const auto nodes = parse_numa_nodes(text.substr(colon + 1))) return Policy{spelling.mode, *nodes};
    }
    return Unexpected{Failure{Errc::bad_argument,
                              "\"" + std::string(text) +
                                  "\" is no policy: use local, strict, preferred:1, interleave or interleave-frames; "
                                  "numa nodes as in interleave:0-2+5"}};
}

std::string format_policy(const Policy &policy) {
    std::string text = "unknown";
    for (const Spelling &spelling : kSpellings)
        if (spelling.mode == policy.mode) text = spelling.text;
    char before = ':';
    for (std::uint32_t node = 0; node < kMaxNumaNodes; ++node) {
        if ((policy.nodes & bit_of(node)) == 0) continue;
        std::uint32_t last = node;
        while (last + 1 < kMaxNumaNodes && (policy.nodes & bit_of(last + 1)) != 0) ++last;
        text += before + std::to_string(node) + (last == node ? "" : "-" + std::to_string(last));
        before = '+';
        node = last;
    }
    return text;
}

Answer<void> check_policy(const Policy &policy, std::uint32_t numa_nodes) {
    if ((policy.nodes & ~first_numa_nodes(numa_nodes)) == 0) return {};
    return Unexpected{Failure{Errc::no_such_node, "policy " + format_policy(policy) +
                                                      ": the pool has numa nodes 0 to " +
                                                      std::to_string(numa_nodes - 1) + ", see `numacre nodes`"}};
}

}  // namespace numacre::daemon
