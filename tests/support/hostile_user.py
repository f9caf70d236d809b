"""A daemon whose runtime directory any user reaches, for tests of what users without rights can do to it."""

import os
import shutil
import tempfile
import unittest
import urllib.request

from support.daemon import PATIENCE_SECONDS, Daemon
from support.numacre_client import ClientProcess
from support.stranger import STRANGER, Stranger

SYNTHETIC = ("--topology", "synthetic:1x512M")
POOL = ("--pool", "name=default,capacity=64M,online=16M,frame=4K,largest=4M,backing=small,mode=666")
MIB = 1 << 20
needs_root = unittest.skipUnless(os.geteuid() == 0, "NOT TESTED: needs root, to become another user")


class HostileUser(unittest.TestCase):
    """A test of that kind. No tests of its own."""

    def setUp(self):
        # Another user has to reach the sockets.
        self.runtime_dir = tempfile.mkdtemp(prefix="numacre-", dir="/tmp")
        os.chmod(self.runtime_dir, 0o755)
        self.addCleanup(shutil.rmtree, self.runtime_dir, ignore_errors=True)

    def serve(self, *arguments, pool=POOL, topology=SYNTHETIC, **more):
        daemon = Daemon(*topology, *pool, *arguments, runtime_dir=self.runtime_dir, **more)
        self.addCleanup(daemon.stop)
        return daemon

    def stranger(self, prepare, uid=STRANGER):
        stranger = Stranger(prepare, uid)
        self.addCleanup(stranger.end)
        return stranger

    def check_attach(self, uid=None):
        with ClientProcess(self.runtime_dir, uid=uid) as client:
            self.assertEqual(client.alloc(4096)[0], 0, client.message)

    def scrape(self, daemon):
        with urllib.request.urlopen(f"http://{daemon.metrics_address}/metrics", timeout=PATIENCE_SECONDS) as answer:
            return answer.read().decode()

    def metric(self, daemon, name):
        return sum(float(line.split()[-1]) for line in self.scrape(daemon).splitlines() if line.startswith(name + "{"))
