"""A numacred of the test's own, on a runtime directory of its own.

    with Daemon("--pool", "name=default,capacity=64M,online=64M,frame=4K,largest=4M") as daemon:
        run_client(daemon.runtime_dir)
        assert daemon.used_bytes() == 0

The programs are those of $NUMACRE_BIN_DIR, else of build/release/bin.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

# How long a condition may take to come true on a machine with other work. Nothing here fails for being slow.
PATIENCE_SECONDS = 60

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def bin_dir():
    return pathlib.Path(os.environ.get("NUMACRE_BIN_DIR") or _ROOT / "build" / "release" / "bin")


def program(name):
    path = bin_dir() / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is not built; set NUMACRE_BIN_DIR to the build's bin directory")
    return str(path)


def wait_until(what, condition):
    """What condition() returned when it first was true. `what` tells the reader of a failure what was awaited."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"still not so after {PATIENCE_SECONDS} s: {what}")
        time.sleep(0.05)


def may_not_take_hugepages():
    """Another test may be counting the machine's hugepages: this one does not have ctest's lock on them."""
    return os.environ.get("NUMACRE_TEST_HUGEPAGES") == "no"


class Daemon:
    """Started and serving when the constructor returns. Ended by stop(), or at the end of a with block."""

    def __init__(self, *arguments, runtime_dir=None, environment=None, prefix=(), pass_fds=()):
        """arguments: numacred's, without --runtime-dir. Without --metrics-address it gets a free port of 127.0.0.1.
        prefix: a command that executes the rest of its arguments. pass_fds: descriptors that stay open in it."""
        arguments = [str(argument) for argument in arguments]
        if may_not_take_hugepages():
            for i, argument in enumerate(arguments):
                if i > 0 and arguments[i - 1] == "--pool" and "backing=" not in argument:
                    arguments[i] += ",backing=small"
        if not any(argument.split("=")[0] == "--metrics-address" for argument in arguments):
            arguments += ["--metrics-address", "127.0.0.1:0"]
        self._own_dir = None
        if runtime_dir is None:
            # Short, for the path of a unix socket has to fit into 107 bytes.
            self._own_dir = runtime_dir = tempfile.mkdtemp(prefix="numacre-", dir="/tmp")
        self.runtime_dir = str(runtime_dir)
        log, self._log_path = tempfile.mkstemp(prefix="numacred-", suffix=".log")
        self._final_log = None
        with open(log, "ab") as log_file:
            self.process = subprocess.Popen(
                [*prefix, program("numacred"), "--runtime-dir", self.runtime_dir, *arguments],
                pass_fds=pass_fds,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )
        self.pid = self.process.pid
        try:
            wait_until("numacred serves", self._serves)
            status = self.status()
            self.metrics_address = status["daemon"]["metrics_address"]
            self._check_hugepages(status)
        except BaseException:
            print(f"numacred's log:\n{self.log()}", file=sys.stderr)
            self.kill()
            self.stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def _serves(self):
        if not self.alive():
            raise RuntimeError(f"numacred ended with {self.process.returncode} instead of serving")
        return self.run_cli("status", "--json").returncode == 0

    @staticmethod
    def _check_hugepages(status):
        """Tests that count the machine's hugepages hold a lock of ctest. A test without the lock may not take any."""
        if not may_not_take_hugepages():
            return
        for pool in status["pools"]:
            for node in pool["nodes"]:
                assert not node["backing"].startswith("hugetlb"), (
                    f"pool {pool['name']} has hugepages: give the test RESOURCE_LOCK hugepages, or the pool "
                    "backing=small"
                )

    def run_cli(self, *arguments):
        return subprocess.run(
            [program("numacre"), "--runtime-dir", self.runtime_dir, *(str(argument) for argument in arguments)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )

    def cli(self, *arguments):
        """What `numacre ARGUMENTS --json` prints, parsed. Fails with the tool's own words."""
        done = self.run_cli(*arguments, "--json")
        if done.returncode != 0:
            raise RuntimeError(f"numacre {' '.join(map(str, arguments))} ended with {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)

    def status(self):
        return self.cli("status")

    def clients(self):
        return self.cli("clients")["clients"]

    def used_bytes(self, pool="default"):
        (found,) = [each for each in self.status()["pools"] if each["name"] == pool]
        return found["used_bytes"]

    def own_bytes(self):
        """Memory of its own that is resident: no shared metadata, no frames."""
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+) kB", status).group(1)) << 10

    def descriptors(self):
        """What it has open now: {path under /proc: what that leads to}. One that it closes meanwhile is left out."""
        found = {}
        for path in pathlib.Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                found[path] = os.readlink(path)
            except FileNotFoundError:
                pass  # closed between the listing and here
        return found

    def region(self, name):
        """A file through which a test scribbles over what clients can write, e.g. region("default:pool")."""
        (found,) = [path for path, target in self.descriptors().items() if target.startswith(f"/memfd:numacre:{name}")]
        return found

    def alive(self):
        return self.process.poll() is None

    def says(self, pattern):
        """Waits for a line that `pattern` is found in: numacred logs beside its work, so a reply may be the earlier."""
        wait_until(f"numacred's log says {pattern!r}", lambda: re.search(pattern, self.log()))

    def log(self):
        """All that numacred has written so far. A line that has to be there is awaited: says()."""
        if self._final_log is not None:
            return self._final_log
        return pathlib.Path(self._log_path).read_text(errors="replace")

    def kill(self):
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)
        return self.process.wait(PATIENCE_SECONDS)

    def wait(self):
        """Its exit status, when it has ended."""
        return self.process.wait(PATIENCE_SECONDS)

    def stop(self):
        """Ends it as an operator would; its exit status (that of its end, if it has ended already)."""
        if self.alive():
            os.kill(self.pid, signal.SIGTERM)
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                print(f"numacred does not end on SIGTERM; its log:\n{self.log()}", file=sys.stderr)
                self.kill()
        if self._own_dir is not None:
            # A daemon that was killed has left its pools with a holder, for a next one that there will not be; one that
            # was stopped with clients as well.
            subprocess.run([program("numacred"), "--runtime-dir", self.runtime_dir, "--discard-kept"],
                           stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_SECONDS)
        if self._final_log is None:
            self._final_log = self.log()
            os.unlink(self._log_path)
        if self._own_dir is not None:
            shutil.rmtree(self._own_dir, ignore_errors=True)
            self._own_dir = None
        return self.process.returncode
