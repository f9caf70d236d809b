#!/usr/bin/env python3
"""The relay (client/relay) between real processes, through a real numacred.

What it counts has to be what is in the file, by the word of who made the file and of an independent count; whoever is
killed at whatever moment, the other side ends cleanly and the pool is empty afterwards.
"""

import os
import pathlib
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.count_pcap import count_pcap  # noqa: E402
from support.daemon import PATIENCE_SECONDS, Daemon, wait_until  # noqa: E402
from support.make_pcap import make_pcap  # noqa: E402
from support.relay import DONE, FAILED, PEER_LOST, Relay, flows_of  # noqa: E402
from support.runner import main  # noqa: E402

FRAME_BYTES = 2048
LEAF_FRAMES = 64
RING_SLOTS = 1024  # the relay's default
POOLS = (
    "--pool", "name=default,capacity=64M,online=64M,frame=2K,largest=2M,backing=small",
    # Room for 1024 packets: less than the ring of the test that uses it.
    "--pool", "name=narrow,capacity=2M,online=2M,frame=2K,largest=2M,backing=small",
)  # fmt: skip
FOR_EVER = 1_000_000_000  # replays; ended by a signal
ONE_CPU = {min(os.sched_getaffinity(0))}  # one side runs while the other does not


class RelayTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="numacre-relay-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.daemon = Daemon(*POOLS)
        cls.addClassCleanup(cls.daemon.stop)
        cls.pcap = cls.folder / "traffic.pcap"
        cls.totals = make_pcap(cls.pcap, packets=20000, flows=500, seed=20240611)

    def relay(self, role, *arguments, **more):
        relay = Relay(self.daemon, role, *arguments, **more)
        self.addCleanup(relay.close)
        return relay

    def pair(self, *capture_arguments, flows_arguments=()):
        """(capture, flows) as two commands that meet at the default socket."""
        flows = self.relay("flows", *flows_arguments)
        flows.await_words("listening")
        return self.relay("capture", *capture_arguments), flows

    def tearDown(self):
        self.assertTrue(self.daemon.alive(), f"numacred has ended:\n{self.daemon.log()}")
        self.doCleanups()
        wait_until("no client is attached", lambda: not self.daemon.clients())
        for pool in ("default", "narrow"):
            self.assertEqual(self.daemon.used_bytes(pool), 0, f"pool {pool} is not empty")

    def check_complete(self, ended, packets, total_bytes):
        self.assertEqual(ended.status, DONE, ended.errors)
        for side, report in ended.reports.items():
            for name, value in {"ended": "complete", "packets": packets, "bytes": total_bytes,
                                "blocks_held": 0}.items():
                self.assertEqual(report[name], value, f"{side}: {name}")

    def blocks_of(self, relay):
        return sum(client["blocks"] for client in self.daemon.clients() if client["pid"] == relay.pid)

    def bytes_of(self, relay):
        return sum(client["used_bytes"] for client in self.daemon.clients() if client["pid"] == relay.pid)

    def in_flight_and_still(self, *capture_arguments):
        """A pair whose reader is stopped and whose writer sleeps before a full ring; and how many blocks it owns."""
        capture, flows = self.pair("--pcap", self.pcap, "--loop", FOR_EVER, *capture_arguments)
        wait_until("packets flow", lambda: self.blocks_of(capture) > 0)
        flows.signal(signal.SIGSTOP)
        # A batch may be taken already, or not be shown yet as consumed.
        wait_until("the ring is full", lambda: self.blocks_of(capture) > RING_SLOTS - 128)
        counts = []

        def steady():
            counts.append(self.blocks_of(capture))
            return len(counts) > 3 and len(set(counts[-4:])) == 1

        wait_until("the writer sleeps", steady)
        return capture, flows, counts[-1]


