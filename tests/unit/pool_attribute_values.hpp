// Texts of all pool attributes, for the tests of the table and of CreatePool.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>

namespace numacre::daemon {

// For each key a value that differs from the default, as format() writes it. A new attribute is a line here.
inline const std::map<std::string, std::string, std::less<>> kAttributeValues{
    {"name", "packets"},
    {"capacity", "64M"},
    {"online", "32M/16M/0"},
    {"frame", "8K"},
    {"largest", "2M"},
    {"object", "2368"},
    {"count", "1000"},
    {"colouring", "off"},
    {"max-clients", "5"},
    {"max-threads", "6"},
    {"max-threads-per-client", "2"},
    {"backing", "thp"},
    {"reclaim", "quarantine:30s"},
    {"pin-quarantine", "7s"},
    {"low-watermark", "3M"},
    {"policy", "interleave:0-2+5"},
    {"autosize", "10%-50%:8M-64M:4M:5s"},
    {"quota", "48M"},
    {"soft-quota", "40M"},
    {"fit", "compact"},
    {"user-quota", "4711=8M/4M 4712=2M"},
    {"object-memory", "64M"},
    {"owner", "4711"},
    {"group", "4712"},
    {"mode", "0604"},
};

// A pool has blocks or objects: of these groups a description names one.
inline const std::set<std::string, std::less<>> kOfBlocks{"capacity", "online", "frame", "largest", "autosize"};
inline const std::set<std::string, std::less<>> kOfObjects{"object", "count", "colouring"};

}  // namespace numacre::daemon
