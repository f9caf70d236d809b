#!/usr/bin/env python3
"""A local user without any rights sends descriptors to the attach socket whose last close waits (TCP sockets that
linger over data that nobody reads). Others attach, the dead are reaped and the daemon ends meanwhile, as if nothing
were there: where the kernel refuses such messages (SO_PASSRIGHTS, Linux 6.16), and where it does not (old_kernel.cpp).
"""

import contextlib
import os
import pathlib
import socket
import struct
import sys
import threading
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.attach_wire import REPLY_BYTES, Reply, connect, request  # noqa: E402
from support.daemon import Daemon, wait_until  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402
from support.stranger import Stranger  # noqa: E402

POOL = "name=default,capacity=64M,online=16M,frame=4K,largest=4M,backing=small,mode=0666"
# Longer than anybody here waits for anything: what waits for a close fails.
LINGER_SECONDS = 600


def old_kernel():
    path = pathlib.Path(os.environ.get("NUMACRE_BUILD_DIR")
                        or SOURCE / "build" / "release") / "test-bin" / "libold_kernel.so"
    return str(path) if path.exists() else None


def lingering(kept):
    """A TCP socket with unsent data, of which the other end reads nothing: kept open in `kept`."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.listen(1)
        ours = socket.create_connection(listener.getsockname())
        kept.append(listener.accept()[0])
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, LINGER_SECONDS))
    ours.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            ours.send(b"x" * 65536)
    return ours


def attack(daemon):
    """Sends such sockets in every way, and returns what is to be kept open."""
    kept = []

    def send_one(connection, packet):
        ours = lingering(kept)
        try:
            socket.send_fds(connection, [packet], [ours.fileno()])
            # The message has it now. If the message is gone already, to close it is for us to wait.
            threading.Thread(target=ours.close, daemon=True).start()
        except (PermissionError, BrokenPipeError, ConnectionResetError):
            kept.append(ours)  # refused, for its descriptors or because it has been hung up on before

    for _ in range(3):
        # As a first message, alone and after another, that is good or not; and one that is never read.
        for packets in ([request()], [b"x"], [request(), b"x"], [request(magic=0), b"x", b"x"], [b"x"] * 8):
            connection = connect(daemon)
            for packet in packets:
                send_one(connection, packet)
            kept.append(connection)
        # Attached, and then.
        connection = connect(daemon)
        connection.send(request())
        data, fds, _, _ = socket.recv_fds(connection, REPLY_BYTES, 1 + 2 * 64)
        assert Reply(data).error == 0, Reply(data).message
        for fd in fds:
            os.close(fd)
        send_one(connection, b"x")
        send_one(connection, b"x")
        connection.close()
    return kept


@unittest.skipUnless(os.geteuid() == 0, "NOT TESTED: needs root, to become another user")
class Descriptors(unittest.TestCase):
    def check(self, environment=None):
        daemon = self.enterContext(Daemon("--topology", "synthetic:1x512M", "--pool", POOL, environment=environment))
        os.chmod(daemon.runtime_dir, 0o755)
        os.chmod(os.path.join(daemon.runtime_dir, "attach.sock"), 0o666)
        victim = self.enterContext(contextlib.closing(ClientProcess(daemon.runtime_dir)))
        self.assertEqual(victim.alloc(1 << 20)[0], 0, victim.message)
        self.enterContext(Stranger(lambda: attack(daemon)))
        with ClientProcess(daemon.runtime_dir) as client:
            self.assertEqual(client.alloc(4096)[0], 0, client.message)
            victim.kill()
            wait_until("the dead client's memory is back", lambda: daemon.used_bytes() == 4096)
        wait_until("all have gone", lambda: not daemon.clients())
        # Its other end is open all the time: nothing but our not waiting ends this.
        self.assertEqual(daemon.stop(), 0, daemon.log())
        return daemon.log()

    def flooded(self, daemon):
        """Many more connections than the daemon closes at once, some with such a socket in front of them."""
        kept = []
        for round_ in range(3):
            for _ in range(20):
                ours = lingering(kept)
                with contextlib.suppress(OSError), connect(daemon) as connection:
                    socket.send_fds(connection, [b"x"], [ours.fileno()])
                threading.Thread(target=ours.close, daemon=True).start()
            for _ in range(400):
                with contextlib.suppress(OSError):
                    connect(daemon).close()
        return kept

    def check_flood(self, environment=None):
        daemon = self.enterContext(Daemon("--topology", "synthetic:1x512M", "--pool", POOL, environment=environment))
        os.chmod(daemon.runtime_dir, 0o755)
        os.chmod(os.path.join(daemon.runtime_dir, "attach.sock"), 0o666)
        self.enterContext(Stranger(lambda: self.flooded(daemon)))
        for _ in range(5):
            with ClientProcess(daemon.runtime_dir) as client:
                self.assertEqual(client.alloc(4096)[0], 0, client.message)
        self.assertEqual(daemon.stop(), 0, daemon.log())

    def check_control(self, environment=None):
        """The control socket, for a user who may use it."""
        daemon = self.enterContext(Daemon("--topology", "synthetic:1x512M", "--pool", POOL, "--control-mode", "0666",
                                          environment=environment))
        os.chmod(daemon.runtime_dir, 0o755)

        def attack_control():
            kept = []
            for _ in range(3):
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                connection.connect(os.path.join(daemon.runtime_dir, "control.sock"))
                for packet in (b"PRI * HTTP/2.0", b"!"):
                    ours = lingering(kept)
                    with contextlib.suppress(OSError):
                        socket.send_fds(connection, [packet], [ours.fileno()])
                    threading.Thread(target=ours.close, daemon=True).start()
                kept.append(connection)
            return kept

        self.enterContext(Stranger(attack_control))
        self.assertEqual(daemon.status()["pools"][0]["name"], "default")
        self.assertEqual(daemon.stop(), 0, daemon.log())

    def test_a_flood_of_connections_behind_them_keeps_nobody_out(self):
        self.check_flood()
        if old_kernel() is not None:
            self.check_flood({"LD_PRELOAD": old_kernel()})

    def test_those_sent_to_the_control_socket_stop_nobody(self):
        self.check_control()
        if old_kernel() is not None:
            self.check_control({"LD_PRELOAD": old_kernel()})

    def test_the_kernel_refuses_them(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            try:
                probe.setsockopt(socket.SOL_SOCKET, 83, 0)
            except OSError:
                self.skipTest("NOT TESTED: this kernel has no SO_PASSRIGHTS")
        self.assertNotIn("descriptors came with the message", self.check())

    def test_or_they_are_closed_by_a_thread_that_may_wait(self):
        library = old_kernel()
        if library is None:
            self.skipTest("NOT TESTED: a sanitizer wants to be loaded before libold_kernel.so")
        self.assertIn("descriptors came with the message", self.check({"LD_PRELOAD": library}))


if __name__ == "__main__":
    main()
