"""A pair of connected interfaces in a network namespace of the test's own, for the rest of the test's process. The
kernel removes both with the last process of the namespace.
"""

import ctypes
import os
import shutil
import subprocess
import unittest

NEW_NETWORK = 0x40000000


def make_pair(first="v0", second="v1"):
    """Moves this process, and those that it starts from now on, to a new network namespace with the pair."""
    if os.geteuid() != 0:
        raise unittest.SkipTest("NOT TESTED: needs root, to make a network namespace")
    if shutil.which("ip") is None:
        raise unittest.SkipTest("NOT TESTED: needs the program ip (Debian package iproute2)")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NETWORK) != 0:
        raise unittest.SkipTest(f"NOT TESTED: no network namespace: {os.strerror(ctypes.get_errno())}")
    made = ip("link", "add", first, "type", "veth", "peer", "name", second)
    if made.returncode != 0:
        raise unittest.SkipTest(f"NOT TESTED: no pair of interfaces (veth): {made.stderr.strip()}")
    for interface in ("lo", first, second):
        # Nothing but the test's packets shall pass: no IPv6 neighbours are looked for.
        try:
            with open(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6", "w") as setting:
                setting.write("1")
        except OSError:
            pass  # a kernel without IPv6
        up = ip("link", "set", interface, "up")
        if up.returncode != 0:
            raise RuntimeError(f"ip link set {interface} up: {up.stderr}")


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)
