#!/usr/bin/env python3
"""Pools of objects: made by flag, file and command, used by several processes, on several numa nodes, with a quota;
what is refused; and what a daemon that comes back finds."""

import errno
import os
import pathlib
import sys
import tempfile
import unittest
import urllib.request

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import PATIENCE_SECONDS, Daemon, wait_until  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402

OBJECT, COUNT = 2368, 500
POOL = f"name=default,object={OBJECT},count={COUNT},backing=small"


def pool_of(daemon, name="default"):
    (found,) = [pool for pool in daemon.status()["pools"] if pool["name"] == name]
    return found


class Objects(unittest.TestCase):
    def test_two_processes_get_exactly_the_count_and_no_object_twice(self):
        with Daemon("--pool", POOL) as daemon, ClientProcess(daemon.runtime_dir) as first, \
                ClientProcess(daemon.runtime_dir) as second:
            self.assertEqual(pool_of(daemon)["free_bytes"], OBJECT * COUNT)
            error, of_first = first.alloc(OBJECT, count=COUNT - 100)
            self.assertEqual(error, 0)
            for number, block in enumerate(of_first):
                first.write(block, OBJECT, number % 251)
            error, of_second = second.alloc(64, count=101)
            self.assertEqual((error, len(of_second)), (-errno.ENOMEM, 100))
            self.assertRegex(second.message, "full.: free blocks, use another numa node, wait, or use a larger pool$")
            for block in of_second:
                second.write(block, OBJECT, 255)
            for number, block in enumerate(of_first):
                self.assertEqual(first.read(block, OBJECT), bytes([number % 251]) * OBJECT)
            self.assertEqual(pool_of(daemon)["free_bytes"], 0)
            self.assertEqual(first.alloc(OBJECT + 1)[0], -errno.EINVAL)
            self.assertIn("2368", first.message)
            self.assertEqual(first.free(of_first), 0)
            self.assertEqual(second.alloc(OBJECT, count=COUNT - 100)[0], 0)

    def test_objects_of_the_dead_come_back_with_their_content(self):
        with Daemon("--pool", POOL) as daemon:
            with ClientProcess(daemon.runtime_dir) as client:
                error, blocks = client.alloc(OBJECT, count=COUNT)
                self.assertEqual(error, 0)
                for block in blocks:
                    client.write(block, OBJECT, 77)
                client.kill()
            wait_until("all objects are back", lambda: daemon.used_bytes() == 0)
            with ClientProcess(daemon.runtime_dir) as client:
                error, blocks = client.alloc(OBJECT, count=COUNT)
                self.assertEqual(error, 0)
                for block in blocks:  # of which the client has written the first bytes
                    self.assertEqual(client.read(block, OBJECT)[64:], b"M" * (OBJECT - 64))

    def test_each_numa_node_has_the_count(self):
        with Daemon("--topology", "synthetic:3x64M", "--pool", POOL) as daemon, \
                ClientProcess(daemon.runtime_dir) as client:
            for numa_node in range(3):
                error, blocks = client.alloc(OBJECT, count=COUNT + 1, numa_node=numa_node, flags=1)
                self.assertEqual((error, len(blocks)), (-errno.ENOMEM, COUNT))
                for block in blocks[::50]:
                    client.write(block, OBJECT, numa_node)
                self.assertEqual(client.free(blocks), 0)
            self.assertEqual(client.alloc_cached(OBJECT, count=3 * COUNT)[0], 0)

    def test_a_quota_counts_objects(self):
        with Daemon("--pool", POOL + f",quota={10 * OBJECT}") as daemon, ClientProcess(daemon.runtime_dir) as client:
            error, blocks = client.alloc(OBJECT, count=11)
            self.assertEqual((error, len(blocks)), (-errno.EDQUOT, 10))

    def test_hugepages_are_taken_and_given_back(self):
        with Daemon("--pool", "name=other,capacity=4M,online=0,backing=small") as daemon:
            daemon.cli("create", "mbufs", "--object", str(OBJECT), "--count", "3000")
            pool = pool_of(daemon, "mbufs")
            self.assertEqual((pool["object_bytes"], pool["object_count"], pool["frame_bytes"], pool["online_bytes"]),
                             (OBJECT, 3000, OBJECT, OBJECT * 3000))
            with ClientProcess(daemon.runtime_dir, pool="mbufs") as client:
                error, blocks = client.alloc(OBJECT, count=3000)
                self.assertEqual(error, 0)
                client.write(blocks[-1], OBJECT, 1)
            daemon.cli("delete", "mbufs")

    def test_the_file_the_command_and_the_reply_agree(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "numacred.toml")
            with open(path, "w", encoding="utf-8") as file:
                file.write('[[pool]]\nname = "default"\nobject = "4K"\ncount = 100\nbacking = "small"\n'
                           '[[pool]]\nname = "plain"\nobject = 4096\ncount = 100\ncolouring = "off"\n'
                           'backing = "small"\n')
            with Daemon("--config", path) as daemon:
                self.assertEqual(pool_of(daemon)["frame_bytes"], 4160)
                self.assertEqual(pool_of(daemon, "plain")["frame_bytes"], 4096)
                shown = daemon.run_cli("status").stdout
                self.assertIn("pool default: serving, 100 objects of 4096 B a numa node, 4160 B apart", shown)
                self.assertIn("object                  4K", daemon.run_cli("get", "default").stdout)
                with urllib.request.urlopen(f"http://{daemon.metrics_address}/metrics",
                                            timeout=PATIENCE_SECONDS) as answer:
                    metrics = answer.read().decode()
                self.assertIn('numacre_free_blocks{pool="default",node="0",order="0"} 100', metrics)
                self.assertIn('numacre_pool_online_bytes{pool="default",node="0"} 416000', metrics)

    def test_what_would_move_or_clear_objects_is_refused(self):
        with Daemon("--pool", POOL) as daemon:
            for words, reason in ((("resize", "default", "0"), "online as a whole"),
                                  (("drain", "default", "--node", "0", "--chunk", "0"), "online as a whole"),
                                  (("set", "default", "reclaim=zero"), "keep their content"),
                                  (("set", "default", "autosize=10%-50%:64K-128K"), "autosize"),
                                  (("set", "default", "count=1000"), "layout"),
                                  (("set", "default", "pin_quarantine=3s"), "did you mean pin-quarantine?"),
                                  (("set", "default", "pin-quarantine=0s"), "not within 1s to 24h"),
                                  (("create", "x", "--object", "192"), "--count is missing"),
                                  (("create", "x", "--object", "192", "--count", "0"), "count is 0"),
                                  (("resize", "default", "+1M"), "make it again with another count"),
                                  (("create", "x", "--object", "100", "--count", "1"), "use 128"),
                                  (("create", "x", "--object", "2G", "--count", "1"), "out of range"),
                                  (("create", "x", "--object", "1G", "--count", 2**34, "--colouring", "off"), "64T"),
                                  (("create", "x", "--object", "1G", "--count", 2**34 - 1023), "64T"),
                                  (("create", "x", "--object", "64", "--count", "1", "--frame", "4K"), "leave frame"),
                                  (("create", "x"), "--object")):
                with self.subTest(words):
                    refused = daemon.run_cli(*words)
                    self.assertNotEqual(refused.returncode, 0)
                    self.assertIn(reason, refused.stderr)
            self.assertEqual(pool_of(daemon)["online_bytes"], OBJECT * COUNT)
            self.assertEqual(daemon.run_cli("resize", "default", str(OBJECT * COUNT)).returncode, 0)

    def test_a_daemon_that_comes_back_finds_the_objects(self):
        with tempfile.TemporaryDirectory() as runtime_dir:
            with Daemon("--pool", POOL, "--keep-memory", "holder", runtime_dir=runtime_dir) as daemon:
                client = ClientProcess(runtime_dir)
                error, blocks = client.alloc(OBJECT, count=200)
                self.assertEqual(error, 0)
                client.write(blocks[-1], OBJECT, 5)
                daemon.kill()
            with client, Daemon("--pool", POOL, "--keep-memory", "holder", runtime_dir=runtime_dir) as daemon:
                pool = pool_of(daemon)
                self.assertEqual((pool["object_bytes"], pool["object_count"]), (OBJECT, COUNT))
                wait_until("the objects are seen", lambda: daemon.used_bytes() == 200 * OBJECT)
                self.assertEqual(client.read(blocks[-1], OBJECT), bytes([5]) * OBJECT)
                error, more = client.alloc(OBJECT, count=COUNT)
                self.assertEqual((error, len(more)), (-errno.ENOMEM, COUNT - 200))
                client.kill()
                wait_until("all objects are back", lambda: daemon.used_bytes() == 0)
                daemon.cli("delete", "default")


if __name__ == "__main__":
    main()
