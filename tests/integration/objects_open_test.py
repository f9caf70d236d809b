#!/usr/bin/env python3
"""Object pools that clients have made: the first client makes one, the others find it, and it goes with the last."""

import errno
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import PATIENCE_SECONDS, Daemon, bin_dir, wait_until  # noqa: E402
from support.runner import main  # noqa: E402

POOL = "name=default,capacity=4M,online=4M,backing=small,mode=0666,max-clients=16,max-threads=64"
NOBODY = 65534


class Opened:
    def __init__(self, runtime_dir, name="mbufs", object_bytes=2368, count=1000, held=0, uid=None):
        self.process = subprocess.Popen(
            [str(bin_dir().parent / "test-bin" / "objects_client"), name, str(object_bytes), str(count), str(held)],
            env={**os.environ, "NUMACRE_RUNTIME_DIR": str(runtime_dir)}, user=uid, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)
        words = self.process.stdout.readline().split(maxsplit=3)
        self.error, self.distance = int(words[1]), int(words[2])
        self.message = words[3].strip() if len(words) > 3 else ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.communicate(timeout=PATIENCE_SECONDS)

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)


def pool_of(daemon, name="default.mbufs"):
    found = [pool for pool in daemon.status()["pools"] if pool["name"] == name]
    return found[0] if found else None


