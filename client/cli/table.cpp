#include "table.hpp"

#include <algorithm>
#include <ostream>
#include <stdexcept>
#include <utility>

#include "bytes.hpp"

namespace numacre::cli {

std::size_t display_width(std::string_view text) {
    return static_cast<std::size_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

Table::Table(std::vector<Column> columns, std::string indent)
    : columns_(std::move(columns)), indent_(std::move(indent)) {}

void Table::add_row(std::vector<std::string> cells) {
    if (cells.size() > columns_.size()) throw std::logic_error("a table row has more cells than the table has columns");
    cells.resize(columns_.size());
    for (std::string &cell : cells) cell = printable(cell);
    rows_.push_back(std::move(cells));
}

void Table::print(std::ostream &out) const {
    std::vector<std::size_t> widths;
    bool has_head = false;
    for (const Column &column : columns_) {
        widths.push_back(display_width(column.head));
        has_head = has_head || !column.head.empty();
    }
    for (const auto &row : rows_) {
        for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
    }
    const auto print_line = [&](const auto &cell_of) {
        std::string line = indent_;
        for (std::size_t i = 0; i < columns_.size(); ++i) {
            const std::string &cell = cell_of(i);
            const std::string fill(widths[i] - display_width(cell), ' ');
            line += columns_[i].align == Align::right ? fill + cell : cell + fill;
            line += "  ";
        }
        line.erase(line.find_last_not_of(' ') + 1);
        out << line << '\n';
    };
    if (has_head) print_line([&](std::size_t i) -> const std::string & { return columns_[i].head; });
    for (const auto &row : rows_) print_line([&](std::size_t i) -> const std::string & { return row[i]; });
}

}  // namespace numacre::cli