class Replay(RelayTest):
    def test_counts_what_is_in_the_file(self):
        independent = count_pcap(self.pcap)
        self.assertEqual(independent["flows"], dict(self.totals.flows), "the two ways of knowing the file disagree")
        ended = self.relay("run", "--pcap", self.pcap, "--top", 100000).end()
        self.check_complete(ended, self.totals.packets, self.totals.bytes)
        report = ended.reports["flows"]
        for name in ("malformed", "not_ip", "vlan", "fragments"):
            self.assertGreater(independent[name], 0, f"the file has no {name}")
            self.assertEqual(report[name], independent[name], name)
        self.assertEqual(flows_of(report), independent["flows"])
        self.assertEqual(report["flows"], len(independent["flows"]))
        self.assertEqual(ended.reports["capture"]["flows"], len(independent["flows"]))

    def test_two_commands_and_three_replays(self):
        capture, flows = self.pair("--pcap", self.pcap, "--loop", 3)
        for relay in (capture, flows):
            self.check_complete(relay.end(), 3 * self.totals.packets, 3 * self.totals.bytes)

    def test_limit_ends_inside_the_file(self):
        ended = self.relay("run", "--pcap", self.pcap, "--limit", 777).end()
        self.assertEqual(ended.status, DONE, ended.errors)
        self.assertEqual({report["packets"] for report in ended.reports.values()}, {777})

    def test_time_limit_ends_it_with_nothing_lost(self):
        ended = self.relay("run", "--pcap", self.pcap, "--loop", FOR_EVER, "--seconds", 0.3).end()
        self.assertEqual(ended.status, DONE, ended.errors)
        sides = ended.reports
        self.assertGreater(sides["flows"]["packets"], 0)
        self.assertEqual(sides["flows"]["packets"], sides["capture"]["packets"])

    def test_smallest_ring_on_one_cpu(self):
        ended = self.relay("run", "--pcap", self.pcap, "--ring-slots", 2, cpus=ONE_CPU).end()
        self.check_complete(ended, self.totals.packets, self.totals.bytes)
        self.assertGreater(ended.reports["capture"]["waits_ring_full"], 0)

    def test_full_pool_makes_the_writer_wait_and_loses_nothing(self):
        # On two CPUs the reader may keep up all the time.
        ended = self.relay("run", "--pool", "narrow", "--pcap", self.pcap, "--loop", 20, "--ring-slots", 8192,
                           cpus=ONE_CPU).end()
        self.check_complete(ended, 20 * self.totals.packets, 20 * self.totals.bytes)
        self.assertGreater(ended.reports["capture"]["waits_pool_full"], 0)

    def test_flow_table_that_is_full_still_counts_packets(self):
        ended = self.relay("run", "--pcap", self.pcap, "--flows-max", 10).end()
        self.check_complete(ended, self.totals.packets, self.totals.bytes)
        report = ended.reports["flows"]
        self.assertEqual(report["flows"], 10)
        tracked = sum(packets for packets, _ in flows_of({"top_flows": report["top_flows"]}).values())
        self.assertLess(tracked, self.totals.packets)
        in_flows = self.totals.packets - report["malformed"] - report["not_ip"]
        self.assertLess(report["flows_not_tracked"], in_flows)
        self.assertGreater(report["flows_not_tracked"], 0)


