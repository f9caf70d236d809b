#!/usr/bin/env python3
"""AF_XDP sockets on blocks of a pool (numacre/adaptors/af_xdp.h), over a pair of interfaces in a network namespace of
the test's own: contents by sequence numbers, hand-over to another process, sending, forwarding, what is refused, and
what a kill at any moment leaves.

The rounds with kills take their moments from a seed: NUMACRE_TEST_SEED, else 1. NUMACRE_TEST_ROUNDS sets their number.
"""

import contextlib
import ctypes
import errno
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support import veth  # noqa: E402
from support.daemon import PATIENCE_SECONDS, Daemon, bin_dir, wait_until  # noqa: E402
from support.runner import main  # noqa: E402

CLIENT = bin_dir().parent / "test-bin" / "af_xdp_client"
COPY, ZERO_COPY, SKB, DRIVER = 1, 2, 4, 8
OBJECTS, OBJECT_BYTES = 8192, 2368
POOLS = (
    "--pool", f"name=objects,object={OBJECT_BYTES},count={OBJECTS},backing=small,pin-quarantine=1s",
    "--pool", f"name=few,object={OBJECT_BYTES},count=100,backing=small",
    "--pool", "name=frames2k,capacity=64M,online=64M,frame=2K,largest=2M,backing=small",
    "--pool", "name=frames4k,capacity=64M,online=64M,frame=4K,largest=2M,backing=small",
    "--pool", "name=frames16k,capacity=64M,online=64M,frame=16K,largest=2M,backing=small",
    "--pool", "name=frames64,capacity=64M,online=64M,frame=64,largest=2M,backing=small",
)  # fmt: skip
PACKETS = 20000
SEED = int(os.environ.get("NUMACRE_TEST_SEED", "1"))
ROUNDS = int(os.environ.get("NUMACRE_TEST_ROUNDS", "6"))
KERNEL_BLOCKS = 256  # of a receiver: its fill ring


def setUpModule():
    if not CLIENT.exists():
        raise unittest.SkipTest("NOT TESTED: built without libxdp (Debian packages libxdp-dev, libbpf-dev)")
    veth.make_pair()


class Part:
    """One process of the client program."""

    def __init__(self, daemon, role, *arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, **more):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [CLIENT, role, *map(str, arguments)], stdin=stdin, stdout=stdout, stderr=self.errors,
            env={**os.environ, "NUMACRE_RUNTIME_DIR": daemon.runtime_dir if daemon else "/nonexistent"}, **more)
        self.pid, self.role = self.process.pid, role

    def said(self):
        # pread leaves the file position alone, which the process shares.
        return os.pread(self.errors.fileno(), 1 << 20, 0).decode()

    def await_words(self, words):
        def said_or_ended():
            if words in self.said():
                return True
            if self.process.poll() is not None:
                raise AssertionError(f"{self.role} ended with {self.process.returncode}: {self.said()}")
            return False

        wait_until(f"{self.role} says '{words}'", said_or_ended)
        return self

    def end_input(self):
        if self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()

    def figures(self):
        """{name: value} of its last words, after it has ended well."""
        self.end_input()
        status = self.process.wait(PATIENCE_SECONDS)
        if status != 0:
            raise AssertionError(f"{self.role} ended with {status}: {self.said()}")
        return self.figures_so_far()

    def figures_so_far(self):
        return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", self.said())}

    def kill(self):
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)

    def close(self):
        self.kill()
        self.end_input()
        if self.process.stdout:
            self.process.stdout.close()
        self.errors.close()


