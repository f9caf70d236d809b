#!/usr/bin/env python3
"""Channels (numacre_channel_open) between real processes: what they are told, and what survives kills of everybody.

NUMACRE_CHANNEL_SEED and NUMACRE_CHANNEL_KILLS in the environment: another sequence of kills, or a longer one.
"""

import contextlib
import mmap
import os
import pathlib
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.attach_wire import (  # noqa: E402
    ATTACH_REPLY, HEADER, LAYOUT_VERSION, MAGIC, REPLY_BYTES, WIRE_VERSION, Reply, connect
)
from support.channels import (  # noqa: E402
    EXISTING, RECEIVES, SENDS, STAYS, Client, channel_of, channels, opened, refusal, series, serving
)
from support.daemon import wait_until  # noqa: E402
from support.runner import SKIPPED, main  # noqa: E402

CHANNEL_REQUEST, BELL_REQUEST, BELL_REPLY = 10, 14, 15
REQUEST = struct.Struct("=IHHIIIHHQQII48sIIII")
BELL = struct.Struct("=IHHIIIHHQQQ48s")
SEED = int(os.environ.get("NUMACRE_CHANNEL_SEED") or 1)
KILLS = int(os.environ.get("NUMACRE_CHANNEL_KILLS") or 60)


class Record:
    """What has been sent and received, in a file that all processes map."""

    def __init__(self, messages):
        self.file = tempfile.NamedTemporaryFile(prefix="numacre-channel-")
        self.file.truncate(2 * messages)
        self.memory = mmap.mmap(self.file.fileno(), 2 * messages)
        self.path = self.file.name

    def sent(self, number):
        return self.memory[2 * number] != 0

    def received(self, number):
        return self.memory[2 * number + 1]

    def first_missing(self):
        """The first message that nobody has received. (Of one sender.)"""
        return self.memory[1::2].index(0)

    def check(self, test, at_most_lost):
        """No message twice, and few that were sent and not received. Returns how many were sent, and how many lost."""
        pairs = self.memory[:]
        sent, received = pairs[0::2], pairs[1::2]
        test.assertEqual([number for number, times in enumerate(received) if times > 1][:20], [])
        lost = sum(1 for was_sent, times in zip(sent, received) if was_sent and not times)
        test.assertLessEqual(lost, at_most_lost)
        return sum(sent), lost

    def close(self):
        self.memory.close()
        self.file.close()


A_SENDER = 4_000_000  # the numbers of one sender's messages


def kill_at_random(daemon, record, end, send, receive, burst, goes_on=None):
    """Kills two senders and two receivers at random moments, and starts others in their places: the ways of
    channel_client. At last each sender goes on, if goes_on(a number of its messages) is given; end() ends the stream.
    Returns how many of the killed were receivers."""
    dice = random.Random(SEED)
    next_of = {"first sender": 0, "second sender": A_SENDER}
    end_of = {"first sender": A_SENDER, "second sender": 2 * A_SENDER}

    def start(name):
        if name not in next_of:
            return Client(daemon, dice.choice(receive), record.path, dice.choice((1, 3, 64)))
        return Client(daemon, send, record.path, next_of[name], end_of[name] - next_of[name],
                      dice.choice((1, 2, burst)))

    parties = {name: start(name) for name in (*next_of, "first receiver", "second receiver")}
    receivers_killed = 0
    try:
        for _ in range(KILLS):
            time.sleep(dice.uniform(0.001, 0.03))
            name = dice.choice(list(parties))
            parties[name].kill()
            if name in next_of:
                # The numbers of the burst in hand are not used again.
                number = next_of[name]
                while number < end_of[name] and (record.sent(number) or record.received(number)):
                    number += 1
                next_of[name] = min(number + burst, end_of[name])
            else:
                receivers_killed += 1
            parties[name] = start(name)
        for name, number in next_of.items():
            if goes_on and number + 100 < end_of[name]:
                wait_until(f"{name} goes on", lambda: goes_on(number))
        for name in next_of:
            parties[name].kill()
        end()
        for name in ("first receiver", "second receiver"):
            parties[name].finish()
    finally:
        for party in parties.values():
            party.kill()
    return receivers_killed


