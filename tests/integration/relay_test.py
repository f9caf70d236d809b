#!/usr/bin/env python3
"""The relay (client/relay) between real processes, through a real numacred.

What it counts has to be what is in the file, by the word of who made the file and of an independent count; whoever is
killed at whatever moment, the other side ends cleanly, what had been sent is read, and the pool is empty afterwards.
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
from support.relay import (  # noqa: E402
    DONE, FAILED, PEER_LOST, Relay, clients_and_channels, flows_of, wait_for_flow
)
from support.runner import main  # noqa: E402

CAPACITY, BURST, BATCH = 1024, 32, 64  # of the channel, of a send, of the reader
POOLS = (
    "--pool", "name=default,capacity=64M,online=64M,frame=2K,largest=2M,backing=small",
    # Room for 1024 packets: less than the channels of the tests that use it.
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
        """(capture, flows) as two commands that meet at the default channel."""
        flows = self.relay("flows", *flows_arguments)
        flows.await_words("reading channel")
        return self.relay("capture", *capture_arguments), flows

    def pair_at_work(self):
        capture, flows = self.pair("--pcap", self.pcap, "--loop", FOR_EVER)
        wait_for_flow(self.daemon, capture)
        return capture, flows

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
        clients, _ = clients_and_channels(self.daemon)
        return sum(client["blocks"] for client in clients if client["pid"] == relay.pid)

    def in_channel(self, name="relay"):
        return clients_and_channels(self.daemon)[1].get(name, 0)

    def full_and_still(self):
        """A pair whose reader is stopped and whose writer waits before a full channel; and the channel's blocks."""
        capture, flows = self.pair_at_work()
        flows.signal(signal.SIGSTOP)
        counts = []

        def steady():
            counts.append(self.in_channel())
            return len(counts) > 3 and len(set(counts[-4:])) == 1 and counts[-1] > CAPACITY - BURST

        wait_until("the channel is full", steady)
        return capture, flows, counts[-1]

    def read_the_rest(self, packets=None, pool="default"):
        """A reader that comes late reads what is left of a stream that has ended. Returns its report."""
        ended = self.relay("flows", "--pool", pool).end()
        self.assertEqual(ended.status, DONE, ended.errors)
        report = ended.reports["flows"]
        self.assertEqual((report["ended"], report["blocks_held"]), ("complete", 0))
        if packets is not None:
            self.assertEqual(report["packets"], packets)
        return report


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

    def test_smallest_channel_on_one_cpu(self):
        ended = self.relay("run", "--pcap", self.pcap, "--capacity", 1, cpus=ONE_CPU).end()
        self.check_complete(ended, self.totals.packets, self.totals.bytes)
        self.assertGreater(ended.reports["capture"]["waits_channel_full"], 0)

    def test_capture_needs_no_reader_before_its_channel_is_full(self):
        ended = self.relay("capture", "--pcap", self.pcap, "--limit", CAPACITY).end()
        self.assertEqual((ended.status, ended.reports["capture"]["ended"]), (DONE, "complete"), ended.errors)
        self.assertEqual(ended.reports["capture"]["in_channel_at_end"], CAPACITY)
        # Its stream is not mixed with another one.
        refused = self.relay("capture", "--pcap", self.pcap).end()
        self.assertEqual(refused.status, FAILED, refused.errors)
        for word in (f"{CAPACITY} packets", "`relay flows`", "--channel"):
            self.assertIn(word, refused.errors)
        self.read_the_rest(CAPACITY)

    def test_full_pool_makes_the_writer_wait_and_loses_nothing(self):
        # On two CPUs the reader may keep up all the time.
        ended = self.relay("run", "--pool", "narrow", "--pcap", self.pcap, "--loop", 20, "--capacity", 4096,
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
    def test_reader_killed_with_packets_on_their_way(self):
        capture, flows, blocks = self.full_and_still()
        flows.signal(signal.SIGKILL)
        ended = capture.end()
        self.assertEqual(ended.status, PEER_LOST, ended.errors)
        report = ended.reports["capture"]
        self.assertEqual((report["ended"], report["blocks_held"]), ("peer lost", 0))
        self.assertLessEqual(report["not_sent"], BURST)
        left = self.in_channel()
        self.assertGreaterEqual(left, blocks)
        self.read_the_rest(left)

    def test_writer_killed_with_packets_on_their_way(self):
        capture, flows, blocks = self.full_and_still()
        capture.signal(signal.SIGKILL)
        wait_until("numacred has noticed", lambda: len(clients_and_channels(self.daemon)[0]) == 1)
        # The burst that it was about to send has come back; what it had sent has not.
        left = self.in_channel()
        self.assertIn(left, range(blocks - BURST, blocks + 1))
        flows.signal(signal.SIGCONT)
        ended = flows.end()
        self.assertEqual(ended.status, PEER_LOST, ended.errors)
        report = ended.reports["flows"]
        self.assertEqual((report["ended"], report["blocks_held"]), ("peer lost", 0))
        self.assertGreaterEqual(report["packets"], left)

    def test_either_side_killed_at_any_moment(self):
        rng = random.Random(7)
        for round_ in range(6):
            victim_is_reader = round_ % 2 == 0
            with self.subTest(round=round_, killed="flows" if victim_is_reader else "capture"):
                capture, flows = self.pair_at_work()
                time.sleep(rng.random() * 0.05)
                victim, survivor = (flows, capture) if victim_is_reader else (capture, flows)
                victim.signal(signal.SIGKILL)
                ended = survivor.end()
                self.assertEqual(ended.status, PEER_LOST, ended.errors)
                (report,) = ended.reports.values()
                self.assertGreater(report["packets"], 0)
                self.assertEqual(report["blocks_held"], 0)
                if victim_is_reader:
                    self.read_the_rest(self.in_channel())
                wait_until("the pool is empty", lambda: self.daemon.used_bytes() == 0)

    def test_reader_killed_while_the_writer_waits_for_memory(self):
        flows = self.relay("flows", "--pool", "narrow", "--capacity", 4096)
        flows.await_words("reading channel")
        capture = self.relay("capture", "--pool", "narrow", "--pcap", self.pcap, "--loop", FOR_EVER)
        wait_for_flow(self.daemon, capture)
        flows.signal(signal.SIGSTOP)
        wait_until("the pool is full", lambda: self.daemon.used_bytes("narrow") == 2 << 20)
        flows.signal(signal.SIGKILL)
        ended = capture.end()
        self.assertEqual((ended.status, ended.reports["capture"]["ended"]), (PEER_LOST, "peer lost"), ended.errors)
        self.read_the_rest(self.in_channel(), pool="narrow")

    def test_both_killed(self):
        capture, flows, blocks = self.full_and_still()
        for relay in (capture, flows):
            relay.signal(signal.SIGKILL)
        wait_until("numacred has noticed", lambda: not clients_and_channels(self.daemon)[0])
        left = self.in_channel()
        self.assertIn(left, range(blocks - BURST, blocks + BURST + 1))
        late = self.relay("flows").end()
        self.assertEqual((late.status, late.reports["flows"]["packets"]), (PEER_LOST, left), late.errors)

    def test_reader_that_is_asked_to_end_leaves_the_rest_to_the_next_one(self):
        capture, flows = self.pair_at_work()
        flows.signal(signal.SIGTERM)
        ended = flows.end()
        self.assertEqual((ended.status, ended.reports["flows"]["ended"]), (DONE, "stopped"), ended.errors)
        self.assertEqual(ended.reports["flows"]["blocks_held"], 0)
        captured = capture.end()
        self.assertEqual(captured.status, PEER_LOST, captured.errors)
        self.assertEqual(captured.reports["capture"]["blocks_held"], 0)
        self.read_the_rest(captured.reports["capture"]["packets"] - ended.reports["flows"]["packets"])

    def test_writer_that_is_asked_to_end_finishes_the_stream(self):
        capture, flows = self.pair_at_work()
        capture.signal(signal.SIGINT)
        ended = capture.end()
        self.assertEqual((ended.status, ended.reports["capture"]["ended"]), (DONE, "stopped"), ended.errors)
        counted = flows.end()
        self.assertEqual((counted.status, counted.reports["flows"]["ended"]), (DONE, "complete"), counted.errors)
        self.assertEqual(counted.reports["flows"]["packets"], ended.reports["capture"]["packets"])

    def test_running_pair_holds_no_more_than_what_is_under_way(self):
        capture, flows = self.pair("--pcap", self.pcap, "--loop", FOR_EVER)
        wait_for_flow(self.daemon, capture, blocks=200000)
        for relay in (capture, flows):
            relay.signal(signal.SIGSTOP)
        # A leak would have grown with the packets.
        self.assertLessEqual(self.blocks_of(flows), BATCH)
        self.assertLessEqual(self.blocks_of(capture), BURST)
        # A burst on its way in and one on its way out are the channel's already, and still.
        self.assertLessEqual(self.in_channel(), CAPACITY + 2 * BURST)
        for relay in (capture, flows):
            relay.signal(signal.SIGCONT)
        capture.signal(signal.SIGINT)
        for relay in (capture, flows):
            self.assertEqual(relay.end().status, DONE)

    def run_at_work(self):
        """`relay run`, and the processes of its capture and its flows."""
        both = self.relay("run", "--pcap", self.pcap, "--loop", FOR_EVER)
        wait_for_flow(self.daemon, both)
        # The capture is the first to be started.
        capture, flows = sorted(client["pid"] for client in clients_and_channels(self.daemon)[0])
        return both, capture, flows

    def test_parent_of_both_killed_takes_both_along(self):
        both, _, _ = self.run_at_work()
        both.signal(signal.SIGKILL)
        wait_until("both have ended, and have read everything", lambda: not self.daemon.clients())

    def test_child_killed_is_told_in_the_exit_status(self):
        for name, number in (("capture", 0), ("flows", 1)):
            with self.subTest(name):
                both, *children = self.run_at_work()
                os.kill(children[number], signal.SIGKILL)
                ended = both.end()
                self.assertEqual(ended.status, 128 + signal.SIGKILL, ended.errors)
                # Nobody would look for what is left in a channel of its own.
                wait_until("nothing is left", lambda: not self.daemon.clients())


class Live(RelayTest):
    PACKETS = 5000

    def test_udp_on_loopback_is_counted(self):
        if not os.path.exists("/proc/net/packet") or os.geteuid() != 0:
            self.skipTest("live capture needs packet sockets and root")
        flows = self.relay("flows", "--top", 1000)
        flows.await_words("reading channel")
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

    def send_to_loopback(self, packets):
        """Sends UDP packets to itself; returns their flow."""
        with (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
              socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender):
            receiver.bind(("127.0.0.1", 0))
            sender.bind(("127.0.0.1", 0))
            for _ in range(packets):
                sender.sendto(b"x" * 100, receiver.getsockname())
            return (17, *sender.getsockname(), *receiver.getsockname())

    def test_another_reader_goes_on_where_a_killed_one_stopped(self):
        if os.geteuid() != 0:
            self.skipTest("live capture needs root")
        first = self.relay("flows")
        first.await_words("reading channel")
        capture = self.relay("capture", "--interface", "lo")
        capture.await_words("capturing")
        self.send_to_loopback(100)
        first.signal(signal.SIGSTOP)
        first.signal(signal.SIGKILL)
        first.process.wait(PATIENCE_SECONDS)
        # Less than the channel holds: the capture has not missed anybody.
        between = self.send_to_loopback(300)
        second = self.relay("flows", "--top", 1000)
        second.await_words("reading channel")
        after = self.send_to_loopback(300)
        capture.signal(signal.SIGINT)
        for relay in (capture, second):
            ended = relay.end()
            self.assertEqual(ended.status, DONE, ended.errors)
        counted = flows_of(ended.reports["flows"])
        self.assertEqual((counted[between][0], counted[after][0]), (300, 300))

    def test_limit_and_small_channel(self):
        if os.geteuid() != 0:
            self.skipTest("live capture needs root")
        flows = self.relay("flows", "--top", 1000, "--capacity", 4)
        flows.await_words("reading channel")
        capture = self.relay("capture", "--limit", 1000)
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
        holder = self.relay("flows", "--pool", "narrow", "--channel", "holder", "--capacity", 4096)
        holder.await_words("reading channel")
        filler = self.relay("capture", "--pool", "narrow", "--channel", "holder",
                            "--pcap", self.pcap, "--loop", FOR_EVER)
        wait_for_flow(self.daemon, filler)
        holder.signal(signal.SIGSTOP)
        wait_until("the pool is full", lambda: self.daemon.used_bytes("narrow") == 2 << 20)

        flows = self.relay("flows", "--pool", "narrow")
        flows.await_words("reading channel")
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
        holder.signal(signal.SIGCONT)
        filler.signal(signal.SIGINT)
        for relay in (filler, holder):
            self.assertEqual(relay.end().status, DONE)


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

    def test_capture_that_nobody_reads_says_so(self):
        capture, flows = self.pair("--pcap", self.pcap, "--pool", "narrow", "--capacity", 512)
        capture.await_words("nobody reads channel 'relay' of pool 'narrow'")
        flows.signal(signal.SIGTERM)
        self.assertEqual(flows.end().reports["flows"]["packets"], 0)
        capture.signal(signal.SIGINT)
        ended = capture.end()
        self.assertEqual((ended.status, ended.reports["capture"]["ended"]), (DONE, "stopped"), ended.errors)
        self.read_the_rest(512, pool="narrow")

    def test_sizes_that_do_not_fit_are_named(self):
        flows = self.relay("flows", "--capacity", 64)
        flows.await_words("reading channel")
        self.refused(self.relay("capture", "--pcap", self.pcap, "--capacity", 32), "capacity 64")
        for relay in (self.relay("capture", "--pcap", self.pcap), flows):
            self.check_complete(relay.end(), self.totals.packets, self.totals.bytes)

    def test_second_reader_or_writer_is_refused_and_the_first_is_not_disturbed(self):
        first = self.relay("flows")
        first.await_words("reading channel")
        self.refused(self.relay("flows"), "another `relay flows`", "--channel")
        capture = self.relay("capture", "--pcap", self.pcap, "--loop", FOR_EVER)
        wait_for_flow(self.daemon, capture)
        self.refused(self.relay("capture", "--pcap", self.pcap), "another `relay capture`", "--channel")
        capture.signal(signal.SIGINT)
        captured, counted = capture.end(), first.end()
        self.assertEqual((captured.status, counted.status), (DONE, DONE), captured.errors + counted.errors)
        self.assertEqual(counted.reports["flows"]["packets"], captured.reports["capture"]["packets"])

    def test_reader_takes_the_place_of_a_killed_one(self):
        first = self.relay("flows")
        first.await_words("reading channel")
        first.signal(signal.SIGKILL)
        first.process.wait(PATIENCE_SECONDS)
        capture, flows = self.pair("--pcap", self.pcap)
        for relay in (capture, flows):
            self.check_complete(relay.end(), self.totals.packets, self.totals.bytes)

if __name__ == "__main__":
    main()
