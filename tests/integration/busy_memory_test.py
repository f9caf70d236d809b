#!/usr/bin/env python3
"""What a local user without any rights can do with the memory that it shares with the daemon: make the kernel wait for
a file of a pool, or for its records. Other pools are served meanwhile, and the daemon ends.

Most of it needs root, to be somebody else for the length of a test.
"""

import contextlib
import ctypes
import mmap
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.attach_wire import REPLY_BYTES, connect, request  # noqa: E402
from support.attached_program import AttachedProgram  # noqa: E402
from support.busy_page import BusyPage  # noqa: E402
from support.daemon import PATIENCE_SECONDS, Daemon, program, wait_until  # noqa: E402
from support.hostile_user import POOL, SYNTHETIC, HostileUser, needs_root  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402
from support.stopped_thread import StoppedThread, threads_named  # noqa: E402
from support.stranger import STRANGER, Stranger  # noqa: E402


class BusyFiles(HostileUser):
    """A client keeps the kernel from a file of its pool: a write() to it, from a page that never comes."""

    def hold(self, daemon, pool, folder):
        page = BusyPage(folder)

        def write(memory):
            with connect(daemon) as connection:
                connection.send(request(pool=pool))
                _, _, frames = socket.recv_fds(connection, REPLY_BYTES, 64)[1][:3]
                os.pwrite(frames, memory, 0)

        page.make_wait(write)
        return page

    @staticmethod
    def is_stuck(daemon):
        """Whether one of its threads waits in fallocate() and cannot be interrupted."""
        fallocate = {"x86_64": "285 ", "aarch64": "47 "}[os.uname().machine]
        for task in pathlib.Path(f"/proc/{daemon.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                state = (task / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if state == "D" and (task / "syscall").read_text().startswith(fallocate):
                    return True
        return False

    def begin(self, *command):
        """The command line tool, which goes on beside the test."""
        begun = subprocess.Popen([program("numacre"), "--runtime-dir", self.runtime_dir, "--timeout",
                                  f"{2 * PATIENCE_SECONDS}s", *command], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL)
        self.addCleanup(begun.wait)
        self.addCleanup(begun.kill)
        return begun

    def serve_with_a_stuck_worker(self):
        """The daemon, who keeps its pool "busy" so, and a growth of that pool that waits."""
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="numacre-"))
        try:
            Stranger(lambda: BusyPage(folder), 0).end()
        except AssertionError:
            self.skipTest("NOT TESTED: FUSE cannot be used here, see above")
        daemon = self.serve("--pool", "name=busy,capacity=64M,online=4M,frame=4K,largest=4M,backing=small")
        holder = self.stranger(lambda: self.hold(daemon, b"busy", folder), 0)
        growth = self.begin("resize", "busy", "8M")
        wait_until("the kernel makes the pool's worker wait", lambda: self.is_stuck(daemon))
        return daemon, holder, growth

    FORCE_GRACE_SECONDS = 2  # daemon/src/daemon.cpp

    @needs_root
    def test_a_process_that_has_detached_is_not_ended_with_the_pool(self):
        daemon, holder, growth = self.serve_with_a_stuck_worker()
        bystander = ClientProcess(self.runtime_dir, pool="busy")
        client = ClientProcess(self.runtime_dir, pool="busy")
        bystander.detach()
        self.assertEqual(len(daemon.clients()), 3, "its seat is not free yet")
        delete = self.begin("delete", "busy", "--force")
        wait_until("the client has been ended", lambda: client.process.poll() is not None)
        time.sleep(2 * self.FORCE_GRACE_SECONDS)
        holder.end()
        growth.wait(PATIENCE_SECONDS)
        self.assertEqual(delete.wait(PATIENCE_SECONDS), 0)
        self.assertIsNone(bystander.process.poll())
        bystander.close()
        client.close()

    def lock_directory(self, folder, directory):
        """Keeps the kernel's lock of a directory: one process reads it into a page that never comes, another waits for
        the lock to change it, and behind that one all who look for a name there that the kernel does not have at
        hand."""
        page = BusyPage(folder)
        libc = ctypes.CDLL(None, use_errno=True)

        def read(memory):
            if os.fork() == 0:
                time.sleep(0.5)
                with contextlib.suppress(OSError):
                    os.mkdir(f"{directory}/x")
                os._exit(0)
            opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            where = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            libc.getdents64(opened, ctypes.c_void_p(where), ctypes.c_size_t(mmap.PAGESIZE))

        page.make_wait(read)
        time.sleep(1)
        return page

    @needs_root
    def test_a_client_whose_directory_of_proc_is_kept_busy_holds_nobody_up(self):
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="numacre-"))
        daemon = self.serve()

        def attach():
            kept = [self.lock_directory(folder, f"/proc/{os.getpid()}"), connect(daemon)]
            kept[1].send(request())
            return kept

        try:
            stranger = self.stranger(attach, 0)
        except AssertionError:
            self.skipTest("NOT TESTED: FUSE cannot be used here, see above")
        self.check_attach()
        self.check_attach(STRANGER)
        stranger.end()

    @needs_root
    def test_nobody_else_may_read_the_runtime_directory(self):
        with tempfile.TemporaryDirectory(prefix="numacre-", dir="/tmp") as parent:
            os.chmod(parent, 0o755)
            path = pathlib.Path(parent) / "runtime"
            with Daemon(*SYNTHETIC, *POOL, runtime_dir=str(path)):
                self.assertEqual(path.stat().st_mode & 0o777, 0o711)
                with ClientProcess(str(path), uid=STRANGER) as client:
                    self.assertEqual(client.alloc(4096)[0], 0, client.message)
            link = pathlib.Path(parent) / "link"
            link.symlink_to(path)
            os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
            refused = subprocess.run([program("numacred"), "--runtime-dir", link, "--metrics-address", "127.0.0.1:0"],
                                     capture_output=True, text=True, timeout=PATIENCE_SECONDS)
            self.assertEqual(refused.returncode, 1)
            self.assertIn(f"symbolic link of uid {STRANGER}", refused.stdout + refused.stderr)
        self.serve().says("may be read by everybody.*chmod o-r")

    @needs_root
    def test_a_file_that_is_kept_busy_stops_its_own_pool_and_no_other(self):
        daemon, holder, growth = self.serve_with_a_stuck_worker()
        client = ClientProcess(self.runtime_dir)
        self.assertEqual(client.alloc(4096, count=3)[0], 0, client.message)
        client.kill()
        wait_until("the other pool's client is reaped", lambda: daemon.used_bytes() == 0)
        daemon.cli("resize", "default", "20M")
        self.assertTrue(self.is_stuck(daemon))
        self.assertIsNone(growth.poll())
        holder.end()
        self.assertEqual(growth.wait(PATIENCE_SECONDS), 0)
        wait_until("who kept it busy is reaped", lambda: not daemon.clients())

    @staticmethod
    def waits_for_a_page(daemon):
        """Whether one of its threads waits for a page into which a hole is being punched."""
        for task in pathlib.Path(f"/proc/{daemon.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if (task / "wchan").read_text() == "shmem_fault":
                    return True
        return False

    @needs_root
    def test_holes_in_what_is_mapped_many_thousand_times_stop_their_own_pool_and_no_other(self):
        daemon = self.serve("--pool", "name=busy,capacity=64M,online=4M,frame=4K,largest=4M,backing=small,mode=666")
        bystander = ClientProcess(self.runtime_dir, pool="busy")
        self.addCleanup(bystander.close)
        hostile = AttachedProgram("hostile_client", self.runtime_dir, "busy", 0, "holes", user=STRANGER)
        self.addCleanup(hostile.kill)
        attach = f"import sys; sys.path[:0] = {sys.path!r}; from support import numacre_client; " \
                 f"numacre_client.ClientProcess({self.runtime_dir!r}, pool='busy')"
        attached_to_busy = []

        def keep_attaching():
            if not attached_to_busy or attached_to_busy[-1].poll() is not None:
                attached_to_busy.append(subprocess.Popen([sys.executable, "-c", attach], stderr=subprocess.DEVNULL))
                self.addCleanup(attached_to_busy[-1].wait)
                self.addCleanup(attached_to_busy[-1].kill)
            return self.waits_for_a_page(daemon)

        for _ in range(5):
            # The library waits for its answer for five seconds.
            wait_until("the kernel makes the daemon wait", keep_attaching)
            with ClientProcess(self.runtime_dir, uid=STRANGER + 1) as client:
                self.assertEqual(client.alloc(4096, count=3)[0], 0, client.message)
                client.kill()
            wait_until("the other pool's client is reaped", lambda: daemon.used_bytes() == 0)
        daemon.cli("resize", "default", "20M")
        # Its own pool's clients need no daemon.
        self.assertEqual(bystander.alloc(4096)[0], 0, bystander.message)
        hostile.kill()
        with ClientProcess(self.runtime_dir, pool="busy") as client:
            self.assertEqual(client.alloc(4096)[0], 0, client.message)


class BusyRecords(HostileUser):
    """The kernel makes the daemon wait for the records of one pool, for as long as the test likes: by ptrace here, by a
    client that punches holes elsewhere."""

    def serve_with_busy_records(self):
        daemon = self.serve("--pool", "name=busy,capacity=64M,online=4M,frame=4K,largest=4M,backing=small,mode=666")
        _, of_busy = threads_named(daemon.pid, "numacred-record")
        return daemon, of_busy

    def stop(self, thread):
        stopped = StoppedThread(thread)
        self.addCleanup(stopped.go_on)
        return stopped

    @needs_root
    def test_attaches_to_it_that_are_given_up_keep_their_user_from_no_other_pool(self):
        daemon, of_busy = self.serve_with_busy_records()
        before = len(daemon.descriptors())
        stopped = self.stop(of_busy)

        def ask_and_go():
            asked = [connect(daemon) for _ in range(60)]
            for connection in asked:
                connection.send(request(pool=b"busy"))
            time.sleep(0.5)
            for connection in asked:
                connection.close()

        self.stranger(ask_and_go)
        self.check_attach(STRANGER)
        with self.assertRaisesRegex(RuntimeError, "ETIMEDOUT.*cannot take clients now"):
            wait_until("attaches to it are refused", self.is_refused)
            ClientProcess(self.runtime_dir, pool="busy")
        wait_until("their connections are closed", lambda: len(daemon.descriptors()) <= before + 1)
        stopped.go_on()
        with ClientProcess(self.runtime_dir, pool="busy") as client:
            self.assertEqual(client.alloc(4096)[0], 0, client.message)
            (only,) = daemon.clients()
            self.assertEqual(only["pid"], client.process.pid)

    def is_refused(self):
        try:
            ClientProcess(self.runtime_dir, pool="busy").close()
        except RuntimeError as refusal:
            return "cannot take clients now" in str(refusal)
        return False

    @needs_root
    def test_a_client_that_has_closed_its_connection_is_evicted_though_it_keeps_them_busy(self):
        daemon, of_busy = self.serve_with_busy_records()
        client = ClientProcess(self.runtime_dir, pool="busy")
        self.addCleanup(client.close)
        client.close_descriptors()
        wait_until("it counts as lost", lambda: [c["state"] for c in daemon.clients()] == ["lost connection"])
        (lost,) = daemon.clients()
        self.stop(of_busy)
        daemon.cli("evict", lost["client_id"], "--grace", "0s")
        client.process.wait(PATIENCE_SECONDS)


if __name__ == "__main__":
    main()
