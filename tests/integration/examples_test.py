#!/usr/bin/env python3
"""The small examples of client/examples do what the comment at their top says, with a daemon and without one, and build
as an installed user builds them. The relay has a test of its own."""

import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import PATIENCE_SECONDS, Daemon, bin_dir, program  # noqa: E402
from support.runner import main  # noqa: E402

BUILD = pathlib.Path(os.environ.get("NUMACRE_BUILD_DIR") or bin_dir().parent)
EXAMPLES = SOURCE / "client" / "examples"
SOURCES = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".c", ".cpp"))
GEOMETRY = "capacity=64M,online=16M,frame=4K,largest=4M,backing=small"
# Pool "lonely" has no room for the second process of an example.
POOLS = ("--pool", f"name=default,{GEOMETRY}", "--pool", f"name=lonely,{GEOMETRY},max-clients=1")
UNUSED = {"default": 0, "lonely": 0}
NUMBER = r"0x[0-9a-f]+|\d+(?:\.\d+)?"
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")


def run(name, *arguments, runtime_dir, text=""):
    return subprocess.run(
        [program(name), *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "NUMACRE_RUNTIME_DIR": str(runtime_dir)},
    )


def promised_output(source):
    """What the comment at the top of an example shows: the indented lines below "Prints"."""
    text = (EXAMPLES / source).read_text()
    found = re.search(r"^(?: [*]|//) Prints\b.*\n((?:(?: [*]|//) {5}.*\n)+)", text, re.MULTILINE)
    if not found:
        raise AssertionError(f"{source}: no line 'Prints', or no line indented by five blanks below that")
    return re.sub(r"^(?: [*]|//) {5}", "", found[1], flags=re.MULTILINE)


def pattern_of(text):
    """Matches the text with any other numbers in it, each of the same kind."""
    pieces = re.split(f"({NUMBER})", text)
    numbers = [r"0x[0-9a-f]+" if n.startswith("0x") else r"\d+\.\d+" if "." in n else r"\d+" for n in pieces[1::2]]
    return "".join(re.escape(words) + number for words, number in zip(pieces[::2], [*numbers, ""]))


class ExamplesTest(unittest.TestCase):
    def serve(self, *arguments):
        daemon = Daemon(*arguments)
        self.addCleanup(daemon.stop)
        return daemon

    def assert_works(self, daemon, name, *arguments, source, text=""):
        """The output of an example that succeeds: as its comment shows, but for the numbers. No block is left."""
        done = run(name, *arguments, runtime_dir=daemon.runtime_dir, text=text)
        self.assertEqual((done.returncode, done.stderr), (0, ""), f"standard output: {done.stdout}")
        self.assertRegex(done.stdout, rf"\A{pattern_of(promised_output(source))}\Z")
        self.assert_nothing_is_left(daemon)
        return done.stdout

    def assert_fails(self, daemon, name, *arguments, says):
        done = run(name, *arguments, runtime_dir=daemon.runtime_dir)
        self.assertEqual(done.returncode, 1, f"standard output: {done.stdout}; standard error: {done.stderr}")
        self.assertRegex(done.stderr, rf"\A{says}\Z")
        self.assert_nothing_is_left(daemon)

    def assert_nothing_is_left(self, daemon):
        # Detach waits for the daemon's answer: no need to wait here.
        self.assertEqual({pool["name"]: pool["used_bytes"] for pool in daemon.status()["pools"]}, UNUSED)
        self.assertEqual(daemon.clients(), [])


