#!/usr/bin/env python3
"""io_uring on blocks of a pool (<numacre/adaptors/io_uring.h>): fixed buffers, rings of provided buffers, zero-copy
sends, hand-over of what was received, and kills while requests are under way. The work is that of uring_client.c."""

import contextlib
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from errno import E2BIG, EBUSY, EINVAL, EMFILE, ENOMEM

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.attached_program import AttachedProgram, path_of_test_program  # noqa: E402
from support.daemon import PATIENCE_SECONDS, Daemon, wait_until  # noqa: E402
from support.late_file import LateFile, Unavailable  # noqa: E402
from support.runner import SKIPPED, main  # noqa: E402

MIB = 1 << 20
POOL = "name=default,capacity=64M,online=64M,frame=4K,largest=4M,backing=small,pin-quarantine=1s"
# The kernel's part of a test is not over when the process is: so long may its last work take.
SEED = int(os.environ.get("NUMACRE_TEST_SEED", "20261130"))
KILLS = int(os.environ.get("NUMACRE_TEST_KILLS", "24"))
AT_ONCE = 4
TABLES, NO_HOLD = 1, 2  # flags of numacre_uring_options
RING_IN_POOL, WITH_REFS = 1, 2  # flags of numacre_uring_feeder_options


class IoUringTest(unittest.TestCase):
    def serve(self, *arguments, pool=POOL):
        daemon = Daemon("--pool", pool, *arguments)
        self.addCleanup(daemon.stop)
        self.daemon = daemon
        os.environ["NUMACRE_RUNTIME_DIR"] = daemon.runtime_dir
        return daemon

    def folder(self):
        """For files that are read and written past the page cache, where the file system can do that."""
        return self.enterContext(tempfile.TemporaryDirectory(prefix="numacre-uring-", dir="/var/tmp"))

    def run_client(self, *arguments):
        """What the program prints. A machine without io_uring is a reason to skip, and to say so."""
        done = subprocess.run([path_of_test_program("uring_client"), *map(str, arguments)],
                              capture_output=True, text=True, timeout=2 * PATIENCE_SECONDS)
        if done.returncode == SKIPPED:
            self.skipTest(done.stderr.strip())
        self.assertEqual((done.returncode, done.stderr), (0, ""), f"{arguments}: {done.stdout}")
        return done.stdout

    def counts(self, *arguments):
        return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", self.run_client(*arguments))}

    def assert_all_comes_back(self):
        wait_until("no block is left behind", lambda: self.daemon.used_bytes() == 0)
        wait_until("no client is left", lambda: self.daemon.clients() == [])