class AfXdp(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(*POOLS)
        cls.addClassCleanup(cls.daemon.stop)

    def part(self, role, *arguments, **more):
        part = Part(self.daemon, role, *arguments, **more)
        self.addCleanup(part.close)
        return part

    def tearDown(self):
        self.assertTrue(self.daemon.alive(), f"numacred has ended:\n{self.daemon.log()}")
        self.doCleanups()
        wait_until("no client is attached", lambda: not self.daemon.clients())
        for pool in ("objects", "few", "frames2k", "frames4k", "frames16k", "frames64"):
            wait_until(f"pool {pool} is empty", lambda: self.daemon.used_bytes(pool) == 0)

    def opened(self, *arguments):
        """The line of a part that opens a queue and keeps it: (part, error, unaligned, chunk, given, sentence)."""
        part = self.part("open", *arguments, stdout=subprocess.PIPE)
        words = part.process.stdout.readline().decode().split(maxsplit=5)
        self.assertEqual(words[0], "open", part.said())
        return (part, *map(int, words[1:5]), words[5].strip() if len(words) > 5 else "")


class Receiving(AfXdp):
    def hand_over(self, pool, flags, headroom=0):
        reading, writing = os.pipe()
        checker = self.part("check", pool, stdin=reading).await_words("checking")
        receiver = self.part("receive", pool, "v0", flags, PACKETS, headroom, stdout=writing).await_words("listening")
        os.close(reading)
        os.close(writing)
        sequence = 0

        def all_have_come():
            # A packet that no block was there for is lost: others follow, until enough have come.
            nonlocal sequence
            if "handed=" in receiver.said() or receiver.process.poll() is not None:
                return True
            self.part("traffic", "v1", PACKETS // 10, sequence, 300).figures()
            sequence += PACKETS // 10
            return False

        wait_until("all packets have come", all_have_come)
        received = receiver.figures()
        checked = checker.figures()
        self.assertGreaterEqual(received["handed"], PACKETS)
        self.assertEqual((received["strays"], received["foreign"]), (0, 0))
        self.assertEqual((checked["twice"], checked["taken"] + checked["stale"]), (0, received["handed"]))
        return received, checked

    def test_every_packet_reaches_another_process_once_and_whole(self):
        for pool, unaligned, chunk in (("objects", 1, OBJECT_BYTES), ("frames2k", 0, 2048), ("frames4k", 0, 4096),
                                       ("frames16k", 0, 4096), ("frames64", 0, 2048)):
            for flags in (COPY | SKB, COPY):
                with self.subTest(pool=pool, flags=flags):
                    received, _ = self.hand_over(pool, flags)
                    self.assertEqual((received["unaligned"], received["chunk"]), (unaligned, chunk))
                    wait_until("all blocks are back", lambda: self.daemon.used_bytes(pool) == 0)

    def test_a_headroom_moves_packets_and_no_blocks(self):
        for pool in ("objects", "frames4k", "frames16k"):
            with self.subTest(pool):
                self.hand_over(pool, COPY | SKB, headroom=300)
                wait_until("all blocks are back", lambda: self.daemon.used_bytes(pool) == 0)

    def test_a_queue_can_be_opened_again_and_a_close_frees_what_the_kernel_had(self):
        # Counted by the process itself, after the last close.
        self.assertEqual(self.part("reopen", "objects", "v0", COPY | SKB, 10).figures(),
                         {"reopened": 10, "available": OBJECTS})

    def test_calls_refuse_what_would_damage_memory(self):
        for pool in ("objects", "frames2k", "frames64", "private"):
            with self.subTest(pool):
                self.part("misuse", pool, "v0", COPY | SKB).figures()


class Sending(AfXdp):
    def test_packets_that_are_sent_arrive_whole_and_their_blocks_come_back(self):
        for pool, count, blocks in (("objects", PACKETS, OBJECTS), ("frames2k", PACKETS + 7, 32768)):
            with self.subTest(pool):
                watcher = self.part("watch", "v1", count).await_words("watching")
                sent = self.part("send", pool, "v0", COPY | SKB, count).figures()
                # Its blocks were freed by completions and the close.
                self.assertEqual(sent["available"], blocks)
                self.assertEqual((sent["sent"], sent["completed"], sent["strays"]), (count, count, 0))
                self.assertEqual(watcher.figures(), {"right": count, "twice": 0})

    def test_blocks_of_packets_that_the_device_does_not_take_come_back_by_the_close(self):
        self.addCleanup(veth.ip, "link", "set", "v0", "up")
        for pool, blocks in (("objects", OBJECTS), ("frames4k", 16384)):
            with self.subTest(pool):
                veth.ip("link", "set", "v0", "up")
                part = self.part("strand", pool, "v0", COPY | SKB).await_words("ready")
                self.assertEqual(veth.ip("link", "set", "v0", "down").returncode, 0)
                part.process.stdin.write(b"\n")
                self.assertEqual(part.figures(), {"sent": 64, "error": errno.ENETDOWN, "available": blocks})

    def test_received_blocks_are_sent_by_another_queue(self):
        veth.ip("link", "add", "w0", "type", "veth", "peer", "name", "w1")
        self.addCleanup(veth.ip, "link", "del", "w0")
        for interface in ("w0", "w1"):
            self.assertEqual(veth.ip("link", "set", interface, "up").returncode, 0)
        count = 5000
        watcher = self.part("watch", "w1", count).await_words("watching")
        forwarder = self.part("forward", "objects", "v0", "w0", COPY | SKB, count).await_words("listening")
        self.part("traffic", "v1", count, 0, 1000).figures()
        forwarded = forwarder.figures()
        self.assertGreaterEqual(forwarded["forwarded"], count)
        self.assertEqual(forwarded["available"], OBJECTS)
        self.assertEqual(watcher.figures(), {"right": count, "twice": 0})


class Refusals(AfXdp):
    def refused(self, error, words, *arguments):
        part, got, *_, sentence = self.opened(*arguments)
        self.assertEqual(got, -error, sentence)
        for word in words:
            self.assertIn(word, sentence)
        part.figures()

    def test_what_cannot_be_opened_is_named_with_the_remedy(self):
        for error, words, arguments in (
            (errno.ENODEV, ("'nosuchif0'", "ip link"), ("objects", "nosuchif0", COPY)),
            (errno.EINVAL, ("queue 9", "'v0'", "ethtool -l v0"), ("objects", "v0", COPY, "queue=9")),
            (errno.EINVAL, ("fill_entries 3", "powers of two"), ("objects", "v0", COPY, "fill=3")),
            (errno.EINVAL, ("receive_entries 100", "powers of two"), ("objects", "v0", COPY, "receive=100")),
            (errno.EINVAL, ("headroom_bytes is 4000", "2048"), ("frames2k", "v0", COPY, "headroom=4000")),
            (errno.EINVAL, ("block_bytes is 1000", "2048 or 4096"), ("frames2k", "v0", COPY, "block=1000")),
            (errno.EINVAL, ("block_bytes is 4096", "leave it 0"), ("objects", "v0", COPY, "block=4096")),
            (errno.ENODEV, ("numa node 3", "0 .. 0"), ("objects", "v0", COPY, "numa_node=3")),
            (errno.EOPNOTSUPP, ("'v0'", "NUMACRE_XDP_ZEROCOPY"), ("objects", "v0", ZERO_COPY)),
        ):
            with self.subTest(arguments):
                self.refused(error, words, *arguments)
                # Nothing is left of the attempt.
                part, opened, *_ = self.opened("objects", "v0", COPY | SKB)
                self.assertEqual(opened, 0)
                part.figures()

    def test_the_sizes_of_blocks_that_the_kernel_cannot_use_are_refused(self):
        for attributes, words in (("object=1024,count=100", ("1088 bytes", "--object 2368")),
                                  ("capacity=4M,online=4M,frame=64,largest=1K", ("1024 bytes", "2048"))):
            with self.subTest(attributes), Daemon("--pool", f"name=default,backing=small,{attributes}") as daemon:
                part = Part(daemon, "open", "default", "v0", COPY | SKB, stdout=subprocess.PIPE)
                self.addCleanup(part.close)
                _, error, *_, sentence = part.process.stdout.readline().decode().split(maxsplit=5)
                self.assertEqual(int(error), -errno.EINVAL)
                for word in words:
                    self.assertIn(word, sentence)

    def test_offline_memory_is_refused_and_the_remedy_works(self):
        with Daemon("--pool", "name=default,backing=small,capacity=64M,online=16M,frame=2K,largest=2M") as daemon:
            for error, words in ((-errno.EINVAL, ("67108864 bytes", "numacre resize POOL 64M")), (0, ())):
                part = Part(daemon, "open", "default", "v0", COPY | SKB, stdout=subprocess.PIPE)
                self.addCleanup(part.close)
                line = part.process.stdout.readline().decode()
                self.assertIn(f"open {error} ", line)
                for word in words:
                    self.assertIn(word, line)
                part.figures()
                daemon.cli("resize", "default", "64M")

    def test_a_small_pool_gives_the_kernel_all_that_it_has(self):
        part, error, _, _, given, sentence = self.opened("few", "v0", COPY | SKB)
        self.assertEqual((error, given), (0, 100), sentence)
        part.figures()

    def test_each_numa_node_of_a_pool_can_be_used(self):
        with Daemon("--topology", "synthetic:2x512M", "--pool",
                    f"name=default,object={OBJECT_BYTES},count=3000,backing=small,pin-quarantine=1s") as daemon:
            for numa_node in range(2):
                part = Part(daemon, "open", "default", "v0", COPY | SKB, f"numa_node={numa_node}",
                            stdout=subprocess.PIPE)
                self.addCleanup(part.close)
                # The kernel has a full fill ring of blocks of that numa node: others are refused.
                self.assertEqual(part.process.stdout.readline().decode().split(), ["open", "0", "1", str(OBJECT_BYTES),
                                                                                   "2048"], part.said())
                used = [node["used_bytes"] // OBJECT_BYTES for node in daemon.status()["pools"][0]["nodes"]]
                self.assertGreaterEqual(used[numa_node], 2048)
                self.assertLess(used[1 - numa_node], 512)
                part.figures()

    def test_a_queue_that_another_socket_has_is_busy(self):
        first, error, *_ = self.opened("objects", "v0", COPY | SKB)
        self.assertEqual(error, 0)
        self.refused(errno.EBUSY, ("queue 0", "'v0'", "another AF_XDP socket"), "objects", "v0", COPY | SKB)
        first.figures()

    def test_missing_rights_and_locked_memory_are_named(self):
        with Daemon("--pool", f"name=default,object={OBJECT_BYTES},count=1000,backing=small,mode=0666") as daemon:
            os.chmod(daemon.runtime_dir, 0o755)

            def without(*capabilities):
                """The process loses root's other rights, and these as well."""
                def drop():
                    libc = ctypes.CDLL(None, use_errno=True)
                    bounding_set_drop = 24
                    for capability in capabilities:
                        if libc.prctl(bounding_set_drop, capability, 0, 0, 0) != 0:
                            os._exit(99)
                return drop

            net_raw, net_admin, ipc_lock, bpf, sys_admin = 13, 12, 14, 39, 21
            for capabilities, error, words, more in (
                ((net_raw,), errno.EPERM, ("CAP_NET_RAW",), ()),
                ((net_admin, bpf, sys_admin), errno.EPERM, ("CAP_NET_ADMIN", "CAP_BPF"), ()),
                ((ipc_lock,), errno.ENOBUFS, ("RLIMIT_MEMLOCK", "ulimit -l"), ("memlock=65536",)),
            ):
                with self.subTest(words):
                    part = Part(daemon, "open", "default", "v0", COPY | SKB, *more, stdout=subprocess.PIPE,
                                preexec_fn=without(*capabilities))
                    self.addCleanup(part.close)
                    line = part.process.stdout.readline().decode()
                    self.assertIn(f"open {-error} ", line, part.said())
                    for word in words:
                        self.assertIn(word, line)


class Killed(AfXdp):
    def used_objects(self):
        return self.daemon.used_bytes("objects") // OBJECT_BYTES

    def holds_at_most(self, objects):
        """False also if there is no answer in time, on two processors that five processes keep busy."""
        with contextlib.suppress(RuntimeError):
            return self.used_objects() <= objects
        return False

    def stream(self, held=500):
        """Endless traffic, a process that checks, and one that goes on allocating. Returns the end for references."""
        reading, writing = os.pipe()
        self.checker = self.part("check", "objects", stdin=reading).await_words("checking")
        os.close(reading)
        self.bystander = self.part("churn", "objects", held).await_words("churning")
        self.traffic = self.part("traffic", "v1", 1 << 40, 0, 200)
        return writing

    def check_stream(self, references):
        """All that was running has seen nothing wrong, up to the end."""
        self.assertIsNone(self.traffic.process.poll(), self.traffic.said())
        self.traffic.kill()
        self.assertGreater(self.bystander.figures()["rounds"], 0)
        os.close(references)
        checked = self.checker.figures()
        self.assertGreater(checked["taken"], 0)
        self.assertEqual(checked["twice"], 0)

    def receive_and_kill(self, rng, references, signals=(signal.SIGKILL,)):
        receiver = self.part("receive", "objects", "v0", COPY | SKB, 1 << 40, 0, stdout=references)
        receiver.await_words("listening")
        time.sleep(rng.random() * 0.1)
        if rng.random() < 0.3:  # stopped at any instruction for a while: nobody waits for it
            os.kill(receiver.pid, signal.SIGSTOP)
            time.sleep(rng.random() * 0.1)
            os.kill(receiver.pid, signal.SIGCONT)
        os.kill(receiver.pid, rng.choice(signals))
        receiver.process.wait(PATIENCE_SECONDS)
        return receiver

    def test_after_each_kill_everything_comes_back(self):
        print(f"seed {SEED}", flush=True)
        rng, held = random.Random(SEED), 500
        references = self.stream(held)
        for round_ in range(ROUNDS):
            self.receive_and_kill(rng, references)
            # The bystander's blocks, and at most a burst with the process that checks.
            wait_until(f"round {round_}: the blocks of the dead are back, seed {SEED}",
                       lambda: self.holds_at_most(held + 64))
        self.check_stream(references)
        print(f"{ROUNDS} kills", flush=True)

    def test_many_kills_one_after_the_other(self):
        print(f"seed {SEED}", flush=True)
        rng = random.Random(SEED + 1)
        references = self.stream()
        for _ in range(3 * ROUNDS):
            self.receive_and_kill(rng, references, (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
        self.check_stream(references)
        print(f"{3 * ROUNDS} kills", flush=True)

    def test_the_memory_is_kept_while_the_socket_lives_in_a_child(self):
        part = self.part("fork", "objects", "v0", COPY | SKB, stdout=subprocess.PIPE)
        child = int(part.process.stdout.readline().decode().split()[1])
        try:
            part.await_words("rings_mapped=")
            self.assertEqual(part.figures_so_far()["rings_mapped"], 0)
            part.kill()
            wait_until("the parent is reaped",
                       lambda: [client["state"] for client in self.daemon.clients()] == ["quarantined"])
            # The child has the socket, so the kernel may still write. Longer than the pool's pin-quarantine.
            for _ in range(8):
                self.assertEqual(self.used_objects(), KERNEL_BLOCKS)
                time.sleep(0.5)
        finally:
            os.kill(child, signal.SIGKILL)
        wait_until("the blocks are back", lambda: self.used_objects() == 0)


    def test_another_program_does_not_inherit_the_socket(self):
        part = self.part("spawn", "objects", "v0", COPY | SKB, stdout=subprocess.PIPE)
        child = pathlib.Path("/proc", part.process.stdout.readline().decode().split()[1])
        wait_until("the other program runs", lambda: (child / "comm").read_text() == "sleep\n")
        inherited = [os.readlink(path) for path in (child / "fd").iterdir()]
        self.assertEqual([name for name in inherited if name.startswith("socket:")], [])
        part.figures()

    def test_a_close_frees_nothing_while_a_child_has_the_socket(self):
        seen = self.part("close_beside_child", "objects", "v0", COPY | SKB).figures()
        self.assertEqual((seen["error0"], seen["available0"]), (errno.ETIMEDOUT, OBJECTS - seen["given0"]))
        # The second child has closed the descriptors. The first blocks are still the process's.
        self.assertEqual((seen["error1"], seen["available1"]), (0, OBJECTS - seen["given0"]))


class Pinned(unittest.TestCase):
    def test_memory_below_an_open_queue_does_not_shrink(self):
        with Daemon("--pool", "name=default,backing=small,capacity=64M,online=64M,frame=2K,largest=2M") as daemon:
            part = Part(daemon, "open", "default", "v0", COPY | SKB, stdout=subprocess.PIPE)
            self.addCleanup(part.close)
            self.assertIn("open 0 ", part.process.stdout.readline().decode())
            refused = daemon.run_cli("resize", "default", "16M")
            self.assertNotEqual(refused.returncode, 0, refused.stdout)
            self.assertIn("pin", refused.stdout + refused.stderr)
            (node,) = daemon.status()["pools"][0]["nodes"]
            self.assertEqual(node["online_bytes"], 64 << 20)
            part.figures()
            wait_until("it can shrink", lambda: daemon.run_cli("resize", "default", "16M").returncode == 0)


if __name__ == "__main__":
    main()
