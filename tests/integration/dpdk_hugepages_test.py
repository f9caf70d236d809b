#!/usr/bin/env python3
"""The mempool driver of DPDK with secondaries, which need hugepages that all processes map; and the suites of dpdk-test
that need hugepages."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import PATIENCE_SECONDS, Daemon, wait_until  # noqa: E402
from support.dpdk import DRIVER, OPTIONS, client_command, environment  # noqa: E402
from support.runner import main  # noqa: E402

POOL = "name=default,capacity=64M,online=64M,backing=small"
PAGES = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
WANTED = 64  # 128 MiB


class Secondaries(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0 or not PAGES.exists():
            raise unittest.SkipTest("hugepages of 2 MiB and a mount of hugetlbfs need root")
        before = int(PAGES.read_text())
        PAGES.write_text(str(before + WANTED))
        cls.addClassCleanup(PAGES.write_text, str(before))
        if int(PAGES.read_text()) < before + WANTED:
            raise unittest.SkipTest(f"the machine has no {WANTED} hugepages of 2 MiB free")
        cls.mount = tempfile.mkdtemp(prefix="numacre-huge-", dir="/tmp")
        cls.addClassCleanup(os.rmdir, cls.mount)
        mounted = subprocess.run(["mount", "-t", "hugetlbfs", "-o", "pagesize=2M", "nodev", cls.mount],
                                 capture_output=True, text=True)
        if mounted.returncode != 0:
            raise unittest.SkipTest(f"no mount of hugetlbfs: {mounted.stderr.strip()}")
        cls.addClassCleanup(subprocess.run, ["umount", cls.mount], check=True)
        cls.daemon = Daemon("--pool", POOL)
        cls.addClassCleanup(cls.daemon.stop)

    def options(self, world, memory="64"):
        self.prefix = f"numacre-{world}-{os.getpid()}"
        self.addCleanup(shutil.rmtree, f"/var/run/dpdk/{self.prefix}", ignore_errors=True)
        return ("--huge-dir", self.mount, f"--file-prefix={self.prefix}", "-m", memory)

    def start(self, mode, kind, lcores, options, **variables):
        # The last -l counts: a process of the world has lcores of its own.
        words = [word for word in OPTIONS if word not in ("-l", "0,1")]
        process = subprocess.Popen(client_command(mode, *words, *options, "-l", lcores, f"--proc-type={kind}"),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                   env=environment(self.daemon.runtime_dir, **variables))
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        process.kill()
        process.wait(PATIENCE_SECONDS)
        process.stdin.close()
        process.stdout.close()

    def ask(self, primary, wanted):
        primary.stdin.write(f"{wanted}\n")
        primary.stdin.flush()
        return int(primary.stdout.readline())

    def secondary_dies(self, iova_mode, **variables):
        options = (*self.options(f"{iova_mode}{len(variables)}"), f"--iova-mode={iova_mode}")
        primary = self.start("primary", "primary", "0", options, **variables)
        self.assertEqual(primary.stdout.readline(), "ready\n")
        secondary = self.start("secondary", "secondary", "1", options[:3] + options[5:], **variables)
        self.assertEqual(secondary.stdout.readline(), "holds 100\n")
        # The secondary has put 600 objects of the primary's, and holds 100 itself.
        self.assertEqual(self.ask(primary, 900), 900)
        secondary.kill()
        secondary.wait(PATIENCE_SECONDS)
        self.assertEqual(self.ask(primary, 900), 900)
        primary.stdin.close()
        self.assertEqual(primary.wait(PATIENCE_SECONDS), 0)

    def test_a_secondary_dies(self):
        self.secondary_dies("va")

    def test_a_secondary_dies_and_objects_lie_in_the_pool(self):
        self.secondary_dies("va", NUMACRE_DPDK_MOVE="1")
        wait_until("the heap's memory is free again", lambda: self.daemon.used_bytes() == 0)

    def test_secondaries_are_killed_at_any_moment(self):
        kills, most_in_flight = 8, 64 + 128  # a burst each way, and the cache of the primary's lcore
        options = (*self.options("chaos"), "--iova-mode=va")
        primary = self.start("chaos-primary", "primary", "0", options)
        self.assertEqual(primary.stdout.readline(), "ready\n")
        put = 0
        for number in range(kills):
            secondary = self.start("chaos-secondary", "secondary", "1", options[:3] + options[5:])
            self.assertEqual(secondary.stdout.readline(), "works\n")
            time.sleep(0.01 + 0.013 * number)
            secondary.kill()
            secondary.wait(PATIENCE_SECONDS)
            put += self.ask(primary, f"dead {secondary.pid}")
        left = self.ask(primary, "end")
        print(f"{kills} kills, {put} objects put by the primary, {2000 - left} in quarantine")
        self.assertGreater(put, 0)
        self.assertGreaterEqual(left, 2000 - kills * most_in_flight)
        self.assertEqual(primary.wait(PATIENCE_SECONDS), 0)

    def test_the_cache_of_a_dead_process_is_not_used_by_the_next_one_on_its_lcore(self):
        options = (*self.options("cache"), "--iova-mode=va")
        primary = self.start("cache-primary", "primary", "0,1", options)
        self.assertEqual(primary.stdout.readline(), "ready\n")
        # A third lcore, on a CPU that the machine has.
        witness = subprocess.Popen(
            client_command("cache-witness", *[word for word in OPTIONS if word not in ("-l", "0,1")], *options[:3],
                           "--iova-mode=va", "--lcores", "2@0", "--proc-type=secondary"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(self.daemon.runtime_dir))
        self.addCleanup(self.end, witness)
        self.assertEqual(witness.stdout.readline(), "ready\n")
        primary.kill()
        primary.wait(PATIENCE_SECONDS)
        successor = self.start("cache-successor", "secondary", "1", options[:3] + options[5:])
        said = successor.stdout.readline()
        self.assertRegex(said, "^[0-9]+ objects, 0 of them from a dead process's cache$")
        self.assertGreater(int(said.split()[0]), 700)

    def test_physical_addresses(self):
        probe = subprocess.run(client_command("exact", *OPTIONS, *self.options("probe"), "--iova-mode=pa"), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_SECONDS,
                               env=environment(self.daemon.runtime_dir))
        if "physical addresses are not available" in probe.stdout:
            self.skipTest("the kernel does not tell physical addresses here")
        self.assertEqual(probe.returncode, 0, probe.stdout)
        self.secondary_dies("pa")
        self.secondary_dies("pa", NUMACRE_DPDK_MOVE="1")

    def test_external_buffers_without_virtual_addresses(self):
        done = subprocess.run(client_command("extbuf", *OPTIONS, *self.options("extbuf"), "--iova-mode=pa"), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_SECONDS,
                              env=environment(self.daemon.runtime_dir))
        if "physical addresses are not available" in done.stdout:
            self.skipTest("the kernel does not tell physical addresses here")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stdout, "EAL uses physical addresses .*: start with --iova-mode=va")
        self.assertEqual(self.daemon.used_bytes(), 0)

    def test_a_secondary_with_other_drivers(self):
        driver = next(iter(sorted(pathlib.Path("/usr/lib").glob("*/dpdk/pmds-*/librte_mempool_stack.so"))), None)
        if driver is None:
            self.skipTest("DPDK's mempool drivers are not installed (package librte-mempool-stack23)")
        options = self.options("other")
        primary = self.start("primary", "primary", "0", options)
        self.assertEqual(primary.stdout.readline(), "ready\n")
        # dpdk_client is linked with the driver, so that it is the first one. Here another one is initialised before.
        words = [word for word in OPTIONS if word not in ("-l", "0,1")]
        done = subprocess.run(client_command("make", *words, *options[:3], "-l", "1", "--proc-type=secondary"),
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_SECONDS,
                              env=environment(self.daemon.runtime_dir, LD_PRELOAD=f"{DRIVER} {driver}"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("start all processes with the same -d options in the same order", done.stdout)

    def test_suites_that_need_hugepages(self):
        if shutil.which("dpdk-test") is None:
            self.skipTest("dpdk-test is not installed (package dpdk-dev)")
        for suite in ("external_mem", "mempool", "mbuf"):
            with self.subTest(suite=suite):
                done = subprocess.run(["dpdk-test", *OPTIONS, *self.options(suite, "96")],
                                      input=f"{suite}_autotest\nquit\n", text=True, errors="replace",
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_SECONDS,
                                      env=environment(self.daemon.runtime_dir))
                self.assertIn("Test OK", done.stdout, done.stdout[-3000:])


if __name__ == "__main__":
    main()
