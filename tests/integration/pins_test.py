#!/usr/bin/env python3
"""Pins (numacre_pin): memory that a device has registered stays where it is, and what was in flight at its client's
death waits."""

import concurrent.futures
import contextlib
import errno
import fcntl
import json
import os
import pathlib
import signal
import socket
import struct
import sys
import time
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.attach_wire import (  # noqa: E402
    ATTACH_REPLY, HEADER, LAYOUT_VERSION, MAGIC, OBSERVER, REPLY_BYTES, WIRE_VERSION, Reply, connect, request
)
from support.daemon import Daemon, wait_until  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402

MIB = 1 << 20
UNIT = 4 * MIB
POOL = "name=default,capacity=64M,online=32M,frame=4K,largest=4M,backing=small"


def serving(more="", **options):
    return Daemon("--pool", POOL + more, **options)


def pool_of(daemon):
    (pool,) = [each for each in daemon.status()["pools"] if each["name"] == "default"]
    return pool


def pinned_bytes(daemon):
    return sum(node["pinned_bytes"] for node in pool_of(daemon)["nodes"])


def quarantined_bytes(daemon):
    return pool_of(daemon)["quarantined_bytes"]


def client_of(daemon, client):
    found = [each for each in daemon.clients() if each["client_id"] == client.client_id]
    return found[0] if found else None


def table_of_clients(daemon):
    return daemon.run_cli("clients").stdout


F_OFD_SETLK = 37
TRIALS = 25
PIN_REQUEST, PIN_REPLY = 8, 9
PIN = struct.Struct("=IHHIIIHHQQQQ")  # header, layout version, slot, numa node, generation, instance, range


def pin_request(slot, generation, instance_id, first, size, numa_node=0):
    return PIN.pack(MAGIC, WIRE_VERSION, PIN_REQUEST, PIN.size, 0, LAYOUT_VERSION, slot, numa_node, generation,
                    instance_id, first, size)


def ask(daemon, packet):
    """(type of the reply, its message, descriptors) on a connection of its own. daemon: or its runtime directory."""
    where = daemon if hasattr(daemon, "runtime_dir") else types.SimpleNamespace(runtime_dir=daemon)
    with contextlib.closing(connect(where)) as connection:
        connection.send(packet)
        data, fds, _, _ = socket.recv_fds(connection, REPLY_BYTES, 1)
        kind = HEADER.unpack_from(data)[2]
        return kind, Reply(data).message if kind == ATTACH_REPLY else "", list(fds)