class Opening(unittest.TestCase):
    def test_sizes_and_names(self):
        with serving() as daemon:
            first, error, _ = opened(daemon, capacity=100, burst=8)
            with first:
                self.assertEqual(error, 0)
                self.assertEqual(first.line(), "100 8 16 waiting 0")
                again, error, _ = opened(daemon)
                with again:
                    self.assertEqual((error, again.line()), (0, "100 8 16 waiting 0"))
                error, sentence = refusal(daemon, 0, 200)
                self.assertEqual(error, -17)
                self.assertIn("capacity 100, burst 8, parties 16", sentence)
                self.assertEqual(refusal(daemon, EXISTING, channel="others")[0], -2)
                self.assertEqual(refusal(daemon, channel="No")[0], -22)
                self.assertEqual(refusal(daemon, channel="a" * 48)[0], -22)
                self.assertEqual(refusal(daemon, 0, 4097)[0], -22)
                error, sentence = refusal(daemon, 0, 1, 2, channel="small")
                self.assertEqual(error, -22)
                self.assertIn("no room for a burst of 2", sentence)
                self.assertEqual(refusal(daemon, 64)[0], -22)
                self.assertEqual(channels(daemon), {"frames": 0})

    def test_a_channel_goes_with_the_last_that_has_it_open(self):
        with serving() as daemon:
            first, _, _ = opened(daemon)
            second, _, _ = opened(daemon)
            first.kill()
            time.sleep(0.2)
            self.assertEqual(channels(daemon), {"frames": 0})
            second.finish("close\n")
            wait_until("the channel has gone", lambda: not channels(daemon))

    def test_a_channel_that_stays_is_removed(self):
        with serving() as daemon:
            first, _, _ = opened(daemon, STAYS)
            first.finish("close\n")
            time.sleep(0.2)
            self.assertEqual(channels(daemon), {"frames": 0})
            last, error, _ = opened(daemon, EXISTING)
            self.assertEqual(error, 0)
            self.assertTrue(last.finish("remove\n").endswith("0\n"))
            wait_until("the channel has gone", lambda: not channels(daemon))

    def test_there_is_no_place_for_more_than_sixteen(self):
        with serving() as daemon, contextlib.ExitStack() as stack:
            for number in range(16):
                client, error, sentence = opened(daemon, 0, 16, 1, channel=f"c{number}")
                stack.enter_context(client)
                self.assertEqual(error, 0, sentence)
            error, sentence = refusal(daemon, 0, 16, 1, channel="c16")
            self.assertEqual(error, -87)
            self.assertIn("16 channels", sentence)

    def test_large_channels_have_no_place_beside_each_other(self):
        with serving() as daemon:
            first, error, _ = opened(daemon, 0, 4096, 64, channel="first")
            with first:
                self.assertEqual(error, 0)
                error, sentence = refusal(daemon, 0, 4096, 64, channel="second")
                self.assertEqual(error, -87)
                self.assertIn("ask for a smaller one", sentence)

    def test_hostile_requests(self):
        def packet(**changes):
            fields = {"layout": LAYOUT_VERSION, "slot": 1, "generation": 1, "instance": 1, "wish": 0, "flags": 0,
                      "name": b"frames", "capacity": 0, "burst": 0, "parties": 0, "kind": 0} | changes
            return REQUEST.pack(MAGIC, WIRE_VERSION, CHANNEL_REQUEST, REQUEST.size, 0, fields["layout"],
                                fields["slot"], 0, fields["generation"], fields["instance"], fields["wish"],
                                fields["flags"], fields["name"], fields["capacity"], fields["burst"],
                                fields["parties"], fields["kind"])

        with serving() as daemon:
            for changes, wanted in (
                ({}, "deleted"), ({"layout": 1}, "layout version"), ({"wish": 7}, "wish 7"),
                ({"flags": 64}, "flags 64"),
                ({"name": b"x" * 48}, "name is refused"), ({"name": b""}, "name is refused"),
                ({"name": b"\xff\x01"}, "name is refused"), ({"capacity": 1 << 31}, "use at most"),
                ({"burst": 65}, "use at most"), ({"parties": 65}, "use at most"),
                ({"kind": 2}, "kind 2"), ({"kind": 0xffffffff}, "0 is a queue, 1 a broadcast channel"),
            ):
                with contextlib.closing(connect(daemon)) as connection:
                    connection.send(packet(**changes))
                    data = connection.recv(REPLY_BYTES)
                    self.assertEqual(HEADER.unpack_from(data)[2], ATTACH_REPLY)
                    self.assertIn(wanted, Reply(data).message)
            # Somebody else's seat: the instance is in the pool's region, so any process may know it.
            first, _, _ = opened(daemon)
            with first:
                (client,) = [each for each in daemon.clients() if each["state"] != "channel"]
                region = os.open(daemon.region("default:pool"), os.O_RDONLY)
                instance = struct.unpack_from("=Q", os.pread(region, 32, 0), 24)[0]
                os.close(region)
                with contextlib.closing(connect(daemon)) as connection:
                    connection.send(packet(instance=instance, slot=1, generation=1))
                    self.assertIn("no client of this process", Reply(connection.recv(REPLY_BYTES)).message)
                self.assertTrue(client["client_id"])


