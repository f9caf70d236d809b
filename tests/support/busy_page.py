"""A page of a file that never comes: whoever waits for it waits in the kernel for as long as the test likes."""

import contextlib
import ctypes
import errno
import mmap
import os
import signal
import struct
import traceback

from .daemon import PATIENCE_SECONDS

LOOKUP, GETATTR, OPEN, READ, INIT = 1, 3, 14, 15, 26


class BusyPage:
    """The only page of a file of FUSE, on a folder that nobody else sees. The process that makes it serves it, and lets
    go of all who wait when it ends, however that comes about: nobody else has the device open. Needs root."""

    def __init__(self, folder):
        self.folder = folder
        self.libc = ctypes.CDLL(None, use_errno=True)
        pdeathsig = 1
        self._call("prctl", pdeathsig, signal.SIGKILL)  # a test that is killed leaves nobody waiting
        signal.alarm(2 * PATIENCE_SECONDS)
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        new_mounts, recursive, private = 0x20000, 0x4000, 0x40000
        self._call("unshare", new_mounts)
        self._call("mount", b"none", b"/", None, recursive | private, None)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0"
        self._call("mount", b"numacre-test", folder.encode(), b"fuse", 0, options.encode())

    def _call(self, name, *arguments):
        if getattr(self.libc, name)(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")

    def make_wait(self, write):
        """A child calls write(page), which is to touch the page. Returns when the child waits for it."""
        if os.fork() == 0:
            try:
                os.close(self.device)
                with open(f"{self.folder}/page", "rb") as file:
                    page = mmap.mmap(file.fileno(), mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
                with contextlib.suppress(OSError):  # when the page is gone
                    write(page)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        while self._answer() != READ:
            pass

    def _answer(self):
        """Answers one request, but no READ. Its kind."""
        _, kind, unique, inode = struct.unpack_from("=IIQQ", os.read(self.device, 1 << 17))
        if kind == READ:
            return kind
        # struct fuse_attr of the file; of the folder, which is inode 1, when that is asked for.
        mode, size = (0o40755, 0) if (kind, inode) == (GETATTR, 1) else (0o100644, mmap.PAGESIZE)
        attributes = struct.pack("=6Q10I", 2, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, mmap.PAGESIZE, 0)
        body = {
            INIT: struct.pack("=4I2H2I2H8I", 7, 31, 0, 0, 0, 0, mmap.PAGESIZE, 0, 0, 0, *[0] * 8),
            LOOKUP: struct.pack("=4Q2I", 2, 0, 1000, 1000, 0, 0) + attributes,
            GETATTR: struct.pack("=Q2I", 1000, 0, 0) + attributes,
            OPEN: struct.pack("=Q2I", 1, 0, 0),
        }.get(kind)
        error = 0 if body else -errno.ENOSYS
        os.write(self.device, struct.pack("=IiQ", 16 + len(body or b""), error, unique) + (body or b""))
        return kind