class PinsTest(unittest.TestCase):
    def test_a_shrink_leaves_what_is_pinned_and_names_who_pins(self):
        with serving() as daemon, ClientProcess(daemon.runtime_dir) as client:
            error, pin = client.pin(2 * UNIT + 5, UNIT)  # parts of two units
            self.assertEqual(error, 0, client.message)
            self.assertEqual(pinned_bytes(daemon), 2 * UNIT)
            self.assertEqual(client_of(daemon, client)["pinned_bytes"], 2 * UNIT)
            (seen,) = daemon.cli("map", "default")["maps"][0]["pins"]
            self.assertEqual((seen["client_id"], seen["offset_bytes"], seen["bytes"]),
                             (client.client_id, 2 * UNIT, 2 * UNIT))

            rehearsed = json.loads(daemon.run_cli("resize", "default", UNIT, "--dry-run", "--json").stdout)
            (holder,) = rehearsed["blocked_by"]
            self.assertEqual((holder["client_id"], holder["bytes"], holder["pinned_bytes"]),
                             (client.client_id, 0, UNIT))
            # All that is not pinned can go.
            daemon.cli("resize", "default", 2 * UNIT)
            self.assertEqual(pool_of(daemon)["online_bytes"], 2 * UNIT)
            refused = daemon.run_cli("resize", "default", UNIT)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(f"client {client.client_id}", refused.stderr + refused.stdout)
            self.assertIn("pins 4M", refused.stderr + refused.stdout)
            self.assertEqual(pool_of(daemon)["online_bytes"], 2 * UNIT)

            self.assertEqual(client.unpin(pin), 0, client.message)
            self.assertEqual(pinned_bytes(daemon), 0)
            daemon.cli("resize", "default", UNIT)
            self.assertEqual(pool_of(daemon)["online_bytes"], UNIT)

    def test_a_drain_of_pinned_memory_is_refused_and_a_pin_of_draining_memory(self):
        with serving() as daemon, ClientProcess(daemon.runtime_dir) as client:
            error, pin = client.pin(0, 1)
            self.assertEqual(error, 0, client.message)
            refused = daemon.run_cli("drain", "default", "--chunk", 0)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("pins 4M", refused.stderr)
            self.assertEqual(client.unpin(pin), 0)
            error, (block,) = client.alloc(4096)
            self.assertEqual(error, 0)
            chunk = client.offset_of(block) // UNIT
            daemon.cli("drain", "default", "--chunk", chunk)
            error, _ = client.pin(chunk * UNIT, 4096)
            self.assertEqual(error, -errno.EAGAIN)
            self.assertIn("--undo", client.message)
            daemon.cli("drain", "default", "--chunk", chunk, "--undo")
            self.assertEqual(client.pin(chunk * UNIT, 4096)[0], 0, client.message)

    def test_bad_ranges_are_refused(self):
        with serving() as daemon, ClientProcess(daemon.runtime_dir) as client:
            for offset, size in ((0, 0), (0, 65 * MIB), (64 * MIB, 1), (-1, 2), (63 * MIB, 2 * MIB)):
                with self.subTest(offset=offset, size=size):
                    self.assertEqual(client.pin(offset, size)[0], -errno.EINVAL)
            error, _ = client.pin(0, 64 * MIB)
            self.assertEqual(error, -errno.EINVAL)
            self.assertRegex(client.message, r"grow the pool first \(numacre resize\)$")
            self.assertEqual(client.unpin(1), -errno.EINVAL, "its standard output is no pin")
            self.assertEqual(client.unpin(-1), -errno.EINVAL)

    def test_there_is_a_most_of_pins(self):
        with serving() as daemon, ClientProcess(daemon.runtime_dir) as client:
            pins = [client.pin(0, 4096) for _ in range(64)]
            self.assertTrue(all(error == 0 for error, _ in pins))
            self.assertEqual(client.pin(0, 4096)[0], -errno.EUSERS)
            self.assertIn("64 pins", client.message)
            self.assertEqual(client.unpin(pins[5][1]), 0)
            self.assertEqual(client.pin(0, 4096)[0], 0, client.message)
            self.assertEqual(pinned_bytes(daemon), UNIT)

    def test_what_a_dead_client_had_under_its_pin_waits(self):
        with serving(",pin-quarantine=2s") as daemon, ClientProcess(daemon.runtime_dir) as other:
            client = ClientProcess(daemon.runtime_dir)
            error, under = client.alloc(MIB, count=2)
            self.assertEqual(error, 0)
            first_unit = client.offset_of(under[0]) // UNIT
            elsewhere = []
            while not elsewhere or client.offset_of(elsewhere[-1]) // UNIT == first_unit:
                error, blocks = client.alloc(MIB)
                self.assertEqual(error, 0, client.message)
                elsewhere += blocks
            here = [block for block in under + elsewhere if client.offset_of(block) // UNIT == first_unit]
            offsets = {client.offset_of(block) for block in here}
            self.assertEqual(client.pin(first_unit * UNIT, UNIT)[0], 0, client.message)
            client.kill()
            wait_until("its other blocks are back", lambda: daemon.used_bytes() == len(here) * MIB)
            seen = client_of(daemon, client)
            self.assertEqual((seen["state"], seen["used_bytes"]), ("quarantined", len(here) * MIB))
            self.assertEqual(seen["quarantine_reason"], "pin-quarantine")
            self.assertIn(seen["quarantine_left_seconds"], (0, 1, 2))
            self.assertEqual(quarantined_bytes(daemon), len(here) * MIB)
            self.assertEqual(pinned_bytes(daemon), UNIT)
            # Others go on, and get none of it.
            error, blocks = other.alloc(MIB, count=32 - len(here))
            self.assertEqual(error, 0, other.message)
            self.assertEqual(other.alloc(MIB)[0], -errno.ENOMEM)
            self.assertFalse(offsets & {other.offset_of(block) for block in blocks})
            self.assertEqual(other.free(blocks), 0)
            wait_until("the quarantine is over", lambda: client_of(daemon, client) is None)
            self.assertEqual(quarantined_bytes(daemon), 0)
            self.assertEqual(pinned_bytes(daemon), 0)
            error, blocks = other.alloc(MIB, count=32)
            self.assertEqual(error, 0, other.message)

    def test_a_forked_child_with_the_descriptor_holds_the_pin(self):
        with serving(",pin-quarantine=1s") as daemon:
            client = ClientProcess(daemon.runtime_dir)
            # Without a block: the memory stays where it is all the same.
            self.assertEqual(client.pin(0, 32 * MIB)[0], 0, client.message)
            child = client.fork_idle()
            try:
                client.kill()
                wait_until("it waits", lambda: (client_of(daemon, client) or {}).get("state") == "quarantined")
                time.sleep(3)
                seen = client_of(daemon, client)
                self.assertEqual((seen["state"], seen["quarantine_reason"], seen["quarantine_left_seconds"]),
                                 ("quarantined", "pin held", None))
                self.assertIn("quarantined: pin held\n", table_of_clients(daemon))
                self.assertEqual(pinned_bytes(daemon), 32 * MIB)
                refused = daemon.run_cli("resize", "default", UNIT)
                self.assertNotEqual(refused.returncode, 0)
            finally:
                os.kill(child, signal.SIGKILL)
            wait_until("the quarantine is over", lambda: client_of(daemon, client) is None)
            daemon.cli("resize", "default", UNIT)

    def test_a_pool_with_such_a_child_is_deleted_by_force_and_evict_says_why_not(self):
        with serving(",pin-quarantine=60s") as daemon:
            client = ClientProcess(daemon.runtime_dir)
            self.assertEqual(client.alloc(4096)[0], 0)
            self.assertEqual(client.pin(0, UNIT)[0], 0, client.message)
            daemon.cli("reserve", client.client_id, "8M")
            child = client.fork_idle()
            try:
                client.kill()
                wait_until("it waits", lambda: (client_of(daemon, client) or {}).get("state") == "quarantined")
                wait_until("nothing is promised to the dead",
                           lambda: client_of(daemon, client)["reserved_bytes"] == 0)
                refused = daemon.run_cli("evict", client.client_id)
                self.assertNotEqual(refused.returncode, 0)
                self.assertIn("has ended", refused.stderr)
                for command in ("reserve", "quota"):
                    refused = daemon.run_cli(command, client.client_id, "8M")
                    self.assertNotEqual(refused.returncode, 0, command)
                    self.assertRegex(refused.stderr, rf"client {client.client_id} .* has ended, and what it has left "
                                                     rf"waits .*--user {os.getuid()}\)")
                seen = client_of(daemon, client)
                self.assertEqual((seen["reserved_bytes"], seen["quota_bytes"]), (0, 0))
                daemon.cli("delete", "default", "--force")
                self.assertEqual(daemon.status()["pools"], [])
            finally:
                os.kill(child, signal.SIGKILL)

    def test_who_pins_nothing_can_hold_up_no_pin(self):
        """An observer, which has descriptors of the pool's regions, locks all that it can lock."""
        with serving() as daemon, ClientProcess(daemon.runtime_dir) as client:
            with contextlib.closing(connect(daemon)) as connection:
                connection.send(request(tier=OBSERVER))
                data, fds, _, _ = socket.recv_fds(connection, REPLY_BYTES, 3)
                self.assertEqual(Reply(data).error, 0, Reply(data).message)
                for fd in fds:
                    everything = struct.pack("hhqqi", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
                    fcntl.fcntl(fd, F_OFD_SETLK, everything)
                error, pin = client.pin(0, UNIT)
                self.assertEqual(error, 0, client.message)
                self.assertEqual(client.unpin(pin), 0)
                self.assertEqual(pinned_bytes(daemon), 0)
                for fd in fds:
                    os.close(fd)

    def test_a_client_that_dies_while_it_pins_leaves_no_block_to_others(self):
        """Its locks go before anybody hears of its death; its requests that are under way must not forget the pin."""
        with serving(",pin-quarantine=2s") as daemon:
            for trial in range(TRIALS):
                client = ClientProcess(daemon.runtime_dir)
                error, (block,) = client.alloc(4096)
                self.assertEqual(error, 0)
                unit = client.offset_of(block) // UNIT
                self.assertEqual(client.pin(unit * UNIT, UNIT)[0], 0, client.message)
                client.pin_on(other_unit=(unit + 1) % 8 * UNIT)
                time.sleep(0.02)
                client.kill()
                wait_until("it waits", lambda: (client_of(daemon, client) or {"state": None})["state"]
                           in ("quarantined", None))
                seen = client_of(daemon, client)
                self.assertIsNotNone(seen, f"trial {trial}: its block came back at once")
                self.assertEqual(seen["used_bytes"], 4096, f"trial {trial}")

    def test_a_daemon_that_is_started_again_knows_the_pins(self):
        with serving(",pin-quarantine=1s") as daemon:
            client, other = ClientProcess(daemon.runtime_dir), ClientProcess(daemon.runtime_dir)
            error, (block,) = client.alloc(4096)
            self.assertEqual(client.pin(0, UNIT)[0], 0, client.message)
            self.assertEqual(other.pin(UNIT, UNIT)[0], 0, other.message)
            daemon.kill()
            client.kill()
            runtime_dir = daemon.runtime_dir
            with serving(",pin-quarantine=1s", runtime_dir=runtime_dir) as next_daemon:
                wait_until("its blocks wait", lambda: (client_of(next_daemon, client) or {}).get("state")
                           in ("quarantined", None))
                self.assertGreaterEqual(pinned_bytes(next_daemon), UNIT)
                # A client of the daemon before can pin, too.
                error, pin = other.pin(2 * UNIT, UNIT)
                self.assertEqual(error, 0, other.message)
                wait_until("the quarantine is over", lambda: client_of(next_daemon, client) is None)
                self.assertEqual(pinned_bytes(next_daemon), 2 * UNIT)
                self.assertEqual(client_of(next_daemon, other)["pinned_bytes"], 2 * UNIT)
                other.close()
                wait_until("nothing is pinned", lambda: pinned_bytes(next_daemon) == 0)

    def test_a_detach_under_a_pin_does_not_wait_for_the_quarantine(self):
        with serving(",pin-quarantine=2s") as daemon:
            client = ClientProcess(daemon.runtime_dir)
            self.assertEqual(client.alloc(4096)[0], 0)
            self.assertEqual(client.pin(0, 32 * MIB)[0], 0)
            self.assertEqual(client.detach(), 0)
            self.assertEqual(client_of(daemon, client)["state"], "quarantined")
            client.close()
            wait_until("the quarantine is over", lambda: client_of(daemon, client) is None)

    def test_a_client_in_quarantine_says_what_it_waits_for(self):
        """First for a child with the descriptor, without an end; then for the time that runs when that is gone."""
        with serving(",pin-quarantine=60s") as daemon:
            client = ClientProcess(daemon.runtime_dir)
            self.assertEqual(client.alloc(4096)[0], 0)
            self.assertEqual(client.pin(0, 32 * MIB)[0], 0, client.message)
            self.assertIsNone(client_of(daemon, client)["quarantine_reason"])
            child = client.fork_idle()
            try:
                client.kill()
                wait_until("it waits", lambda: client_of(daemon, client)["quarantine_reason"] == "pin held")
                self.assertIsNone(client_of(daemon, client)["quarantine_left_seconds"])
            finally:
                os.kill(child, signal.SIGKILL)
            wait_until("its time runs", lambda: client_of(daemon, client)["quarantine_reason"] == "pin-quarantine")
            first = client_of(daemon, client)["quarantine_left_seconds"]
            self.assertLessEqual(first, 60)
            wait_until("less is left", lambda: client_of(daemon, client)["quarantine_left_seconds"] < first)
            self.assertRegex(table_of_clients(daemon), r"quarantined: \d+ s left\n")
            daemon.cli("set", "default", "pin-quarantine=1s")
            wait_until("the quarantine is over", lambda: client_of(daemon, client) is None)

    @unittest.skipUnless(os.geteuid() == 0, "NOT TESTED: needs root, to become another user")
    def test_a_connection_goes_with_its_detach_though_a_child_keeps_the_pin(self):
        """Also that of another user, whose unread replies keep connections open: its detach reply is none of them."""
        for uid in (None, 4711):
            with self.subTest(uid=uid), serving(",pin-quarantine=60s,mode=0666") as daemon:
                os.chmod(daemon.runtime_dir, 0o755)
                watcher = ClientProcess(daemon.runtime_dir)
                self.addCleanup(watcher.kill)
                connections = self.connections(daemon)
                client = ClientProcess(daemon.runtime_dir, uid=uid)
                self.addCleanup(client.kill)
                wait_until("it is connected", lambda: self.connections(daemon) == connections + 1)
                self.assertEqual(client.alloc(4096)[0], 0)
                self.assertEqual(client.pin(0, UNIT)[0], 0, client.message)
                child = client.fork_idle()
                try:
                    self.assertEqual(client.detach(), 0)
                    wait_until("it waits", lambda: (client_of(daemon, client) or {}).get("state") == "quarantined")
                    wait_until("the connection is closed", lambda: self.connections(daemon) == connections)
                finally:
                    os.kill(child, signal.SIGKILL)

    def connections(self, daemon):
        """Of the attach socket, with that socket itself. The kernel shows the name that it was made under."""
        with open("/proc/net/unix") as file:
            rows = [line.split() for line in file if f" {daemon.runtime_dir}/attach.sock" in line]
        inodes = {f"socket:[{row[6]}]" for row in rows}
        return len(inodes & set(daemon.descriptors().values()))

    def test_nobody_pins_for_another(self):
        with serving() as daemon, contextlib.closing(connect(daemon)) as connection:
            connection.send(request())
            data, fds, _, _ = socket.recv_fds(connection, REPLY_BYTES, 3)
            seat = Reply(data)
            self.assertEqual(seat.error, 0, seat.message)
            seat.come(fds[0])
            right = pin_request(seat.slot, seat.generation, seat.instance_id, 0, UNIT)
            kind, message, descriptors = ask(daemon, right)
            self.assertEqual((kind, len(descriptors)), (PIN_REPLY, 1), message)
            self.assertEqual(pinned_bytes(daemon), UNIT)
            for descriptor in descriptors:
                os.close(descriptor)
            self.assertEqual(pinned_bytes(daemon), 0)
            # Another process, which knows all numbers.
            with concurrent.futures.ProcessPoolExecutor(1) as other:
                kind, message, _ = other.submit(ask, daemon.runtime_dir, right).result()
            self.assertEqual(kind, ATTACH_REPLY)
            self.assertIn("no client of this process", message)
            for wrong, reason in (
                (pin_request(seat.slot, seat.generation + 1, seat.instance_id, 0, UNIT), "no client of this process"),
                (pin_request(9, seat.generation, seat.instance_id, 0, UNIT), "no client of this process"),
                (pin_request(60000, seat.generation, seat.instance_id, 0, UNIT), "no client of this process"),
                (pin_request(seat.slot, seat.generation, 1, 0, UNIT), "has been deleted"),
                (pin_request(seat.slot, seat.generation, seat.instance_id, 2**64 - 4096, 8192), "no range"),
                (pin_request(seat.slot, seat.generation, seat.instance_id, 4096, 2**64 - 1), "no range"),
                (pin_request(seat.slot, seat.generation, seat.instance_id, 0, UNIT, numa_node=63), "no numa node 63"),
                (pin_request(seat.slot, seat.generation, seat.instance_id, 0, UNIT, numa_node=64), "numa node 64"),
                (right[:-8], "truncated"),
            ):
                with self.subTest(reason=reason):
                    kind, message, descriptors = ask(daemon, wrong)
                    self.assertEqual((kind, descriptors), (ATTACH_REPLY, []))
                    self.assertIn(reason, message)
            self.assertEqual(pinned_bytes(daemon), 0)
            for fd in fds:
                os.close(fd)


if __name__ == "__main__":
    main()
