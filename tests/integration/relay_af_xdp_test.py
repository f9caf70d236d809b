#!/usr/bin/env python3
"""`relay run --af-xdp` and its two sides, over a pair of interfaces in a network namespace of the test's own: what it
counts is what was sent; whoever is killed, the other side ends cleanly and the pool is empty afterwards.

What was on its way to a reader that was killed is there for the next one.

The rounds with kills take their moments from a seed: NUMACRE_TEST_SEED, else 1.
"""

import collections
import os
import pathlib
import random
import signal
import socket
import struct
import sys
import threading
import time
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support import veth  # noqa: E402
from support.daemon import Daemon, bin_dir, wait_until  # noqa: E402
from support.relay import DONE, FAILED, PEER_LOST, Relay, flows_of, wait_for_flow  # noqa: E402
from support.runner import main  # noqa: E402

OBJECT_BYTES = 2368
POOLS = (
    "--pool", f"name=packets,object={OBJECT_BYTES},count=16384,backing=small,pin-quarantine=1s",
    "--pool", f"name=few,object={OBJECT_BYTES},count=300,backing=small",
    "--pool", "name=offline,capacity=64M,online=16M,frame=4K,largest=2M,backing=small",
    "--pool", "name=frames,capacity=64M,online=64M,frame=2K,largest=2M,backing=small",
)  # fmt: skip
SEED = int(os.environ.get("NUMACRE_TEST_SEED", "1"))
LISTENS = "by AF_XDP"  # said once the kernel has blocks for packets


def setUpModule():
    if not (bin_dir().parent / "test-bin" / "af_xdp_client").exists():
        raise unittest.SkipTest("NOT TESTED: built without libxdp (Debian packages libxdp-dev, libbpf-dev)")
    veth.make_pair()


def udp_packet(flow, payload_bytes):
    """Ethernet, IPv4, UDP. The flow is the number in the addresses and ports."""
    udp = struct.pack("!HHHH", 1000 + flow, 2000 + flow, 8 + payload_bytes, 0) + bytes(payload_bytes)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, socket.IPPROTO_UDP, 0,
                     bytes([10, 0, 0, flow]), bytes([10, 0, 1, flow]))
    return bytes(12) + b"\x08\x00" + ip + udp


class Traffic:
    """Packets of several flows out of v1, until end() or `count` are sent. What was sent is in `sent`."""

    FLOWS = 50

    def __init__(self, count=None):
        self.sent = collections.defaultdict(lambda: [0, 0])
        self.packets = 0
        self._count, self._ended = count, False
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self):
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
            out.bind(("v1", 0))
            while not self._ended and self.packets != self._count:
                flow = self.packets * 7 % self.FLOWS
                packet = udp_packet(flow, self.packets * 31 % 1400)
                out.send(packet)
                key = (socket.IPPROTO_UDP, f"10.0.0.{flow}", 1000 + flow, f"10.0.1.{flow}", 2000 + flow)
                self.sent[key][0] += 1
                self.sent[key][1] += len(packet)
                self.packets += 1
                if self.packets % 32 == 0:
                    time.sleep(0.001)  # so that nothing is dropped, which a test would count as a fault

    def end(self):
        self._ended = True
        self._thread.join()


