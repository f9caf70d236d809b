// Bars and maps made of characters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace numacre::cli {

struct Pen {
    bool ascii = false;   // only 7-bit characters
    bool colour = false;  // ANSI colours
};

// A bar of width cells between brackets, filled by share (0 .. 1; values outside are cut off). At least one cell is
// filled for any share above 0, and at least one is empty for any share below 1.
std::string bar(double share, unsigned width, const Pen &pen);

// A bar of used, online and capacity: the part up to capacity that is offline is drawn differently.
std::string capacity_bar(std::uint64_t used, std::uint64_t online, std::uint64_t capacity, unsigned width,
                         const Pen &pen);

struct Cell {
    std::uint64_t frames = 0;
    std::uint64_t used_frames = 0;
    std::uint64_t offline_frames = 0;
};

// ' ' free, then three steps of shade, then full; '·' ('-' in ASCII) if the whole cell is offline. A cell that is
// partly offline shows the share of its online part. "Free" means nothing used, "full" means everything used.
std::string_view cell_glyph(const Cell &cell, bool ascii);

// Rows of cells, each with the offset of its first byte at the left.
std::string draw_map(const std::vector<Cell> &cells, std::uint64_t bytes_per_cell, unsigned width, const Pen &pen);
// How many cells fit one row of draw_map: a multiple of 8, so that offsets are round.
unsigned map_columns(std::uint64_t capacity_bytes, unsigned width);
std::string map_legend(std::uint64_t bytes_per_cell, const Pen &pen);

}  // namespace numacre::cli
