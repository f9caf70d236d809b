#!/usr/bin/env python3
"""Who may do what: attach by owner, group and mode of a pool, the control socket by its group, limits for each user.

Most of it needs root, to be somebody else for the length of a test.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import pathlib
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import unittest
import urllib.request

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.attach_wire import (  # noqa: E402
    OBSERVER,
    REPLY_BYTES,
    TRUSTED,
    Reply,
    ask_to_attach,
    connect,
    request,
)
from support.daemon import PATIENCE_SECONDS, Daemon, program, wait_until  # noqa: E402
from support.numacre_client import UNCACHED, ClientProcess, Library, library_path  # noqa: E402
from support.runner import main  # noqa: E402

SYNTHETIC = ("--topology", "synthetic:2x512M", "--metrics-address", "127.0.0.1:0")
SIZES = "capacity=64M,online=8M,frame=4K,largest=4M,backing=small"
TOO_MANY_CLIENTS, ACCESS_DENIED, TOO_MANY_CONNECTIONS = 10, 14, 20  # Errc
STRANGER = 65534
TEAM = 12345  # a group without a name
MIB = 1 << 20

F_ADD_SEALS = 1033
F_SEAL_SHRINK, F_SEAL_GROW = 2, 4

needs_root = unittest.skipUnless(os.geteuid() == 0, "NOT TESTED: needs root, to become another user")


def as_user(function, uid=STRANGER, gid=STRANGER, groups=()):
    """What function() returns (as JSON can hold it) in a process of that user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups(list(groups))
            os.setgid(gid)
            os.setuid(uid)
            # Else /proc/self would be closed to it after the change of user, and prove nothing about the files.
            assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0  # PR_SET_DUMPABLE
            os.write(writer, json.dumps(function()).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise AssertionError(f"the child of uid {uid} failed with status {status}, see above")
    return json.loads(text)


@contextlib.contextmanager
def attached(daemon, pool, tier):
    """(reply, descriptors) of an attach over the bare protocol."""
    with connect(daemon) as connection:
        connection.send(request(pool=pool.encode(), tier=tier))
        data, fds, _, _ = socket.recv_fds(connection, REPLY_BYTES + 1, 1 + 2 * 64)
        try:
            yield Reply(data), fds
        finally:
            for fd in fds:
                os.close(fd)


def verdict(daemon, pool, tier):
    with attached(daemon, pool, tier) as (reply, fds):
        assert (len(fds) > 0) == (reply.error == 0), f"error {reply.error} and {len(fds)} descriptors"
        return [reply.error, reply.message]


@contextlib.contextmanager
def holding(daemon, pool, tier, count, uid=STRANGER):
    """A process of that user with so many attaches, all of which must succeed. It has them mapped, and keeps them
    whatever becomes of the daemon."""
    reader, writer = os.pipe()
    kept_reader, kept_writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(kept_writer)
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            with contextlib.ExitStack() as stack:
                maps = []
                for _ in range(count):
                    reply, fds = stack.enter_context(attached(daemon, pool, tier))
                    assert reply.error == 0, reply.message
                    maps += [mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ) for fd in fds]
                    if tier == TRUSTED:
                        reply.come(fds[0])
                os.write(writer, b"!")
                os.read(kept_reader, 1)
                status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writer)
    os.close(kept_reader)
    try:
        with os.fdopen(reader) as answer:
            if answer.read(1) != "!":
                raise AssertionError(f"a client of uid {uid} could not attach, see above")
        yield
    finally:
        os.close(kept_writer)
        _, status = os.waitpid(child, 0)
    assert status == 0, f"the client of uid {uid} ended with status {status}"


def error_of(call):
    """The name of the errno that call() raises; "" if it does not."""
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno]
    return ""


