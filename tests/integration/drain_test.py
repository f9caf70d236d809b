#!/usr/bin/env python3
"""Chunks are emptied under threads that free and allocate all the time: what they free there does not come back to
them."""

import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.daemon import PATIENCE_SECONDS, Daemon, bin_dir, wait_until  # noqa: E402
from support.runner import main  # noqa: E402

MIB = 1 << 20
CHUNK = 4 * MIB
ONLINE = 32 * MIB
THREADS = 2
FRAMES = 200  # of each thread: far more than one request for what it has cached can find there


class Churn:
    """Is at work when the constructor returns."""

    def __init__(self, daemon):
        program = bin_dir().parent / "test-bin" / "churning_client"
        self.process = subprocess.Popen([str(program), daemon.runtime_dir, "default", str(THREADS), str(FRAMES)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.chunks = [int(chunk) for chunk in self.process.stdout.readline().split()]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def is_at_work(self):
        return self.process.poll() is None


class DrainTest(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon("--pool", f"name=default,capacity=64M,online={ONLINE},frame=4K,largest=4M,backing=small")
        self.addCleanup(self.daemon.stop)

    def online_bytes(self):
        return self.daemon.status()["pools"][0]["nodes"][0]["online_bytes"]

    def drain(self, chunk):
        return self.daemon.cli("drain", "default", "--node", "0", "--chunk", str(chunk))

    def test_a_drain_ends_although_threads_go_on_with_what_they_have(self):
        with Churn(self.daemon) as churn:
            self.assertTrue(churn.chunks)
            for chunk in churn.chunks:
                self.drain(chunk)
            wait_until("the chunks are offline", lambda: self.online_bytes() == ONLINE - len(churn.chunks) * CHUNK)
            self.assertTrue(churn.is_at_work(), "it did not fail")
        self.assertEqual(churn.process.returncode, 0)

    def test_a_shrink_ends_although_threads_go_on_with_what_they_have(self):
        with Churn(self.daemon) as churn:
            # A few tenths of a second are what a shrink waits for threads; on a machine with other work they may come
            # later.
            wait_until("the pool has shrunk",
                       lambda: self.daemon.run_cli("resize", "default", "--node", "0", "4M").returncode == 0)
            self.assertEqual(self.online_bytes(), CHUNK)
            self.assertTrue(churn.is_at_work(), "it did not fail")
        self.assertEqual(churn.process.returncode, 0)


if __name__ == "__main__":
    main()
