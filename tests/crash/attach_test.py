#!/usr/bin/env python3
"""Who is alive. The daemon dies around attaching and detaching clients that are stopped at each point; /proc does not
show them, or shows them in another time; pids are used again. No living client loses a block, no dead one keeps one.

usage: attach_test.py [unittest's arguments]
"""

import concurrent.futures
import contextlib
import ctypes
import errno
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import PATIENCE_SECONDS, wait_until  # noqa: E402
from support.ledger_layout import CLIENT_BYTES, CLIENTS_AT  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402
from support.runtime_dir import RuntimeDir  # noqa: E402

MIB = 1 << 20
CAPACITY = 16 * MIB
POOL = f"name=default,capacity={CAPACITY},online={CAPACITY},frame=4K,largest=4M,backing=small,mode=0666,max-clients=16"
FRAME = 4096
BLOCKS = 64
# daemon/src/memory/ledger.hpp: in the entry of a client
PIDFD_INODE_AT, START_TIME_AT, STACK_START_AT = 24, 32, 40
ALL_OF_IT = (PIDFD_INODE_AT, START_TIME_AT, STACK_START_AT)
STRANGER = 65534

needs_root = unittest.skipUnless(os.geteuid() == 0, "NOT TESTED: needs root")


def stop_at_library():
    path = pathlib.Path(os.environ.get("NUMACRE_BUILD_DIR")
                        or SOURCE / "build" / "release") / "test-bin" / "libstop_at.so"
    return str(path) if path.exists() else None


def state_of(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def tolerates(*command):
    """Whether this machine lets us run that."""
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True,
                          timeout=PATIENCE_SECONDS).returncode == 0


