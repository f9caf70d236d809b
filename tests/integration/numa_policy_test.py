#!/usr/bin/env python3
"""Where blocks come from, by the policy of the call, the handle, the thread and the pool, on four synthetic numa nodes
that the machine's node 0 stands for: every thread's own is numa node 0. What the kernel's real nodes add to it, the
guests of tests/multinode show."""

import collections
import concurrent.futures
import contextlib
import ctypes
import errno
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import urllib.request

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import Daemon, program  # noqa: E402
from support.numacre_client import INTERLEAVE, LOCAL, STRICT, UNCACHED, ZERO, Library, library_path  # noqa: E402
from support.runner import main  # noqa: E402

MIB = 1 << 20
FRAME = 4096
NODES = 4
POOL = "name=default,capacity=16M,online=8M,frame=4K,largest=4M,backing=small"
DEFAULT, LOCALLY, STRICTLY, PREFERRED, INTERLEAVED, BY_FRAMES = range(6)
MPOL_DEFAULT, MPOL_PREFERRED, MPOL_BIND, MPOL_INTERLEAVE, MPOL_LOCAL = range(5)
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}[os.uname().machine]


class Pool:
    """A handle in this process: mempolicies are its threads'."""

    def __init__(self, daemon, name="default", mempolicy=None):
        self.library = Library(library_path())
        self.c = self.library.c
        self.handle = ctypes.c_void_p()
        os.environ.pop("NUMACRE_MEMPOLICY", None)
        if mempolicy is not None:
            os.environ["NUMACRE_MEMPOLICY"] = mempolicy
        self.error = self.c.numacre_attach(str(daemon.runtime_dir).encode(), name.encode(), ctypes.byref(self.handle))
        os.environ.pop("NUMACRE_MEMPOLICY", None)
        self.regions = []
        base, size = ctypes.c_void_p(), ctypes.c_size_t()
        while not self.error and self.c.numacre_region(self.handle, len(self.regions), base, size) == 0:
            self.regions.append(base.value)

    def node_of(self, block):
        return max(node for node, base in enumerate(self.regions) if base <= block)

    def alloc(self, call, *arguments):
        """The block's numa node, or -errno."""
        block = ctypes.c_void_p()
        error = getattr(self.c, call)(self.handle, *arguments, ctypes.byref(block))
        return error or self.node_of(block.value)

    def allocs(self, count, size=FRAME):
        return [self.alloc("numacre_alloc", size) for _ in range(count)]

    def alloc_on(self, node, flags=0, size=FRAME):
        return self.alloc("numacre_alloc_on", node, size, flags)

    def alloc_by(self, mode, nodes=0, size=FRAME, flags=0):
        return self.alloc("numacre_alloc_policy", mode, nodes, size, flags)

    def set_policy(self, mode, nodes=0):
        return self.c.numacre_set_policy(self.handle, mode, nodes)

    def policy(self):
        mode, nodes, allowed = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_uint64()
        error = self.c.numacre_get_policy(self.handle, mode, nodes, allowed)
        return error or (mode.value, nodes.value, allowed.value)

    def detach(self):
        if self.handle:
            self.c.numacre_detach(self.handle)
            self.handle = None


@contextlib.contextmanager
def another_thread():
    """Runs one function after the other, each in the same thread."""
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        yield lambda function, *arguments: executor.submit(function, *arguments).result(60)


def set_mempolicy(mode, nodes=0):
    mask = ctypes.c_ulong(nodes)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(SET_MEMPOLICY, mode, ctypes.byref(mask) if nodes else None, 64) != 0:
        raise OSError(ctypes.get_errno(), "set_mempolicy")