class FixedBuffers(IoUringTest):
    def write_and_read(self, *arguments, pool=POOL, slice_bytes, words_each):
        self.serve(*arguments, pool=pool)
        path = pathlib.Path(self.folder()) / "file"
        counts = self.counts("file", slice_bytes, path)
        # A second opinion on what WRITE_FIXED has written: each 64-bit word is its own number.
        words = counts["blocks"] * words_each
        data = path.read_bytes()
        self.assertEqual(len(data), 8 * words)
        self.assertEqual(data, struct.pack(f"<{words}Q", *range(words)))
        self.assert_all_comes_back()
        return counts

    def test_all_of_a_pool_through_its_slices(self):
        counts = self.write_and_read(slice_bytes=8 * MIB, words_each=MIB // 2)
        self.assertEqual(counts, {"blocks": 8, "slices": 8, "buffers": 8})

    def test_slices_are_cut_at_blocks(self):
        """10 MiB become 8 MiB, for the largest block has 4 MiB."""
        counts = self.write_and_read(slice_bytes=10 * MIB, words_each=MIB // 2)
        self.assertEqual(counts, {"blocks": 8, "slices": 8, "buffers": 8})

    def test_several_numa_nodes(self):
        counts = self.write_and_read("--topology", "synthetic:3x512M", slice_bytes=16 * MIB, words_each=MIB // 2)
        self.assertEqual(counts, {"blocks": 24, "slices": 12, "buffers": 12})

    def test_one_buffer_for_all(self):
        counts = self.write_and_read(slice_bytes=0, words_each=MIB // 2)
        self.assertEqual(counts, {"blocks": 8, "slices": 1, "buffers": 1})

    def test_a_pool_of_objects(self):
        """Objects of 2368 B lie across pages; slices hold whole objects."""
        pool = "name=default,object=2368,count=3000,backing=small,pin-quarantine=1s"
        counts = self.write_and_read(pool=pool, slice_bytes=MIB, words_each=2368 // 8)
        self.assertEqual(counts, {"blocks": 1500, "slices": 7, "buffers": 7})

    def test_a_pool_that_is_online_in_part(self):
        pool = POOL.replace("online=64M", "online=20M")
        counts = self.write_and_read(pool=pool, slice_bytes=8 * MIB, words_each=MIB // 2)
        self.assertEqual(counts, {"blocks": 2, "slices": 8, "buffers": 3})

    def test_two_registrations_share_the_tables_of_a_ring(self):
        self.serve()
        self.run_client("tables")
        self.assert_all_comes_back()

    def test_places_that_are_taken_are_refused(self):
        self.serve()
        self.assertEqual(self.run_client("taken"),
                         "place 12 of the ring's table of buffers has a buffer already: name empty places "
                         "(first_buffer 10, 8 slices)\n"
                         "place 1 of the ring's table of files has a file already: name empty places (first_file 1, "
                         "1 pins)\n")
        self.assert_all_comes_back()

    def test_a_private_pool(self):
        self.run_client("private")

    def test_memory_that_comes_online_later(self):
        """Plain requests until the program registers again."""
        self.serve(pool=POOL.replace("online=64M", "online=32M"))
        path = pathlib.Path(self.folder()) / "file"
        path.write_bytes(bytes((place ^ place >> 8) & 255 for place in range(4096)))
        client = self.start("grown", path)
        self.daemon.cli("resize", "default", "64M")
        output, errors = client.process.communicate("g", timeout=PATIENCE_SECONDS)
        self.assertEqual((client.process.returncode, errors), (0, ""))
        self.assertEqual(output, "fixed=8 plain=8 fixed_now=16\n")
        self.assert_all_comes_back()

    def start(self, *arguments):
        return start(self, *arguments)


def start(test, *arguments):
    """uring_client as AttachedProgram, ended with the test."""
    try:
        client = AttachedProgram("uring_client", *arguments)
    except AssertionError as failure:
        if "no io_uring" in str(failure):
            test.skipTest(str(failure))
        raise
    test.addCleanup(client.kill)
    return client


def order(client, letter):
    """The line that the client answers."""
    client.process.stdin.write(letter)
    client.process.stdin.flush()
    return client.process.stdout.readline().strip()


class Pinned(IoUringTest):
    def test_no_shrink_below_a_registered_buffer(self):
        """A part of the pool is offline, so the pin is looked for by halves: none but the last may stay."""
        self.serve(pool=POOL.replace("online=64M", "online=44M"))
        client = start(self, "register", 0)
        self.assertGreaterEqual(int(order(client, "b").removeprefix("buffer=")), 0)
        refused = self.daemon.run_cli("resize", "default", "24M")
        self.assertNotEqual(refused.returncode, 0, refused.stdout)
        self.assertRegex(refused.stderr, rf"uring_client, pid {client.process.pid}\).* pins 20M")
        (node,) = self.daemon.status()["pools"][0]["nodes"]
        self.assertEqual(node["online_bytes"], 44 * MIB)
        self.assertEqual(order(client, "u"), "unregistered")
        self.daemon.cli("resize", "default", "24M")
        client.process.communicate("q", timeout=PATIENCE_SECONDS)
        self.assert_all_comes_back()

    def test_the_ring_holds_the_pin_beyond_a_kill(self):
        """A child keeps the ring, as requests under way do, and has closed the pin's descriptor. The blocks of the dead
        process are kept for as long as the ring lives; those of a process whose ring does not hold the pin are not."""
        self.serve()
        with contextlib.ExitStack() as children:
            holds, does_not = start(self, "register", 0), start(self, "register", NO_HOLD)
            keepers = {}
            for client in (holds, does_not):
                keepers[client] = int(order(client, "f").removeprefix("child="))
                children.callback(end, keepers[client])
            self.assertEqual(self.daemon.used_bytes(), 2 * MIB)
            holds.kill()
            does_not.kill()
            wait_until("the block of the one comes back", lambda: self.daemon.used_bytes() == MIB)
            # The other one's quarantine began at the same time: what is over for the one would be over for the other.
            time.sleep(2)
            self.assertEqual(self.daemon.used_bytes(), MIB)
            self.assertIn(str(holds.process.pid), str(self.daemon.clients()))
        self.assert_all_comes_back()


def end(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 9)


class ProvidedBuffers(IoUringTest):
    def test_a_stream_is_received_and_handed_to_another_process(self):
        """Three times as much as the pool has. The ring of eight blocks runs empty at least once."""
        self.serve()
        for flags in (0, RING_IN_POOL, WITH_REFS, RING_IN_POOL | WITH_REFS):
            with self.subTest(flags=flags):
                counts = self.counts("receive", flags, 192 * MIB // 4)
                self.assertGreater(counts["ran_empty"], 0)
                self.assertGreaterEqual(counts["passed"], 192 * MIB // 4 // 4096)
                self.assert_all_comes_back()

    def test_blocks_from_several_numa_nodes(self):
        self.serve("--topology", "synthetic:2x512M", pool=POOL + ",policy=interleave")
        self.counts("receive", WITH_REFS, 16 * MIB)
        self.assert_all_comes_back()

    def test_a_feeder_is_not_closed_under_a_request(self):
        self.serve()
        self.assertEqual(self.run_client("close"),
                         "1 blocks of buffer group 1 are with requests: end them (cancel), take their completions, "
                         "then close again\n")
        self.assert_all_comes_back()

    def test_a_pool_that_is_short_of_memory(self):
        self.serve()
        self.assertRegex(self.run_client("short"), r"\Afeed: no free block of 65536 bytes.*\n\Z")
        self.assert_all_comes_back()


class ZeroCopy(IoUringTest):
    def test_over_tcp_from_fixed_buffers(self):
        self.serve()
        counts = self.counts("send", "inet")
        if counts["plain"]:
            self.skipTest("this kernel has no zero-copy sends (before Linux 6.0)")
        self.assertEqual(counts["fixed"], 64)
        self.assertGreaterEqual(counts["notifications"], 64)
        self.assert_all_comes_back()

    def test_what_each_completion_means(self):
        self.run_client("sending")

    def test_a_socket_without_them_gets_plain_sends(self):
        self.serve()
        self.assertEqual(self.counts("send", "unix")["plain"], 1)
        self.assert_all_comes_back()


class Killed(IoUringTest):
    """Processes that read, write, send, receive and hand over are killed at random moments, while another process
    allocates from what is left, and would notice if anybody wrote into its blocks."""

    def test_in_the_middle_of_bursts(self):
        self.serve()
        print(f"seed {SEED}, {KILLS} kills (NUMACRE_TEST_SEED, NUMACRE_TEST_KILLS)", flush=True)
        choose = random.Random(SEED)
        path = pathlib.Path(self.folder()) / "file"
        path.write_bytes(os.urandom(64 << 16))
        watcher = start(self, "watch")
        bursts = []
        for kill in range(KILLS):
            if len(bursts) == AT_ONCE:
                self.kill_one(bursts.pop(choose.randrange(AT_ONCE)))
            bursts.append(start(self, "burst", choose.randrange(1, 1 << 30), path))
            stopped = choose.choice(bursts) if choose.random() < 0.3 else None
            if stopped:  # at any instruction, for a while: nobody waits for it
                os.kill(stopped.process.pid, signal.SIGSTOP)
            time.sleep(choose.random() * 0.3)
            if stopped:
                os.kill(stopped.process.pid, signal.SIGCONT)
        for burst in bursts:
            self.kill_one(burst)
        output, errors = watcher.process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual((watcher.process.returncode, errors), (0, ""))
        self.assertGreater(int(output.removeprefix("looked=")), 0)
        self.assert_all_comes_back()
        print(f"{KILLS} kills", flush=True)

    def kill_one(self, burst):
        """The process that takes its blocks ends then: what either has said against the other is on standard error."""
        if burst.process.poll() is not None:
            self.fail(f"a burst has ended by itself: {burst.process.communicate(timeout=PATIENCE_SECONDS)[1]}")
        burst.process.kill()
        _, errors = burst.process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(errors, "")


class Late(IoUringTest):
    """A disk that answers after the death of the reader: the kernel writes into a block of the dead."""

    BLOCK = 65536

    def read(self, flags):
        folder = self.folder()
        try:
            file = LateFile(folder, path_of_test_program("uring_client"), "late", flags, f"{folder}/late")
        except Unavailable as reason:
            self.skipTest(f"NOT TESTED: {reason}")
        self.addCleanup(file.end)
        file.wait_for("read")
        return file

    def test_a_read_that_outlives_its_process_writes_into_nobodys_block(self):
        """Two processes die with a read under way. The ring of the first holds the pin, so nobody gets its block until
        the read has ended. That of the second does not: its block has another owner 1 s later, who sees the late bytes.
        """
        self.serve()
        holds, does_not = self.read(0), self.read(NO_HOLD)
        self.assertEqual(self.daemon.used_bytes(), 2 * self.BLOCK)
        for file in (holds, does_not):
            os.kill(file.pid, signal.SIGKILL)
        wait_until("the block of the second comes back", lambda: self.daemon.used_bytes() == self.BLOCK)
        time.sleep(2)  # the quarantine of the first began at the same time
        hog = start(self, "hog")
        self.assertEqual(self.daemon.used_bytes(), 64 * MIB)
        does_not.answer()
        holds.answer()
        output, errors = hog.process.communicate(".", timeout=PATIENCE_SECONDS)
        self.assertEqual((hog.process.returncode, errors), (0, ""))
        self.assertEqual(output, f"blocks={64 * MIB // self.BLOCK - 1} changed=1\n")
        self.assert_all_comes_back()


class Refused(IoUringTest):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon("--pool", POOL)
        cls.addClassCleanup(cls.daemon.stop)

    def setUp(self):
        os.environ["NUMACRE_RUNTIME_DIR"] = self.daemon.runtime_dir

    def refuse(self, **options):
        words = [str(word) for option in options.items() for word in option]
        error, _, message = self.run_client("refuse", *words).rstrip("\n").partition(" ")
        self.assert_all_comes_back()
        return -int(error), message

    def test_each_error_names_value_and_remedy(self):
        for options, error, says in (
            ({"slice_bytes": MIB}, EINVAL, "slice_bytes 1048576 is not within the pool's largest block .4194304 bytes"),
            ({"slice_bytes": 2 << 30}, EINVAL, "slice_bytes 2147483648 .* and 1 GiB"),
            ({"numa_nodes": 2}, EINVAL, "none of the numa nodes 0x2"),
            ({"size_bytes": 4096}, EINVAL, "size_bytes 4096 is less than the largest block .4194304 bytes"),
            ({"flags": 64}, EINVAL, "unknown flags 0x40"),
            ({"first_buffer": 3}, EINVAL, "first_buffer.* are for NUMACRE_URING_TABLES"),
            ({"own_buffers": 4}, EBUSY, "the ring has fixed buffers already: .*NUMACRE_URING_TABLES"),
            ({"own_files": 4}, EBUSY, "the ring has files already: .*NUMACRE_URING_NO_HOLD"),
            ({"own_buffers": 4, "own_files": 4, "flags": TABLES, "slice_bytes": 4 * MIB, "buffer_count": 15,
              "file_count": 1}, E2BIG, "16 slices of at most 4194304 bytes and 15 places"),
            ({"own_buffers": 4, "own_files": 4, "flags": TABLES, "buffer_count": 1}, EMFILE,
             r"1 pins and 0 places for files \(file_count\)"),
            ({"own_buffers": 4, "own_files": 4, "flags": TABLES, "buffer_count": 1, "file_count": 1,
              "first_buffer": 4}, EINVAL, "fixed buffer 4: the ring's table of buffers has no such place: make one of"),
            ({"locked_bytes": MIB}, ENOMEM, r"fixed buffer 0: 67108864 bytes cannot be locked .* \(RLIMIT_MEMLOCK\) is "
             r"1048576 bytes: raise it \(ulimit -l, "),
        ):
            with self.subTest(**options):
                found, message = self.refuse(**options)
                self.assertEqual(found, error, message)
                self.assertRegex(message, says)

    def test_too_many_buffers(self):
        pool = "name=default,object=4096,count=20000,colouring=off,backing=small"
        with Daemon("--pool", pool) as daemon:
            os.environ["NUMACRE_RUNTIME_DIR"] = daemon.runtime_dir
            output = self.run_client("refuse", "slice_bytes", 4096)
        self.assertRegex(output, r"\A-7 more than 16384 fixed buffers of 4096 bytes: use larger ones \(slice_bytes")

    def test_a_kernel_or_filter_without_io_uring(self):
        for error, says in ((1, r"-1 no io_uring: a filter of system calls \(seccomp\) .*: allow io_uring_setup"),
                            (38, r"-38 no io_uring: the kernel has none, or .*\(seccomp\) hides it: use Linux 5.19"),
                            (12, r"-12 no io_uring of 8 entries: no memory, or .*raise it \(ulimit -l\)"),
                            (22, r"-22 no io_uring of 8 entries with flags 0:"),
                            (24, r"-24 no io_uring of 8 entries: Too many open files")):
            self.assertRegex(self.run_client("filter", error), rf"\A{says}")

    def test_the_sysctl_is_named(self):
        """The program sees another value than that of the machine, which is for all tests that run."""
        name = "/proc/sys/kernel/io_uring_disabled"
        if os.geteuid() != 0 or not os.path.exists(name):
            self.skipTest(f"not root, or a kernel without {name} (before Linux 6.6)")
        for value, says in (("2", "kernel.io_uring_disabled is 2: set it to 0"),
                            ("1", "kernel.io_uring_disabled is 1 and the process is neither privileged nor in")):
            path = pathlib.Path(self.folder()) / "value"
            path.write_text(value + "\n")
            done = subprocess.run(["unshare", "-m", "sh", "-c", f'mount --bind {path} {name} && exec "$0" filter 1',
                                   path_of_test_program("uring_client")], capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertTrue(done.stdout.startswith(f"-1 no io_uring: {says}"), done.stdout)


if __name__ == "__main__":
    main()
