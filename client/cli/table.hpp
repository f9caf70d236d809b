// Prints tables whose columns line up.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace numacre::cli {

enum class Align { left, right };

// The number of terminal columns of UTF-8 text. Counts code points: we print none that is wide or combining.
std::size_t display_width(std::string_view text);

class Table {
public:
    struct Column {
        std::string head;
        Align align = Align::left;
    };

    explicit Table(std::vector<Column> columns, std::string indent = "");
    // Short rows are filled up with empty cells. Control characters in cells become '?'.
    void add_row(std::vector<std::string> cells);
    bool empty() const { return rows_.empty(); }
    // Prints two blanks between columns, none at the end of a line. Leaves the head out if no column has one.
    void print(std::ostream &out) const;

private:
    std::vector<Column> columns_;
    std::vector<std::vector<std::string>> rows_;
    std::string indent_;
};

}  // namespace numacre::cli