def make_writable(fd):
    """The errno of an mprotect() that wants to write to what was mapped for reading."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    address = libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    assert address != ctypes.c_void_p(-1).value, "not even readable"
    changed = libc.mprotect(address, 4096, mmap.PROT_READ | mmap.PROT_WRITE)
    return "" if changed == 0 else errno.errorcode[ctypes.get_errno()]


def open_to_all(daemon):
    os.chmod(daemon.runtime_dir, 0o755)  # the test's own directory is made for its owner alone


def attaches(daemon, result):
    with urllib.request.urlopen(f"http://{daemon.metrics_address}/metrics", timeout=PATIENCE_SECONDS) as answer:
        text = answer.read().decode()
    return int(float(re.search(rf'^numacre_attaches_total{{result="{result}"}} (\S+)', text, re.MULTILINE).group(1)))


@needs_root
class Attaching(unittest.TestCase):
    POOLS = {
        "team": f"owner=0,group={TEAM},mode=0660",
        "watched": f"owner=0,group={TEAM},mode=0664",
        "own": f"owner={STRANGER},group={TEAM},mode=0600",
        "shut": f"owner={STRANGER},group={TEAM},mode=0066",  # to its owner: the first class that fits decides
        "writers": f"owner=0,group={TEAM},mode=0620",
    }

    @classmethod
    def setUpClass(cls):
        pools = [word for name, access in cls.POOLS.items() for word in ("--pool", f"name={name},{SIZES},{access}")]
        cls.daemon = cls.enterClassContext(Daemon("--topology", "synthetic:1x512M", *pools))
        open_to_all(cls.daemon)

    def tearDown(self):
        self.assertTrue(self.daemon.alive(), self.daemon.log())
        wait_until("no client is attached", lambda: not self.daemon.clients())

    def test_the_first_class_that_fits_decides(self):
        nobody, member = {}, {"gid": TEAM}
        helper = {"groups": [100, TEAM, 200]}
        root = {"uid": 0, "gid": 0}
        rows = [
            # pool, who, trusted may, observer may
            ("team", nobody, False, False),
            ("team", member, True, True),
            ("team", helper, True, True),
            ("team", root, True, True),
            ("watched", nobody, False, True),
            ("watched", helper, True, True),
            ("own", nobody, True, True),
            ("own", {"uid": 1234, "gid": TEAM}, False, False),
            ("shut", nobody, False, False),
            ("shut", {"uid": 1234, "gid": 1234}, True, True),
            ("shut", root, True, True),
            ("writers", helper, True, False),
        ]
        for pool, who, trusted, observer in rows:
            for tier, may in ((TRUSTED, trusted), (OBSERVER, observer)):
                with self.subTest(pool=pool, who=who, tier=tier):
                    error, message = as_user(lambda: verdict(self.daemon, pool, tier), **who)
                    self.assertEqual(error, 0 if may else ACCESS_DENIED, message)

    def test_more_groups_than_are_looked_at(self):
        """Each costs the daemon's loop time, and any user with a subordinate gid can have 65536 of them."""
        many = {"groups": [TEAM, *range(70000, 70000 + 1024)]}
        error, message = as_user(lambda: verdict(self.daemon, "team", TRUSTED), **many)
        self.assertEqual(error, ACCESS_DENIED, message)
        self.assertIn("1025 supplementary groups, of which at most 1024", message)
        # Where they do not decide they are not looked at.
        self.assertEqual(as_user(lambda: verdict(self.daemon, "watched", OBSERVER), **many)[0], 0)
        self.assertEqual(as_user(lambda: verdict(self.daemon, "own", TRUSTED), **many)[0], 0)
        as_many_as_may_be = {"groups": [*range(70000, 70000 + 1023), TEAM]}
        self.assertEqual(as_user(lambda: verdict(self.daemon, "team", TRUSTED), **as_many_as_may_be)[0], 0)

    def test_a_set_user_id_program_does_not_take_its_daemon_from_the_environment(self):
        copy = shutil.copy(program("hello"), self.enterContext(tempfile.TemporaryDirectory()))
        os.chmod(os.path.dirname(copy), 0o755)
        environment = {**os.environ, "NUMACRE_RUNTIME_DIR": self.daemon.runtime_dir}

        def run():
            said = subprocess.run([copy], env=environment, capture_output=True, text=True)
            return said.stdout + said.stderr

        self.assertNotIn("/run/numacre", run())
        os.chown(copy, STRANGER, STRANGER)
        os.chmod(copy, 0o4755)
        if os.statvfs(copy).f_flag & os.ST_NOSUID:
            self.skipTest("the temporary directory is mounted nosuid")
        self.assertIn("/run/numacre", run())

    def test_a_refusal_says_who_may_and_is_logged_and_counted(self):
        refused, ok = attaches(self.daemon, "refused"), attaches(self.daemon, "ok")
        error, message = as_user(lambda: verdict(self.daemon, "team", TRUSTED))
        self.assertEqual(error, ACCESS_DENIED)
        for word in ("65534", "team", f"root:{TEAM} 0660", f"join group {TEAM}"):
            self.assertIn(word, message)
        self.daemon.says(r"attach refused .*uid=65534 .*may not")
        self.assertEqual(attaches(self.daemon, "refused"), refused + 1)
        self.assertEqual(attaches(self.daemon, "ok"), ok)
        verdict(self.daemon, "team", TRUSTED)
        # It is counted once the reply is out.
        wait_until("the attach is counted", lambda: attaches(self.daemon, "ok") == ok + 1)
        self.assertEqual(attaches(self.daemon, "refused"), refused + 1)

    def test_the_library_says_so_too(self):
        library = Library(library_path())

        def attach():
            pool = ctypes.c_void_p()
            error = library.c.numacre_attach(self.daemon.runtime_dir.encode(), b"team", ctypes.byref(pool))
            return [error, library.last_error()]

        error, message = as_user(attach)
        self.assertEqual(error, -errno.EACCES)
        self.assertIn("0660", message)

    def test_an_observer_can_read_and_nothing_else(self):
        def observe():
            found = []
            with attached(self.daemon, "watched", OBSERVER) as (reply, fds):
                assert reply.error == 0, reply.message
                own = os.memfd_create("own")
                # If this did not work, that the others cannot be opened again would prove nothing.
                os.close(os.open(f"/proc/self/fd/{own}", os.O_RDWR))
                for fd in fds:
                    size = os.fstat(fd).st_size
                    found.append(
                        {
                            "make a map writable": make_writable(fd),
                            "writable map": error_of(lambda: mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_WRITE)),
                            "open again": error_of(lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR)),
                            "open to write": error_of(lambda: os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)),
                            "change its mode": error_of(lambda: os.fchmod(fd, 0o666)),
                            "truncate": error_of(lambda: os.ftruncate(fd, 0)),
                        }
                    )
            return found

        found = as_user(observe)
        self.assertEqual(len(found), 3)
        for outcome in found:
            truncated = outcome.pop("truncate")
            self.assertIn(truncated, ("EINVAL", "EBADF", "EPERM"))  # not open for writing
            mode = outcome.pop("change its mode")
            self.assertEqual(mode, "EPERM")
            self.assertEqual(set(outcome.values()), {"EACCES"}, outcome)

    def test_a_trusted_client_of_another_user_works_and_cannot_open_the_files_again(self):
        library = Library(library_path())

        def work():
            pool, block = ctypes.c_void_p(), ctypes.c_void_p()
            name = self.daemon.runtime_dir.encode()
            assert library.c.numacre_attach(name, b"own", ctypes.byref(pool)) == 0, library.last_error()
            for size in (4096, 2 * MIB):
                error = library.c.numacre_alloc_on(pool, 0, size, UNCACHED, ctypes.byref(block))
                assert error == 0, library.last_error()
                ctypes.memset(block, 0x5A, size)
                assert library.c.numacre_free(pool, block) == 0, library.last_error()
            library.c.numacre_detach(pool)
            with attached(self.daemon, "own", TRUSTED) as (reply, fds):
                assert reply.error == 0, reply.message
                return [error_of(lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR)) for fd in fds]

        self.assertEqual(as_user(work), ["EACCES"] * 3)

    def test_the_tool_shows_and_sets_it(self):
        pools = {pool["name"]: pool for pool in self.daemon.cli("pools")["pools"]}
        shown = [pools["watched"][key] for key in ("owner", "group", "mode")]
        self.assertEqual(shown, ["root", str(TEAM), "0664"])
        sizes = ("--capacity", "8M", "--online", "4M", "--backing", "small")
        made = self.daemon.cli("create", "made", *sizes, "--owner", STRANGER, "--group", TEAM, "--mode", "0640")
        self.addCleanup(self.daemon.cli, "delete", "made")
        self.assertEqual([made["group"], made["mode"]], [str(TEAM), "0640"])
        self.assertEqual(as_user(lambda: verdict(self.daemon, "made", TRUSTED))[0], 0)
        self.assertEqual(as_user(lambda: verdict(self.daemon, "made", TRUSTED), uid=1234, gid=TEAM)[0], ACCESS_DENIED)
        self.assertEqual(as_user(lambda: verdict(self.daemon, "made", OBSERVER), uid=1234, gid=TEAM)[0], 0)
        for flag, value, says in (
            ("--group", "no-such-group", "no-such-group.*groupadd"),
            ("--owner", "no-such-user", "no-such-user.*getent passwd"),
            ("--mode", "0770", "beyond 0666"),
            ("--mode", "0000", "0600"),
            ("--mode", "rw", "octal"),
        ):
            with self.subTest(flag=flag, value=value), self.assertRaisesRegex(RuntimeError, says):
                self.daemon.cli("create", "bad", *sizes, flag, value)


