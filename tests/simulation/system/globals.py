#!/usr/bin/env python3
"""Is each variable of the client's sources that lives as long as its process one of those that system/client.cpp swaps?
One that is not would be shared by all simulated processes.

usage: globals.py OBJECT SOURCE      (client.cpp.o, client.cpp)
"""
import re
import subprocess
import sys

# Never written, or the simulator's own; and those of threads, which change with the fiber or hold a message only.
OTHERS = {"no_lane", "no_magazine", "is_recording", "lane_table", "last_message", "numacre_inline_lane_1"}


def main():
    listing = subprocess.run(["nm", "-C", sys.argv[1]], capture_output=True, text=True, check=True).stdout
    with open(sys.argv[2], encoding="utf-8") as file:
        swapped = set(re.findall(r"visit\(&(?:client::)?(\w+)", file.read()))
    written = set()
    for line in listing.splitlines():
        found = re.match(r"[0-9a-f]* ([bBdDu]) (.*)", line)
        if found is None or "simulation::" in found.group(2):
            continue
        name = found.group(2).split("::")[-1]
        is_constant = re.fullmatch(r"k[A-Z]\w*", name) is not None
        if not is_constant:
            written.add(name)
    if not written & swapped:
        print("no variable found at all: is this the right object?")
        return 1
    unknown = written - swapped - OTHERS
    for name in sorted(unknown):
        print(f"{name} is shared by all simulated processes: name it in for_each_global (system/client.cpp)")
    print(f"{len(written)} variables, {len(unknown)} unknown")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
