#!/usr/bin/env python3
"""Figures of resizing, printed, none asserted: how fast the daemon grows and shrinks a pool against plain fallocate and
punch of as many hugepages, how much slower clients allocate meanwhile and how long their longest call takes, and which
hugepages are free before and after. All interleaved; the daemon's times are those of its log, without the call.

usage: resize_figures.py [ROUNDS]    NUMACRE_BUILD_DIR names the build"""

import ctypes
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.daemon import Daemon  # noqa: E402

MIB = 1 << 20
SMALL, LARGE = 64 * MIB, 896 * MIB
MILLISECONDS = 200
POOL = f"name=default,capacity={LARGE},online={SMALL},frame=4K,largest=4M"
MFD_HUGETLB, MFD_HUGE_2MB = 4, 21 << 26
KEEP_SIZE, PUNCH_HOLE = 1, 2
libc = ctypes.CDLL(None, use_errno=True)


def seconds(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def fallocate(fd, mode, size):
    if libc.fallocate(fd, mode, ctypes.c_long(0), ctypes.c_long(size)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def rate(times):
    rates = sorted((LARGE - SMALL) / 2**30 / each for each in times)
    return statistics.median(rates), f"{statistics.median(rates):.2f} GiB/s ({rates[0]:.2f} .. {rates[-1]:.2f})"


def free_hugepages():
    return int(pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").read_text())


def resizes_in_log(daemon):
    return [int(each) / 1e6 for each in re.findall(r"pool resized.* microseconds=(\d+)", daemon.log())]


def resize_seconds(daemon, size):
    daemon.cli("resize", "default", size)
    return resizes_in_log(daemon)[-1]


def resizing_seconds(daemon):
    return sum(resizes_in_log(daemon))


def clients_figures(daemon):
    done = subprocess.run(
        [pathlib.Path(os.environ["NUMACRE_BUILD_DIR"]) / "test-bin/pause_bench", str(MILLISECONDS)],
        env={**os.environ, "NUMACRE_RUNTIME_DIR": daemon.runtime_dir}, capture_output=True, text=True, check=True)
    return {each["steps"]: each for each in json.loads(done.stdout)}


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    before = free_hugepages()
    with Daemon("--pool", POOL, "--keep-memory", "off") as daemon:
        (node,) = daemon.status()["pools"][0]["nodes"]
        if node["backing"] != "hugetlb":
            print(f"SKIP: {node['backing_note']}")
            sys.exit(77)
        plain = os.memfd_create("plain", MFD_HUGETLB | MFD_HUGE_2MB)
        os.ftruncate(plain, LARGE)
        times = {"grow": [], "shrink": [], "fallocate": [], "punch": []}
        mapped_free = []
        for _ in range(rounds):
            times["fallocate"].append(seconds(lambda: fallocate(plain, KEEP_SIZE, LARGE - SMALL)))
            times["punch"].append(seconds(lambda: fallocate(plain, KEEP_SIZE | PUNCH_HOLE, LARGE - SMALL)))
            at_small = free_hugepages()
            times["grow"].append(resize_seconds(daemon, LARGE))
            at_large = free_hugepages()
            times["shrink"].append(resize_seconds(daemon, SMALL))
            mapped_free.append((at_small, at_large, free_hugepages()))
        os.close(plain)
        for ours, theirs in (("grow", "fallocate"), ("shrink", "punch")):
            (us, said), (them, they_said) = rate(times[ours]), rate(times[theirs])
            print(f"{ours}: {said}; plain {theirs}: {they_said}; ratio {us / them:.2f}")
        print(f"free hugepages before growing by {(LARGE - SMALL) // (2 * MIB)}, after, and after shrinking: "
              + ", ".join("/".join(map(str, each)) for each in mapped_free[:3]))

        # Up and down all the time, while others allocate in what is always there.
        quiet, busy, resizes = {}, {}, 0
        resizing_before, elapsed = resizing_seconds(daemon), 0.0
        for _ in range(max(3, rounds // 3)):
            for steps, figures in clients_figures(daemon).items():
                quiet.setdefault(steps, []).append(figures)
            over = threading.Event()
            done = []

            def resize():
                while not over.is_set():
                    daemon.run_cli("resize", "default", LARGE)
                    daemon.run_cli("resize", "default", SMALL)
                    done.append(2)

            resizer = threading.Thread(target=resize)
            resizer.start()
            begin = time.perf_counter()
            for steps, figures in clients_figures(daemon).items():
                busy.setdefault(steps, []).append(figures)
            elapsed += time.perf_counter() - begin
            over.set()
            resizer.join()
            resizes += sum(done)
        share = (resizing_seconds(daemon) - resizing_before) / elapsed
        print(f"beside {resizes} resizes, which took {share:.0%} of the time, and quiet: ns of CPU time a pair, "
              "median; calls of more than 30 us of CPU time, per second; the longest calls of three rounds, in us "
              "('nothing' is no call: it shows the kernel's own pauses):")
        for steps in quiet:
            (cost, cost_beside), (long, long_beside), (longest, longest_beside) = (
                [pick([each[key] for each in figures[steps]]) for figures in (quiet, busy)]
                for key, pick in (("cpu_ns_per_pair", statistics.median), ("long_calls_per_second", statistics.mean),
                                  ("longest_call_us", lambda all_of: sorted(round(each) for each in all_of)[-3:])))
            print(f"{steps:20} {cost:6.1f} quiet {cost_beside:6.1f} beside, ratio {cost_beside / cost:.2f}; "
                  f"long {long:5.0f} quiet {long_beside:5.0f} beside; longest {longest} quiet {longest_beside} beside")
    print(f"free hugepages: {before} before the daemon, {free_hugepages()} after it")


if __name__ == "__main__":
    main()
