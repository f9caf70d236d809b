#!/usr/bin/env python3
"""A stale pointer into memory that is offline: an error for who follows it (SIGBUS), and no page from the machine."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.attach_wire import REPLY_BYTES, Reply, connect, request  # noqa: E402
from support.daemon import bin_dir, wait_until  # noqa: E402
from support.gigantic_pages import GIB, pages_for  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402
from support.runtime_dir import RuntimeDir, online_bytes  # noqa: E402

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
        # Not so without the guard: nobody is told, and the machine has a page less until the daemon looks.
        self.assertEqual(Toucher(self.directory.path, 2 * online, "unguarded").touch(), (0, "touched\n"))
        wait_until("the machine has it back", lambda: self.directory.frames_bytes() == online)
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

    def check_locked(self, backing, online=16 * MIB):
        """By a process that has the kernel make real all that it maps, and lock it (mlockall, MCL_FUTURE)."""
        self.serve(backing, online)
        with ClientProcess(self.directory.path, attach=False) as client:
            error = client.lock_memory()
            if error != 0:
                self.skipTest(f"NOT TESTED: mlockall: {os.strerror(error)}")
            before = client.peak_bytes()
            self.assertEqual(client.attach(), 0, client.message)
            # What is online may be there, and so may the metadata of that.
            self.assertLess(client.peak_bytes() - before, 2 * online)
            self.assertEqual(self.directory.frames_bytes(), online)
            self.assertEqual(client.alloc(4 * MIB, count=online // (4 * MIB))[0], 0, client.message)

    def check_allocated(self, backing, online=16 * MIB):
        """By a client that asks the kernel for it, over what is offline, and goes."""
        daemon = self.serve(backing, online)
        with ClientProcess(self.directory.path) as client:
            error, (mine,) = client.alloc(4 * MIB)
            self.assertEqual(error, 0, client.message)
            client.write(mine, 4 * MIB, 0x5C)
            for size in (online, 2 * online, online):
                daemon.cli("resize", "default", size)
                with connect(daemon) as connection:
                    connection.send(request())
                    data, fds, _, _ = socket.recv_fds(connection, REPLY_BYTES, 1 + 2 * 64)
                    self.assertEqual(Reply(data).error, 0)
                    os.posix_fallocate(fds[2], 3 * online, online)
                    os.posix_fallocate(fds[2], 0, size)  # there already
                    for fd in fds:
                        os.close(fd)
                wait_until("the machine has it back", lambda: self.directory.frames_bytes() == size)
                daemon.says("behind frames that are offline")
            self.assertEqual(client.read(mine, 4 * MIB), b"\x5c" * (4 * MIB), "what is online was touched")
            # It was: under a growth that goes on over it, neither is in the other's way.
            daemon.cli("resize", "default", 4 * online)
            error, blocks = client.alloc(4 * MIB, count=4 * online // (4 * MIB) - 1)
            self.assertEqual(error, 0, client.message)

    def test_hugetlb_allocated(self):
        self.check_allocated("hugetlb")

    def test_small_allocated(self):
        self.check_allocated("small")

    def test_hugetlb_locked(self):
        self.check_locked("hugetlb")

    def test_small_locked(self):
        self.check_locked("small")

    def test_hugetlb(self):
        self.check("hugetlb")

    def test_hugetlb_resized(self):
        self.check_resized("hugetlb")

    def test_hugetlb_1g(self):
        pages_for(self, free=2)  # one is for the stray touch
        self.check("hugetlb-1g", GIB, grows=False)  # machines that have two such pages are rare enough

    def test_hugetlb_1g_resized(self):
        pages_for(self, free=2)
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
    main()