@needs_root
class Restart(unittest.TestCase):
    def test_access_and_the_limit_of_threads_survive_the_daemon(self):
        with tempfile.TemporaryDirectory(prefix="numacre-access-") as name:
            pool = f"name=team,{SIZES},owner=7,group={TEAM},mode=0604,max-threads-per-client=3"
            with Daemon("--topology", "synthetic:1x512M", "--pool", pool, runtime_dir=name) as first:
                first.kill()
            with Daemon("--topology", "synthetic:1x512M", runtime_dir=name) as second:
                open_to_all(second)
                (adopted,) = second.cli("pools")["pools"]
                self.assertEqual([adopted["group"], adopted["mode"]], [str(TEAM), "0604"])
                self.assertEqual(as_user(lambda: verdict(second, "team", TRUSTED))[0], ACCESS_DENIED)
                self.assertEqual(as_user(lambda: verdict(second, "team", OBSERVER))[0], 0)
                self.assertEqual(as_user(lambda: verdict(second, "team", OBSERVER), gid=TEAM)[0], ACCESS_DENIED)
                self.assertEqual(as_user(lambda: verdict(second, "team", TRUSTED), uid=7)[0], 0)
                self.assertEqual(threads_that_fit(second, "team", 4)[0], 3)


    def test_clients_that_are_adopted_count(self):
        # Else a user's limit would begin anew with each daemon. Observers hold nothing but a seat, which goes with the
        # connection: they cannot fill a pool by and by.
        pool = f"name=default,{SIZES},mode=0666,max-clients=20"
        arguments = ("--topology", "synthetic:1x512M", "--max-connections", 40)  # ten of them of one user
        with tempfile.TemporaryDirectory(prefix="numacre-access-") as name:
            with Daemon(*arguments, "--pool", pool, runtime_dir=name) as first:
                open_to_all(first)
                clients = contextlib.ExitStack()
                self.addCleanup(clients.close)
                clients.enter_context(holding(first, "default", TRUSTED, 6))
                clients.enter_context(holding(first, "default", OBSERVER, 4))
                first.kill()
            with Daemon(*arguments, runtime_dir=name) as second:
                open_to_all(second)
                wait_until("the observers' seats are free", lambda: len(second.clients()) == 6)
                self.assertEqual([client["state"] for client in second.clients()], ["adopted"] * 6)
                # root's, so that no other limit is met
                with contextlib.ExitStack() as stack:
                    for _ in range(5):
                        stack.enter_context(attached(second, "default", OBSERVER))
                    error, message = verdict(second, "default", OBSERVER)
                    self.assertEqual(error, TOO_MANY_CLIENTS)
                    self.assertRegex(message, "its 5 observers, of 20 clients")
                wait_until("they are gone", lambda: len(second.clients()) == 6)

                def attach(count):
                    with contextlib.ExitStack() as stack:
                        connections = [stack.enter_context(connect(second)) for _ in range(count)]
                        return [ask_to_attach(connection)[0] for connection in connections]

                self.assertEqual(as_user(lambda: attach(4)), [0] * 4)
                wait_until("they are gone", lambda: len(second.clients()) == 6)
                self.assertEqual(as_user(lambda: attach(5)), [0] * 4 + [TOO_MANY_CONNECTIONS])
                second.says("uid 65534 has its 10 connections")
                clients.close()
                wait_until("all are gone", lambda: not second.clients())
                self.assertEqual(as_user(lambda: attach(11)), [0] * 10 + [TOO_MANY_CONNECTIONS])
                wait_until("these are gone, too", lambda: not second.clients())
                self.assertEqual(as_user(lambda: verdict(second, "default", OBSERVER))[0], 0)


