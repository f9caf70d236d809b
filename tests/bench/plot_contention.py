#!/usr/bin/env python3
"""Draws what `contention --json` wrote: a column a workload, a row a figure, a line an allocator, over the virtual
cores.

usage: plot_contention.py [--order N] [--schedule random|adversarial|timed] FILE.json PICTURE.svg|.png
"""
import argparse
import json
import sys

try:
    import matplotlib
except ImportError:
    print("SKIP: this python3 has no matplotlib (Debian: python3-matplotlib)")
    sys.exit(77)
matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FuncFormatter, NullLocator  # noqa: E402

# What is drawn, and from which schedule: only the timed one has a clock. symlog: zero is a value, and an important one.
FIGURES = [
    ("rmws", "locked instructions", None, 1),
    ("failed_cas", "failed compare-and-swaps", None, 0.001),
    ("transfers", "line transfers", None, 0.01),
    ("operations_per_kilocycle", "operations a kilocycle,\nall cores (timed)", "timed", None),
]
OURS = ["#c8553d", "#e09f3e", "#8c2f39"]
OTHERS = ["#5b8db8", "#8fb58a", "#4a6b4a", "#9a86b8", "#5c4d7d", "#777777"]


def unique(values):
    return list(dict.fromkeys(values))


def colours_of(results):
    """A colour for each allocator, and whether it is ours."""
    ours = unique(row["allocator"] for row in results if row["ours"])
    others = unique(row["allocator"] for row in results if not row["ours"])
    colours = {name: OURS[at % len(OURS)] for at, name in enumerate(ours)}
    colours.update({name: OTHERS[at % len(OTHERS)] for at, name in enumerate(others)})
    return colours


def draw_panel(panel, rows, figure, floor, colours):
    for name in unique(row["allocator"] for row in rows):
        points = sorted((row["cores"], row[figure]) for row in rows if row["allocator"] == name)
        ours = any(row["ours"] for row in rows if row["allocator"] == name)
        panel.plot(*zip(*points), color=colours[name], marker="o", markersize=2.5, linewidth=1.6 if ours else 0.9,
                   zorder=3 if ours else 2, label=name)
    panel.set_xscale("log", base=2)
    if floor is None:
        panel.set_yscale("log")
    else:
        panel.set_yscale("symlog", linthresh=floor)
        panel.set_ylim(bottom=0)
        panel.yaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda cores, _: f"{cores:g}"))
    panel.tick_params(labelsize=6)
    panel.grid(linewidth=0.3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--order", type=int, help="of the blocks; by default the first there is")
    parser.add_argument("--schedule", default="random", help="whose counts are drawn")
    parser.add_argument("json", help="what `contention --json` wrote")
    parser.add_argument("picture", help="SVG or PNG, by its name")
    arguments = parser.parse_args()

    with open(arguments.json) as file:
        report = json.load(file)
    results = report["results"]
    order = arguments.order if arguments.order is not None else results[0]["order"]
    results = [row for row in results if row["order"] == order and row["operations"] != 0]
    drawn = []
    for figure, label, schedule, floor in FIGURES:
        rows = [row for row in results if row["schedule"] == (schedule or arguments.schedule)
                and row[figure] is not None]
        if rows:
            drawn.append((figure, label, floor, rows))
    if not drawn:
        sys.exit(f"plot_contention.py: {arguments.json} has nothing of order {order}, {arguments.schedule} schedule")
    workloads = unique(row["workload"] for row in results)
    colours = colours_of(results)
    figure_of_all, panels = plt.subplots(len(drawn), len(workloads), squeeze=False, sharex=True, layout="constrained",
                                         figsize=(max(7, 2.5 * len(workloads)), 2.1 * len(drawn) + 1.2))
    for line, (figure, label, floor, rows) in enumerate(drawn):
        for column, workload in enumerate(workloads):
            panel = panels[line][column]
            draw_panel(panel, [row for row in rows if row["workload"] == workload], figure, floor, colours)
            if line == 0:
                panel.set_title(workload, fontsize=8)
            if line == len(drawn) - 1:
                panel.set_xlabel("virtual cores", fontsize=7)
            if column == 0:
                panel.set_ylabel(label, fontsize=7)
            if figure == "failed_cas":
                panel.axhline(0.05, color="black", linewidth=0.6, linestyle=":")
    handles = {}
    for panel in panels.flat:
        for handle, name in zip(*panel.get_legend_handles_labels()):
            handles.setdefault(name, handle)
    figure_of_all.legend(handles.values(), handles.keys(), loc="upper center", bbox_to_anchor=(0.5, 0), ncols=5,
                         fontsize=7)
    cycles = report["cycles"]
    figure_of_all.suptitle(f"an allocation or a free, order {order}, {arguments.schedule} schedule, "
                           f"{report['pool_bytes'] >> 20} MiB of 4 KiB frames, seed {report['seed']}\n"
                           f"assumed cycles: hit {cycles['hit']}, locked instruction {cycles['rmw']}, "
                           f"line transfer +{cycles['transfer']}; dotted: the target, 0.05",
                           fontsize=8)
    figure_of_all.savefig(arguments.picture, dpi=150, bbox_inches="tight")
    print(f"{arguments.picture}: {len(drawn)} figures, {len(workloads)} workloads")


if __name__ == "__main__":
    main()
