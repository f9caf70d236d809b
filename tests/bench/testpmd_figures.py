#!/usr/bin/env python3
"""testpmd over the mempool driver numacre and DPDK's own, in turns: packets a second, and ratios to ring_mp_mc.

usage: tests/bench/testpmd_figures.py [--rounds N] [--seconds S] [--cache N]

A round lets each driver forward once (macswap between two ports of net_null, which make packets of 64 B and forget
them: each packet is an object taken and put), so that what disturbs the machine disturbs all alike. Prints the median
of the rounds, its spread, and the median of the ratios within a round. Needs a release build, DPDK's programs
(dpdk-dev), two CPUs, and 600 MiB of memory; no hugepages.
"""

import argparse
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import PATIENCE_SECONDS, Daemon  # noqa: E402
from support.dpdk import DRIVER, NO_HUGEPAGES, environment  # noqa: E402

FIRST = "ring_mp_mc"
DRIVERS = (FIRST, "numacre", "ring_mt_hts", "stack", "lf_stack")
POOL = "name=default,capacity=64M,online=64M,backing=small"


def packets_a_second(driver, cache, seconds, runtime_dir, **variables):
    command = [shutil.which("dpdk-testpmd"), "--no-pci", "--no-telemetry", "-l", "0,1", "--log-level=4", *NO_HUGEPAGES,
               "-d", str(DRIVER), f"--mbuf-pool-ops-name={driver}", "--vdev", "net_null0", "--vdev", "net_null1", "--",
               "-i", "--forward-mode=macswap", f"--mbcache={cache}", "--total-num-mbufs=32768", "--disable-link-check"]
    process = subprocess.Popen(command, text=True, errors="replace", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, env=environment(runtime_dir, **variables))
    try:
        # A show prints the rate since the show before.
        for line, pause in (("start", 0.5), ("show port stats all", seconds), ("show port stats all", 0)):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            time.sleep(pause)
        said, _ = process.communicate("stop\nquit\n", timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
    rates = [int(rate) for rate in re.findall(r"Tx-pps: +(\d+)", said)]
    if process.returncode != 0 or len(rates) != 4 or 0 in rates[2:]:
        sys.exit(f"{driver}: testpmd does not forward (exit status {process.returncode}):\n{said[-2000:]}")
    return sum(rates[2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--cache", type=int, default=250, help="objects of an lcore's cache (--mbcache)")
    options = parser.parse_args()
    if shutil.which("dpdk-testpmd") is None or not DRIVER.exists() or len(os.sched_getaffinity(0)) < 2:
        print("SKIP: needs dpdk-testpmd (package dpdk-dev), the driver (libdpdk-dev), and two CPUs")
        return 77
    rates = {driver: [] for driver in DRIVERS}
    with Daemon("--pool", POOL) as daemon:
        for _ in range(options.rounds):
            for driver in DRIVERS:
                rates[driver].append(packets_a_second(driver, options.cache, options.seconds, daemon.runtime_dir))
    print(f"macswap over net_null, cache {options.cache}, {options.rounds} rounds of {options.seconds} s\n")
    print(f"{'driver':12} {'Mpackets/s':>10} {'lowest':>8} {'highest':>8} {'x ' + FIRST:>14}")
    for driver, all_rates in rates.items():
        ratio = statistics.median(rate / first for rate, first in zip(all_rates, rates[FIRST]))
        print(f"{driver:12} {statistics.median(all_rates) / 1e6:10.2f} {min(all_rates) / 1e6:8.2f} "
              f"{max(all_rates) / 1e6:8.2f} {ratio:14.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
