#!/usr/bin/env python3
"""Broadcast channels (NUMACRE_CHANNEL_BROADCAST) between real processes, and what survives kills of everybody.

NUMACRE_CHANNEL_SEED and NUMACRE_CHANNEL_KILLS in the environment: another sequence of kills, or a longer one.
"""

import contextlib
import mmap
import os
import pathlib
import random
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.channels import (  # noqa: E402
    BROADCAST, EXISTING, STAYS, Client, channel_of, channels, opened, refusal, series, serving
)
from support.daemon import bin_dir, wait_until  # noqa: E402
from support.runner import main  # noqa: E402

SPAN = 1_000_000  # of the numbers of one writer's messages
SEED = int(os.environ.get("NUMACRE_CHANNEL_SEED") or 1)
KILLS = int(os.environ.get("NUMACRE_CHANNEL_KILLS") or 60)


class Party(Client):
    program = bin_dir().parent / "test-bin" / "broadcast_client"


class Record:
    """A byte for each message, in a file that processes map."""

    def __init__(self, writers=1):
        self.file = tempfile.NamedTemporaryFile(prefix="numacre-broadcast-")
        self.file.truncate(writers * SPAN)
        self.memory = mmap.mmap(self.file.fileno(), writers * SPAN)
        self.path = self.file.name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.memory.close()
        self.file.close()

    def total(self):
        return sum(self.memory[:])

    def first_missing(self, first=0):
        return self.memory.find(b"\0", first)


def reader(daemon, record, last=0, most=64, pause=0, way="read"):
    party = Party(daemon, way, record.path, last, most, pause)
    assert party.line() == "open", party.process.stderr.read()
    return party


def write(daemon, record, first, count, burst, pause=0):
    return Party(daemon, "write", record.path, first, count, burst, pause)


def figures(party):
    """(messages read, messages by which it was overtaken) of a reader that has seen the end."""
    words = party.finish().split()
    return int(words[1]), int(words[3])


def maker(daemon, capacity=0, burst=0, flags=0):
    client, error, sentence = opened(daemon, BROADCAST | flags, capacity, burst)
    assert error == 0, sentence
    return client


class Opening(unittest.TestCase):
    def test_a_channel_is_of_one_kind(self):
        with serving() as daemon:
            with maker(daemon):
                error, sentence = refusal(daemon)
                self.assertEqual(error, -17)
                self.assertIn('"frames" is a broadcast channel', sentence)
                self.assertIn("open it with NUMACRE_CHANNEL_BROADCAST, or use another name", sentence)
                self.assertEqual(refusal(daemon, EXISTING)[0], -17)
                self.assertEqual(refusal(daemon, BROADCAST | EXISTING)[0], 0)
            queue, _, _ = opened(daemon, channel="jobs")
            with queue:
                error, sentence = refusal(daemon, BROADCAST, channel="jobs")
                self.assertEqual(error, -17)
                self.assertIn('"jobs" is a queue', sentence)
                self.assertIn("open it without NUMACRE_CHANNEL_BROADCAST, or use another name", sentence)

    def test_it_goes_with_the_last_that_has_it_open(self):
        with serving() as daemon, Record() as sent:
            with maker(daemon, 16, 4) as first:
                write(daemon, sent, 0, 100, 4).finish()
                self.assertEqual(channels(daemon), {"frames": 64})
                first.finish("close\n")
            wait_until("nothing is left", lambda: daemon.used_bytes() == 0 and not channels(daemon))

    def test_one_that_stays_keeps_the_last_for_those_who_come_late(self):
        with serving() as daemon, Record() as sent, Record() as late, Record() as all_of_them, Record() as none:
            maker(daemon, 16, 4, STAYS).finish("close\n")
            write(daemon, sent, 0, 100, 4).finish()
            parties = [reader(daemon, late, last=10), reader(daemon, all_of_them, last=2**32 - 1),
                       reader(daemon, none)]
            maker(daemon, flags=EXISTING).finish("end\n")
            self.assertEqual([figures(party) for party in parties], [(10, 0), (64, 0), (0, 0)])
            self.assertEqual(late.memory[:100].find(b"\1"), 90)
            self.assertEqual(all_of_them.memory[:100].find(b"\1"), 36)
            maker(daemon, flags=EXISTING).finish("remove\n")
            wait_until("nothing is left", lambda: daemon.used_bytes() == 0 and not channels(daemon))