class WhoIsAlive(unittest.TestCase):
    def setUp(self):
        self.directory = self.enterContext(RuntimeDir(POOL))
        self.daemon = self.directory.start()
        self.threads = self.enterContext(concurrent.futures.ThreadPoolExecutor())
        self.rng = random.Random(self.id())

    def client(self, **more):
        return self.enterContext(contextlib.closing(ClientProcess(self.directory.path, **more)))

    def restart(self, **more):
        self.daemon.kill()
        self.daemon.stop()
        self.daemon = self.directory.start(**more)

    def ids(self):
        return sorted(each["client_id"] for each in self.daemon.clients())

    def fill(self, client, byte, count=BLOCKS):
        """Blocks full of that byte."""
        error, blocks = client.alloc(FRAME, count=count)
        self.assertIn(error, (0, -errno.ENOMEM), client.message)
        for block in blocks:
            client.write(block, FRAME, byte)
        return blocks

    def check_owned_once(self, client, blocks, byte):
        """Another client takes and overwrites all that it can get: what the first has stays as it was."""
        with ClientProcess(self.directory.path) as other:
            self.fill(other, byte ^ 0xFF, CAPACITY // FRAME)
            for block in blocks:
                self.assertEqual(client.read(block, FRAME), bytes([byte]) * FRAME, "a block is owned twice")
        wait_until("the other has gone", lambda: other.client_id not in self.ids())

    def check_nothing_is_lost(self):
        wait_until("all seats are free", lambda: not self.daemon.clients())
        wait_until("all memory is free", lambda: self.daemon.used_bytes() == 0)

    def stopping(self, where):
        library = stop_at_library()
        if library is None:
            self.skipTest("NOT TESTED: a sanitizer wants to be loaded before libstop_at.so")
        client = self.client(attach=False, environment={"LD_PRELOAD": library, "NUMACRE_STOP_AT": where})
        self.addCleanup(lambda: client.process.poll() is None and os.kill(client.pid, signal.SIGCONT))
        return client

    @contextlib.contextmanager
    def stopped_in(self, client, call):
        """Yields the future of call(), at the point where the client has stopped; it goes on afterwards."""
        future = self.threads.submit(call)
        wait_until("the client stands still", lambda: future.done() or state_of(client.pid) == "T")
        self.assertFalse(future.done(), f"it did not stop: {future.done() and future.result()}")
        yield future
        os.kill(client.pid, signal.SIGCONT)

    # --- attaching ---

    def test_a_daemon_that_dies_under_a_slow_attach_gives_the_client_up_and_the_client_obeys(self):
        for where in ("map 1", "map 2", "map 3", "mapped 3"):
            with self.subTest(where=where):
                client = self.stopping(where)
                with self.stopped_in(client, client.attach) as attached:
                    self.restart()
                    wait_until("it is given up", lambda: not self.daemon.clients())
                    with ClientProcess(self.directory.path) as other:  # on the seat of before
                        blocks = self.fill(other, 0x11)
                self.assertEqual(attached.result(PATIENCE_SECONDS), -errno.ECONNREFUSED, client.message)
                self.assertIn("attach again", client.message)
                self.assertEqual(client.attach(), 0, client.message)
                blocks = self.fill(client, 0x22)
                self.check_owned_once(client, blocks, 0x22)
                client.detach()
                self.check_nothing_is_lost()

    def test_a_client_that_is_given_up_does_not_speak_for_its_successor(self):
        client = self.stopping("mapped 3")
        with self.stopped_in(client, client.attach) as attached:
            self.restart()
            wait_until("it is given up", lambda: not self.daemon.clients())
            # On the same seat, and stopped where its word is the one that the first one waited for.
            successor = self.stopping("mapped 3")
            with self.stopped_in(successor, successor.attach) as attached_too:
                os.kill(client.pid, signal.SIGCONT)
                self.assertEqual(attached.result(PATIENCE_SECONDS), -errno.ECONNREFUSED, client.message)
        self.assertEqual(attached_too.result(PATIENCE_SECONDS), 0, successor.message)
        blocks = self.fill(successor, 0x33)
        client.close()
        self.check_owned_once(successor, blocks, 0x33)

    def test_a_client_stopped_in_attach_keeps_its_seat_while_its_connection_lives(self):
        client = self.stopping("map 2")
        with self.stopped_in(client, client.attach) as attached:
            with ClientProcess(self.directory.path):
                self.assertEqual(len(self.daemon.clients()), 2)
        self.assertEqual(attached.result(PATIENCE_SECONDS), 0, client.message)
        self.check_owned_once(client, self.fill(client, 0x44), 0x44)

    def test_a_client_killed_in_attach_leaves_nothing(self):
        for where in ("map 1", "mapped 3"):
            client = self.stopping(where)
            future = self.threads.submit(client.attach)
            wait_until("the client stands still", lambda: state_of(client.pid) == "T")
            client.process.kill()
            self.assertRaises(RuntimeError, future.result, PATIENCE_SECONDS)
            self.check_nothing_is_lost()

    def test_attaching_against_a_restart_at_random_instants(self):
        # Either it has attached, and stays; or it has not, and says so.
        for _ in range(4):
            client = self.client(attach=False)
            attached = self.threads.submit(client.attach)
            time.sleep(self.rng.uniform(0, 0.02))
            self.restart()
            error = attached.result(PATIENCE_SECONDS)
            if error != 0:
                self.assertIn(error, (-errno.ECONNREFUSED, -errno.ETIMEDOUT), client.message)
                self.assertEqual(client.attach(), 0, client.message)
            self.check_owned_once(client, self.fill(client, 0x55), 0x55)
            client.close()
            self.check_nothing_is_lost()

    # --- detaching ---

    def test_a_client_that_is_stopped_while_it_detaches_has_left_when_nothing_is_mapped(self):
        # frames, metadata, and the pool's own region last: by then it has said that it is gone
        for where, has_left in (("unmap 1", False), ("unmap 2", False), ("unmap 3", True)):
            with self.subTest(where=where):
                client = self.stopping(where)
                self.assertEqual(client.attach(), 0, client.message)
                self.fill(client, 0x66)
                with self.stopped_in(client, client.detach) as detached:
                    self.restart()
                    if has_left:
                        wait_until("its seat is free", lambda: not self.daemon.clients())
                    else:
                        with ClientProcess(self.directory.path):
                            self.assertEqual(len(self.daemon.clients()), 2)
                self.assertEqual(detached.result(PATIENCE_SECONDS), 0)
                self.check_nothing_is_lost()
                client.close()

    def test_detach_after_a_restart_gives_back_seat_and_blocks_whatever_else_is_mapped(self):
        client = self.client(attach=False)
        self.assertEqual(client.attach(), 0, client.message)
        for _ in range(3):
            self.assertEqual(client.alloc(4 * MIB, count=2)[0], 0, client.message)
            self.restart()
            client.keep()
            self.assertEqual(client.attach(), 0, client.message)  # anew: the same files are mapped twice
            self.assertEqual(client.detach_kept(), 0)
            wait_until("the first handle's seat is free", lambda: self.ids() == [client.client_id])
            wait_until("its blocks are back", lambda: self.daemon.used_bytes() == 0)
        client.detach()
        self.check_nothing_is_lost()

    def test_detach_while_there_is_no_daemon(self):
        client = self.client()
        self.fill(client, 0x77)
        self.daemon.kill()
        self.daemon.stop()
        client.detach()
        self.daemon = self.directory.start()
        self.check_nothing_is_lost()
        self.assertIsNone(client.process.poll())

    def test_detach_after_the_program_has_closed_all_descriptors(self):
        client = self.client()
        blocks = self.fill(client, 0x5A)
        self.assertEqual(client.event_fd(), 0, client.message)
        client.close_descriptors()
        wait_until("the connection is lost", lambda: self.daemon.clients()[0]["state"] == "lost connection")
        # A connection that is gone is no evidence of anything.
        self.check_owned_once(client, blocks, 0x5A)
        client.events()
        self.assertNotEqual(client.event_fd(), 0, "it gives a descriptor of the program's for its own")
        client.detach()
        self.check_nothing_is_lost()
        self.assertTrue(client.descriptors_are_untouched(), "it took a descriptor of the program's for its own")

    # --- /proc that shows nothing, or another time ---

    @contextlib.contextmanager
    def ledger(self):
        """Its descriptor, while there is no daemon."""
        holder = self.directory.holder()
        kept = holder.kept()
        holder.close()
        yield kept["default/ledger"]
        for fd in kept.values():
            os.close(fd)

    def forget(self, *fields):
        """As a daemon on a kernel before 6.9 would have left it, or one that could not read /proc."""
        with self.ledger() as ledger:
            for slot in range(1, 17):
                for field in fields:
                    os.pwrite(ledger, bytes(8), CLIENTS_AT + slot * CLIENT_BYTES + field)

    def recorded(self, field):
        with self.ledger() as ledger:
            return struct.unpack("=Q", os.pread(ledger, 8, CLIENTS_AT + CLIENT_BYTES + field))[0]

    def serve_next(self, *forgotten, **more):
        """The next daemon, of which the one before was killed, after this has been forgotten."""
        self.daemon.kill()
        self.daemon.stop()
        if forgotten:
            self.forget(*forgotten)
        self.daemon = self.directory.start(**more)

    HIDDEN = ("unshare", "-m", "sh", "-c",
              'mount -t proc -o hidepid=2,gid=12345 proc /proc && exec setpriv --bounding-set=-sys_ptrace '
              '--inh-caps=-sys_ptrace "$@"',
              "sh")  # fmt: skip

    def looks_for_a_while(self):
        """The daemon has looked at its clients more than once, as far as one can see from outside."""
        with ClientProcess(self.directory.path) as marker:
            self.fill(marker, 0x10, 1)
            marker.close_descriptors()
            wait_until("it is lost", lambda: any(each["state"] == "lost connection" for each in self.daemon.clients()))
            marker.detach()
            wait_until("that has been seen", lambda: marker.client_id not in self.ids())

    @needs_root
    def test_a_client_that_proc_did_not_show_lives_on(self):
        if not tolerates(*self.HIDDEN, "true"):
            self.skipTest("NOT TESTED: no mount namespace with a /proc of our own")
        os.chmod(self.directory.path, 0o755)
        os.chmod(os.path.join(self.directory.path, "attach.sock"), 0o666)
        # Forgotten, too, what later kernels have instead: then nothing is known but the pid.
        for forgotten in ((), (PIDFD_INODE_AT,)):
            with self.subTest(forgotten=forgotten):
                self.serve_next(prefix=self.HIDDEN)
                os.chmod(os.path.join(self.directory.path, "attach.sock"), 0o666)
                client = self.client(uid=STRANGER)
                blocks = self.fill(client, 0x21)
                self.daemon.kill()
                self.daemon.stop()
                self.assertEqual(self.recorded(START_TIME_AT), 0, "/proc was not hidden")
                self.forget(*forgotten)
                self.daemon = self.directory.start()
                self.assertEqual([each["state"] for each in self.daemon.clients()], ["adopted"], self.daemon.log())
                self.check_owned_once(client, blocks, 0x21)
                self.looks_for_a_while()
                self.check_owned_once(client, blocks, 0x21)
                if not forgotten:
                    self.assertNotEqual(self.recorded(START_TIME_AT), 0, "what can be read now was not completed")
                # What ends it is its end.
                client.kill()
                self.check_nothing_is_lost()

    @needs_root
    def test_a_daemon_in_another_time_namespace_knows_its_clients(self):
        elsewhere = ("unshare", "--time", "--boottime", "100000", "--fork", "--kill-child")
        if not tolerates(*elsewhere, "true"):
            self.skipTest("NOT TESTED: no time namespaces here")
        elsewhere = elsewhere[:4]  # what is executed next is in it
        for forgotten in ((), (PIDFD_INODE_AT,)):
            for prefix in (elsewhere, ()):
                with self.subTest(forgotten=forgotten, prefix=prefix):
                    client = self.client()
                    blocks = self.fill(client, 0x31)
                    self.serve_next(*forgotten, prefix=prefix)
                    self.assertEqual([each["state"] for each in self.daemon.clients()], ["adopted"], self.daemon.log())
                    self.check_owned_once(client, blocks, 0x31)
                    client.kill()
                    self.check_nothing_is_lost()

    @needs_root
    def test_a_daemon_in_another_pid_namespace_takes_nobody_for_its_clients(self):
        inside = self.in_a_pid_namespace()
        client = self.client()
        blocks = self.fill(client, 0x41)
        self.daemon.kill()
        self.daemon.stop()
        # The pid has no process there: that says nothing.
        self.daemon = self.directory.start(prefix=inside)
        self.assertEqual([each["state"] for each in self.daemon.clients()], ["adopted"], self.daemon.log())
        self.check_owned_once(client, blocks, 0x41)
        self.cannot_be_evicted(client, "does not find its process")
        deleted = self.daemon.run_cli("delete", "default", "--force")
        self.assertEqual(deleted.returncode, 1, deleted.stdout)
        self.assertIn(f"client {client.client_id} (", deleted.stderr)
        self.assertIn("does not find its process", deleted.stderr)
        client.detach()
        self.check_nothing_is_lost()
        os.kill(self.child_of(self.daemon.pid), signal.SIGKILL)

    @needs_root
    def test_a_client_that_nobody_can_find_any_more_does_not_keep_its_pool_for_ever(self):
        inside = self.in_a_pid_namespace()
        client = self.client()
        self.fill(client, 0x43)
        self.daemon.kill()
        self.daemon.stop()
        client.kill()  # while there is no daemon
        self.daemon = self.directory.start(prefix=inside)
        self.assertEqual([each["state"] for each in self.daemon.clients()], ["adopted"], self.daemon.log())
        alone = self.daemon.run_cli("delete", "default", "--abandon")
        self.assertEqual(alone.returncode, 2, alone.stdout)
        refused = self.daemon.run_cli("delete", "default", "--force")
        self.assertEqual(refused.returncode, 1, refused.stdout)
        self.assertIn("--abandon", refused.stderr)
        self.daemon.cli("delete", "default", "--force", "--abandon")
        self.assertEqual(self.daemon.cli("pools")["pools"], [])
        self.daemon.says("a client whose process cannot be found is left behind")
        os.kill(self.child_of(self.daemon.pid), signal.SIGKILL)

    @needs_root
    def test_a_client_outside_of_the_daemons_pid_namespace_is_beyond_its_signals(self):
        inside = self.in_a_pid_namespace()
        self.daemon.stop()
        self.daemon = self.directory.start(prefix=inside)
        client = self.client()
        self.fill(client, 0x42)
        self.cannot_be_evicted(client, "a pid namespace that the daemon cannot see into")
        client.kill()
        self.check_nothing_is_lost()
        os.kill(self.child_of(self.daemon.pid), signal.SIGKILL)

    def in_a_pid_namespace(self):
        """The words before a command that run it in a pid namespace of its own."""
        inside = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
        if not tolerates(*inside, "true"):
            self.skipTest("NOT TESTED: no pid namespaces here")
        return inside

    def cannot_be_evicted(self, client, reason):
        """And is alive, and the operator is told why."""
        refused = self.daemon.run_cli("evict", client.client_id)
        self.assertEqual(refused.returncode, 1, refused.stdout)
        self.assertIn(f"client {client.client_id} (", refused.stderr)
        self.assertIn("cannot be evicted", refused.stderr)
        self.assertIn(reason, refused.stderr)
        self.assertEqual([each["client_id"] for each in self.daemon.clients()], [client.client_id])

    @needs_root
    def test_what_proc_of_another_pid_namespace_shows_is_no_evidence(self):
        alone = ("unshare", "--pid", "--fork", "--kill-child")  # and /proc stays the one outside
        if not tolerates(*alone, "sh", "-c", "echo 1000 > /proc/sys/kernel/ns_last_pid") or not shutil.which("nsenter"):
            self.skipTest("NOT TESTED: no pid namespaces here whose numbers can be chosen")
        first = subprocess.Popen([*alone, "sleep", "infinity"])
        self.addCleanup(first.wait)
        self.addCleanup(first.kill)
        wait_until("the namespace is there", lambda: self.children_of(first.pid))
        inside = ("nsenter", f"--pid=/proc/{self.child_of(first.pid)}/ns/pid")
        # Outside, with the number that the client has inside.
        stranger = subprocess.Popen(["sh", "-c", "read told && exec sleep infinity"], stdin=subprocess.PIPE)
        self.addCleanup(stranger.wait)
        self.addCleanup(stranger.kill)
        self.addCleanup(stranger.stdin.close)

        def end(daemon):
            os.kill(self.child_of(daemon.pid), signal.SIGKILL)
            daemon.wait()

        self.daemon.stop()
        self.daemon = self.directory.start(prefix=inside)
        self.addCleanup(lambda: self.daemon.alive() and end(self.daemon))

        def enter():
            client = self.client(prefix=(*inside, "sh", "-c",
                                         f'echo {stranger.pid - 1} > /proc/sys/kernel/ns_last_pid; "$@"; exit', "sh"))
            (found,) = self.daemon.clients()
            if found["pid"] == stranger.pid:
                return client
            client.close()  # a thread of the daemon's has taken it
            wait_until("its seat is free", lambda: not self.daemon.clients())
            return None

        client = wait_until("the client has the stranger's number", enter)
        blocks = self.fill(client, 0x51)
        end(self.daemon)
        self.daemon.stop()
        self.daemon = self.directory.start(prefix=inside)
        self.assertEqual([each["state"] for each in self.daemon.clients()], ["adopted"], self.daemon.log())
        stranger.stdin.write(b"now\n")
        stranger.stdin.flush()
        wait_until("the stranger has another program",
                   lambda: pathlib.Path(f"/proc/{stranger.pid}/comm").read_text() == "sleep\n")
        self.looks_for_a_while()
        self.assertEqual(self.ids(), [client.client_id], self.daemon.log())
        self.check_owned_once(client, blocks, 0x51)
        client.close()
        self.check_nothing_is_lost()
        end(self.daemon)

    @staticmethod
    def children_of(pid):
        return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    @staticmethod
    def child_of(pid):
        return int(WhoIsAlive.children_of(pid)[0])

    # --- pids that are used again ---

    def successor_of(self, pid):
        """A process that got that pid, and waits to be killed."""
        set_tid = struct.pack("=i", pid)
        buffer = ctypes.create_string_buffer(set_tid)
        # struct clone_args: flags .. exit_signal .. set_tid, set_tid_size, cgroup
        arguments = struct.pack("=11Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(buffer), 1, 0)
        number = {"x86_64": 435, "aarch64": 435}[os.uname().machine]
        libc = ctypes.CDLL(None, use_errno=True)
        ready, says = os.pipe()
        got = libc.syscall(number, arguments, len(arguments))
        if got == 0:
            try:
                os.write(says, b".")
                while True:
                    signal.pause()
            finally:
                os._exit(1)
        os.close(says)
        if got < 0:
            os.close(ready)
            self.skipTest(f"NOT TESTED: clone3 with a pid of ours: {os.strerror(ctypes.get_errno())}")
        self.assertEqual(got, pid)
        os.read(ready, 1)
        os.close(ready)

        has_ended = []

        def end():
            if not has_ended:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                has_ended.append(True)

        self.addCleanup(end)
        return end

    @needs_root
    def test_a_pid_that_is_used_again(self):
        for forgotten, is_told_apart in (((), True), ((PIDFD_INODE_AT,), True), (ALL_OF_IT, False)):
            with self.subTest(forgotten=forgotten):
                client = self.client()
                self.fill(client, 0x51)
                # Two ticks, at least, between them: start times are no finer.
                time.sleep(0.05)
                self.daemon.kill()
                self.daemon.stop()
                client.kill()
                end = self.successor_of(client.pid)
                if forgotten:
                    self.forget(*forgotten)
                self.daemon = self.directory.start()
                if not is_told_apart:
                    self.looks_for_a_while()
                    self.assertEqual(len(self.daemon.clients()), 1, "unknown was taken for different")
                    # Nor is the other one killed for it.
                    self.cannot_be_evicted(client, "may be another one by now")
                    self.assertNotIn(state_of(client.pid), "ZX")
                    end()
                self.check_nothing_is_lost()
                end()

    # --- two daemons ---

    def test_racing_starts_have_one_winner_and_hurt_nobody(self):
        client = self.client()
        blocks = self.fill(client, 0x61)
        self.daemon.kill()
        self.daemon.stop()

        def start():
            try:
                return self.directory.start()
            except RuntimeError:  # it ended instead of serving, or another one serves and it has ended
                return None

        started = [future.result(2 * PATIENCE_SECONDS) for future in [self.threads.submit(start) for _ in range(3)]]
        wait_until("the losers have ended", lambda: sum(1 for each in started if each and each.alive()) == 1)
        (self.daemon,) = [each for each in started if each and each.alive()]
        self.assertEqual(self.ids(), [client.client_id])
        self.check_owned_once(client, blocks, 0x61)


if __name__ == "__main__":
    main()
