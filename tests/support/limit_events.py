"""The events that limits make, as a client of the control service gets them."""

import json
import subprocess
import threading

from support.daemon import bin_dir


class LimitEvents:
    """Events of the kinds that limits make, in their order."""

    KINDS = (
        "quota_soft_exceeded",
        "user_quota_soft_exceeded",
        "pool_quota_soft_exceeded",
        "low_watermark",
        "low_watermark_ended",
    )

    def __init__(self, runtime_dir):
        self.events = []
        self._process = subprocess.Popen(
            [str(bin_dir().parent / "test-bin" / "watch_events"), runtime_dir],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # that its daemon has gone
            text=True,
        )
        first = self._process.stdout.readline()
        assert json.loads(first) == {"kind": "watching"}, first
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        for line in self._process.stdout:
            event = json.loads(line)
            if event["kind"] in self.KINDS:
                self.events.append(event)

    def kinds(self):
        return [event["kind"] for event in self.events]

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._thread.join()
        self._process.stdout.close()
