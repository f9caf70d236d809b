"""A client of numacred in a process of its own: the test steers it, and may kill it.

    with ClientProcess(library, runtime_dir) as client:
        error, blocks = client.alloc(4096, count=3)
        client.kill()

The child loads libnumacre.so.0 by ctypes and answers one JSON line for each JSON line that it gets.
"""

import ctypes
import errno
import json
import os
import pathlib
import random
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.daemon import bin_dir  # noqa: E402

STRICT = 0x01
ZERO = 0x02
UNCACHED = 0x04
WAIT = 0x08
INTERLEAVE = 0x10
LOCAL = 0x20


def library_path():
    """libnumacre.so.0 of the build under test."""
    if "NUMACRE_LIB_DIR" in os.environ:
        return pathlib.Path(os.environ["NUMACRE_LIB_DIR"]) / "libnumacre.so.0"
    return bin_dir().parent / "lib" / "libnumacre.so.0"


NAME_REFERENCE, NAME_OBJECTS, NAME_CHANNEL = 1, 2, 3
NAME_POOL, NAME_COMPARE = 1, 2


class Name(ctypes.Structure):
    """numacre_name"""

    _fields_ = [("struct_size", ctypes.c_size_t), ("kind", ctypes.c_uint32), ("flags", ctypes.c_uint32),
                ("version", ctypes.c_uint64), ("reference", ctypes.c_uint64), ("channel", ctypes.c_uint64),
                ("user", ctypes.c_uint32), ("client_id", ctypes.c_uint32), ("name", ctypes.c_char * 48),
                ("objects", ctypes.c_char * 64)]

    def as_dictionary(self):
        found = {name: getattr(self, name) for name, _ in self._fields_}
        return {key: value.decode() if isinstance(value, bytes) else value for key, value in found.items()}


class Library:
    """The C ABI of <numacre/numacre.h>, as far as the tests need it."""

    def __init__(self, path):
        self.c = ctypes.CDLL(str(path))
        void, size, number, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
        self._declare("numacre_attach", number, text, text, ctypes.POINTER(void))
        self._declare("numacre_detach", None, void)
        self._declare("numacre_alloc_on", number, void, number, size, ctypes.c_uint, ctypes.POINTER(void))
        self._declare("numacre_free", number, void, void)
        self._declare("numacre_alloc", number, void, size, ctypes.POINTER(void))
        self._declare("numacre_free_uncached", number, void, void)
        self._declare("numacre_alloc_bulk", number, void, size, ctypes.POINTER(void), ctypes.c_uint)
        self._declare("numacre_set_policy", number, void, number, ctypes.c_uint64)
        self._declare("numacre_get_policy", number, void, ctypes.POINTER(number),
                      *[ctypes.POINTER(ctypes.c_uint64)] * 2)
        self._declare(
            "numacre_alloc_policy", number, void, number, ctypes.c_uint64, size, ctypes.c_uint, ctypes.POINTER(void)
        )
        self._declare("numacre_region", number, void, number, ctypes.POINTER(void), ctypes.POINTER(size))
        self._declare("numacre_usable_size", size, void, void)
        self._declare("numacre_client_id", number, void, ctypes.POINTER(ctypes.c_uint32))
        self._declare("numacre_ref_of", ctypes.c_uint64, void, void)
        self._declare("numacre_take", number, void, ctypes.c_uint64, ctypes.POINTER(void))
        self._declare("numacre_event_fd", number, void, ctypes.POINTER(number))
        self._declare("numacre_events", number, void, ctypes.POINTER(ctypes.c_uint32))
        self._declare("numacre_join", number, void, ctypes.c_uint64)
        self._declare("numacre_adopt_bulk", number, void, ctypes.POINTER(void), ctypes.c_uint)
        self._declare("numacre_pin", number, void, void, size, ctypes.POINTER(number))
        self._declare("numacre_unpin", number, void, number)
        self._declare("numacre_name_set", number, void, text, ctypes.POINTER(Name), ctypes.POINTER(ctypes.c_uint64))
        self._declare("numacre_name_get", number, void, text, ctypes.c_uint32, ctypes.POINTER(Name))
        self._declare("numacre_name_remove", number, void, text, ctypes.c_uint64)
        self._declare("numacre_name_list", number, void, ctypes.POINTER(Name), size, ctypes.POINTER(size),
                      ctypes.POINTER(ctypes.c_uint64))
        self._declare("numacre_name_watch", number, void, ctypes.POINTER(ctypes.c_uint64), number)
        self._declare("numacre_last_error", text)

    def _declare(self, name, result, *arguments):
        function = getattr(self.c, name)
        function.restype = result
        function.argtypes = list(arguments)

    def last_error(self):
        return self.c.numacre_last_error().decode(errors="replace")


