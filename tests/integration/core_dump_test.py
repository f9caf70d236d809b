#!/usr/bin/env python3
"""The core dump of a client: other clients' blocks are not in it, and it is small whatever the capacity of the pool."""

import os
import pathlib
import re
import signal
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import Daemon  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402

MIB = 1 << 20
POOL = "name=default,capacity=16G,online=16M,frame=4K,largest=4M,backing=small"


def mappings_of_the_pool(pid):
    """The VmFlags of each mapping of the pool's files, by its line in /proc/PID/smaps."""
    found, mapping = {}, None
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            mapping = line if "numacre" in line and ".so" not in line else None
        elif mapping and line.startswith("VmFlags:"):
            found[mapping] = line.split()[1:]
    return found


class CoreDump(unittest.TestCase):
    def setUp(self):
        self.daemon = self.enterContext(Daemon("--topology", "synthetic:1x1G", "--pool", POOL))

    def test_no_mapping_of_the_pool_is_dumped(self):
        client = self.enterContext(ClientProcess(self.daemon.runtime_dir))
        self.assertEqual(client.alloc(MIB)[0], 0, client.message)
        found = mappings_of_the_pool(client.pid)
        self.assertGreaterEqual(len(found), 3, found)  # the pool's records, and metadata and frames of the numa node
        for mapping, flags in found.items():
            self.assertIn("dd", flags, mapping)

    def test_the_core_is_small(self):
        pattern = pathlib.Path("/proc/sys/kernel/core_pattern").read_text().strip()
        if pattern.startswith(("|", "/")):
            self.skipTest(f"NOT TESTED: cores go to {pattern}, not into the directory of the process")
        folder = self.enterContext(tempfile.TemporaryDirectory())
        prefix = ("env", "-C", folder, "prlimit", "--core=unlimited")
        with ClientProcess(self.daemon.runtime_dir, prefix=prefix) as client:
            self.assertEqual(client.alloc(MIB)[0], 0, client.message)
            os.kill(client.pid, signal.SIGABRT)
            client.process.wait()
            cores = list(pathlib.Path(folder).iterdir())
            self.assertEqual(len(cores), 1, cores)
            self.assertLess(cores[0].stat().st_size, 1024 * MIB)


if __name__ == "__main__":
    main()
