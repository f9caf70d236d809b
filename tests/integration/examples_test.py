#!/usr/bin/env python3
"""The small examples (client/examples/hello.c, pmr.cpp) do what they say. The relay has a test of its own."""

import os
import pathlib
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import PATIENCE_SECONDS, Daemon, program  # noqa: E402
from support.runner import main  # noqa: E402

POOL = ("--pool", "name=default,capacity=64M,online=16M,frame=4K,largest=4M,backing=small")


def run(name, *arguments, runtime_dir, text=""):
    return subprocess.run(
        [program(name), *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "NUMACRE_RUNTIME_DIR": runtime_dir},
    )


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(*POOL)
        cls.addClassCleanup(cls.daemon.stop)

    def tearDown(self):
        self.assertEqual(self.daemon.used_bytes(), 0)
        self.assertEqual(self.daemon.clients(), [])

    def test_hello_writes_into_a_block(self):
        done = run("hello", runtime_dir=self.daemon.runtime_dir)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"^hello from block 0x[0-9a-f]+\n$")

    def test_hello_without_a_daemon_says_so(self):
        done = run("hello", runtime_dir="/nonexistent")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nonexistent/attach.sock", done.stderr)

    def test_pmr_counts_words(self):
        words = ["frame"] * 3 + ["block"] * 2 + ["a-word-too-long-for-the-small-string-buffer-of-any-library"]
        expected = "3 frame\n2 block\n1 a-word-too-long-for-the-small-string-buffer-of-any-library\n"
        for arguments in ((), ("default",)):
            done = run("pmr", *arguments, runtime_dir=self.daemon.runtime_dir, text="\n".join(words))
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, expected, ""), arguments)

    def test_pmr_counts_more_words_than_a_chunk_holds(self):
        words = [f"word-{number:06}-{'x' * 40}" for number in range(60000)]
        done = run("pmr", "default", runtime_dir=self.daemon.runtime_dir, text="\n".join(words))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.count("\n"), len(words))

    def test_pmr_in_a_full_pool_says_so(self):
        words = [f"word-{number:06}-{'x' * 200}" for number in range(150000)]
        done = run("pmr", "default", runtime_dir=self.daemon.runtime_dir, text="\n".join(words))
        self.assertEqual(done.returncode, 1)
        self.assertIn("the pool is full", done.stderr)


if __name__ == "__main__":
    main()
