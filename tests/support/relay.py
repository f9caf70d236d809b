"""`relay` (client/relay) as a process of a test, and its reports."""

import collections
import json
import os
import signal
import subprocess
import tempfile

from .daemon import PATIENCE_SECONDS, program, wait_until

DONE, FAILED, PEER_LOST = 0, 1, 3

Ended = collections.namedtuple("Ended", "status reports errors")


class Relay:
    """One `relay ...` process."""

    def __init__(self, daemon, role, *arguments, cpus=None):
        # Not a pipe: nobody reads while a test waits for something else.
        self.output = tempfile.TemporaryFile("w+")
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [program("relay"), role, "--runtime-dir", daemon.runtime_dir, "--json", *(str(word) for word in arguments)],
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=self.errors,
            preexec_fn=(lambda: os.sched_setaffinity(0, cpus)) if cpus else None,
        )
        self.pid = self.process.pid

    def said(self):
        # pread leaves the file position alone, which the process shares.
        return os.pread(self.errors.fileno(), 1 << 20, 0).decode()

    def await_words(self, words):
        def said_or_ended():
            if self.process.poll() is not None:
                raise AssertionError(f"relay ended with {self.process.returncode}: {self.said()}")
            return words in self.said()

        wait_until(f"relay says '{words}'", said_or_ended)

    def signal(self, number):
        os.kill(self.pid, number)

    def end(self):
        """How it ended, by itself."""
        status = self.process.wait(PATIENCE_SECONDS)
        output = os.pread(self.output.fileno(), 1 << 26, 0).decode()
        return Ended(status, {report["side"]: report for report in map(json.loads, output.splitlines())}, self.said())

    def close(self):
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait(PATIENCE_SECONDS)
        self.output.close()
        self.errors.close()


def clients_and_channels(daemon):
    """The attached processes, and the blocks of each channel: ([client], {name: blocks})."""
    everybody = daemon.clients()
    return ([each for each in everybody if each["state"] != "channel"],
            {each["comm"]: each["blocks"] for each in everybody if each["state"] == "channel"})


def freed_blocks(daemon):
    return sum(node["frees"] for pool in daemon.cli("stats")["pools"] for node in pool["nodes"])


def wait_for_flow(daemon, relay, blocks=1000):
    """Waits until `blocks` more have come through, or the relay has ended."""
    before = freed_blocks(daemon)
    wait_until("packets flow", lambda: relay.process.poll() is not None or freed_blocks(daemon) > before + blocks)


def flows_of(report):
    return {
        (flow["protocol"], flow["source"], flow["source_port"], flow["destination"], flow["destination_port"]): [
            flow["packets"],
            flow["bytes"],
        ]
        for flow in report["top_flows"]
    }