@needs_root
class Observers(unittest.TestCase):
    def test_who_may_only_look_cannot_lock_out_who_works(self):
        pool = f"name=default,{SIZES},mode=0664,max-clients=8"
        daemon = self.enterContext(Daemon(*SYNTHETIC, "--pool", pool))
        open_to_all(daemon)

        def look(count):
            with contextlib.ExitStack() as stack:
                replies = [stack.enter_context(attached(daemon, "default", OBSERVER))[0] for _ in range(count)]
                return [[reply.error, reply.message] for reply in replies]

        refused = attaches(daemon, "refused")
        answers = as_user(lambda: look(5))
        self.assertEqual([error for error, _ in answers], [0, 0] + [TOO_MANY_CLIENTS] * 3)
        self.assertRegex(answers[2][1], '"default" has its 2 observers, of 8 clients: .*max-clients')
        self.assertEqual(attaches(daemon, "refused"), refused + 3)
        daemon.says("attach refused .*uid=65534 .*its 2 observers")
        wait_until("they are gone", lambda: not daemon.clients())

        with holding(daemon, "default", OBSERVER, 2), contextlib.ExitStack() as stack:
            for _ in range(6):
                client = stack.enter_context(ClientProcess(daemon.runtime_dir))
                self.assertEqual(client.alloc(4096)[0], 0, client.message)
            with self.assertRaisesRegex(RuntimeError, "has its 8 clients"):
                ClientProcess(daemon.runtime_dir)
        wait_until("all are gone", lambda: not daemon.clients())
        self.assertEqual([error for error, _ in as_user(lambda: look(2))], [0, 0])


