#!/usr/bin/env python3
"""Figures of resizing, printed, none asserted: how fast the daemon grows and shrinks a pool against plain fallocate and
punch of as many hugepages, how much slower clients allocate meanwhile, and which hugepages are free before and after.
All interleaved; the daemon's times are those of its log, without the call.

usage: resize_figures.py [ROUNDS]"""

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

from support.daemon import Daemon, program  # noqa: E402

MIB = 1 << 20
SMALL, LARGE = 32 * MIB, 128 * MIB
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


def resize_seconds(daemon, size):
    daemon.cli("resize", "default", size)
    (*_, last) = re.findall(r"pool resized.* microseconds=(\d+)", daemon.log())
    return int(last) / 1e6


def nanoseconds_per_pair(daemon):
    done = subprocess.run(
        [program("numacre"), "--runtime-dir", daemon.runtime_dir, "bench", "default", "--operations", "200000",
         "--rounds", "3", "--json"],
        capture_output=True, text=True, check=True)
    return {(each["size_bytes"], each["cached"]): each["nanoseconds_per_pair"]
            for each in json.loads(done.stdout)["sizes"] if each["nanoseconds_per_pair"]}


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
        print("free hugepages before growing by 48, after, and after shrinking: "
              + ", ".join("/".join(map(str, each)) for each in mapped_free[:3]))

        # Up and down all the time, while others allocate in what is always there.
        quiet, busy, resizes = {}, {}, 0
        for _ in range(max(3, rounds // 3)):
            for key, value in nanoseconds_per_pair(daemon).items():
                quiet.setdefault(key, []).append(value)
            over = threading.Event()
            done = []

            def resize():
                while not over.is_set():
                    daemon.run_cli("resize", "default", LARGE)
                    daemon.run_cli("resize", "default", SMALL)
                    done.append(2)

            resizer = threading.Thread(target=resize)
            resizer.start()
            for key, value in nanoseconds_per_pair(daemon).items():
                busy.setdefault(key, []).append(value)
            over.set()
            resizer.join()
            resizes += sum(done)
        for (size, cached), values in sorted(quiet.items()):
            if (size, cached) in busy:
                a, b = statistics.median(values), statistics.median(busy[size, cached])
                print(f"allocation and free of {size} bytes{', cached' if cached else ''}: {a:.1f} ns quiet, "
                      f"{b:.1f} ns during {resizes} resizes, ratio {b / a:.2f}")
    print(f"free hugepages: {before} before the daemon, {free_hugepages()} after it")


if __name__ == "__main__":
    main()
