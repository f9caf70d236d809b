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

from support.daemon import PATIENCE_SECONDS, Daemon  # noqa: E402
from support.dpdk import NO_HUGEPAGES, OPTIONS, environment  # noqa: E402
from support.runner import main  # noqa: E402

POOL = "name=default,capacity=512M,online=512M,backing=small"
DEEP = "--deep" in sys.argv
SHORT_SUITES = ("mempool", "mbuf", "func_reentrancy", "ring_pmd", "ipfrag", "reorder", "sched",
                "event_eth_tx_adapter", "bitratestats", "cksum")
LONG_SUITES = ("distributor", "link_bonding")
HUGEPAGES = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")


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

    @unittest.skipIf(DEEP, "in the short run")
    def test_suites(self):
        self.run_suites(SHORT_SUITES)

    @unittest.skipIf(DEEP, "in the short run")
    def test_suites_with_objects_in_the_pool(self):
        self.run_suites(SHORT_SUITES, NUMACRE_DPDK_MOVE="1")

    @unittest.skipUnless(DEEP, "in the deep run")
    def test_long_suites(self):
        self.run_suites(LONG_SUITES)
        self.run_suites(LONG_SUITES, NUMACRE_DPDK_MOVE="1")

    def forward(self, *devices, **variables):
        """testpmd forwards packets between two ports for a moment."""
        commands = "start tx_first 32\n" + "show port stats all\n" * 200 + "stop\nquit\n"
        vdevs = [part for device in devices for part in ("--vdev", device)]
        done = subprocess.run([find("dpdk-testpmd"), *OPTIONS, *NO_HUGEPAGES, *vdevs, "--", "-i",
                               "--forward-mode=macswap", "--total-num-mbufs=16384"], input=commands, text=True,
                              errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=2 * PATIENCE_SECONDS, env=environment(self.daemon.runtime_dir, **variables))
        self.assertEqual(done.returncode, 0, done.stdout[-3000:])
        self.assertNotIn("NUMACRE:", done.stdout)
        totals = re.findall(r"Accumulated forward statistics.*?RX-packets: (\d+).*?TX-packets: (\d+)", done.stdout,
                            re.DOTALL)
        self.assertTrue(totals, done.stdout[-3000:])
        received, sent = map(int, totals[-1])
        self.assertGreater(received, 0, done.stdout[-3000:])
        self.assertGreater(sent, 0, done.stdout[-3000:])

    def both_ways(self, *devices):
        for moves in ("0", "1"):
            with self.subTest(devices=devices, moves=moves):
                self.forward(*devices, NUMACRE_DPDK_MOVE=moves)

    @unittest.skipIf(DEEP, "in the short run")
    def test_testpmd_over_null(self):
        self.both_ways("net_null0", "net_null1")

    @unittest.skipIf(DEEP, "in the short run")
    def test_testpmd_over_ring(self):
        self.both_ways("net_ring0", "net_ring1")

    @unittest.skipIf(DEEP, "in the short run")
    def test_testpmd_over_memif(self):
        # The two ends of one shared-memory interface, in one process.
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            socket = f"socket={directory}/memif,socket-abstract=no"
            self.both_ways(f"net_memif0,role=server,id=0,{socket}", f"net_memif1,role=client,id=0,{socket}")

    @unittest.skipIf(DEEP, "in the short run")
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

    @unittest.skipIf(DEEP, "in the short run")
    def test_vhost_and_virtio_user(self):
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            socket = f"{directory}/vhost"
            self.forward(f"net_vhost0,iface={socket}", f"net_virtio_user0,path={socket},queues=1")


if __name__ == "__main__":
    sys.argv = [argument for argument in sys.argv if argument != "--deep"]
    main()
