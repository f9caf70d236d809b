"""Hugepages of 1 GiB, for as long as a test needs them.

    with GiganticPages(2):           # two more are free; Shortage: there cannot be so many
        ...                          # what the daemon reserves besides is its own to give back
"""

import os
import pathlib
import sys

GIB = 1 << 30
_POOL = pathlib.Path("/sys/devices/system/node/node0/hugepages/hugepages-1048576kB")
# Beside the pages: for all else that runs on the machine.
_LEFT_BYTES = 3 * GIB


class Shortage(Exception):
    """str() says what is short."""


def count(what="nr_hugepages"):
    """Of numa node 0, None: the kernel or the CPU has none of this size. what: nr_hugepages or free_hugepages."""
    path = _POOL / what
    return int(path.read_text()) if path.exists() else None


class GiganticPages:
    def __init__(self, free=0, more=0):
        """free: how many are to be free. more: how many the daemon is going to reserve."""
        self._free, self._more = free, more

    def __enter__(self):
        before = count()
        if before is None:
            raise Shortage(f"this machine has no hugepages of 1 GiB: there is no {_POOL}")
        if not os.access(_POOL / "nr_hugepages", os.W_OK):
            raise Shortage(f"{_POOL}/nr_hugepages is not ours to write")
        (line,) = [line for line in pathlib.Path("/proc/meminfo").read_text().splitlines() if "MemAvailable" in line]
        available, wanted = int(line.split()[1]) << 10, (self._free + self._more) * GIB
        if available < wanted + _LEFT_BYTES:
            raise Shortage(f"{available >> 20} MiB of memory are available, {wanted >> 20} are needed and "
                           f"{_LEFT_BYTES >> 20} for the rest of the machine")
        self._before = before
        # Those that there may be to begin with belong to somebody.
        try:
            self._set(before + self._free + self._more)
            if count() < before + self._free + self._more:
                raise Shortage(f"the kernel made {count() - before} hugepages of 1 GiB instead of "
                               f"{self._free + self._more}: its memory is fragmented")
            self._set(before + self._free)
        except BaseException:
            self._set(before)
            raise
        return self

    def _set(self, pages):
        (_POOL / "nr_hugepages").write_text(str(pages))

    def left_over(self):
        """How many more there are than this object has made: what a daemon has not given back."""
        return count() - self._before - self._free

    def __exit__(self, *_):
        self._set(self._before)


def pages_for(test, free=0, more=0):
    """Until the end of a unittest. It is skipped, aloud, where there cannot be so many, and fails if a daemon has not
    given back what it reserved besides."""
    try:
        pages = test.enterContext(GiganticPages(free, more))
    except Shortage as reason:
        print(f"SKIP of pages of 1 GiB: {reason}", file=sys.stderr)
        test.skipTest(str(reason))
    test.addCleanup(lambda: test.assertEqual(pages.left_over(), 0, "hugepages of 1 GiB that nobody has given back"))
    return pages
