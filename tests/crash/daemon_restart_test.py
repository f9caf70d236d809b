#!/usr/bin/env python3
"""The daemon dies, is stopped and upgraded under running clients, at random instants; the next one adopts what it left.

usage: daemon_restart_test.py [--rounds N] [--seed N] [NAME ...]      replay: the seed is printed first
"""

import argparse
import errno
import fcntl
import os
import pathlib
import random
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.chaos_client import ChaosClient, chaos_client  # noqa: E402
from support.daemon import may_not_take_hugepages, program, wait_until  # noqa: E402
from support.expect import expect  # noqa: E402
from support.ledger_layout import UNIT_BYTES, units_at  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.runtime_dir import CAPACITY, MIB, RuntimeDir, online_bytes  # noqa: E402

HOLDER_LOOKS_EVERY_SECONDS = 2  # daemon/holder/main.cpp
LAST_CLIENT_ID_AT = 168  # in a pool's ledger (daemon/src/memory/ledger.cpp)
# Offsets in a pool's ledger that never move, whatever the version.
LAYOUT_VERSION_AT = 12
UNITS_AT = units_at()
# A user who is not there, what it was promised, and what the keeper may have.
ABSENT, RESERVED, QUOTA = 4711, 4 * MIB, 8 * MIB
OFFLINE, FILLING, OPENING, ONLINE, CLOSING, CLOSED = range(6)


def hugepages():
    return int(pathlib.Path("/proc/sys/vm/nr_hugepages").read_text())


def seats_of(daemon):
    return sorted((each["client_id"], each["pid"], each["used_bytes"] - each["cached_bytes"])
                  for each in daemon.clients())


class Load:
    """chaos_clients at work."""

    def __init__(self, runtime_dir, directory, rng):
        self.runtime_dir, self.rng = runtime_dir, rng
        self.shared = os.path.join(directory, "shared")
        self.clients = []

    def start_one(self):
        self.clients.append(ChaosClient([chaos_client(), self.runtime_dir, self.shared, str(self.rng.getrandbits(63)),
                                         "2"]))
        self.clients[-1].wait_until_attached()

    def check_alive(self):
        for client in self.clients:
            expect(client.process.poll() is None, "a client ended by itself")

    def kill_one(self):
        self.clients.pop(self.rng.randrange(len(self.clients))).kill()

    def stop(self):
        for client in self.clients:
            client.order("q")
        for client in self.clients:
            client.end()
        self.clients = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        while self.clients:
            self.kill_one()


# ---------------------------------------------------------------------------------------------------------------------