@needs_root
class ControlSocket(unittest.TestCase):
    """Who may open it may do everything."""

    @classmethod
    def setUpClass(cls):
        # Where another user can run them, wherever the build is.
        cls.programs = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="numacre-bin-")))
        os.chmod(cls.programs, 0o755)
        for folder in ("bin", "lib"):
            (cls.programs / folder).mkdir(mode=0o755)
        for name in ("numacre", "numacred", "numacre-holder"):
            shutil.copy(program(name), cls.programs / "bin" / name)
        shutil.copy(library_path(), cls.programs / "lib" / "libnumacre.so.0")

    def run_as(self, uid, *command, groups=()):
        return subprocess.run(
            list(map(str, command)),
            user=uid, group=uid, extra_groups=list(groups), cwd="/",
            env={**os.environ, "LD_LIBRARY_PATH": str(self.programs / "lib")},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
        )  # fmt: skip

    def numacre(self, daemon, *arguments, **who):
        tool = self.programs / "bin" / "numacre"
        return self.run_as(STRANGER, tool, "--runtime-dir", daemon.runtime_dir, *arguments, **who)

    def test_only_root_and_the_group_may_use_it(self):
        arguments = (*SYNTHETIC, "--pool", f"name=default,{SIZES}", "--control-group", TEAM)
        with Daemon(*arguments) as daemon:
            open_to_all(daemon)
            path = pathlib.Path(daemon.runtime_dir) / "control.sock"
            found = path.stat()
            self.assertEqual((stat.S_IMODE(found.st_mode), found.st_gid), (0o660, TEAM))
            for verb in (["status"], ["resize", "default", "--node", "0", "16M"], ["delete", "default", "--force"]):
                with self.subTest(verb=verb):
                    refused = self.numacre(daemon, *verb)
                    self.assertEqual(refused.returncode, 1, refused.stderr)
                    self.assertIn(f"no access to {path}", refused.stderr)
                    self.assertIn(f"member of group {TEAM}", refused.stderr)
            answer = json.loads(self.numacre(daemon, "status", "--json").stdout)
            self.assertEqual(answer["error"]["code"], "PERMISSION_DENIED")
            allowed = self.numacre(daemon, "status", groups=[TEAM])
            self.assertEqual(allowed.returncode, 0, allowed.stderr)
            self.assertEqual(daemon.status()["pools"][0]["online_bytes"], 2 * 8 * MIB)

    def test_it_is_never_open_wider_than_configured(self):
        # Looked at as fast as can be while the daemon starts, under an umask that forbids nothing.
        with tempfile.TemporaryDirectory(prefix="numacre-open-") as name:
            path = pathlib.Path(name) / "control.sock"
            seen, done = set(), threading.Event()

            def look():
                while not done.is_set():
                    with contextlib.suppress(FileNotFoundError):
                        found = os.stat(path)
                        seen.add((stat.S_IMODE(found.st_mode), found.st_gid))

            looking = threading.Thread(target=look)
            looking.start()
            before = os.umask(0)
            try:
                with Daemon(*SYNTHETIC, "--control-mode", "0600", "--control-group", TEAM, runtime_dir=name):
                    pass
            finally:
                os.umask(before)
                done.set()
                looking.join()
        self.assertIn((0o600, TEAM), seen)
        self.assertEqual({mode & 0o077 for mode, _ in seen}, {0}, [(oct(mode), group) for mode, group in seen])

    def test_a_group_that_the_daemon_may_not_give_it_to_is_an_error(self):
        with tempfile.TemporaryDirectory(prefix="numacre-user-") as name:
            os.chown(name, STRANGER, STRANGER)
            numacred = [self.programs / "bin" / "numacred", "--runtime-dir", name, "--topology", "synthetic:1x512M"]
            numacred += ["--metrics-address", "", "--keep-memory", "off", "--control-group", TEAM]
            outcome = self.run_as(STRANGER, *numacred)
            self.assertEqual(outcome.returncode, 1, outcome.stdout + outcome.stderr)
            self.assertIn(str(TEAM), outcome.stdout + outcome.stderr)
            self.assertIn("--control-group", outcome.stdout + outcome.stderr)
            self.assertEqual(list(pathlib.Path(name).glob("*.sock")), [])

    def test_a_group_that_is_not_there_is_an_error(self):
        numacred = self.programs / "bin" / "numacred"
        outcome = self.run_as(0, numacred, "--control-group", "no-such-group", "--check-config")
        self.assertEqual(outcome.returncode, 2, outcome.stdout)
        self.assertRegex(outcome.stderr, "no-such-group.*groupadd")


