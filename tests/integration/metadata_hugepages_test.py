#!/usr/bin/env python3
"""The index of a large pool lies in hugepages, for the daemon and for clients, those that were there before it grew,
too.

Frames of 64 bytes make a large index of little memory. SKIP where the kernel makes no hugepages of shared memory.
"""

import ctypes
import mmap
import os
import pathlib
import re
import sys
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import Daemon  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402

MIB = 1 << 20
HUGEPAGE = 2 * MIB
MADV_COLLAPSE = 25  # Linux 6.1
SKIPPED = 77
POOL = "name=default,capacity=256M,online=32M,frame=64,largest=1M,backing=small"


def kernel_collapses():
    """Whether it makes a hugepage of shared memory at all."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mmap.restype = ctypes.c_void_p
    map_fixed = 0x10
    file = os.memfd_create("probe")
    os.ftruncate(file, HUGEPAGE)
    with mmap.mmap(-1, 2 * HUGEPAGE) as around:
        view = (ctypes.c_char * len(around)).from_buffer(around)
        begin = (ctypes.addressof(view) + HUGEPAGE - 1) // HUGEPAGE * HUGEPAGE
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        assert libc.mmap(begin, HUGEPAGE, protection, mmap.MAP_SHARED | map_fixed, file, 0) == begin
        ctypes.memset(begin, 1, HUGEPAGE)
        made = libc.madvise(begin, HUGEPAGE, MADV_COLLAPSE) == 0
        del view
    os.close(file)
    return made


def metadata_in_hugepages(pid):
    """Bytes of the numa node's metadata that this process has mapped as hugepages."""
    of_metadata, mapped = False, 0
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            of_metadata = "numacre:default:0:metadata" in line
        elif of_metadata and line.startswith("ShmemPmdMapped:"):
            mapped += int(line.split()[1]) * 1024
    return mapped


def touch_index(client, size_bytes):
    """Allocates this much in 64 KiB blocks, each from another part of the index, and gives it back."""
    error, blocks = client.alloc(64 * 1024, count=size_bytes // (64 * 1024))
    assert error == 0, client.message
    client.free(blocks)


class MetadataHugepages(unittest.TestCase):
    def test_a_pool_that_grew_in_steps(self):
        with Daemon("--pool", POOL, "--topology", "synthetic:1x1G") as daemon:
            with ClientProcess(daemon.runtime_dir) as early:
                touch_index(early, 16 * MIB)
                # Each step's part of the index is 1 MiB: no step fills a hugepage by itself.
                for _ in range(8):
                    daemon.cli("resize", "default", "--node", "0", "+8M")
                touch_index(early, 90 * MIB)
                self.assertGreaterEqual(metadata_in_hugepages(early.pid), 4 * HUGEPAGE)
                with ClientProcess(daemon.runtime_dir) as late:
                    touch_index(late, 90 * MIB)
                    self.assertGreaterEqual(metadata_in_hugepages(late.pid), 4 * HUGEPAGE)


if __name__ == "__main__":
    if not kernel_collapses():
        print("SKIP: this kernel makes no hugepages of shared memory (MADV_COLLAPSE, Linux 6.1 and later)")
        sys.exit(SKIPPED)
    main()
