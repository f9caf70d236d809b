#!/usr/bin/env python3
"""Fewer hugepages than are asked for: a fall-back or an error that says so, and no hugepage is lost."""

import json
import os
import pathlib
import re
import sys
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import Daemon  # noqa: E402
from support.gigantic_pages import count as gigantic_pages  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402


def hugepages():
    """(total, free) of the machine's default size, or None when the kernel has none."""
    text = pathlib.Path("/proc/meminfo").read_text()
    found = [re.search(rf"^HugePages_{what}:\s+(\d+)", text, re.MULTILINE) for what in ("Total", "Free")]
    return tuple(int(match.group(1)) for match in found) if all(found) else None


class HugepageShortage(unittest.TestCase):
    """There are some hugepages, but fewer than are asked for, and the daemon may not reserve more."""

    PAGE_BYTES = 2 << 20
    ARGUMENTS = ("--metrics-address", "127.0.0.1:0", "--reserve-hugepages", "false")

    def setUp(self):
        self.pages = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
        before = hugepages()
        if before is None or not self.pages.exists():
            self.skipTest("this kernel has no hugepages of 2 MiB")
        # Some free ones for the daemon to take and not to lose. Who may not reserve tries with those that there are.
        if os.access(self.pages, os.W_OK):
            self.pages.write_text(str(before[0] + 16))
            added = hugepages()[0] - before[0]
            self.addCleanup(lambda: self.pages.write_text(str(hugepages()[0] - added)))
        self.before = hugepages()
        self.free_bytes = self.before[1] * self.PAGE_BYTES

    def test_shortage_at_the_start_falls_back_and_says_so(self):
        online = max(4 * self.free_bytes, 64 << 20)
        spec = f"name=default,capacity={online},online={online},frame=4K,largest=2M,backing=hugetlb"
        with Daemon(*self.ARGUMENTS, "--pool", spec) as daemon:
            (pool,) = daemon.status()["pools"]
            self.assertEqual(pool["online_bytes"], online * len(pool["nodes"]))
            for node in pool["nodes"]:
                self.assertNotEqual(node["backing"], "hugetlb", pool)
                self.assertRegex(node["backing_note"], "(?i)hugepage", "the note has to say why")
            daemon.says("(?i)hugepage")
            self.assertEqual(hugepages()[1], self.before[1], "hugepages are taken by a pool that does not use them")
            with ClientProcess(daemon.runtime_dir) as client:
                self.assertEqual(client.alloc(2 << 20)[0], 0, client.message)
            self.assertEqual(daemon.stop(), 0)
        self.assertEqual(hugepages(), self.before)

    def test_no_pages_of_1_gib_falls_back_to_the_next_best_and_says_so(self):
        if gigantic_pages("free_hugepages") is None:
            self.skipTest("this machine has no hugepages of 1 GiB")
        if gigantic_pages("free_hugepages") != 0 or self.before[1] == 0:
            self.skipTest("somebody has left hugepages of 1 GiB free, or none of 2 MiB")
        spec = "name=default,capacity=2G,online=0,backing=hugetlb-1g"
        with Daemon(*self.ARGUMENTS, "--pool", spec) as daemon:
            (pool,) = daemon.status()["pools"]
            self.assertEqual(pool["wanted_backing"], "hugetlb-1g")
            (node,) = pool["nodes"]
            self.assertEqual((node["backing"], node["page_bytes"]), ("hugetlb", self.PAGE_BYTES))
            self.assertIn("0 free hugepages of 1G, 1 are needed; reserve them: echo ", node["backing_note"])
            self.assertIn("hugepages-1048576kB/nr_hugepages", node["backing_note"])
            daemon.says("wanted=hugetlb-1g")
            doctor = json.loads(daemon.run_cli("doctor", "--json").stdout)["checks"]
            (found,) = [check for check in doctor if check["check"] == "backing"]
            self.assertIn("hugetlb instead of hugetlb-1g", found["what"])
            self.assertIn("hugepages-1048576kB/nr_hugepages", found["command"])
            self.assertEqual(daemon.stop(), 0)
        self.assertEqual(hugepages(), self.before)

    def test_shortage_when_growing_names_it_and_takes_nothing(self):
        if self.before[1] < 8:
            self.skipTest(f"only {self.before[1]} hugepages are free, and this user may not reserve more")
        online, beyond = 4 * self.PAGE_BYTES, 2 * self.free_bytes
        spec = f"name=default,capacity={2 * beyond},online={online},frame=4K,largest=2M,backing=hugetlb"
        with Daemon(*self.ARGUMENTS, "--pool", spec) as daemon:
            (pool,) = daemon.status()["pools"]
            node = pool["nodes"][0]
            if node["backing"] != "hugetlb":
                self.skipTest(f"the free hugepages are not on numa node 0: {node['backing_note']}")
            with self.assertRaisesRegex(RuntimeError, "(?i)hugepage"):
                daemon.cli("resize", "default", beyond, "--node", 0)
            (pool,) = daemon.status()["pools"]
            taken = (self.before[1] - hugepages()[1]) * self.PAGE_BYTES
            self.assertEqual(taken, pool["online_bytes"], "hugepages are gone that are not online")
            with ClientProcess(daemon.runtime_dir) as client:
                self.assertEqual(client.alloc(2 << 20)[0], 0, client.message)
            self.assertEqual(daemon.stop(), 0)
        self.assertEqual(hugepages(), self.before)


if __name__ == "__main__":
    main()
