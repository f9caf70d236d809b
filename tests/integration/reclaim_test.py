#!/usr/bin/env python3
"""What becomes of a dead client's blocks: reclaim = "fast", "zero", "quarantine:<time>"."""

import contextlib
import errno
import fcntl
import os
import pathlib
import socket
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.attach_wire import REPLY_BYTES, connect, request  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.daemon import Daemon, wait_until  # noqa: E402
from support.gigantic_pages import GIB, pages_for  # noqa: E402
from support.runner import main  # noqa: E402

MIB = 1 << 20
ONLINE = 16 * MIB
HELD = (4096, 4096, 64 << 10, 1 * MIB, 4 * MIB)
PATTERN = 0xA7


def serving(reclaim, **more):
    return Daemon("--pool", f"name=default,capacity=64M,online={ONLINE},frame=4K,largest=4M,reclaim={reclaim}", **more)


def quarantined_bytes(daemon):
    (pool,) = [each for each in daemon.status()["pools"] if each["name"] == "default"]
    return sum(node["quarantined_bytes"] for node in pool["nodes"])


def die_holding(runtime_dir, sizes=HELD):
    """A client that writes its pattern all over its blocks and is killed."""
    client = ClientProcess(runtime_dir)
    for size in sizes:
        error, (block,) = client.alloc(size)
        assert error == 0, client.message
        client.write(block, size, PATTERN)
    client.kill()