class NumaPolicy(unittest.TestCase):
    def serve(self, policy=None, **more):
        pool = POOL if policy is None else POOL + f",policy={policy}"
        daemon = Daemon("--topology", f"synthetic:{NODES}x512M", "--pool", pool, **more)
        self.addCleanup(daemon.stop)
        return daemon

    def attach(self, daemon, **more):
        pool = Pool(daemon, **more)
        self.assertEqual(pool.error, 0, pool.library.last_error())
        self.addCleanup(pool.detach)
        return pool

    def counters(self, daemon, name):
        return [node[name] for node in daemon.cli("stats", "default")["pools"][0]["nodes"]]

    def test_a_pool_that_interleaves(self):
        daemon = self.serve("interleave")
        self.assertEqual(daemon.status()["pools"][0]["policy"], "interleave")
        pool = self.attach(daemon)
        self.assertEqual(pool.policy(), (INTERLEAVED, 0, 0b1111))
        nodes = pool.allocs(40)
        self.assertEqual(collections.Counter(nodes), {node: 10 for node in range(NODES)})
        self.assertEqual(nodes[4:], nodes[:-4], "in turn")
        # Large ones and bulk likewise; each that goes elsewhere than to its own numa node is said to.
        self.assertEqual(collections.Counter(pool.allocs(4, MIB)), {node: 1 for node in range(NODES)})
        many = (ctypes.c_void_p * 8)()
        self.assertEqual(pool.c.numacre_alloc_bulk(pool.handle, FRAME, many, 8), 0)
        self.assertEqual(collections.Counter(map(pool.node_of, many)), {node: 2 for node in range(NODES)})
        self.assertEqual(self.counters(daemon, "interleave_hit"), [13] * NODES)
        self.assertEqual(self.counters(daemon, "numa_hit"), [13] * NODES)
        self.assertEqual(self.counters(daemon, "local_node"), [13, 0, 0, 0])
        self.assertEqual(self.counters(daemon, "other_node"), [0, 13, 13, 13])
        # Not by its turn.
        self.assertEqual(pool.alloc_on(2), 2)
        self.assertEqual(pool.alloc_on(-1, LOCAL), 0)
        self.assertEqual(self.counters(daemon, "interleave_hit"), [13] * NODES)
        self.assertEqual(self.counters(daemon, "local_node"), [14, 0, 0, 0])
        self.assertEqual(self.counters(daemon, "other_node"), [0, 13, 14, 13])
        with urllib.request.urlopen(f"http://{daemon.metrics_address}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        for name, value in (("interleave_hit", 13), ("local_node", 0), ("other_node", 14)):
            self.assertIn(f'numacre_numa_{name}_total{{pool="default",node="2"}} {value}\n', text)
        self.assertIn("interleave_hit", daemon.run_cli("stats", "default").stdout)

    def test_the_local_policy_counts_nothing_but_local_ones(self):
        daemon = self.serve()
        pool = self.attach(daemon)
        self.assertEqual(daemon.status()["pools"][0]["policy"], "local")
        self.assertEqual(pool.allocs(50) + [pool.alloc_on(-1, UNCACHED)], [0] * 51)
        self.assertEqual(self.counters(daemon, "local_node"), [51, 0, 0, 0])
        self.assertEqual(self.counters(daemon, "other_node"), [0] * NODES)
        # Full: the others by distance. What was meant for elsewhere is a miss there, a foreign one here.
        self.assertEqual(pool.allocs(4, 4 * MIB), [0, 1, 1, 2])
        self.assertEqual(self.counters(daemon, "other_node"), [0, 2, 1, 0])
        self.assertEqual(self.counters(daemon, "numa_miss"), [0, 2, 1, 0])
        self.assertEqual(self.counters(daemon, "numa_foreign"), [3, 0, 0, 0])
        self.assertEqual(self.counters(daemon, "interleave_hit"), [0] * NODES)

    def test_the_handles_policy_goes_before_the_pools(self):
        daemon = self.serve("interleave")
        pool, other = self.attach(daemon), self.attach(daemon)
        self.assertEqual(pool.set_policy(PREFERRED, 0b0100), 0)
        self.assertEqual(pool.allocs(5), [2] * 5)
        self.assertEqual(pool.allocs(2, 4 * MIB), [2, 0], "then by distance")
        self.assertEqual(set(other.allocs(8)), set(range(NODES)), "another handle's is its own")
        self.assertEqual(pool.set_policy(STRICTLY, 0b1010), 0)
        self.assertEqual(pool.allocs(3, 4 * MIB), [1, 3, -errno.ENOMEM])
        self.assertEqual(pool.allocs(1, MIB), [1])
        self.assertEqual(pool.set_policy(DEFAULT), 0)
        self.assertEqual(pool.policy()[0], INTERLEAVED)

    def test_frames_are_interleaved_whatever_the_sizes(self):
        pool = self.attach(self.serve("interleave-frames:1-2"))
        frames = collections.Counter()
        for turn in range(64):
            size = FRAME * (16 if turn % 2 else 1)
            frames[pool.alloc("numacre_alloc", size)] += size // FRAME
        self.assertEqual(set(frames), {1, 2})
        self.assertLessEqual(abs(frames[1] - frames[2]), 16)

    def test_every_thread_hears_of_it_at_its_next_call(self):
        pool = self.attach(self.serve())
        with another_thread() as there:

            def from_the_cache():
                nodes = []
                for _ in range(100):
                    block = ctypes.c_void_p()
                    self.assertEqual(pool.c.numacre_alloc(pool.handle, FRAME, block), 0)
                    nodes.append(pool.node_of(block.value))
                    self.assertEqual(pool.c.numacre_free(pool.handle, block), 0)
                return nodes

            for mode, nodes, wanted in (
                (LOCALLY, 0, {0}),
                (STRICTLY, 0b1000, {3}),
                (DEFAULT, 0, {0}),
                (PREFERRED, 0b0011, {0}),
                (PREFERRED, 0b0010, {1}),
                (INTERLEAVED, 0b0110, {1, 2}),
                (STRICTLY, 0, {0}),
            ):
                self.assertEqual(pool.set_policy(mode, nodes), 0)
                self.assertEqual(set(there(from_the_cache)), wanted, (mode, nodes))
                self.assertEqual(set(there(pool.alloc_on, -1, flags) for flags in (UNCACHED, 0)) - wanted, set())
                self.assertIn(there(pool.alloc_on, -1, UNCACHED, MIB), wanted, "large, past the cache")

    def test_what_a_call_says_goes_before_all(self):
        pool = self.attach(self.serve())
        self.assertEqual([pool.alloc_on(-1, INTERLEAVE) for _ in range(4)], [*range(1, NODES), 0])
        self.assertEqual(pool.alloc_by(STRICTLY, 0b0100, 4 * MIB), 2)
        self.assertEqual(pool.alloc_by(STRICTLY, 0b0100, 4 * MIB), -errno.ENOMEM)
        self.assertEqual(pool.alloc_by(PREFERRED, 0b0100, 4 * MIB), 0)
        self.assertEqual(pool.alloc_by(DEFAULT), 0)
        self.assertEqual({pool.alloc_by(INTERLEAVED, 0b1010, flags=ZERO) for _ in range(4)}, {1, 3})
        self.assertEqual(pool.set_policy(STRICTLY, 0b1000), 0)
        self.assertEqual(pool.alloc_on(-1, LOCAL), 0)
        self.assertEqual(pool.alloc_on(1, STRICT), 1)
        self.assertEqual(pool.allocs(1), [3])

    def test_what_cannot_be_is_refused_with_a_reason(self):
        daemon = self.serve()
        pool = self.attach(daemon)
        for error, said, call in (
            (errno.EINVAL, "mode 6", lambda: pool.set_policy(6)),
            (errno.EINVAL, "mode -1", lambda: pool.set_policy(-1)),
            (errno.ENODEV, "0x10 are not all within 0 .. 3", lambda: pool.set_policy(STRICTLY, 0b10000)),
            (errno.EINVAL, "takes none", lambda: pool.set_policy(LOCALLY, 1)),
            (errno.EINVAL, "takes none", lambda: pool.alloc_by(DEFAULT, 1)),
            (errno.ENODEV, "0x10", lambda: pool.alloc_by(INTERLEAVED, 0b10000)),
            (errno.EINVAL, "beside the policy", lambda: pool.alloc_by(INTERLEAVED, 0, flags=STRICT)),
            (errno.EINVAL, "want node -1", lambda: pool.alloc_on(1, INTERLEAVE)),
            (errno.EINVAL, "one of them", lambda: pool.alloc_on(-1, INTERLEAVE | LOCAL)),
            (errno.EINVAL, "not a combination", lambda: pool.alloc_by(LOCALLY, 0, flags=0x40)),
        ):
            self.assertEqual(call(), -error, said)
            self.assertIn(said, pool.library.last_error())
        wrong = Pool(daemon, mempolicy="maybe")
        self.assertEqual(wrong.error, -errno.EINVAL)
        self.assertIn("NUMACRE_MEMPOLICY=maybe: use respect, ignore", wrong.library.last_error())
        for policy in ("round-robin", "interleave:4-", "preferred", "local:1", "interleave:0-63"):
            with self.assertRaises(RuntimeError, msg=policy):
                self.serve(policy)
        refused = daemon.run_cli(
            "create", "p", "--capacity", "8M", "--online", "4M", "--backing", "small", "--policy", "preferred:7"
        )
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("policy preferred:7: the pool has numa nodes 0 to 3", refused.stderr)

    def test_the_threads_mempolicy_goes_before_the_pools(self):
        daemon = self.serve("preferred:3")
        pool = self.attach(daemon)
        deaf = self.attach(daemon, mempolicy="ignore")
        with another_thread() as there:
            there(set_mempolicy, MPOL_INTERLEAVE, 1)  # all four are the kernel's node 0
            self.assertEqual(there(pool.policy), (INTERLEAVED, 0b1111, 0b1111))
            self.assertEqual(set(there(pool.allocs, 8)), set(range(NODES)))
            self.assertEqual(set(there(deaf.allocs, 8)), {3})
            there(set_mempolicy, MPOL_BIND, 1)
            self.assertEqual(there(pool.policy), (STRICTLY, 0b1111, 0b1111))
            there(set_mempolicy, MPOL_LOCAL)
            self.assertEqual(there(pool.policy), (LOCALLY, 0, 0b1111))
            self.assertEqual(set(there(pool.allocs, 8)), {0})
            there(set_mempolicy, MPOL_PREFERRED, 1)
            self.assertEqual(there(pool.policy), (PREFERRED, 0b1111, 0b1111))
            there(set_mempolicy, MPOL_DEFAULT)
            self.assertEqual(there(pool.policy), (PREFERRED, 0b1000, 0b1111))
            self.assertEqual(set(there(pool.allocs, 8)), {3})
            # The handle's goes before both.
            there(set_mempolicy, MPOL_INTERLEAVE, 1)
            self.assertEqual(pool.set_policy(STRICTLY, 0b0010), 0)
            self.assertEqual(set(there(pool.allocs, 8)), {1})
        self.assertEqual(deaf.allocs(2), [3, 3])

    def test_a_pools_policy_survives_the_daemon_and_is_shown(self):
        with tempfile.TemporaryDirectory(prefix="numacre-", dir="/tmp") as runtime_dir:
            give_up = [program("numacred"), "--runtime-dir", runtime_dir, "--discard-kept"]
            self.addCleanup(subprocess.run, give_up, capture_output=True)
            daemon = self.serve("interleave:0+2-3", runtime_dir=runtime_dir)
            made = daemon.cli(
                "create", "second", "--capacity", "8M", "--online", "4M", "--backing", "small", "--policy", "nearest"
            )
            self.assertEqual(made["policy"], "local")
            pool = self.attach(daemon)
            daemon.kill()
            daemon.stop()
            daemon = self.serve(runtime_dir=runtime_dir)  # the pool keeps its own
            self.assertEqual(daemon.status()["pools"][0]["policy"], "interleave:0+2-3")
            self.assertIn("interleave:0+2-3", daemon.run_cli("pools").stdout)
            self.assertIn(", policy interleave:0+2-3", daemon.run_cli("status").stdout)
            self.assertEqual(set(pool.allocs(6)), {0, 2, 3})
            self.assertEqual(set(self.attach(daemon).allocs(6)), {0, 2, 3})
            pool.detach()
            daemon.stop()


if __name__ == "__main__":
    main()
