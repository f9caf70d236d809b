"""The program tests/crash/chaos_client.cpp: threads that allocate, free, hand over and take until they are told to end,
or are killed.
"""

import os
import pathlib
import signal
import subprocess

from support.daemon import PATIENCE_SECONDS


def chaos_client():
    path = pathlib.Path(os.environ["NUMACRE_BUILD_DIR"]) / "test-bin" / "chaos_client"
    if not path.exists():
        raise FileNotFoundError(f"{path} is not built")
    return str(path)


class ChaosClient:
    """One of them, steered by letters on its standard input."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        self.attached = False
        self.wake_at = None  # stopped until then
        self.was_stopped = False

    def hear(self, wanted):
        """Its next line has to be this one. Whoever does not answer in time hangs."""
        signal.alarm(PATIENCE_SECONDS)
        line = self.process.stdout.readline()
        signal.alarm(0)
        if line.rstrip("\n") != wanted:
            errors = self.process.stderr.read() if not line else ""
            raise AssertionError(f"a client was to say '{wanted}', but said '{line}': {errors}")

    def wait_until_attached(self):
        if not self.attached:
            self.hear("attached")
            self.attached = True

    def order(self, letter):
        self.wait_until_attached()
        self.process.stdin.write(letter)
        self.process.stdin.flush()

    def end(self):
        """What it has printed by its end. It has to end well, and soon."""
        output, errors = self.process.communicate(timeout=PATIENCE_SECONDS)
        if self.process.returncode != 0:
            raise AssertionError(f"a client ended with {self.process.returncode}: {errors}")
        return output

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def too_late(*_):
    raise AssertionError(f"a client has not answered for {PATIENCE_SECONDS} s: it hangs")


def fail_when_a_client_hangs():
    """Makes ChaosClient.hear() raise, for the whole process, instead of ending it by SIGALRM."""
    signal.signal(signal.SIGALRM, too_late)