def patterns_left(runtime_dir, online=ONLINE, step=4096):
    """How many pages of the pool, of those that are looked at, still show what the dead client wrote. The caller has
    waited for them to be free."""
    with ClientProcess(runtime_dir) as client:
        error, blocks = client.alloc(4 * MIB, count=online // (4 * MIB))
        assert error == 0, client.message
        # Byte 0 to 63 of each block is the client's own.
        return sum(client.read(block + page, 128)[64:] == bytes([PATTERN]) * 64
                   for block in blocks for page in range(0, 4 * MIB, step))


class ReclaimTest(unittest.TestCase):
    def test_fast_leaves_what_was_written(self):
        with serving("fast") as daemon:
            die_holding(daemon.runtime_dir)
            wait_until("given back", lambda: daemon.used_bytes() == 0 and not daemon.clients())
            self.assertGreater(patterns_left(daemon.runtime_dir), 0, "the other tests would see nothing either")

    def test_zero_leaves_nothing(self):
        with serving("zero") as daemon:
            die_holding(daemon.runtime_dir)
            wait_until("given back", lambda: daemon.used_bytes() == 0 and not daemon.clients())
            self.assertEqual(patterns_left(daemon.runtime_dir), 0)
            self.assertEqual(quarantined_bytes(daemon), 0)

    def test_a_client_that_changes_the_flags_of_the_open_files_keeps_no_block_from_being_zeroed(self):
        """Daemon and clients share the open files, and with them the flags: a write with O_APPEND goes elsewhere."""
        with Daemon("--pool", f"name=default,capacity=64M,online={ONLINE},backing=small,reclaim=zero") as daemon:
            with contextlib.closing(connect(daemon)) as connection:
                connection.send(request())
                _, fds, _, _ = socket.recv_fds(connection, REPLY_BYTES, 8)
                self.assertEqual(len(fds), 3)
                for fd in fds:
                    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)
                    os.close(fd)
            die_holding(daemon.runtime_dir)
            wait_until("given back", lambda: daemon.used_bytes() == 0 and not daemon.clients())
            self.assertEqual(patterns_left(daemon.runtime_dir), 0)

    def test_zero_within_a_page_of_1_gib(self):
        pages_for(self, free=1)
        for reclaim in ("fast", "zero"):
            with Daemon("--pool", f"name=default,capacity=1G,online=1G,frame=4K,largest=4M,reclaim={reclaim},"
                        "backing=hugetlb-1g", "--keep-memory", "off") as daemon:
                (node,) = daemon.status()["pools"][0]["nodes"]
                self.assertEqual(node["backing"], "hugetlb-1g", node["backing_note"])
                die_holding(daemon.runtime_dir)
                wait_until("given back", lambda: daemon.used_bytes() == 0 and not daemon.clients())
                left = patterns_left(daemon.runtime_dir, GIB, 256 << 10)
                self.assertEqual(left == 0, reclaim == "zero",
                                 f"{reclaim}: {left} pages show what the dead client wrote")

    def test_zero_under_a_client_that_takes_the_pages_away(self):
        with serving("zero") as daemon, ClientProcess(daemon.runtime_dir) as hostile:
            error, (block,) = hostile.alloc(4 * MIB)
            self.assertEqual(error, 0, hostile.message)
            self.assertEqual(hostile.punch(block, 4 * MIB), 0)
            hostile.kill()
            wait_until("given back", lambda: daemon.used_bytes() == 0 and not daemon.clients())
            self.assertTrue(daemon.alive())

    def test_as_many_blocks_as_there_can_be_take_no_memory_of_the_daemon(self):
        blocks = 1 << 20
        pool = (f"name=default,capacity={blocks * 64},online={blocks * 64},frame=64,largest=4K,backing=small,"
                "reclaim=quarantine:15s")  # a look at so many blocks takes seconds under a sanitizer
        with Daemon("--pool", pool, "--topology", "synthetic:1x1G") as daemon:
            for _ in range(2):
                before = daemon.own_bytes()
                client = ClientProcess(daemon.runtime_dir)
                held = 0
                while held < blocks - (blocks >> 4):
                    self.assertEqual(client.hold(64, 4096), 0, client.message)
                    held += 4096
                client.kill()
                wait_until("the daemon has them", lambda: quarantined_bytes(daemon) >= held * 64)
                self.assertLess(daemon.own_bytes() - before, 12 * MIB, "32 bytes for each block would be 30 MiB")
                wait_until("given back", lambda: daemon.used_bytes() == 0 and quarantined_bytes(daemon) == 0)

    def test_quarantine_is_nobody_s_for_its_time(self):
        with serving("quarantine:3s") as daemon, ClientProcess(daemon.runtime_dir) as other:
            before = time.monotonic()
            die_holding(daemon.runtime_dir)
            wait_until("seized", lambda: quarantined_bytes(daemon) != 0 or time.monotonic() - before > 3)
            seen = quarantined_bytes(daemon)
            if time.monotonic() - before < 3:  # else this machine is too slow to look in time
                self.assertEqual(seen, sum(HELD))
                self.assertEqual(daemon.used_bytes(), sum(HELD))
                self.assertEqual(other.alloc(4 * MIB, count=4)[0], -errno.ENOMEM)
            wait_until("released", lambda: quarantined_bytes(daemon) == 0)
            self.assertGreaterEqual(time.monotonic() - before, 3, "released too early")

    def test_quarantine_survives_the_daemon(self):
        with tempfile.TemporaryDirectory(prefix="numacre-", dir="/tmp") as runtime_dir:
            daemon = serving("quarantine:2s", runtime_dir=runtime_dir)
            die_holding(runtime_dir)
            wait_until("seized", lambda: not daemon.clients())
            daemon.kill()
            daemon.stop()
            daemon = serving("quarantine:2s", runtime_dir=runtime_dir)
            wait_until("released by the next daemon", lambda: daemon.used_bytes() == 0)
            self.assertEqual(quarantined_bytes(daemon), 0)
            daemon.stop()

    def test_a_dead_producer_s_references_are_stale(self):
        for reclaim in ("fast", "zero", "quarantine:1s"):
            with serving(reclaim) as daemon, ClientProcess(daemon.runtime_dir) as taker:
                producer = ClientProcess(daemon.runtime_dir)
                error, (taken, left) = producer.alloc(4096, count=2)
                self.assertEqual(error, 0, producer.message)
                refs = [producer.ref_of(taken), producer.ref_of(left)]
                self.assertEqual(taker.take(refs[0])[0], 0, taker.message)
                producer.kill()
                wait_until("reaped", lambda: len(daemon.clients()) == 1)
                self.assertEqual(taker.take(refs[1])[0], -errno.ESTALE, reclaim)
                self.assertIn("or its owner has died: drop the reference", taker.message)
                wait_until("only what was taken is used", lambda: daemon.used_bytes() == 4096)

    def test_nonsense_is_refused(self):
        for reclaim in ("never", "quarantine", "quarantine:0s", "quarantine:25h", "quarantine:5", "zero:1s"):
            with self.assertRaises(RuntimeError, msg=reclaim):
                serving(reclaim)


if __name__ == "__main__":
    main()
