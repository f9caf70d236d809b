#!/usr/bin/env python3
"""Names (numacre_name_set) between real processes: who may bind one, how long it stays, and what everybody sees of
it."""

import concurrent.futures
import contextlib
import errno
import mmap
import os
import pathlib
import re
import socket
import struct
import sys
import time
import types
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.attach_wire import (  # noqa: E402
    ATTACH_REPLY, HEADER, LAYOUT_VERSION, MAGIC, OBSERVER, REPLY_BYTES, WIRE_VERSION, Reply, connect, request
)
from support.daemon import Daemon, wait_until  # noqa: E402
from support.numacre_client import (  # noqa: E402
    NAME_CHANNEL, NAME_OBJECTS, NAME_POOL, NAME_REFERENCE, ClientProcess
)
from support.runner import main  # noqa: E402
from support.stranger import STRANGER  # noqa: E402

POOL = "name=default,capacity=64M,online=16M,frame=4K,largest=4M,backing=small"
NAMES, NAMES_OF_USER = 256, 64
NAME_REQUEST, NAME_REPLY = 12, 13
# header, layout version, slot, reserved, generation, instance, kind, flags, version, value, name, objects
NAME = struct.Struct("=IHHIIIHHQQIIQQ48s64s")
COMPARE = 2
WITHOUT_ROOT = "needs root, for a client of another user"
# shm/include/numacre/shm/names.hpp
DIRECTORY_BYTES, HEADS_AT, HEAD_BYTES = 128 + NAMES * (16 + 256), 128, 16


def serving(more="", **options):
    return Daemon("--pool", POOL + more, **options)


def names_of(daemon, pool="default"):
    return {each["name"]: each for each in daemon.cli("names", pool)["names"]}


def names_metric(daemon):
    text = urllib.request.urlopen(f"http://{daemon.metrics_address}/metrics", timeout=60).read().decode()
    return int(float(re.search(r'^numacre_pool_names\{pool="default"\} (\S+)', text, re.MULTILINE).group(1)))


def name_request(seat, name=b"n", kind=NAME_REFERENCE, flags=0, version=0, value=1, objects=b"", **wrong):
    return NAME.pack(MAGIC, WIRE_VERSION, NAME_REQUEST, NAME.size, 0, LAYOUT_VERSION, wrong.get("slot", seat.slot),
                     wrong.get("reserved", 0), wrong.get("generation", seat.generation),
                     wrong.get("instance_id", seat.instance_id), kind, flags, version, value, name, objects)


def ask(daemon, packet):
    """(type of the reply, its message or version) on a connection of its own. daemon: or its runtime directory."""
    where = daemon if hasattr(daemon, "runtime_dir") else types.SimpleNamespace(runtime_dir=daemon)
    with contextlib.closing(connect(where)) as connection:
        connection.send(packet)
        data = connection.recv(REPLY_BYTES)
        kind = HEADER.unpack_from(data)[2]
        return kind, Reply(data).message if kind == ATTACH_REPLY else struct.unpack_from("=Q", data, HEADER.size)[0]


@contextlib.contextmanager
def seated(daemon, **more):
    """A seat by the protocol itself, with the pool region's descriptor."""
    with contextlib.closing(connect(daemon)) as connection:
        connection.send(request(**more))
        data, fds, _, _ = socket.recv_fds(connection, REPLY_BYTES, 3)
        seat = Reply(data)
        assert seat.error == 0, seat.message
        try:
            if not more:
                seat.come(fds[0])
            yield seat, fds[0]
        finally:
            for fd in fds:
                os.close(fd)


def hash_of(name):
    """As NameText::hash()."""
    hashed = 0
    for (word,) in struct.iter_unpack("=Q", name.ljust(48, b"\0")):
        hashed = (hashed ^ word) * 0x9E3779B97F4A7C15 % 2**64
        hashed ^= hashed >> 32
    return hashed | 1


def directory_at(region, name):
    """Where the pool's region has the directory: around the head of a name that is bound, and alone at its place."""
    hashed = hash_of(name)
    with mmap.mmap(region, 0, prot=mmap.PROT_READ) as there:
        head = there.find(struct.pack("=Q", hashed))
    return head - (hashed >> 8) % NAMES * HEAD_BYTES - HEADS_AT


