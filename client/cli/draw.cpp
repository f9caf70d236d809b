#include "draw.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "bytes.hpp"
#include "table.hpp"

namespace numacre::cli {
namespace {

constexpr std::array<std::string_view, 5> kShades{" ", "░", "▒", "▓", "█"};
constexpr std::array<std::string_view, 5> kAsciiShades{" ", ".", "o", "O", "#"};
constexpr std::string_view kOffline = "·";
constexpr std::string_view kAsciiOffline = "-";

constexpr std::string_view kGreen = "\033[32m";
constexpr std::string_view kYellow = "\033[33m";
constexpr std::string_view kRed = "\033[31m";
constexpr std::string_view kDim = "\033[2m";
constexpr std::string_view kReset = "\033[0m";

constexpr unsigned kLabelSeparatorColumns = 3;  // blank, and a bar on both sides

// 0 free .. 4 full; 5 offline.
unsigned cell_level(const Cell &cell) {
    const std::uint64_t online = cell.frames - std::min(cell.offline_frames, cell.frames);
    if (online == 0) return 5;
    const std::uint64_t used = std::min(cell.used_frames, online);
    if (used == 0) return 0;
    if (used == online) return 4;
    const double share = static_cast<double>(used) / static_cast<double>(online);
    return share <= 1.0 / 3 ? 1 : share <= 2.0 / 3 ? 2 : 3;
}

std::string_view level_colour(unsigned level) {
    switch (level) {
        case 1:
        case 2:
            return kGreen;
        case 3:
            return kYellow;
        case 4:
            return kRed;
        case 5:
            return kDim;
        default:
            return "";
    }
}

std::string repeat(std::string_view text, unsigned count) {
    std::string result;
    for (unsigned i = 0; i < count; ++i) result += text;
    return result;
}

std::string coloured(std::string_view text, std::string_view colour, const Pen &pen) {
    if (!pen.colour || colour.empty() || text.empty()) return std::string(text);
    return std::string(colour) + std::string(text) + std::string(kReset);
}

std::string_view share_colour(double share) {
    return share < 0.75 ? kGreen : share < 0.9 ? kYellow : kRed;
}

unsigned filled_cells(double share, unsigned width) {
    if (!(share > 0) || width == 0) return 0;
    if (share >= 1) return width;
    const auto cells = static_cast<unsigned>(std::lround(share * width));
    // A width of one cannot show both a filled and an empty cell: the filled cell wins.
    return std::max(1U, std::min(cells, width > 1 ? width - 1 : 1U));
}

}  // namespace

std::string bar(double share, unsigned width, const Pen &pen) {
    const unsigned filled = filled_cells(share, width);
    return "[" + coloured(repeat(pen.ascii ? "#" : "█", filled), share_colour(share), pen) +
           std::string(width - filled, ' ') + "]";
}

std::string capacity_bar(std::uint64_t used, std::uint64_t online, std::uint64_t capacity, unsigned width,
                         const Pen &pen) {
    if (capacity == 0) return "[" + std::string(width, ' ') + "]";
    const auto share_of = [&](std::uint64_t part) { return static_cast<double>(part) / static_cast<double>(capacity); };
    const unsigned online_cells = filled_cells(share_of(online), width);
    const unsigned used_cells = std::min(
        online_cells,
        online == 0 ? 0U : filled_cells(static_cast<double>(used) / static_cast<double>(online), online_cells));
    const double share = online == 0 ? 0 : static_cast<double>(used) / static_cast<double>(online);
    return "[" + coloured(repeat(pen.ascii ? "#" : "█", used_cells), share_colour(share), pen) +
           std::string(online_cells - used_cells, ' ') +
           coloured(repeat(pen.ascii ? kAsciiOffline : kOffline, width - online_cells), kDim, pen) + "]";
}

std::string_view cell_glyph(const Cell &cell, bool ascii) {
    const unsigned level = cell_level(cell);
    if (level == 5) return ascii ? kAsciiOffline : kOffline;
    return ascii ? kAsciiShades[level] : kShades[level];
}

unsigned map_columns(std::uint64_t capacity_bytes, unsigned width) {
    // "1023.9 MiB" is the longest label. Short pools need less, but rows of a steady width are easier to compare.
    const auto label = static_cast<unsigned>(std::max<std::size_t>(10, format_bytes(capacity_bytes).size()));
    const unsigned taken = label + kLabelSeparatorColumns;
    return width > taken + 8 ? (width - taken) / 8 * 8 : 8;
}

std::string draw_map(const std::vector<Cell> &cells, std::uint64_t bytes_per_cell, unsigned width, const Pen &pen) {
    const unsigned columns = map_columns(bytes_per_cell * cells.size(), width);
    const unsigned label_columns = std::max(width, columns + kLabelSeparatorColumns) - columns - kLabelSeparatorColumns;
    std::string text;
    for (std::size_t row = 0; row < cells.size(); row += columns) {
        const std::string label = format_bytes(row * bytes_per_cell);
        text += std::string(label_columns > label.size() ? label_columns - label.size() : 0, ' ') + label + " |";
        // One colour change for each run of equal cells, not for each cell: a map that fills a screen may go over a
        // slow line.
        unsigned coloured_level = 0;
        const std::size_t end = std::min<std::size_t>(row + columns, cells.size());
        for (std::size_t i = row; i < end; ++i) {
            const unsigned level = cell_level(cells[i]);
            if (pen.colour && level != coloured_level) {
                text += std::string(kReset) + std::string(level_colour(level));
                coloured_level = level;
            }
            text += cell_glyph(cells[i], pen.ascii);
        }
        if (pen.colour && coloured_level != 0) text += kReset;
        text += "|\n";
    }
    return text;
}

std::string map_legend(std::uint64_t bytes_per_cell, const Pen &pen) {
    const auto &shades = pen.ascii ? kAsciiShades : kShades;
    std::string text = "one cell is " + format_bytes(bytes_per_cell) + ": '" + std::string(shades[0]) + "' free";
    constexpr std::array<std::string_view, 4> kNames{"up to 1/3 used", "up to 2/3", "more", "full"};
    for (unsigned level = 1; level <= 4; ++level) {
        text += "  " + coloured(shades[level], level_colour(level), pen) + " " + std::string(kNames[level - 1]);
    }
    return text + "  " + coloured(pen.ascii ? kAsciiOffline : kOffline, kDim, pen) + " offline";
}

}  // namespace numacre::cli
