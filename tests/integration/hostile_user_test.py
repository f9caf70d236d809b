#!/usr/bin/env python3
"""What a local user without any rights can do to the service: hold locks, connections and descriptors, not read, not
write, flood. Whatever it is, the daemon has to serve others meanwhile, or at the latest when it is over.

Most of it needs root, to be somebody else for the length of a test.
"""

import contextlib
import fcntl
import glob
import json
import mmap
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
import urllib.request

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.attach_wire import (  # noqa: E402
    DETACH_REQUEST,
    HEADER,
    MAGIC,
    OBSERVER,
    REPLY_BYTES,
    WIRE_VERSION,
    Reply,
    ask_to_attach,
    connect,
    request,
)
from support.daemon import PATIENCE_SECONDS, program, wait_until  # noqa: E402
from support.hostile_user import MIB, POOL, SYNTHETIC, HostileUser, needs_root  # noqa: E402
from support.limit_events import LimitEvents  # noqa: E402
from support.numacre_client import ClientProcess  # noqa: E402
from support.runner import main  # noqa: E402
from support.stranger import STRANGER  # noqa: E402

EVENTS_REQUEST = 5  # shm/attach_wire.hpp


def lock(*paths):
    kept = []
    for path in paths:
        kept.append(os.open(path, os.O_RDONLY))
        fcntl.flock(kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    return kept


def raise_descriptor_limit():
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Locks(HostileUser):
    @needs_root
    def test_a_lock_on_the_runtime_directory_keeps_no_daemon_out(self):
        self.stranger(lambda: lock(self.runtime_dir))
        self.serve()
        self.check_attach()

    @needs_root
    def test_locks_on_the_counts_of_hugepages_stop_no_resize_and_no_reaping(self):
        counts = glob.glob("/sys/devices/system/node/node*/hugepages/*/nr_hugepages")
        if not counts:
            self.skipTest("this kernel has no hugepages")
        self.stranger(lambda: lock(*counts))
        huge = ("--pool", "name=default,capacity=64M,online=2M,frame=4K,largest=2M,mode=666")
        daemon = self.serve(pool=huge, topology=())
        (pool,) = daemon.status()["pools"]
        if pool["nodes"][0]["backing"] != "hugetlb":
            self.skipTest(f"no hugepages: {pool['nodes'][0]['backing_note']}")
        client = ClientProcess(self.runtime_dir)
        self.assertEqual(client.alloc(MIB)[0], 0, client.message)
        daemon.cli("resize", "default", "4M")
        client.kill()
        wait_until("it is reaped", lambda: not daemon.clients())

    def test_of_daemons_that_race_one_wins_and_the_others_name_it(self):
        with contextlib.ExitStack() as stack:
            started = []
            for number in range(4):
                log = stack.enter_context(open(f"{self.runtime_dir}/{number}.log", "w+"))
                started.append((subprocess.Popen(
                    [program("numacred"), "--runtime-dir", self.runtime_dir, *SYNTHETIC, *POOL, "--metrics-address",
                     ""],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log), log))
            try:
                wait_until("all but one have ended", lambda: sum(one.poll() is None for one, _ in started) <= 1)
                (winner,) = [one for one, _ in started if one.poll() is None]
                for one, log in started:
                    if one is not winner:
                        self.assertEqual(one.returncode, 1)
                        log.seek(0)
                        self.assertIn(f"another numacred (pid {winner.pid}) serves {self.runtime_dir}", log.read())
                wait_until("the winner serves", lambda: subprocess.run(
                    [program("numacre"), "--runtime-dir", self.runtime_dir, "status"],
                    capture_output=True).returncode == 0)
                self.check_attach()
            finally:
                for one, _ in started:
                    if one.poll() is None:
                        one.send_signal(signal.SIGTERM)
                    one.wait(PATIENCE_SECONDS)

    def test_a_daemon_removes_no_sockets_of_the_one_that_has_replaced_it(self):
        first = self.serve()
        # As a cleaner of /tmp does: the lock file goes along, so both run.
        shutil.rmtree(self.runtime_dir)
        os.mkdir(self.runtime_dir, 0o755)
        second = self.serve()
        self.assertEqual(first.stop(), 0)
        self.check_attach()
        self.assertEqual(second.stop(), 0)
        self.assertEqual([name for name in os.listdir(self.runtime_dir) if name.endswith(".sock")], [])

    def test_a_daemon_that_starts_waits_for_one_that_is_ending(self):
        first = self.serve()
        first.process.send_signal(signal.SIGTERM)
        # At once, and each waits for seconds: on a machine on which ending takes longer, the next one.
        for attempt in range(8):
            try:
                self.serve()
                break
            except RuntimeError:
                if attempt == 7:
                    raise
        self.check_attach()
        self.assertEqual(first.wait(), 0)


class Metrics(HostileUser):
    @needs_root
    def test_bodies_that_never_end_keep_no_scrape_out(self):
        daemon = self.serve()
        host, port = daemon.metrics_address.split(":")
        huge, chunked = b"Content-Length: 100000000", b"Transfer-Encoding: chunked"

        def hold():
            kept = []
            for body in [huge] * 160 + [chunked] * 20:
                kept.append(socket.create_connection((host, int(port))))
                with contextlib.suppress(OSError):
                    kept[-1].send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + body + b"\r\n\r\n")

            def drip():
                while True:
                    for one in kept:
                        with contextlib.suppress(OSError):
                            one.send(b"1")
                    time.sleep(0.3)

            threading.Thread(target=drip, daemon=True).start()
            return kept

        self.stranger(hold)
        self.assertIn("numacre_build_info", self.scrape(daemon))
        with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as mine:
            mine.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
            answer = b"".join(iter(lambda: mine.recv(4096), b""))
        self.assertEqual(answer.split(b"\r\n")[0].split(b" ")[:2], [b"HTTP/1.1", b"413"])
        self.assertIn(b"send a GET without one", answer)

    def test_idle_and_slow_connections_keep_no_scrape_out(self):
        daemon = self.serve()
        host, port = daemon.metrics_address.split(":")

        def hold():
            kept = []
            for number in range(60):
                kept.append(socket.create_connection((host, int(port))))
                if number % 3 == 1:
                    kept[-1].send(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ")
                if number % 3 == 2:  # asks for much and reads nothing
                    kept[-1].send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50)

            def drip():
                while True:
                    for one in kept[1::3]:
                        with contextlib.suppress(OSError):
                            one.send(b"x")
                    time.sleep(0.1)

            threading.Thread(target=drip, daemon=True).start()
            return kept

        stranger = self.stranger(hold)
        self.assertIn("numacre_build_info", self.scrape(daemon))
        # All that they hold is theirs no longer, though they let go of nothing.
        mine = socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)
        self.addCleanup(mine.close)
        self.assertEqual(mine.recv(1), b"", "an idle connection is cut")
        self.assertTrue(os.path.exists(f"/proc/{stranger.pid}"))
        self.assertIn("numacre_build_info", self.scrape(daemon))


    def test_a_reader_that_takes_its_time_gets_all_of_it(self):
        daemon = self.serve()
        host, _, port = daemon.metrics_address.rpartition(":")
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            reader.settimeout(PATIENCE_SECONDS)
            reader.connect((host, int(port)))
            reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while piece := reader.recv(512):
                answer += piece
                time.sleep(0.002)
        head, _, body = answer.partition(b"\r\n\r\n")
        self.assertEqual(int(re.search(rb"(?i)content-length: (\d+)", head)[1]), len(body))


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, payload=b"", flags=0, stream=0):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


