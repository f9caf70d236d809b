#!/usr/bin/env python3
"""A real cgroup with a limit of hugepages: more than it allows is an error that names it, and nothing is taken; never a
SIGBUS of a client."""

import json
import os
import pathlib
import sys
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.cgroup import Cgroup  # noqa: E402
from support.daemon import Daemon  # noqa: E402
from support.gigantic_pages import GIB, pages_for  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402

MIB = 1 << 20
POOL = "name=default,capacity=128M,online=16M,frame=4K,largest=4M"
GIGANTIC_POOL = "name=default,capacity=8G,online=1G,frame=4K,largest=4M,backing=hugetlb-1g"


class HugetlbCgroup(unittest.TestCase):
    def serve(self, limit_bytes, pool=POOL, size="2MB"):
        try:
            self.cgroup = Cgroup("hugetlb", limit_bytes, f"hugetlb.{size}")
        except OSError as problem:
            print(f"SKIP: {problem}", file=sys.stderr)
            self.skipTest(str(problem))
        self.addCleanup(self.cgroup.remove)
        daemon = Daemon("--pool", pool, "--keep-memory", "off", prefix=self.cgroup.prefix())
        self.addCleanup(daemon.stop)
        return daemon

    def node(self, daemon):
        (node,) = daemon.status()["pools"][0]["nodes"]
        return node

    def test_a_growth_beyond_the_limit_is_refused_by_name(self):
        daemon = self.serve(48 * MIB)
        if self.node(daemon)["backing"] != "hugetlb":
            self.skipTest(f"no hugepages: {self.node(daemon)['backing_note']}")
        for dry in ((), ("--dry-run",)):
            said = json.loads(daemon.run_cli("resize", "default", "64M", "--json", *dry).stdout)
            message = said["error"]["message"]
            self.assertEqual(said["error"]["code"], "RESOURCE_EXHAUSTED", said)
            for part in (f"cgroup /{self.cgroup.path.name} ", "48M of hugepages of 2M", f"> {self.cgroup.limit}"):
                self.assertIn(part, message)
            self.assertEqual(self.node(daemon)["online_bytes"], 16 * MIB)
        with ClientProcess(daemon.runtime_dir) as client:
            self.assertEqual(client.alloc(4 * MIB, count=4)[0], 0, client.message)
            self.assertNotEqual(client.alloc(4 * MIB)[0], 0)
            # As the message says.
            self.cgroup.limit.write_text(str(64 * MIB))
            daemon.cli("resize", "default", "64M")
            self.assertEqual(client.alloc(4 * MIB, count=12)[0], 0, client.message)

    def test_pages_of_1_gib_have_a_limit_of_their_own(self):
        pages_for(self, free=2)
        daemon = self.serve(2 * GIB, GIGANTIC_POOL, "1GB")
        self.assertEqual(self.node(daemon)["backing"], "hugetlb-1g", self.node(daemon)["backing_note"])
        for dry in ((), ("--dry-run",)):
            message = json.loads(daemon.run_cli("resize", "default", "3G", "--json", *dry).stdout)["error"]["message"]
            for part in (f"cgroup /{self.cgroup.path.name} ", "2G of hugepages of 1G", f"> {self.cgroup.limit}"):
                self.assertIn(part, message)
            self.assertEqual(self.node(daemon)["online_bytes"], GIB)
        daemon.cli("resize", "default", "2G")
        with ClientProcess(daemon.runtime_dir) as client:
            self.assertEqual(client.alloc(4 * MIB, count=2 * GIB // (4 * MIB))[0], 0, client.message)

    def test_a_pool_under_too_low_a_limit_says_so(self):
        daemon = self.serve(8 * MIB)
        self.assertNotEqual(self.node(daemon)["backing"], "hugetlb")
        self.assertIn(f"cgroup /{self.cgroup.path.name} lets numacred have 8M", self.node(daemon)["backing_note"])

    def test_the_limit_of_what_is_reserved_counts_as_well(self):
        daemon = self.serve(8 * MIB, size="2MB.rsvd")
        self.assertNotEqual(self.node(daemon)["backing"], "hugetlb")
        self.assertIn(f"> {self.cgroup.limit}", self.node(daemon)["backing_note"])


if __name__ == "__main__":
    main()
