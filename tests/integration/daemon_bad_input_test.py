#!/usr/bin/env python3
"""What bad input gets, on the daemon's side: an error that names the value and the remedy, nothing lost, the daemon up.

Starts with wrong settings end with an error; hostile clients get an answer or lose their connection. After each of the
latter the daemon has to serve a good client, hold no block and have as many open files as before.
"""

import contextlib
import ctypes
import errno
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.attach_wire import (  # noqa: E402
    ATTACH_REPLY,
    DETACH_REQUEST,
    HEADER,
    MAGIC,
    REPLY_BYTES,
    REQUEST,
    WIRE_VERSION,
    Reply,
    connect,
    request,
)
from support.daemon import PATIENCE_SECONDS, Daemon, program, wait_until  # noqa: E402
from support.numacre_client import ClientProcess, Library, library_path  # noqa: E402
from support.runner import main  # noqa: E402

POOL = "name=default,capacity=64M,online=32M,frame=4K,largest=4M,backing=small"
SYNTHETIC = ("--topology", "synthetic:2x512M", "--metrics-address", "127.0.0.1:0")

VERSION_MISMATCH = 7  # Errc


def answer_to(daemon, *packets, fds=()):
    """What the daemon says to these packets on one connection: a Reply, or None if it hangs up instead."""
    with connect(daemon) as connection:
        try:
            for packet in packets:
                socket.send_fds(connection, [packet], list(fds))
        except (BrokenPipeError, ConnectionResetError):
            pass  # hung up after an earlier packet; its answer may still be there
        last = None
        while True:
            try:
                data, received, _, _ = socket.recv_fds(connection, REPLY_BYTES + 1, 1 + 2 * 64)
            except ConnectionResetError:
                return last
            for fd in received:
                os.close(fd)
            if not data:
                return last
            last = Reply(data)
            if last.error == 0:
                return last  # attached: the connection stays up


@unittest.skipUnless(os.geteuid() == 0, "NOT TESTED: needs root, to become a user with few threads")
class FewThreads(unittest.TestCase):
    """A limit on threads ends the start with the remedy, wherever it is met; the libraries abort at one of the
    places."""

    UID = 64207  # nobody else's: the kernel counts a user's threads
    PATIENCE = 3  # seconds

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="numacre-few-", dir="/tmp")))
        self.folder.chmod(0o755)
        for name in ("numacred", "numacre-holder"):  # where the user can read them
            shutil.copy(program(name), self.folder / name)

    def start(self, threads, log):
        run = self.folder / f"run-{threads}"
        run.mkdir(mode=0o711)
        os.chown(run, self.UID, self.UID)
        command = ["prlimit", f"--nproc={threads}:{threads}", "setpriv", f"--reuid={self.UID}", f"--regid={self.UID}",
                   "--clear-groups", self.folder / "numacred", "--runtime-dir", run, *SYNTHETIC, "--pool", POOL]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def outcome(self, threads):
        """Threads that it has when it serves; None: it has ended, for the reason that it says, or cannot go on (the
        daemon gives that up after a minute, which is not waited for here)."""
        with open(self.folder / f"log-{threads}", "w+") as log:
            daemon = self.start(threads, log)
            try:
                deadline = time.monotonic() + self.PATIENCE
                while daemon.poll() is None and time.monotonic() < deadline and " serving" not in self.text(log):
                    time.sleep(0.02)
                serves = daemon.poll() is None and " serving" in self.text(log)
                if daemon.poll() is not None:
                    self.assertEqual(daemon.returncode, 1, self.text(log))
                    self.assertIn("TasksMax", self.text(log))
                return len(os.listdir(f"/proc/{daemon.pid}/task")) if serves else None
            finally:
                for pid in self.processes():  # the holder, too, is the user's
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                daemon.wait()
                wait_until("nothing of it is left", lambda: not self.processes())

    @staticmethod
    def text(log):
        log.seek(0)
        return log.read()

    def processes(self):
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == self.UID:
                    found.append(int(entry.name))
        return found

    def test_a_start_with_too_few_threads_says_so_and_does_not_abort(self):
        enough = self.outcome(1000)
        self.assertIsNotNone(enough)
        served = [self.outcome(threads) is not None for threads in range(enough - 18, enough + 28, 3)]
        self.assertFalse(served[0])
        self.assertTrue(served[-1])