SETTINGS, PING = frame(4), frame(6, b"12345678")


class Control(HostileUser):
    def call(self, daemon):
        """A connection to the control socket, over which nothing has been said."""
        caller = socket.socket(socket.AF_UNIX)
        caller.settimeout(PATIENCE_SECONDS)
        caller.connect(f"{daemon.runtime_dir}/control.sock")
        return caller

    @unittest.skipUnless(shutil.which("prlimit"), "NOT TESTED: there is no prlimit")
    def test_after_a_shortage_of_descriptors_it_is_served_again(self):
        daemon = self.serve(prefix=("prlimit", "--nofile=256:256"))
        with contextlib.ExitStack() as stack:
            for number in range(400):
                caller = stack.enter_context(socket.socket(socket.AF_UNIX))
                caller.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    caller.connect(f"{daemon.runtime_dir}/control.sock")
                with contextlib.suppress(OSError):
                    caller.send(PREFACE + SETTINGS)
            self.check_attach()
            self.assertIn("numacre_build_info", self.scrape(daemon))
        self.assertEqual([pool["name"] for pool in daemon.status()["pools"]], ["default"])

    def test_a_flood_of_frames_whose_answers_nobody_reads_stays_small(self):
        daemon = self.serve()
        before = daemon.own_bytes()
        for flood in (PING, SETTINGS, frame(1, b"\x82", flags=5, stream=1)):
            with contextlib.ExitStack() as stack:
                for _ in range(4):
                    caller = stack.enter_context(self.call(daemon))
                    caller.setblocking(False)
                    sent = PREFACE + SETTINGS + flood * (4 * MIB // len(flood))
                    # Until it is cut off, or nothing more is taken.
                    with contextlib.suppress(OSError):
                        while sent:
                            sent = sent[caller.send(sent):]
                daemon.status()
                grown = daemon.own_bytes() - before
                print(f"frames of type {flood[3]}: {grown / MIB:.1f} MiB more")
                self.assertLess(grown, 64 * MIB)

    def test_who_does_not_speak_http_2_is_cut_off(self):
        daemon = self.serve()
        with self.call(daemon) as caller:
            caller.send(b"GET / HTTP/1.1\r\n\r\n")
            # The server's own settings may have come before; then the end. Silence would be a time-out error here.
            with contextlib.suppress(ConnectionResetError):
                while caller.recv(1000):
                    pass
        daemon.status()

    WATCHERS_MAX = 16  # daemon/src/control/control_service.hpp

    def watch(self, daemon, wanted):
        """Calls WatchEvents over one connection until `wanted` are served, or one is refused: the connection, and how
        many are served."""
        path = b"/numacre.v1.Control/WatchEvents"
        fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x"),
                  (b"content-type", b"application/grpc"), (b"te", b"trailers"))
        headers = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields)
        data, settings, acknowledges, ends_stream, ends_headers = 0, 4, 1, 1, 4
        caller = self.call(daemon)
        caller.sendall(PREFACE + SETTINGS)
        answer = caller.makefile("rb")

        def next_frame(wanted_kind, stream):
            while True:
                head = answer.read(9)
                answer.read(int.from_bytes(head[:3], "big"))
                if (head[3], int.from_bytes(head[5:], "big")) == (wanted_kind, stream):
                    return head[4]

        next_frame(settings, 0)
        caller.sendall(frame(settings, flags=acknowledges))
        for served in range(wanted):
            stream = 2 * served + 1
            caller.sendall(frame(1, headers, ends_headers, stream) + frame(data, bytes(5), ends_stream, stream))
            if next_frame(1, stream) & ends_stream:  # trailers and nothing else: an error
                return caller, served
        return caller, wanted

    @needs_root
    def test_a_user_who_has_all_watchers_keeps_root_from_no_call(self):
        daemon = self.serve("--control-mode", "0666")

        def take_all():
            caller, served = self.watch(daemon, self.WATCHERS_MAX + 1)
            assert served == self.WATCHERS_MAX, served
            return caller

        self.stranger(take_all)
        caller, served = self.watch(daemon, 1)
        self.addCleanup(caller.close)
        self.assertEqual(served, 1, "root cannot watch")
        self.assertEqual([pool["name"] for pool in daemon.status()["pools"]], ["default"])

    def test_watchers_that_do_not_read_hold_nobody_up(self):
        daemon = self.serve()
        watchers = [LimitEvents(self.runtime_dir) for _ in range(4)]
        for watcher in watchers:
            self.addCleanup(watcher.close)
            self.addCleanup(watcher._process.send_signal, signal.SIGCONT)
            watcher._process.send_signal(signal.SIGSTOP)
        for _ in range(20):
            self.check_attach()
        self.assertEqual(len(daemon.status()["pools"]), 1)
        self.assertEqual(daemon.stop(), 0)