class ObjectsOpen(unittest.TestCase):
    def test_the_first_client_makes_the_pool_and_the_last_one_takes_it_along(self):
        with Daemon("--pool", POOL) as daemon:
            with Opened(daemon.runtime_dir, held=10) as first:
                self.assertEqual((first.error, first.distance), (0, 2368))
                pool = pool_of(daemon)
                self.assertEqual((pool["object_bytes"], pool["object_count"], pool["made_within"]),
                                 (2368, 1000, "default"))
                self.assertEqual((pool["mode"], pool["used_bytes"]), ("0666", 10 * 2368))
                self.assertIn("made by clients of default", daemon.run_cli("status").stdout)
                with Opened(daemon.runtime_dir, held=990) as second:
                    self.assertEqual(second.error, 0)
                    self.assertEqual(daemon.used_bytes("default.mbufs"), 1000 * 2368)
                    second.kill()
                wait_until("its objects are back", lambda: daemon.used_bytes("default.mbufs") == 10 * 2368)
                for other in ({"count": 1001}, {"object_bytes": 2432}):
                    with Opened(daemon.runtime_dir, **other) as third:
                        self.assertEqual(third.error, -errno.EEXIST)
                        self.assertIn("1000 objects of 2368", third.message)
                        self.assertRegex(third.message, "ask for the same, or use another name$")
                first.kill()
            wait_until("the pool is gone", lambda: pool_of(daemon) is None)
            self.assertEqual(pool_of(daemon, "default")["used_bytes"], 0)

    def test_many_at_once_get_one_pool(self):
        with Daemon("--pool", POOL) as daemon:
            programs = [subprocess.Popen([str(bin_dir().parent / "test-bin" / "objects_client"), "mbufs", "4096", "500",
                                          "50"], env={**os.environ, "NUMACRE_RUNTIME_DIR": daemon.runtime_dir},
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(10)]
            for program in programs:
                self.assertEqual(program.stdout.readline().split(), ["open", "0", "4160"])
            self.assertEqual(daemon.used_bytes("default.mbufs"), 500 * 4160)
            for program in programs:
                program.communicate(timeout=PATIENCE_SECONDS)

    def test_impossible_pools_are_refused_with_the_reason(self):
        with Daemon("--pool", POOL) as daemon:
            for wish, error, reason in (({"object_bytes": 100}, errno.EINVAL, "use 128"),
                                        ({"count": 0}, errno.EINVAL, "count is 0"),
                                        ({"count": 2**40}, errno.EINVAL, "too many"),
                                        ({"object_bytes": 1 << 30, "count": 60000}, errno.ENOMEM, "ask for"),
                                        ({"name": "UPPER"}, errno.EINVAL, "characters"),
                                        ({"name": "x" * 60}, errno.EINVAL, "shorter"),
                                        ({"name": "a.b"}, errno.EINVAL, "dot"),
                                        ({"name": ""}, errno.EINVAL, "0 characters")):
                with self.subTest(wish), Opened(daemon.runtime_dir, **wish) as opened:
                    self.assertEqual(opened.error, -error, opened.message)
                    self.assertIn(reason, opened.message)
                    # The daemon's sentence has the remedy.
                    self.assertNotRegex(opened.message, "fix the call|grow the pool")
            self.assertEqual([pool["name"] for pool in daemon.status()["pools"]], ["default"])
            self.assertTrue(daemon.alive())

    @unittest.skipUnless(os.geteuid() == 0, "SKIP: needs root, to be another user")
    def test_other_users_have_as_much_as_object_memory_says(self):
        with Daemon("--pool", POOL) as daemon:
            os.chmod(daemon.runtime_dir, 0o755)
            with Opened(daemon.runtime_dir, uid=NOBODY) as refused:
                self.assertEqual(refused.error, -errno.EACCES)
                self.assertIn("object-memory", refused.message)
            daemon.cli("set", "default", "object-memory=4M")
            with Opened(daemon.runtime_dir, uid=NOBODY) as allowed:
                self.assertEqual(allowed.error, 0, allowed.message)
                with Opened(daemon.runtime_dir, name="more", uid=NOBODY) as beyond:
                    self.assertEqual(beyond.error, -errno.EDQUOT)
                    self.assertRegex(beyond.message, "with its pages and metadata: .*raise object-memory$")
                with Opened(daemon.runtime_dir, name="fewer", count=100, uid=NOBODY) as fewer:
                    self.assertEqual(fewer.error, 0, fewer.message)
                with Opened(daemon.runtime_dir, name="roots") as roots:
                    self.assertEqual(roots.error, 0, roots.message)

    @unittest.skipUnless(os.geteuid() == 0, "SKIP: needs root, to be another user")
    def test_a_pool_made_with_other_rights_is_not_joined(self):
        with Daemon("--pool", POOL + ",object-memory=8M") as daemon:
            os.chmod(daemon.runtime_dir, 0o755)
            with Opened(daemon.runtime_dir, uid=NOBODY) as others:
                self.assertEqual(others.error, 0, others.message)
                daemon.cli("set", "default", "mode=0600")
                with Opened(daemon.runtime_dir) as refused:
                    self.assertEqual(refused.error, -errno.EEXIST)
                    self.assertIn("other access rights", refused.message)

    @unittest.skipUnless(os.geteuid() == 0, "SKIP: needs root, to be another user")
    def test_each_pool_counts_with_its_pages_and_metadata_and_there_are_not_too_many(self):
        with Daemon("--pool", POOL.replace("max-clients=16", "max-clients=100") + ",object-memory=2M") as daemon:
            os.chmod(daemon.runtime_dir, 0o755)
            opened = []
            try:
                for number in range(20):
                    opened.append(Opened(daemon.runtime_dir, name=f"p{number}", object_bytes=64, count=1, uid=NOBODY))
                    if opened[-1].error != 0:
                        break
                self.assertEqual(opened[-1].error, -errno.EDQUOT)
                self.assertGreater(len(opened), 5)
                for one in opened:
                    one.kill()
                opened = [Opened(daemon.runtime_dir, name=f"q{number}", object_bytes=64, count=1) for number in
                          range(65)]
                refused = [one.message for one in opened if one.error == -errno.EUSERS]
                self.assertGreater(len(refused), 0)
                self.assertIn("have 64 object pools already", refused[0])
            finally:
                for one in opened:
                    one.kill()
            self.assertTrue(daemon.alive())

    def test_a_pool_that_has_gone_is_made_anew(self):
        with Daemon("--pool", POOL) as daemon:
            with Opened(daemon.runtime_dir) as first:
                self.assertEqual(first.error, 0)
            wait_until("the pool is gone", lambda: pool_of(daemon) is None)
            with Opened(daemon.runtime_dir) as again:
                self.assertEqual(again.error, 0, again.message)

    def test_a_daemon_that_comes_back_knows_whose_the_pool_is(self):
        with tempfile.TemporaryDirectory() as runtime_dir:
            with Daemon("--pool", POOL, "--keep-memory", "holder", runtime_dir=runtime_dir) as daemon:
                opened = Opened(runtime_dir, held=10)
                self.assertEqual(opened.error, 0)
                daemon.kill()
            with opened, Daemon("--pool", POOL, "--keep-memory", "holder", runtime_dir=runtime_dir) as daemon:
                self.assertEqual(pool_of(daemon)["made_within"], "default")
                with Opened(runtime_dir, held=990) as other:
                    self.assertEqual(other.error, 0)
                    other.kill()
                opened.kill()
                wait_until("the pool is gone", lambda: pool_of(daemon) is None)
                daemon.cli("delete", "default")


if __name__ == "__main__":
    main()