class ClientProcess:
    """One attached client. Each call returns what the library returned: 0 or -errno."""

    def __init__(self, runtime_dir, pool="default", attach=True, uid=None, environment=None, prefix=()):
        self.process = subprocess.Popen(
            [*prefix, sys.executable, os.path.abspath(__file__), str(library_path()), str(runtime_dir), pool, str(uid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.pid = self.process.pid
        self.message = ""
        self.client_id = None
        if attach:
            error = self.attach()
            if error != 0:
                message = self.message
                self.close()
                name = errno.errorcode.get(-error, error)
                raise RuntimeError(f"attach to pool {pool} in {runtime_dir}: {name}: {message}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def call(self, name, /, **arguments):
        self.process.stdin.write(json.dumps({"call": name, **arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"client {self.pid} ended inside {name}, exit status {self.process.wait(10)}")
        answer = json.loads(line)
        self.message = answer.get("message", "")
        return answer

    def attach(self):
        answer = self.call("attach")
        self.client_id = answer.get("client_id")
        return answer["error"]

    def alloc(self, size, count=1, numa_node=-1, flags=0):
        """(error, blocks): stops at the first error, the blocks before it stay. Blocks are numbers for free(). Past the
        cache, which takes more than is asked for: so what the daemon says is used is what was allocated."""
        answer = self.call("alloc", size=size, count=count, node=numa_node, flags=flags | UNCACHED)
        return answer["error"], answer["blocks"]

    def alloc_cached(self, size, count=1):
        """The same by way of the cache."""
        answer = self.call("alloc", size=size, count=count, node=-1, flags=0)
        return answer["error"], answer["blocks"]

    def hold(self, size, count):
        """As alloc(), for very many: not touched, and not told which."""
        return self.call("hold", size=size, count=count)["error"]

    def free(self, blocks):
        return self.call("free", blocks=list(blocks))["error"]

    def free_uncached(self, blocks):
        return self.call("free_uncached", blocks=list(blocks))["error"]

    def read(self, block, size):
        return bytes.fromhex(self.call("read", block=block, size=size)["bytes"])

    def write(self, block, size, byte):
        self.call("write", block=block, size=size, byte=byte)

    def punch(self, block, size):
        """Takes the pages away from under everybody (MADV_REMOVE): 0 or an errno."""
        return self.call("punch", block=block, size=size)["error"]

    def ref_of(self, block):
        return self.call("ref_of", block=block)["ref"]

    def take(self, ref):
        answer = self.call("take", ref=ref)
        return answer["error"], answer["block"]

    def pin(self, offset, size, numa_node=0):
        """(error, descriptor in the client) of a pin of bytes from `offset` on."""
        answer = self.call("pin", offset=offset, size=size, node=numa_node)
        return answer["error"], answer["pin"]

    def unpin(self, pin):
        return self.call("unpin", pin=pin)["error"]

    def name_set(self, name, reference=0, objects="", kind=None, flags=0, version=None):
        """(error, version). version: the one that the name must have; 0: no such name."""
        kind = kind if kind is not None else NAME_OBJECTS if objects else NAME_REFERENCE
        flags |= NAME_COMPARE if version is not None else 0
        answer = self.call("name_set", name=name, reference=reference, objects=objects, kind=kind, flags=flags,
                           version=version or 0)
        return answer["error"], answer["version"]

    def name_get(self, name, kind=0):
        """(error, what numacre_name has)."""
        answer = self.call("name_get", name=name, kind=kind)
        return answer["error"], answer["binding"]

    def name_remove(self, name, version=0):
        return self.call("name_remove", name=name, version=version)["error"]

    def names(self):
        """({name: what numacre_name has}, version of the directory)"""
        answer = self.call("name_list")
        assert answer["error"] == 0, self.message
        return {each["name"]: each for each in answer["names"]}, answer["version"]

    def name_watch(self, version, timeout_ms=60_000):
        """(error, version)."""
        answer = self.call("name_watch", version=version, timeout_ms=timeout_ms)
        return answer["error"], answer["version"]

    def pin_on(self, other_unit):
        """From now on four threads pin and unpin a byte there."""
        self.call("pin_on", offset=other_unit)

    def offset_of(self, block, numa_node=0):
        return block - self.call("region", node=numa_node)["base"]

    def join(self, group):
        return self.call("join", group=group)["error"]

    def adopt(self, offsets):
        """(error, blocks): of blocks at these offsets of numa node 0, which another process has."""
        answer = self.call("adopt", offsets=list(offsets))
        return answer["error"], answer["blocks"]

    def fork_idle(self):
        """The pid of a forked child that has all descriptors, and does nothing until somebody ends it."""
        return self.call("fork_idle")["child"]

    def event_fd(self):
        """0 or -errno: the descriptor is the client's own."""
        return self.call("event_fd")["error"]

    def events(self, wait_seconds=0):
        """What has happened since the last call; waits for the descriptor first, if that is said."""
        answer = self.call("events", wait_seconds=wait_seconds)
        return answer["events"]

    def fork(self, stopped_daemon=0):
        """(error of this process's event_fd(), what a forked child said): in the child, what the handle of its parent
        answers, [event_fd, events], and what one of its own does, [attach, event_fd]; None: nothing, within a minute.
        stopped_daemon: its pid; it stands still until the child is there, with a thread of the parent in event_fd()."""
        answer = self.call("fork", stopped_daemon=stopped_daemon)
        return answer["error"], answer["child"]

    def event_fd_beside(self, runtime_dir, stopped_daemon):
        """(error, other_waits) of event_fd() on a handle of the daemon in runtime_dir, while another thread asks this
        client's own daemon, which is stopped meanwhile (its pid). other_waits: that thread waited until the end."""
        answer = self.call("event_fd_beside", runtime_dir=runtime_dir, stopped_daemon=stopped_daemon)
        return answer["error"], answer["other_waits"]

    def lock_memory(self):
        """mlockall() of all that is mapped and will be: 0 or an errno."""
        return self.call("lock_memory")["error"]

    def peak_bytes(self):
        """The most memory that the process has ever had resident."""
        return self.call("peak_bytes")["bytes"]

    def use_up_descriptors(self):
        """From now on the process gets no new descriptor."""
        self.call("use_up_descriptors")

    def ignore_termination(self):
        self.call("ignore_termination")

    def jam(self):
        """Makes its event descriptor one that blocks whoever writes to it: a hostile client."""
        self.call("jam")

    def churn(self, sizes, numa_nodes):
        """From now on a thread of the client allocates and frees in small bursts."""
        self.call("churn", sizes=list(sizes), nodes=list(numa_nodes))

    def fail(self, size, numa_node, flags):
        """From now on the churning thread also tries this, now and then, and expects it to fail."""
        self.call("fail", size=size, node=numa_node, flags=flags)

    def detach(self):
        return self.call("detach")["error"]

    def keep(self):
        """The next attach() makes another handle; this one stays, for detach_kept()."""
        self.call("keep")

    def detach_kept(self):
        return self.call("detach_kept")["error"]

    def close_descriptors(self):
        """As a program does that makes a daemon of itself: everything but its three first descriptors, unasked. The
        numbers are then used for sockets of its own."""
        self.call("close_descriptors")

    def descriptors_are_untouched(self):
        """False: one of its own sockets was written to, or closed."""
        return self.call("descriptors_are_untouched")["untouched"]

    def has_eventfd_numbers(self):
        """The kernel says of a process's descriptors which eventfd they are (Linux 5.2), and /proc is there to read
        it."""
        return self.call("has_eventfd_numbers")["has"]

    def close_descriptors_for_eventfds(self):
        """As close_descriptors(), but the numbers are used for eventfds, each of them readable."""
        self.call("close_descriptors_for_eventfds")

    def eventfds_are_untouched(self):
        """False: one of them was read, written to, or closed."""
        return self.call("eventfds_are_untouched")["untouched"]

    def exec(self):
        """The process replaces its program by the same one: not attached, and with none of the mappings it had."""
        self.call("exec")

    def stop(self):
        """Stops the process at whatever instruction it is (SIGSTOP)."""
        os.kill(self.pid, signal.SIGSTOP)

    def kill(self):
        self.process.kill()
        self.process.wait(10)
        self._close_pipes()

    def close(self):
        """Ends the process in the polite way; what it still owns comes back."""
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        self._close_pipes()

    def _close_pipes(self):
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()
            except BrokenPipeError:
                pass


class _Served:
    """The child's side."""

    def __init__(self, path, runtime_dir, pool):
        self.library = Library(path)
        self.runtime_dir = runtime_dir.encode()
        self.pool_name = pool.encode()
        self.pool = ctypes.c_void_p()
        self.churning = None
        self.leave = threading.Event()
        self.expected_failures = []

    def answer(self, error, **more):
        return {"error": error, "message": self.library.last_error() if error else "", **more}

    def attach(self):
        error = self.library.c.numacre_attach(self.runtime_dir, self.pool_name, ctypes.byref(self.pool))
        client_id = ctypes.c_uint32()
        if error == 0:
            error = self.library.c.numacre_client_id(self.pool, ctypes.byref(client_id))
        return self.answer(error, client_id=client_id.value)

    def alloc_one(self, size, node, flags):
        block = ctypes.c_void_p()
        error = self.library.c.numacre_alloc_on(self.pool, node, size, flags, ctypes.byref(block))
        return error, block.value

    def alloc(self, size, count, node, flags):
        blocks = []
        for _ in range(count):
            error, block = self.alloc_one(size, node, flags)
            if error:
                return self.answer(error, blocks=blocks)
            # The memory must be there: a missing page would end this process here.
            ctypes.memset(block, 0x5A, min(size, 64))
            blocks.append(block)
        return self.answer(0, blocks=blocks)

    def hold(self, size, count):
        for _ in range(count):
            error, _ = self.alloc_one(size, -1, UNCACHED)
            if error:
                return self.answer(error)
        return self.answer(0)

    def free(self, blocks):
        first = 0
        for block in blocks:
            error = self.library.c.numacre_free(self.pool, block)
            first = first or error
        return self.answer(first)

    def free_uncached(self, blocks):
        first = 0
        for block in blocks:
            error = self.library.c.numacre_free_uncached(self.pool, block)
            first = first or error
        return self.answer(first)

    def read(self, block, size):
        return self.answer(0, bytes=ctypes.string_at(block, size).hex())

    def write(self, block, size, byte):
        ctypes.memset(block, byte, size)
        return self.answer(0)

    def punch(self, block, size):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        remove = 9
        return {"error": ctypes.get_errno() if libc.madvise(block, size, remove) != 0 else 0}

    def ref_of(self, block):
        return self.answer(0, ref=self.library.c.numacre_ref_of(self.pool, block))

    def take(self, ref):
        block = ctypes.c_void_p()
        error = self.library.c.numacre_take(self.pool, ref, ctypes.byref(block))
        return self.answer(error, block=block.value)

    def region_base(self, node):
        base, size = ctypes.c_void_p(), ctypes.c_size_t()
        error = self.library.c.numacre_region(self.pool, node, ctypes.byref(base), ctypes.byref(size))
        assert error == 0, self.library.last_error()
        return base.value

    def region(self, node):
        return self.answer(0, base=self.region_base(node))

    def pin(self, offset, size, node):
        pin = ctypes.c_int(-1)
        error = self.library.c.numacre_pin(self.pool, self.region_base(node) + offset, size, ctypes.byref(pin))
        return self.answer(error, pin=pin.value)

    def pin_on(self, offset):
        address = self.region_base(0) + offset

        def work():
            pin = ctypes.c_int(-1)
            while True:
                if self.library.c.numacre_pin(self.pool, address, 1, ctypes.byref(pin)) == 0:
                    self.library.c.numacre_unpin(self.pool, pin)

        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        return self.answer(0)

    def unpin(self, pin):
        return self.answer(self.library.c.numacre_unpin(self.pool, pin))

    def name_set(self, name, reference, objects, kind, flags, version):
        binding = Name(ctypes.sizeof(Name), kind, flags, version, reference, 0, 0, 0, b"", objects.encode())
        changed = ctypes.c_uint64()
        error = self.library.c.numacre_name_set(self.pool, name.encode("latin-1"), ctypes.byref(binding),
                                                ctypes.byref(changed))
        return self.answer(error, version=changed.value)

    def name_get(self, name, kind):
        binding = Name(ctypes.sizeof(Name))
        error = self.library.c.numacre_name_get(self.pool, name.encode("latin-1"), kind, ctypes.byref(binding))
        return self.answer(error, binding=binding.as_dictionary())

    def name_remove(self, name, version):
        return self.answer(self.library.c.numacre_name_remove(self.pool, name.encode("latin-1"), version))

    def name_list(self):
        names = (Name * 256)()
        names[0].struct_size = ctypes.sizeof(Name)
        count, version = ctypes.c_size_t(), ctypes.c_uint64()
        error = self.library.c.numacre_name_list(self.pool, names, 256, ctypes.byref(count), ctypes.byref(version))
        return self.answer(error, names=[names[i].as_dictionary() for i in range(count.value)], version=version.value)

    def name_watch(self, version, timeout_ms):
        seen = ctypes.c_uint64(version)
        error = self.library.c.numacre_name_watch(self.pool, ctypes.byref(seen), timeout_ms)
        return self.answer(error, version=seen.value)

    def name_race(self, name, begin):
        """One compare-and-set of a name that is not there, by all who share the moment."""
        while time.monotonic() < begin:
            pass
        return self.name_set(name, os.getpid(), "", NAME_REFERENCE, NAME_COMPARE, 0)

    def name_look(self, name, seconds):
        """How often the name was found, and what else than a value of ours was found."""
        binding, found, wrong = Name(ctypes.sizeof(Name)), 0, []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            error = self.library.c.numacre_name_get(self.pool, name.encode(), 0, ctypes.byref(binding))
            if error == 0:
                found += 1
                if binding.reference >> 32 != binding.reference & 0xFFFF_FFFF:
                    wrong.append(binding.reference)
            elif error != -errno.ENODATA:
                wrong.append(error)
        return self.answer(0, found=found, wrong=wrong[:10])

    def join(self, group):
        return self.answer(self.library.c.numacre_join(self.pool, group))

    def adopt(self, offsets):
        base = self.region_base(0)
        blocks = [base + offset for offset in offsets]
        array = (ctypes.c_void_p * len(blocks))(*blocks)
        return self.answer(self.library.c.numacre_adopt_bulk(self.pool, array, len(blocks)), blocks=blocks)

    def fork_idle(self):
        child = os.fork()
        if child == 0:
            os.close(0)
            os.close(1)
            while True:
                signal.pause()
        return self.answer(0, child=child)

    def event_fd(self):
        fd = ctypes.c_int(-1)
        error = self.library.c.numacre_event_fd(self.pool, ctypes.byref(fd))
        self.descriptor = fd.value
        return self.answer(error)

    def events(self, wait_seconds):
        if wait_seconds:
            select.select([self.descriptor], [], [], wait_seconds)
        events = ctypes.c_uint32()
        error = self.library.c.numacre_events(self.pool, ctypes.byref(events))
        return self.answer(error, events=events.value)

    def fork(self, stopped_daemon):
        asked = []
        asking = threading.Thread(target=lambda: asked.append(self.event_fd()))
        if stopped_daemon:
            self.wait_for_the_daemon(60)
            os.kill(stopped_daemon, signal.SIGSTOP)
            asking.start()
            while not self.is_receiving(asking):
                time.sleep(0.001)
        said, says = os.pipe()
        may_attach, let_it_attach = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                of_parent = [self.event_fd()["error"], self.events(0)["error"]]
                os.read(may_attach, 1)
                self.library.c.numacre_detach(self.pool)
                own = [self.attach()["error"], self.event_fd()["error"]]
                self.library.c.numacre_detach(self.pool)
                os.write(says, json.dumps([of_parent, own]).encode())
            finally:
                os._exit(0)
        if stopped_daemon:
            os.kill(stopped_daemon, signal.SIGCONT)
            asking.join()
        else:
            asked.append(self.event_fd())
        os.write(let_it_attach, b".")
        is_there = select.select([said], [], [], 60)[0]
        if not is_there:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        answer = os.read(said, 1000) if is_there else b""
        for fd in (said, says, may_attach, let_it_attach):
            os.close(fd)
        return {**asked[0], "child": json.loads(answer) if answer else None}

    def is_receiving(self, thread):
        """It is in recvmsg()."""
        number = {"x86_64": "47 ", "aarch64": "212 "}[os.uname().machine]
        try:
            return pathlib.Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().startswith(number)
        except (FileNotFoundError, ProcessLookupError):
            return False  # it has ended

    def event_fd_beside(self, runtime_dir, stopped_daemon):
        other = ctypes.c_void_p()
        error = self.library.c.numacre_attach(runtime_dir.encode(), self.pool_name, ctypes.byref(other))
        if error:
            return self.answer(error, other_waits=False)
        asking = threading.Thread(target=self.event_fd)
        os.kill(stopped_daemon, signal.SIGSTOP)
        try:
            asking.start()
            while asking.is_alive() and not self.is_receiving(asking):
                time.sleep(0.001)
            fd = ctypes.c_int(-1)
            answer = self.answer(self.library.c.numacre_event_fd(other, ctypes.byref(fd)))
            answer["other_waits"] = self.is_receiving(asking)
        finally:
            os.kill(stopped_daemon, signal.SIGCONT)
        asking.join()
        self.library.c.numacre_detach(other)
        return answer

    def lock_memory(self):
        libc = ctypes.CDLL(None, use_errno=True)
        current_and_future = 3
        return {"error": ctypes.get_errno() if libc.mlockall(current_and_future) != 0 else 0}

    def peak_bytes(self):
        return self.answer(0, bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)

    def wait_for_the_daemon(self, seconds):
        """For so long, when it does not answer."""
        (connection,) = [int(fd) for fd in os.listdir("/proc/self/fd")
                         if os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.stat(int(fd)).st_mode)]
        with socket.socket(fileno=os.dup(connection)) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", seconds, 0))

    def use_up_descriptors(self):
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        return self.answer(0)

    def ignore_termination(self):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return self.answer(0)

    def jam(self):
        os.set_blocking(self.descriptor, True)
        os.eventfd_write(self.descriptor, 0xFFFFFFFFFFFFFFFE)
        return self.answer(0)

    def churn(self, sizes, nodes):
        def work():
            choose = random.Random(1)
            while not self.leave.is_set():
                held = []
                for _ in range(16):
                    error, block = self.alloc_one(choose.choice(sizes), choose.choice(nodes), 0)
                    if error == 0:
                        held.append(block)
                for size, node, flags in self.expected_failures:
                    error, block = self.alloc_one(size, node, flags)
                    if error == 0:
                        held.append(block)
                for block in held:
                    self.library.c.numacre_free(self.pool, block)
                # A test machine has better things to do than to churn at full speed.
                time.sleep(0.005)

        self.churning = threading.Thread(target=work, daemon=True)
        self.churning.start()
        return self.answer(0)

    def fail(self, size, node, flags):
        self.expected_failures.append((size, node, flags))
        return self.answer(0)

    def detach(self):
        self.leave.set()
        if self.churning:
            self.churning.join()
        self.library.c.numacre_detach(self.pool)
        self.pool = ctypes.c_void_p()
        return self.answer(0)

    def keep(self):
        self.kept, self.pool = self.pool, ctypes.c_void_p()
        return self.answer(0)

    def detach_kept(self):
        self.library.c.numacre_detach(self.kept)
        return self.answer(0)

    def close_descriptors(self):
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        os.closerange(3, highest + 1)
        self.own = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(highest)]
        return self.answer(0)

    def descriptors_are_untouched(self):
        try:
            for pair in self.own:
                for end in pair:
                    if select.select([end], [], [], 0)[0]:
                        return self.answer(0, untouched=False)
        except OSError:
            return self.answer(0, untouched=False)
        return self.answer(0, untouched=True)

    def has_eventfd_numbers(self):
        try:
            return self.answer(0, has="eventfd-id:" in pathlib.Path(f"/proc/self/fdinfo/{self.descriptor}").read_text())
        except OSError:
            return self.answer(0, has=False)

    def close_descriptors_for_eventfds(self):
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        os.closerange(3, highest + 1)
        self.own = [os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(highest)]
        return self.answer(0)

    def eventfds_are_untouched(self):
        try:
            for fd in self.own:
                if os.eventfd_read(fd) != 1:
                    return self.answer(0, untouched=False)
                os.eventfd_write(fd, 1)
        except OSError:
            return self.answer(0, untouched=False)
        return self.answer(0, untouched=True)

    def exec(self):
        # Before: what is written to us after the answer is the new program's to read.
        print(json.dumps(self.answer(0)), flush=True)
        os.execv(sys.executable, [sys.executable, *sys.argv])

    def serve(self):
        for line in sys.stdin:
            request = json.loads(line)
            function = getattr(self, request.pop("call"))
            print(json.dumps(function(**request)), flush=True)
        if self.pool:
            self.detach()


if __name__ == "__main__":
    served = _Served(*sys.argv[1:4])
    if sys.argv[4] != "None":
        # Now: the interpreter and the library may lie where only root can read.
        os.setgid(int(sys.argv[4]))
        os.setuid(int(sys.argv[4]))
    served.serve()
