#!/usr/bin/env python3
"""Clients of several threads that allocate, free, hand over and take come to harm one after the other, at random
instants, beside living ones: killed, stopped, replaced by exec, forked, ended or detached with all that they hold.
Nobody may own a block twice, nobody may wait for the dead or the stopped, and in the end everything is back.

usage: kill_test.py [--kills N] [--seed N] [--processes N] [--objects]      replay: the seed is printed first
"""

import argparse
import collections
import os
import pathlib
import random
import re
import signal
import struct
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.chaos_client import ChaosClient, chaos_client, fail_when_a_client_hangs  # noqa: E402
from support.daemon import PATIENCE_SECONDS, Daemon, wait_until  # noqa: E402

CAPACITY = 64 << 20
OBJECT_BYTES = 2368  # of no power of two: that of a DPDK packet buffer
RING_BYTES = 64 * 8  # chaos_client.cpp has the shared file's layout
SLEEPERS_MAX = 8
ASLEEP_FOR_MAX = 6  # what happens to others while one is stopped


class Herd:
    def __init__(self, daemon, shared, rng):
        self.daemon, self.shared, self.rng = daemon, shared, rng
        self.clients = []
        self.sleepers = []  # what once were clients
        self.number = 0
        self.kinds = collections.Counter()
        self.lost_sessions = 0  # that numacred has to find out about
        self.pauses = []
        # Who comes to no harm: it has to get on all the time.
        self.witness = self.start_one()
        self.witness.wait_until_attached()

    def start_one(self):
        command = [chaos_client(), self.daemon.runtime_dir, self.shared, str(self.rng.getrandbits(63)),
                   str(self.rng.randint(1, 3))]
        return ChaosClient(command)

    def everyone(self):
        return [self.witness, *self.clients]

    def check_alive(self):
        for client in self.everyone():
            if client.process.poll() is not None:
                raise AssertionError(
                    f"a client ended by itself with {client.process.returncode}: {client.process.stderr.read()}")

    def replace(self, client):
        self.clients[self.clients.index(client)] = self.start_one()

    # --- kinds of harm. Each says what it was called. -----------------------------------------------------------------

    def kill(self, client):
        # Most are killed at work, some while they start: then numacred may never have known them.
        if self.rng.random() < 0.9:
            client.wait_until_attached()
        self.lost_sessions += client.attached
        client.kill()
        self.replace(client)
        return "SIGKILL"

    def stop(self, client):
        client.wait_until_attached()
        client.process.send_signal(signal.SIGSTOP)
        client.was_stopped = True
        client.wake_at = self.number + self.rng.randint(1, ASLEEP_FOR_MAX)
        return "SIGSTOP"

    # The same process maps the same pool again, and what it held before comes back nevertheless.
    def exec_itself(self, client):
        client.order("x")
        client.hear("attached")
        self.lost_sessions += 1
        return "exec of itself"

    def exec_another(self, client):
        client.order("o")
        client.hear("sleeps")
        self.lost_sessions += 1
        self.sleepers.append(client)
        if len(self.sleepers) > SLEEPERS_MAX:
            self.sleepers.pop(0).kill()
        self.replace(client)
        return "exec of another program"

    def fork(self, client):
        client.order("f")
        client.hear("forked")
        return "fork"

    def fork_and_kill(self, client):
        client.order("f")
        if self.rng.random() < 0.5:
            client.hear("forked")
        self.kill(client)
        return "fork, the parent killed"

    def exit(self, client):
        client.order("e")
        client.end()
        self.lost_sessions += 1
        self.replace(client)
        return "exit(0)"

    def detach(self, client):
        client.order("d")
        client.hear("detached")
        client.hear("attached")
        return "detach"

    def end_threads(self, client):
        client.order("t")
        client.hear("threads ended")
        return "end of threads"

    def quit(self, client):
        self.let_quit(client)
        self.replace(client)
        return "free all and end"

    KINDS = ((kill, 30), (stop, 15), (exec_itself, 8), (exec_another, 5), (fork, 8), (fork_and_kill, 8), (exit, 8),
             (detach, 8), (end_threads, 6), (quit, 4))

    # ------------------------------------------------------------------------------------------------------------------

    def harm_one(self):
        self.number += 1
        for client in self.clients:
            if client.wake_at == self.number:
                self.wake(client)
        client = self.rng.choice(self.clients)
        harms, weights = zip(*self.KINDS)
        harm = self.rng.choices(harms, weights)[0]
        if client.wake_at is None:
            self.kinds[harm(self, client)] += 1
        else:  # one that is stopped does nothing that it is told
            self.kill(client)
            self.kinds["SIGSTOP, then SIGKILL"] += 1

    def wake(self, client):
        client.wake_at = None
        client.process.send_signal(signal.SIGCONT)

    def let_quit(self, client):
        client.order("q")
        (line,) = [line for line in client.end().splitlines() if line.startswith("pauses ")]
        pauses = tuple(map(int, line.split()[1:]))
        if not client.was_stopped:
            self.pauses.append(pauses)
        return pauses

    def stop_all(self):
        for client in self.clients:
            if client.wake_at is not None:
                self.wake(client)
            self.let_quit(client)
        self.clients = []
        if self.pauses:
            tell_pause(f"of {len(self.pauses)} clients that ended well and were never stopped", max(self.pauses))
        tell_pause("of the one that came to no harm", self.let_quit(self.witness))

    def kill_all(self):
        for client in [*self.everyone(), *self.sleepers]:
            client.kill()


