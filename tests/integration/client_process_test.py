#!/usr/bin/env python3
"""What a client's process does beside calling the library: threads cancelled inside a call, fork and exec, few
descriptors."""

import os
import pathlib
import platform
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.numacre_client import library_path  # noqa: E402
from support.daemon import PATIENCE_SECONDS, Daemon, bin_dir, wait_until  # noqa: E402
from support.runner import main  # noqa: E402

POOL = ("--pool", "name=default,capacity=64M,online=64M,frame=4K,largest=4M")
MIB = 1 << 20

# Attaches with room for so many more descriptors; its output: what that returned, and why.
SHORT_OF_DESCRIPTORS = """
import ctypes, os, resource, sys
library, runtime_dir, room = ctypes.CDLL(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3])
library.numacre_last_error.restype = ctypes.c_char_p
pool = ctypes.c_void_p()
lowest = os.dup(0)
os.close(lowest)
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + room, hard))
result = library.numacre_attach(runtime_dir, None, ctypes.byref(pool))
print(-result, library.numacre_last_error().decode() if result else "")
"""

# Attaches where the kernel refuses to keep memory from forked children; its output: what that returned, and why.
WITHOUT_DONTFORK = """
import ctypes, struct, sys
library, runtime_dir = ctypes.CDLL(sys.argv[1]), sys.argv[2].encode()
library.numacre_last_error.restype = ctypes.c_char_p
MADVISE, MADV_DONTFORK, EPERM = 28, 10, 1
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7fff0000, 0x00050000 | EPERM
steps = [(LOAD, 0, 0, 0), (JUMP_IF_EQUAL, 0, 3, MADVISE), (LOAD, 0, 0, 32), (JUMP_IF_EQUAL, 0, 1, MADV_DONTFORK),
         (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
filter = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter, 0, 0):
    print("no seccomp")
    sys.exit()
pool = ctypes.c_void_p()
result = library.numacre_attach(runtime_dir, None, ctypes.byref(pool))
print(-result, library.numacre_last_error().decode() if result else "")
"""

# Attaches, holds a block, and has a child by the bare system call, so that the library does not close its descriptors
# there; says the child's pid, and executes cat when it reads a line.
EXEC_BESIDE_A_CHILD = """
import ctypes, os, signal, sys
library, runtime_dir, clone = ctypes.CDLL(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3])
pool, block = ctypes.c_void_p(), ctypes.c_void_p()
assert library.numacre_attach(runtime_dir, None, ctypes.byref(pool)) == 0
assert library.numacre_alloc(pool, ctypes.c_size_t(1 << 20), ctypes.byref(block)) == 0
libc = ctypes.CDLL(None)
child = libc.syscall(clone, int(signal.SIGCHLD), None, None, None, None)
if child == 0:
    while True:
        libc.pause()
print("child", child, flush=True)
os.read(0, 1)
os.execvp("cat", ["cat"])
"""
CLONE_CALLS = {"x86_64": 56, "aarch64": 220}


def program_of(pid):
    return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()