class OneNumaNode(ExamplesTest):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon("--topology", "synthetic:1x512M", *POOLS)
        cls.addClassCleanup(cls.daemon.stop)

    def test_hello(self):
        output = self.assert_works(self.daemon, "hello", source="hello.c")
        ids = re.findall(r"client (\d+)", output)
        self.assertEqual(len(set(ids)), 1, output)
        self.assertIn("asked for 10000 bytes, may use 16384\n", output)

    def test_hello_in_a_pool_that_is_not_there(self):
        says = r'hello: numacre_attach: no pool is named "nowhere".*\n'
        self.assert_fails(self.daemon, "hello", "nowhere", says=says)

    def test_hello_in_a_full_pool(self):
        with self.full_pool():
            done = run("hello", runtime_dir=self.daemon.runtime_dir)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\Ahello: numacre_alloc: no free block of 10000 bytes.*\n\Z")
        self.assert_nothing_is_left(self.daemon)

    @contextlib.contextmanager
    def full_pool(self):
        """All of the pool is promised to another user, so no allocation of ours succeeds."""
        uid = 4711
        self.daemon.cli("reserve", "--user", uid, "16M")
        try:
            yield
        finally:
            self.daemon.cli("reserve", "--user", uid, "none")

    def test_hand_over(self):
        output = self.assert_works(self.daemon, "hand_over", source="hand_over.c")
        giver, taker, again = re.findall(r"client (\d+)", output)
        self.assertEqual(giver, again)
        self.assertNotEqual(giver, taker)

    def test_hand_over_to_a_process_that_cannot_attach(self):
        """The giver takes its block back."""
        self.assert_fails(
            self.daemon, "hand_over", "lonely",
            says=r"taker: numacre_attach: .*client.*\ngiver: nobody took the block\n",
        )  # fmt: skip

    def test_waiting(self):
        output = self.assert_works(self.daemon, "waiting", source="waiting.c")
        self.assertIn(f"took 4 blocks of {4 << 20} bytes\n", output)

    def test_waiting_without_a_waiter(self):
        self.assert_fails(self.daemon, "waiting", "lonely", says=r"waiter: numacre_attach: .*client.*\n")

    def test_quotas_and_events(self):
        self.daemon.cli("quota", "--user", os.geteuid(), "8M", "--soft", "4M")
        try:
            output = self.assert_works(self.daemon, "quotas_and_events", source="quotas_and_events.cpp")
        finally:
            self.daemon.cli("quota", "--user", os.geteuid(), "none")
        self.assertIn("\n8 blocks of 1 MiB, ", output)
        self.assertIn("\nfreed 6 blocks, ", output)

    def test_quotas_and_events_without_a_quota(self):
        self.assert_fails(
            self.daemon, "quotas_and_events",
            says="quotas_and_events: no quota was reached: no free block of 1048576 bytes.*\n",
        )  # fmt: skip

    def test_pmr(self):
        for arguments in ((), ("default",)):
            output = self.assert_works(self.daemon, "pmr", *arguments, source="pmr.cpp", text="frame block frame")
            self.assertEqual(output, promised_output("pmr.cpp"), arguments)

    def test_pmr_counts_words_longer_than_a_string_object(self):
        words = ["a-word-too-long-for-the-small-string-buffer-of-any-library"] + ["frame"] * 2
        for arguments in ((), ("default",)):
            done = run("pmr", *arguments, runtime_dir=self.daemon.runtime_dir, text="\n".join(words))
            self.assertEqual((done.returncode, done.stderr), (0, ""), arguments)
            self.assertEqual(done.stdout, f"2 frame\n1 {words[0]}\n", arguments)

    def test_pmr_counts_more_words_than_a_chunk_holds(self):
        words = [f"word-{number:06}-{'x' * 40}" for number in range(60000)]
        done = run("pmr", "default", runtime_dir=self.daemon.runtime_dir, text="\n".join(words))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.count("\n"), len(words))
        self.assert_nothing_is_left(self.daemon)

    def test_pmr_in_a_full_pool_says_so(self):
        words = [f"word-{number:06}-{'x' * 200}" for number in range(150000)]
        done = run("pmr", "default", runtime_dir=self.daemon.runtime_dir, text="\n".join(words))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (1, "", "pmr: the pool is full\n"))
        self.assert_nothing_is_left(self.daemon)

    def test_inline_loop_as_c_and_as_cxx(self):
        for name in ("inline_loop", "inline_loop_cxx11"):
            output = self.assert_works(self.daemon, name, source="inline_loop.c")
            # All numbers from 0 to 999999.
            self.assertTrue(output.endswith("the sum 499999500000\n"), output)

    def test_io_uring_echo(self):
        """Three connections at once, with messages that fit into no block; the server ends with the last of them."""
        server = subprocess.Popen(
            [program("io_uring_echo"), "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "NUMACRE_RUNTIME_DIR": self.daemon.runtime_dir},
        )  # fmt: skip
        self.addCleanup(server.kill)
        first = server.stdout.readline()
        self.echo_on_three_connections(int(first.rpartition(":")[2]))
        output, errors = server.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual((server.returncode, errors), (0, ""))
        self.assertRegex(first + output, rf"\A{pattern_of(promised_output('io_uring_echo.c'))}\Z")
        self.assertIn("echoed 3000000 bytes in ", output)
        self.assert_nothing_is_left(self.daemon)

    def test_io_uring_echo_goes_on_in_a_full_pool_and_above_its_quota(self):
        """The pool, or the quota, has fewer blocks than the ring has places, so that it is always short of some."""
        objects = "object=4096,colouring=off"
        for attributes in (f"{objects},count=60", f"{objects},count=4000,user-quota={os.geteuid()}=240K"):
            with self.subTest(attributes), Daemon("--pool", f"name=default,backing=small,{attributes}") as daemon:
                server = subprocess.Popen(
                    [program("io_uring_echo"), "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                    env={**os.environ, "NUMACRE_RUNTIME_DIR": daemon.runtime_dir},
                )  # fmt: skip
                self.addCleanup(server.kill)
                self.echo_on_three_connections(int(server.stdout.readline().rpartition(":")[2]))
                output, errors = server.communicate(timeout=PATIENCE_SECONDS)
                self.assertEqual((server.returncode, errors), (0, ""))
                self.assertIn("echoed 3000000 bytes in ", output)
                self.assertEqual(daemon.used_bytes(), 0)

    def echo_on_three_connections(self, port):
        connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        message = bytes(place % 251 for place in range(10000))
        with contextlib.ExitStack() as stack:
            for connection in connections:
                stack.enter_context(connection).settimeout(PATIENCE_SECONDS)
            for _ in range(100):
                for connection in connections:
                    connection.sendall(message)
                for connection in connections:
                    echo = b""
                    while len(echo) < len(message):
                        more = connection.recv(len(message) - len(echo))
                        self.assertTrue(more, "the server has closed the connection")
                        echo += more
                    self.assertEqual(echo, message)

    def test_private_pool_needs_no_daemon(self):
        output = self.assert_works(self.daemon, "private_pool", source="private_pool.c")
        self.assertEqual(output, promised_output("private_pool.c"))
        done = run("private_pool", runtime_dir="/nonexistent")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, output, ""))

    def test_private_pool_of_an_impossible_geometry(self):
        self.assert_fails(
            self.daemon, "private_pool", "3000",
            says=r"private_pool: numacre_open_private: .*frame_bytes is not a power of two \(frame 3000, .*\n",
        )  # fmt: skip

    def test_numa_policies_in_a_pool_of_one_numa_node(self):
        self.assert_fails(
            self.daemon, "numa_policies",
            says="numa_policies: numacre_set_policy: .*numa nodes 0x2 are not all within 0 .. 0.*\n",
        )  # fmt: skip


