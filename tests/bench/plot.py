#!/usr/bin/env python3
"""Draws what `allocators --json` wrote: a panel a workload and size, a bar an allocator, its length a ratio of medians.

usage: plot.py [--threads N | --processes N] [--to best|kind|rmw] FILE.json PICTURE.svg|.png
"""
import argparse
import json
import math
import sys

try:
    import matplotlib
except ImportError:
    print("SKIP: this python3 has no matplotlib (Debian: python3-matplotlib)")
    sys.exit(77)
matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

RATIOS = {
    "best": ("ratio_to_best", "times the best other allocator"),
    "kind": ("ratio_to_best_of_kind", "times the best other allocator of its kind"),
    "rmw": ("ratio_to_rmw", "times one locked instruction"),
}
COLOURS = {"shared": "#5b8db8", "cached": "#8fb58a"}
OURS = "#c8553d"


def size_text(size_bytes):
    return f"{size_bytes // 2**20} MiB" if size_bytes % 2**20 == 0 else f"{size_bytes // 2**10} KiB"


def unique(values):
    return list(dict.fromkeys(values))


def choose_groups(report, arguments):
    """The groups with one number of workers; by default the first of threads that there is, else of processes."""
    key, wanted = "threads", arguments.threads
    if arguments.processes is not None:
        key, wanted = "processes", arguments.processes
    elif wanted is None and not any(group["threads"] for group in report["groups"]):
        key = "processes"
    # A group of the other kind has 0.
    present = unique(group[key] for group in report["groups"] if group[key] != 0)
    if wanted is None and present:
        wanted = present[0]
    groups = [group for group in report["groups"] if group[key] == wanted]
    if not groups:
        sys.exit(f"plot.py: no group has {wanted} {key}; {arguments.json} has {present}")
    one = {"threads": "thread", "processes": "process"}[key]
    return groups, f"{wanted} {key if wanted != 1 else one}"


def draw_panel(panel, group, ratio_key):
    rows = [row for row in group["results"] if row["kind"] != "floor" and row[ratio_key] is not None]
    rows.sort(key=lambda row: row[ratio_key], reverse=True)
    # A bar of length 0 has no place on a logarithmic axis.
    lengths = [max(row[ratio_key], 0.01) for row in rows]
    panel.barh(range(len(rows)), lengths, color=[OURS if row["ours"] else COLOURS[row["kind"]] for row in rows])
    panel.set_xscale("log")
    panel.axvline(1, color="black", linewidth=0.8)
    panel.set_yticks(range(len(rows)))
    panel.set_yticklabels([row["allocator"] + marks(row) for row in rows], fontsize=6)
    for at, length in enumerate(lengths):
        digits = max(0, 1 - math.floor(math.log10(length)))
        panel.text(length, at, f" {length:.{digits}f}", va="center", fontsize=5)
    panel.tick_params(axis="x", labelsize=6)
    panel.margins(x=0.15)
    panel.set_title(f"{group['workload']}, {size_text(group['size_bytes'])}", fontsize=8)


def flawed(row):
    return row["out_of_memory"] != 0 or row["overlapping_blocks"] != 0 or row["filled"] < 1


def marks(row):
    return ("*" if flawed(row) else "") + ("\N{DEGREE SIGN}" if row["alone"] else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    workers = parser.add_mutually_exclusive_group()
    workers.add_argument("--threads", type=int)
    workers.add_argument("--processes", type=int)
    parser.add_argument("--to", choices=RATIOS, default="best", help="what 1 is")
    parser.add_argument("json", help="what `allocators --json` wrote")
    parser.add_argument("picture", help="SVG or PNG, by its name")
    arguments = parser.parse_args()

    with open(arguments.json) as file:
        report = json.load(file)
    groups, workers_text = choose_groups(report, arguments)
    ratio_key, ratio_text = RATIOS[arguments.to]
    workloads = unique(group["workload"] for group in groups)
    sizes = sorted(unique(group["size_bytes"] for group in groups))
    figure, panels = plt.subplots(len(sizes), len(workloads), squeeze=False, layout="constrained",
                                  figsize=(max(9, 3.4 * len(workloads)), 3 * len(sizes) + 0.8))
    for panel in panels.flat:
        panel.set_visible(False)
    for group in groups:
        panel = panels[sizes.index(group["size_bytes"])][workloads.index(group["workload"])]
        panel.set_visible(True)
        draw_panel(panel, group, ratio_key)
    machine = report["machine"]
    alone = any(row["alone"] for group in groups for row in group["results"])
    alone_text = "; \N{DEGREE SIGN}: each process has its own" if alone else ""
    figure.suptitle(f"ns a pair of allocation and free, {ratio_text}; {workers_text}, {machine['cpu']}, "
                    f"{machine['cpus']} CPUs\nred: numacre; blue: no cache a thread; green: with one; "
                    f"*: refused or overlapped{alone_text}", fontsize=9)
    figure.savefig(arguments.picture, dpi=150)
    print(f"{arguments.picture}: {len(groups)} panels")


if __name__ == "__main__":
    main()