def tell_pause(whose, pauses):
    longest, longest_on_cpu, median = pauses
    print(f"longest pause {whose}: {longest / 1000:.0f} us, {longest / median:.0f} times the median of {median} ns; "
          f"on the CPU {longest_on_cpu / 1000:.0f} us, {longest_on_cpu / median:.0f} times")


def check_forks(shared):
    with open(shared, "rb") as file:
        refused, not_refused = struct.unpack_from("QQ", file.read(), RING_BYTES)
    print(f"{refused} forked children were refused their parents' handles")
    if not_refused != 0:
        raise AssertionError(f"{not_refused} forked children were not refused their parents' handles")


def run(kills, processes, seed, objects):
    rng = random.Random(seed)
    count = CAPACITY // OBJECT_BYTES
    pool = (f"name=default,object={OBJECT_BYTES},count={count}" if objects else
            f"name=default,capacity={CAPACITY},online={CAPACITY},frame=4K,largest=4M")
    with Daemon("--pool", pool) as daemon, tempfile.TemporaryDirectory() as directory:
        shared = os.path.join(directory, "shared")
        herd = Herd(daemon, shared, rng)
        try:
            herd.clients = [herd.start_one() for _ in range(processes)]
            for number in range(1, kills + 1):
                time.sleep(rng.uniform(0.001, 0.06))
                herd.check_alive()
                herd.harm_one()
                # Each look also looks for damage, beside whatever is under way or was left half done.
                if number % 3 == 0:
                    daemon.status()
                if number % 20 == 0 and not daemon.alive():
                    raise AssertionError(f"numacred ended:\n{daemon.log()}")
                if number % 1000 == 0:
                    print(f"{number} of {kills}", flush=True)
            herd.stop_all()
            check_forks(shared)
            # The sleepers live on: what they held as clients comes back all the same.
            wait_until("every client is gone and everything is back",
                       lambda: not daemon.clients() and daemon.used_bytes() == 0)
        finally:
            herd.kill_all()
        (found,) = [each for each in daemon.status()["pools"] if each["name"] == "default"]
        largest, free = (found["nodes"][0][key] for key in ("largest_free_block_bytes", "free_bytes"))
        if largest != (OBJECT_BYTES if objects else 4 << 20):
            raise AssertionError(f"the largest free block is {largest} bytes: something did not coalesce")
        if objects and free != count * OBJECT_BYTES:
            raise AssertionError(f"{free} bytes are free instead of {count} objects of {OBJECT_BYTES}")
        log = daemon.log()
        if "damaged" in log:
            raise AssertionError(f"numacred found the pool damaged:\n{log}")
        # Not from the log: there the clients of a user that go get a line a second each.
        with urllib.request.urlopen(f"http://{daemon.metrics_address}/metrics", timeout=PATIENCE_SECONDS) as answer:
            counts = re.findall(r'^numacre_clients_reaped_total\{cause="(?!detached")\w+"\} (\d+)',
                                answer.read().decode(), re.M)
        reaped = sum(map(int, counts))
        print("kills by kind: " + ", ".join(f"{kind} {count}" for kind, count in sorted(herd.kinds.items())))
        backing = found["nodes"][0]["backing"]
        print(f"{kills} in all, {reaped} clients reaped, {processes} processes at a time beside one that came to no "
              f"harm, on {backing}: everything came back")
        if reaped < herd.lost_sessions:
            raise AssertionError(f"{herd.lost_sessions} attached clients were lost, only {reaped} were reaped")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=400)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--objects", action="store_true", help="a pool of objects")
    arguments = parser.parse_args()
    fail_when_a_client_hangs()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"replay: kill_test.py --kills {arguments.kills} --processes {arguments.processes} --seed {seed}"
          f"{' --objects' if arguments.objects else ''}", flush=True)
    run(arguments.kills, arguments.processes, seed, arguments.objects)


if __name__ == "__main__":
    main()