class Watching(unittest.TestCase):
    def test_how_full_it_is_and_who_sends_and_receives(self):
        with serving() as daemon, contextlib.closing(Record(200)) as record:
            self.assertEqual(daemon.cli("channels")["channels"], [])
            first, _, _ = opened(daemon, SENDS | STAYS, 100, 8)
            with first, Client(daemon, "open", RECEIVES) as second:
                second.line()
                Client(daemon, "send", record.path, 0, 100, 8).finish()
                now = channel_of(daemon)
                self.assertEqual((now["waiting_messages"], now["returned_messages"]), (100, 0))
                self.assertEqual((now["capacity_messages"], now["burst_messages"]), (100, 8))
                self.assertEqual(now["waiting_bytes"], 100 * 4096)
                self.assertEqual((now["sent_messages"], now["received_messages"]), (100, 0))
                self.assertEqual((now["state"], now["stays"], now["uid"]), ("open", "always", os.getuid()))
                self.assertIsNotNone(now["oldest_seconds"])
                self.assertEqual((now["senders"], now["receivers"]), (1, 1))
                parties = {each["pid"]: (each["opened"], each["senders"], each["receivers"]) for each in now["clients"]}
                self.assertEqual(parties, {first.process.pid: (1, 1, 0), second.process.pid: (1, 0, 1)})
                wait_until("its oldest message has become older", lambda: channel_of(daemon)["oldest_seconds"] > 0)
                found = series(daemon)
                self.assertGreater(found.pop("oldest_seconds"), 0)
                self.assertEqual(found, {"waiting_messages": 100, "capacity_messages": 100, "parties sender": 1,
                                         "parties receiver": 1, "sent_total": 100, "received_total": 0,
                                         "redelivered_total": 0, "dropped_total": 0})
                # The party slots pass to others, and the totals stay.
                second.finish("\n")
                with opened(daemon)[0] as ender:
                    ender.finish("end\n")
                self.assertEqual(channel_of(daemon)["state"], "ended")
                Client(daemon, "receive", record.path, 7).finish()
                after = channel_of(daemon)
                self.assertEqual((after["sent_messages"], after["received_messages"]), (100, 100))
                self.assertEqual((after["waiting_messages"], after["oldest_seconds"]), (0, None))

    def test_one_that_is_closed_and_opened_again_is_whole(self):
        with serving() as daemon:
            Client(daemon, "reopen", 60).finish()
            wait_until("the last one has gone", lambda: not channels(daemon))

    def operator_removes_one_that_others_have_open(self, way):
        with serving() as daemon, contextlib.closing(Record(5)) as record:
            receiver = Client(daemon, way, record.path, 7)
            with receiver:
                receiver.line()
                removed = daemon.cli("channels", "default", "--remove", "frames")
                self.assertEqual((removed["opened_by"], removed["removed"]), (1, False))
                Client(daemon, "send", record.path, 0, 5, 5).finish()
                wait_until("it goes on", lambda: channel_of(daemon)["received_messages"] == 5)
                self.assertEqual(channel_of(daemon)["stays"], "removed")
                # A receiver that waits is woken, is told of the end, and closes it.
                removed = daemon.cli("channels", "default", "--remove", "frames", "--force")
                self.assertEqual((removed["opened_by"], removed["ended"]), (1, True))
                self.assertEqual(receiver.finish().splitlines()[-1], "received 5")
            wait_until("the channel has gone", lambda: not channels(daemon))
            self.assertEqual(daemon.cli("channels")["channels"], [])

    def test_an_operator_removes_one_that_others_have_open(self):
        for way in ("receive", "receive-epoll"):
            with self.subTest(way=way):
                self.operator_removes_one_that_others_have_open(way)

    def test_a_channel_that_nobody_has_open_goes_with_what_is_in_it(self):
        with serving() as daemon, contextlib.closing(Record(50)) as record:
            Client(daemon, "send", record.path, 0, 50, 10).finish()
            wait_until("its sender has gone", lambda: not channel_of(daemon)["clients"])
            self.assertEqual(channel_of(daemon)["waiting_messages"], 50)
            removed = daemon.cli("channels", "default", "--remove", "frames")
            self.assertEqual((removed["opened_by"], removed["removed"]), (0, True))
            wait_until("nothing is left", lambda: daemon.used_bytes() == 0 and not channels(daemon))


