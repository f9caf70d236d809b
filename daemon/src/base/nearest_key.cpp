#include "base/nearest_key.hpp"

#include <algorithm>
#include <vector>

namespace numacre::daemon {

namespace {

constexpr unsigned kNear = 2;

// Levenshtein's distance; row[j]: from the letters of a so far to the first j of b.
unsigned edit_distance(std::string_view a, std::string_view b) {
    std::vector<unsigned> row(b.size() + 1);
    for (unsigned j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        unsigned diagonal = row[0];
        row[0] = static_cast<unsigned>(i);
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const unsigned above = row[j];
            row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0U : 1U)});
            diagonal = above;
        }
    }
    return row[b.size()];
}

}  // namespace

std::string_view nearest_key(std::string_view unknown, std::span<const std::string_view> keys) {
    std::string_view best;
    unsigned best_distance = kNear + 1;
    for (const std::string_view key : keys) {
        if (unknown.size() > key.size() + kNear) continue;  // any length: nobody pays for a long one
        const unsigned distance = edit_distance(unknown, key);
        if (distance >= best_distance) continue;
        best_distance = distance;
        best = key;
    }
    return best;
}

}  // namespace numacre::daemon
