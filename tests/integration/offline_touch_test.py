#!/usr/bin/env python3
"""A stale pointer into memory that is offline: an error for who follows it (SIGBUS), and no page from the machine."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))
sys.path.insert(0, str(SOURCE / "tests" / "crash"))

from daemon_restart_test import RuntimeDir, online_bytes  # noqa: E402
from support.daemon import bin_dir  # noqa: E402

MIB = 1 << 20


class Toucher:
    def __init__(self, directory, offset, how):
        self.process = subprocess.Popen(
            [str(bin_dir().parent / "test-bin" / "offline_toucher"), directory, "default", str(offset), how],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "attached\n", self.process.wait(10)

    def touch(self):
        """Its exit status, and what else it has said."""
        said, _ = self.process.communicate("\n", timeout=60)
        return self.process.returncode, said


class OfflineTouch(unittest.TestCase):
    def serve(self, backing):
        self.directory = RuntimeDir(f"name=default,capacity=64M,online=16M,frame=4K,largest=4M,backing={backing}")
        self.directory.__enter__()
        self.addCleanup(self.directory.__exit__)
        daemon = self.directory.start()
        (node,) = daemon.status()["pools"][0]["nodes"]
        if node["backing"] != backing:
            self.skipTest(f"the pool has backing {node['backing']}: {node['backing_note']}")
        checks = json.loads(daemon.run_cli("doctor", "--json").stdout)["checks"]
        if next(check["level"] for check in checks if check["check"] == "userfaultfd") != "ok":
            self.skipTest("this machine has no userfaultfd for us")
        return daemon

    def check(self, backing):
        daemon = self.serve(backing)
        for how in ("read", "write"):
            with self.subTest(how=how, backing=backing):
                self.assertEqual(Toucher(self.directory.path, 32 * MIB, how).touch(), (-signal.SIGBUS, ""))
                self.assertEqual(self.directory.frames_bytes(), 16 * MIB)
        # Not so without the guard: nobody is told, and the machine has a page less.
        self.assertEqual(Toucher(self.directory.path, 32 * MIB, "unguarded").touch(), (0, "touched\n"))
        self.assertGreater(self.directory.frames_bytes(), 16 * MIB)
        # What comes online under a client that is attached is memory like any other, and so is what has always been.
        grown, shrunk = (Toucher(self.directory.path, 20 * MIB, "write") for _ in range(2))
        daemon.cli("resize", "default", "64M")
        self.assertEqual(grown.touch(), (0, "touched\n"))
        daemon.cli("resize", "default", "16M")
        self.assertEqual(shrunk.touch(), (-signal.SIGBUS, ""))
        self.assertEqual(online_bytes(daemon), 16 * MIB)
        self.assertEqual(self.directory.frames_bytes(), 16 * MIB)

    def test_hugetlb(self):
        self.check("hugetlb")

    def test_thp(self):
        self.check("thp")

    def test_small(self):
        self.check("small")


if __name__ == "__main__":
    unittest.main(verbosity=2)