class Attach(HostileUser):
    @needs_root
    def test_four_users_with_all_silent_connections_keep_nobody_out(self):
        daemon = self.serve()

        def hold():
            raise_descriptor_limit()
            return [connect(daemon) for _ in range(64)]

        for uid in range(STRANGER - 4, STRANGER):
            self.stranger(hold, uid)
        for uid in (STRANGER, 4711, None):
            self.check_attach(uid)
        daemon.says("had to make room for another.*attach right after connecting")

    SILENT_MAX = 256  # daemon/src/attach/attach_server.hpp

    @needs_root
    def test_who_has_spoken_but_was_not_heard_yet_gives_way_to_no_silent_connection(self):
        raise_descriptor_limit()
        daemon = self.serve()

        def connect_as(uid):
            os.seteuid(uid)
            try:
                return self.enterContext(contextlib.closing(connect(daemon)))
            finally:
                os.seteuid(0)

        # All come while the daemon stands still: it accepts all of them before it reads what the first has said. Of so
        # many users with one connection each the oldest has to give way.
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            honest = connect_as(STRANGER)
            honest.send(request())
            for number in range(self.SILENT_MAX + 20):
                connect_as(20000 + number)
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        data, fds, _, _ = socket.recv_fds(honest, REPLY_BYTES, 64)
        for fd in fds:
            os.close(fd)
        reply = Reply(data)
        self.assertEqual(reply.error, 0, reply.message)
        daemon.says("had to make room for another")

    @needs_root
    def test_all_connections_in_use_leave_some_for_root(self):
        daemon = self.serve("--max-connections", 64, "--max-connections-per-user", 64)

        def hold():
            kept = []
            while True:
                one = connect(daemon)
                error, said = ask_to_attach(one)
                if error != 0:
                    assert "raise --max-connections" in said and len(kept) == 60, f"after {len(kept)}: {said}"
                    return kept
                kept.append(one)

        self.stranger(hold)
        self.check_attach()

    @needs_root
    def test_replies_that_nobody_reads_keep_no_other_user_out(self):
        # The kernel counts descriptors on their way against the open file limit of who sends them, without these
        # rights.
        daemon = self.serve(
            topology=("--topology", "synthetic:4x128M"),
            prefix=("prlimit", "--nofile=512:512", "setpriv", "--bounding-set", "-sys_resource,-sys_admin"),
        )

        def hold():
            kept = []
            for _ in range(12):
                one = connect(daemon)
                one.send(request())
                kept.append(one)
            return kept

        for uid in range(STRANGER - 6, STRANGER):
            self.stranger(hold, uid)
        for uid in (STRANGER, 4711, None):
            self.check_attach(uid)

    @needs_root
    def test_processes_that_ended_while_the_daemon_was_busy_take_no_seat(self):
        daemon = self.serve(pool=(POOL[0], f"{POOL[1]},max-clients=4"))
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            for _ in range(40):
                with contextlib.closing(connect(daemon)) as connection:
                    connection.send(request())
            honest = self.enterContext(contextlib.closing(connect(daemon)))
            honest.send(request())
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        data, fds, _, _ = socket.recv_fds(honest, REPLY_BYTES, 8)
        for fd in fds:
            os.close(fd)
        self.assertEqual(Reply(data).error, 0, Reply(data).message)

    def test_an_observer_is_evicted_like_any_client(self):
        daemon = self.serve()

        def observe():
            observer = connect(daemon)
            observer.send(request(tier=OBSERVER))
            data, fds, _, _ = socket.recv_fds(observer, REPLY_BYTES, 64)
            assert Reply(data).error == 0
            return observer, fds

        stranger = self.stranger(observe)
        ended = os.pidfd_open(stranger.pid)
        self.addCleanup(os.close, ended)
        (client,) = daemon.clients()
        daemon.cli("evict", client["client_id"], "--grace", "1s")
        wait_until("its process has ended", lambda: select.select([ended], [], [], 0)[0])

    @needs_root
    def test_a_reply_that_was_never_read_counts_after_a_detach(self):
        most = 8
        daemon = self.serve("--max-connections-per-user", most)

        def hold():
            kept = []
            for _ in range(most):
                one = connect(daemon)
                one.send(request())
                one.send(HEADER.pack(MAGIC, WIRE_VERSION, DETACH_REQUEST, HEADER.size, 0))
                kept.append(one)
            return kept

        stranger = self.stranger(hold)
        wait_until("all have detached", lambda: daemon.log().count("client detached") == most)
        with self.assertRaisesRegex(RuntimeError, f"has its {most} connections"):
            self.check_attach(STRANGER)
        self.check_attach(4711)
        stranger.end()

        def comes_in():
            with contextlib.suppress(RuntimeError):
                self.check_attach(STRANGER)
                return True

        wait_until("the user may come again", comes_in)

    def answers_unread(self, daemon, clients):
        """Of so many clients of a stranger, who asks for events, does not read the answers and says no more."""

        def hold():
            kept = []
            for _ in range(clients):
                one = connect(daemon)
                one.send(request())
                data, fds, _, _ = socket.recv_fds(one, REPLY_BYTES, 64)
                if Reply(data).error != 0:
                    assert "that it does not read" in Reply(data).message, Reply(data).message
                    break  # it is in its own way, which is as it should be
                for fd in fds:
                    os.close(fd)
                one.send(HEADER.pack(MAGIC, WIRE_VERSION, EVENTS_REQUEST, HEADER.size, 0))
                one.shutdown(socket.SHUT_WR)
                kept.append(one)
            return kept

        return hold

    @needs_root
    def test_answers_about_events_that_nobody_reads_keep_no_other_user_out(self):
        daemon = self.serve("--max-connections-per-user", 600)
        self.stranger(self.answers_unread(daemon, 230), STRANGER)
        for uid in (4711, None):
            self.check_attach(uid)

    @needs_root
    def test_clients_that_are_lost_with_something_unread_count_once(self):
        daemon = self.serve("--max-connections", 64, "--max-connections-per-user", 20)
        for uid in range(STRANGER - 3, STRANGER):
            self.stranger(self.answers_unread(daemon, 10), uid)
        self.check_attach()

    def test_an_observer_that_keeps_descriptors_keeps_no_pages_of_a_deleted_pool(self):
        daemon = self.serve()
        with connect(daemon) as one:
            one.send(request(tier=OBSERVER))
            data, fds, _, _ = socket.recv_fds(one, REPLY_BYTES, 64)
            self.assertEqual(Reply(data).error, 0)
        frames = [self.enterContext(os.fdopen(fd)).fileno() for fd in fds][2]
        self.assertEqual(os.fstat(frames).st_blocks * 512, 16 * MIB)
        wait_until("the observer has gone", lambda: not daemon.clients())
        daemon.cli("delete", "default")
        wait_until("its pages have gone back", lambda: os.fstat(frames).st_blocks == 0)

    def test_an_observer_keeps_no_pages_of_a_deleted_pool_whose_blocks_were_to_be_zeroed(self):
        zeroed = "name=zeroed,capacity=512M,online=512M,frame=4K,largest=4M,backing=small,reclaim=zero,mode=666"
        daemon = self.serve("--pool", zeroed, topology=("--topology", "synthetic:1x1G"))
        with connect(daemon) as one:
            one.send(request(pool=b"zeroed", tier=OBSERVER))
            data, fds, _, _ = socket.recv_fds(one, REPLY_BYTES, 64)
            self.assertEqual(Reply(data).error, 0)
        frames = [self.enterContext(os.fdopen(fd)).fileno() for fd in fds][2]
        client = ClientProcess(self.runtime_dir, pool="zeroed")
        self.assertEqual(client.alloc(64 << 10, count=7000)[0], 0, client.message)
        client.kill()
        daemon.cli("delete", "zeroed", "--force")
        wait_until("its pages have gone back", lambda: os.fstat(frames).st_blocks == 0)
        time.sleep(0.5)
        self.assertEqual(os.fstat(frames).st_blocks, 0, "the worker has zeroed on")

    @needs_root
    def test_hugepages_that_an_observer_reserves_by_mapping_are_not_counted_as_free(self):
        counts = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
        if not counts.exists():
            self.skipTest("this kernel has no hugepages of 2 MiB")

        def count(name):
            return int((counts / name).read_text())

        free = count("free_hugepages") - count("resv_hugepages")
        if free < 16:
            self.skipTest(f"only {free} hugepages are free")
        pools = [("--pool", f"name={name},capacity={2 * MIB * (free + 64)},online=2M,frame=4K,largest=2M,mode=664")
                 for name in ("default", "x")]
        daemon = self.serve(*pools[1], pool=pools[0], topology=())
        (node,) = daemon.status()["pools"][0]["nodes"]
        if node["backing"] != "hugetlb":
            self.skipTest(f"no hugepages: {node['backing_note']}")
        # All but ten.
        reserved = count("resv_hugepages")
        pages = count("free_hugepages") - reserved - 10

        def reserve():
            with connect(daemon) as one:
                one.send(request(tier=OBSERVER))
                data, fds, _, _ = socket.recv_fds(one, REPLY_BYTES, 64)
                assert Reply(data).error == 0
            for number in range(1, 1 + pages):
                mmap.mmap(fds[2], 2 * MIB, mmap.MAP_SHARED, mmap.PROT_READ, offset=2 * MIB * number).close()
            return fds

        self.stranger(reserve)
        # The kernel keeps them for the file, mapped or not. The growth of another pool has to do without.
        self.assertEqual(count("resv_hugepages"), reserved + pages)
        daemon.cli("resize", "x", "62M")
        daemon.cli("resize", "default", f"{2 + 2 * pages}M")
        self.assertEqual(count("resv_hugepages"), reserved)

    @needs_root
    def test_a_flood_of_refusals_gets_few_lines_and_all_are_counted(self):
        daemon = self.serve()
        refused = 500

        def flood():
            for number in range(refused):
                with connect(daemon) as one:
                    one.send(request(pool=b"no-such-pool"))
                    assert Reply(one.recv(REPLY_BYTES)).error != 0

        begun = time.monotonic()
        self.stranger(flood)
        seconds = time.monotonic() - begun
        with urllib.request.urlopen(f"http://{daemon.metrics_address}/metrics", timeout=PATIENCE_SECONDS) as answer:
            self.assertIn(f'numacre_attaches_total{{result="refused"}} {refused}\n', answer.read().decode())
        daemon.says("attach refused")
        lines = [line for line in daemon.log().splitlines() if "attach refused" in line]
        self.assertLessEqual(len(lines), 10 + seconds + 1)

    @needs_root
    def test_a_flood_of_clients_that_come_and_go_gets_few_lines_and_all_are_counted(self):
        daemon = self.serve()
        came = 500

        def come_and_go():
            served = 0
            while served < came:
                with connect(daemon) as one:
                    one.send(request(tier=OBSERVER))
                    data, fds, _, _ = socket.recv_fds(one, REPLY_BYTES, 64)
                    # The answer finds nobody.
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        one.send(HEADER.pack(MAGIC, WIRE_VERSION, EVENTS_REQUEST, HEADER.size, 0))
                for fd in fds:
                    os.close(fd)
                if Reply(data).error == 0:
                    served += 1
                else:
                    time.sleep(0.01)  # those before have not gone yet: all seats for observers are taken

        begun = time.monotonic()
        self.stranger(come_and_go)
        self.check_attach(4711)
        wait_until("all have gone", lambda: not daemon.clients())
        daemon.says("client attached .* uid=4711 ")  # whatever the other one does
        time.sleep(2)  # until the next one has a line, with the count
        self.check_attach(STRANGER)
        wait_until("it has gone", lambda: not daemon.clients())
        for line, count in (("client attached", "attached before without a line"),
                            ("client (?:detached|reaped)", "went before without a line")):
            told = len(re.findall(f"{line} ", daemon.log()))
            self.assertLessEqual(told, 50 + (time.monotonic() - begun) + 2)
            daemon.says(f"{count} uid={STRANGER}")
            left_out = sum(map(int, re.findall(rf"{count} uid={STRANGER} clients=(\d+)", daemon.log())))
            self.assertEqual(told + left_out, came + 2, "each is a line, or counted in one")
        self.assertIn(f'numacre_attaches_total{{result="ok"}} {came + 2}\n', self.scrape(daemon))
        self.assertLessEqual(daemon.log().count("descriptor for"), 10 + (time.monotonic() - begun) + 2)