class NamesTest(unittest.TestCase):
    def test_what_one_process_binds_another_finds(self):
        with serving() as daemon, ClientProcess(daemon.runtime_dir) as giver, \
                ClientProcess(daemon.runtime_dir) as taker:
            error, (block,) = giver.alloc(4096)
            self.assertEqual(error, 0)
            ref = giver.call("ref_of", block=block)["ref"]
            error, version = giver.name_set("first", reference=ref)
            self.assertEqual(error, 0, giver.message)
            error, found = taker.name_get("first")
            self.assertEqual(error, 0, taker.message)
            self.assertEqual((found["kind"], found["reference"], found["version"], found["client_id"], found["flags"]),
                             (NAME_REFERENCE, ref, version, giver.client_id, 0))
            self.assertEqual(found["user"], os.geteuid())
            error, taken = taker.take(found["reference"])
            self.assertEqual(error, 0, taker.message)
            # The reference is stale now; the name still says what it was bound to.
            self.assertEqual(taker.name_get("first")[1]["reference"], ref)

            error, of_pool = taker.name_set("x" * 47, objects="default.orders", flags=NAME_POOL)
            self.assertEqual(error, 0, taker.message)
            self.assertGreater(of_pool, version)
            found = giver.name_get("x" * 47, NAME_OBJECTS)[1]
            self.assertEqual((found["objects"], found["reference"], found["client_id"], found["flags"]),
                             ("default.orders", 0, 0, NAME_POOL))
            listed, seen = giver.names()
            self.assertEqual((set(listed), seen), ({"first", "x" * 47}, of_pool))
            self.assertEqual(listed["first"]["reference"], ref)

            self.assertEqual(names_metric(daemon), 2)
            of_cli = names_of(daemon)
            self.assertEqual((of_cli["first"]["reference"], of_cli["first"]["client_id"], of_cli["first"]["kind"]),
                             (ref, giver.client_id, "reference"))
            self.assertEqual((of_cli["x" * 47]["objects"], of_cli["x" * 47]["client_id"]), ("default.orders", None))
            table = daemon.run_cli("names").stdout
            self.assertIn(f"{ref:#x}", table)
            self.assertIn(f"client {giver.client_id}", table)

            # Bound to something else, by its version and without.
            self.assertEqual(giver.name_set("first", reference=7, version=version + 1)[0], -errno.EAGAIN)
            self.assertIn(f"version {version}", giver.message)
            error, second = giver.name_set("first", reference=7, version=version)
            self.assertEqual((error, taker.name_get("first")[1]["reference"]), (0, 7), giver.message)
            self.assertEqual(giver.name_remove("first", version), -errno.EAGAIN)
            self.assertEqual(giver.name_remove("first", second), 0, giver.message)
            self.assertEqual(taker.name_get("first")[0], -errno.ENODATA)
            self.assertEqual(giver.name_remove("first"), -errno.ENODATA)
            self.assertEqual(giver.name_set("first", reference=7, version=second)[0], -errno.ENODATA)
            # The operator removes what he likes.
            self.assertEqual(daemon.run_cli("names", "default", "--remove", "x" * 47).returncode, 0)
            self.assertEqual(taker.name_get("x" * 47)[0], -errno.ENODATA)
            refused = daemon.run_cli("names", "default", "--remove", "x" * 47)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("no name", refused.stderr)

    def test_bad_input_is_refused_with_a_sentence_and_changes_nothing(self):
        with serving() as daemon, ClientProcess(daemon.runtime_dir) as client:
            self.assertEqual(client.name_set("good", reference=1)[0], 0)
            for name, words in (("", "empty"), ("a" * 48, "too long"), ("a b", "character 2"), ("a/b", "0x2f"),
                                ("tab\t", "0x09"), ("\x7f", "0x7f"), ("\xe4", "0xe4")):
                with self.subTest(name=name):
                    for error in (client.name_set(name, reference=1)[0], client.name_get(name)[0],
                                  client.name_remove(name)):
                        self.assertEqual(error, -errno.EINVAL)
                        self.assertIn(words, client.message)
            for wrong, words in (({"reference": 0}, "NUMACRE_REF_NULL"), ({"kind": NAME_CHANNEL}, "the daemon alone"),
                                 ({"kind": 9, "reference": 1}, "kind is 9"), ({"flags": 8, "reference": 1}, "flags"),
                                 ({"objects": "No Pool"}, "no name of a pool"),
                                 ({"kind": NAME_OBJECTS}, "no name of a pool")):
                with self.subTest(wrong=wrong):
                    self.assertEqual(client.name_set("good", **wrong)[0], -errno.EINVAL)
                    self.assertIn(words, client.message)
            self.assertEqual(client.name_get("good", NAME_OBJECTS)[0], -errno.EINVAL)
            self.assertIn("bound to a reference, and not to an object pool", client.message)
            self.assertEqual(client.name_get("good", 17)[0], -errno.EINVAL)
            self.assertEqual(client.name_get("unknown")[0], -errno.ENODATA)
            self.assertIn("'unknown'", client.message)
            self.assertEqual(client.name_set("good", reference=2, version=0)[0], -errno.EEXIST)
            self.assertEqual(client.names()[0].keys(), {"good"})
            self.assertEqual(client.name_get("good")[1]["reference"], 1)

    def test_of_many_processes_that_want_a_free_name_one_gets_it(self):
        with serving() as daemon, contextlib.ExitStack() as stack:
            clients = [stack.enter_context(ClientProcess(daemon.runtime_dir)) for _ in range(8)]
            with concurrent.futures.ThreadPoolExecutor(len(clients)) as threads:
                for trial in range(12):
                    begin = time.monotonic() + 0.1
                    race = lambda client: client.call("name_race", name=f"race{trial}", begin=begin)  # noqa: E731
                    answers = list(threads.map(race, clients))
                    winners = [client for client, answer in zip(clients, answers) if answer["error"] == 0]
                    self.assertEqual(len(winners), 1, answers)
                    self.assertEqual({answer["error"] for answer in answers}, {0, -errno.EEXIST})
                    found = clients[0].name_get(f"race{trial}")[1]
                    self.assertEqual((found["reference"], found["client_id"]), (winners[0].pid, winners[0].client_id))

    def test_the_names_of_a_dead_client_go_and_those_of_the_pool_stay(self):
        with serving() as daemon, ClientProcess(daemon.runtime_dir) as watcher:
            for end in ("kill", "detach"):
                with self.subTest(end=end):
                    client = ClientProcess(daemon.runtime_dir)
                    for i in range(5):
                        self.assertEqual(client.name_set(f"own{i}", reference=i + 1)[0], 0, client.message)
                    self.assertEqual(client.name_set("pools", reference=99, flags=NAME_POOL)[0], 0, client.message)
                    self.assertEqual(watcher.name_set("watchers", reference=3)[0], 0)
                    listed, version = watcher.names()
                    self.assertEqual(len(listed), 7)
                    if end == "kill":
                        client.kill()
                    else:
                        self.assertEqual(client.detach(), 0)
                    # By the time that its seat is free its names are gone.
                    wait_until("its seat is free", lambda: len(daemon.clients()) == 1)
                    self.assertEqual(set(watcher.names()[0]), {"pools", "watchers"})
                    self.assertEqual(set(names_of(daemon)), {"pools", "watchers"})
                    self.assertEqual(watcher.name_watch(version)[0], 0)
                    self.assertEqual(watcher.name_remove("pools"), 0, watcher.message)
                    client.close()

    def test_a_name_that_another_has_bound_anew_does_not_go_with_the_first(self):
        with serving() as daemon, ClientProcess(daemon.runtime_dir) as second:
            first = ClientProcess(daemon.runtime_dir)
            self.assertEqual(first.name_set("n", reference=1)[0], 0)
            self.assertEqual(second.name_set("n", reference=2)[0], 0, second.message)
            first.kill()
            wait_until("its seat is free", lambda: len(daemon.clients()) == 1)
            self.assertEqual(second.name_get("n")[1]["reference"], 2)

    def test_a_name_gone_with_its_client_goes_although_the_blocks_wait(self):
        with serving(",pin-quarantine=1h") as daemon, ClientProcess(daemon.runtime_dir) as other:
            client = ClientProcess(daemon.runtime_dir)
            error, (block,) = client.alloc(4096)
            self.assertEqual(client.pin(0, 16 << 20)[0], 0, client.message)
            self.assertEqual(client.name_set("n", reference=client.call("ref_of", block=block)["ref"])[0], 0)
            version = other.names()[1]
            client.kill()
            self.assertEqual(other.name_watch(version)[0], 0, other.message)
            self.assertEqual(other.names()[0], {})
            wait_until("its blocks wait", lambda: any(each["state"] == "quarantined" for each in daemon.clients()))

    def test_names_outlive_the_daemon(self):
        with contextlib.ExitStack() as stack:
            daemon = stack.enter_context(serving())
            living, dying = ClientProcess(daemon.runtime_dir), ClientProcess(daemon.runtime_dir)
            self.assertEqual(living.name_set("living", reference=1)[0], 0)
            self.assertEqual(dying.name_set("dying", reference=2)[0], 0)
            self.assertEqual(dying.name_set("pools", reference=3, flags=NAME_POOL)[0], 0)
            _, version = living.names()
            daemon.kill()
            # Without a daemon all of them can be read, and none can be changed.
            self.assertEqual(set(living.names()[0]), {"living", "dying", "pools"})
            self.assertEqual(living.name_get("dying")[1]["reference"], 2)
            self.assertEqual(living.name_set("more", reference=3)[0], -errno.ECONNREFUSED)
            self.assertEqual(living.name_remove("living"), -errno.ECONNREFUSED)
            self.assertEqual(living.name_watch(version, 50)[0], -errno.ETIMEDOUT)
            dying.kill()
            with concurrent.futures.ThreadPoolExecutor(1) as thread:
                watching = thread.submit(living.name_watch, version)
                with serving(runtime_dir=daemon.runtime_dir) as next_daemon:
                    error, later = watching.result()
                    self.assertEqual(error, 0, living.message)
                    self.assertGreater(later, version)
                    wait_until("the dead one's name is gone", lambda: set(names_of(next_daemon)) == {"living", "pools"})
                    self.assertEqual(set(living.names()[0]), {"living", "pools"})
                    found = living.name_get("living")[1]
                    self.assertEqual((found["reference"], found["client_id"]), (1, living.client_id))
                    # A client of the daemon before changes names, too; a version is never given again.
                    error, newest = living.name_set("more", reference=3)
                    self.assertEqual(error, 0, living.message)
                    self.assertGreater(newest, later)
                    living.kill()
                    wait_until("all of the client's are gone", lambda: set(names_of(next_daemon)) == {"pools"})
                    with ClientProcess(next_daemon.runtime_dir) as another:
                        self.assertEqual(set(another.names()[0]), {"pools"})
                        self.assertEqual(another.name_remove("pools"), 0, another.message)
                    self.assertFalse(next_daemon.status()["pools"][0]["state"] == "corrupt")

    def test_the_daemon_is_killed_while_names_change(self):
        # Whenever it dies: each name is bound as before or as wanted, in ledger and copy alike.
        with contextlib.ExitStack() as stack:
            daemon = stack.enter_context(serving())
            client, reader = ClientProcess(daemon.runtime_dir), ClientProcess(daemon.runtime_dir)
            stack.callback(reader.close)
            stack.callback(client.close)
            told = {}
            for trial in range(8):
                with concurrent.futures.ThreadPoolExecutor(1) as thread:
                    end = time.monotonic() + 0.05 + 0.01 * trial
                    killer = thread.submit(lambda: (time.sleep(max(0, end - time.monotonic())), daemon.kill()))
                    value, error, unsure = 0, 0, None
                    while error == 0:
                        value += 1
                        name = f"name{value % 5}"
                        unsure = (name, trial << 16 | value)
                        if value % 7 == 0:
                            unsure = (name, None)
                            error = client.name_remove(name)
                            error = 0 if error == -errno.ENODATA else error
                        else:
                            error, _ = client.name_set(name, reference=unsure[1], flags=NAME_POOL)
                        if error == 0:
                            told[name] = unsure[1]
                    killer.result()
                self.assertIn(error, (-errno.ECONNREFUSED, -errno.ETIMEDOUT), client.message)
                told = {name: value for name, value in told.items() if value is not None}

                def bound(found):
                    return {name: each["reference"] for name, each in found.items()}

                wanted = {name: value for name, value in {**told, unsure[0]: unsure[1]}.items() if value is not None}
                self.assertIn(bound(reader.names()[0]), (told, wanted))  # the copy, without a daemon
                daemon = stack.enter_context(serving(runtime_dir=daemon.runtime_dir))
                in_ledger = bound(names_of(daemon))
                self.assertIn(in_ledger, (told, wanted))
                wait_until("the copy is the ledger's", lambda: bound(reader.names()[0]) == bound(names_of(daemon)))
                told = in_ledger
            self.assertEqual(daemon.status()["pools"][0]["state"], "serving")

    def test_readers_beside_a_writer_find_whole_entries(self):
        with serving() as daemon, contextlib.ExitStack() as stack:
            writer = stack.enter_context(ClientProcess(daemon.runtime_dir))
            readers = [stack.enter_context(ClientProcess(daemon.runtime_dir)) for _ in range(2)]
            with concurrent.futures.ThreadPoolExecutor(2) as threads:
                looks = [threads.submit(each.call, "name_look", name="n", seconds=2) for each in readers]
                value = 0
                while not all(look.done() for look in looks):
                    value += 1
                    self.assertEqual(writer.name_set("n", reference=value << 32 | value)[0], 0, writer.message)
                    if value % 3 == 0:
                        self.assertEqual(writer.name_remove("n"), 0)
                for look in looks:
                    self.assertEqual(look.result()["wrong"], [])
                    self.assertGreater(look.result()["found"], 100)
                self.assertGreater(value, 10)

    def test_a_watcher_wakes_for_each_change_by_others(self):
        with serving() as daemon, ClientProcess(daemon.runtime_dir) as client, \
                ClientProcess(daemon.runtime_dir) as watcher, concurrent.futures.ThreadPoolExecutor(1) as thread:
            error, version = watcher.name_watch(0, 0)
            self.assertEqual(error, -errno.ETIMEDOUT)
            self.assertEqual(watcher.name_watch(77, 0), (0, 0))
            version = 0
            for i in range(5):
                watching = thread.submit(watcher.name_watch, version)
                time.sleep(0.02)
                self.assertFalse(watching.done())
                self.assertEqual(client.name_set("n", reference=i + 1)[0], 0, client.message)
                error, later = watching.result()
                self.assertEqual(error, 0)
                self.assertGreater(later, version)
                self.assertEqual(watcher.name_get("n")[1]["reference"], i + 1)
                version = later

    @unittest.skipUnless(os.geteuid() == 0, WITHOUT_ROOT)
    def test_users_have_a_quota_and_do_not_touch_each_others_names(self):
        with serving(",mode=0666") as daemon:
            os.chmod(daemon.runtime_dir, 0o755)
            root = ClientProcess(daemon.runtime_dir)
            first, second = (ClientProcess(daemon.runtime_dir, uid=uid) for uid in (STRANGER, STRANGER - 1))
            with root, first, second:
                for i in range(NAMES_OF_USER):
                    self.assertEqual(first.name_set(f"a{i}", reference=1, flags=NAME_POOL * (i % 2))[0], 0,
                                     first.message)
                self.assertEqual(first.name_set("more", reference=1)[0], -errno.EDQUOT)
                self.assertIn(f"has {NAMES_OF_USER} names", first.message)
                self.assertIn("remove some", first.message)
                self.assertEqual(first.name_set("a3", reference=2)[0], 0, "its own, bound anew, is no more than it has")
                for name in ("a0", "a1"):
                    self.assertEqual(second.name_set(name, reference=2)[0], -errno.EACCES)
                    self.assertIn(f"user {STRANGER}'s", second.message)
                    self.assertEqual(second.name_remove(name), -errno.EACCES)
                self.assertEqual(second.name_get("a0")[1]["user"], STRANGER)
                self.assertEqual(second.name_set("b", reference=2)[0], 0)
                # A process of the same user, not the same client.
                with ClientProcess(daemon.runtime_dir, uid=STRANGER) as again:
                    self.assertEqual(again.name_remove("a1"), 0, again.message)
                self.assertEqual(root.name_set("a5", reference=3)[0], 0, root.message)
                self.assertEqual(first.name_set("a5", reference=3)[0], -errno.EACCES)
                for i in range(NAMES - len(root.names()[0])):
                    self.assertEqual(root.name_set(f"root{i}", reference=1)[0], 0, root.message)
                self.assertEqual(len(root.names()[0]), NAMES)
                self.assertEqual(root.name_set("more", reference=1)[0], -errno.EDQUOT)
                self.assertIn(f"{NAMES} names", root.message)
                # All of them are found, however full it is.
                for name in root.names()[0]:
                    self.assertEqual(second.name_get(name)[0], 0, name)

    def test_hostile_packets_are_refused_and_change_nothing(self):
        with serving() as daemon, seated(daemon) as (seat, _):
            kind, version = ask(daemon, name_request(seat, b"good"))
            self.assertEqual((kind, version), (NAME_REPLY, 1))
            for wrong, reason in (
                (name_request(seat, generation=seat.generation + 1), "no client of this process"),
                (name_request(seat, slot=9), "no client of this process"),
                (name_request(seat, slot=60000), "no client of this process"),
                (name_request(seat, slot=0), "no client of this process"),
                (name_request(seat, instance_id=1), "has been deleted"),
                (name_request(seat, reserved=1), "unknown"),
                (name_request(seat, flags=4), "unknown"),
                (name_request(seat, kind=4), "kind 4"),
                (name_request(seat, kind=NAME_CHANNEL), "by the daemon alone"),
                (name_request(seat, value=0), "reference 0"),
                (name_request(seat, b""), "is empty"),
                (name_request(seat, b"x" * 48), "too long"),
                (name_request(seat, b"a\nb"), "character"),
                (name_request(seat, kind=NAME_OBJECTS, objects=b"x" * 64), "pool's name is refused"),
                (name_request(seat, kind=NAME_OBJECTS, objects=b".."), "pool's name is refused"),
                (name_request(seat, kind=NAME_OBJECTS, objects=b"A"), "pool's name is refused"),
                (name_request(seat, b"good", flags=COMPARE), "is bound, in version 1"),
                (name_request(seat, b"good", flags=COMPARE, version=2**64 - 1), "is bound, in version 1"),
                (name_request(seat, b"bad", kind=0), "no name"),
                (name_request(seat)[:-8], "truncated"),
            ):
                with self.subTest(reason=reason):
                    kind, message = ask(daemon, wrong)
                    self.assertEqual(kind, ATTACH_REPLY)
                    self.assertIn(reason, message)
            # Another process, which knows all numbers.
            with concurrent.futures.ProcessPoolExecutor(1) as other:
                kind, message = other.submit(ask, daemon.runtime_dir, name_request(seat, b"theirs")).result()
            self.assertEqual(kind, ATTACH_REPLY)
            self.assertIn("no client of this process", message)
            # An observer may look, no more.
            with seated(daemon, tier=OBSERVER) as (observer, region):
                kind, message = ask(daemon, name_request(observer, b"theirs"))
                self.assertEqual(kind, ATTACH_REPLY)
                self.assertIn("no client of this process", message)
                with mmap.mmap(region, 0, prot=mmap.PROT_READ) as there:
                    at = directory_at(region, b"good")
                    self.assertIn(b"good\0", there[at : at + DIRECTORY_BYTES])
            # One that asks and does not wait for the answer.
            with contextlib.closing(connect(daemon)) as connection:
                connection.send(name_request(seat, b"unheard", flags=NAME_POOL))
            wait_until("it is bound", lambda: set(names_of(daemon)) == {"good", "unheard"})
            self.assertEqual(names_of(daemon)["good"]["reference"], 1)

    def test_a_client_that_writes_over_the_names_harms_readers_of_its_pool_only_by_errors(self):
        with serving() as daemon, ClientProcess(daemon.runtime_dir) as client, seated(daemon) as (_, region):
            self.assertEqual(client.name_set("n", reference=5, flags=NAME_POOL)[0], 0)
            version = client.names()[1]
            at, size = directory_at(region, b"n"), DIRECTORY_BYTES
            with mmap.mmap(region, 0) as there:
                before = there[at:at + size]
                seen = set()
                for fill in (b"\xff", b"\x01", b"\x00", b"\x81"):
                    there[at:at + size] = fill * size
                    for error in (client.name_get("n")[0], client.call("name_list")["error"],
                                  client.name_watch(2**64 - 1, 20)[0]):
                        seen.add(error)
                        self.assertIn(error, (0, -errno.ENODATA, -errno.EUCLEAN, -errno.ETIMEDOUT))
                # Each word by itself: a name is found, or not, or the entry is refused; nobody hangs or crashes.
                for i in range(0, 128 + NAMES * HEAD_BYTES, 8):
                    there[at:at + size] = before
                    there[at + i:at + i + 8] = b"\xa5" * 8
                    self.assertIn(client.name_get("n")[0], (0, -errno.ENODATA, -errno.EUCLEAN))
                self.assertIn(-errno.EUCLEAN, seen)
                there[at:at + size] = before
                self.assertEqual(client.name_get("n")[1]["reference"], 5)
                # The daemon believes its ledger, and says that the pool is damaged.
                there[at:at + size] = b"\x81" * size
            client.close()
            wait_until("the damage is found", lambda: daemon.run_cli("status").returncode == 3)
            self.assertEqual({name: each["reference"] for name, each in names_of(daemon).items()}, {"n": 5})
            self.assertGreater(version, 0)


if __name__ == "__main__":
    main()