def test_killed_under_load(rng, rounds, limited=False):
    """SIGKILL at random instants, while clients work, die, attach, and the pool is resized."""
    reserved = hugepages()
    with RuntimeDir() as runtime_dir, tempfile.TemporaryDirectory() as directory:
        daemon = runtime_dir.start()
        early = [ClientProcess(runtime_dir.path) for _ in range(4 if limited else 0)]
        keeper = ClientProcess(runtime_dir.path)
        error, held = keeper.alloc(64 << 10, count=20)
        expect(error == 0, f"alloc: {error}")
        if limited:
            # The seats of those who die are before the keeper's: what is left there is added up.
            for each in early:
                each.close()
            wait_until("their seats are free", lambda: len(daemon.clients()) == 1)
            daemon.cli("reserve", "--user", ABSENT, RESERVED)
            daemon.cli("quota", keeper.client_id, QUOTA)
        with Load(runtime_dir.path, directory, rng) as load:
            for _ in range(3):
                load.start_one()
            half_done = 0
            for _ in range(rounds):
                resize = threading.Thread(target=resize_until_it_dies, args=(daemon, random.Random(rng.random())))
                resize.start()
                time.sleep(rng.uniform(0.01, 0.4))
                daemon.kill()
                resize.join()
                # Nobody noticed; and there is death while there is no daemon.
                load.check_alive()
                error, more = keeper.alloc(4096, count=50)
                expect(error in (0, -errno.ENOMEM), f"without a daemon: {error} {keeper.message}")  # the load is greedy
                expect(keeper.free(more) == 0, keeper.message)
                load.kill_one()
                before, daemon = daemon, runtime_dir.start()
                before.stop()
                half_done += "finishing a step" in daemon.log()
                daemon.says("pool adopted")
                wait_until("only living clients are left", lambda: len(daemon.clients()) == len(load.clients) + 1)
                load.start_one()
                if limited:
                    error, more = keeper.alloc(64 << 10, count=QUOTA // (64 << 10))
                    expect(error in (-errno.ENOMEM, -errno.EDQUOT), f"beyond its quota: {error} {keeper.message}")
                    expect(keeper.free(more) == 0, keeper.message)
            load.stop()
        print(f"{rounds} daemons killed, {half_done} of them in the middle of a resize step", flush=True)
        # They detached from a daemon that they had never met.
        wait_until("only the keeper is left", lambda: [each["pid"] for each in daemon.clients()] == [keeper.pid])
        wait_until("only the keeper's blocks are used", lambda: daemon.used_bytes() == 20 * (64 << 10))
        expect(keeper.free(held) == 0, keeper.message)
        daemon.cli("resize", "default", CAPACITY)
        if limited:
            expect_limits(daemon, keeper)
        (pool,) = [each for each in daemon.status()["pools"] if each["name"] == "default"]
        expect(pool["nodes"][0]["largest_free_block_bytes"] == 4 * MIB, "something did not coalesce")
        expect("damaged" not in daemon.log(), f"the pool is said to be damaged:\n{daemon.log()}")
        keeper.close()
        daemon.cli("resize", "default", 0)
        expect(online_bytes(daemon) == 0, "a chunk is in use that nobody has")
        daemon.stop()
        expect(not os.path.exists(os.path.join(runtime_dir.path, "holder.sock")), "the holder outlives its last pool")
    if may_not_take_hugepages():
        return
    # Other tests may have some for a while.
    wait_until(f"no more than the {reserved} hugepages of before are reserved", lambda: hugepages() <= reserved)


def test_killed_under_load_with_limits(rng, rounds):
    """The same, while everybody counts: what there is in the end is what limits leave, neither more nor less."""
    test_killed_under_load(rng, rounds, limited=True)


def expect_limits(daemon, keeper):
    """Nobody else is left."""
    for limit, why in ((QUOTA, errno.EDQUOT), (CAPACITY - RESERVED, errno.ENOMEM)):
        error, blocks = keeper.alloc(64 << 10, count=CAPACITY // (64 << 10))
        found = len(blocks) * (64 << 10)
        expect((found, error) == (limit, -why), f"{found} bytes instead of {limit}, then {error}: {keeper.message}")
        expect(keeper.free(blocks) == 0, keeper.message)
        daemon.cli("quota", keeper.client_id, "none")
    daemon.cli("reserve", "--user", ABSENT, "none")


def resize_until_it_dies(daemon, rng):
    while True:
        done = daemon.run_cli("resize", "default", rng.randrange(4, 17) * 4 * MIB)
        if not daemon.alive() or done.returncode not in (0, 1):
            return


def test_stopped_and_started(rng, _):
    """An upgrade: SIGTERM with clients, and a new daemon. Same clients, same ids, same blocks, same quota of
    everything."""
    with RuntimeDir() as runtime_dir:
        daemon = runtime_dir.start()
        client, other = ClientProcess(runtime_dir.path), ClientProcess(runtime_dir.path)
        expect(client.alloc(1 * MIB, count=3)[0] == 0, client.message)
        error, blocks = other.alloc(4096, count=5)
        expect(error == 0, other.message)
        before = seats_of(daemon)
        expect(daemon.stop() == 0, "numacred did not end well")
        expect(other.free(blocks) == 0, other.message)
        expect(other.alloc(4096, count=5)[0] == 0, other.message)

        daemon = runtime_dir.start()
        after = seats_of(daemon)
        expect(before == after, f"{before} became {after}")
        newcomer = ClientProcess(runtime_dir.path)
        expect(newcomer.client_id > max(each[0] for each in before), "a client's id was given out again")
        other.detach()  # its connection was to the daemon before
        wait_until("the detached client is gone", lambda: other.client_id not in
                   [each["client_id"] for each in daemon.clients()])
        client.kill()
        wait_until("the killed client's blocks are back", lambda: daemon.used_bytes() == 0)

        # Stopped for good: the memory goes with the last client, and the holder with it.
        pid = runtime_dir.holder_pid()
        daemon.stop()
        expect(newcomer.alloc(4096)[0] == 0, newcomer.message)
        os.kill(pid, 0)
        newcomer.close()
        wait_until("the holder has ended", lambda: not os.path.exists(os.path.join(runtime_dir.path, "holder.sock")))
        other.close()


def test_client_ids_come_round(rng, _):
    """After 2^32 attaches: no client has the id that says "nobody sits here", and none has that of another."""
    with RuntimeDir() as runtime_dir:
        daemon, oldest = runtime_dir.start_with_client()
        holder = runtime_dir.holder()
        kept = holder.kept()
        holder.close()
        ledger = kept["default/ledger"]
        last = struct.unpack("=I", os.pread(ledger, 4, LAST_CLIENT_ID_AT))[0]
        expect(last == oldest.client_id == 1, f"the ledger says {last}, the first client has id {oldest.client_id}")
        daemon.kill()
        os.pwrite(ledger, struct.pack("=I", 0xFFFFFFFE), LAST_CLIENT_ID_AT)
        for fd in kept.values():
            os.close(fd)
        daemon = runtime_dir.start()
        others = [ClientProcess(runtime_dir.path) for _ in range(3)]
        ids = [other.client_id for other in others]
        expect(ids == [0xFFFFFFFF, 2, 3], f"{ids}")
        daemon.kill()
        daemon = runtime_dir.start()
        seated = sorted(each["client_id"] for each in daemon.clients())
        expect(seated == [1, 2, 3, 0xFFFFFFFF], f"{seated}")
        for client in [oldest, *others]:
            client.close()
        wait_until("nobody is left", lambda: not daemon.clients())


def test_a_configured_pool_that_cannot_be_made(rng, _):
    """Pools that are kept for running clients are served without it. Without such pools it is a start that fails."""
    impossible = "name=huge,capacity=1T,online=1T,frame=2M,largest=2M,backing=small"
    with RuntimeDir() as runtime_dir:
        said = runtime_dir.start_refused("--pool", impossible)
        expect("huge" in said, said)
        daemon, client = runtime_dir.start_with_client()
        daemon.kill()
        daemon = runtime_dir.start(more_arguments=("--pool", impossible))
        daemon.says("a configured pool is not there.*huge")
        expect([each["client_id"] for each in daemon.clients()] == [client.client_id], f"{daemon.clients()}")
        client.close()


def test_other_layout(rng, _):
    """A daemon of another layout version refuses, and changes nothing."""
    with RuntimeDir() as runtime_dir:
        daemon, client = runtime_dir.start_with_client()
        daemon.kill()
        daemon.stop()
        holder = runtime_dir.holder()
        kept = holder.kept()
        ledger = kept["default/ledger"]
        ours = os.pread(ledger, 4, LAYOUT_VERSION_AT)
        os.pwrite(ledger, struct.pack("=I", 999), LAYOUT_VERSION_AT)
        said = runtime_dir.start_refused()
        discard = f"numacred --runtime-dir {runtime_dir.path} --discard-kept"
        expect("layout version 999" in said and discard in said, said)
        expect(sorted(kept) == sorted(holder.kept()), "the refusal changed what is kept")
        holder.close()
        expect(client.alloc(4096)[0] == 0, client.message)
        os.pwrite(ledger, ours, LAYOUT_VERSION_AT)
        daemon = runtime_dir.start()
        expect(daemon.used_bytes() == 4 * 4096, f"{daemon.used_bytes()} bytes are used")
        # Nor does one that sees other numa nodes.
        daemon.kill()
        daemon.stop()
        said = runtime_dir.start_refused("--topology", "synthetic:2x512M")
        expect("numa nodes" in said and discard in said, said)
        daemon = runtime_dir.start()
        expect(daemon.used_bytes() == 4 * 4096, f"{daemon.used_bytes()} bytes are used")
        client.close()
        daemon.stop()


def test_half_done_resizes(rng, _):
    """A daemon that died at each point of a step of growing or shrinking: what it had begun is finished or undone."""
    with RuntimeDir() as runtime_dir:
        daemon, client = runtime_dir.start_with_client()
        daemon.kill()
        daemon.stop()
        holder = runtime_dir.holder()
        kept = holder.kept()
        holder.close()
        ledger, frames = kept["default/ledger"], kept["default/frames0"]
        states = [os.pread(ledger, 1, UNITS_AT + UNIT_BYTES * unit)[0] for unit in range(CAPACITY // (4 * MIB))]
        expect(states == [ONLINE] * 8 + [OFFLINE] * 8, f"the ledger says {states}")
        resident = os.fstat(frames).st_blocks
        for unit, state in {0: OPENING, 1: CLOSING, 8: FILLING, 9: CLOSED}.items():
            os.pwrite(ledger, bytes([state]), UNITS_AT + UNIT_BYTES * unit)
            if state in (FILLING, CLOSED):
                os.posix_fallocate(frames, unit * 4 * MIB, 4 * MIB)
        expect(os.fstat(frames).st_blocks > resident, "nothing is to be given back")

        daemon = runtime_dir.start()
        wait_until("all four are finished", lambda: daemon.log().count("finishing a step") == 4)
        expect(online_bytes(daemon) == CAPACITY // 2, f"{online_bytes(daemon)} bytes are online")
        wait_until("the pages are given back", lambda: os.fstat(frames).st_blocks == resident)
        daemon.cli("resize", "default", CAPACITY)
        expect(client.alloc(4 * MIB, count=15)[0] == 0, client.message)
        client.kill()
        wait_until("everything is back", lambda: daemon.used_bytes() == 0)
        daemon.cli("resize", "default", 0)
        expect("damaged" not in daemon.log(), daemon.log())
        daemon.stop()
        for fd in kept.values():
            os.close(fd)


def test_holder_killed(rng, _):
    """The holder dies under a running daemon: there is another one, with everything."""
    with RuntimeDir() as runtime_dir:
        daemon, client = runtime_dir.start_with_client()
        first = runtime_dir.holder_pid()
        os.kill(first, signal.SIGKILL)
        daemon.says("starting another one")
        wait_until("it listens", lambda: is_served_by_another(runtime_dir, first))
        # A daemon that is killed before that has lost its pools: it is the only one that has them.
        daemon.says("keeps everything again")
        daemon.kill()
        daemon.stop()
        daemon = runtime_dir.start()
        expect(daemon.used_bytes() == 3 * 4096, f"{daemon.used_bytes()} bytes are used")
        client.close()
        daemon.stop()


def test_holder_killed_as_the_daemon_stops(rng, _):
    """Both are told to end in one moment, as by `killall`. The daemon has another holder before it goes."""
    for _ in range(6):
        with RuntimeDir() as runtime_dir:
            daemon, client = runtime_dir.start_with_client()
            seats = seats_of(daemon)
            holder = runtime_dir.holder_pid()
            os.kill(daemon.pid, signal.SIGSTOP)
            os.kill(holder, signal.SIGKILL)
            os.kill(daemon.pid, signal.SIGTERM)
            os.kill(daemon.pid, signal.SIGCONT)
            expect(daemon.wait() == 0, daemon.log())
            second = runtime_dir.start()
            expect(seats_of(second) == seats, f"{seats_of(second)} instead of {seats}")
            client.close()


def test_a_holder_takes_no_name_of_another(rng, _):
    """As one that was slow to start, for a daemon that has died since: the next daemon's holder has the name by now."""
    with RuntimeDir() as runtime_dir:
        daemon, client = runtime_dir.start_with_client()
        path = os.path.join(runtime_dir.path, "holder.sock")
        named = os.stat(path).st_ino
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            as_third = f'exec "$0" "$1" 3<&{theirs.fileno()}'
            late = subprocess.Popen(["bash", "-c", as_third, program("numacre-holder"), path], stdin=subprocess.DEVNULL,
                                    pass_fds=[theirs.fileno()])
            try:
                expect(late.wait(60) != 0, "a second holder serves")
            finally:
                late.kill()
                late.wait()
        expect(os.stat(path).st_ino == named, "another holder has the name")
        expect([name for name in os.listdir(runtime_dir.path) if name.startswith("h.")] == [], "its own name stays")
        daemon.kill()
        daemon.stop()
        daemon = runtime_dir.start()
        expect(daemon.used_bytes() == 3 * 4096, f"{daemon.used_bytes()} bytes are used")
        client.close()


def test_holder_of_another_pid_namespace(rng, _):
    """What it calls its pid is a stranger's number, or nobody's, for a daemon in another pid namespace."""
    with RuntimeDir() as runtime_dir:
        daemon, client = runtime_dir.start_with_client()
        first = runtime_dir.holder_pid()
        daemon.kill()
        daemon.stop()
        daemon = runtime_dir.start(prefix=("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"))
        daemon.says("pool adopted")
        time.sleep(5)  # twice the time after which a holder that is missed is replaced
        expect("the holder process has ended" not in daemon.log(), daemon.log())
        os.kill(first, signal.SIGKILL)
        daemon.says("the holder process has ended")
        daemon.says("keeps everything again")
        expect(daemon.used_bytes() == 3 * 4096, f"{daemon.used_bytes()} bytes are used")
        client.close()
        wait_until("everything is back", lambda: daemon.used_bytes() == 0)
        daemon.kill()  # unshare does not hand on what would end it in order


def test_holder_that_does_not_answer(rng, _):
    """A second holder would take the first one's name, and the first would let go of everything: so there is none."""
    with RuntimeDir() as runtime_dir:
        daemon, client = runtime_dir.start_with_client()
        pid = runtime_dir.holder_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            daemon.kill()
            daemon.stop()
            said = runtime_dir.start_refused()
            expect("does not answer" in said, said)
            # As after many such starts: its queue is full.
            waiting = []
            try:
                while True:
                    waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                    waiting[-1].setblocking(False)
                    waiting[-1].connect(os.path.join(runtime_dir.path, "holder.sock"))
            except BlockingIOError:
                pass
            said = runtime_dir.start_refused()
            expect("does not answer" in said, said)
            for one in waiting:
                one.close()
        finally:
            os.kill(pid, signal.SIGCONT)
        daemon = runtime_dir.start()
        expect(daemon.used_bytes() == 3 * 4096, f"{daemon.used_bytes()} bytes are used")
        client.close()
        daemon.stop()


def test_holder_that_stands_still_under_a_running_daemon(rng, _):
    """It keeps what it has, is given the rest when it goes on, and no late answer of it is taken for another."""
    with RuntimeDir() as runtime_dir:
        daemon, client = runtime_dir.start_with_client()
        first = runtime_dir.holder_pid()
        pidfd = os.pidfd_open(first)
        os.kill(first, signal.SIGSTOP)
        daemon.cli("create", "x", "--capacity", "16M", "--online", "4M", "--backing", "small", "--timeout", "60s")
        daemon.cli("create", "y", "--capacity", "16M", "--online", "4M", "--backing", "small", "--timeout", "60s")
        daemon.cli("delete", "y", "--timeout", "60s")
        daemon.says("the holder process does not answer")
        os.kill(first, signal.SIGCONT)
        daemon.says("keeps everything again")
        expect(not select.select([pidfd], [], [], 0)[0], "the holder has ended")
        os.close(pidfd)
        holder = runtime_dir.holder()
        kept = holder.kept()
        holder.close()
        expect(holder.pid == first and {"default/ledger", "x/ledger", "x/frames0"} <= set(kept), f"{set(kept)}")
        expect("y/ledger" not in kept, f"{set(kept)}")
        for fd in kept.values():
            os.close(fd)
        daemon.kill()
        daemon = runtime_dir.start()
        expect(daemon.used_bytes() == 3 * 4096, f"{daemon.used_bytes()} bytes are used")
        client.close()
        wait_until("reaped", lambda: not daemon.clients())
        pid = runtime_dir.holder_pid()
        pidfd = os.pidfd_open(pid)
        os.kill(pid, signal.SIGSTOP)
        expect(daemon.stop() == 0, "numacred did not end well")
        wait_until("the holder has ended", lambda: select.select([pidfd], [], [], 0)[0])
        os.close(pidfd)


def test_holder_that_cannot_be_had_at_first(rng, _):
    """As on a machine that is short of processes for a moment. The daemon serves, and has a holder as soon as there is
    one."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, RuntimeDir() as runtime_dir:
        shutil.copy(program("numacred"), folder)
        elsewhere = os.path.join(folder, "numacred")
        daemon = runtime_dir.start(prefix=("bash", "-c", 'shift; exec "$0" "$@"', elsewhere))
        daemon.says("no holder process.*trying again")
        client = ClientProcess(runtime_dir.path)
        expect(client.alloc(4096, count=3)[0] == 0, client.message)
        shutil.copy(program("numacre-holder"), folder)
        daemon.says("keeps everything again")
        daemon.kill()
        daemon = runtime_dir.start()
        expect(daemon.used_bytes() == 3 * 4096, f"{daemon.used_bytes()} bytes are used")
        client.close()


def test_a_holder_that_cannot_be_started_is_tried_again_after_a_pause(rng, _):
    """The one that there was has died, and its program is gone: a package is just being upgraded."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, RuntimeDir() as runtime_dir:
        for name in ("numacred", "numacre-holder"):
            shutil.copy(program(name), folder)
        daemon = runtime_dir.start(prefix=("bash", "-c", 'shift; exec "$0" "$@"', os.path.join(folder, "numacred")))
        pid = runtime_dir.holder_pid()
        starts = pathlib.Path(folder) / "starts"
        replacement = pathlib.Path(folder) / "new"
        replacement.write_text(f"#!/bin/sh\necho >> {starts}\n")
        replacement.chmod(0o755)
        replacement.rename(os.path.join(folder, "numacre-holder"))
        begun = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        wait_until("it was tried four times", lambda: starts.exists() and len(starts.read_text()) >= 4)
        # The first two may follow each other: the end of the old one, and that not all is kept.
        tries, seconds = len(starts.read_text()), time.monotonic() - begun
        expect(tries <= 3 + seconds, f"{tries} tries in {seconds:.1f} s")
        daemon.stop()


def test_a_daemon_in_a_chroot_has_its_holder(rng, _):
    """The kernel tells a program in a chroot, once it has a mount namespace of its own, its path outside."""
    with tempfile.TemporaryDirectory(dir="/tmp") as root, RuntimeDir() as runtime_dir:
        mounts = " && ".join(["mount --make-rprivate /", f"mount --bind / {root}", f"mount -t proc proc {root}/proc",
                              f"mount --bind /dev {root}/dev", f"mount -t sysfs sysfs {root}/sys"])
        # The path leads astray as long as somebody else is in the namespace that the daemon came from.
        inside = f'{mounts} && (sleep 60 &) && exec chroot {root} "$@"'
        daemon, client = runtime_dir.start_with_client(prefix=("unshare", "-m", "bash", "-c", inside, "bash"))
        expect(os.path.exists(os.path.join(runtime_dir.path, "holder.sock")), daemon.log())
        daemon.kill()
        daemon.stop()
        daemon = runtime_dir.start()
        expect(daemon.used_bytes() == 3 * 4096, f"{daemon.used_bytes()} bytes are used")
        client.close()


def test_holder_that_may_send_no_descriptor(rng, _):
    """Others have as many descriptors of the daemon's user on their way, unread, as the kernel lets it send."""
    if os.geteuid() != 0:
        print("SKIP: NOT TESTED: needs root, to give up capabilities")
        return
    without_rights = ("prlimit", "--nofile=512:512", "setpriv", "--bounding-set", "-sys_resource,-sys_admin")
    with RuntimeDir() as runtime_dir:
        daemon = runtime_dir.start(prefix=without_rights)
        client = ClientProcess(runtime_dir.path)
        expect(client.alloc(4096, count=3)[0] == 0, client.message)
        daemon.kill()
        daemon.stop()
        ours, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, others:
            for _ in range(3):
                socket.send_fds(ours, [b"!"], [ours.fileno()] * 250)
            daemon = runtime_dir.start(prefix=without_rights)
            expect(daemon.used_bytes() == 3 * 4096, f"{daemon.used_bytes()} bytes are used")
            expect([each["client_id"] for each in daemon.clients()] == [client.client_id], f"{daemon.clients()}")
        client.kill()
        wait_until("reaped", lambda: daemon.used_bytes() == 0)


def test_a_daemon_that_is_killed_while_it_leaves(rng, _):
    """It tells the holder of its clients 64 at a time. Those of half a list are not all."""
    with RuntimeDir() as runtime_dir:
        daemon, client = runtime_dir.start_with_client()
        daemon.kill()
        daemon.stop()
        ended = subprocess.Popen(["true"])
        pidfd = os.pidfd_open(ended.pid)
        ended.wait()
        holder = runtime_dir.holder()
        pid = holder.pid
        holder.leave([pidfd], more=6)
        holder.close()  # it was killed
        time.sleep(3 * HOLDER_LOOKS_EVERY_SECONDS)
        os.kill(pid, 0)
        holder = runtime_dir.holder()
        holder.leave([pidfd], more=0)
        os.close(pidfd)
        holder.close()
        wait_until("the holder has ended", lambda: not os.path.exists(os.path.join(runtime_dir.path, "holder.sock")))
        client.close()


def test_a_daemon_leaves_more_clients_than_go_into_one_message(rng, _):
    """The last message makes the list whole: the holder ends with the last of them, and not before."""
    with RuntimeDir() as runtime_dir:
        daemon = runtime_dir.start()
        many = ClientProcess(runtime_dir.path)
        for _ in range(64):
            expect(many.attach() == 0, many.message)
        other = ClientProcess(runtime_dir.path)
        pid = runtime_dir.holder_pid()
        daemon.stop()
        many.kill()
        time.sleep(3 * HOLDER_LOOKS_EVERY_SECONDS)
        os.kill(pid, 0)
        other.kill()
        wait_until("the holder has ended", lambda: not os.path.exists(os.path.join(runtime_dir.path, "holder.sock")))


def is_served_by_another(runtime_dir, pid):
    try:
        return runtime_dir.holder_pid() != pid
    except OSError:
        return False


def test_stopped_client_in_the_way(rng, _):
    """A client that stands still (SIGSTOP) at any instruction keeps nobody from anything: not the next daemon
    either."""
    with RuntimeDir() as runtime_dir, tempfile.TemporaryDirectory() as directory:
        daemon = runtime_dir.start()
        with Load(runtime_dir.path, directory, rng) as load:
            load.start_one()
            load.start_one()
            time.sleep(rng.uniform(0.05, 0.2))
            load.clients[0].process.send_signal(signal.SIGSTOP)
            daemon.kill()
            daemon.stop()
            daemon = runtime_dir.start()
            load.check_alive()
            expect(len(daemon.clients()) == 2, f"{daemon.clients()}")
            with ClientProcess(runtime_dir.path) as third:
                error, _ = third.alloc(4096, count=10)
                expect(error in (0, -errno.ENOMEM), third.message)  # the load is greedy
            load.clients[0].process.send_signal(signal.SIGCONT)
            load.stop()
        wait_until("everything is back", lambda: not daemon.clients() and daemon.used_bytes() == 0)
        daemon.stop()


class ServiceManager:
    """systemd's side of FDSTORE and LISTEN_FDS."""

    def __init__(self, directory):
        self.path = os.path.join(directory, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.stored = {}
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            packet, fds, _, _ = socket.recv_fds(self.socket, 4096, 8)
            fields = dict(line.split("=", 1) for line in packet.decode().splitlines())
            if "FDSTOREREMOVE" in fields and fields["FDNAME"] in self.stored:
                os.close(self.stored.pop(fields["FDNAME"]))
            if "FDSTORE" in fields:
                (fd,) = fds
                # Above the range that a new daemon finds them in, so that no move overwrites a source.
                self.stored[fields["FDNAME"]] = fcntl.fcntl(fd, fcntl.F_DUPFD, 100)
                os.close(fd)

    def start(self, runtime_dir):
        names = sorted(self.stored)
        moves = " ".join(f"{3 + i}<&{self.stored[name]}" for i, name in enumerate(names))
        # LISTEN_PID is only known in the new process itself.
        listen = f"exec {moves}; export LISTEN_PID=$$ LISTEN_FDS={len(names)} LISTEN_FDNAMES={':'.join(names)}; "
        return runtime_dir.start(environment={"NOTIFY_SOCKET": self.path}, pass_fds=tuple(self.stored.values()),
                                 prefix=("bash", "-c", (listen if names else "") + 'exec "$@"', "bash"))


def test_systemd(rng, _):
    """The same through systemd's descriptor store, with a manager that keeps to its protocol."""
    with RuntimeDir() as runtime_dir, tempfile.TemporaryDirectory(dir="/tmp") as directory:
        manager = ServiceManager(directory)
        daemon = manager.start(runtime_dir)
        wait_until("all is stored", lambda: {"machine", "default/ledger", "default/pool", "default/metadata0",
                                             "default/frames0"} <= set(manager.stored))
        expect(not os.path.exists(os.path.join(runtime_dir.path, "holder.sock")), "there is a holder under systemd")
        client = ClientProcess(runtime_dir.path)
        expect(client.alloc(4096, count=7)[0] == 0, client.message)
        daemon.kill()
        daemon.stop()
        daemon = manager.start(runtime_dir)
        daemon.says("pool adopted")
        expect(daemon.used_bytes() == 7 * 4096, f"{daemon.used_bytes()} bytes are used")
        client.kill()
        wait_until("reaped", lambda: daemon.used_bytes() == 0)
        daemon.cli("delete", "default")
        wait_until("nothing but the machine's ledger is stored", lambda: set(manager.stored) == {"machine"})
        daemon.stop()


def test_hugepages_that_others_have_reserved_stay_through_a_restart(rng, _):
    """Pages are not marked: those that are free when the next daemon starts need not be what the last one raised."""
    if may_not_take_hugepages():
        print("NOT TESTED: pages that others have reserved, without the lock on hugepages", flush=True)
        return
    count = pathlib.Path("/proc/sys/vm/nr_hugepages")
    free = int(re.search(r"HugePages_Free:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())[1])
    if not os.access(count, os.W_OK):
        print("NOT TESTED: nr_hugepages may not be written here", flush=True)
        return
    online = 2 * (free + 8)
    with RuntimeDir(f"name=default,capacity={online}M,online={online}M,frame=4K,largest=2M") as runtime_dir:
        before = hugepages()
        daemon, client = runtime_dir.start_with_client()
        raised = hugepages() - before
        if daemon.status()["pools"][0]["nodes"][0]["backing"] != "hugetlb" or raised < 8:
            print("NOT TESTED: the kernel made no hugepages", flush=True)
            client.close()
            return
        count.write_text(str(before + raised + 4))
        try:
            expect(hugepages() == before + raised + 4, "the kernel made no hugepages")
            daemon.kill()
            daemon.stop()
            daemon = runtime_dir.start()
            expect(hugepages() == before + raised + 4, f"{hugepages()} instead of {before + raised + 4}")
            client.close()
            daemon.cli("delete", "default")
            wait_until("what was raised has gone", lambda: hugepages() == before + 4)
        finally:
            count.write_text(str(hugepages() - 4))


def test_a_service_manager_that_does_not_read_holds_nobody_up(rng, _):
    """Its socket is full, which any user can bring about; the watchdog's messages come from the event loop."""
    with RuntimeDir() as runtime_dir, tempfile.TemporaryDirectory(dir="/tmp") as directory:
        path = os.path.join(directory, "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            environment = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"}
            daemon = runtime_dir.start(environment=environment)
            time.sleep(3)  # thirty ticks: more than the socket takes
            with ClientProcess(runtime_dir.path) as client:
                expect(client.alloc(4096)[0] == 0, client.message)
            # A message that cannot be missed comes when there is room.
            manager.settimeout(60)
            wait_until("it is told that the daemon serves", lambda: b"READY=1" in manager.recv(4096))
            daemon.cli("create", "x", "--capacity", "8M", "--online", "4M", "--backing", "small")
            wait_until("the new pool is stored", lambda: b"FDNAME=x/ledger" in manager.recv(4096))
            daemon.cli("delete", "x")
            wait_until("it is told to let go of the pool",
                       lambda: b"FDSTOREREMOVE=1\nFDNAME=x/ledger" in manager.recv(4096))
            expect(daemon.stop() == 0, daemon.log())


def test_a_daemon_that_keeps_otherwise_does_not_start_beside_a_holder_with_pools(rng, _):
    """The clients would go on in pools that nobody serves."""
    with RuntimeDir() as runtime_dir:
        daemon, client = runtime_dir.start_with_client()
        daemon.kill()
        daemon.stop()
        for kind in ("off", "systemd"):
            said = runtime_dir.start_refused("--keep-memory", kind)
            expect("keeps pools of a daemon before" in said and "--discard-kept" in said, said)
        daemon = runtime_dir.start()
        expect(daemon.used_bytes() == 3 * 4096, f"{daemon.used_bytes()} bytes are used")
        daemon.cli("delete", "default", "--force")
        daemon.kill()
        daemon.stop()
        # It keeps no pool, and is nobody's reason to stay.
        runtime_dir.start(("--keep-memory", "off"))
        client.kill()


def main():
    tests = {name: function for name, function in globals().items() if name.startswith("test_")}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("names", nargs="*", choices=[*tests, []])
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"replay: daemon_restart_test.py --rounds {arguments.rounds} --seed {seed}", flush=True)
    for name in arguments.names or tests:
        started = time.monotonic()
        tests[name](random.Random(seed), arguments.rounds)
        print(f"{name}: ok, {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