class Log(HostileUser):
    """Standard error is a pipe that nobody reads, and full from the start."""

    def setUp(self):
        super().setUp()
        self.reader, writer = os.pipe()
        self.addCleanup(lambda: self.reader is None or os.close(self.reader))
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"." * 4096)
        os.set_blocking(writer, True)
        self.process = subprocess.Popen(
            [program("numacred"), "--runtime-dir", self.runtime_dir, *SYNTHETIC, *POOL, "--metrics-address",
             "127.0.0.1:0",
             "--log-level", "debug"],  # without which a user's lines are bounded
            stdin=subprocess.DEVNULL, stdout=writer, stderr=writer)
        self.addCleanup(self.end)
        os.close(writer)
        wait_until("numacred serves", lambda: self.cli("status").returncode == 0)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def cli(self, *arguments):
        return subprocess.run([program("numacre"), "--runtime-dir", self.runtime_dir, *arguments],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_SECONDS)

    def drops(self):
        address = json.loads(self.cli("status", "--json").stdout)["daemon"]["metrics_address"]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_SECONDS) as answer:
            return float(re.search(r"^numacre_log_messages_dropped_total (\S+)", answer.read().decode(), re.M).group(1))

    def test_it_serves_and_ends_though_nobody_reads_its_log(self):
        self.check_attach()
        self.assertEqual(self.cli("pools").returncode, 0)
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.process.wait(PATIENCE_SECONDS), 0)

    def test_what_does_not_fit_is_dropped_counted_and_said(self):
        def make_lines():
            for _ in range(500):
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
                    one.connect(f"{self.runtime_dir}/attach.sock")
                    one.send(request())
                    for fd in socket.recv_fds(one, REPLY_BYTES, 64)[1]:
                        os.close(fd)
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        one.send(HEADER.pack(MAGIC, WIRE_VERSION, DETACH_REQUEST, HEADER.size, 0))
                        one.recv(REPLY_BYTES)
            return self.drops() > 0

        wait_until("lines are dropped", make_lines)
        self.check_attach()
        text = b""
        while b"messages dropped" not in text:
            text = text[-100:] + os.read(self.reader, 65536)
        self.assertRegex(text, rb"messages dropped.* messages=\d+")
        os.close(self.reader)  # and now nobody can read it any more
        self.reader = None
        self.check_attach()
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.process.wait(PATIENCE_SECONDS), 0)


