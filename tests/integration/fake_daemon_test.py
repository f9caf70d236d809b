#!/usr/bin/env python3
"""What a client gets as the answer to its attach request is damaged at random: bytes, length, descriptors.
numacre_attach says what is wrong, or attaches, and the process lives on, with no descriptor and no mapping left behind.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import pathlib
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.attach_wire import (  # noqa: E402
    ATTACH_REPLY,
    LAYOUT_VERSION,
    MAGIC,
    MESSAGE_OFFSET,
    REPLY_BYTES,
    REPLY_HEAD,
    WIRE_VERSION,
    connect,
    request,
)
from support.daemon import PATIENCE_SECONDS, Daemon, wait_until  # noqa: E402
from support.numacre_client import ClientProcess, Library, library_path  # noqa: E402
from support.runner import main  # noqa: E402

MIB = 1 << 20
ROUNDS = int(os.environ.get("NUMACRE_ROUNDS", "400"))
POOL = "name=default,capacity=64M,online=16M,frame=4K,largest=4M,backing=small"
HEAD_BYTES = 16 + 64  # where the fields are; behind the message come those of the numa nodes
NODES_OFFSET = 16 + 64 + 256


def attach_again_and_again(runtime_dir, rounds):
    """The client: exit status 0 if nothing is left behind."""
    signal.alarm(10 * PATIENCE_SECONDS)
    library = Library(library_path())

    def left_behind():
        maps = pathlib.Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), maps.count("memfd:numacre")

    attached = 0
    before = None
    for _ in range(rounds):
        pool = ctypes.c_void_p()
        error = library.c.numacre_attach(os.fsencode(runtime_dir), b"default", ctypes.byref(pool))
        if error > 0 or (error != 0 and not library.last_error()):
            return 2
        if error == 0:
            attached += 1
            block = ctypes.c_void_p()
            if library.c.numacre_alloc(pool, 4096, ctypes.byref(block)) == 0:
                library.c.numacre_free(pool, block)
            library.c.numacre_detach(pool)
        # The first attach loads what stays.
        before = before or left_behind()
        if left_behind() != before:
            print(f"left behind: {left_behind()}, before: {before}; {library.last_error()}", file=sys.stderr)
            return 3
    print(f"attached {attached} times of {rounds}", flush=True)
    return 0 if 0 < attached < rounds else 4


class FullQueue(unittest.TestCase):
    HANDSHAKE_SECONDS = 5  # client/src/attach.cpp

    def test_a_client_waits_longer_for_a_place_than_for_an_answer(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"{folder}/attach.sock")
            listener.listen(0)
            listener.settimeout(PATIENCE_SECONDS)
            others = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    others.append(self.enterContext(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)))
                    others[-1].setblocking(False)
                    others[-1].connect(f"{folder}/attach.sock")
            full = len(others) - 1
            child = os.fork()
            if child == 0:
                library = Library(library_path())
                error = library.c.numacre_attach(os.fsencode(folder), b"default", ctypes.byref(ctypes.c_void_p()))
                os._exit(0 if error == -errno.ECONNREFUSED else 1)  # hung up on: it was accepted
            time.sleep(self.HANDSHAKE_SECONDS + 1)
            for _ in range(full + 1):
                listener.accept()[0].close()
            _, status = os.waitpid(child, 0)
            self.assertEqual(os.waitstatus_to_exitcode(status), 0)


@contextlib.contextmanager
def attaching():
    """A client whose attach request has come: the client, the connection to answer by, and a function that waits for
    the end of the attach and returns its results."""
    with (tempfile.TemporaryDirectory() as folder, ClientProcess(folder, attach=False) as client,
          socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener):
        listener.bind(f"{folder}/attach.sock")
        listener.listen(4)
        listener.settimeout(PATIENCE_SECONDS)
        answers = []
        attach = threading.Thread(target=lambda: answers.append(client.attach()))
        attach.start()
        caller, _ = listener.accept()
        with caller:
            caller.recv(4096)

            def results():
                attach.join(PATIENCE_SECONDS)
                return answers

            yield client, caller, results


class Refusals(unittest.TestCase):
    BAD_ARGUMENT = 3  # shm/include/numacre/error.hpp

    def test_a_refusal_comes_as_the_daemon_has_said_it(self):
        for sentence, shown in ((b"size 5 is odd: use 4", "size 5 is odd: use 4"),
                                (b"", "the daemon has refused it, and gave no reason: fix the call"),
                                (b"x" * 256, "x" * 255)):
            with self.subTest(sentence), attaching() as (client, caller, results):
                head = REPLY_HEAD.pack(MAGIC, WIRE_VERSION, ATTACH_REPLY, REPLY_BYTES, 0, self.BAD_ARGUMENT,
                                       LAYOUT_VERSION)
                caller.send((head.ljust(MESSAGE_OFFSET, b"\0") + sentence).ljust(REPLY_BYTES, b"\0"))
                self.assertEqual(results(), [-errno.EINVAL], client.message)
                self.assertEqual(client.message, shown)


def with_hugepages(size):
    """A file of at least that size, as the library wants it but for the size of its pages."""
    huge = os.memfd_create("huge", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    os.ftruncate(huge, -(-size // (2 * MIB)) * 2 * MIB)
    fcntl.fcntl(huge, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return huge


class FakeDaemon(unittest.TestCase):
    def setUp(self):
        self.seed = int(os.environ.get("NUMACRE_SEED", random.randrange(1 << 32)))
        print(f"replay: NUMACRE_SEED={self.seed} {sys.argv[0]} {self.id().removeprefix('__main__.')}", flush=True)
        self.choose = random.Random(self.seed)
        self.daemon = Daemon("--topology", "synthetic:1x512M", "--pool", POOL)
        self.addCleanup(self.daemon.stop)

    def damaged(self, data, fds):
        """The reply and the descriptors as the client gets them."""
        data, fds = bytearray(data), list(fds)
        choose = self.choose
        what = choose.randrange(8)
        if what == 0:  # nothing is wrong
            return bytes(data), fds
        if what <= 4:
            for _ in range(choose.randrange(1, 4)):
                at = choose.choice([choose.randrange(HEAD_BYTES), NODES_OFFSET + choose.randrange(64)])
                old = data[at]
                data[at] = choose.choice([old ^ 1 << choose.randrange(8), 0, 255, choose.randrange(256)])
        elif what == 5:
            length = choose.choice([0, 1, 15, 16, len(data) - 1, len(data) + 1, choose.randrange(len(data))])
            data = data[:length].ljust(length, b"\0") or bytearray(b"?")
        elif what == 6:
            del fds[choose.randrange(len(fds)) :]
        else:
            other = os.open(choose.choice(["/dev/null", "/dev/zero", __file__]), os.O_RDONLY)
            self.opened.append(other)
            short = os.memfd_create("short", os.MFD_ALLOW_SEALING)
            self.opened.append(short)
            os.ftruncate(short, 4096)
            which = choose.randrange(len(fds))
            huge = with_hugepages(os.fstat(fds[which]).st_size)
            self.opened.append(huge)
            fds[which] = choose.choice([other, short, huge, fds[0], fds[-1]])
        return bytes(data), fds

    def test_a_file_with_larger_pages_than_the_reply_says_is_refused(self):
        """mmap() would replace what is behind the reserved addresses."""
        for which, what in enumerate(("pool", "metadata", "data")):
            with attaching() as (client, caller, results), connect(self.daemon) as real:
                real.send(request())
                data, fds, _, _ = socket.recv_fds(real, REPLY_BYTES, 8)
                fds.append(with_hugepages(os.fstat(fds[which]).st_size))
                given = list(fds[:3])
                given[which] = fds[3]
                socket.send_fds(caller, [data], given)
                for fd in fds:
                    os.close(fd)
                self.assertEqual(results(), [-errno.EUCLEAN], client.message)
                self.assertIn(f"{what} region has pages of 2097152 bytes instead of 4096", client.message)

    def test_no_reply_hurts_the_client(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"{folder}/attach.sock")
            listener.listen(4)
            listener.settimeout(PATIENCE_SECONDS)
            child = os.fork()
            if child == 0:
                os._exit(attach_again_and_again(folder, ROUNDS))
            for _ in range(ROUNDS):
                self.opened = []
                caller, _ = listener.accept()
                with caller, connect(self.daemon) as real:
                    caller.recv(4096)
                    real.send(request())
                    data, fds, _, _ = socket.recv_fds(real, REPLY_BYTES, 1 + 2 * 64)
                    try:
                        reply, given = self.damaged(data, fds)
                        socket.send_fds(caller, [reply], given)
                        if self.choose.random() < 0.1:
                            caller.close()
                        else:
                            caller.settimeout(PATIENCE_SECONDS)
                            caller.recv(4096)  # it detaches, or has gone
                    finally:
                        for fd in [*fds, *self.opened]:
                            os.close(fd)
            _, status = os.waitpid(child, 0)
            self.assertEqual(status, 0, f"the client has ended by {os.waitstatus_to_exitcode(status)}")
        wait_until("all seats are free", lambda: not self.daemon.clients())
        self.assertEqual(self.daemon.used_bytes(), 0)


if __name__ == "__main__":
    main()