class TwoNumaNodes(ExamplesTest):
    def test_numa_policies(self):
        daemon = self.serve("--topology", "synthetic:2x512M", *POOLS)
        output = self.assert_works(daemon, "numa_policies", source="numa_policies.c")
        self.assertIn("pool of 2 numa nodes\n", output)
        self.assertRegex(output, r"blocks from numa nodes (0 1 0 1|1 0 1 0)\n")
        self.assertRegex(output, r"one call local: +a block from numa node 0\n")
        self.assertRegex(output, r"strict, node 1: +4 blocks, then -ENOMEM\n")
        self.assertRegex(output, r"preferred, node 1: +a block from numa node 0, ")


class WithoutDaemon(unittest.TestCase):
    def test_each_says_what_is_missing(self):
        needs_no_daemon = {"private_pool.c"}
        for source in sorted(set(SOURCES) - needs_no_daemon):
            name = pathlib.Path(source).stem
            arguments = ("default",) if name == "pmr" else ()
            with self.subTest(source):
                done = run(name, *arguments, runtime_dir="/nonexistent")
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                # One line, also of two processes.
                says = r"\A.*: no daemon at /nonexistent/attach\.sock .*: start numacred, .*\n\Z"
                self.assertRegex(done.stderr, says)


class Files(unittest.TestCase):
    def test_the_table_has_each_example_and_its_length(self):
        text = (EXAMPLES / "README.md").read_text()
        rows = re.findall(r"^\| \[`([^`]+)`\] \|.*\| (\d+) \|", text, re.MULTILINE)
        self.assertEqual(sorted(name for name, _ in rows), SOURCES)
        for name, lines in rows:
            length = (EXAMPLES / name).read_text().count("\n")
            self.assertEqual(int(lines), length, f"README.md has another number of lines for {name}")
            self.assertTrue(40 <= length <= 160, f"{name}: {length} lines are not one short example")

    def test_each_includes_public_headers_only(self):
        public = {"numacre/numacre.h", "numacre/numacre.hpp", "numacre/inline.h", "numacre/adaptors/io_uring.h"}
        for source in SOURCES:
            included = re.findall(r"#\s*include\s*[<\"](.*numacre.*)[>\"]", (EXAMPLES / source).read_text())
            self.assertTrue(included, source)
            self.assertLessEqual(set(included), public, source)


