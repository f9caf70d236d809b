#!/usr/bin/env python3
"""Figures of the whole system, printed, none asserted: relay packets a second, attach time at 1 TiB, the daemon's
memory and idle CPU, scrape time, how long what a dead client held takes to come back. What is checked is that each
could be measured at all."""

import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.daemon import Daemon, program  # noqa: E402
from support.numacre_client import ClientProcess, library_path  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]


def spread(values, unit, digits=2):
    middle = statistics.median(values)
    return (f"{middle:.{digits}f} {unit} (median of {len(values)}, "
            f"{min(values):.{digits}f} .. {max(values):.{digits}f})")


def process_status(pid, key):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {key} in /proc/{pid}/status")


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def attach_milliseconds(runtime_dir, rounds=20):
    library = ctypes.CDLL(str(library_path()))
    library.numacre_detach.argtypes = [ctypes.c_void_p]
    library.numacre_detach.restype = None
    took = []
    for _ in range(rounds):
        pool = ctypes.c_void_p()
        begin = time.perf_counter()
        error = library.numacre_attach(str(runtime_dir).encode(), None, ctypes.byref(pool))
        took.append((time.perf_counter() - begin) * 1e3)
        assert error == 0, f"attach failed: {error}"
        library.numacre_detach(pool)
    return took


def scrape_milliseconds(address, rounds=10):
    took = []
    for _ in range(rounds):
        begin = time.perf_counter()
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        took.append((time.perf_counter() - begin) * 1e3)
        assert "numacre_pool_capacity_bytes" in text
    return took


def memory_and_idle_cpu(daemon):
    parts = {key: process_status(daemon.pid, key) for key in ("RssAnon", "RssFile", "RssShmem")}
    print("  daemon's memory: " + ", ".join(f"{key} {value / 2**20:.1f} MiB" for key, value in parts.items()))
    before = cpu_seconds(daemon.pid)
    time.sleep(5)
    print(f"  daemon's idle CPU: {(cpu_seconds(daemon.pid) - before) / 5 * 100:.2f} % of one CPU, over 5 s")


def one_tebibyte():
    print("capacity 1 TiB, 64 MiB online")
    with Daemon("--pool", "name=default,capacity=1T,online=64M,frame=4K,largest=4M") as daemon:
        print(f"  attach: {spread(attach_milliseconds(daemon.runtime_dir), 'ms')}")
        print(f"  scrape: {spread(scrape_milliseconds(daemon.metrics_address), 'ms')}")
        memory_and_idle_cpu(daemon)


def one_gibibyte():
    print("capacity and online 1 GiB")
    with Daemon("--pool", "name=default,capacity=1G,online=1G,frame=4K,largest=4M") as daemon:
        print(f"  attach: {spread(attach_milliseconds(daemon.runtime_dir), 'ms')}")
        print(f"  scrape: {spread(scrape_milliseconds(daemon.metrics_address), 'ms')}")
        memory_and_idle_cpu(daemon)


def deaths():
    """From SIGKILL until all that the client held can be allocated again, and what of that was recovery itself."""
    print("a client is killed; capacity 64 GiB, 5 GiB online (small pages), 4 KiB frames")
    with Daemon("--pool", "name=default,capacity=64G,online=5G,frame=4K,largest=4M,backing=small") as daemon:
        for frames, rounds in ((1, 10), (1000, 10), (1_000_000, 3)):
            until_back, recovery = [], []
            for _ in range(rounds):
                client = ClientProcess(daemon.runtime_dir)
                assert client.hold(4096, frames) == 0, client.message
                seen = daemon.log().count("client reaped")
                begin = time.perf_counter()
                client.process.kill()
                while True:
                    lines = [line for line in daemon.log().splitlines() if "client reaped" in line]
                    if len(lines) > seen:
                        break
                until_back.append((time.perf_counter() - begin) * 1e3)
                assert f"blocks={frames} " in lines[-1], lines[-1]
                recovery.append(float(lines[-1].rsplit("seconds=", 1)[1]) * 1e3)
                client.kill()
            print(f"  {frames} frames: {spread(until_back, 'ms')}; of them recovery {spread(recovery, 'ms', 3)}")


def relay():
    print("relay from a pcap file, two processes")
    with tempfile.TemporaryDirectory() as directory:
        pcap = pathlib.Path(directory) / "packets.pcap"
        subprocess.run([sys.executable, ROOT / "tests/support/make_pcap.py", "--packets", "100000", pcap], check=True,
                       stdout=subprocess.DEVNULL)
        rates = []
        with Daemon("--pool", "name=default,capacity=256M,online=256M,frame=2K,largest=4M") as daemon:
            for _ in range(5):
                done = subprocess.run(
                    [program("relay"), "run", "--runtime-dir", daemon.runtime_dir, "--pcap", pcap, "--loop", "60",
                     "--json"],
                    capture_output=True, text=True, timeout=120, check=True)
                sides = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
                rates.append(min(side["packets_per_second"] for side in sides) / 1e6)
            assert daemon.used_bytes() == 0, "the relay left blocks behind"
        print(f"  {spread(rates, 'million packets/s')}, 6 million packets a run, both sides' slower one")


def main():
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    one_tebibyte()
    one_gibibyte()
    deaths()
    relay()


if __name__ == "__main__":
    main()
