#!/usr/bin/env python3
"""What the daemon tells clients: numacre_event_fd becomes readable, numacre_events says why; and what clients may do to
that descriptor disturbs nobody."""

import errno
import os
import pathlib
import sys
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import Daemon, wait_until  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402

MIB = 1 << 20
POOL = "name=default,capacity=64M,online=32M,frame=4K,largest=4M,backing=small,low-watermark=8M"
LOW, LOW_ENDED, SOFT_QUOTA, RESIZED, EVICTION, DAMAGED = 1, 2, 4, 8, 16, 32
PATIENCE = 60


class Events(unittest.TestCase):
    def serve(self, *more, **named):
        daemon = Daemon("--topology", "synthetic:1x512M", "--pool", POOL, *more, **named)
        self.addCleanup(daemon.stop)
        return daemon

    def client(self, daemon, listens=True):
        client = ClientProcess(daemon.runtime_dir)
        self.addCleanup(client.close)
        if listens:
            self.assertEqual(client.event_fd(), 0, client.message)
            self.assertEqual(client.events(PATIENCE), 0, "readable at first, for nothing")
        return client

    def resize(self, daemon, size):
        daemon.cli("resize", "default", "--node", "0", size)

    def test_each_is_told_what_concerns_it(self):
        daemon = self.serve()
        client, other, deaf = self.client(daemon), self.client(daemon), self.client(daemon, listens=False)
        self.resize(daemon, "36M")
        for each in (client, other):
            self.assertEqual(each.events(PATIENCE), RESIZED)
            self.assertEqual(each.events(), 0, "told once")
        daemon.cli("quota", client.client_id, "none", "--soft", "1M")
        error, blocks = client.alloc(MIB, count=2)
        self.assertEqual(error, 0)
        self.assertEqual(client.events(PATIENCE), SOFT_QUOTA, "by itself, without anybody asking")
        # From here on it is asked, which takes less time than to wait for it.
        more = other.alloc(MIB, count=28)[1]
        daemon.status()
        self.assertEqual(other.events(PATIENCE), LOW)
        self.assertEqual(other.free(more), 0)
        daemon.status()
        self.assertEqual(other.events(PATIENCE), LOW_ENDED)
        self.assertEqual(client.events(), LOW | LOW_ENDED)
        # Who asks late has missed nothing.
        self.assertEqual(deaf.event_fd(), 0)
        self.assertEqual(deaf.events(PATIENCE), RESIZED | LOW | LOW_ENDED)

        # What is being ended is told so, and may still give back: it has until the grace is over.
        deaf.ignore_termination()
        daemon.cli("evict", deaf.client_id, "--grace", "60s")
        self.assertEqual(deaf.events(PATIENCE), EVICTION)
        self.assertEqual(client.events(), 0)

    def test_a_pools_soft_quota_is_told_to_all_and_a_users_to_its_clients(self):
        daemon = self.serve()
        client, other = self.client(daemon), self.client(daemon)
        daemon.cli("quota", "--pool", "default", "none", "--soft", "1M")
        self.assertEqual(client.alloc(MIB, count=2)[0], 0)
        daemon.status()
        self.assertEqual([each.events(PATIENCE) for each in (client, other)], [SOFT_QUOTA] * 2)
        daemon.cli("quota", "--user", os.geteuid(), "none", "--soft", "1M")
        self.assertEqual([each.events(PATIENCE) for each in (client, other)], [SOFT_QUOTA] * 2)
        daemon.cli("quota", "--user", "4711", "none", "--soft", "1M")
        self.assertEqual(client.events(), 0)

    def test_a_descriptor_that_blocks_holds_nobody_up(self):
        daemon = self.serve()
        hostile, stopped, client = (self.client(daemon) for _ in range(3))
        hostile.jam()
        stopped.stop()
        for size in ("36M", "40M", "36M"):
            self.resize(daemon, size)
            self.assertEqual(client.events(PATIENCE), RESIZED)
        late = self.client(daemon)
        self.resize(daemon, "40M")
        self.assertEqual(late.events(PATIENCE), RESIZED)
        for one in (hostile, stopped):
            one.kill()
        wait_until("both are reaped", lambda: len(daemon.clients()) == 2)
        self.resize(daemon, "36M")
        self.assertEqual(client.events(PATIENCE), RESIZED)

    def test_descriptors_are_counted_and_go_with_their_clients(self):
        daemon = self.serve("--max-connections", "3")
        first = self.client(daemon)
        second = self.client(daemon, listens=False)
        self.assertEqual(second.event_fd(), -errno.EUSERS, second.message)
        self.assertEqual(second.alloc(MIB)[0], 0, "everything else works")

        def eventfds():
            return sum("eventfd" in target for target in daemon.descriptors().values())

        before = eventfds()
        first.kill()
        wait_until("its descriptor is closed", lambda: eventfds() == before - 1)

    def test_who_has_no_descriptor_left_is_told_that(self):
        daemon = self.serve()
        client = self.client(daemon, listens=False)
        client.use_up_descriptors()
        self.assertEqual(client.event_fd(), -errno.EUSERS)
        self.assertIn("ulimit -n", client.message)
        self.assertEqual(client.event_fd(), -errno.ECONNREFUSED)
        self.assertIn("attach anew", client.message)
        self.assertEqual(client.alloc(MIB)[0], 0, "everything else works")

    def test_damage_is_told_without_anybody_asking(self):
        """Neither a scrape nor a look at the status: somebody comes, and the daemon looks before it seats it."""
        daemon = self.serve()
        client = self.client(daemon)
        with open(daemon.region("default:pool"), "r+b", buffering=0) as region:
            os.pwrite(region.fileno(), b"scribbled over", 32)  # the name in the header
        with self.assertRaisesRegex(RuntimeError, "EUCLEAN"):
            ClientProcess(daemon.runtime_dir)
        self.assertEqual(client.events(PATIENCE), DAMAGED)
        self.assertEqual(client.events(), 0, "told once")

    def test_a_forked_child_is_refused_and_its_parent_hears_on(self):
        daemon = self.serve()
        client = self.client(daemon)
        self.assertEqual(client.fork(), (0, [[-errno.ECHILD] * 2, [0, 0]]))
        self.resize(daemon, "36M")
        self.assertEqual(client.events(PATIENCE), RESIZED)

    def test_a_child_forked_while_another_thread_asks_for_the_descriptor_may_ask_itself(self):
        daemon = self.serve()
        client = self.client(daemon, listens=False)
        self.assertEqual(client.fork(stopped_daemon=daemon.pid), (0, [[-errno.ECHILD] * 2, [0, 0]]))
        self.assertEqual(client.events(PATIENCE), 0, "readable at first, for nothing")
        self.resize(daemon, "36M")
        self.assertEqual(client.events(PATIENCE), RESIZED)

    def test_who_asks_one_daemon_does_not_wait_for_who_asks_another(self):
        stopped, healthy = self.serve(), self.serve()
        # The library waits for 5 s. Where the machine takes longer than that for the other answer, nothing has been
        # seen.
        for _ in range(5):
            client = self.client(stopped, listens=False)
            error, other_waits = client.event_fd_beside(healthy.runtime_dir, stopped.pid)
            self.assertEqual(error, 0, client.message)
            if other_waits:
                return
        self.fail("the answer came only after the stopped daemon had been given up, each time")

    def test_eventfds_of_the_program_with_the_same_numbers_are_left_alone(self):
        daemon = self.serve()
        client = self.client(daemon)
        if not client.has_eventfd_numbers():
            self.skipTest("NOT TESTED: this kernel does not say which eventfd a descriptor is (Linux 5.2, /proc)")
        client.close_descriptors_for_eventfds()
        self.assertEqual(client.events(), 0)
        self.assertTrue(client.eventfds_are_untouched(), "by numacre_events")
        self.assertEqual(client.event_fd(), -errno.ECONNREFUSED)
        self.assertIn("closed the descriptor", client.message)
        client.detach()
        self.assertTrue(client.eventfds_are_untouched(), "by numacre_detach")

    def test_without_the_daemon_it_is_said(self):
        daemon = self.serve()
        client = self.client(daemon, listens=False)
        early = self.client(daemon)
        daemon.kill()
        self.assertEqual(client.event_fd(), -errno.ECONNREFUSED)
        # The kernel may close a connection that a dead process's io_uring still holds a little later than the parent
        # learns of the death.
        wait_until("its descriptor is called silent", lambda: early.event_fd() == -errno.ECONNREFUSED)
        self.assertIn("attach anew", early.message)
        daemon = self.serve(runtime_dir=daemon.runtime_dir)
        self.assertEqual(early.event_fd(), -errno.ECONNREFUSED, "also under the next daemon")
        self.resize(daemon, "36M")
        for each in (client, early):
            wait_until("the next daemon tells as well", lambda: each.events() == RESIZED)
            each.close()
        wait_until("nobody is left", lambda: not daemon.clients())


if __name__ == "__main__":
    main()
