#!/usr/bin/env python3
"""Programs of DPDK, unmodified, on mempools of the driver numacre: suites of dpdk-test, and testpmd over devices
without hardware. dpdk_suites_test.py --deep runs the long ones. (table_autotest fails with DPDK's own drivers as well,
and multiprocess_autotest and pdump_autotest do where secondaries of dpdk-test cannot start.)"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import PATIENCE_SECONDS, Daemon, wait_until  # noqa: E402
from support.dpdk import NO_HUGEPAGES, OPTIONS, environment  # noqa: E402
from support.runner import main  # noqa: E402

POOL = "name=default,capacity=512M,online=512M,backing=small"
SHORT_SUITES = ("mempool", "mbuf", "func_reentrancy", "ring_pmd", "ipfrag", "reorder", "sched",
                "event_eth_tx_adapter", "bitratestats", "cksum")
LONG_SUITES = ("distributor", "link_bonding")


def find(program):
    path = shutil.which(program)
    if path is None:
        raise unittest.SkipTest(f"{program} is not installed (packages dpdk, dpdk-dev)")
    return path


class Programs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon("--pool", POOL)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def run_suites(self, suites, options=NO_HUGEPAGES, **variables):
        for suite in suites:
            with self.subTest(suite=suite, **variables):
                done = subprocess.run([find("dpdk-test"), *OPTIONS, *options], input=f"{suite}_autotest\nquit\n",
                                      text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      timeout=PATIENCE_SECONDS,
                                      env=environment(self.daemon.runtime_dir, **variables))
                self.assertIn("Test OK", done.stdout, done.stdout[-3000:])
                self.assertNotIn("NUMACRE:", done.stdout)


class Short(Programs):
    def test_suites(self):
        self.run_suites(SHORT_SUITES)

    def test_suites_with_objects_in_the_pool(self):
        self.run_suites(SHORT_SUITES, NUMACRE_DPDK_MOVE="1")

    def forward(self, *devices, **variables):
        """testpmd forwards packets between two ports for a moment."""
        commands = "start tx_first 32\n" + "show port stats all\n" * 200 + "stop\nquit\n"
        vdevs = [part for device in devices for part in ("--vdev", device)]
        done = subprocess.run([find("dpdk-testpmd"), *OPTIONS, *NO_HUGEPAGES, *vdevs, "--", "-i",
                               "--forward-mode=macswap", "--total-num-mbufs=16384", "--disable-link-check"],
                              input=commands, text=True, errors="replace", stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=2 * PATIENCE_SECONDS,
                              env=environment(self.daemon.runtime_dir, **variables))
        self.assertEqual(done.returncode, 0, done.stdout[-3000:])
        self.assertNotIn("NUMACRE:", done.stdout)
        # The last ones are the sums of all ports.
        received = int(re.findall(r"RX-packets: (\d+) +RX-dropped: \d+ +RX-total", done.stdout)[-1])
        sent = int(re.findall(r"TX-packets: (\d+) +TX-dropped: \d+ +TX-total", done.stdout)[-1])
        self.assertGreater(received, 0, done.stdout[-3000:])
        self.assertGreater(sent, 0, done.stdout[-3000:])

    def both_ways(self, *devices):
        for moves in ("0", "1"):
            with self.subTest(devices=devices, moves=moves):
                self.forward(*devices, NUMACRE_DPDK_MOVE=moves)

    def test_testpmd_over_null(self):
        self.both_ways("net_null0", "net_null1")

    def test_testpmd_over_ring(self):
        self.both_ways("net_ring0", "net_ring1")

    def test_testpmd_over_memif(self):
        # The two ends of one shared-memory interface, in one process.
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            socket = f"socket={directory}/memif,socket-abstract=no"
            self.both_ways(f"net_memif0,role=server,id=0,{socket}", f"net_memif1,role=client,id=0,{socket}")

    def test_testpmd_over_links_of_the_kernel(self):
        if os.geteuid() != 0:
            self.skipTest("only root makes network interfaces")
        names = [f"nad{os.getpid()}{end}" for end in "ab"]
        made = subprocess.run(["ip", "link", "add", names[0], "type", "veth", "peer", "name", names[1]],
                              capture_output=True, text=True)
        if made.returncode != 0:
            self.skipTest(f"no veth pair: {made.stderr.strip()}")
        self.addCleanup(subprocess.run, ["ip", "link", "delete", names[0]], check=False)
        for name in names:
            subprocess.run(["ip", "link", "set", name, "up"], check=True)
        for kind in ("net_af_packet{i},iface={name}", "net_pcap{i},iface={name}", "net_af_xdp{i},iface={name}"):
            self.both_ways(*(kind.format(i=i, name=name) for i, name in enumerate(names)))

    def start_testpmd(self, log, mode, *options):
        command = [find("dpdk-testpmd"), *OPTIONS, *NO_HUGEPAGES, "--single-file-segments", *options, "--", "-i",
                   f"--forward-mode={mode}", "--auto-start", "--total-num-mbufs=8192", "--disable-link-check"]
        process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
                                   env=environment(self.daemon.runtime_dir))
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_vhost_and_virtio_user(self):
        """One testpmd sends by virtio-user what another one receives by vhost."""
        with tempfile.TemporaryDirectory(dir="/tmp") as directory, open(f"{directory}/log", "w+") as log:
            path = pathlib.Path(directory, "vhost")
            receiver = self.start_testpmd(log, "rxonly", "--vdev", f"net_vhost0,iface={path}")
            wait_until("the socket of vhost", path.exists)
            with open(f"{directory}/other", "w") as other:
                sender = self.start_testpmd(other, "txonly", "--vdev", f"net_virtio_user0,path={path},queues=1")

                def received():
                    receiver.stdin.write("show port stats 0\n")
                    receiver.stdin.flush()
                    found = re.findall(r"RX-packets: (\d+)", pathlib.Path(log.name).read_text(errors="replace"))
                    return found and int(found[-1]) > 1000

                wait_until("packets arrive", received)
                for process in (sender, receiver):
                    process.communicate("stop\nquit\n", timeout=PATIENCE_SECONDS)
                    self.assertEqual(process.returncode, 0)
            for name in ("log", "other"):
                self.assertNotIn("NUMACRE:", pathlib.Path(directory, name).read_text(errors="replace"))


class Long(Programs):
    def test_long_suites(self):
        self.run_suites(LONG_SUITES)
        self.run_suites(LONG_SUITES, NUMACRE_DPDK_MOVE="1")


if "--deep" in sys.argv:
    sys.argv.remove("--deep")
    del Short
else:
    del Long

if __name__ == "__main__":
    main()
