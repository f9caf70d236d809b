#!/usr/bin/env python3
"""Attributes of a pool in use: `numacre get` and `set`, a configuration that is read again (SIGHUP), and a restart with
another configuration."""

import errno
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import PATIENCE_SECONDS, Daemon, program, wait_until  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402
from support.stranger import STRANGER  # noqa: E402

MIB = 1 << 20
POOL = {"name": "default", "capacity": "64M", "online": "16M", "largest": "4M", "backing": "small"}
needs_root = unittest.skipUnless(os.geteuid() == 0, "NOT TESTED: needs root, to become another user")


class Attributes(unittest.TestCase):
    def setUp(self):
        self.runtime_dir = self.enterContext(tempfile.TemporaryDirectory(prefix="numacre-", dir="/tmp"))
        os.chmod(self.runtime_dir, 0o755)
        self.config = f"{self.runtime_dir}/numacred.toml"

    def write(self, *pools, **daemon):
        """A configuration with these pools, each a dict of its keys."""
        lines = [f"{key.replace('_', '-')} = \"{value}\"" for key, value in daemon.items()]
        for pool in pools:
            lines.append("[[pool]]")
            lines += [f"{key} = {value if isinstance(value, int) else repr(value)}" for key, value in pool.items()]
        pathlib.Path(self.config).write_text("\n".join(lines) + "\n")

    def serve(self):
        daemon = Daemon("--config", self.config, "--topology", "synthetic:2x512M", runtime_dir=self.runtime_dir)
        self.addCleanup(daemon.stop)
        return daemon

    def client(self, uid=None):
        client = ClientProcess(self.runtime_dir, uid=uid, attach=False)
        self.addCleanup(client.close)
        return client

    def get(self, daemon, pool="default"):
        return {each["key"]: each["value"] for each in daemon.cli("get", pool)["attributes"]}

    def reload(self, daemon, says):
        """Sends SIGHUP, and waits until the log has one more line of that."""
        before = daemon.log().count(says)
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(f"the log says {says} again", lambda: daemon.log().count(says) > before)

    def test_a_quota_that_is_set_is_obeyed_at_once(self):
        self.write(POOL)
        daemon, client = self.serve(), self.client()
        self.assertEqual(client.attach(), 0, client.message)
        self.assertEqual(client.alloc(MIB, count=4)[0], 0, client.message)
        (after,) = daemon.cli("set", "default", "quota=4M")["attributes"]
        self.assertEqual((after["key"], after["value"]), ("quota", "4M"))
        self.assertEqual(client.alloc(MIB)[0], -errno.EDQUOT)
        daemon.cli("set", "default", "quota=0")
        self.assertEqual(client.alloc(MIB)[0], 0, client.message)

    @needs_root
    def test_a_mode_that_is_set_holds_for_who_attaches_afterwards(self):
        self.write({**POOL, "mode": "0666"})
        daemon, first, second = self.serve(), self.client(uid=STRANGER), self.client(uid=STRANGER)
        self.assertEqual(first.attach(), 0, first.message)
        daemon.cli("set", "default", "mode=0600", f"owner={STRANGER + 1}")
        self.assertEqual(second.attach(), -errno.EACCES)
        self.assertIn(f"which is {STRANGER + 1}:", second.message)
        self.assertEqual(first.alloc(MIB)[0], 0, "who has attached stays")
        daemon.cli("set", "default", f"owner={STRANGER}")
        self.assertEqual(second.attach(), 0, second.message)

    def test_what_is_set_outlives_the_daemon_where_the_configuration_does_not_name_it(self):
        self.write({**POOL, "mode": "0640"})
        daemon, client = self.serve(), self.client()
        self.assertEqual(client.attach(), 0, client.message)
        daemon.cli("set", "default", "mode=0600", "reclaim=quarantine:2s", "autosize=10%-50%:8M-64M", "quota=32M",
                   "user-quota=4711=8M/4M", "policy=interleave", "max-clients=7")
        before = self.get(daemon)
        daemon.kill()
        again = self.serve()
        again.says("a pool differed from the configuration: it has the configured value now")
        wait_until("the configured mode is there", lambda: self.get(again)["mode"] == "0640")
        self.assertEqual(self.get(again), {**before, "mode": "0640"})
        self.assertEqual(client.alloc(MIB)[0], 0, client.message)

    def test_a_configuration_is_read_again(self):
        self.write(POOL)
        daemon, client = self.serve(), self.client()
        self.assertEqual(client.attach(), 0, client.message)
        self.write({**POOL, "fit": "best", "low-watermark": "1M", "capacity": "128M", "online": "32M"},
                   {**POOL, "name": "second"}, log_level="debug")
        self.reload(daemon, "configuration read again")
        self.assertEqual([pool["name"] for pool in daemon.status()["pools"]], ["default", "second"])
        found = self.get(daemon)
        self.assertEqual((found["fit"], found["low-watermark"], found["capacity"], found["online"]),
                         ("best", "1M", "64M", "16M"))
        log = daemon.log()
        self.assertIn("a pool differs from the configuration: it keeps its value", log)
        self.assertIn("a key of the daemon has changed: it takes effect at the next start", log)
        self.assertEqual(client.alloc(MIB)[0], 0, client.message)
        # A pool that the file has no more stays.
        self.write({**POOL, "fit": "nearby"})
        self.reload(daemon, "a pool is not in the configuration: it stays")
        self.assertEqual(self.get(daemon)["fit"], "nearby")
        self.assertEqual(len(daemon.status()["pools"]), 2)

    def test_keys_that_belong_together_are_changed_in_one_step(self):
        self.write({**POOL, "quota": "32M", "soft-quota": "16M"})
        daemon = self.serve()
        self.write({**POOL, "quota": "8M", "soft-quota": "4M"})
        self.reload(daemon, "configuration read again")
        found = self.get(daemon)
        self.assertEqual((found["quota"], found["soft-quota"]), ("8M", "4M"))
        self.assertNotIn("it keeps its value", daemon.log())

    def test_a_key_that_is_refused_keeps_no_other_from_its_value(self):
        self.write({**POOL, "mode": "0666", "quota": "32M", "soft-quota": "16M", "max-clients": 8, "capacity": "64M"})
        daemon = self.serve()
        narrowed = {**POOL, "mode": "0600", "quota": "8M", "soft-quota": "4M", "max-clients": 16, "capacity": "128M",
                    "low-watermark": "100M"}
        expected = {"mode": "0600", "quota": "8M", "soft-quota": "4M", "max-clients": "8", "capacity": "64M",
                    "low-watermark": "0"}

        def seen(daemon):
            found = self.get(daemon)
            return {key: found[key] for key in expected}

        self.write(narrowed)
        self.reload(daemon, "configuration read again")
        self.assertEqual(seen(daemon), expected)
        kept = [line for line in daemon.log().splitlines() if "it keeps its value" in line]
        self.assertEqual(len(kept), 3, kept)
        for key in ("max-clients", "capacity", "low-watermark"):
            self.assertTrue(any(f"attribute={key}" in line or key in line for line in kept), kept)
        daemon.cli("set", "default", "mode=0666", "quota=0", "soft-quota=0")
        daemon.kill()
        again = self.serve()
        again.says("a pool differed from the configuration: it has the configured value now")
        wait_until("the configured mode is there", lambda: seen(again) == expected)

    def test_a_shorter_quarantine_holds_for_blocks_that_are_there(self):
        self.write({**POOL, "reclaim": "quarantine:1h"})
        daemon, client = self.serve(), self.client()
        self.assertEqual(client.attach(), 0, client.message)
        self.assertEqual(client.alloc(MIB, count=4)[0], 0, client.message)
        client.kill()
        wait_until("the client is reaped", lambda: not daemon.clients())
        self.assertEqual(daemon.used_bytes(), 4 * MIB)
        daemon.cli("set", "default", "reclaim=quarantine:1s")
        wait_until("its blocks are free", lambda: daemon.used_bytes() == 0)

    def test_signals_while_the_daemon_starts_and_ends(self):
        self.write(POOL)
        for _ in range(5):
            daemon = subprocess.Popen([program("numacred"), "--runtime-dir", self.runtime_dir, "--config", self.config,
                                       "--metrics-address", ""], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.addCleanup(daemon.kill)
            # From the first instruction of main() on: before, the signal ends any program.
            wait_until("it blocks the signal", lambda: self.blocks(daemon.pid, signal.SIGHUP))
            for _ in range(50):
                daemon.send_signal(signal.SIGHUP)
            wait_until("it serves", lambda: subprocess.run(
                [program("numacre"), "--runtime-dir", self.runtime_dir, "status"], capture_output=True).returncode == 0)
            for _ in range(50):
                daemon.send_signal(signal.SIGHUP)
            daemon.send_signal(signal.SIGTERM)
            self.assertEqual(daemon.wait(PATIENCE_SECONDS), 0)

    @staticmethod
    def blocks(pid, number):
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:")]
        return int(mask, 16) >> (number - 1) & 1

    def test_a_configuration_with_an_error_changes_nothing(self):
        self.write(POOL)
        daemon = self.serve()
        before = self.get(daemon)
        self.write({**POOL, "fit": "best", "mode": "0999"})
        self.reload(daemon, "the configuration is refused: nothing is changed")
        self.assertIn("numacred.toml:", daemon.log())
        os.unlink(self.config)
        self.reload(daemon, "the configuration is refused: nothing is changed")
        self.assertEqual(self.get(daemon), before)
        self.assertEqual(daemon.stop(), 0)

    def test_many_signals_and_changes_at_once(self):
        self.write({**POOL, "fit": "best"})
        daemon, client = self.serve(), self.client()
        self.assertEqual(client.attach(), 0, client.message)
        for i in range(20):
            daemon.process.send_signal(signal.SIGHUP)
            daemon.cli("set", "default", f"fit={('compact', 'nearby')[i % 2]}", f"quota={16 + i}M")
            self.assertEqual(client.alloc(4096)[0], 0, client.message)
        self.reload(daemon, "configuration read again")
        self.assertEqual((self.get(daemon)["fit"], self.get(daemon)["quota"]), ("best", "35M"))
        self.assertFalse(daemon.status()["pools"][0]["state"] == "corrupt")

    def test_a_refusal_names_the_reason(self):
        self.write(POOL)
        daemon = self.serve()
        for setting, words in {"capacity=1G": "a pool in use keeps its capacity", "mode=0777": "mode = 0777",
                               "max-clients=300": "made for 256 processes", "policy=strict:7": "numa node",
                               "colour=red": "unknown attribute", "online=32M": "numacre resize"}.items():
            done = daemon.run_cli("set", "default", "fit=best", setting)
            self.assertEqual(done.returncode, 1, setting)
            self.assertIn(words, done.stderr)
        self.assertEqual(self.get(daemon)["fit"], "nearby")


if __name__ == "__main__":
    main()
