#!/usr/bin/env python3
"""Real SIGKILLs at random instants: clients of several threads that allocate, free, hand over and take are killed one after
the other beside living ones. Nobody may own a block twice, and in the end everything is back.

usage: kill_test.py [--kills N] [--seed N] [--processes N]      replay: the seed is printed first
"""

import argparse
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.daemon import Daemon, wait_until  # noqa: E402

CAPACITY = 64 << 20


def chaos_client():
    path = pathlib.Path(os.environ["NUMACRE_BUILD_DIR"]) / "test-bin" / "chaos_client"
    if not path.exists():
        raise FileNotFoundError(f"{path} is not built")
    return str(path)


class Herd:
    def __init__(self, daemon, ring, rng):
        self.daemon, self.ring, self.rng = daemon, ring, rng
        self.clients = []

    def start_one(self):
        command = [chaos_client(), self.daemon.runtime_dir, self.ring, str(self.rng.getrandbits(63)),
                   str(self.rng.randint(1, 3))]
        self.clients.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                             stderr=subprocess.PIPE, text=True))

    def check_alive(self):
        for client in self.clients:
            if client.poll() is not None:
                raise AssertionError(f"a client ended by itself with {client.returncode}: {client.stderr.read()}")

    def kill_one(self):
        """Returns whether the daemon knew it: one that is killed before it has attached is nobody's to reap."""
        victim = self.clients.pop(self.rng.randrange(len(self.clients)))
        # Most are killed at work, some while they start.
        attached = self.rng.random() < 0.9 and victim.stdout.readline() == "attached\n"
        # Sometimes stopped first: what it was in the middle of stays so for a while, beside the others.
        if self.rng.random() < 0.2:
            victim.send_signal(signal.SIGSTOP)
            time.sleep(self.rng.uniform(0, 0.05))
        victim.kill()
        victim.communicate()
        return attached

    def stop_all(self):
        for client in self.clients:
            client.stdout.readline()  # one that is still starting would just die of the signal
            client.send_signal(signal.SIGTERM)
        for client in self.clients:
            _, errors = client.communicate(timeout=60)
            if client.returncode != 0:
                raise AssertionError(f"a surviving client ended with {client.returncode}: {errors}")
        self.clients = []

    def kill_all(self):
        for client in self.clients:
            client.kill()
            client.communicate()


def run(kills, processes, seed):
    rng = random.Random(seed)
    pool = f"name=default,capacity={CAPACITY},online={CAPACITY},frame=4K,largest=4M"
    with Daemon("--pool", pool) as daemon, tempfile.TemporaryDirectory() as directory:
        herd = Herd(daemon, os.path.join(directory, "ring"), rng)
        try:
            for _ in range(processes):
                herd.start_one()
            attached = 0
            for number in range(kills):
                time.sleep(rng.uniform(0.001, 0.06))
                herd.check_alive()
                attached += herd.kill_one()
                herd.start_one()
                if number % 20 == 0 and not daemon.alive():
                    raise AssertionError(f"numacred ended:\n{daemon.log()}")
            herd.stop_all()
        finally:
            herd.kill_all()
        wait_until("every client is gone and everything is back",
                   lambda: not daemon.clients() and daemon.used_bytes() == 0)
        (found,) = [each for each in daemon.status()["pools"] if each["name"] == "default"]
        largest = found["nodes"][0]["largest_free_block_bytes"]
        if largest != 4 << 20:
            raise AssertionError(f"the largest free block is {largest} bytes: something did not coalesce")
        log = daemon.log()
        if "damaged" in log:
            raise AssertionError(f"numacred found the pool damaged:\n{log}")
        reaped = log.count("client reaped")
        backing = found["nodes"][0]["backing"]
        print(f"{kills} kills, {reaped} reaped, {processes} processes at a time, on {backing}: everything came back")
        if reaped < attached:
            raise AssertionError(f"{attached} attached clients were killed, only {reaped} deaths were reaped")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=150)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"replay: kill_test.py --kills {arguments.kills} --processes {arguments.processes} --seed {seed}", flush=True)
    run(arguments.kills, arguments.processes, seed)


if __name__ == "__main__":
    main()
