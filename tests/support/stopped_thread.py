"""A thread of a process that stands still in the middle of anything, as one that the kernel makes wait does."""

import ctypes
import os
import pathlib

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = [ctypes.c_ulong, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_void_p]
_LIBC.ptrace.restype = ctypes.c_long
_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_ALL_THREADS = 0x40000000  # __WALL


def threads_named(pid, name):
    """Their numbers, in the order in which they were begun."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            begun = int((task / "stat").read_text().rsplit(")", 1)[1].split()[19])
            found.append((begun, int(task.name)))
    return [thread for _, thread in sorted(found)]


class StoppedThread:
    """Stopped from here on, until go_on(). By the thread that made it only."""

    def __init__(self, thread):
        self.thread = thread
        self._ptrace(_SEIZE)
        self._ptrace(_INTERRUPT)
        os.waitpid(thread, _ALL_THREADS)

    def _ptrace(self, request):
        if _LIBC.ptrace(request, self.thread, None, None) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace of thread {self.thread}")

    def go_on(self):
        if self.thread:
            self._ptrace(_DETACH)
            self.thread = 0
