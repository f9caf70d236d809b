#!/usr/bin/env python3
"""What several clients may hold together (of a user, of a pool) and what is promised to one: across users, deaths,
handed over blocks and a restart of the daemon."""

import concurrent.futures
import errno
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import Daemon, program, wait_until  # noqa: E402
from support.limit_events import LimitEvents  # noqa: E402
from support.metrics import gauge  # noqa: E402
from support.numacre_client import WAIT, ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402

MIB = 1 << 20
ALICE, BOB = 4711, 4712
WAIT_A_MINUTE = WAIT | 60_000 << 8
POOL = "name=default,capacity=64M,online=32M,frame=4K,largest=4M,backing=small,mode=666"
needs_root = unittest.skipUnless(os.geteuid() == 0, "NOT TESTED: needs root, to become another user")


class Limits(unittest.TestCase):
    def setUp(self):
        # Another user's clients have to reach the socket.
        self.runtime_dir = tempfile.mkdtemp(prefix="numacre-", dir="/tmp")
        os.chmod(self.runtime_dir, 0o755)
        self.addCleanup(shutil.rmtree, self.runtime_dir, ignore_errors=True)

    def serve(self, pool=POOL, *more):
        daemon = Daemon("--topology", "synthetic:1x512M", "--pool", pool, *more, runtime_dir=self.runtime_dir)
        self.addCleanup(daemon.stop)
        return daemon

    def client(self, uid=None, pool="default"):
        client = ClientProcess(self.runtime_dir, pool, uid=uid)
        self.addCleanup(client.close)
        return client

    def fill(self, client, size=64 << 10):
        """Allocates until that fails: the blocks, and why it failed."""
        error, blocks = client.alloc(size, count=100000)
        return blocks, errno.errorcode[-error]

    def user(self, daemon, uid):
        (pool,) = daemon.status()["pools"]
        (found,) = [user for user in pool["users"] if user["uid"] == uid]
        return found

    @needs_root
    def test_a_users_quota_is_shared_by_its_clients_and_left_by_the_dead(self):
        daemon = self.serve()
        # Held before there is a limit, by one that is silent from then on: the daemon counts for it.
        first, second, other = self.client(ALICE), self.client(ALICE), self.client(BOB)
        error, early = first.alloc(MIB, count=2)
        self.assertEqual(error, 0, first.message)
        daemon.cli("quota", "--user", ALICE, "8M", "--soft", "6M")
        self.assertEqual((self.user(daemon, ALICE)["used_bytes"], self.user(daemon, ALICE)["quota_bytes"]),
                         (2 * MIB, 8 * MIB))
        blocks, why = self.fill(second)
        self.assertEqual((len(blocks) << 16, why), (6 * MIB, "EDQUOT"))
        self.assertIn("user", second.message)
        self.assertEqual(first.alloc(4096)[0], -errno.EDQUOT)
        self.assertEqual(other.alloc(MIB, count=16)[0], 0, "another user's")
        self.assertEqual(gauge(daemon, "numacre_user_used_bytes", uid=ALICE, pool="default"), 8 * MIB)
        self.assertEqual(gauge(daemon, "numacre_user_quota_bytes", uid=ALICE, pool="default"), 8 * MIB)
        self.assertEqual(gauge(daemon, "numacre_user_soft_quota_bytes", uid=ALICE, pool="default"), 6 * MIB)
        self.assertGreater(gauge(daemon, "numacre_allocation_failures_total", reason="quota", pool="default"), 0)

        self.assertEqual(first.free(early[:1]), 0)
        blocks, why = self.fill(second)
        self.assertEqual((len(blocks) << 16, why), (MIB, "EDQUOT"))
        second.kill()
        wait_until("it is reaped", lambda: len(daemon.clients()) == 2)
        blocks, why = self.fill(first)
        self.assertEqual((len(blocks) << 16, why), (7 * MIB, "EDQUOT"))
        # One that comes later is counted with its user.
        late = self.client(ALICE)
        self.assertEqual(late.alloc(4096)[0], -errno.EDQUOT)
        daemon.cli("quota", "--user", ALICE, "none")
        self.assertEqual(late.alloc(MIB)[0], 0)
        self.assertEqual(self.user(daemon, ALICE)["quota_bytes"], 0)

    @needs_root
    def test_killed_again_and_again_a_user_keeps_all_of_its_quota(self):
        daemon = self.serve(POOL + f",user-quota={ALICE}=4M/2M")
        for attempt in range(4):
            client = self.client(ALICE)
            client.churn([4096, 16384, 65536], [-1])
            client.alloc(MIB, count=1 + attempt % 3)
            client.kill()
            wait_until("it is reaped", lambda: not daemon.clients())
        blocks, why = self.fill(self.client(ALICE), 4096)
        self.assertEqual((len(blocks) << 12, why), (4 * MIB, "EDQUOT"))

    @needs_root
    def test_a_block_that_is_taken_counts_for_its_taker(self):
        daemon = self.serve()
        giver, taker = self.client(ALICE), self.client(BOB)
        daemon.cli("quota", "--user", ALICE, "2M")
        daemon.cli("quota", "--user", BOB, "2M")
        blocks, why = self.fill(giver)
        self.assertEqual((len(blocks), why), (32, "EDQUOT"))
        self.assertEqual(taker.take(giver.ref_of(blocks[0]))[0], 0)
        again, _ = self.fill(giver)
        self.assertEqual(len(again), 1)
        blocks, why = self.fill(taker)
        self.assertEqual((len(blocks), why), (31, "EDQUOT"))

    def test_clients_side_by_side_never_go_beyond_the_pools_quota(self):
        daemon = self.serve(POOL + ",quota=8M,soft-quota=4M")
        self.assertEqual(daemon.status()["pools"][0]["quota_bytes"], 8 * MIB)
        watcher = LimitEvents(daemon.runtime_dir)
        self.addCleanup(watcher.close)
        clients = [self.client() for _ in range(4)]
        results = {}

        def fill(client):
            results[client] = self.fill(client, 16 << 10)

        threads = [threading.Thread(target=fill, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual({why for _, why in results.values()}, {"EDQUOT"})
        held = sum(len(blocks) << 14 for blocks, _ in results.values())
        self.assertLessEqual(held, 8 * MIB)
        # Two that were refused because of each other left something; nobody is beside the first one now.
        blocks, _ = self.fill(clients[0], 4096)
        self.assertEqual(held + (len(blocks) << 12), 8 * MIB)
        self.assertIn("all the pool's clients", clients[0].message)
        wait_until("the soft quota is told", lambda: watcher.events)
        self.assertEqual(watcher.kinds(), ["pool_quota_soft_exceeded"])
        daemon.cli("quota", "--pool", "default", "12M")
        self.assertEqual(len(self.fill(clients[1], MIB)[0]), 4)
        self.assertEqual(gauge(daemon, "numacre_pool_quota_bytes", pool="default"), 12 * MIB)

    def test_caches_stay_in_use_below_a_quota(self):
        daemon = self.serve(POOL + ",quota=8M")
        client = self.client()
        error, blocks = client.alloc_cached(4096, count=100)
        self.assertEqual(error, 0)
        (listed,) = daemon.clients()
        self.assertGreater(listed["cached_bytes"], 0)
        self.assertEqual(client.free(blocks), 0)
        blocks, why = self.fill(client, 4096)
        self.assertEqual((len(blocks) << 12, why), (8 * MIB, "EDQUOT"), "what is cached was given back first")

    def test_who_is_given_a_block_that_it_waits_for_is_charged_and_the_giver_no_longer(self):
        daemon = self.serve()
        giver, waiter = self.client(), self.client()
        daemon.cli("quota", giver.client_id, "32M")
        daemon.cli("quota", waiter.client_id, "1M")
        error, blocks = giver.alloc(MIB, count=32)
        self.assertEqual(error, 0, giver.message)
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(waiter.alloc, MIB, flags=WAIT_A_MINUTE)
            time.sleep(0.3)  # it waits by now; otherwise it finds the block, and the sums are the same
            self.assertEqual(giver.free(blocks[:1]), 0)
            error, got = waiting.result(90)
            self.assertEqual(error, 0, waiter.message)
            self.assertEqual(waiter.alloc(4096)[0], -errno.EDQUOT)
            self.assertEqual(waiter.free_uncached(got), 0)
            self.assertEqual(giver.alloc(MIB)[0], 0, giver.message)
            # A quota that becomes smaller than what is waited for ends the wait.
            waiting = threads.submit(waiter.alloc, MIB, flags=WAIT_A_MINUTE)
            time.sleep(0.3)
            daemon.cli("quota", waiter.client_id, "64K")
            self.assertEqual(waiting.result(90), (-errno.EDQUOT, []))
            self.assertEqual(giver.free(blocks[1:2]), 0)
            self.assertEqual(waiter.alloc(64 << 10)[0], 0, "what it waited for it does not hold")

    def test_who_waits_for_what_is_reserved_gets_it_when_it_is_reserved_no_longer(self):
        daemon = self.serve()
        promised, waiter = self.client(), self.client()
        daemon.cli("reserve", promised.client_id, "10M")
        blocks, _ = self.fill(waiter, MIB)
        self.assertEqual(len(blocks), 22)
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(waiter.alloc, MIB, flags=WAIT_A_MINUTE)
            time.sleep(0.3)
            self.assertFalse(waiting.done())
            self.assertEqual(promised.alloc(MIB, count=10)[0], 0, "beside somebody who waits for it")
            daemon.cli("reserve", promised.client_id, "none")
            promised.kill()
            self.assertEqual(waiting.result(90)[0], 0, waiter.message)

    def test_counts_from_before_the_last_limit_was_lifted_are_forgotten(self):
        daemon = self.serve()
        first, second = self.client(), self.client()
        daemon.cli("quota", first.client_id, "30M")
        error, blocks = first.alloc(MIB, count=28)
        self.assertEqual(error, 0, first.message)
        daemon.cli("quota", first.client_id, "none")
        self.assertEqual(first.free(blocks), 0, first.message)
        daemon.cli("reserve", second.client_id, "20M")

    def test_what_is_reserved_others_cannot_take(self):
        daemon = self.serve()
        promised, other = self.client(), self.client()
        daemon.cli("reserve", promised.client_id, "10M")
        self.assertEqual(gauge(daemon, "numacre_pool_reserved_bytes", pool="default"), 10 * MIB)
        blocks, why = self.fill(other)
        self.assertEqual((len(blocks) << 16, why), (22 * MIB, "ENOMEM"))
        self.assertIn("reserved", other.message)
        self.assertEqual(promised.alloc(MIB, count=4)[0], 0, promised.message)
        self.assertEqual(daemon.status()["pools"][0]["reserved_bytes"], 6 * MIB)
        self.assertEqual(other.alloc(4096)[0], -errno.ENOMEM)
        mine, why = self.fill(promised, MIB)
        self.assertEqual((len(mine), why), (6, "ENOMEM"))
        # Beyond its promise it is a client like any other.
        self.assertEqual(other.free(blocks[:16]), 0)
        self.assertEqual(promised.alloc(MIB)[0], 0)

        with self.assertRaisesRegex(RuntimeError, "reserved"):
            daemon.cli("reserve", other.client_id, "40M")
        promised.kill()
        wait_until("it is reaped", lambda: len(daemon.clients()) == 1)
        blocks, why = self.fill(other, MIB)
        self.assertEqual((len(blocks), why), (11, "ENOMEM"))
        self.assertNotIn("reserved", other.message)

    @needs_root
    def test_a_users_promise_holds_without_clients_against_a_shrink_and_a_restart(self):
        daemon = self.serve()
        daemon.cli("reserve", "--user", ALICE, "8M")
        with self.assertRaisesRegex(RuntimeError, "reserved"):
            daemon.cli("resize", "default", "--node", "0", "4M")
        daemon.cli("resize", "default", "--node", "0", "16M")
        other = self.client(BOB)
        self.assertEqual(len(self.fill(other, MIB)[0]), 8)
        daemon.cli("quota", other.client_id, "20M")
        daemon.kill()
        self.assertEqual(other.alloc(4096)[0], -errno.ENOMEM)
        daemon = self.serve()
        self.assertEqual(self.user(daemon, ALICE)["reserved_bytes"], 8 * MIB)
        self.assertEqual(other.alloc(4096)[0], -errno.ENOMEM)
        mine = self.client(ALICE)
        blocks, _ = self.fill(mine, MIB)
        self.assertEqual(len(blocks), 8)
        other.close()
        mine.close()
        wait_until("nobody is left", lambda: not daemon.clients())

    def test_a_count_that_is_wrong_is_corrected(self):
        """A taker that dies between its CAS and the counting leaves the giver too much."""
        daemon = self.serve(POOL + ",quota=4M")
        client = self.client()
        self.assertEqual(client.alloc(MIB)[0], 0)
        offset = 4096 * 2 + 128 + 64  # header, accounts, the daemon's record: the first client's word
        with open(daemon.region("default:pool"), "r+b", buffering=0) as file:
            word = int.from_bytes(os.pread(file.fileno(), 8, offset), "little")
            self.assertEqual(word & 0xFFFFFFFFFFF, 256, "1 MiB of frames")
            os.pwrite(file.fileno(), (word + 512).to_bytes(8, "little"), offset)
        blocks, why = self.fill(client, MIB)
        self.assertEqual((len(blocks), why), (1, "EDQUOT"))
        daemon.status()
        daemon.status()
        blocks, why = self.fill(client, MIB)
        self.assertEqual((len(blocks), why), (2, "EDQUOT"))

    def test_quotas_hold_at_every_moment_of_a_restart(self):
        """What a silent client holds counts also before the next daemon has looked at it."""
        daemon = self.serve(POOL + ",quota=8M")
        silent, greedy = self.client(), self.client()
        self.assertEqual(silent.alloc(MIB, count=6)[0], 0, silent.message)
        blocks, why = self.fill(greedy)
        self.assertEqual((len(blocks), why), (32, "EDQUOT"))
        for _ in range(3):
            over, leave = [], threading.Event()

            def try_for_more():
                while not leave.is_set():
                    over.append(greedy.alloc(4096))

            trying = threading.Thread(target=try_for_more)
            trying.start()
            try:
                daemon.kill()
                before, daemon = daemon, self.serve()
                before.stop()
                used = daemon.used_bytes()
            finally:
                leave.set()
                trying.join()
            self.assertEqual(used, 8 * MIB)
            self.assertEqual({error for error, _ in over}, {-errno.EDQUOT}, f"after {len(over)} attempts")
        for each in (silent, greedy):
            each.close()
        wait_until("nobody is left", lambda: not daemon.clients())

    def test_a_compact_pool_keeps_more_chunks_empty(self):
        """A rush, and then a tenth of it is left, renewed: what a shrink can take then, where chunks are chosen and
        not."""
        left = {}
        for fit in ("compact", "nearby"):
            daemon = self.serve(f"name=default,capacity=32M,online=32M,frame=4K,largest=1M,backing=small,fit={fit}")
            client = self.client()
            choose = random.Random(1)
            error, blocks = client.alloc(4096, count=6000)
            self.assertEqual(error, 0)
            choose.shuffle(blocks)
            self.assertEqual(client.free_uncached(blocks[600:]), 0)
            del blocks[600:]
            for _ in range(60):
                choose.shuffle(blocks)
                self.assertEqual(client.free_uncached(blocks[:50]), 0)
                blocks[:50] = client.alloc(4096, count=50)[1]
            daemon.cli("resize", "default", "--node", "0", "32M")
            subprocess.run([program("numacre"), "--runtime-dir", self.runtime_dir, "resize", "default", "3M"],
                           capture_output=True, check=False)  # as far as it gets
            left[fit] = daemon.status()["pools"][0]["online_bytes"]
            client.close()
            wait_until("nobody is left", lambda: not daemon.clients())
            daemon.stop()
        print(f"online after a shrink as far as possible: {left}")
        self.assertLess(left["compact"], left["nearby"])

    def test_high_water_marks_outlive_use_and_daemon_and_become_advice(self):
        daemon = self.serve()
        client, other = self.client(), self.client()
        blocks = client.alloc(MIB, count=12)[1]
        more = other.alloc(MIB, count=4)[1]
        daemon.status()
        self.assertEqual(client.free(blocks[1:]), 0)
        self.assertEqual(other.free(more), 0)
        self.assertEqual(gauge(daemon, "numacre_pool_peak_used_bytes", pool="default", node=0), 16 * MIB)
        daemon.kill()
        daemon = self.serve()
        (pool,) = daemon.status()["pools"]
        self.assertEqual((pool["nodes"][0]["peak_used_bytes"], pool["peak_client_bytes"]), (16 * MIB, 12 * MIB))
        (advice,) = daemon.cli("advise", "default")["pools"]
        self.assertEqual((advice["peak_used_bytes"], advice["suggested_online_bytes"]), (16 * MIB, 20 * MIB))
        self.assertEqual(advice["suggested_low_watermark_bytes"], 2 * MIB)
        for each in (client, other):
            each.close()
        wait_until("nobody is left", lambda: not daemon.clients())

    def test_what_cannot_be_is_refused(self):
        daemon = self.serve()
        for arguments in (("quota", "--user", "nobody-of-that-name", "1M"), ("quota", "--pool", "other", "1M"),
                          ("reserve", "--pool", "default", "1M"), ("reserve", "77", "1M"), ("quota", "1M"),
                          ("quota", "--user", "0", "7", "1M")):
            with self.assertRaises(RuntimeError, msg=arguments):
                daemon.cli(*arguments)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
