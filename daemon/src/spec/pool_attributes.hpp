// The table of pool attributes, a row for each. The configuration file, --pool, --check-config and CreatePool read and
// write attributes only through this table, so all of them know the same keys and spellings. Pure, except that the rows
// owner, group and user-quota look names up: never use them on the event loop (access.hpp).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/failure.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

struct PoolAttribute {
    // The type of the value in TOML.
    enum class Kind : std::uint8_t {
        text,
        bytes,  // a whole number, or a string such as "1G"
        count,  // a whole number
    };

    std::string_view key;
    Kind kind;
    std::string_view help;          // one line, without a full stop
    std::string_view default_text;  // the value of a pool whose description does not name the key, in words if need be
    // Sets the attribute from its text. A failure says the fault and the remedy, without key and value, and leaves the
    // spec as it was.
    Answer<void> (*parse)(PoolSpec &spec, const std::string &text);
    // Returns text that parse() reads back to the same value.
    std::string (*format)(const PoolSpec &spec);
    // The command that changes the attribute of a pool in use: kSetCommand, or another; empty: none does.
    std::string_view changed_by;
    // The reason why no command can change the attribute, and the remedy; empty if changed_by is not.
    std::string_view fixed_because;
    // Sets the attribute of a pool in use, where that is not what parse() does; null: it is.
    Answer<void> (*change)(PoolSpec &spec, const std::string &text) = nullptr;

    bool is_changeable() const { return changed_by == kSetCommand; }
    static constexpr std::string_view kSetCommand = "numacre set";
};

// The order is that of numacred.toml(5), and of --check-config.
std::span<const PoolAttribute> pool_attributes();

// Null: there is no such key.
const PoolAttribute *find_pool_attribute(std::string_view key);

// The reason why no command can change the attribute of this pool, and the remedy; empty: changed_by can.
std::string_view fixed_because(const PoolAttribute &attribute, const PoolSpec &spec);

// New values by key, of a pool in use.
using AttributeChanges = std::map<std::string, std::string, std::less<>>;
// The description with these changes. bad_argument: an unknown key, a key that cannot be changed, or a value that is
// refused, alone or beside the other attributes.
Answer<PoolSpec> changed(PoolSpec spec, const AttributeChanges &changes);

// "capacity, online, ...": all keys but the name, which identifies the pool.
std::string pool_attribute_keys();
// The keys that `numacre set` changes.
std::string changeable_attribute_keys();
// "did you mean pin-quarantine?" for a key that is nearly that, else "use one of " and the given keys.
std::string likely_attribute(std::string_view unknown, const std::string &keys);

// Sets an attribute, or a key of the daemon, to the result of a parser.
template <class Value>
Answer<void> set_parsed(Value &target, Answer<Value> parsed) {
    if (!parsed) return Unexpected{std::move(parsed.error())};
    target = std::move(*parsed);
    return {};
}
// Parses a count for an attribute, or for a key of the daemon.
Answer<void> set_count(std::uint32_t &target, const std::string &text);
Answer<void> set_count(std::uint64_t &target, const std::string &text);
Answer<void> set_positive_count(std::uint32_t &target, const std::string &text);

}  // namespace numacre::daemon
