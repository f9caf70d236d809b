#!/usr/bin/env python3
"""Is each variable of the client's sources that lives as long as its process one of those that system/client.cpp swaps?
One that is not would be shared by all simulated processes.

usage: globals.py OBJECT SOURCE        (client.cpp.o, client.cpp)
       globals.py --daemon OBJECT...   Is each such variable of the daemon's sources one of OF_DAEMONS? A variable
                                       keeps its value when a simulated daemon dies, and in the seeds that the same
                                       process runs later.
"""
import re
import subprocess
import sys

# Never written, or the simulator's own; and those of threads, which change with the fiber or hold a message only.
OTHERS = {"no_lane", "no_magazine", "is_recording", "kept_message", "lane_table", "last_message", "often_code",
          "often_what",
          "numacre_inline_lane_1", "numacre_inline_lane_2"}

# A variable of the daemon's, and why no later daemon is the worse for what an earlier one has left there.
OF_DAEMONS = {
    "own_pid_space()::own": "every daemon finds the same number: pid 1 is there before all seeds",
    "ranges": "mappings that are watched for SIGBUS; one that has gone is never touched again",
    "ranges_end": "with ranges",
    "spare_file": "never made: the simulated machine has all pages",
}


def check_daemon(objects):
    found = {}
    for path in objects:
        listing = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=True).stdout
        for line in listing.splitlines():
            match = re.match(r"[0-9a-f]* [bBdDu] (.*)", line)
            if match is None or re.match(r"typeinfo|vtable|guard variable|std::", match.group(1)):
                continue
            if "simulation::" in match.group(1):
                continue
            name = match.group(1).split("(anonymous namespace)::")[-1]
            if not re.fullmatch(r"k[A-Z]\w*", name.split("::")[-1]):
                found[name] = path
    if not found.keys() & OF_DAEMONS.keys():
        print("no variable found at all: are these the right objects?")
        return 1
    unknown = sorted(found.keys() - OF_DAEMONS.keys())
    for name in unknown:
        print(f"{name} in {found[name]} outlives a daemon: make it a member, or say in OF_DAEMONS why it does no harm")
    print(f"{len(found)} variables, {len(unknown)} unknown")
    return 1 if unknown else 0


def main():
    if sys.argv[1] == "--daemon":
        return check_daemon(sys.argv[2:])
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
