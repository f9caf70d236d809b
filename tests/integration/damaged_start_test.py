#!/usr/bin/env python3
"""What the daemon reads at its start is damaged: its configuration, what the holder kept. It refuses or serves, and
does not crash.

usage: damaged_start_test.py [unittest's arguments]      replay: NUMACRE_SEED=N, printed first
"""

import contextlib
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import PATIENCE_SECONDS, program, wait_until  # noqa: E402
from support.holder import Holder  # noqa: E402
from support.hostile_user import POOL, SYNTHETIC, HostileUser  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402


class Damage(HostileUser):
    """What the daemon reads at its start is damaged: it refuses or serves, and does not crash."""

    def setUp(self):
        super().setUp()
        self.seed = int(os.environ.get("NUMACRE_SEED", random.randrange(1 << 32)))
        print(f"replay: NUMACRE_SEED={self.seed} {sys.argv[0]} {self.id().removeprefix('__main__.')}", flush=True)
        self.choose = random.Random(self.seed)

    def test_configurations(self):
        sound = (SOURCE / "deploy" / "numacred.toml").read_bytes().replace(b"\n#", b"\n")
        path = f"{self.runtime_dir}/numacred.toml"
        for _ in range(20):
            text = bytearray(self.choose.choice([sound, (SOURCE / "deploy" / "numacred.toml").read_bytes()]))
            for _ in range(self.choose.randrange(1, 8)):
                at = self.choose.randrange(len(text))
                text[at : at + self.choose.randrange(3)] = self.choose.randbytes(self.choose.randrange(4))
            pathlib.Path(path).write_bytes(text)
            done = subprocess.run([program("numacred"), "--config", path, "--check-config"], stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=PATIENCE_SECONDS)
            self.assertIn(done.returncode, (0, 2), done.stderr)
            if done.returncode == 2:
                self.assertIn(path.encode(), done.stderr)

    def test_ledgers(self):
        for _ in range(4):
            daemon = self.serve()
            client = ClientProcess(self.runtime_dir)
            self.assertEqual(client.alloc(4096, count=3)[0], 0, client.message)
            daemon.kill()
            holder = Holder(self.runtime_dir)
            kept = holder.kept()
            holder.close()
            ledger = kept["default/ledger"]
            size = os.fstat(ledger).st_size
            for _ in range(self.choose.randrange(1, 12)):
                # The header, or anywhere.
                at = self.choose.randrange(self.choose.choice([512, size - 8]))
                os.pwrite(ledger, self.choose.randbytes(self.choose.choice([1, 4, 8])), at)
            for fd in kept.values():
                os.close(fd)
            try:
                self.start_and_end(serves=(0, 3))
            finally:
                client.close()
                given_up = subprocess.run([program("numacred"), "--runtime-dir", self.runtime_dir, "--discard-kept"],
                                          stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_SECONDS)
            self.assertEqual(given_up.returncode, 0, given_up.stderr)
            self.assertIn(f"what was kept is given up runtime_dir={self.runtime_dir}", given_up.stderr.decode())

    def some_message(self, kinds):
        """A message of the holder's, sound or not, and descriptors with it."""
        choose = self.choose
        name = choose.choice([b"", b"default/ledger", b"default/pool", b"x" * 96, choose.randbytes(96)])
        message = Holder.HEADER.pack(choose.choice([Holder.MAGIC] * 5 + [0]), choose.choice([Holder.VERSION] * 5 + [9]),
                                     choose.choice(kinds), choose.getrandbits(32), name)
        message = choose.choice([message] * 6 + [message[:7], message + b"!", choose.randbytes(len(message))])
        return message, [self.null] * choose.choice([0, 0, 1, 1, 2, 40])

    def test_messages_to_the_holder(self):
        """What is no message of a daemon's changes nothing of what is kept. (Drop and finish would: its user may.)"""
        hello, keep, done = Holder.HELLO, 1, 7
        with open("/dev/null") as null:
            self.null = null.fileno()
            daemon = self.serve()
            client = self.enterContext(contextlib.closing(ClientProcess(self.runtime_dir)))
            self.assertEqual(client.alloc(4096, count=3)[0], 0, client.message)
            daemon.kill()
            for _ in range(200):
                holder = Holder(self.runtime_dir)
                for _ in range(self.choose.randrange(1, 4)):
                    message, fds = self.some_message([hello, keep, Holder.ENTRY, done, 8, 0xFFFF])
                    if (message[:8] == Holder.HEADER.pack(Holder.MAGIC, Holder.VERSION, keep, 0, b"")[:8]
                            and b"default/" in message):
                        continue  # a daemon's own way to replace what is kept
                    with contextlib.suppress(OSError):
                        socket.send_fds(holder.connection, [message], fds)
                holder.close()
        daemon = self.serve()
        (found,) = daemon.clients()
        self.assertEqual((found["pid"], found["used_bytes"]), (client.pid, 3 * 4096))
        self.assertEqual(client.alloc(4096)[0], 0, client.message)

    def start_and_end(self, serves):
        """A daemon that finds what is there: it serves, by what the command line tool's exit status says, or says why
        not."""
        started = subprocess.Popen([program("numacred"), "--runtime-dir", self.runtime_dir, *SYNTHETIC, *POOL,
                                    "--metrics-address", ""],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def serves_or_has_ended():
            return started.poll() is not None or subprocess.run(
                [program("numacre"), "--runtime-dir", self.runtime_dir, "status"], capture_output=True,
                timeout=PATIENCE_SECONDS).returncode in serves

        try:
            wait_until("it serves or has ended", serves_or_has_ended)
            if started.poll() is None:
                started.send_signal(signal.SIGTERM)
            self.assertIn(started.wait(PATIENCE_SECONDS), (0, 1))
        finally:
            if started.poll() is None:
                started.kill()
                started.wait()

    def answer_at_random(self, listener):
        """As somebody who has the holder's socket and is none."""
        while True:
            caller, _ = listener.accept()
            with caller, contextlib.suppress(OSError):
                if self.choose.random() < 0.8:
                    caller.send(Holder.HEADER.pack(Holder.MAGIC, Holder.VERSION, Holder.HELLO, os.getpid(), b""))
                sound = self.choose.choice([0, 0.5, 0.9, 1])
                for _ in range(20):
                    if self.choose.random() < sound:
                        caller.send(Holder.HEADER.pack(Holder.MAGIC, Holder.VERSION, Holder.DONE, 0, b""))
                    else:
                        message, fds = self.some_message(list(range(9)))
                        socket.send_fds(caller, [message], fds)
                    caller.settimeout(0.05)
                    with contextlib.suppress(TimeoutError):
                        if not caller.recv(4096):
                            break

    @contextlib.contextmanager
    def stand_in(self):
        """A process that has the holder's name and answers at random. The daemon ends the process that called listen()
        when it replaces its holder: that must not be the test's own process."""
        path = f"{self.runtime_dir}/holder.sock"
        seed = self.choose.random()
        listens, says_so = os.pipe()
        answering = os.fork()
        if answering == 0:
            with contextlib.suppress(BaseException):
                self.choose.seed(seed)
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                listener.bind(f"{path}.new")
                listener.listen(8)
                os.rename(f"{path}.new", path)
                os.write(says_so, b"y")
                self.answer_at_random(listener)
            os._exit(1)
        os.close(says_so)
        try:
            self.assertEqual(os.read(listens, 1), b"y", "the stand-in of the holder does not listen")
            yield
        finally:
            os.close(listens)
            os.kill(answering, signal.SIGKILL)
            os.waitpid(answering, 0)

    def test_a_holder_that_is_none(self):
        """The daemon that starts is answered at random: it serves, or says why not."""
        with open("/dev/null") as null:
            self.null = null.fileno()
            for _ in range(8):
                with self.stand_in():
                    self.start_and_end(serves=(0,))


if __name__ == "__main__":
    main()