class Create(HostileUser):
    def test_pools_leave_descriptors_for_all_who_may_connect(self):
        daemon = self.serve("--max-connections-per-user", 4096, prefix=("prlimit", "--nofile=512:512"))
        for number in range(512):
            made = daemon.run_cli("create", f"p{number}", "--capacity", "4M", "--online", "4M", "--backing", "small")
            if made.returncode != 0:
                break
        self.assertIn("open file limit has room for", made.stderr)
        with contextlib.ExitStack() as stack:
            while True:
                one = stack.enter_context(connect(daemon))
                error, said = ask_to_attach(one)
                if error != 0:
                    break
            self.assertIn("raise --max-connections", said)
            self.assertTrue(daemon.cli("pools")["pools"], "the control service answers")

    def test_a_pool_whose_metadata_the_machine_cannot_hold_is_refused_with_the_numbers(self):
        daemon = self.serve(topology=())
        text = pathlib.Path("/proc/meminfo").read_text()
        available = int(re.search(r"MemAvailable:\s+(\d+)", text).group(1)) << 10
        capacity = 1 << (16 * available).bit_length()  # an eighth of it and more is metadata
        done = daemon.run_cli("create", "vast", "--capacity", capacity, "--online", "4M", "--frame", "64",
                              "--backing", "small")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"the metadata of a capacity of .* takes \d+M, and .* has \d+M of memory left")
        self.assertIn("use larger frames, or less capacity", done.stderr)
        # Large frames make the same capacity cheap, and what is not online takes nothing.
        daemon.cli("create", "vast", "--capacity", capacity, "--online", "64M", "--frame", "64K", "--largest",
                   "64M", "--backing", "small")
        (pool,) = [each for each in daemon.status()["pools"] if each["name"] == "vast"]
        self.assertLess(pool["nodes"][0]["metadata_resident_bytes"], 64 * MIB)


    @unittest.skipUnless(shutil.which("prlimit"), "NOT TESTED: there is no prlimit")
    def test_a_pool_larger_than_a_file_may_be_is_refused_and_the_daemon_lives(self):
        limited = ("prlimit", f"--fsize={80 * MIB}")
        daemon = self.serve(prefix=limited)
        done = daemon.run_cli("create", "vast", "--capacity", "128M", "--online", "4M", "--backing", "small")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, "128M.*File too large")
        self.assertEqual([pool["name"] for pool in daemon.status()["pools"]], ["default"])
        self.check_attach()
        self.assertEqual(daemon.stop(), 0)
        # And at the start.
        started = subprocess.run(
            [*limited, program("numacred"), "--runtime-dir", self.runtime_dir, *SYNTHETIC, "--metrics-address", "",
             "--pool", "name=vast,capacity=128M,online=4M,backing=small"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        self.assertEqual(started.returncode, 1, started.stderr)
        self.assertRegex(started.stdout + started.stderr, "vast.*File too large")


if __name__ == "__main__":
    main()
