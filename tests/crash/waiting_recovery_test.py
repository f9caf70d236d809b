#!/usr/bin/env python3
"""Stopped is not dead. A client stands still in the middle of an operation, and another one has died in the middle of
one on an overlapping block: recovery of the dead has to wait for the stopped, whatever time that takes. numacred says
so everywhere, nobody else waits, the stopped one is not taken for dead; and when it goes on, all is well by itself.

in_the_way.cpp brings them there, in each way in which an operation of one can overlap that of the other.

usage: waiting_recovery_test.py [CASE ...]
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.daemon import PATIENCE_SECONDS, Daemon, wait_until  # noqa: E402

POOL = "name=default,capacity=8M,online=8M,frame=4K,largest=4M,backing=small"
SKIPPED = 77


def in_the_way():
    path = pathlib.Path(os.environ["NUMACRE_BUILD_DIR"]) / "test-bin" / "in_the_way"
    if not path.exists():
        raise FileNotFoundError(f"{path} is not built")
    return str(path)


def cases():
    return subprocess.run([in_the_way()], capture_output=True, text=True, check=True).stdout.split()


def check(truth, what, daemon):
    if not truth:
        raise AssertionError(f"{what}\nnumacred's log:\n{daemon.log()}")


class Meeting:
    """A stopped client, a dead one, and a third one that does what it is told."""

    def __init__(self, daemon, case):
        self.process = subprocess.Popen(
            [in_the_way(), case],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "NUMACRE_RUNTIME_DIR": daemon.runtime_dir},
        )  # fmt: skip
        line = self._hear()
        if line.startswith("SKIP"):
            print(line)
            sys.exit(SKIPPED)
        _, self.stopped, self.dead = line.split()
        self.stopped, self.dead = int(self.stopped), int(self.dead)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()  # its children, stopped or not, die with it
        self.process.wait()
        self.process.stdout.close()

    def _hear(self):
        """Whoever does not answer in time waits for something."""
        signal.alarm(PATIENCE_SECONDS)
        line = self.process.stdout.readline().strip()
        signal.alarm(0)
        if not line:
            raise AssertionError(f"it ended with {self.process.wait()}, see above")
        return line

    def tell(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        assert self._hear() == "done"

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(PATIENCE_SECONDS) == 0


def waiting_by_metric(daemon):
    with urllib.request.urlopen(f"http://{daemon.metrics_address}/metrics", timeout=PATIENCE_SECONDS) as answer:
        text = answer.read().decode()
    return int(float(re.search(r'^numacre_recoveries_waiting\{pool="default"\} (\S+)', text, re.MULTILINE).group(1)))


def client_of(daemon, pid):
    """Its row of `numacre clients`; nothing: there is no such client."""
    return next((client for client in daemon.clients() if client["pid"] == pid), None)


def check_waiting(daemon, meeting):
    stopped, dead = client_of(daemon, meeting.stopped), client_of(daemon, meeting.dead)
    check(stopped is not None and stopped["state"] == "active", f"the stopped one is not attached: {stopped}", daemon)
    check(dead is not None and dead["state"] == "recovering", f"the dead one is reaped: {dead}", daemon)
    check(dead["waits_for"] == stopped["client_id"], f"{dead} does not wait for {stopped}", daemon)
    check(stopped["waits_for"] == 0, f"{stopped} waits", daemon)
    check(waiting_by_metric(daemon) == 1, "the metric does not say that a recovery waits", daemon)
    doctor = daemon.run_cli("doctor").stdout
    wanted = f"client {dead['client_id']} .*recovery waits for client {stopped['client_id']}"
    check(re.search(wanted, doctor), f"doctor does not say '{wanted}':\n{doctor}", daemon)


def meet(case):
    with Daemon("--pool", POOL) as daemon:
        with Meeting(daemon, case) as meeting:
            wait_until(
                "its recovery waits, or has ended",
                lambda: waiting_by_metric(daemon) != 0 or client_of(daemon, meeting.dead) is None,
            )
            check_waiting(daemon, meeting)
            meeting.tell("work")
            # It has been tried again, at longer and longer intervals; time changes nothing.
            daemon.says("recovery waits for a live client")
            meeting.tell("work")
            check_waiting(daemon, meeting)

            gone = meeting.stopped
            meeting.tell("go on")
            wait_until("the dead one is reaped", lambda: client_of(daemon, meeting.dead) is None)
            wait_until("the other one has detached", lambda: client_of(daemon, gone) is None)
            check(waiting_by_metric(daemon) == 0, "the metric says that a recovery waits", daemon)
            check("recovery waits" not in daemon.run_cli("doctor").stdout, "doctor says that it waits", daemon)
            meeting.tell("check")
            meeting.end()
        daemon.says(rf"client detached .*pid={gone}\b")  # the stopped one has ended as a client does
        wait_until("the third is gone", lambda: not daemon.clients())
        check(daemon.used_bytes() == 0, "frames are lost", daemon)
    print(f"{case}: its recovery waited, and ended", flush=True)


def too_late(*_):
    raise AssertionError(f"no answer for {PATIENCE_SECONDS} s")


def main():
    signal.signal(signal.SIGALRM, too_late)
    for case in sys.argv[1:] or cases():
        meet(case)


if __name__ == "__main__":
    main()