class RefusedStart(unittest.TestCase):
    """numacred ends with an error instead of serving something else than what was asked for."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="numacre-bad-")))

    def refused(self, *arguments, names, runtime_dir=None):
        """Starts numacred, which has to end by itself with an error that has all of these words in it."""
        directory = runtime_dir or self.folder / "run"
        command = [program("numacred"), "--runtime-dir", str(directory), *map(str, arguments)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMACRE_RUNTIME")}
        try:
            outcome = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PATIENCE_SECONDS,
                env=environment,
            )
        except subprocess.TimeoutExpired as error:
            self.fail(f"{' '.join(command)} was not refused, it goes on:\n{error.stdout}")
        said = f"{' '.join(command)}\nended with {outcome.returncode}:\n{outcome.stdout}"
        self.assertGreater(outcome.returncode, 0, said)
        for word in names:
            self.assertIn(word.lower(), outcome.stdout.lower(), said)
        return outcome.stdout

    def test_a_configuration_that_would_exhaust_the_parser_is_refused(self):
        config = self.folder / "numacred.toml"
        deep = ".".join("a" * 200_000)
        for text in (f"{deep} = 1\n", f"[{deep}]\n", f"# sound\n[[pool]]\nname = 'x'\n{deep} = 1\n"):
            config.write_text(text)
            self.refused("--config", config, names=["a line of", "characters"])
        # A table in a table in a table, each by a key of many parts.
        for parts, names in ((2000, ["dots outside quotes", "at most 64"]), (64, [str(config)])):
            key = ".".join("a" * parts)
            config.write_text("z = [" + f"\n{{{key} = [" * 100 + "\n1" + "\n]}" * 100 + "]\n")
            self.refused("--config", config, names=names)
        config.write_text("# comment\n" * 200_000)
        self.refused("--config", config, names=[str(config), "larger than 1M"])
        self.refused("--config", "/dev/zero", names=["/dev/zero", "larger than 1M"])

    def test_a_relative_runtime_directory_is_refused(self):
        self.refused("--check-config", runtime_dir="run", names=["run", "absolute path"])

    def test_wrong_config_key_is_named(self):
        config = self.folder / "numacred.toml"
        config.write_text('metrics-adress = "127.0.0.1:0"\n')
        for more in ((), ("--check-config",)):
            self.refused("--config", config, *more, names=["metrics-adress", str(config), "metrics-address"])

    def test_wrong_key_inside_a_pool_is_named(self):
        config = self.folder / "numacred.toml"
        config.write_text('[[pool]]\nname = "default"\ncapacty = "64M"\n')
        for more in ((), ("--check-config",)):
            self.refused("--config", config, *more, names=["capacty", str(config), "capacity"])

    def test_config_that_is_not_toml_names_the_line(self):
        config = self.folder / "numacred.toml"
        config.write_text('metrics-address = "127.0.0.1:0"\n[[pool\n')
        self.refused("--config", config, names=[str(config), "2"])

    def test_config_that_is_not_there_is_named(self):
        self.refused("--config", self.folder / "nothing.toml", names=["nothing.toml"])

    def test_impossible_geometry_names_the_value_and_what_would_do(self):
        cases = [
            ("name=a,frame=3000", ["3000", "power of two"]),
            ("name=a,frame=32", ["32", "64"]),
            ("name=a,frame=4M,largest=8M,capacity=64M,online=32M", ["4M", "2M"]),
            ("name=a,largest=3M", ["3M", "power of two"]),
            ("name=a,frame=64K,largest=4K", ["4K", "64K"]),
            ("name=a,largest=2G,capacity=8G,online=2G", ["2G", "1G"]),
            ("name=a,capacity=0,online=0", ["capacity"]),
            ("name=a,capacity=66M,largest=4M,online=32M", ["66M", "68M"]),
            ("name=a,capacity=64M,online=128M", ["128M", "64M"]),
            ("name=a,capacity=64M,online=5M", ["5M", "8M"]),
            ("name=a,capacity=1048576T,online=64M", ["use at most"]),
            ("name=a,capacity=lots", ["lots"]),
            ("name=a,capacity=-4M", ["-4M"]),
            ("name=a,backing=floppy", ["floppy", "hugetlb"]),
            ("name=../a,capacity=64M,online=32M", ["../a"]),
            ("name=a,frme=4K", ["frme", "frame"]),
            ("name=a,max-clients=0", ["0", "max-clients"]),
            ("name=a,max-threads=5,max-threads-per-client=6", ["6", "5", "max-threads-per-client"]),
            ("name=a,owner=no-such-user", ["no-such-user", "getent passwd"]),
            ("name=a,group=no-such-group", ["no-such-group", "groupadd"]),
            ("name=a,mode=0777", ["0777", "use 0666"]),
        ]
        for spec, names in cases:
            with self.subTest(pool=spec):
                self.refused(*SYNTHETIC, "--pool", spec, names=names)
                self.refused(*SYNTHETIC, "--pool", spec, "--check-config", names=names)

    def test_two_pools_of_one_name_are_refused(self):
        self.refused(*SYNTHETIC, "--pool", POOL, "--pool", POOL, names=["default"])

    def test_impossible_topology_is_named(self):
        for topology in ("synthetic:0x512M", "synthetic:2x", "synthetic:2x512Q", "synthetic:-1x1G", "sculpture"):
            with self.subTest(topology=topology):
                self.refused("--topology", topology, "--pool", POOL, names=[topology.split(":")[-1]])

    def test_more_memory_than_the_numa_node_has_is_refused(self):
        spec = "name=default,capacity=2G,online=1G,frame=4K,largest=4M,backing=small"
        self.refused(*SYNTHETIC, "--pool", spec, names=["1G", "512M"])

    def test_unknown_flag_is_named(self):
        self.refused("--metrics-adress", "127.0.0.1:0", names=["--metrics-adress"])

    def test_runtime_directory_under_a_file_is_named(self):
        blocked = self.folder / "file"
        blocked.write_text("")
        run = blocked / "run"
        self.refused(*SYNTHETIC, "--pool", POOL, runtime_dir=run, names=[str(run), "--runtime-dir"])

    def test_runtime_directory_that_takes_no_files_is_named(self):
        # In /proc nobody may make anything, root neither.
        self.refused(*SYNTHETIC, "--pool", POOL, runtime_dir="/proc/numacre", names=["/proc/numacre", "--runtime-dir"])

    def test_runtime_directory_too_long_for_a_socket_is_named(self):
        long = self.folder / ("d" * 120)
        self.refused(*SYNTHETIC, "--pool", POOL, runtime_dir=long, names=[str(long), "shorter", "--runtime-dir"])

    def test_a_capacity_that_no_process_can_map_is_refused(self):
        pool = "name=default,capacity=33T,online=0,frame=2M,largest=1G,backing=small"
        self.refused(*SYNTHETIC, "--pool", pool, names=["capacity 33T", "address space", "32T"])

    def test_metrics_address_that_is_no_address_is_named(self):
        for address in ("127.0.0.1:99999", "nowhere", "127.0.0.1:"):
            with self.subTest(address=address):
                self.refused(
                    "--topology", "synthetic:2x512M", "--pool", POOL, "--metrics-address", address, names=[address]
                )  # fmt: skip

    def test_metrics_port_that_is_taken_is_named_and_taken_when_it_is_free(self):
        """Any user can take it while no daemon runs: that must not keep the next one from serving memory."""
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            daemon = self.enterContext(
                serving("--topology", "synthetic:2x512M", "--pool", POOL, "--metrics-address", address)
            )
            daemon.says(f"no metrics: .*{re.escape(address)} .*another port")
            self.assertEqual(daemon.status()["daemon"]["metrics_address"], "")
            with ClientProcess(daemon.runtime_dir) as client:
                self.assertEqual(client.alloc(4096)[0], 0, client.message)
        wait_until("metrics are served", lambda: daemon.status()["daemon"]["metrics_address"] == address)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_SECONDS) as answer:
            self.assertIn(b"numacre_", answer.read())

    def test_socket_that_is_taken_leaves_the_first_daemon_alone(self):
        with serving() as daemon:
            taken = daemon.runtime_dir
            self.refused(*SYNTHETIC, "--pool", POOL, runtime_dir=taken, names=[taken, "--runtime-dir"])
            with ClientProcess(daemon.runtime_dir) as client:
                self.assertEqual(client.alloc(4096)[0], 0, client.message)


@contextlib.contextmanager
def serving(*arguments, **more):
    daemon = Daemon(*(arguments or (*SYNTHETIC, "--pool", POOL)), **more)
    try:
        yield daemon
    finally:
        daemon.stop()


class HostileClients(unittest.TestCase):
    """One daemon gets all of it."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(*SYNTHETIC, "--pool", POOL)
        cls.addClassCleanup(cls.daemon.stop)
        # Once through the good way, so that what the daemon opens lazily is open.
        with ClientProcess(cls.daemon.runtime_dir) as client:
            assert client.alloc(4096)[0] == 0, client.message
        wait_until("the first client is gone", lambda: not cls.daemon.clients())
        cls.files = len(cls.daemon.descriptors())

    def tearDown(self):
        self.assertTrue(self.daemon.alive(), f"numacred has ended:\n{self.daemon.log()}")
        with ClientProcess(self.daemon.runtime_dir) as client:
            error, blocks = client.alloc(64 << 10, count=3)
            self.assertEqual(error, 0, client.message)
            self.assertEqual(client.free(blocks), 0, client.message)
        wait_until("no block is held", lambda: self.daemon.used_bytes() == 0)
        wait_until("no client is attached", lambda: not self.daemon.clients())
        wait_until(f"only {self.files} files are open again", lambda: len(self.daemon.descriptors()) <= self.files)

    def refused(self, *packets, **more):
        """Hung up on, or told an error in words."""
        reply = answer_to(self.daemon, *packets, **more)
        if reply is not None:
            self.assertEqual(reply.kind, ATTACH_REPLY)
            self.assertNotEqual(reply.error, 0, "the daemon took it for a good message")
            self.assertNotEqual(reply.message, "", "an error without a word")
        return reply

    def test_good_message_is_accepted(self):
        # The others prove nothing if this test's own idea of the wire format is wrong.
        reply = answer_to(self.daemon, request())
        self.assertIsNotNone(reply)
        self.assertEqual(reply.error, 0, reply.message)

    def test_unknown_pool_is_named(self):
        library = Library(library_path())
        pool = ctypes.c_void_p()
        error = library.c.numacre_attach(str(self.daemon.runtime_dir).encode(), b"no-such-pool", ctypes.byref(pool))
        self.assertEqual(error, -errno.ENOENT, library.last_error())
        self.assertIn("no-such-pool", library.last_error())
        self.assertIsNone(pool.value)

    def test_other_layout_version_is_refused_with_both_versions(self):
        reply = self.refused(request(layout=4711))
        self.assertIsNotNone(reply, "hung up without a word")
        self.assertEqual(reply.error, VERSION_MISMATCH, reply.message)
        self.assertIn("4711", reply.message)
        self.assertRegex(reply.message, "(?i)upgrade|update|rebuild")

    def test_other_wire_version_is_refused(self):
        reply = self.refused(request(version=4711))
        if reply:
            self.assertEqual(reply.error, VERSION_MISMATCH, reply.message)
            self.assertIn("4711", reply.message)

    def test_wrong_magic(self):
        self.refused(request(magic=0xDEADBEEF))

    def test_wrong_type(self):
        for kind in (0, ATTACH_REPLY, 4, 5, 0xFFFF):
            with self.subTest(type=kind):
                self.refused(request(kind=kind))

    def test_wrong_size_field(self):
        for size in (0, 1, REQUEST.size - 1, REQUEST.size + 1, 0x7FFFFFFF, 0xFFFFFFFF):
            with self.subTest(size=size):
                self.refused(request(size=size))

    def test_truncated_message(self):
        for length in (1, 4, HEADER.size - 1, HEADER.size, HEADER.size + 1, REQUEST.size - 1):
            with self.subTest(bytes=length):
                self.refused(request()[:length])

    def test_oversized_message(self):
        for more in (1, 8, 4096, 60000):
            with self.subTest(bytes=REQUEST.size + more):
                self.refused(request() + b"\0" * more)
                self.refused(request(size=REQUEST.size + more) + b"\xff" * more)

    def test_unknown_tier(self):
        for tier in (2, 0xFFFFFFFF):
            with self.subTest(tier=tier):
                self.refused(request(tier=tier))

    def test_pool_name_without_an_end(self):
        self.refused(request(pool=b"x" * 64))

    def test_pool_name_of_control_characters(self):
        reply = self.refused(request(pool=b"\x1b[2J\nlevel=error forged\xff\xfe"))
        if reply:
            self.assertNotIn("\x1b", reply.message)
            self.assertNotIn("\n", reply.message)
        self.assertNotRegex(self.daemon.log(), "(?m)^level=error forged")

    def test_random_messages(self):
        seed = int(os.environ.get("NUMACRE_SEED", random.randrange(1 << 32)))
        print(f"replay: NUMACRE_SEED={seed} {sys.argv[0]} HostileClients.test_random_messages", flush=True)
        choose = random.Random(seed)
        for number in range(300):
            message = bytearray(choose.randbytes(choose.randrange(1, 300)))
            if number % 3 == 0:
                # Past the first checks: a good header, noise behind it.
                message[: HEADER.size] = HEADER.pack(MAGIC, WIRE_VERSION, choose.randrange(5), REQUEST.size, 0)
                message = message[: REQUEST.size].ljust(REQUEST.size, b"\0")
                message[HEADER.size + 8 :] = choose.randbytes(64)
            with self.subTest(seed=seed, message=number):
                self.refused(bytes(message))

    def test_detach_before_attach(self):
        with connect(self.daemon) as connection:
            connection.send(HEADER.pack(MAGIC, WIRE_VERSION, DETACH_REQUEST, HEADER.size, 0))
            # An answer or the end of the connection; silence would be a time-out error here.
            with contextlib.suppress(ConnectionResetError):
                connection.recv(REPLY_BYTES)

    def test_second_attach_on_a_connection_makes_no_second_client(self):
        with connect(self.daemon) as connection:
            for _ in range(2):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.send(request())
            data, fds, _, _ = socket.recv_fds(connection, REPLY_BYTES, 1 + 2 * 64)
            for fd in fds:
                os.close(fd)
            self.assertEqual(Reply(data).error, 0)
            mine = [client for client in self.daemon.clients() if client["pid"] == os.getpid()]
            self.assertLessEqual(len(mine), 1, mine)

    def test_files_that_come_with_a_message_are_not_kept(self):
        before = list(self.daemon.descriptors().values()).count("/dev/null")
        with open("/dev/null") as null:
            for _ in range(20):
                # From Linux 6.16 on the kernel refuses them to the sender (SO_PASSRIGHTS).
                with contextlib.suppress(PermissionError):
                    self.refused(request(magic=0), fds=[null.fileno()] * 100)
                with contextlib.suppress(PermissionError):
                    answer_to(self.daemon, request(), fds=[null.fileno()] * 100)
        wait_until("the daemon has none of them",
                   lambda: list(self.daemon.descriptors().values()).count("/dev/null") <= before)
        self.assertEqual(answer_to(self.daemon, request()).error, 0)

    def test_attached_and_gone_at_once(self):
        for _ in range(50):
            with connect(self.daemon) as connection:
                connection.send(request())

    def test_peer_that_never_reads_its_replies(self):
        with contextlib.ExitStack() as stack:
            for number in range(50):
                # Accepted and refused ones, and what both are sent stays where it is.
                deaf = stack.enter_context(connect(self.daemon))
                deaf.send(request(pool=b"default" if number % 2 else b"no-such-pool"))
            with ClientProcess(self.daemon.runtime_dir) as client:
                self.assertEqual(client.alloc(4096)[0], 0, client.message)
            self.assertLessEqual(len(self.daemon.clients()), 25 + 1)

    def test_connections_that_say_nothing(self):
        with contextlib.ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(connect(self.daemon))
            with ClientProcess(self.daemon.runtime_dir) as client:
                self.assertEqual(client.alloc(4096)[0], 0, client.message)