def threads_that_fit(daemon, pool, wanted):
    """How many of so many threads could allocate at once, and what the others were told. In a process of its own."""
    library = Library(library_path())

    def run():
        handle = ctypes.c_void_p()
        name = str(daemon.runtime_dir).encode()
        assert library.c.numacre_attach(name, pool.encode(), ctypes.byref(handle)) == 0, library.last_error()
        leave, outcomes = threading.Event(), []

        def work():
            block = ctypes.c_void_p()
            error = library.c.numacre_alloc_on(handle, 0, 4096, UNCACHED, ctypes.byref(block))
            outcomes.append([error, library.last_error() if error else ""])
            leave.wait()

        def start(count):
            threads = [threading.Thread(target=work) for _ in range(count)]
            for thread in threads:
                thread.start()
            return threads

        threads = start(wanted)
        while len(outcomes) < wanted:
            time.sleep(0.01)
        leave.set()
        for thread in threads:
            thread.join()
        first = list(outcomes)
        # They have ended, so that there is room again.
        (last,) = start(1)
        last.join()
        library.c.numacre_detach(handle)
        refused = [outcome for outcome in first if outcome[0] != 0]
        return [wanted - len(refused), refused, outcomes[-1]]

    return as_user(run, uid=os.geteuid(), gid=os.getegid(), groups=os.getgroups())


