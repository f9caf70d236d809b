#!/usr/bin/env python3
"""`numacre` against a real numacred with real clients: what the verbs say agrees with what the clients did."""

import errno
import os
import pathlib
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import Daemon, program, wait_until  # noqa: E402
from support.numacre_client import STRICT, ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402

MIB = 1 << 20
FRAME = 4096
# Small pages: what hugepages the machine has does not matter here.
POOL = "name=default,capacity=64M,online=32M,frame=4K,largest=4M,backing=small"


class CliWithDaemon(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon("--topology", "synthetic:2x512M", "--pool", POOL)
        self.addCleanup(self.daemon.stop)

    def client(self):
        client = ClientProcess(self.daemon.runtime_dir)
        self.addCleanup(client.close)
        return client

    def alloc(self, client, size, count, numa_node=0):
        error, blocks = client.alloc(size, count=count, numa_node=numa_node, flags=STRICT)
        self.assertEqual(error, 0, client.message)
        return blocks

    def run_cli(self, *arguments):
        return subprocess.run(
            [program("numacre"), "--runtime-dir", self.daemon.runtime_dir, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def node_of(self, numa_node=0):
        return self.daemon.status()["pools"][0]["nodes"][numa_node]

    def test_used_and_free_agree_in_every_verb(self):
        client = self.client()
        self.alloc(client, FRAME, 5)
        self.alloc(client, MIB, 3)
        used = self.node_of()["used_bytes"]
        self.assertGreaterEqual(used, 3 * MIB + 5 * FRAME)
        self.assertEqual(self.node_of()["free_bytes"], 32 * MIB - used)

        (buddyinfo,) = self.daemon.cli("buddyinfo", "default")["pools"]
        free_blocks = buddyinfo["nodes"][0]["free_blocks"]
        self.assertEqual(sum(count * (FRAME << order) for order, count in enumerate(free_blocks)), 32 * MIB - used)

        (extfrag,) = self.daemon.cli("extfrag")["pools"]
        for order in extfrag["nodes"][0]["orders"]:
            usable = sum(count * (FRAME << k) for k, count in enumerate(free_blocks) if k >= order["order"])
            self.assertAlmostEqual(order["unusable_free_ratio"], 1 - usable / (32 * MIB - used), places=6)

        first, second = self.daemon.cli("map")["maps"]
        self.assertEqual(sum(cell["used_frames"] for cell in first["cells"]) * FRAME, used)
        self.assertEqual(sum(cell["used_frames"] for cell in second["cells"]), 0)
        for one in (first, second):
            self.assertEqual(sum(cell["frames"] for cell in one["cells"]) * FRAME, 64 * MIB)
            self.assertEqual(sum(cell["offline_frames"] for cell in one["cells"]) * FRAME, 32 * MIB)

        (stats,) = self.daemon.cli("stats")["pools"]
        self.assertEqual(stats["nodes"][0]["used_bytes"], used)
        live = sum(order["live_blocks"] * order["block_bytes"] for order in stats["nodes"][0]["orders"])
        self.assertEqual(live, used)

    def test_the_memory_of_a_deleted_pool_is_there_for_the_next(self):
        # Most of what a numa node has: two of them do not fit beside each other.
        large = ("--capacity", "448M", "--online", "448M", "--frame", "4K", "--largest", "4M", "--backing", "small")
        for _ in range(8):
            self.daemon.cli("create", "large", *large)
            self.daemon.cli("delete", "large")

    def test_clients_names_who_is_attached(self):
        client = self.client()
        self.alloc(client, MIB, 2)
        (listed,) = self.daemon.clients()
        self.assertEqual((listed["client_id"], listed["pid"]), (client.client_id, client.pid))
        self.assertGreaterEqual(listed["used_bytes"], 2 * MIB)
        self.assertIn(str(client.pid), self.run_cli("clients").stdout)

    def test_what_was_forgotten_is_listed_first(self):
        leak, other = self.client(), self.client()
        (forgotten,) = self.alloc(leak, 5000, 1)  # 8 KiB
        (passing,) = leak.call("alloc", size=FRAME, count=1, node=0, flags=STRICT)["blocks"]
        self.assertEqual(leak.free([passing]), 0)  # into the thread's cache
        ref = leak.ref_of(forgotten)

        def held(*arguments):
            return self.daemon.cli("clients", "--blocks", *arguments)["blocks"]

        wait_until("the block has been held for some seconds", lambda: held()[0]["held_seconds"] >= 3)
        # Handed out again from the cache: held from now on.
        again = leak.call("alloc", size=FRAME, count=1, node=0, flags=STRICT)["blocks"]
        self.assertEqual(again, [passing])
        self.alloc(other, MIB, 1)
        old, *young = held()
        self.assertEqual(
            (old["client_id"], old["node"], old["bytes"], old["published"]), (leak.client_id, 0, 8192, True)
        )
        self.assertTrue(5000 <= old["requested_bytes"] < 5000 + 8192 // 256, old)
        self.assertEqual(sorted(block["bytes"] for block in young), [FRAME, MIB])
        for block in young:
            self.assertLess(block["held_seconds"], old["held_seconds"])
        self.assertEqual(len(held("--limit", "1")), 1)
        (only,) = held("default", "--client", str(other.client_id))
        self.assertEqual((only["client_id"], only["bytes"]), (other.client_id, MIB))
        nobody = self.run_cli("clients", "--blocks", "--client", "4711")
        self.assertEqual(nobody.returncode, 1)
        self.assertIn("4711", nobody.stderr)
        oldest = {client["client_id"]: client["oldest_held_seconds"] for client in self.daemon.clients()}
        self.assertGreaterEqual(oldest[leak.client_id], old["held_seconds"])
        self.assertLess(oldest[other.client_id], old["held_seconds"])
        self.assertIn("8 KiB", self.run_cli("clients", "--blocks").stdout)

        # Whoever takes it holds it from then on.
        error, _ = other.take(ref)
        self.assertEqual(error, 0)
        taken = [block for block in held("--client", str(other.client_id)) if block["bytes"] == 8192]
        self.assertEqual(len(taken), 1)
        self.assertLess(taken[0]["held_seconds"], old["held_seconds"])
        self.assertFalse(taken[0]["published"])

    def test_a_quota_holds_is_shown_and_is_lifted(self):
        client, other = self.client(), self.client()
        self.alloc(client, MIB, 2)
        set_to = self.daemon.cli("quota", str(client.client_id), "4M", "--soft", "3M")
        self.assertEqual((set_to["quota_bytes"], set_to["soft_quota_bytes"]), (4 * MIB, 3 * MIB))
        self.alloc(client, MIB, 2)
        error, _ = client.alloc(MIB, flags=STRICT, numa_node=0)
        self.assertEqual(error, -errno.EDQUOT, client.message)
        self.alloc(other, MIB, 5)  # nobody else's affair
        quotas = {each["client_id"]: each["quota_bytes"] for each in self.daemon.clients()}
        self.assertEqual(quotas, {client.client_id: 4 * MIB, other.client_id: 0})
        row = [line.split() for line in self.run_cli("clients").stdout.splitlines() if str(client.pid) in line]
        self.assertIn("4 MiB 0 B 4 4 MiB 3 MiB", " ".join(row[0]), "used, cached, blocks, quota, soft quota")
        self.daemon.cli("quota", str(client.client_id), "none")
        self.alloc(client, MIB, 3)
        nobody = self.run_cli("quota", "4711", "1M")
        self.assertEqual(nobody.returncode, 1)
        self.assertIn("4711", nobody.stderr)

    def test_resize_up_down_and_blocked(self):
        grown = self.daemon.cli("resize", "default", "--node", "1", "+16M")
        self.assertEqual((grown["done"], grown["online_bytes"]), (True, 48 * MIB))
        self.assertEqual(self.node_of(1)["online_bytes"], 48 * MIB)
        self.daemon.cli("resize", "default", "--node", "1", "-16M")
        self.assertEqual(self.node_of(1)["online_bytes"], 32 * MIB)

        dry = self.daemon.cli("resize", "default", "--node", "1", "--dry-run", "8M")
        self.assertEqual((dry["dry_run"], dry["target_bytes"]), (True, 8 * MIB))
        self.assertEqual(self.node_of(1)["online_bytes"], 32 * MIB, "a dry run changes nothing")

        client = self.client()
        self.alloc(client, 4 * MIB, 8)  # all of node 0
        blocked = self.run_cli("resize", "default", "--node", "0", "-4M")
        self.assertEqual(blocked.returncode, 1)
        self.assertIn(str(client.pid), blocked.stdout)
        self.assertIn(f"pid {client.pid}", blocked.stderr)
        self.assertEqual(self.node_of()["online_bytes"], 32 * MIB)

    def test_create_and_delete(self):
        made = self.daemon.cli("create", "second", "--capacity", "16M", "--online", "8M", "--backing", "small")
        self.assertEqual((made["name"], made["online_bytes"]), ("second", 2 * 8 * MIB))
        self.assertIn("second", self.run_cli("pools").stdout)
        again = self.run_cli("create", "second", "--capacity", "16M", "--online", "8M")
        self.assertEqual(again.returncode, 1)
        self.assertIn("ALREADY_EXISTS", again.stderr)
        self.assertIn("second", again.stderr)
        self.daemon.cli("delete", "second")
        self.assertNotIn("second", self.run_cli("pools").stdout)

    def test_delete_with_clients_needs_force(self):
        self.client()
        refused = self.run_cli("delete", "default")
        self.assertEqual(refused.returncode, 1, refused.stderr)
        self.assertIn("default", self.run_cli("pools").stdout)

    def test_drain_empties_and_keeps_out(self):
        drained = self.daemon.cli("drain", "default", "--node", "1", "--chunk", "0")
        self.assertTrue(drained["offline"])
        self.assertEqual(self.node_of(1)["online_bytes"], 28 * MIB)
        client = self.client()
        self.alloc(client, 4 * MIB, 8)
        held = self.daemon.cli("drain", "default", "--node", "0", "--chunk", "3")
        self.assertEqual((held["draining"], held["offline"]), (True, False))
        self.assertEqual(held["blocked_by"][0]["pid"], client.pid)
        undone = self.daemon.cli("drain", "default", "--node", "0", "--chunk", "3", "--undo")
        self.assertFalse(undone["draining"])

    def test_drain_is_not_held_up_by_caches(self):
        client = self.client()
        self.assertEqual(client.free(self.alloc(client, FRAME, 3)), 0)
        self.assertEqual(self.node_of()["cached_bytes"], 3 * FRAME, "the thread keeps what it has freed")
        states = [self.daemon.cli("drain", "default", "--node", "0", "--chunk", str(chunk)) for chunk in range(8)]
        # What the idle thread caches is taken back, perhaps not at the first look; or at its next call, where
        # membarrier(2) is not permitted.
        self.assertLessEqual([state["offline"] for state in states].count(False), 1)
        self.alloc(client, FRAME, 1, numa_node=1)  # any call at all
        wait_until("the last chunk is offline", lambda: self.node_of()["online_bytes"] == 0)

    def test_evict_gives_the_blocks_back(self):
        client = self.client()
        self.alloc(client, MIB, 4)
        self.daemon.cli("evict", str(client.client_id), "--grace", "1s")
        wait_until("the client has gone and holds nothing", lambda: not self.daemon.clients())
        self.assertEqual(self.daemon.used_bytes(), 0)

    def test_top_sees_allocations(self):
        client = self.client()
        client.churn([FRAME], [0])
        look = self.daemon.cli("top", "--interval", "200ms")
        self.assertGreater(look["nodes"][0]["allocations_per_second"], 0)
        self.assertEqual(look["clients"][0]["client_id"], client.client_id)

    def test_bench_leaves_nothing_behind(self):
        measured = self.daemon.cli("bench", "--operations", "200", "--rounds", "2")
        self.assertEqual(measured["sizes"][0]["size_bytes"], FRAME)
        self.assertEqual(measured["sizes"][-1]["size_bytes"], 4 * MIB)
        for size in measured["sizes"]:
            self.assertIsNone(size["error"])
            self.assertGreater(size["ratio_to_locked_rmw"], 0)
        wait_until("the bench's client has gone", lambda: not self.daemon.clients())
        self.assertEqual(self.daemon.used_bytes(), 0)

    def test_advise_wants_more_after_failures(self):
        client = self.client()
        self.alloc(client, 4 * MIB, 8)
        error, _ = client.alloc(4 * MIB, count=1, numa_node=0, flags=STRICT)
        self.assertLess(error, 0)
        (advice,) = self.daemon.cli("advise", "default")["pools"]
        self.assertEqual(advice["peak_used_bytes"], 32 * MIB)
        self.assertGreater(advice["suggested_online_bytes"], 32 * MIB)

    def test_doctor_reads_the_daemons_own_limits(self):
        done = self.run_cli("doctor")
        self.assertIn(f"numacred (pid {self.daemon.pid})", done.stdout)
        self.assertIn("as asked for: default (small)\n", done.stdout)

    def test_nodes_shows_each_share_once(self):
        numa_nodes = self.daemon.cli("nodes")["nodes"]
        self.assertEqual([[pool["node"] for pool in each["pools"]] for each in numa_nodes], [[0], [1]])

    def test_a_stopped_daemon_is_no_daemon(self):
        self.daemon.stop()
        self.assertEqual(self.run_cli("status").returncode, 4)


if __name__ == "__main__":
    main()