class SuddenEnd(RelayTest):
    def test_reader_killed_with_packets_in_flight(self):
        capture, flows, blocks = self.in_flight_and_still()
        flows.signal(signal.SIGKILL)
        ended = capture.end()
        self.assertEqual(ended.status, PEER_LOST, ended.errors)
        report = ended.reports["capture"]
        self.assertEqual(report["ended"], "peer lost")
        # All that it owned was in the ring, but for the packet that waited for a slot.
        self.assertEqual(report["returned"], blocks - 1)
        self.assertEqual(report["blocks_held"], 0)

    def test_writer_killed_with_packets_in_flight(self):
        capture, flows, blocks = self.in_flight_and_still()
        capture.signal(signal.SIGKILL)
        # What is left is what the stopped reader had taken or cached; and where it was stopped in the middle of a free,
        # what it was freeing, which is nobody's any more and not free yet: a full cache gives back up to all frames of
        # a leaf word together.
        wait_until(
            "the writer's blocks are given back",
            lambda: self.daemon.used_bytes() - self.bytes_of(flows) in range(0, LEAF_FRAMES * FRAME_BYTES, FRAME_BYTES),
        )
        flows.signal(signal.SIGCONT)
        ended = flows.end()
        self.assertEqual(ended.status, PEER_LOST, ended.errors)
        report = ended.reports["flows"]
        self.assertEqual(report["ended"], "peer lost")
        self.assertEqual(report["lost_with_producer"], blocks - 1)
        self.assertEqual(report["bad_references"], 0)
        self.assertEqual(report["blocks_held"], 0)

    def test_either_side_killed_at_any_moment(self):
        rng = random.Random(7)
        for round_ in range(6):
            victim_is_reader = round_ % 2 == 0
            with self.subTest(round=round_, killed="flows" if victim_is_reader else "capture"):
                capture, flows = self.pair("--pcap", self.pcap, "--loop", FOR_EVER)
                wait_until("packets flow", lambda: self.blocks_of(capture) > 0)
                time.sleep(rng.random() * 0.05)
                victim, survivor = (flows, capture) if victim_is_reader else (capture, flows)
                victim.signal(signal.SIGKILL)
                ended = survivor.end()
                self.assertEqual(ended.status, PEER_LOST, ended.errors)
                (report,) = ended.reports.values()
                self.assertGreater(report["packets"], 0)
                self.assertEqual(report["blocks_held"], 0)
                wait_until("the pool is empty", lambda: self.daemon.used_bytes() == 0)

    def test_reader_that_is_asked_to_end_gives_everything_back(self):
        capture, flows = self.pair("--pcap", self.pcap, "--loop", FOR_EVER)
        wait_until("packets flow", lambda: self.blocks_of(capture) > 0)
        flows.signal(signal.SIGTERM)
        ended = flows.end()
        self.assertEqual((ended.status, ended.reports["flows"]["ended"]), (DONE, "stopped"), ended.errors)
        self.assertEqual(ended.reports["flows"]["blocks_held"], 0)
        ended = capture.end()
        self.assertEqual(ended.status, PEER_LOST, ended.errors)
        self.assertEqual(ended.reports["capture"]["blocks_held"], 0)

    def test_writer_that_is_asked_to_end_finishes_the_stream(self):
        capture, flows = self.pair("--pcap", self.pcap, "--loop", FOR_EVER)
        wait_until("packets flow", lambda: self.blocks_of(capture) > 0)
        capture.signal(signal.SIGINT)
        ended = capture.end()
        self.assertEqual((ended.status, ended.reports["capture"]["ended"]), (DONE, "stopped"), ended.errors)
        counted = flows.end()
        self.assertEqual((counted.status, counted.reports["flows"]["ended"]), (DONE, "complete"), counted.errors)
        self.assertEqual(counted.reports["flows"]["packets"], ended.reports["capture"]["packets"])

    def test_running_pair_holds_no_more_than_what_is_under_way(self):
        def takes():
            (pool,) = [pool for pool in self.daemon.cli("stats")["pools"] if pool["name"] == "default"]
            return sum(node["takes"] for node in pool["nodes"])

        before = takes()
        capture, flows = self.pair("--pcap", self.pcap, "--loop", FOR_EVER)
        wait_until("200000 blocks have changed hands", lambda: takes() - before > 200000)
        for relay in (capture, flows):
            relay.signal(signal.SIGSTOP)
        # A leak would have grown with the packets: in the reader beyond a batch, in the writer beyond a full ring.
        self.assertLessEqual(self.blocks_of(flows), 64)
        self.assertLessEqual(self.blocks_of(capture), RING_SLOTS + 1)

    def test_parent_of_both_killed_takes_both_along(self):
        both = self.relay("run", "--pcap", self.pcap, "--loop", FOR_EVER)
        wait_until("two clients are attached", lambda: len(self.daemon.clients()) == 2)
        both.signal(signal.SIGKILL)
        wait_until("both have ended", lambda: not self.daemon.clients())

    def test_child_killed_is_told_in_the_exit_status(self):
        both = self.relay("run", "--pcap", self.pcap, "--loop", FOR_EVER)
        wait_until("two clients hold blocks", lambda: len(self.daemon.clients()) == 2 and self.daemon.used_bytes() > 0)
        # The reader is the first to be started.
        reader = min(client["pid"] for client in self.daemon.clients())
        os.kill(reader, signal.SIGKILL)
        ended = both.end()
        self.assertEqual(ended.status, 128 + signal.SIGKILL, ended.errors)


