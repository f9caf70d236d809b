#!/usr/bin/env python3
"""A real cgroup with a limit of memory: a pool of small pages that would go beyond it is refused, or does not grow, by
an error that names it. Otherwise the kernel would kill the daemon, or a client in the same group.
"""

import concurrent.futures
import json
import os
import pathlib
import sys
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.cgroup import Cgroup  # noqa: E402
from support.daemon import Daemon, wait_until  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402

MIB = 1 << 20
LIMIT = 300 * MIB
POOL = "name=default,capacity=1G,online=16M,frame=4K,largest=4M,backing=small"


class MemoryCgroup(unittest.TestCase):
    def serve(self, *pools, limit=LIMIT):
        try:
            self.cgroup = Cgroup("memory", limit, "memory")
        except OSError as problem:
            print(f"SKIP: {problem}", file=sys.stderr)
            self.skipTest(str(problem))
        self.addCleanup(self.cgroup.remove)
        pools = [word for pool in pools or (POOL,) for word in ("--pool", pool)]
        daemon = Daemon("--topology", "synthetic:1x2G", *pools, "--keep-memory", "off", prefix=self.cgroup.prefix())
        self.addCleanup(daemon.stop)
        return daemon

    def online_bytes(self, daemon):
        return daemon.status()["pools"][0]["nodes"][0]["online_bytes"]

    def test_a_growth_beyond_the_limit_is_refused_by_name_and_takes_nothing(self):
        daemon = self.serve()
        for how in (("resize", "default", "512M"), ("resize", "default", "512M", "--dry-run")):
            said = json.loads(daemon.run_cli(*how, "--json").stdout)
            self.assertEqual(said["error"]["code"], "RESOURCE_EXHAUSTED", said)
            for part in (f"cgroup /{self.cgroup.path.name} ", "of memory left"):
                self.assertIn(part, said["error"]["message"])
            self.assertEqual(self.online_bytes(daemon), 16 * MIB)
        daemon.cli("resize", "default", "64M")
        with ClientProcess(daemon.runtime_dir) as client:
            self.assertEqual(client.alloc(4 * MIB, count=16)[0], 0, client.message)
        self.assertTrue(daemon.alive(), daemon.log())

    def test_a_pool_whose_ledger_alone_is_too_much_is_refused(self):
        daemon = self.serve()
        # A ledger has two bytes a unit of resizing, here a frame: 512 MiB.
        huge = ("create", "huge", "--capacity", "1T", "--online", "0", "--frame", "4K", "--largest", "4K",
                "--backing", "small")
        said = json.loads(daemon.run_cli(*huge, "--json").stdout)
        self.assertEqual(said["error"]["code"], "RESOURCE_EXHAUSTED", said)
        self.assertIn("the metadata of a capacity of 1T", said["error"]["message"])
        self.assertTrue(daemon.alive(), daemon.log())

    def test_two_pools_that_grow_at_once_do_not_take_what_only_one_can_have(self):
        sizes = "capacity=512M,online=0,frame=4K,largest=256M,backing=small"
        daemon = self.serve(f"name=one,{sizes}", f"name=two,{sizes}", limit=2048 * MIB)
        # What the daemon has by itself depends on the build: a sanitizer takes a few hundred MiB.
        self.cgroup.limit.write_text(str(self.cgroup.used_bytes() + 390 * MIB))
        grown = 0
        with concurrent.futures.ThreadPoolExecutor() as threads:
            for _ in range(20):
                for size in ("256M", "0"):
                    said = list(threads.map(lambda pool, to=size: daemon.run_cli("resize", pool, to, "--json"),
                                            ("one", "two")))
                    self.assertTrue(daemon.alive(), daemon.log())
                    grown += sum(json.loads(each.stdout).get("error") is None for each in said) if size != "0" else 0
        self.assertGreater(grown, 0, "not even one can grow")

    def test_autosize_stops_before_the_limit(self):
        daemon = self.serve(POOL + ",autosize=20%-90%:16M-1G:64M:0s")
        with ClientProcess(daemon.runtime_dir) as client:
            taken = 0

            def takes_all():
                nonlocal taken
                while client.alloc(4 * MIB)[0] == 0:
                    taken += 1
                return "memory left" in daemon.log()

            wait_until("a growth has been refused for want of memory", takes_all)
            self.assertGreater(taken, 16 // 4)
            self.assertTrue(daemon.alive(), daemon.log())
            self.assertLess(self.online_bytes(daemon), LIMIT)


if __name__ == "__main__":
    main()
