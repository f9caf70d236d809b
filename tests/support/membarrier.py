"""membarrier(2), without which nobody takes idle caches back."""

import ctypes
import os

SYS_MEMBARRIER = {"x86_64": 324, "aarch64": 283}[os.uname().machine]
GLOBAL_EXPEDITED = 1 << 1


def is_permitted():
    return ctypes.CDLL(None).syscall(SYS_MEMBARRIER, GLOBAL_EXPEDITED, 0, 0) == 0
