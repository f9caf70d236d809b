#!/usr/bin/env python3
"""The device net_numacre: testpmd in independent DPDK primaries, in a chain between two programs without DPDK. No
packet arrives twice or changed, packets are not copied, and kills leave no object behind."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import PATIENCE_SECONDS, Daemon, wait_until  # noqa: E402
from support.dpdk import BUILD, DEVICE, environment  # noqa: E402
from support.runner import main  # noqa: E402

POOL = "name=default,capacity=64M,online=64M,backing=small"
PACKETS = "default.packets"
OBJECTS = 4096  # as packet_peer's
# Channels that are never full: testpmd drops what does not fit.
CHAIN = (f"count=0,capacity={OBJECTS},rx=in,tx=middle", f"count=0,capacity={OBJECTS},rx=middle,tx=out")
PEER = BUILD / "test-bin" / "packet_peer"
KILLS = int(os.environ.get("NUMACRE_DPDK_KILLS") or 4)


def state_of(process):
    """As in proc(5)."""
    return pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


class Device(unittest.TestCase):
    def setUp(self):
        if shutil.which("dpdk-testpmd") is None:
            self.skipTest("dpdk-testpmd is not installed (package dpdk-dev)")
        if not DEVICE.exists():
            self.skipTest(f"{DEVICE} is not built (package libdpdk-dev)")
        self.daemon = Daemon("--pool", POOL)
        self.addCleanup(self.daemon.stop)
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="numacre-vdev-", dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.directory)
        self.started = 0

    def start(self, *command):
        self.started += 1
        log_path = self.directory / f"log{self.started}"
        with open(log_path, "w") as log:
            process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=log, stderr=log,
                                       text=True, env=environment(self.daemon.runtime_dir))
        process.log = lambda: log_path.read_text(errors="replace")
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        process.kill()
        process.wait(PATIENCE_SECONDS)
        process.stdin.close()

    def start_testpmd(self, devices, *options):
        """A primary of its own, which forwards what it receives."""
        words = []
        for number, device in enumerate(devices):
            words += ["--vdev", f"net_numacre{number},{device}"]
        # A line at a time, though into a file. The lcore that forwards is another one each time.
        process = self.start("stdbuf", "-oL", "dpdk-testpmd", "--no-pci", "--no-telemetry", "--no-huge", "--no-shconf",
                             "-m", "128", "-l", "0,1", f"--main-lcore={self.started % 2}", "-d", DEVICE,
                             f"--file-prefix=nv{os.getpid()}-{self.started}", *words, "--",
                             "--auto-start", "--no-flush-rx", "--disable-link-check", "--total-num-mbufs=2048",
                             *options)
        self.await_line(process, "Press enter to exit|core dumped")
        return process

    def peer(self, channel, *words):
        process = self.start(PEER, self.daemon.runtime_dir, channel, *words)
        self.await_line(process, "ready")
        return process

    def await_line(self, process, pattern):
        wait_until(f"{process.args[0]} says {pattern}",
                   lambda: re.search(pattern, process.log()) or process.poll() is not None)
        self.assertRegex(process.log(), pattern)

    def finishes(self, process, last_words="\n"):
        """It ends well. Its log."""
        try:
            process.communicate(last_words, timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.fail(f"does not end: {process.log()[-3000:]}")
        self.assertEqual(process.returncode, 0, process.log()[-3000:])
        return process.log()

    def record(self, count):
        path = self.directory / "record"
        path.write_bytes(bytes(count))
        return path

    def expect_nothing_in_use(self):
        """While the object pool is still there, for some peer has it."""
        wait_until("all objects are free", lambda: self.daemon.used_bytes(PACKETS) == 0)

    def test_two_primaries_in_a_chain(self):
        count = 50000
        record = self.record(count)
        sink = self.peer("out.0", "receive", record, "same-block")
        chain = [self.start_testpmd([device]) for device in CHAIN]
        source = self.peer("in.0", "send", 0, count)
        wait_until("all packets have arrived",
                   lambda: record.read_bytes().count(1) == count or sink.poll() is not None)
        self.finishes(source)
        for process in chain:
            log = self.finishes(process)
            self.assertRegex(log, rf"RX-packets: {count} +RX-dropped: 0 ")
            self.assertRegex(log, rf"TX-packets: {count} +TX-dropped: 0 ")
            self.assertNotIn("NUMACRE:", log)
        self.expect_nothing_in_use()
        self.finishes(sink)
        self.assertEqual(record.read_bytes(), b"\1" * count)

    def stop_with_packets(self, process):
        """Stops it at a moment at which it has packets in hand. Returns how many."""
        held = 0

        def stopped_with_packets():
            nonlocal held
            process.send_signal(signal.SIGSTOP)
            wait_until("it stands still", lambda: state_of(process) == "T")
            held = sum(client["blocks"] for client in self.daemon.clients() if client["pid"] == process.pid)
            if held == 0:
                process.send_signal(signal.SIGCONT)
            return held

        wait_until("it has packets in hand", stopped_with_packets)
        return held

    def test_kills_in_the_middle(self):
        count = 4_000_000
        record = self.record(count)
        sink = self.peer("out.0", "receive", record, "same-block")
        # Each packet takes them some time, so that most moments find them with packets in hand.
        busy = ("--forward-mode=noisy", "--noisy-lkup-memory=1", "--noisy-lkup-num-reads=1000")
        chain = [self.start_testpmd([device], *busy) for device in CHAIN]
        source = self.peer("in.0", "send", 0, count)

        def arrived():
            self.assertIsNone(sink.poll(), sink.log())
            return count - record.read_bytes().count(0)

        def expect_progress():
            before = arrived()
            wait_until("packets arrive", lambda: arrived() > before + 1000 or source.poll() is not None)

        held = 0
        for kill in range(KILLS):
            expect_progress()
            self.assertIsNone(source.poll(), "the source has ended: send more packets")
            victim = kill % 2
            held += self.stop_with_packets(chain[victim])
            chain[victim].send_signal(signal.SIGKILL)
            chain[victim].wait(PATIENCE_SECONDS)
            chain[victim] = self.start_testpmd([CHAIN[victim]], *busy)
        expect_progress()
        source.send_signal(signal.SIGKILL)
        source.wait(PATIENCE_SECONDS)
        self.expect_nothing_in_use()
        total = arrived()
        for process in chain:
            self.assertNotIn("NUMACRE:", self.finishes(process))
        self.expect_nothing_in_use()
        self.finishes(sink)
        # What is lost was in the hands of a process that was killed.
        last = len(record.read_bytes().rstrip(b"\0"))
        print(f"{KILLS} kills with {held} packets in hand: {total} of the first {last} packets arrived")
        self.assertLessEqual(last - total, held)

    def test_packets_of_another_mempool_are_copied(self):
        count = 20000
        counter = self.peer("out.0", "count", count, 192)
        # Two segments.
        sender = self.start_testpmd([f"count={OBJECTS},tx=out"], "--forward-mode=txonly", "--txpkts=64,128",
                              "--tx-offloads=0x8000")
        self.finishes(counter)
        self.finishes(sender)

    def test_a_block_that_is_no_packet(self):
        sink = self.peer("out.0", "receive", self.record(10))
        forwarder = self.start_testpmd([f"count={OBJECTS},capacity={OBJECTS},rx=in,tx=out"])
        self.finishes(self.peer("in.0", "garble"))
        self.expect_nothing_in_use()
        self.finishes(self.peer("in.0", "send", 1, 9))
        wait_until("packets arrive", lambda: (self.directory / "record").read_bytes() == b"\0" + b"\1" * 9)
        self.assertRegex(self.finishes(forwarder), "RX-error: 1")
        self.finishes(sink)

    def test_bad_options(self):
        for options, message in (("count=8", "give the name of a channel"),
                                 ("rx=a,tx=a", "rx and tx are both a"),
                                 ("rx=a,queues=9", "queues=9: give a number from 1 to 8"),
                                 ("rx=a,color=red", "there are pool, packets"),
                                 ("rx=a,pool=none", "no packets none.packets"),
                                 ("rx=a,count=0", "no packets default.packets")):
            with self.subTest(options=options):
                done = subprocess.run(["dpdk-testpmd", "--no-pci", "--no-telemetry", "--no-huge", "--no-shconf", "-m",
                                       "128", "-l", "0,1", "-d", str(DEVICE), "--vdev", f"net_numacre0,{options}"],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      text=True, errors="replace", timeout=PATIENCE_SECONDS,
                                      env=environment(self.daemon.runtime_dir))
                # testpmd goes on without ports.
                self.assertIn(message, done.stdout)


if __name__ == "__main__":
    main()