class Threads(unittest.TestCase):
    def test_a_client_has_no_more_threads_than_it_may(self):
        limited = f"name=default,{SIZES},max-threads=5,max-threads-per-client=2"
        free = f"name=free,{SIZES},max-threads=5"
        with Daemon("--topology", "synthetic:1x512M", "--pool", limited, "--pool", free) as daemon:
            with ClientProcess(daemon.runtime_dir) as other:
                self.assertEqual(other.alloc(4096)[0], 0, other.message)
                fitting, refused, after = threads_that_fit(daemon, "default", 4)
                self.assertEqual(fitting, 2)
                for error, message in refused:
                    self.assertEqual(error, -errno.EUSERS)
                    self.assertRegex(message, "2 threads.*max-threads-per-client")
                self.assertEqual(after[0], 0, after)
                self.assertEqual(other.alloc(4096)[0], 0, other.message)
            self.assertEqual(threads_that_fit(daemon, "free", 6)[0], 5)


@needs_root
class Limits(unittest.TestCase):
    def daemon(self, *arguments):
        daemon = self.enterContext(Daemon(*SYNTHETIC, "--pool", f"name=default,{SIZES},mode=0666", *arguments))
        open_to_all(daemon)
        return daemon

    def attach_many(self, daemon, count):
        """The refused ones of so many clients at once."""
        with contextlib.ExitStack() as stack:
            answers = [ask_to_attach(stack.enter_context(connect(daemon))) for _ in range(count)]
            return [answer for answer in answers if answer[0] != 0]

    def check_refused(self, refused, count, says):
        self.assertEqual(len(refused), count, refused)
        for error, message in refused:
            self.assertEqual(error, TOO_MANY_CONNECTIONS, message)
            self.assertRegex(message, says)

    def check_root_is_served(self, daemon):
        with ClientProcess(daemon.runtime_dir) as client:
            self.assertEqual(client.alloc(4096)[0], 0, client.message)
        wait_until("no client is attached", lambda: not daemon.clients())

    def test_connections_of_one_user(self):
        daemon = self.daemon("--max-connections", 40)
        refused = as_user(lambda: self.attach_many(daemon, 13))
        self.check_refused(refused, 3, "65534 has its 10 connections.*--max-connections-per-user")
        wait_until("no client is attached", lambda: not daemon.clients())  # else the next ten are not all let in

        def through_the_library():
            errors = set()
            with contextlib.ExitStack() as stack:
                for _ in range(10):
                    ask_to_attach(stack.enter_context(connect(daemon)))
                for _ in range(200):  # sometimes it is hung up on before it has asked
                    pool = ctypes.c_void_p()
                    name = daemon.runtime_dir.encode()
                    errors.add((library.c.numacre_attach(name, None, ctypes.byref(pool)), library.last_error()))
            return sorted(errors)

        library = Library(library_path())
        errors = as_user(through_the_library)
        self.assertEqual(len(errors), 1, errors)
        error, message = errors[0]
        self.assertEqual(error, -errno.EMLINK, message)
        self.assertIn("--max-connections-per-user", message)
        self.check_root_is_served(daemon)
        self.assertEqual(self.attach_many(daemon, 13), [], "root has no limit of its own")
        wait_until("no client is attached", lambda: not daemon.clients())
        # What was closed counts no longer.
        self.check_refused(as_user(lambda: self.attach_many(daemon, 11)), 1, "65534")
        self.check_root_is_served(daemon)

    def test_silent_connections_of_one_user(self):
        daemon = self.daemon()

        def hold_silent():
            with contextlib.ExitStack() as stack:
                held = [stack.enter_context(connect(daemon)) for _ in range(64)]
                refused = self.attach_many(daemon, 2)
                # One that attaches is silent no more and makes room for another, which attaches in its turn.
                now_attached = ask_to_attach(held[0])
                return [refused, now_attached, self.attach_many(daemon, 2)]

        refused, now_attached, after = as_user(hold_silent)
        self.check_refused(refused, 2, "65534 has 64 connections that have not attached")
        self.assertEqual(now_attached[0], 0, now_attached)
        self.assertEqual(after, [])
        self.check_root_is_served(daemon)

    def test_connections_in_a_second_of_one_user(self):
        daemon = self.daemon("--max-connections-per-second", 5)
        refused_before = attaches(daemon, "refused")

        def hurry():
            answers = []
            for _ in range(200):
                with connect(daemon) as connection:
                    answers.append(ask_to_attach(connection))
            return answers

        start = time.monotonic()
        answers = as_user(hurry)
        seconds = time.monotonic() - start
        refused = [message for error, message in answers if error == TOO_MANY_CONNECTIONS]
        self.assertEqual(len(refused) + [error for error, _ in answers].count(0), 200, answers)
        self.assertLessEqual(200 - len(refused), 5 + 5 * seconds + 1)
        self.assertGreaterEqual(200 - len(refused), 5)
        self.assertRegex(refused[0], "65534 connects more than 5 times a second.*--max-connections-per-second")
        self.assertEqual(attaches(daemon, "refused"), refused_before + len(refused), "all of them are counted")
        daemon.says("connects more than")
        lines = daemon.log().count("connects more than")
        self.assertLessEqual(lines, seconds + 2, "and a line each would be a flood")
        self.check_root_is_served(daemon)


