#!/usr/bin/env python3
"""Limits that only warn: the soft quota of a client, the low watermark of a pool. Each crossing is one event, whether
the daemon looks by itself or is asked, and also across a restart of the daemon."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import Daemon, program, wait_until  # noqa: E402
from support.limit_events import LimitEvents  # noqa: E402
from support.metrics import gauge  # noqa: E402
from support.numacre_client import STRICT, UNCACHED, ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402

MIB = 1 << 20
POOL = "name=default,capacity=64M,online=32M,frame=4K,largest=4M,backing=small"


class SoftLimits(unittest.TestCase):
    def serve(self, pool=POOL, **more):
        daemon = Daemon("--topology", "synthetic:2x512M", "--pool", pool, **more)
        self.addCleanup(daemon.stop)
        return daemon

    def watch(self, daemon):
        watcher = LimitEvents(daemon.runtime_dir)
        self.addCleanup(watcher.close)
        return watcher

    def client(self, daemon, pool="default"):
        client = ClientProcess(daemon.runtime_dir, pool)
        self.addCleanup(client.close)
        return client

    def alloc(self, client, count, numa_node=0):
        error, blocks = client.alloc(MIB, count=count, numa_node=numa_node, flags=STRICT | UNCACHED)
        self.assertEqual(error, 0, client.message)
        return blocks

    def gauge(self, daemon, name, **labels):
        return gauge(daemon, name, **labels)

    def test_a_soft_quota_is_told_by_itself_and_once(self):
        daemon = self.serve()
        watcher, client, other = self.watch(daemon), self.client(daemon), self.client(daemon)
        daemon.cli("quota", client.client_id, "none", "--soft", "8M")
        self.assertEqual(
            self.gauge(daemon, "numacre_client_soft_quota_bytes", client=client.client_id, pool="default"), 8 * MIB
        )
        blocks = self.alloc(client, 9)
        self.alloc(other, 9)
        wait_until("the daemon has looked by itself", lambda: watcher.events)
        (event,) = watcher.events
        self.assertEqual((event["kind"], event["pool"]), ("quota_soft_exceeded", "default"))
        self.assertEqual((event["client_id"], int(event["bytes"])), (client.client_id, 9 * MIB))
        self.assertIn("its soft quota is 8M", event["message"])

        # Not again for a while around it; each listing is a look.
        self.assertEqual(client.free(blocks[:1]), 0)
        daemon.clients()
        blocks = blocks[1:] + self.alloc(client, 2)
        daemon.clients()
        self.assertEqual(client.free(blocks[:3]), 0)
        daemon.clients()
        blocks = blocks[3:]
        self.assertEqual(watcher.kinds(), ["quota_soft_exceeded"])
        # 7 MiB: it was back. Again from here.
        self.alloc(client, 2)
        daemon.clients()
        wait_until("the second crossing", lambda: len(watcher.events) == 2)

        # Another soft quota is another limit.
        daemon.cli("quota", client.client_id, "16M", "--soft", "4M")
        daemon.clients()
        wait_until("the new limit", lambda: len(watcher.events) == 3)
        daemon.cli("quota", client.client_id, "16M")
        self.assertEqual(
            self.gauge(daemon, "numacre_client_soft_quota_bytes", client=client.client_id, pool="default"), 0
        )
        self.assertEqual(watcher.kinds(), ["quota_soft_exceeded"] * 3)

    def test_a_low_watermark_begins_and_ends(self):
        daemon = self.serve(POOL + ",low-watermark=8M")
        watcher, client = self.watch(daemon), self.client(daemon)
        blocks = self.alloc(client, 25, numa_node=1)  # 7 MiB are left
        wait_until("the daemon has looked by itself", lambda: watcher.events)
        (event,) = watcher.events
        self.assertEqual((event["kind"], event["node"], int(event["bytes"])), ("low_watermark", 1, 7 * MIB))
        pool = daemon.status()["pools"][0]
        self.assertEqual(pool["low_watermark_bytes"], 8 * MIB)
        self.assertEqual([node["below_low_watermark"] for node in pool["nodes"]], [False, True])
        self.assertEqual(self.gauge(daemon, "numacre_low_watermark_bytes", node=1, pool="default"), 8 * MIB)

        self.assertEqual(client.free(blocks[:1]), 0)  # 8 MiB
        daemon.status()
        self.assertEqual(watcher.kinds(), ["low_watermark"])
        self.assertEqual(client.free(blocks[1:2]), 0)  # 9 MiB
        wait_until("it has ended", lambda: watcher.kinds() == ["low_watermark", "low_watermark_ended"])
        self.assertFalse(daemon.status()["pools"][0]["nodes"][1]["below_low_watermark"])
        # Growing helps as well.
        self.alloc(client, 2, numa_node=1)
        wait_until("again", lambda: watcher.kinds()[2:] == ["low_watermark"])
        daemon.cli("resize", "default", "--node", "1", "+8M")
        wait_until("grown", lambda: watcher.kinds()[2:] == ["low_watermark", "low_watermark_ended"])

    def test_a_created_pool_is_watched(self):
        daemon = self.serve()
        watcher = self.watch(daemon)
        made = daemon.cli(
            "create", "second", "--capacity", "16M", "--online", "8M", "--backing", "small", "--low-watermark", "4M"
        )
        self.assertEqual(made["low_watermark_bytes"], 4 * MIB)
        client = self.client(daemon, "second")
        self.alloc(client, 5)
        wait_until("the daemon has looked by itself", lambda: watcher.kinds() == ["low_watermark"])
        self.assertEqual(watcher.events[0]["pool"], "second")

    def test_both_survive_a_daemon_that_is_killed(self):
        with tempfile.TemporaryDirectory(prefix="numacre-", dir="/tmp") as runtime_dir:
            # Whatever goes wrong, the holder is not left behind.
            give_up = [program("numacred"), "--runtime-dir", runtime_dir, "--discard-kept"]
            self.addCleanup(subprocess.run, give_up, capture_output=True)
            daemon = self.serve(POOL + ",low-watermark=8M", runtime_dir=runtime_dir)
            watcher, client = self.watch(daemon), self.client(daemon)
            daemon.cli("quota", client.client_id, "30M", "--soft", "8M")
            blocks = self.alloc(client, 25)
            wait_until("both are told", lambda: len(watcher.events) == 2)
            daemon.kill()
            daemon.stop()

            daemon = self.serve(runtime_dir=runtime_dir)  # configured without a watermark: the pool keeps its own
            watcher = self.watch(daemon)
            (listed,) = daemon.clients()
            self.assertEqual((listed["quota_bytes"], listed["soft_quota_bytes"]), (30 * MIB, 8 * MIB))
            pool = daemon.status()["pools"][0]
            self.assertEqual(pool["low_watermark_bytes"], 8 * MIB)
            self.assertTrue(pool["nodes"][0]["below_low_watermark"])
            self.assertEqual(client.free(blocks[:20]), 0)  # 5 MiB
            wait_until("one has ended, the other is silent", lambda: watcher.kinds() == ["low_watermark_ended"])
            self.alloc(client, 5)
            wait_until("over it again", lambda: watcher.kinds()[1:] == ["quota_soft_exceeded"])
            client.close()
            wait_until("nobody is left", lambda: not daemon.clients())
            daemon.stop()

    def test_what_cannot_be_is_refused(self):
        for watermark in ("65M", "some"):
            with self.assertRaises(RuntimeError, msg=watermark):
                self.serve(POOL + f",low-watermark={watermark}")


if __name__ == "__main__":
    main()
