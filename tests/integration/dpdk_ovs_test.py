#!/usr/bin/env python3
"""Debian's Open vSwitch with DPDK, unmodified, bridges two ports over mempools of the driver numacre."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import PATIENCE_SECONDS, Daemon, wait_until  # noqa: E402
from support.dpdk import DRIVER, environment  # noqa: E402
from support.runner import main  # noqa: E402

POOL = "name=default,capacity=512M,online=512M,backing=small"
SWITCH = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
# The switch adds --in-memory, which needs hugepages.
EAL = f"--no-pci --no-telemetry -d {DRIVER} --mbuf-pool-ops-name=numacre"
PAGES = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
WANTED = 128  # 256 MiB: the switch begins with 262144 packets, and halves that number until it succeeds
ETH_P_ALL = 3


class Bridge(unittest.TestCase):
    def setUp(self):
        if not (os.path.exists(SWITCH) and shutil.which("ovsdb-server")):
            self.skipTest("openvswitch-switch-dpdk is not installed")
        if os.geteuid() != 0:
            self.skipTest("only root makes network interfaces and reserves hugepages")
        if not PAGES.exists():
            self.skipTest("this kernel has no hugepages of 2 MiB")
        before = int(PAGES.read_text())
        PAGES.write_text(str(before + WANTED))
        self.addCleanup(PAGES.write_text, str(before))
        if int(PAGES.read_text()) < before + WANTED:
            self.skipTest(f"the machine has no {WANTED} hugepages of 2 MiB free")
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="numacre-ovs-", dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.directory)
        self.daemon = Daemon("--pool", POOL)
        self.addCleanup(self.daemon.stop)
        self.environment = environment(self.daemon.runtime_dir, OVS_RUNDIR=str(self.directory),
                                       OVS_DBDIR=str(self.directory), OVS_LOGDIR=str(self.directory))
        self.database = f"unix:{self.directory}/db.sock"

    def start(self, *command):
        with open(self.directory / "log", "a") as log:
            process = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def log(self):
        return (self.directory / "log").read_text(errors="replace")

    def vsctl(self, *arguments):
        done = subprocess.run(["ovs-vsctl", f"--db={self.database}", "--timeout=30", *arguments], env=self.environment,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, f"{done.stderr}\n{self.log()[:3000]}")
        return done.stdout

    def link(self, end):
        """A veth pair: one end for the switch, the other one for the test."""
        names = [f"nao{os.getpid()}{end}{side}" for side in "sp"]
        made = subprocess.run(["ip", "link", "add", names[0], "type", "veth", "peer", "name", names[1]],
                              capture_output=True, text=True)
        if made.returncode != 0:
            self.skipTest(f"no veth pair: {made.stderr.strip()}")
        self.addCleanup(subprocess.run, ["ip", "link", "delete", names[0]], check=False)
        for name in names:
            subprocess.run(["ip", "link", "set", name, "up"], check=True)
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.addCleanup(raw.close)
        raw.bind((names[1], 0))
        raw.settimeout(0.2)
        return names[0], raw

    def test_two_ports(self):
        self.assertEqual(subprocess.run(["ovsdb-tool", "create", self.directory / "conf.db", SCHEMA]).returncode, 0)
        self.start("ovsdb-server", self.directory / "conf.db", f"--remote=p{self.database}")
        wait_until("the database answers", (self.directory / "db.sock").exists)
        self.vsctl("--no-wait", "init")
        self.vsctl("--no-wait", "set", "Open_vSwitch", ".", "other_config:dpdk-init=true",
                   f"other_config:dpdk-extra={EAL}", "other_config:pmd-cpu-mask=0x2")
        switch = self.start(SWITCH, self.database, "--log-file")
        self.vsctl("add-br", "bridge", "--", "set", "bridge", "bridge", "datapath_type=netdev")
        ends = []
        for number, end in enumerate("ab"):
            name, raw = self.link(end)
            ends.append(raw)
            self.vsctl("add-port", "bridge", f"port{number}", "--", "set", "Interface", f"port{number}", "type=dpdk",
                       f"options:dpdk-devargs=net_af_packet{number},iface={name}")
            self.assertEqual(self.vsctl("get", "Interface", f"port{number}", "error").strip(), "[]", self.log()[:3000])
        # The switch's mempools are ours.
        pools = [pool["name"] for pool in self.daemon.status()["pools"]]
        self.assertTrue(any(name.startswith("default.ovs") for name in pools), pools)
        frame = b"\x02\0\0\0\0\x02" + b"\x02\0\0\0\0\x01" + b"\x88\xb5" + b"numacre" * 10
        seen = set()

        def arrives():
            for sender, receiver in (ends, reversed(ends)):
                sender.send(frame)
                try:
                    while receiver.recv(2048) != frame:
                        pass
                    seen.add(sender)
                except TimeoutError:
                    pass
            return len(seen) == 2

        wait_until("frames pass both ways", arrives)
        self.assertIsNone(switch.poll(), self.log()[:3000])
        self.assertNotIn("NUMACRE:", self.log())


if __name__ == "__main__":
    main()
