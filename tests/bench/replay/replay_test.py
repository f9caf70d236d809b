#!/usr/bin/env python3
"""Records a trace of a real program, replays it, prints the table, and asserts that our engine, asked for the best fit,
needs no more memory than a serial buddy; and unasked no more, or with coarse frames or large chunks one chunk more.

usage: replay_test.py lu|relay
lu: UMFPACK's sparse LU (lu_program.c). relay: packets from one process to another (client/relay).
Exit status 77: what the trace is recorded from cannot be had here.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import Daemon, program  # noqa: E402
from support.make_pcap import make_pcap  # noqa: E402

BUILD = pathlib.Path(os.environ["NUMACRE_BUILD_DIR"])
SKIPPED = 77
# Frame and largest block of each replay: small and large parts of the trace's sizes decide in turn.
SHAPES = {"lu": (("64", "8M"), ("4K", "8M"), ("4K", "32M")), "relay": (("2K", "64K"), ("2K", "2M"))}


def record_lu(folder):
    lu_program = BUILD / "test-bin" / "lu_program"
    if not lu_program.exists():
        print("SKIPPED: no lu_program, which needs UMFPACK: apt-get install libsuitesparse-dev, then run cmake again")
        sys.exit(SKIPPED)
    subprocess.run([lu_program], check=True, timeout=240, env={**os.environ, "NUMACRE_TRACE": str(folder / "trace")})


def record_relay(folder):
    if not (BUILD / "bin" / "relay").exists():
        print("SKIPPED: no relay, it was built without NUMACRE_EXAMPLES")
        sys.exit(SKIPPED)
    make_pcap(folder / "traffic.pcap", packets=20000, flows=500, seed=20240611)
    daemon = Daemon("--pool", "name=default,capacity=64M,online=64M,frame=2K,largest=2M,backing=small")
    try:
        subprocess.run(
            [program("relay"), "run", "--runtime-dir", daemon.runtime_dir, "--pcap", str(folder / "traffic.pcap")],
            check=True,
            timeout=240,
            env={**os.environ, "NUMACRE_TRACE": str(folder / "trace")},
        )
    finally:
        daemon.stop()


def parse(size):
    return int(size[:-1]) << {"K": 10, "M": 20}[size[-1]]


def replay(traces, frame, largest):
    words = [*map(str, traces), "--frame", frame, "--largest", largest]
    everything = subprocess.run(
        [BUILD / "test-bin" / "replay_papers", *words], check=True, timeout=240, capture_output=True, text=True
    )
    print(everything.stdout, flush=True)
    product = subprocess.run(
        [program("numacre"), "--json", "bench", "replay", *words],
        check=True,
        timeout=240,
        capture_output=True,
        text=True,
    )
    return json.loads(product.stdout)


def main():
    kind = sys.argv[1]
    failures = []
    with tempfile.TemporaryDirectory(prefix="numacre-replay-") as name:
        folder = pathlib.Path(name)
        {"lu": record_lu, "relay": record_relay}[kind](folder)
        # The relay's first process makes the channel and allocates nothing.
        traces = sorted(trace for trace in folder.glob("trace*") if trace.read_text().count("\n") > 1)
        print(f"{kind}: {len(traces)} trace(s), {sum(trace.stat().st_size for trace in traces)} bytes", flush=True)
        for frame, largest in SHAPES[kind]:
            report = replay(traces, frame, largest)
            needs = {engine["engine"]: engine["smallest_pool_bytes"] for engine in report["engines"]}
            if needs["numacre, best fit"] > needs["serial, lowest first"]:
                failures.append(f"{kind}, frame {frame}, largest block {largest}: best fit needs more than a serial "
                                "buddy")
            for serial in ("serial, latest first", "serial, lowest first"):
                # How blocks come to lie is luck, for them as for us: where a serial buddy happens to fill its chunks
                # nearly, ours may need one more (README.md has eight traces). Not where the sizes' own shape decides.
                spare = 0 if (frame, largest) == SHAPES[kind][0] else parse(largest)
                if needs["numacre"] > needs[serial] + spare:
                    failures.append(
                        f"{kind}, frame {frame}, largest block {largest}: numacre needs {needs['numacre']} bytes, "
                        f"'{serial}' {needs[serial]}"
                    )
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