class Streams(unittest.TestCase):
    def test_each_reader_gets_everything_and_the_end_behind_it(self):
        with serving() as daemon, Record() as sent, Record() as first, Record() as second, \
                maker(daemon, 4096, 4) as ender:
            readers = [reader(daemon, first), reader(daemon, second, most=1, way="read-poll")]
            write(daemon, sent, 0, 4000, 3).finish()
            found = channel_of(daemon)
            self.assertEqual((found["kind"], found["sent_messages"], found["waiting_messages"]),
                             ("broadcast", 4000, 4000))
            self.assertEqual((found["receivers"], found["oldest_seconds"]), (3, None))
            ender.finish("end\n")
            self.assertEqual([figures(each) for each in readers], [(4000, 0), (4000, 0)])
            for record in (first, second):
                self.assertEqual(record.memory[:4000], b"\1" * 4000)

    def test_a_slow_reader_is_told_by_how_many_it_was_overtaken(self):
        with serving() as daemon, Record() as sent, Record() as seen, maker(daemon, 4, 2) as ender:
            party = reader(daemon, seen, pause=100_000)
            write(daemon, sent, 0, 2000, 2).finish()
            ender_sees = channel_of(daemon)
            self.assertEqual(ender_sees["waiting_messages"], 8)
            wait_until("it has read the last ones", lambda: seen.memory[1999] == 1)
            now = channel_of(daemon)
            self.assertEqual(now["received_messages"] + now["overtaken_messages"], 2000)
            self.assertGreater(now["overtaken_messages"], 0)
            self.assertEqual(series(daemon), {"kept_messages": 8, "overtaken_total": now["overtaken_messages"],
                                              "sent_total": 2000, "received_total": now["received_messages"],
                                              "parties sender": 1, "parties receiver": 2})
            ender.finish("end\n")
            read, overtaken = figures(party)
            self.assertEqual((read, overtaken), (now["received_messages"], now["overtaken_messages"]))
            self.assertEqual(seen.total(), read)

    def test_a_quota_counts_what_is_overwritten_as_free(self):
        with serving() as daemon, Record() as sent, Record() as seen:
            daemon.cli("quota", "--user", str(os.getuid()), "1M")  # 256 blocks
            with maker(daemon, 4, 4) as ender:
                party = reader(daemon, seen, pause=100)
                write(daemon, sent, 0, 20_000, 4).finish()
                ender.finish("end\n")
                read, overtaken = figures(party)
                self.assertEqual(read + overtaken, 20_000)
            wait_until("nothing is left", lambda: daemon.used_bytes() == 0 and not channels(daemon))

    def test_a_reader_that_dies_keeps_nothing_back(self):
        with serving() as daemon, Record() as sent, Record() as seen, maker(daemon, 2, 2) as ender:
            party = reader(daemon, seen, pause=10_000_000)
            write(daemon, sent, 0, 2, 2).finish()
            wait_until("it reads", lambda: channel_of(daemon)["received_messages"] == 2)
            write(daemon, sent, 2, 40, 2).finish()
            self.assertEqual(channels(daemon), {"frames": 6}, "those that it reads, and those that are kept")
            party.kill()
            wait_until("what it read is free", lambda: channels(daemon) == {"frames": 4})
            wait_until("nothing else is taken", lambda: daemon.used_bytes() == 4 * 4096)
            ender.finish("end\n")

    def test_the_daemon_dies_and_comes_back_under_a_stream(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            sent, seen, killed = (stack.enter_context(Record(2)) for _ in range(3))
            first = serving(runtime_dir=folder)
            ender = stack.enter_context(maker(first, 4096, 4))
            party = stack.enter_context(reader(first, seen))
            victim = stack.enter_context(reader(first, killed, pause=10_000_000))
            writers = [stack.enter_context(write(first, sent, each * SPAN, SPAN, 2, 1000)) for each in range(2)]
            for writer in writers:
                self.assertEqual(writer.line(), "open")
            wait_until("all of them are at it", lambda: seen.memory[50] and seen.memory[SPAN + 50])
            first.kill()
            first.wait()
            here = sent.first_missing()
            wait_until("the stream goes on without a daemon", lambda: seen.memory[here + 50])
            # Who dies meanwhile is recovered by the next daemon.
            victim.kill()
            writers[0].kill()
            with serving(runtime_dir=folder) as second:
                wait_until("the dead are gone", lambda: len(channel_of(second)["clients"]) == 3)
                here = sent.first_missing(SPAN)
                wait_until("the stream goes on", lambda: seen.memory[here + 50])
                self.assertEqual(refusal(second)[0], -17)
                writers[1].kill()
                ender.finish("end\n")
                _, overtaken = figures(party)
                check_reader(self, sent, seen, overtaken)
                wait_until("nothing is left", lambda: second.used_bytes() == 0 and not channels(second))


def check_reader(test, sent, seen, overtaken):
    """Nothing twice, and nothing lost of what was sent, but for what the reader was told of."""
    counts = seen.memory[:]
    test.assertEqual([number for number, times in enumerate(counts) if times > 1][:20], [])
    missing = [number for number, was_sent in enumerate(sent.memory[:]) if was_sent and not counts[number]]
    test.assertLessEqual(len(missing), overtaken, missing[:20])
    return len(missing)


class Kills(unittest.TestCase):
    def kills(self, capacity, pause):
        dice = random.Random(SEED)
        burst = 4
        with serving() as daemon, contextlib.ExitStack() as stack:
            sent, steady_seen, slow_seen = (stack.enter_context(Record(2)) for _ in range(3))
            ender = stack.enter_context(maker(daemon, capacity, burst))
            steady = stack.enter_context(reader(daemon, steady_seen, most=3))
            slow = stack.enter_context(reader(daemon, slow_seen, pause=2000, way="read-poll"))
            next_of = {"first writer": 0, "second writer": SPAN}
            seen = {}

            def start(name):
                if name in next_of:
                    end = SPAN if name == "first writer" else 2 * SPAN
                    return write(daemon, sent, next_of[name], end - next_of[name], dice.choice((1, 2, burst)), pause)
                seen[name] = stack.enter_context(Record(2))
                return Party(daemon, dice.choice(("read", "read-poll")), seen[name].path, dice.choice((0, 7, 1000)),
                             dice.choice((1, 3, 64)), dice.choice((0, 300, 3000)))

            parties = {name: start(name) for name in (*next_of, "first reader", "second reader")}
            read_by_the_dead = 0
            try:
                for _ in range(KILLS):
                    time.sleep(dice.uniform(0.001, 0.03))
                    name = dice.choice(list(parties))
                    self.assertIsNone(parties[name].process.poll(), f"{name} has ended by itself")
                    parties[name].kill()
                    if name in next_of:
                        number = next_of[name]
                        while sent.memory[number] or steady_seen.memory[number] or slow_seen.memory[number]:
                            number += 1
                        next_of[name] = number + burst
                    else:
                        self.assertLessEqual(max(seen[name].memory[:]), 1, "a message twice")
                        read_by_the_dead += seen[name].total()
                    parties[name] = start(name)
                for name in next_of:
                    here = next_of[name]
                    wait_until(f"{name} goes on",
                               lambda: any(steady_seen.memory[here + each] for each in range(1000)))
                for name in next_of:
                    parties[name].kill()
                ender.finish("end\n")
                overtaken, passed = {}, set()
                for name, party, record in (("steady", steady, steady_seen), ("slow", slow, slow_seen)):
                    read, overtaken[name] = figures(party)
                    self.assertEqual(record.total(), read)
                    passed.add(read + overtaken[name])
                    check_reader(self, sent, record, overtaken[name])
                self.assertEqual(len(passed), 1, f"both were there from the first message on: {passed}")
                for name in ("first reader", "second reader"):
                    if parties[name].line() == "open":  # it may have been started a moment ago
                        parties[name].finish()
                    self.assertLessEqual(max(seen[name].memory[:]), 1, "a message twice")
            finally:
                for party in parties.values():
                    party.kill()
            print(f"seed {SEED}, capacity {capacity}: {KILLS} kills; {sent.total()} messages sent, "
                  f"{steady_seen.total()} read by the steady reader, overtaken {overtaken}, {read_by_the_dead} read "
                  "by readers that were killed")
            wait_until("nothing is left", lambda: daemon.used_bytes() == 0 and not channels(daemon))

    def test_of_writers_and_readers_with_room_for_all(self):
        self.kills(4096, 1000)

    def test_of_writers_and_readers_that_are_overtaken(self):
        self.kills(4, 1)


if __name__ == "__main__":
    main()
