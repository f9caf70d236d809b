#!/usr/bin/env python3
"""Processes of several threads allocate and free blocks of all orders, are stopped, continued and killed at any moment.
After each round all threads are idle, half of the processes are stopped, and one process that caches nothing gets every
largest block of the pool: what the others cache comes back without them.

usage: idle_threads_test.py [--rounds N] [--seed N]      replay: the seed is printed first"""

import argparse
import os
import pathlib
import random
import signal
import sys
import time

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.attached_program import AttachedProgram  # noqa: E402
from support.daemon import Daemon, wait_until  # noqa: E402
from support.membarrier import is_permitted  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402

MIB = 1 << 20
CHUNKS = 16
POOL = f"name=default,capacity={4 * CHUNKS}M,online={4 * CHUNKS}M,frame=4K,largest=4M,backing=small"
PROCESSES, THREADS = 5, 3
WORK_MILLISECONDS = 400


def disturb(rng, processes):
    """Stops and continues processes while they work; kills at most one, and returns it."""
    end = time.monotonic() + WORK_MILLISECONDS / 1000
    kill_at = time.monotonic() + rng.random() * WORK_MILLISECONDS / 1000 if rng.random() < 0.7 else end
    killed = None
    while time.monotonic() < end:
        victim = rng.choice(processes)
        if victim is killed:
            continue
        os.kill(victim.process.pid, signal.SIGSTOP)
        time.sleep(rng.random() * 0.02)
        if killed is None and time.monotonic() >= kill_at:
            killed = victim
            victim.kill()
        else:
            os.kill(victim.process.pid, signal.SIGCONT)
        time.sleep(rng.random() * 0.02)
    return killed


def one_round(rng, number, daemon, processes, taker):
    while len(processes) < PROCESSES:
        processes.append(AttachedProgram("idle_cacher", daemon.runtime_dir, THREADS))
    for process in processes:
        process.process.stdin.write(f"{WORK_MILLISECONDS} {rng.getrandbits(32)}\n")
        process.process.stdin.flush()
    killed = disturb(rng, processes)
    if killed is not None:
        processes.remove(killed)
    for process in processes:
        answer = process.process.stdout.readline()
        assert answer == "ok\n", f"round {number}: {answer!r}"
    wait_until("the daemon has recovered what the killed process held",
               lambda: len(daemon.clients()) == len(processes) + 1)

    stopped = rng.sample(processes, len(processes) // 2)
    for process in stopped:
        os.kill(process.process.pid, signal.SIGSTOP)
    time.sleep(0.02)  # longer than the time between two barriers of a pool
    cached = int(daemon.status()["pools"][0]["nodes"][0]["cached_bytes"])
    _, blocks = taker.alloc(4 * MIB, count=CHUNKS + 1)
    assert len(blocks) == CHUNKS, f"round {number}: {len(blocks)} of {CHUNKS} largest blocks; {taker.message}"
    assert taker.free(blocks) == 0, taker.message
    for process in stopped:
        os.kill(process.process.pid, signal.SIGCONT)
    return cached


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    if not is_permitted():
        print("SKIP: membarrier(2) is not permitted here, so that nobody takes idle caches back")
        sys.exit(77)
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"replay: idle_threads_test.py --rounds {arguments.rounds} --seed {seed}", flush=True)
    rng = random.Random(seed)
    processes = []
    with Daemon("--topology", "synthetic:1x1G", "--pool", POOL) as daemon:
        try:
            with ClientProcess(daemon.runtime_dir) as taker:
                cached = [one_round(rng, number, daemon, processes, taker) for number in range(arguments.rounds)]
        finally:
            for process in processes:
                process.kill()
        assert max(cached) > MIB // 4, f"the caches had nothing to give: {cached}"
        print(f"{arguments.rounds} rounds; bytes in the caches before each: {cached}")


if __name__ == "__main__":
    main()
