#!/usr/bin/env python3
"""A file whose bytes come late: a program reads it, and the answer comes when the test wants it, also after the
program's end. The kernel then writes into memory of the dead.

    file = LateFile(folder, "program", "argument", ...)    # Unavailable: no FUSE here
    file.wait_for("read")                                  # the program's read waits
    os.kill(file.pid, SIGKILL)
    file.answer()                                          # returns when the kernel has the bytes

The file is FOLDER/late, and has 1 MiB. This file is also the program that serves it, over FUSE, in a mount namespace of
its own; the reader is its child. Needs root.
"""

import ctypes
import os
import select
import struct
import subprocess
import sys

LOOKUP, GETATTR, OPEN, READ, INIT = 1, 3, 14, 15, 26
ASYNC_READ, ASYNC_DIRECT_IO = 1 << 0, 1 << 15  # in the answer to INIT
DIRECT_IO = 1  # in the answer to OPEN
BYTES = 1 << 20
CONTENT = b"\xa5"
IS_NOT_AVAILABLE = 77


class Unavailable(Exception):
    """str() says why."""


class LateFile:
    def __init__(self, folder, *command):
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), folder, *map(str, command)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        first = self.process.stdout.readline().split()
        if first[:1] != ["pid"]:
            self.process.wait()
            raise Unavailable(" ".join(first))
        self.pid = int(first[1])

    def wait_for(self, word):
        line = self.process.stdout.readline()
        if line != word + "\n":
            raise AssertionError(f"'{word}' was to come, not '{line}'")

    def answer(self):
        self.process.stdin.write("answer\n")
        self.process.stdin.flush()
        self.wait_for("answered")

    def end(self):
        """Whoever waits for the file is let go."""
        self.process.kill()
        self.process.communicate()


class Server:
    def __init__(self, folder):
        libc = ctypes.CDLL(None, use_errno=True)

        def call(name, *arguments):
            if getattr(libc, name)(*arguments) != 0:
                raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")

        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        new_mounts, recursive, private = 0x20000, 0x4000, 0x40000
        call("unshare", new_mounts)
        call("mount", b"none", b"/", None, recursive | private, None)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0"
        call("mount", b"numacre-test", folder.encode(), b"fuse", 0, options.encode())
        self.waiting = []

    def serve_one(self):
        """Answers one request; a read waits, and is said."""
        try:
            request = os.read(self.device, 1 << 17)
        except FileNotFoundError:  # interrupted meanwhile
            return
        _, kind, unique, inode = struct.unpack_from("=IIQQ", request)
        if kind == READ:
            (size,) = struct.unpack_from("=I", request, 40 + 16)
            self.waiting.append((unique, size))
            print("read", flush=True)
            return
        folder, file = (0o40755, 0), (0o100644, BYTES)
        mode, size = folder if (kind, inode) == (GETATTR, 1) else file
        attributes = struct.pack("=6Q10I", 2, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
        body = {
            INIT: struct.pack("=4I2H2I2H8I", 7, 31, 0, ASYNC_READ | ASYNC_DIRECT_IO, 0, 0, 4096, 0, 0, 0, *[0] * 8),
            LOOKUP: struct.pack("=4Q2I", 2, 0, 1000, 1000, 0, 0) + attributes,
            GETATTR: struct.pack("=Q2I", 1000, 0, 0) + attributes,
            OPEN: struct.pack("=Q2I", 1, DIRECT_IO, 0),
        }.get(kind)
        self.write(unique, body or b"", 0 if body else -38)

    def write(self, unique, body, error=0):
        try:
            os.write(self.device, struct.pack("=IiQ", 16 + len(body), error, unique) + body)
        except FileNotFoundError:
            pass  # nobody waits for this answer

    def answer(self):
        for unique, size in self.waiting:
            self.write(unique, CONTENT * size)
        self.waiting = []
        print("answered", flush=True)


def main():
    folder, *command = sys.argv[1:]
    try:
        server = Server(folder)
    except OSError as error:
        print(f"FUSE cannot be used here: {error}", flush=True)
        sys.exit(IS_NOT_AVAILABLE)
    reader = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    print(f"pid {reader.pid}", flush=True)
    while True:
        ready, _, _ = select.select([server.device, 0], [], [], 0.1)
        reader.poll()  # no zombie
        if server.device in ready:
            server.serve_one()
        if 0 in ready:
            if not os.read(0, 100):
                break
            server.answer()


if __name__ == "__main__":
    main()
