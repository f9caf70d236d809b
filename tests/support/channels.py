"""Channels between processes: the programs that tests start, and what the daemon tells of channels."""

import contextlib
import re
import signal
import subprocess
import urllib.request

from .daemon import Daemon, bin_dir

POOL = "name=default,capacity=64M,online=64M,frame=4K,largest=4M,backing=small"
SENDS, RECEIVES, EXISTING, STAYS, BROADCAST = 1, 2, 4, 8, 16


def serving(**options):
    return Daemon("--pool", POOL, **options)


class Client:
    """A process of channel_client; killed at the end of a with block."""

    program = bin_dir().parent / "test-bin" / "channel_client"

    def __init__(self, daemon, *arguments, channel="frames"):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([self.program, daemon.runtime_dir, channel, *map(str, arguments)],
                                        stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def line(self):
        return self.process.stdout.readline().strip()

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self.process.wait()

    def finish(self, last_words=""):
        """What it says from here on, if it ends well."""
        out, error = self.process.communicate(last_words)
        if self.process.returncode != 0:
            raise AssertionError(f"exit status {self.process.returncode}: {error}{out}")
        return out


def opened(daemon, flags=0, capacity=0, burst=0, channel="frames"):
    """(client that has the channel open, or has been refused; error; sentence)"""
    client = Client(daemon, "open", flags, capacity, burst, channel=channel)
    error, sentence = client.line().split(" ", 1)
    return client, int(error), sentence


def refusal(daemon, *arguments, **options):
    client, error, sentence = opened(daemon, *arguments, **options)
    with client:
        return error, sentence


def channels(daemon):
    """The seats of channels: name -> blocks."""
    return {each["comm"]: each["blocks"] for each in daemon.clients() if each["state"] == "channel"}


def channel_of(daemon, name="frames"):
    (found,) = [each for each in daemon.cli("channels", "default")["channels"] if each["name"] == name]
    return found


def series(daemon, name="frames"):
    """The samples of the channel: metric without prefix, or metric and role -> value."""
    text = urllib.request.urlopen(f"http://{daemon.metrics_address}/metrics", timeout=60).read().decode()
    found = re.findall(rf'^numacre_channel_(\w+)\{{pool="default",channel="{name}"(?:,role="(\w+)")?\}} (\S+)', text,
                       re.MULTILINE)
    return {metric + (f" {role}" if role else ""): float(value) for metric, role, value in found}