class NothingIsLost(unittest.TestCase):
    def setUp(self):
        self.daemon = self.enterContext(serving())

    def test_killed_client_gives_everything_back(self):
        client = ClientProcess(self.daemon.runtime_dir)
        for size in (4096, 64 << 10, 4 << 20):
            self.assertEqual(client.alloc(size, count=3)[0], 0, client.message)
        self.assertGreaterEqual(self.daemon.used_bytes(), 3 * (4096 + (64 << 10) + (4 << 20)))
        client.kill()
        wait_until("everything is given back", lambda: self.daemon.used_bytes() == 0)
        wait_until("the client is gone", lambda: not self.daemon.clients())

    def test_client_killed_inside_its_calls_gives_everything_back(self):
        clients = [ClientProcess(self.daemon.runtime_dir) for _ in range(3)]
        for client in clients:
            client.churn([4096, 12 << 10, 256 << 10], [0, 1])
        wait_until("they allocate", lambda: self.daemon.used_bytes() > 0)
        for client in clients:
            client.kill()
        wait_until("everything is given back", lambda: self.daemon.used_bytes() == 0)
        # All of it in whole blocks again: a lost mark in the tree would show as a missing largest block.
        with ClientProcess(self.daemon.runtime_dir) as client:
            error, blocks = client.alloc(4 << 20, count=16)
            self.assertEqual((error, len(blocks)), (0, 16), client.message)

    def test_detach_with_blocks_held_gives_them_back(self):
        with ClientProcess(self.daemon.runtime_dir) as client:
            self.assertEqual(client.alloc(1 << 20, count=5)[0], 0, client.message)
            self.assertEqual(client.detach(), 0)
            # The process is still there: it is the detaching that gave the blocks back.
            self.assertEqual(self.daemon.used_bytes(), 0)
            self.assertEqual(self.daemon.clients(), [])

    def test_exec_gives_back_what_the_program_before_held(self):
        with ClientProcess(self.daemon.runtime_dir) as client:
            self.assertEqual(client.alloc(1 << 20, count=5)[0], 0, client.message)
            client.exec()
            # The same process maps the same memory again, which must not pass for the program before.
            self.assertEqual(client.attach(), 0, client.message)
            self.assertEqual(client.alloc(4096)[0], 0, client.message)
            wait_until("the program before is reaped", lambda: self.daemon.used_bytes() == 4096)
            self.assertEqual([each["client_id"] for each in self.daemon.clients()], [client.client_id])

    def test_stopped_client_keeps_its_blocks_and_disturbs_nobody(self):
        with ClientProcess(self.daemon.runtime_dir) as client, ClientProcess(self.daemon.runtime_dir) as other:
            self.assertEqual(client.alloc(1 << 20)[0], 0, client.message)
            client.stop()
            try:
                error, blocks = other.alloc(64 << 10, count=50)
                self.assertEqual(error, 0, other.message)
                self.assertEqual(other.free(blocks), 0, other.message)
                self.assertGreaterEqual(self.daemon.used_bytes(), 1 << 20)
            finally:
                os.kill(client.pid, signal.SIGCONT)