class ClientProcess(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon(*POOL)
        self.addCleanup(self.daemon.stop)

    def start(self, what):
        program = bin_dir().parent / "test-bin" / "process_client"
        client = subprocess.Popen([program, self.daemon.runtime_dir, what], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE,
                                  text=True)
        self.addCleanup(client.stdout.close)
        self.addCleanup(client.wait, PATIENCE_SECONDS)
        self.addCleanup(client.kill)
        self.addCleanup(client.stdin.close)
        return client

    def tell(self, client):
        client.stdin.write("\n")
        client.stdin.flush()

    def hear(self, client, word):
        said = client.stdout.readline().split()
        self.assertEqual(said[:1], [word])
        return int(said[1])

    def test_a_thread_that_is_cancelled_while_it_asks_for_the_events_descriptor_holds_nobody_up(self):
        client = self.start("cancel")
        self.hear(client, "attached")
        os.kill(self.daemon.pid, signal.SIGSTOP)
        try:
            self.tell(client)
            self.hear(client, "asking")
            self.hear(client, "cancelled")
        finally:
            os.kill(self.daemon.pid, signal.SIGCONT)
        self.tell(client)
        self.assertLessEqual(self.hear(client, "again"), 0)
        self.assertEqual(client.wait(PATIENCE_SECONDS), 0)

    def test_a_thread_with_the_least_stack_attaches_a_pool_of_several_numa_nodes(self):
        daemon = Daemon("--topology", "synthetic:2x512M", *POOL)
        self.addCleanup(daemon.stop)
        program = bin_dir().parent / "test-bin" / "process_client"
        done = subprocess.run([program, daemon.runtime_dir, "stack"], capture_output=True, text=True,
                              timeout=PATIENCE_SECONDS)
        if done.stdout == "sanitized 0\n":
            self.skipTest("NOT TESTED: a sanitizer's functions need a larger stack")
        self.assertEqual((done.returncode, done.stdout), (0, "detached 0\n"), done.stderr)

    def test_exec_gives_all_back_although_a_forked_child_lives_on(self):
        client = self.start("exec")
        child = self.hear(client, "child")
        self.addCleanup(os.kill, child, signal.SIGKILL)
        self.assertEqual(self.daemon.used_bytes(), 8 * MIB)
        self.tell(client)
        wait_until("the blocks are free", lambda: self.daemon.used_bytes() == 0)
        self.assertEqual(self.daemon.clients(), [])
        os.kill(child, 0)  # it lives
        self.assertIsNone(client.poll())

    def test_a_program_that_has_replaced_an_evicted_client_gets_no_signal(self):
        for _ in range(5):
            client = self.start("exec")
            child = self.hear(client, "child")
            self.addCleanup(os.kill, child, signal.SIGKILL)
            (attached,) = self.daemon.clients()
            self.tell(client)
            wait_until("it is another program", lambda: program_of(client.pid) == "cat")
            self.daemon.run_cli("evict", str(attached["client_id"]), "--grace", "0")  # it may have gone by itself
            wait_until("its seat is free", lambda: not self.daemon.clients())
            self.assertEqual(self.daemon.used_bytes(), 0)
            client.stdin.write("it lives\n")
            client.stdin.flush()
            self.assertEqual(client.stdout.readline(), "it lives\n")

    @unittest.skipUnless(platform.machine() in CLONE_CALLS, "NOT TESTED: the system call of clone is not known here")
    def test_a_client_that_executes_can_be_evicted_although_a_child_keeps_its_connection(self):
        client = subprocess.Popen([sys.executable, "-c", EXEC_BESIDE_A_CHILD, str(library_path()),
                                   self.daemon.runtime_dir, str(CLONE_CALLS[platform.machine()])],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(client.stdout.close)
        self.addCleanup(client.wait, PATIENCE_SECONDS)
        self.addCleanup(client.kill)
        self.addCleanup(client.stdin.close)
        self.addCleanup(os.kill, self.hear(client, "child"), signal.SIGKILL)
        (attached,) = self.daemon.clients()
        self.tell(client)
        wait_until("it is another program", lambda: program_of(client.pid) == "cat")
        self.daemon.cli("evict", str(attached["client_id"]), "--grace", "0")
        wait_until("its seat is free", lambda: not self.daemon.clients())
        self.assertEqual(self.daemon.used_bytes(), 0)
        client.stdin.write("it lives\n")
        client.stdin.flush()
        self.assertEqual(client.stdout.readline(), "it lives\n")

    def test_a_child_forked_in_the_middle_of_attach_or_detach_has_none_of_the_librarys_descriptors(self):
        program = bin_dir().parent / "test-bin" / "forking_client"
        if not program.exists():
            self.skipTest("NOT TESTED: a sanitizer has functions of libc's names itself")
        done = subprocess.run([program, self.daemon.runtime_dir], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True,
                              timeout=PATIENCE_SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "")
        wait_until("nobody is left", lambda: not self.daemon.clients())

    def test_too_few_descriptors_are_said_to_be_that(self):
        answers = {}
        for room in range(5):
            done = subprocess.run([sys.executable, "-c", SHORT_OF_DESCRIPTORS, str(library_path()),
                                   self.daemon.runtime_dir,
                                   str(room)], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True,
                                  stdin=subprocess.DEVNULL)
            error, _, why = done.stdout.strip().partition(" ")
            answers[room] = (int(error), why)
        self.assertEqual(answers[4], (0, ""), "a connection and three regions fit")
        for room in range(4):
            self.assertEqual(answers[room][0], 87, answers)  # EUSERS
        for room in range(1, 4):
            self.assertIn("ulimit -n", answers[room][1])
        wait_until("nobody is left", lambda: not self.daemon.clients())

    @unittest.skipUnless(platform.machine() == "x86_64", "NOT TESTED: the filter has x86_64's number of madvise")
    def test_nobody_attaches_where_memory_cannot_be_kept_from_forked_children(self):
        done = subprocess.run([sys.executable, "-c", WITHOUT_DONTFORK, str(library_path()), self.daemon.runtime_dir],
                              capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True,
                              stdin=subprocess.DEVNULL)
        if "no seccomp" in done.stdout:
            self.skipTest("NOT TESTED: no seccomp filter can be set here")
        self.assertNotEqual(done.stdout.split()[0], "0")
        self.assertIn("Operation not permitted", done.stdout)
        wait_until("nobody is left", lambda: not self.daemon.clients())


if __name__ == "__main__":
    main()
