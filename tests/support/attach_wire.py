"""The attach protocol (shm/include/numacre/shm/attach_wire.hpp), spoken without the library: for tests that send what
the library never would, or that look at the answer itself.
"""

import contextlib
import os
import pathlib
import re
import socket
import struct

from support.daemon import PATIENCE_SECONDS

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))

MAGIC = 0x7263_6D6E
WIRE_VERSION = 1
ATTACH_REQUEST, ATTACH_REPLY, DETACH_REQUEST = 1, 2, 3
TRUSTED, OBSERVER = 0, 1
HEADER = struct.Struct("=IHHII")  # magic, version, type, size, reserved
LAYOUT_VERSION = int(
    re.search(r"kLayoutVersion = (\d+);", (SOURCE / "shm/include/numacre/shm/layout.hpp").read_text()).group(1)
)
REQUEST = struct.Struct("=IHHIIII64s")  # header, layout version, tier, pool name
REPLY_BYTES = 16 + 64 + 256 + 4096 + 64 * 32
REPLY_HEAD = struct.Struct("=IHHIIII")  # header, error, layout version
REPLY_SEAT, REPLY_SEAT_OFFSET = struct.Struct("=HHQQ"), 28  # process slot, numa nodes, generation, instance
MESSAGE_OFFSET = 16 + 64
# shm/include/numacre/shm/layout.hpp: behind the pool's header and accounts
RECORDS_OFFSET, RECORD_BYTES, PRESENCE_OFFSET = 8192, 128, 80


def request(
    magic=MAGIC, version=WIRE_VERSION, kind=ATTACH_REQUEST, size=REQUEST.size, layout=LAYOUT_VERSION, tier=TRUSTED,
    pool=b"default"
):
    return REQUEST.pack(magic, version, kind, size, 0, layout, tier, pool)


class Reply:
    def __init__(self, data):
        _, _, self.kind, _, _, self.error, self.layout = REPLY_HEAD.unpack_from(data)
        self.slot, _, self.generation, self.instance_id = REPLY_SEAT.unpack_from(data, REPLY_SEAT_OFFSET)
        self.message = data[MESSAGE_OFFSET : MESSAGE_OFFSET + 256].split(b"\0")[0].decode(errors="replace")

    def come(self, pool_region):
        """Says in its record that everything is mapped (shm/presence.hpp). A client that does not is given up with its
        connection, or the daemon."""
        here = self.generation << 2 | 1
        os.pwrite(pool_region, struct.pack("=Q", here), RECORDS_OFFSET + self.slot * RECORD_BYTES + PRESENCE_OFFSET)


def connect(daemon):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    connection.settimeout(PATIENCE_SECONDS)
    connection.connect(str(pathlib.Path(daemon.runtime_dir) / "attach.sock"))
    return connection


def ask_to_attach(connection):
    """Sends an attach request: [error, message] of the answer, whose descriptors are closed."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # hung up on; the reason can be read
        connection.send(request())
    try:
        data, fds, _, _ = socket.recv_fds(connection, REPLY_BYTES, 1 + 2 * 64)
    except ConnectionResetError:  # hung up on with the request unread: the reason is behind that news
        data, fds, _, _ = socket.recv_fds(connection, REPLY_BYTES, 1 + 2 * 64)
    for fd in fds:
        os.close(fd)
    return [Reply(data).error, Reply(data).message]
