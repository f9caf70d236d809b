#!/usr/bin/env python3
"""Bursts of references between two handles: several numa nodes, and quotas, which count each block for its owner."""

import os
import pathlib
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import Daemon, bin_dir, wait_until  # noqa: E402
from support.runner import main  # noqa: E402

POOL = "name=default,capacity=256M,online=256M,frame=4K,largest=4M,backing=small"
ROUNDS = 500


class BurstHandOver(unittest.TestCase):
    def hand_over(self, *arguments, pool=POOL):
        with Daemon("--pool", pool, *arguments) as daemon:
            done = subprocess.run([str(bin_dir().parent / "test-bin" / "burst_hand_over"), str(ROUNDS)],
                                  env={**os.environ, "NUMACRE_RUNTIME_DIR": daemon.runtime_dir},
                                  capture_output=True, text=True, timeout=120)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            wait_until("no block is left behind", lambda: daemon.used_bytes() == 0)

    def test_one_numa_node(self):
        self.hand_over()

    def test_several_numa_nodes(self):
        self.hand_over("--topology", "synthetic:3x512M")

    def test_a_pool_with_a_quota(self):
        self.hand_over(pool=POOL + ",quota=200M")

    def test_a_pool_of_objects(self):
        for nodes in ("", "--topology=synthetic:3x512M"):
            with self.subTest(nodes):
                self.hand_over(*nodes.split(), pool="name=default,object=2368,count=20000,backing=small")


if __name__ == "__main__":
    main()