class Installed(unittest.TestCase):
    """Compiled with the command in the comment at the top of each, and with all warnings, against an installed tree."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="numacre-examples-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        for part in ("client", "deploy"):  # the libraries and headers, numacre.pc
            subprocess.run(
                ["cmake", "--install", str(BUILD / part), "--prefix", str(cls.folder)], check=True, capture_output=True
            )
        # A sanitizer's run-time library would have to come first in a plain program: there, only compile.
        cache = (BUILD / "CMakeCache.txt").read_text()
        cls.links = re.search(r"^NUMACRE_SANITIZE:\w+=$", cache, re.MULTILINE) is not None
        (package,) = cls.folder.rglob("numacre.pc")
        cls.environment = {**os.environ, "PKG_CONFIG_PATH": str(package.parent)}

    def commands(self, source):
        """Each `Build` line of the comment at the top, without what it is called and where it goes."""
        text = (EXAMPLES / source).read_text()
        found = re.search(r"^(?: [*]|//) Build:(.*\n(?:(?: [*]|//) {9}.*\n)*)", text, re.MULTILINE)
        self.assertTrue(found, f"{source}: no line 'Build:'")
        lines = [re.sub(r"^ ?(?:[*]|//)", "", line).strip() for line in found[1].splitlines()]
        for line in lines:
            self.assertRegex(line, r"^(cc|c\+\+) -std=\S+ ", source)
        return lines

    def build_all(self, c_compiler, cxx_compiler):
        for source in SOURCES:
            for number, command in enumerate(self.commands(source)):
                with self.subTest(source, command=command):
                    compiler = cxx_compiler if command.startswith("c++") else c_compiler
                    output = self.folder / f"{source}-{compiler}-{number}"
                    command = re.sub(r"^(cc|c\+\+) ", f"{compiler} {' '.join(WARNINGS)} ", command)
                    command = re.sub(r" -o \S+$", f" -o {output}", command)
                    if not self.links:
                        command = command.replace("--cflags --libs", "--cflags") + " -c"
                    done = subprocess.run(
                        command, shell=True, cwd=EXAMPLES, env=self.environment, capture_output=True, text=True
                    )
                    self.assertEqual((done.returncode, done.stderr), (0, ""), command)

    def test_by_gcc(self):
        self.build_all("gcc", "g++")

    def test_by_clang(self):
        for suffix in ("", "-22", "-19"):
            if shutil.which(f"clang++{suffix}"):
                return self.build_all(f"clang{suffix}", f"clang++{suffix}")
        print("no clang here: the examples were built by gcc only", flush=True)



if __name__ == "__main__":
    main()