class ByAfXdp(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(*POOLS)
        cls.addClassCleanup(cls.daemon.stop)

    def relay(self, role, *arguments):
        relay = Relay(self.daemon, role, *arguments)
        self.addCleanup(relay.close)
        return relay

    def tearDown(self):
        self.assertTrue(self.daemon.alive(), f"numacred has ended:\n{self.daemon.log()}")
        self.doCleanups()
        wait_until("no client is attached", lambda: not self.daemon.clients())
        for pool in ("packets", "few", "frames"):
            wait_until(f"pool {pool} is empty", lambda: self.daemon.used_bytes(pool) == 0)

    def traffic(self, count=None):
        traffic = Traffic(count)
        self.addCleanup(traffic.end)
        return traffic

    def pair(self, *arguments, pool="packets"):
        """(capture, flows) as two commands."""
        flows = self.relay("flows", "--pool", pool)
        flows.await_words("reading channel")
        capture = self.relay("capture", "--af-xdp", "--interface", "v0", "--pool", pool, *arguments)
        capture.await_words(LISTENS)
        return capture, flows


class Counting(ByAfXdp):
    def test_each_flow_has_the_packets_and_bytes_that_were_sent(self):
        for pool in ("packets", "frames"):
            with self.subTest(pool):
                count = 20000
                both = self.relay("run", "--af-xdp", "--interface", "v0", "--pool", pool, "--limit", count, "--top",
                                  1000)
                both.await_words(LISTENS)
                traffic = self.traffic(count)
                ended = both.end()
                traffic.end()
                self.assertEqual(ended.status, DONE, ended.errors)
                for side, report in ended.reports.items():
                    self.assertEqual((report["ended"], report["packets"], report["blocks_held"]),
                                     ("complete", count, 0), side)
                self.assertEqual(flows_of(ended.reports["flows"]), dict(traffic.sent))
                report = ended.reports["capture"]
                self.assertEqual((report["dropped_pool_full"], report["dropped_by_kernel"]), (0, 0))

    def test_a_stop_relays_what_has_come_and_keeps_nothing(self):
        capture, flows = self.pair()
        traffic = self.traffic()
        wait_for_flow(self.daemon, capture, 100)
        capture.signal(signal.SIGINT)
        captured, counted = capture.end(), flows.end()
        traffic.end()
        self.assertEqual((captured.status, captured.reports["capture"]["ended"]), (DONE, "stopped"), captured.errors)
        self.assertEqual((counted.status, counted.reports["flows"]["ended"]), (DONE, "complete"), counted.errors)
        self.assertEqual(counted.reports["flows"]["packets"], captured.reports["capture"]["packets"])
        self.assertEqual(captured.reports["capture"]["blocks_held"], 0)

    def test_a_full_pool_drops_packets_and_goes_on(self):
        capture, flows = self.pair(pool="few")
        traffic = self.traffic()
        wait_for_flow(self.daemon, capture, 100)
        flows.signal(signal.SIGSTOP)
        before = traffic.packets
        wait_until("more has come than the pool holds", lambda: traffic.packets > before + 2000)
        flows.signal(signal.SIGCONT)
        wait_for_flow(self.daemon, capture, 100)
        traffic.end()
        capture.signal(signal.SIGTERM)
        captured, counted = capture.end(), flows.end()
        self.assertEqual((captured.status, counted.status), (DONE, DONE), captured.errors + counted.errors)
        report = captured.reports["capture"]
        self.assertGreater(report["dropped_pool_full"], 0)
        self.assertEqual(report["blocks_held"], 0)
        self.assertEqual(counted.reports["flows"]["packets"], report["packets"])


class SuddenEnd(ByAfXdp):
    def test_either_side_killed_at_any_moment(self):
        print(f"seed {SEED}", flush=True)
        rng = random.Random(SEED)
        traffic = self.traffic()
        for round_ in range(8):
            victim_is_reader = round_ % 2 == 0
            with self.subTest(round=round_, seed=SEED, killed="flows" if victim_is_reader else "capture"):
                capture, flows = self.pair()
                wait_for_flow(self.daemon, capture, 100)
                time.sleep(rng.random() * 0.05)
                victim, survivor = (flows, capture) if victim_is_reader else (capture, flows)
                victim.signal(signal.SIGKILL)
                ended = survivor.end()
                self.assertEqual(ended.status, PEER_LOST, ended.errors)
                (report,) = ended.reports.values()
                self.assertGreater(report["packets"], 0)
                self.assertEqual(report["blocks_held"], 0)
                if victim_is_reader:
                    late = self.relay("flows", "--pool", "packets").end()
                    self.assertEqual((late.status, late.reports["flows"]["ended"]), (DONE, "complete"), late.errors)
                    self.assertGreaterEqual(late.reports["flows"]["packets"], report["in_channel_at_end"])
                wait_until("the pool is empty", lambda: self.daemon.used_bytes("packets") == 0)
        traffic.end()


class Refusals(ByAfXdp):
    def refused(self, words, *arguments):
        ended = self.relay("run", "--af-xdp", *arguments).end()
        self.assertEqual(ended.status, FAILED, ended.errors)
        for word in words:
            self.assertIn(word, ended.errors)

    def test_each_refusal_names_the_remedy(self):
        self.refused(("67108864 bytes", "numacre resize"), "--interface", "v0", "--pool", "offline")
        self.refused(("nosuchif0", "ip link"), "--interface", "nosuchif0", "--pool", "packets")
        self.refused(("queue 5", "ethtool -l v0"), "--interface", "v0", "--pool", "packets", "--queue", "5")

    def test_options_that_do_not_go_together_are_refused(self):
        for arguments in (("--pcap", __file__), ("--interface", "v0", "--snap-bytes", "100"), ()):
            ended = self.relay("run", "--af-xdp", *arguments)
            self.assertNotEqual(ended.end().status, DONE)
        self.assertNotEqual(self.relay("run", "--interface", "v0", "--queue", "1").end().status, DONE)


if __name__ == "__main__":
    main()
