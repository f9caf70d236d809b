#!/usr/bin/env python3
"""`numacre bench replay`: a program's trace, recorded and replayed; what it prints and refuses. Without a daemon."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import program  # noqa: E402
from support.runner import main  # noqa: E402

# One frame of each pair is freed: two frames are free then, but not in one piece.
GOLDEN = """time_ns,size_bytes,lifetime_ns
0,4096,never
1,4096,10
2,4096,never
3,4096,10
20,8192,never
"""


def numacre(*arguments, **environment):
    return subprocess.run(
        [program("numacre"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


class ReplayTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="numacre-cli-replay-")
        self.addCleanup(folder.cleanup)
        self.trace = pathlib.Path(folder.name) / "trace.csv"

    def test_table(self):
        self.trace.write_text(GOLDEN)
        done = numacre("bench", "replay", self.trace, "--largest", "16K")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(
            done.stdout,
            "5 allocations, 3 never freed; frame 4 KiB, largest block 16 KiB\n"
            "peak: 16384 bytes requested, 16384 granted (each block a power of two of frames)\n"
            "ENGINE                SMALLEST POOL  BYTES  UTILISATION\n"
            "numacre                      32 KiB  32768       50.0 %\n"
            "numacre, compact             32 KiB  32768       50.0 %\n"
            "numacre, best fit            32 KiB  32768       50.0 %\n"
            "serial, latest first         32 KiB  32768       50.0 %\n"
            "serial, lowest first         32 KiB  32768       50.0 %\n",
        )

    def test_json(self):
        self.trace.write_text(GOLDEN)
        done = numacre("bench", "replay", self.trace, "--frame", "1K", "--largest", "16K", "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        report = json.loads(done.stdout)
        engines = report.pop("engines")
        self.assertEqual(
            report,
            {
                "allocations": 5,
                "never_freed": 3,
                "frame_bytes": 1024,
                "largest_block_bytes": 16384,
                "peak_requested_bytes": 16384,
                "peak_granted_bytes": 16384,
            },
        )
        self.assertEqual([engine["smallest_pool_bytes"] for engine in engines], [32768] * 5)
        self.assertEqual([engine["space_utilisation"] for engine in engines], [0.5] * 5)

    def test_what_a_program_recorded(self):
        recorded = numacre("bench", "--private", "--operations", 50, "--rounds", 1, NUMACRE_TRACE=str(self.trace))
        self.assertEqual((recorded.returncode, recorded.stderr), (0, ""))
        done = numacre("bench", "replay", self.trace, "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        report = json.loads(done.stdout)
        self.assertEqual(report["allocations"], len(self.trace.read_text().splitlines()) - 1)
        self.assertGreaterEqual(report["allocations"], 500)
        self.assertEqual(report["never_freed"], 0)
        # One block at a time, up to the largest.
        self.assertEqual({engine["smallest_pool_bytes"] for engine in report["engines"]}, {4 << 20})

    def test_refusals(self):
        self.trace.write_text(GOLDEN + "21,many,never\n")
        missing = self.trace.with_suffix(".missing")
        for arguments, words in (
            ((), "TRACE is required"),
            ((missing,), f"{missing}: No such file or directory"),
            ((self.trace,), f"{self.trace}, line 7: size_bytes is 'many'; give whole bytes, 1 or more"),
            ((self.trace, "--frame", "4X"), "4X"),
            ((self.trace, "--frame", "4K", "--largest", "5K"), "line 7"),
        ):
            done = numacre("bench", "replay", *arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertIn(words, done.stderr)
        self.trace.write_text(GOLDEN)
        done = numacre("bench", "replay", self.trace, "--frame", "4K", "--largest", "4K")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("allocation 5 of the trace has 8192 bytes; give --largest 8K or more", done.stderr)

    def test_a_trace_that_cannot_be_written_is_said(self):
        done = numacre("bench", "--private", NUMACRE_TRACE=str(self.trace.parent / "missing" / "trace"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("NUMACRE_TRACE", done.stderr)


if __name__ == "__main__":
    main()