class Streams(unittest.TestCase):
    def test_all_messages_arrive_in_order_and_the_end_behind_them(self):
        with serving() as daemon, contextlib.closing(Record(5000)) as record:
            receiver = Client(daemon, "receive", record.path, 7)
            with receiver:
                self.assertEqual(receiver.line(), "open")
                Client(daemon, "send", record.path, 0, 5000, 5).finish()
                ender, _, _ = opened(daemon)
                ender.finish("end\n")
                self.assertEqual(receiver.finish().strip(), "received 5000")
            self.assertTrue(all(record.sent(each) and record.received(each) == 1 for each in range(5000)))
            wait_until("nothing is left", lambda: daemon.used_bytes() == 0 and not channels(daemon))

    def test_the_giver_s_death_loses_nothing(self):
        with serving() as daemon, contextlib.closing(Record(100)) as record:
            sender = Client(daemon, "send", record.path, 0, 100, 10)
            sender.finish()  # and nobody has the channel open
            self.assertEqual(channels(daemon), {"frames": 100})
            ender, _, _ = opened(daemon)
            ender.finish("end\n")
            self.assertIn("received 100", Client(daemon, "receive", record.path, 64).finish())
            wait_until("nothing is left", lambda: daemon.used_bytes() == 0 and not channels(daemon))

    def test_the_daemon_dies_and_comes_back_under_a_stream(self):
        messages = 3_000_000
        with tempfile.TemporaryDirectory() as folder, contextlib.closing(Record(messages)) as record:
            first = serving(runtime_dir=folder)
            with Client(first, "receive", record.path, 16) as receiver, \
                    Client(first, "send", record.path, 0, messages, 1) as sender:
                self.assertEqual((receiver.line(), sender.line()), ("open", "open"))
                wait_until("messages arrive", lambda: record.received(100))
                first.kill()
                first.wait()
                number = record.first_missing()
                self.assertLess(number, messages - 1000)
                wait_until("messages arrive without a daemon", lambda: record.received(number + 500))
                with serving(runtime_dir=folder) as second:
                    self.assertEqual(list(channels(second)), ["frames"])
                    sender.kill()
                    with opened(second)[0] as ender:
                        ender.finish("end\n")
                    receiver.finish()
                    record.check(self, at_most_lost=0)
                    wait_until("nothing is left", lambda: second.used_bytes() == 0 and not channels(second))

    def test_kills_of_senders_and_receivers(self):
        """No message is received twice, and none that was sent is lost but what a receiver had when it died."""
        with serving() as daemon, contextlib.closing(Record(2 * A_SENDER)) as record:
            def end():
                with opened(daemon)[0] as ender:
                    ender.finish("end\n")

            receivers_killed = kill_at_random(daemon, record, end, send="send", receive=("receive",), burst=8)
            sent, lost = record.check(self, at_most_lost=64 * receivers_killed)
            print(f"seed {SEED}: {KILLS} kills, {receivers_killed} of them of receivers; {sent} messages sent, {lost} "
                  "were in the hands of a receiver that died")
            wait_until("nothing is left", lambda: daemon.used_bytes() == 0 and not channels(daemon))


