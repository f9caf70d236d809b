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
from support.gigantic_pages import GIB, pages_for  # noqa: E402

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
    def serve(self, backing, online):
        self.directory = self.enterContext(
            RuntimeDir(f"name=default,capacity={4 * online},online={online},frame=4K,largest=4M,backing={backing}"))
        daemon = self.directory.start()
        (node,) = daemon.status()["pools"][0]["nodes"]
        if node["backing"] != backing:
            self.skipTest(f"the pool has backing {node['backing']}: {node['backing_note']}")
        checks = json.loads(daemon.run_cli("doctor", "--json").stdout)["checks"]
        if next(check["level"] for check in checks if check["check"] == "userfaultfd") != "ok":
            self.skipTest("this machine has no userfaultfd for us")
        return daemon

    def check(self, backing, online=16 * MIB, grows=True):
        daemon = self.serve(backing, online)
        for how in ("read", "write"):
            with self.subTest(how=how, backing=backing):
                self.assertEqual(Toucher(self.directory.path, 2 * online, how).touch(), (-signal.SIGBUS, ""))
                self.assertEqual(self.directory.frames_bytes(), online)
        # Not so without the guard: nobody is told, and the machine has a page less.
        self.assertEqual(Toucher(self.directory.path, 2 * online, "unguarded").touch(), (0, "touched\n"))
        self.assertGreater(self.directory.frames_bytes(), online)
        if grows:  # over it
            for size in (4 * online, online):
                daemon.cli("resize", "default", size)
                self.assertEqual(self.directory.frames_bytes(), size)

    def check_resized(self, backing, online=16 * MIB):
        daemon = self.serve(backing, online)
        # What comes online under a client that is attached is memory like any other, and so is what has always been.
        grown, shrunk = (Toucher(self.directory.path, online + 4 * MIB, "write") for _ in range(2))
        daemon.cli("resize", "default", 2 * online)
        self.assertEqual(grown.touch(), (0, "touched\n"))
        daemon.cli("resize", "default", online)
        self.assertEqual(shrunk.touch(), (-signal.SIGBUS, ""))
        self.assertEqual(online_bytes(daemon), online)
        self.assertEqual(self.directory.frames_bytes(), online)

    def test_hugetlb(self):
        self.check("hugetlb")

    def test_hugetlb_resized(self):
        self.check_resized("hugetlb")

    def test_hugetlb_1g(self):
        pages_for(self, free=2)  # one is for the stray touch
        self.check("hugetlb-1g", GIB, grows=False)  # machines that have two such pages are rare enough

    def test_hugetlb_1g_resized(self):
        pages_for(self, more=2)
        self.check_resized("hugetlb-1g", GIB)

    def test_thp(self):
        self.check("thp")

    def test_thp_resized(self):
        self.check_resized("thp")

    def test_small(self):
        self.check("small")

    def test_small_resized(self):
        self.check_resized("small")


if __name__ == "__main__":
    unittest.main(verbosity=2)
