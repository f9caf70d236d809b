#!/usr/bin/env python3
"""The mempool driver of DPDK, by a program of the test's own: no object is out of reach or has two owners, deaths,
memory out of numacre, errors. EAL works without hugepages, and children of fork() stand for secondaries."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import PATIENCE_SECONDS, Daemon, program, wait_until  # noqa: E402
from support.dpdk import NO_HUGEPAGES, OPTIONS, client_command, environment  # noqa: E402
from support.runner import main  # noqa: E402

POOL = "name=default,capacity=64M,online=64M,backing=small"


class Driver(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon("--pool", POOL)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def run_mode(self, mode, *options, timeout=PATIENCE_SECONDS, **variables):
        return subprocess.run(client_command(mode, *NO_HUGEPAGES, *OPTIONS, *options), text=True, timeout=timeout,
                              env=environment(self.daemon.runtime_dir, **variables), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)

    def passes(self, mode, *options, **variables):
        done = self.run_mode(mode, *options, **variables)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertNotIn("are not freed", done.stdout)
        return done.stdout

    def expect_no_mempool(self):
        """The last process of the world has gone, and with it the mempools' pools, some seconds later."""
        wait_until("only the pool default is left",
                   lambda: [pool["name"] for pool in self.daemon.status()["pools"]] == ["default"])

    def fails(self, *messages, mode="make", **variables):
        done = self.run_mode(mode, **variables)
        self.assertNotEqual(done.returncode, 0)
        for message in messages:
            self.assertIn(message, done.stdout)

    def test_all_objects_are_there(self):
        self.passes("exact")

    def test_two_lcores_at_once(self):
        self.passes("chaos")

    def test_one_lcore_takes_and_the_other_one_puts(self):
        self.passes("one-way")

    def test_objects_in_an_idle_lcores_stash_when_a_second_process_comes(self):
        self.passes("idle")

    def test_another_pool_has_the_name(self):
        pool = "name=anew,capacity=4M,online=4M,backing=small"
        with tempfile.TemporaryDirectory(prefix="numacre-", dir="/tmp") as runtime_dir:
            first = Daemon("--pool", pool, runtime_dir=runtime_dir)
            process = subprocess.Popen(client_command("anew", *NO_HUGEPAGES, *OPTIONS), text=True,
                                       env=environment(runtime_dir, NUMACRE_DPDK_POOL="anew"), stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            try:
                self.assertIn("ready", process.stdout.readline())
                # The daemon dies, its pools are given up, and another daemon makes a pool of this name.
                first.kill()
                subprocess.run([program("numacred"), "--runtime-dir", runtime_dir, "--discard-kept"], check=True,
                               capture_output=True, timeout=PATIENCE_SECONDS)
                first.stop()
                with Daemon("--pool", pool, runtime_dir=runtime_dir):
                    said, _ = process.communicate("\n", timeout=PATIENCE_SECONDS)
                    self.assertEqual(process.returncode, 0, said)
            finally:
                process.kill()
                process.wait(PATIENCE_SECONDS)

    def test_objects_of_any_size_in_many_pieces(self):
        self.passes("layout")

    def test_mempool_in_a_heap_of_numacre(self):
        self.passes("heap")
        wait_until("the heap's memory is free again", lambda: self.daemon.used_bytes() == 0)

    def test_unmodified_program_moves_its_objects(self):
        self.passes("moved", NUMACRE_DPDK_MOVE="1")
        wait_until("the heap's memory is free again", lambda: self.daemon.used_bytes() == 0)

    def test_pinned_external_buffers(self):
        self.passes("extbuf")

    def test_a_dead_process_leaves_its_objects_in_quarantine(self):
        self.passes("quarantine")

    def test_objects_that_were_handed_over_survive_the_giver(self):
        self.passes("give")

    def test_the_first_process_dies(self):
        done = self.run_mode("orphan")
        self.assertEqual(done.returncode, -9, done.stdout)
        self.assertIn("the child has all objects", done.stdout)

    def test_kills_at_any_moment(self):
        print(self.passes("kill").strip().splitlines()[-1])
        self.expect_no_mempool()

    def test_no_daemon(self):
        self.fails("no pool for mempools", "NUMACRE_RUNTIME_DIR=/nonexistent", NUMACRE_RUNTIME_DIR="/nonexistent")

    def test_no_such_pool(self):
        self.fails("no pool is named", "NUMACRE_DPDK_POOL=other", NUMACRE_DPDK_POOL="other")

    def test_unclear_wish_to_move(self):
        self.fails("NUMACRE_DPDK_MOVE=2: use 1, 0, or do not set it", NUMACRE_DPDK_MOVE="2")

    def test_no_room_to_move(self):
        self.fails("no memory for mempools", mode="big", NUMACRE_DPDK_MOVE="1")

    def test_too_many_objects(self):
        self.fails("no object pool for mempool too many of 4026531840 objects", mode="many")

    def test_a_pool_is_not_resized_below_a_heap(self):
        process = subprocess.Popen(client_command("hold", *NO_HUGEPAGES, *OPTIONS), text=True, stdin=subprocess.PIPE,
                                   env=environment(self.daemon.runtime_dir), stdout=subprocess.PIPE)
        try:
            self.assertIn("ready", process.stdout.readline())
            refused = self.daemon.run_cli("resize", "default", "4M")
            self.assertNotEqual(refused.returncode, 0, refused.stdout)
            self.assertIn("pin", refused.stdout + refused.stderr)
        finally:
            process.communicate("\n", timeout=PATIENCE_SECONDS)
        self.assertEqual(process.returncode, 0)


if __name__ == "__main__":
    main()