class EndAndRestart(unittest.TestCase):
    def test_sighup_without_a_change_changes_nothing(self):
        with serving(*SYNTHETIC, "--pool", POOL) as daemon:
            daemon.process.send_signal(signal.SIGHUP)
            daemon.says("configuration read again")
            self.assertNotIn("differ", daemon.log())
            self.assertEqual([pool["name"] for pool in daemon.status()["pools"]], ["default"])
            self.assertEqual(daemon.stop(), 0)

    def test_without_standard_descriptors_no_file_of_a_pool_gets_their_numbers(self):
        with serving(*SYNTHETIC, "--pool", POOL, prefix=("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")) as daemon:
            found = [os.readlink(f"/proc/{daemon.pid}/fd/{number}") for number in range(3)]
            self.assertEqual(found[2], "/dev/null")
            # A library opens an eventfd before main().
            self.assertFalse([name for name in found if name not in ("/dev/null", "anon_inode:[eventfd]")])
            self.assertEqual(daemon.stop(), 0)

    def test_sigterm_ends_with_0_and_removes_the_sockets(self):
        with tempfile.TemporaryDirectory(prefix="numacre-end-") as name, serving(runtime_dir=name) as daemon:
            sockets = {path.name for path in pathlib.Path(name).glob("*.sock")}
            self.assertEqual(sockets, {"attach.sock", "control.sock", "holder.sock"})
            os.kill(daemon.pid, signal.SIGTERM)
            self.assertEqual(daemon.wait(), 0, daemon.log())
            self.assertEqual(list(pathlib.Path(name).glob("*.sock")), [])

    def test_sigterm_with_a_client_attached_leaves_the_client_its_memory(self):
        with serving() as daemon, ClientProcess(daemon.runtime_dir) as client:
            error, blocks = client.alloc(64 << 10, count=4)
            self.assertEqual(error, 0, client.message)
            self.assertEqual(daemon.stop(), 0, daemon.log())
            error, more = client.alloc(64 << 10, count=4)
            self.assertEqual(error, 0, client.message)
            self.assertEqual(client.free(blocks + more), 0, client.message)

    def test_restart_after_sigkill_cleans_up_the_old_sockets(self):
        with tempfile.TemporaryDirectory(prefix="numacre-restart-") as name:
            with serving(runtime_dir=name) as first:
                first.kill()
                self.assertTrue((pathlib.Path(name) / "attach.sock").exists(), "no stale socket to try")
            with serving(runtime_dir=name) as second, ClientProcess(name) as client:
                self.assertEqual(client.alloc(4096)[0], 0, client.message)
                self.assertEqual(second.status()["pools"][0]["clients"], 1)

    def test_attach_without_a_daemon_is_refused_with_the_path(self):
        library = Library(library_path())
        pool = ctypes.c_void_p()
        with tempfile.TemporaryDirectory(prefix="numacre-none-") as name:
            error = library.c.numacre_attach(name.encode(), None, ctypes.byref(pool))
            self.assertEqual(error, -errno.ECONNREFUSED, library.last_error())
            self.assertIn(name, library.last_error())


if __name__ == "__main__":
    main()
