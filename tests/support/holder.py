"""The holder's protocol, spoken without a daemon."""

import os
import socket
import struct

from support.expect import expect


class Holder:
    """numacre-holder, spoken to as a daemon would (daemon/src/survival/holder_wire.hpp)."""

    HEADER = struct.Struct("=IHHI96s")
    MAGIC, VERSION = 0x64686D6E, 1
    HELLO, LIST, ENTRY, LEAVE, DONE = 0, 3, 4, 5, 7

    def __init__(self, runtime_dir):
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.settimeout(60)
        self.connection.connect(os.path.join(runtime_dir, "holder.sock"))
        kind, self.pid, _, _ = self._receive()
        expect(kind == self.HELLO, f"the holder greets with message {kind}")

    def _receive(self):
        packet, fds, _, _ = socket.recv_fds(self.connection, self.HEADER.size, 4)
        magic, version, kind, value, name = self.HEADER.unpack(packet)
        expect((magic, version) == (self.MAGIC, self.VERSION), f"the holder speaks {magic:#x} version {version}")
        return kind, value, name.rstrip(b"\0").decode(), fds

    def kept(self):
        """Open descriptors by name."""
        self.connection.send(self.HEADER.pack(self.MAGIC, self.VERSION, self.LIST, 0, b""))
        found = {}
        while True:
            kind, _, name, fds = self._receive()
            if kind != self.ENTRY:
                return found
            (found[name],) = fds

    def leave(self, pidfds, more):
        message = self.HEADER.pack(self.MAGIC, self.VERSION, self.LEAVE, more, b"")
        socket.send_fds(self.connection, [message], pidfds)
        expect(self._receive()[0] == self.DONE, "the holder does not take pidfds")

    def close(self):
        self.connection.close()