class Live(RelayTest):
    PACKETS = 5000

    def test_udp_on_loopback_is_counted(self):
        if not os.path.exists("/proc/net/packet") or os.geteuid() != 0:
            self.skipTest("live capture needs packet sockets and root")
        flows = self.relay("flows", "--top", 1000)
        flows.await_words("listening")
        capture = self.relay("capture", "--interface", "lo")
        capture.await_words("capturing")
        with (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
              socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender):
            receiver.bind(("127.0.0.1", 0))
            sender.bind(("127.0.0.1", 0))
            source_port, port = sender.getsockname()[1], receiver.getsockname()[1]
            for number in range(self.PACKETS):
                sender.sendto(number.to_bytes(4, "big") * 25, ("127.0.0.1", port))
        key = (17, "127.0.0.1", source_port, "127.0.0.1", port)
        capture.signal(signal.SIGINT)
        sides = {}
        for relay in (capture, flows):
            ended = relay.end()
            self.assertEqual(ended.status, DONE, ended.errors)
            sides.update(ended.reports)
        # The kernel's buffer holds many times as many, so nothing has to be dropped, however late we read.
        self.assertEqual(sides["capture"]["dropped_by_kernel"] + sides["capture"]["dropped_pool_full"], 0)
        wire_bytes = 14 + 20 + 8 + 100
        self.assertEqual(flows_of(sides["flows"])[key], [self.PACKETS, self.PACKETS * wire_bytes])
        # Other traffic of the machine passes, too.
        self.assertEqual(sides["flows"]["packets"], sides["capture"]["packets"])

    def test_limit_and_small_ring(self):
        if os.geteuid() != 0:
            self.skipTest("live capture needs root")
        flows = self.relay("flows", "--top", 1000)
        flows.await_words("listening")
        capture = self.relay("capture", "--limit", 1000, "--ring-slots", 4)
        capture.await_words("capturing")
        with (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
              socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver):
            receiver.bind(("127.0.0.1", 0))
            for _ in range(1100):
                sender.sendto(b"x" * 1400, receiver.getsockname())
        for relay in (capture, flows):
            ended = relay.end()
            self.assertEqual(ended.status, DONE, ended.errors)
            (report,) = ended.reports.values()
            self.assertEqual((report["ended"], report["packets"]), ("complete", 1000))

    def test_full_pool_drops_packets_and_says_how_many(self):
        if os.geteuid() != 0:
            self.skipTest("live capture needs root")
        # All of the pool is in the hands of a pair that stands still, but for what the second pair gets of it.
        holder = self.relay("flows", "--pool", "narrow", "--socket", self.folder / "holder.sock")
        holder.await_words("listening")
        filler = self.relay(
            "capture", "--pool", "narrow", "--socket", self.folder / "holder.sock",
            "--pcap", self.pcap, "--loop", FOR_EVER, "--ring-slots", 8192,
        )  # fmt: skip
        wait_until("packets flow", lambda: self.blocks_of(filler) > 0)
        holder.signal(signal.SIGSTOP)
        wait_until("the pool is full", lambda: self.daemon.used_bytes("narrow") == 2 << 20)

        flows = self.relay("flows", "--pool", "narrow")
        flows.await_words("listening")
        capture = self.relay("capture", "--pool", "narrow")
        capture.await_words("capturing")
        with (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
              socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver):
            receiver.bind(("127.0.0.1", 0))
            for _ in range(200):
                sender.sendto(b"x" * 100, receiver.getsockname())
        capture.signal(signal.SIGINT)
        ended = capture.end()
        self.assertEqual(ended.status, DONE, ended.errors)
        self.assertEqual(ended.reports["capture"]["packets"], 0)
        self.assertGreaterEqual(ended.reports["capture"]["dropped_pool_full"], 200)
        self.assertEqual(flows.end().status, DONE)


class BadInput(RelayTest):
    def refused(self, relay, *words):
        ended = relay.end()
        self.assertEqual(ended.status, FAILED, ended.errors)
        for word in words:
            self.assertIn(word, ended.errors)
        return ended

    def test_unknown_pool_is_named(self):
        self.refused(self.relay("run", "--pool", "no-such-pool", "--pcap", self.pcap), "no-such-pool")

    def test_pcap_that_is_cut_off_is_refused_before_anything_is_sent(self):
        cut = self.folder / "cut.pcap"
        cut.write_bytes(self.pcap.read_bytes()[:-7])
        self.refused(self.relay("run", "--pcap", cut), str(cut))

    def test_interface_that_does_not_exist_is_named(self):
        if os.geteuid() != 0:
            self.skipTest("needs root")
        self.refused(self.relay("run", "--interface", "nosuchif0"), "nosuchif0", "ip link")

    def test_two_sides_with_different_pools_are_told_so(self):
        capture, flows = self.pair("--pcap", self.pcap, "--pool", "narrow")
        self.refused(flows, "'narrow'", "'default'", "--pool")
        self.assertEqual(capture.end().status, PEER_LOST)

    def test_second_reader_is_refused_and_the_first_is_not_disturbed(self):
        first = self.relay("flows")
        first.await_words("listening")
        self.refused(self.relay("flows"), "relay.sock", "--socket")
        capture = self.relay("capture", "--pcap", self.pcap)
        for relay in (capture, first):
            self.check_complete(relay.end(), self.totals.packets, self.totals.bytes)

    def test_reader_replaces_the_socket_that_a_killed_one_left(self):
        first = self.relay("flows")
        first.await_words("listening")
        first.signal(signal.SIGKILL)
        first.process.wait(PATIENCE_SECONDS)
        self.assertTrue((pathlib.Path(self.daemon.runtime_dir) / "relay.sock").is_socket())
        capture, flows = self.pair("--pcap", self.pcap)
        for relay in (capture, flows):
            self.check_complete(relay.end(), self.totals.packets, self.totals.bytes)


if __name__ == "__main__":
    main()
