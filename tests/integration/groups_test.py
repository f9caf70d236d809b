#!/usr/bin/env python3
"""Groups (numacre_join): members adopt each other's blocks, also those of the dead, which wait for that as long as a
member lives."""

import errno
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.daemon import Daemon, wait_until  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402

POOL = "name=default,capacity=16M,online=16M,frame=4K,largest=4M,backing=small"
GROUP = 4711


def client_of(daemon, client):
    found = [each for each in daemon.clients() if each["client_id"] == client.client_id]
    return found[0] if found else None


def state_of(daemon, client):
    return (client_of(daemon, client) or {}).get("state")


class GroupsTest(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon("--pool", POOL + self.more())
        self.addCleanup(self.daemon.stop)
        self.daemon.__enter__()

    def more(self):
        return ""

    def client(self, group=GROUP, **more):
        client = ClientProcess(self.daemon.runtime_dir, **more)
        self.addCleanup(client.close)
        if group:
            self.assertEqual(client.join(group), 0, client.message)
        return client

    def blocks_of(self, client, count, size=4096):
        error, blocks = client.alloc(size, count=count)
        self.assertEqual(error, 0, client.message)
        return blocks, [client.offset_of(block) for block in blocks]

    def test_members_adopt_blocks_of_the_living_and_others_do_not(self):
        giver, taker, stranger, nobody = self.client(), self.client(), self.client(group=1), self.client(group=0)
        blocks, offsets = self.blocks_of(giver, 3)
        self.assertEqual(stranger.adopt(offsets)[0], -errno.EPERM)
        self.assertEqual(nobody.adopt(offsets)[0], -errno.EINVAL)
        self.assertIn("numacre_join", nobody.message)
        self.assertEqual(giver.adopt(offsets)[0], 0, "its own")
        error, taken = taker.adopt(offsets)
        self.assertEqual(error, 0, taker.message)
        self.assertEqual(giver.free(blocks[:1]), -errno.EPERM)
        self.assertEqual(taker.free_uncached(taken), 0, taker.message)
        self.assertEqual(taker.adopt(offsets)[0], -errno.EPERM, "free blocks")
        self.assertEqual(self.daemon.used_bytes(), 0)

    def test_a_group_is_joined_once(self):
        client = self.client()
        self.assertEqual(client.join(0), -errno.EINVAL)
        self.assertEqual(client.join(GROUP), 0)
        self.assertEqual(client.join(GROUP + 1), -errno.EEXIST)

    def test_references_to_adopted_blocks_are_stale(self):
        giver, taker = self.client(), self.client()
        blocks, offsets = self.blocks_of(giver, 1)
        reference = giver.ref_of(blocks[0])
        self.assertEqual(taker.adopt(offsets)[0], 0)
        self.assertEqual(self.client(group=0).take(reference)[0], -errno.ESTALE)

    def test_blocks_of_a_dead_member_wait_for_a_survivor(self):
        dead, survivor, other = self.client(), self.client(), self.client(group=0)
        _, offsets = self.blocks_of(dead, 4, size=1 << 20)
        cached, _ = self.blocks_of(dead, 1)
        self.assertEqual(dead.free(cached), 0)
        self.assertEqual(dead.ref_of(0), 0)
        dead.kill()
        wait_until("it waits", lambda: state_of(self.daemon, dead) == "quarantined")
        self.assertEqual(self.daemon.used_bytes(), 4 << 20, "what was cached has come back")
        seen = client_of(self.daemon, dead)
        self.assertEqual((seen["quarantine_reason"], seen["quarantine_left_seconds"]), ("group", None))
        self.assertIn("quarantined: group\n", self.daemon.run_cli("clients").stdout)
        self.assertIsNone(client_of(self.daemon, survivor)["quarantine_reason"])
        self.assertIn(other.alloc(1 << 20, count=13)[0], (-errno.ENOMEM, -errno.EDQUOT))
        error, taken = survivor.adopt(offsets[:3])
        self.assertEqual(error, 0, survivor.message)
        self.assertEqual(survivor.free_uncached(taken), 0)
        # The rest goes when no member lives.
        survivor.kill()
        wait_until("nobody of the group is left", lambda: state_of(self.daemon, dead) is None)
        other.close()
        wait_until("everything is back", lambda: self.daemon.used_bytes() == 0)

    def test_the_seat_of_a_dead_member_goes_when_all_is_adopted(self):
        dead, survivor = self.client(), self.client()
        _, offsets = self.blocks_of(dead, 2)
        dead.kill()
        wait_until("it waits", lambda: state_of(self.daemon, dead) == "quarantined")
        self.assertEqual(survivor.adopt(offsets)[0], 0)
        wait_until("its seat is free", lambda: state_of(self.daemon, dead) is None)
        self.assertEqual(self.daemon.used_bytes(), 2 * 4096)

    def test_a_daemon_that_is_started_again_keeps_them_as_well(self):
        dead, survivor = self.client(), self.client()
        _, offsets = self.blocks_of(dead, 2)
        self.daemon.kill()
        dead.kill()
        self.daemon = Daemon("--pool", POOL + self.more(), runtime_dir=self.daemon.runtime_dir)
        self.addCleanup(self.daemon.stop)
        self.daemon.__enter__()
        wait_until("it waits", lambda: state_of(self.daemon, dead) == "quarantined")
        error, taken = survivor.adopt(offsets)
        self.assertEqual(error, 0, survivor.message)
        self.assertEqual(survivor.free_uncached(taken), 0)
        self.assertEqual(self.daemon.used_bytes(), 0)


class CountedGroupsTest(GroupsTest):
    """In a pool with a quota, where each process counts what it holds."""

    def more(self):
        return ",quota=16M"

    def test_an_adopted_block_counts_for_who_has_it(self):
        giver, taker = self.client(), self.client()
        self.daemon.cli("quota", giver.client_id, "8K")
        self.daemon.cli("quota", taker.client_id, "8K")
        _, offsets = self.blocks_of(giver, 2)
        self.assertEqual(giver.alloc(4096)[0], -errno.EDQUOT)
        self.assertEqual(taker.adopt(offsets)[0], 0)
        self.assertEqual(taker.alloc(4096)[0], -errno.EDQUOT)
        self.assertEqual(giver.alloc(4096, count=2)[0], 0, giver.message)


if __name__ == "__main__":
    main()
