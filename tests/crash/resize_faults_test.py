#!/usr/bin/env python3
"""Resizes on real hugepages that go wrong half way: pages run out, the caller gives up, the daemon is killed before or
after any change of the frames. What a growth took goes back, blocks of clients stay as they are, and what the kernel
has put behind the frames is what the daemon says is online."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.daemon import program, wait_until  # noqa: E402
from support.expect import expect  # noqa: E402
from support.gigantic_pages import GIB, GiganticPages, Shortage  # noqa: E402
from support.gigantic_pages import count as gigantic_pages  # noqa: E402
from support.numacre_client import WAIT, ClientProcess  # noqa: E402
from support.runtime_dir import MIB, RuntimeDir, online_bytes  # noqa: E402

SMALL, LARGE = 16 * MIB, 64 * MIB
POOL = f"name=default,capacity={LARGE},online={SMALL},frame=4K,largest=4M"
HELD, PATTERN = 3, b"\x5a" * 64  # what ClientProcess writes into each block


class FaultyDir(RuntimeDir):
    def __enter__(self):
        super().__enter__()
        self._own = tempfile.TemporaryDirectory(prefix="numacre-faults-")
        self.faults = pathlib.Path(self._own.name) / "faults"
        return self

    def __exit__(self, *problem):
        self.go()
        super().__exit__(*problem)
        self._own.cleanup()

    def start(self, **more):
        library = pathlib.Path(os.environ["NUMACRE_BUILD_DIR"]) / "test-bin" / "libfault_at.so"
        expect(library.exists(), f"{library} is not built")
        return super().start(environment={"LD_PRELOAD": str(library), "NUMACRE_FAULTS": str(self.faults)}, **more)

    def arm(self, *faults):
        beside = self.faults.with_suffix(".new")
        beside.write_text("".join(f"{number} {what}\n" for number, what in faults))
        beside.rename(self.faults)

    def wait_until_reached(self):
        wait_until("a change waits", pathlib.Path(f"{self.faults}.reached").exists)

    def go(self):
        pathlib.Path(f"{self.faults}.go").touch()

    def disarm(self):
        self.faults.unlink(missing_ok=True)

    def check(self, daemon, size):
        expect(online_bytes(daemon) == size, f"{online_bytes(daemon)} bytes are online instead of {size}")
        expect(self.frames_bytes() == size, f"{self.frames_bytes()} bytes are behind {size}")
        expect("damaged" not in daemon.log(), daemon.log())


def free_hugepages():
    return int(pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").read_text())


def listens(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        return connection.connect_ex(path) == 0


def resize(daemon, size):
    done = daemon.run_cli("resize", "default", size, "--json")
    return json.loads(done.stdout) if done.stdout else {}


def test_pages_run_out():
    with FaultyDir(POOL) as directory:
        free = free_hugepages()
        daemon = directory.start()
        (node,) = daemon.status()["pools"][0]["nodes"]
        if node["backing"] != "hugetlb":
            print(f"SKIP of the hugepages: the pool has backing {node['backing']}: {node['backing_note']}")
        directory.arm((3, "nospace"))
        done = resize(daemon, LARGE)
        expect(done["error"]["code"] == "RESOURCE_EXHAUSTED", done)
        expect(done["undone_bytes"] == 2 * 16 * MIB and done["online_bytes"] == SMALL, done)
        expect("32M that had come online went back, 16M are online, as before" in done["error"]["message"], done)
        directory.check(daemon, SMALL)
        directory.disarm()
        expect(resize(daemon, LARGE)["error"] is None, "once there are pages again")
        directory.check(daemon, LARGE)
        daemon.cli("delete", "default")
        daemon.stop()
        # Other tests may have some for a while.
        wait_until(f"{free} hugepages are free again", lambda: free_hugepages() >= free)


def test_what_clients_use_already_stays():
    with FaultyDir(POOL) as directory:
        daemon = directory.start()
        with ClientProcess(directory.path) as client:
            error, blocks = client.alloc(4 * MIB, count=4)
            expect(error == 0, client.message)
            answer = []
            waiter = threading.Thread(target=lambda: answer.append(client.alloc(4 * MIB, flags=WAIT)))
            waiter.start()
            # No pages for the third step, and that when the client has a block out of the first one.
            directory.arm((2, "wait"), (3, "nospace"))
            growing = threading.Thread(target=lambda: answer.append(resize(daemon, LARGE)))
            growing.start()
            directory.wait_until_reached()
            waiter.join()
            directory.go()
            growing.join()
            (error, more), done = answer
            expect(error == 0, client.message)
            expect(done["undone_bytes"] == 28 * MIB and done["online_bytes"] == 20 * MIB, done)
            expect("20M stay online: clients use some of it already" in done["error"]["message"], done)
            directory.check(daemon, 20 * MIB)
            directory.disarm()
            expect(client.free(blocks[:1] + more) == 0, client.message)
            expect(resize(daemon, SMALL - 4 * MIB)["error"] is None, "a unit does not go")


def test_the_caller_gives_up():
    with FaultyDir(POOL) as directory:
        daemon = directory.start()
        directory.arm((2, "wait"))
        command = [program("numacre"), "--runtime-dir", directory.path, "resize", "default", str(LARGE)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as growing:
            directory.wait_until_reached()
            growing.send_signal(signal.SIGINT)
            time.sleep(1.5)  # until the daemon has heard of it; if not, it hears with one of the next steps
            directory.go()
            said, _ = growing.communicate(timeout=60)
        expect(growing.returncode == 1, f"it ended with {growing.returncode}: {said}")
        expect("16 MiB online now" in said and "that had come online went back" in said, said)
        directory.check(daemon, SMALL)


def kill_at_a_change(directory, daemon, client, blocks, begin, end, faults, unit):
    """The daemon that has adopted what the one left that died of the faults, on the way from a size to another."""
    expect(resize(daemon, begin)["error"] is None, "no way to begin")
    directory.check(daemon, begin)
    directory.arm(*faults)
    resize(daemon, end)
    daemon.wait()
    directory.disarm()
    expect(client.free(client.alloc(4096, count=20)[1]) == 0, client.message)
    # Its io_uring lets go of the listener a moment after the process has ended.
    wait_until("the socket is free", lambda: not listens(f"{directory.path}/attach.sock"))
    before, daemon = daemon, directory.start()
    before.stop()
    wait_until("the client is known", lambda: len(daemon.clients()) == 1)
    wait_until("steps are finished", lambda: directory.frames_bytes() == online_bytes(daemon))
    size = online_bytes(daemon)
    expect(min(begin, end) <= size <= max(begin, end) and size % unit == 0, f"{faults}: {size} bytes are online")
    directory.check(daemon, size)
    for block in blocks:
        expect(client.read(block, 64) == PATTERN, f"{faults}: a block was overwritten")
    return daemon


def test_killed_before_and_after_each_change():
    with FaultyDir(POOL) as directory:
        daemon = directory.start()
        client = ClientProcess(directory.path)
        error, blocks = client.alloc(4096, count=HELD)
        expect(error == 0, client.message)
        kills = 0
        # A growth has three changes, a shrink three of neighbours, the undoing of one that failed at its third two.
        for begin, end, faults in (
            *((SMALL, LARGE, [(number, what)]) for number in (1, 2, 3) for what in ("before", "after")),
            *((LARGE, SMALL, [(number, what)]) for number in (1, 2, 3) for what in ("before", "after")),
            *((SMALL, LARGE, [(3, "nospace"), (number, what)]) for number, what in ((4, "before"), (5, "after"))),
        ):
            daemon = kill_at_a_change(directory, daemon, client, blocks, begin, end, faults, 4 * MIB)
            kills += 1
        # Every second chunk is in use: what a shrink has claimed at once goes back in several changes.
        expect(resize(daemon, LARGE)["error"] is None, "no way to begin")
        error, chunks = client.alloc(4 * MIB, count=LARGE // (4 * MIB))
        expect(len(chunks) >= 12, client.message)
        expect(client.free(chunks[::2]) == 0, client.message)
        for number, what in ((1, "before"), (1, "after"), (2, "before"), (3, "after")):
            faults = [(number, what)]
            daemon = kill_at_a_change(directory, daemon, client, blocks, LARGE, LARGE - 16 * MIB, faults, 4 * MIB)
            kills += 1
        client.close()
        wait_until("everything is back", lambda: daemon.used_bytes() == 0)
        expect(resize(daemon, 0)["error"] is None, "something is in use that nobody has")
        directory.check(daemon, 0)
        print(f"{kills} daemons killed at a change of the frames")
        daemon.stop()


def test_pages_of_1_gib():
    """A unit is one page, of many chunks; what was reserved in the kernel is given back whoever died over it."""
    try:
        with GiganticPages(more=2) as pages:
            check_pages_of_1_gib(pages)
    except Shortage as reason:
        print(f"SKIP of pages of 1 GiB: {reason}")


def check_pages_of_1_gib(pages):
    with FaultyDir("name=default,capacity=2G,online=0,frame=4K,largest=4M,backing=hugetlb-1g") as directory:
        daemon = directory.start()
        (node,) = daemon.status()["pools"][0]["nodes"]
        expect((node["backing"], node["page_bytes"]) == ("hugetlb-1g", GIB), node["backing_note"])
        reserved = gigantic_pages()
        directory.arm((2, "nospace"))
        done = resize(daemon, 2 * GIB)
        expect(done["error"]["code"] == "RESOURCE_EXHAUSTED", done)
        expect("hugetlb.1GB.max" in done["error"]["message"], done)
        expect(done["undone_bytes"] == GIB and done["online_bytes"] == 0, done)
        directory.check(daemon, 0)
        expect(gigantic_pages() == reserved, f"{gigantic_pages()} pages are reserved instead of {reserved}")
        directory.disarm()

        expect(resize(daemon, GIB)["error"] is None, "once there are pages again")
        client = ClientProcess(directory.path)
        error, blocks = client.alloc(4096, count=HELD)
        expect(error == 0, client.message)
        kills = 0
        for begin, end in ((GIB, 2 * GIB), (2 * GIB, GIB)):
            for what in ("before", "after"):
                daemon = kill_at_a_change(directory, daemon, client, blocks, begin, end, [(1, what)], GIB)
                kills += 1
        expect(resize(daemon, 2 * GIB)["error"] is None, "no way to grow")
        error, more = client.alloc(4 * MIB, count=511)
        expect(error == 0, client.message)
        refused = resize(daemon, GIB)["error"]
        expect(refused is not None and "2G stay online" in refused["message"],
               f"pages with blocks in them go: {refused}")
        expect(client.free(more) == 0, client.message)
        client.close()
        wait_until("everything is back", lambda: daemon.used_bytes() == 0)
        expect(resize(daemon, 0)["error"] is None, "something is in use that nobody has")
        directory.check(daemon, 0)
        print(f"{kills} daemons killed at a change of a page of 1 GiB")
        daemon.cli("delete", "default")
        daemon.stop()
    expect(pages.left_over() == 0, f"{pages.left_over()} hugepages of 1 GiB that nobody has given back")


def main():
    for name, function in list(globals().items()):
        if not name.startswith("test_") or (len(sys.argv) > 1 and name not in sys.argv[1:]):
            continue
        started = time.monotonic()
        function()
        print(f"{name}: ok, {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
