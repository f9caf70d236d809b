"""A runtime directory that outlives its daemons."""

import os
import subprocess
import tempfile

from support.daemon import Daemon, program
from support.expect import expect
from support.holder import Holder
from support.numacre_client import ClientProcess

MIB = 1 << 20
CAPACITY = 64 * MIB
POOL = f"name=default,capacity={CAPACITY},online={CAPACITY // 2},frame=4K,largest=4M"


def online_bytes(daemon):
    (pool,) = [each for each in daemon.status()["pools"] if each["name"] == "default"]
    return pool["nodes"][0]["online_bytes"]


class RuntimeDir:
    """One that several daemons serve one after the other."""

    def __init__(self, pool=POOL):
        self.pool = pool

    def __enter__(self):
        self._directory = tempfile.TemporaryDirectory(prefix="numacre-", dir="/tmp")
        self.path = self._directory.name
        self._daemons = []
        return self

    def __exit__(self, *_):
        # Whatever went wrong, nothing is left behind.
        for daemon in self._daemons:
            daemon.stop()
        subprocess.run([program("numacred"), "--runtime-dir", self.path, "--discard-kept"], capture_output=True,
                       timeout=60)
        self._directory.cleanup()

    def start(self, more_arguments=(), **more):
        self._daemons.append(Daemon("--pool", self.pool, *more_arguments, runtime_dir=self.path, **more))
        return self._daemons[-1]

    def start_with_client(self, **more):
        """A daemon, and a client of it that holds three frames."""
        daemon = self.start(**more)
        client = ClientProcess(self.path)
        expect(client.alloc(4096, count=3)[0] == 0, client.message)
        return daemon, client

    def start_refused(self, *arguments):
        done = subprocess.run(
            [program("numacred"), "--runtime-dir", self.path, "--metrics-address", "127.0.0.1:0", *arguments],
            capture_output=True, text=True, timeout=60)
        expect(done.returncode == 1, f"numacred ended with {done.returncode} instead of refusing: {done.stdout}")
        return done.stdout + done.stderr

    def holder(self):
        return Holder(self.path)

    def holder_pid(self):
        holder = self.holder()
        holder.close()
        return holder.pid

    def frames_bytes(self):
        """What the kernel has put behind the frames of the pool's numa node 0."""
        holder = self.holder()
        kept = holder.kept()
        holder.close()
        found = os.fstat(kept["default/frames0"]).st_blocks * 512
        for fd in kept.values():
            os.close(fd)
        return found