WAYS = ("receive-epoll", "receive-uring")


class Over(unittest.TestCase):
    """numacre_send_over: what has no room any more is free, and counted."""

    def test_each_message_is_received_once_or_dropped_and_counted(self):
        messages = 20_000
        with serving() as daemon, contextlib.closing(Record(messages)) as record, \
                opened(daemon, capacity=16, burst=4)[0] as ender:
            Client(daemon, "send-over", record.path, 0, messages // 2, 4).finish()
            self.assertEqual(channel_of(daemon)["dropped_messages"], messages // 2 - 16)
            receiver = Client(daemon, "receive", record.path, 3)
            receiver.line()
            out = Client(daemon, "send-over", record.path, messages // 2, messages // 2, 3).finish()
            dropped = int(out.split()[-1]) + messages // 2 - 16
            ender.finish("end\n")
            received = int(receiver.finish().split()[-1])
            self.assertEqual(received + dropped, messages)
            record.check(self, at_most_lost=dropped)
            wait_until("nothing is left", lambda: daemon.used_bytes() == 0 and not channels(daemon))

    def test_a_quota_counts_what_is_dropped_as_free(self):
        with serving() as daemon, contextlib.closing(Record(20_000)) as record, \
                opened(daemon, capacity=16, burst=4)[0] as ender:
            daemon.cli("quota", "--user", str(os.getuid()), "1M")  # 256 blocks
            Client(daemon, "send-over", record.path, 0, 20_000, 4).finish()
            self.assertEqual(channels(daemon), {"frames": 16})
            ender.finish("end\n")

    def test_kills_of_senders_and_receivers(self):
        with serving() as daemon, contextlib.closing(Record(2 * A_SENDER)) as record, \
                opened(daemon, capacity=16, burst=4)[0] as ender:
            kill_at_random(daemon, record, lambda: ender.finish("end\n"), send="send-over", receive=("receive",),
                           burst=4, goes_on=record.sent)
            sent, lost = record.check(self, at_most_lost=2 * A_SENDER)
            print(f"seed {SEED}: {KILLS} kills; {sent} messages sent, {lost} dropped, or in the hands of a receiver "
                  "that died")
            wait_until("nothing is left", lambda: daemon.used_bytes() == 0 and not channels(daemon))


class Descriptors(unittest.TestCase):
    """numacre_channel_fd. The clients wait without a timeout: a wake-up that is lost is a test that hangs."""

    def receiver(self, daemon, record, way, most=64):
        """One that is asleep, or about to wait: it is armed."""
        client = self.enterContext(Client(daemon, way, record.path, most))
        self.assertEqual(client.line(), "open")
        line = client.line()
        if not line and client.process.wait() == SKIPPED:
            self.skipTest(client.process.stderr.read().strip())
        self.assertEqual(line, "asleep")
        return client

    def stepper(self, daemon, record, first):
        client = self.enterContext(Client(daemon, "step", record.path, first))
        self.assertEqual(client.line(), "open")
        return client

    def step(self, client):
        client.process.stdin.write("\n")
        client.process.stdin.flush()
        self.assertEqual(client.line(), "sent")

    def step_and_see(self, client, record, number):
        self.step(client)
        wait_until(f"message {number} is received", lambda: record.received(number))

    def test_streams_by_epoll_and_by_io_uring(self):
        for way in WAYS:
            with self.subTest(way), serving() as daemon, contextlib.closing(Record(20_000)) as record:
                with opened(daemon, capacity=8, burst=4)[0] as ender:
                    receiver = self.receiver(daemon, record, way, 3)
                    Client(daemon, "send-epoll", record.path, 0, 20_000, 4).finish()
                    ender.finish("end\n")
                    self.assertEqual(receiver.finish().strip(), "received 20000")
                wait_until("nothing is left", lambda: daemon.used_bytes() == 0 and not channels(daemon))

    def test_a_receiver_that_is_stopped_or_dead_takes_nobody_s_wake_up(self):
        for way in WAYS:
            with self.subTest(way), serving() as daemon, contextlib.closing(Record(100)) as record:
                receivers = [self.receiver(daemon, record, way) for _ in range(3)]
                sender = self.stepper(daemon, record, 0)
                # The first time the daemon signals: the sender has no descriptor yet.
                self.step_and_see(sender, record, 0)
                for number, stopped in enumerate(receivers[:2], 1):
                    time.sleep(0.1)  # all are asleep again
                    stopped.process.send_signal(signal.SIGSTOP)
                    self.step_and_see(sender, record, number)
                for number, killed in enumerate(receivers[:2], 3):
                    killed.kill()
                    self.step_and_see(sender, record, number)

    def test_a_sender_without_descriptors_wakes_up_others_once_it_has_one(self):
        with serving() as daemon, contextlib.closing(Record(10)) as record:
            self.receiver(daemon, record, "receive-epoll")
            sender = self.stepper(daemon, record, 0)
            pid = sender.process.pid
            limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, limits[1]))
            self.step(sender)
            time.sleep(0.3)
            self.assertEqual(record.received(0), 0, "nobody could be woken up")
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
            time.sleep(0.1)  # the daemon is left alone for a moment after each failure
            sender.process.stdin.write("n\n")
            sender.process.stdin.flush()
            self.assertEqual(sender.line(), "nothing sent")
            wait_until("message 0 is received", lambda: record.received(0))

    def test_each_of_two_senders_and_of_two_receivers(self):
        with serving() as daemon, contextlib.closing(Record(200)) as record:
            self.receiver(daemon, record, "receive-epoll")
            first, second = self.stepper(daemon, record, 0), self.stepper(daemon, record, 100)
            for number in range(20):
                self.step_and_see(first, record, number)
                self.step_and_see(second, record, 100 + number)
            first.kill()
            self.step_and_see(second, record, 120)

    def test_the_daemon_dies_and_comes_back(self):
        for way in WAYS:
            with self.subTest(way), tempfile.TemporaryDirectory() as folder, \
                    contextlib.closing(Record(300)) as record:
                first = serving(runtime_dir=folder)
                receiver = self.receiver(first, record, way)
                sender = self.stepper(first, record, 0)
                self.step_and_see(sender, record, 0)
                time.sleep(0.1)
                self.step_and_see(sender, record, 1)
                first.kill()
                first.wait()
                # The kernel tells the receiver, which is asleep.
                self.assertEqual(receiver.line(), "daemon gone")
                # Those who have the descriptor need no daemon.
                self.step_and_see(sender, record, 2)
                with serving(runtime_dir=folder) as second:
                    while (line := receiver.line()) == "daemon gone":
                        pass
                    self.assertEqual(line, "renewed")
                    self.step_and_see(sender, record, 3)
                    other = self.stepper(second, record, 100)
                    self.step_and_see(other, record, 100)
                    self.step_and_see(sender, record, 4)

    def test_kills_of_senders_and_receivers(self):
        """Whoever is killed, and wherever: the others do not sleep beside a message."""
        with serving() as daemon, contextlib.closing(Record(2 * A_SENDER)) as record, \
                opened(daemon, capacity=16, burst=4)[0] as ender:
            self.receiver(daemon, record, "receive-uring").kill()  # or the test is skipped
            receivers_killed = kill_at_random(
                daemon, record, lambda: ender.finish("end\n"), send="send-epoll", receive=WAYS, burst=4,
                # Nobody sleeps for ever.
                goes_on=lambda number: any(record.received(number + each) for each in range(100)))
            sent, lost = record.check(self, at_most_lost=64 * receivers_killed)
            print(f"seed {SEED}: {KILLS} kills, {receivers_killed} of them of receivers; {sent} messages sent, {lost} "
                  "were in the hands of a receiver that died")
            wait_until("nothing is left", lambda: daemon.used_bytes() == 0 and not channels(daemon))

    def test_descriptors_come_back(self):
        with serving() as daemon, contextlib.closing(Record(100)) as record:
            def descriptors():
                return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))

            sender = self.stepper(daemon, record, 0)
            self.step(sender)
            before = descriptors()
            for number in range(1, 20):
                receiver = self.receiver(daemon, record, "receive-epoll")
                self.step_and_see(sender, record, number)
                receiver.kill()
            wait_until("the daemon has closed them", lambda: descriptors() <= before)
            mine = os.listdir(f"/proc/{sender.process.pid}/fd")
            self.assertLess(len(mine), 30, mine)

    def test_hostile_requests(self):
        def packet(**changes):
            fields = {"layout": LAYOUT_VERSION, "slot": 1, "wish": 0, "generation": 1, "instance": 1, "serial": 0,
                      "name": b"frames"} | changes
            return BELL.pack(MAGIC, WIRE_VERSION, BELL_REQUEST, BELL.size, 0, fields["layout"], fields["slot"],
                             fields["wish"], fields["generation"], fields["instance"], fields["serial"],
                             fields["name"])

        def refusal_of(daemon, data):
            with contextlib.closing(connect(daemon)) as connection:
                connection.send(data)
                reply = connection.recv(REPLY_BYTES)
                self.assertEqual(HEADER.unpack_from(reply)[2], ATTACH_REPLY)
                return Reply(reply).message

        with serving() as daemon, contextlib.closing(Record(10)) as record:
            for changes, wanted in (
                ({}, "deleted"), ({"layout": 1}, "layout version"), ({"wish": 7}, "wish 7"),
                ({"wish": 1}, "bell 0"), ({"wish": 1, "serial": 5}, "deleted"),
                ({"name": b"x" * 48}, "name is refused"), ({"name": b""}, "name is refused"),
            ):
                self.assertIn(wanted, refusal_of(daemon, packet(**changes)))
            self.assertTrue(refusal_of(daemon, packet()[:40]))
            self.receiver(daemon, record, "receive-epoll")
            region = os.open(daemon.region("default:pool"), os.O_RDONLY)
            instance = struct.unpack_from("=Q", os.pread(region, 32, 0), 24)[0]
            os.close(region)
            for wish, serial in ((0, 0), (1, 1 << 40)):
                self.assertIn("no client of this process",
                              refusal_of(daemon, packet(instance=instance, wish=wish, serial=serial)))


if __name__ == "__main__":
    main()
