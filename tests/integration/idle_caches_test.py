#!/usr/bin/env python3
"""A process that needs memory gets every largest block of the pool, also those that idle and stopped threads cache."""

import os
import pathlib
import signal
import sys
import time
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.attached_program import AttachedProgram  # noqa: E402
from support.daemon import Daemon, wait_until  # noqa: E402
from support.limit_events import LimitEvents  # noqa: E402
from support.membarrier import is_permitted  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402

MIB = 1 << 20
POOL = "name=default,capacity=64M,online=64M,frame=4K,largest=4M,backing=small"
PROCESSES = 8
THREADS = 8


class IdleCaches(unittest.TestCase):
    def setUp(self):
        if not is_permitted():
            self.skipTest("NOT TESTED: membarrier(2) is not permitted here, so that nobody takes idle caches back")
        self.daemon = self.enterContext(Daemon("--topology", "synthetic:1x1G", "--pool", POOL))
        self.idlers = []
        self.addCleanup(lambda: [idler.kill() for idler in self.idlers])

    def begin(self, processes=PROCESSES):
        for _ in range(processes):
            self.idlers.append(AttachedProgram("idle_cacher", self.daemon.runtime_dir, THREADS))

    def cached(self):
        """The bytes in the clients' caches."""
        return int(self.daemon.status()["pools"][0]["nodes"][0]["cached_bytes"])

    def take_all(self, client):
        """Allocates largest blocks until there are no more; returns their addresses."""
        return client.alloc(4 * MIB, count=17)[1]

    def one_round(self):
        """All threads fill their caches, and are idle for longer than the time between two barriers of a pool."""
        for idler in self.idlers:
            idler.process.stdin.write("\n")
            idler.process.stdin.flush()
        for idler in self.idlers:
            self.assertEqual(idler.process.stdout.readline(), "ok\n")
        time.sleep(0.02)

    def test_every_largest_block_can_be_had_beside_idle_and_stopped_threads(self):
        self.begin()
        for idler in self.idlers[::2]:
            os.kill(idler.process.pid, signal.SIGSTOP)
        client = self.enterContext(ClientProcess(self.daemon.runtime_dir))
        self.assertGreater(self.cached(), 2 * MIB, "the caches have something to give")
        blocks = self.take_all(client)
        self.assertEqual(len(blocks), 16, client.message)
        self.assertEqual(self.cached(), 0)
        self.assertEqual(client.free(blocks), 0, client.message)
        # Their owners go on as if nothing had happened.
        for idler in self.idlers[::2]:
            os.kill(idler.process.pid, signal.SIGCONT)
        self.one_round()
        # And once more: the caches are full again.
        self.assertGreater(self.cached(), 2 * MIB)
        self.assertEqual(len(self.take_all(client)), 16, client.message)

    def test_small_blocks_are_had_to_the_last_frame(self):
        self.begin(2)
        client = self.enterContext(ClientProcess(self.daemon.runtime_dir))
        error, blocks = client.alloc(4096, count=64 * MIB // 4096)
        self.assertEqual(error, 0, client.message)
        self.assertEqual(len(blocks), 64 * MIB // 4096)

    def test_a_process_that_takes_no_part_keeps_its_caches(self):
        os.environ["NUMACRE_NOBARRIER"] = "1"
        try:
            self.begin(2)
        finally:
            del os.environ["NUMACRE_NOBARRIER"]
        client = self.enterContext(ClientProcess(self.daemon.runtime_dir))
        before = self.cached()
        self.assertGreater(before, 0)
        self.assertLess(len(self.take_all(client)), 16)
        self.assertEqual(self.cached(), before)

    def test_the_limits_of_those_who_lose_blocks_stay_right(self):
        self.begin(2)
        self.daemon.cli("quota", self.client_id(0), "32M")
        client = self.enterContext(ClientProcess(self.daemon.runtime_dir))
        blocks = self.take_all(client)
        self.assertEqual(len(blocks), 16, client.message)
        self.assertEqual(client.free(blocks), 0, client.message)
        # With a count too high, the quota would be used up after some rounds; with one too low, it would not hold.
        for _ in range(3):
            self.one_round()
            blocks = self.take_all(client)
            self.assertEqual(len(blocks), 16, client.message)
            self.assertEqual(client.free(blocks), 0, client.message)

    def test_a_shrink_gets_what_idle_and_stopped_threads_cache(self):
        self.begin()
        for idler in self.idlers[::2]:
            os.kill(idler.process.pid, signal.SIGSTOP)
        self.assertGreater(self.cached(), 2 * MIB)
        done = self.daemon.run_cli("resize", "default", "4M")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.cached(), 0)

    def test_a_drain_gets_what_idle_threads_cache(self):
        self.begin(1)
        chunks = range(16)
        for chunk in chunks[1:]:
            self.daemon.cli("drain", "default", "--chunk", chunk)
        wait_until("all chunks but one are offline", lambda: self.online() == 4 * MIB)

    def test_a_cache_that_nobody_uses_goes_back_by_itself(self):
        self.begin(2)
        os.kill(self.idlers[0].process.pid, signal.SIGSTOP)
        self.assertGreater(self.cached(), 0)
        wait_until("the caches of threads that make no call are empty", lambda: self.cached() == 0)
        os.kill(self.idlers[0].process.pid, signal.SIGCONT)
        self.one_round()
        self.assertGreater(self.cached(), 0)
        wait_until("they are empty again", lambda: self.cached() == 0)

    def test_caches_are_taken_back_before_the_low_watermark_is_told(self):
        watcher = LimitEvents(self.daemon.runtime_dir)
        self.addCleanup(watcher.close)
        client = self.enterContext(ClientProcess(self.daemon.runtime_dir))
        error, blocks = client.alloc(4 * MIB, count=8)
        self.assertEqual(error, 0, client.message)
        self.begin(2)
        cached = self.cached()
        self.assertGreater(cached, 0)
        self.daemon.cli("set", "default", f"low-watermark={32 * MIB - cached // 2}")
        wait_until("the daemon has taken the caches back", lambda: self.cached() == 0)
        self.assertEqual(watcher.kinds(), [], "what was in the caches is enough")
        # It is told once it is true.
        error, _ = client.alloc(4 * MIB, count=7)
        self.assertEqual(error, 0, client.message)
        wait_until("the crossing", lambda: watcher.kinds() == ["low_watermark"])

    def online(self):
        return int(self.daemon.status()["pools"][0]["nodes"][0]["online_bytes"])

    def client_id(self, index):
        pid = self.idlers[index].process.pid
        return str(next(c["client_id"] for c in self.daemon.clients() if c["pid"] == pid))


if __name__ == "__main__":
    main()
