#!/usr/bin/env python3
"""A client may write anything anywhere it can write: it hurts its own pool, never the daemon, never another pool.

A hostile client scribbles over the metadata of the pool `default` at full speed while the daemon is scraped, the pool
is resized and drained, and other clients of it are killed. The daemon answers all the time, finds the damage, says so
everywhere and stops serving the pool; the pool `other` notices nothing; deleted and made again, `default` serves.

usage: hostile_client_test.py [unittest's arguments]      replay: NUMACRE_SEED=N, printed first
"""

import concurrent.futures
import contextlib
import errno
import json
import os
import pathlib
import random
import re
import sys
import time
import unittest
import urllib.request

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.attached_program import AttachedProgram  # noqa: E402
from support.daemon import PATIENCE_SECONDS, Daemon, wait_until  # noqa: E402
from support.numacre_client import STRICT, UNCACHED, WAIT, ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402

ONLINE = 16 << 20
SHAPE = ("--capacity", "64M", "--online", ONLINE, "--frame", "4K", "--largest", "4M", "--backing", "small")
POOLS = ("default", "other")
SEED = int(os.environ.get("NUMACRE_SEED") or random.SystemRandom().getrandbits(32))

# What scribbling there does to the pool is found.
FOUND = [
    "index", "upper", "leaf", "held bits", "hints", "intents", "hint work", "thread owners", "process records",
    "pool header", "node header", "one word", "everything",
]  # fmt: skip
# Any value is harmless there.
HARMLESS = ["counters", "home words", "futex words"]


class Steady(AttachedProgram):
    """Checks its own blocks all the time."""

    def __init__(self, daemon, pool):
        super().__init__("steady_client", daemon.runtime_dir, pool, SEED)

    def _tell(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    @contextlib.contextmanager
    def quiet(self):
        """Yields (bytes held, rounds made); at work again afterwards."""
        self._tell()
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"a client of a pool that nobody touches ended: {self.process.communicate()[1]}")
        yield tuple(map(int, line.split()))
        self._tell()


class HostileClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        print(f"replay: NUMACRE_SEED={SEED}", flush=True)
        cls.random = random.Random(SEED)
        cls.daemon = Daemon("--topology", "synthetic:2x512M")
        cls.addClassCleanup(cls.daemon.stop)
        for pool in POOLS:
            cls.daemon.cli("create", pool, *SHAPE)
        cls.steady = Steady(cls.daemon, "other")
        cls.addClassCleanup(cls.steady.kill)
        with cls.steady.quiet() as (_, cls.rounds):
            cls.metadata = cls.metrics_of_other(cls.scrape())
        cls.slowest = (0, "")

    @classmethod
    def tearDownClass(cls):
        print(f"slowest answer: {cls.slowest[0]:.2f} s, {cls.slowest[1]}", flush=True)

    @classmethod
    def scrape(cls):
        url = f"http://{cls.daemon.metrics_address}/metrics"
        return urllib.request.urlopen(url, timeout=PATIENCE_SECONDS).read().decode()

    @staticmethod
    def metrics_of_other(text):
        names = "numacre_pool_(?:capacity|online|metadata|metadata_resident)_bytes"
        return sorted(re.findall(rf'^{names}\{{[^}}]*pool="other"[^}}]*\}} .*$', text, re.MULTILINE))

    def timed(self, what, function, *arguments):
        start = time.monotonic()
        result = function(*arguments)
        type(self).slowest = max(self.slowest, (time.monotonic() - start, what))
        return result

    def ask(self, *arguments):
        return self.timed(" ".join(map(str, arguments)), self.daemon.run_cli, *arguments)

    def pool(self, name):
        # Exit status 3: a pool is corrupt; the answer is there all the same.
        answer = self.ask("status", "--json")
        self.assertIn(answer.returncode, (0, 3), answer.stderr)
        (found,) = [pool for pool in json.loads(answer.stdout)["pools"] if pool["name"] == name]
        return found

    def look_at_all(self):
        self.timed("scrape", self.scrape)
        for question in (["status"], ["map", "default"], ["buddyinfo"], ["clients"]):
            self.ask(*question)

    def is_found(self):
        return self.pool("default")["state"] == "corrupt"

    def make_again(self):
        removed = self.ask("delete", "default", "--force")
        self.assertEqual(removed.returncode, 0, removed.stderr)
        self.daemon.cli("create", "default", *SHAPE)

    def serves(self):
        with ClientProcess(self.daemon.runtime_dir) as client:
            error, blocks = client.alloc(64 << 10, count=20, flags=4)
            self.assertEqual(error, 0, client.message)
            self.assertEqual(self.daemon.used_bytes(), 20 * (64 << 10))
            self.assertEqual(client.free(blocks), 0, client.message)
        wait_until("the client is gone", lambda: not self.clients_of("default"))

    def clients_of(self, pool):
        return [client for client in self.daemon.clients() if client["pool"] == pool]

    def other_is_untouched(self):
        with self.steady.quiet() as (held, rounds):
            self.assertGreater(rounds, self.rounds, "it stood still")
            type(self).rounds = rounds
            self.assertEqual(self.pool("other")["used_bytes"], held)
            self.assertEqual(self.pool("other")["state"], "serving")
            text = self.scrape()
        self.assertEqual(self.metrics_of_other(text), self.metadata)
        self.assertIn('numacre_pool_corrupt{pool="other"} 0\n', text)

    def disturb(self, target, rounds=2):
        """The hostile client, left at work, beside all that the daemon has to do."""
        victims = [Steady(self.daemon, "default") for _ in range(2)]
        self.addCleanup(lambda: [victim.kill() for victim in victims])
        hostile = AttachedProgram("hostile_client", self.daemon.runtime_dir, "default", self.random.getrandbits(32),
                                  target)
        self.addCleanup(hostile.kill)
        # The looks come last: what they find ends the rest.
        for turn in range(rounds):
            self.ask("resize", "default", (ONLINE, 2 * ONLINE)[turn % 2 == 0], "--node", turn % 2)
            self.ask("drain", "default", "--node", 0, "--chunk", turn)
            victims[turn].kill()
            time.sleep(0.1)
            self.assertTrue(self.daemon.alive(), self.daemon.log())
        self.look_at_all()
        return hostile

    def refuses(self):
        resized = self.ask("resize", "default", 2 * ONLINE, "--node", 0)
        self.assertNotEqual(resized.returncode, 0)
        self.assertIn("NumacrePoolCorrupt", resized.stderr)
        with self.assertRaisesRegex(RuntimeError, "EUCLEAN.*NumacrePoolCorrupt"):
            ClientProcess(self.daemon.runtime_dir)

    def bystander(self):
        """Attached before the damage, with a thread slot of its own."""
        client = ClientProcess(self.daemon.runtime_dir)
        self.addCleanup(client.close)
        error, client.first = client.alloc(4096)
        self.assertEqual(error, 0)
        return client

    def says_so(self):
        reason = self.pool("default")["corrupt_reason"]
        self.assertTrue(reason)
        self.assertIn('numacre_pool_corrupt{pool="default"} 1\n', self.scrape())
        self.daemon.says("damaged.*" + re.escape(reason))
        doctor = self.ask("doctor")
        self.assertIn("pool default is corrupt", doctor.stdout + doctor.stderr)
        return reason

    def test_damage_is_found_and_contained(self):
        for target in FOUND:
            with self.subTest(target=target):
                bystander = self.bystander()
                hostile = self.disturb(target)
                wait_until(f"the damage to {target} is found", self.is_found)
                reason = self.says_so()
                self.refuses()
                self.other_is_untouched()
                hostile.kill()
                # Scribbled over as well, the word gets through to who is attached. (What it is given until then is not
                # touched: it may lie where there is no memory, and the guard ends who touches that.)
                wait_until("the clients hear of it", lambda: bystander.hold(4096, 1) == -errno.EUCLEAN)
                self.assertIn("damaged", bystander.message)
                for flags in (0, STRICT, WAIT):
                    answer = bystander.call("alloc", size=4096, count=1, node=-1, flags=flags)
                    self.assertEqual(answer["error"], -errno.EUCLEAN, flags)
                self.make_again()
                self.assertEqual(self.pool("default")["state"], "serving")
                self.serves()
                print(f"{target}: {reason}", flush=True)
        self.assertTrue(self.daemon.alive(), self.daemon.log())

    def test_who_waits_for_memory_hears_of_the_damage(self):
        holder, waiter = self.bystander(), self.bystander()
        for numa_node in range(2):
            while holder.alloc(4096, count=1024, numa_node=numa_node, flags=STRICT)[0] == 0:
                pass
        with concurrent.futures.ThreadPoolExecutor() as pool:
            answer = pool.submit(waiter.call, "alloc", size=4096, count=1, node=-1, flags=UNCACHED | WAIT)
            hostile = AttachedProgram(
                "hostile_client", self.daemon.runtime_dir, "default", self.random.getrandbits(32), "process records"
            )
            self.addCleanup(hostile.kill)
            wait_until("the damage is found", self.is_found)
            hostile.kill()
            self.assertEqual(answer.result(PATIENCE_SECONDS)["error"], -errno.EUCLEAN)
        # What it holds it may give back.
        (mine,) = waiter.first
        self.assertEqual(waiter.free([mine]), 0)
        self.make_again()

    def test_where_any_value_is_harmless_nothing_is_found(self):
        for target in HARMLESS:
            with self.subTest(target=target):
                hostile = self.disturb(target)
                hostile.kill()
                wait_until("all its clients are gone", lambda: not self.clients_of("default"))
                self.assertEqual(self.pool("default")["state"], "serving", self.daemon.log())
                self.other_is_untouched()
                self.serves()  # as it is
                self.make_again()
                self.serves()


if __name__ == "__main__":
    main()