class FakeDaemon:
    """Answers one attach with what it is given, and every further message by hanging up."""

    def __init__(self, reply, fds):
        self.folder = tempfile.TemporaryDirectory(prefix="numacre-fake-")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(f"{self.folder.name}/attach.sock")
        self.listener.listen()
        self.thread = threading.Thread(target=self._serve, args=(reply, fds))
        self.thread.start()

    def _serve(self, reply, fds):
        connection, _ = self.listener.accept()
        with connection:
            connection.recv(4096)
            socket.send_fds(connection, [reply], fds)
            connection.recv(4096)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.thread.join(PATIENCE_SECONDS)
        self.listener.close()
        self.folder.cleanup()


class Seals(unittest.TestCase):
    """The library checks them itself: a daemon, or who pretends to be one, could cut a file short under it."""

    def setUp(self):
        daemon = self.enterContext(Daemon(*SYNTHETIC, "--pool", f"name=default,{SIZES}"))
        connection = self.enterContext(connect(daemon))
        connection.send(request())
        self.reply, self.fds, _, _ = socket.recv_fds(connection, REPLY_BYTES, 1 + 2 * 64)
        self.addCleanup(lambda: [os.close(fd) for fd in self.fds])
        self.assertEqual(Reply(self.reply).error, 0)
        self.library = Library(library_path())

    def attach(self, fds):
        pool = ctypes.c_void_p()
        with FakeDaemon(self.reply, fds) as fake:
            error = self.library.c.numacre_attach(fake.folder.name.encode(), None, ctypes.byref(pool))
            message = self.library.last_error() if error else ""
            if error == 0:
                self.library.c.numacre_detach(pool)
        return error, message

    def test_the_real_regions_are_accepted(self):
        # The others prove nothing if the fake is not believed at all.
        self.assertEqual(self.attach(self.fds), (0, ""))

    def test_an_unsealed_region_is_refused(self):
        for place, what in enumerate(["pool", "metadata", "data", "metadata", "data"]):
            for seals in (None, F_SEAL_GROW):
                with self.subTest(place=place, seals=seals):
                    fds = list(self.fds)
                    fds[place] = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
                    try:
                        os.ftruncate(fds[place], os.fstat(self.fds[place]).st_size)
                        if seals is not None:
                            fcntl.fcntl(fds[place], F_ADD_SEALS, seals)
                        error, message = self.attach(fds)
                    finally:
                        os.close(fds[place])
                    self.assertEqual(error, -errno.EUCLEAN, message)
                    self.assertIn(f"{what} region is not sealed against shrinking", message)

    def test_a_region_that_is_too_short_is_refused(self):
        for place, what in enumerate(["pool", "metadata", "data", "metadata", "data"]):
            with self.subTest(place=place):
                fds = list(self.fds)
                fds[place] = os.memfd_create("short", os.MFD_ALLOW_SEALING)
                try:
                    os.ftruncate(fds[place], os.fstat(self.fds[place]).st_size - 4096)
                    fcntl.fcntl(fds[place], F_ADD_SEALS, F_SEAL_SHRINK)
                    error, message = self.attach(fds)
                finally:
                    os.close(fds[place])
                self.assertEqual(error, -errno.EUCLEAN, message)
                self.assertIn(f"{what} region has", message)


if __name__ == "__main__":
    main()
