#!/usr/bin/env python3
"""Rules about the tree that a compiler does not check: who may include whom, where metric names are spelled, no
machine's own paths. Each rule carries planted violations that it must find and look-alikes that it must let pass;
--self-test tries them all.

usage: tidy.py [--rule NAME] [--list] [--self-test] TREE
Exit status: 0 clean, 1 violations (one line each: path:line: rule: what and why).
"""
import argparse
import fnmatch
import os
import re
import subprocess
import sys
import tempfile

import plain_english

PYTHON_COLUMNS = 120
CXX_SUFFIXES = (".h", ".hpp", ".c", ".cpp", ".cc", ".inc")

# The C++ library without what allocates threads, locks, files or text streams: shm/ makes no system call and no log.
SHM_STANDARD_HEADERS = set(
    """algorithm array atomic bit cassert cerrno charconv chrono climits compare concepts cstdarg cstddef cstdint
    cstdlib cstring functional initializer_list iterator limits memory new numeric optional ranges ratio source_location
    span stdint.h string string_view tuple type_traits utility variant vector version""".split()
)


class Tree:
    """The text files of a tree, by path relative to its root."""

    def __init__(self, root):
        self.root = root
        self.paths = sorted(self._list())

    def _list(self):
        git = subprocess.run(
            ["git", "-C", self.root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            capture_output=True,
        )
        if git.returncode == 0:
            names = [os.fsdecode(name) for name in git.stdout.split(b"\0") if name]
            return [name for name in names if os.path.isfile(os.path.join(self.root, name))]
        found = []
        for folder, folders, files in os.walk(self.root):
            folders[:] = [f for f in folders if f not in (".git", "build", "__pycache__")]
            found += [os.path.relpath(os.path.join(folder, f), self.root) for f in files]
        return found

    def read(self, path):
        with open(os.path.join(self.root, path), "rb") as file:
            data = file.read()
        return None if b"\0" in data else data.decode("utf-8", "replace")

    def text_files(self, under=("",), suffixes=None):
        for path in self.paths:
            if path.startswith(tuple(under)) and (suffixes is None or path.endswith(suffixes)):
                text = self.read(path)
                if text is not None:
                    yield path, text


INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def includes(tree, under):
    """(path, line, name as written, name as seen from the root for a relative one)"""
    for path, text in tree.text_files(under, CXX_SUFFIXES):
        for match in INCLUDE.finditer(text):
            name = match.group(2)
            resolved = name
            if match.group(1) == '"':
                beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
                if os.path.exists(os.path.join(tree.root, beside)) or name.startswith("."):
                    resolved = beside
            yield path, line_of(text, match.start()), name, resolved


def without_comments(text):
    """The same text, comments blanked, lines and string literals kept."""
    pattern = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)

    def blank(match):
        found = match.group(0)
        return re.sub(r"[^\n]", " ", found) if found.startswith("/") else found

    return pattern.sub(blank, text)


def shm_depends_on_nothing(tree):
    for path, line, name, resolved in includes(tree, ("shm/",)):
        # error.hpp and result.hpp are public headers as well, and so not in the engine's folder.
        inside = name.startswith("numacre/shm/") or resolved.startswith("shm/include/numacre/")
        inside = inside or name in ("numacre/error.hpp", "numacre/result.hpp")
        if not inside and name not in SHM_STANDARD_HEADERS:
            yield path, line, f"shm includes <{name}>; it may include numacre/shm/* and plain standard headers only"


def os_is_a_thin_seam(tree):
    for path, line, name, resolved in includes(tree, ("os/",)):
        if not (name.endswith(".h") and "numacre" not in name
                and not resolved.startswith(("client/", "daemon/", "shm/"))):
            yield path, line, f"os includes <{name}>; it may include libc's and the kernel's headers only"


URING_ADAPTOR = "client/include/numacre/adaptors/io_uring.h"


def client_library_is_light(tree):
    forbidden = re.compile(
        r"(^|/)(grpc|grpcpp|google/protobuf|prometheus|spdlog|toml\+\+|toml|CLI|nlohmann|systemd)/|\.pb\.h$"
        r"|^(numaif|numa|liburing|pcap)\.h$"
        r"|^(daemon|proto|tests)/|^numacre/v1/"
    )
    for path, line, name, resolved in includes(tree, ("client/src/", "client/include/")):
        # The program that includes an adaptor links what the adaptor is for; the library does not.
        if (path, name) == (URING_ADAPTOR, "liburing.h"):
            continue
        if forbidden.search(name) or forbidden.search(resolved):
            yield path, line, f"the client library includes <{name}>; it may use shm, libc and the C++ library only"


def daemon_does_not_use_client(tree):
    for path, line, name, resolved in includes(tree, ("daemon/",)):
        if resolved.startswith("client/") or re.match(r"numacre/((numacre|inline)\.hp?p?|adaptors/)", name):
            yield path, line, f"the daemon includes the client library ({name})"


def _only_in(tree, headers, home):
    for path, line, name, _ in includes(tree, ("shm/", "client/", "daemon/", "proto/")):
        if name in headers and not path.startswith(home):
            yield path, line, f"<{name}> is for {home} alone; use its interface"


def libnuma_only_in_topology(tree):
    yield from _only_in(tree, ("numa.h", "numaif.h"), "daemon/src/memory/topology")


def liburing_only_in_event_loop(tree):
    yield from _only_in(tree, ("liburing.h",), ("daemon/src/os/event_loop", URING_ADAPTOR))


# A folder of daemon/src includes those before it, and itself; what stands in daemon/src itself includes all of them.
DAEMON_FOLDERS = ("base", "os", "spec", "survival", "memory", "pool", "attach", "control", "metrics")


def daemon_folders_have_an_order(tree):
    for path, line, name, _ in includes(tree, ("daemon/src/",)):
        parts = path.split("/")
        if len(parts) < 4:
            continue
        if parts[2] not in DAEMON_FOLDERS:
            yield path, line, f"{parts[2]} is no folder of daemon/src: name its place in DAEMON_FOLDERS"
            continue
        target = name.split("/")[0] if "/" in name else ""
        if target in DAEMON_FOLDERS and DAEMON_FOLDERS.index(target) > DAEMON_FOLDERS.index(parts[2]):
            yield path, line, f"{parts[2]} includes {name}: the order is {', '.join(DAEMON_FOLDERS)}"
        if name in ("daemon.hpp", "config.hpp"):
            yield path, line, f"{parts[2]} includes {name}, which stands above all folders"


def nothing_includes_tests(tree):
    for path, line, name, resolved in includes(tree, ("os/", "shm/", "client/", "daemon/", "proto/", "deploy/",
                                                      "dashboards/")):
        if resolved.startswith("tests/") or "/tests/" in resolved or name.startswith("support/"):
            yield path, line, f"includes {name}: what ships must not depend on the tests"


TEST_NAME = re.compile(r"\w+_test")
PYTHON_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+)?import[ \t]+(\([^)]*\)|[^\n]*)", re.MULTILINE)


def no_test_imports_a_test(tree):
    for path, line, name, _ in includes(tree, ("tests/",)):
        if TEST_NAME.fullmatch(os.path.splitext(os.path.basename(name))[0]):
            yield path, line, f"includes {name}, which is a test: move what both need to tests/support/"
    for path, text in tree.text_files(("tests/",), (".py",)):
        for match in PYTHON_IMPORT.finditer(text):
            # "import a, b.c as d": each module. "from a.b import c": a.b, and c may be a module of the package a.b.
            modules = re.findall(r"(?:^|[(,])\s*([\w.]+)", match.group(2)) + [match.group(1) or ""]
            for module in modules:
                if TEST_NAME.fullmatch(module.split(".")[-1]):
                    what = f"imports {module}, which is a test: move what both need to tests/support/"
                    yield path, line_of(text, match.start()), what


# A row of the table in tests/README.md: the folder, and its labels where they are others than its name. `deep` goes
# with any of them and is none by itself.
FOLDER_ROW = re.compile(r"^\| `([\w/]+)`(?: \(([^)|]*)\))? \|", re.MULTILINE)


def labels_of_folders(tree):
    return {
        folder: (set(re.findall(r"`(\w+)`", labels)) or {folder}) - {"deep"}
        for folder, labels in FOLDER_ROW.findall(tree.read("tests/README.md") or "")
    }


def cmake_text(tree, path):
    return re.sub(r"(?m)#[^\n]*", "", tree.read(path))


def is_registered(path, words):
    """Whether one of the words is the file's name, with or without what CMake functions add to it, or a pattern that
    fits."""
    name = os.path.basename(path)
    stem = os.path.splitext(name)[0]
    return any(fnmatch.fnmatchcase(each, word) for word in words for each in (name, stem, stem.removesuffix("_test")))


def tests_have_labels_of_their_folder(tree):
    labels_of = labels_of_folders(tree)
    lists = {os.path.dirname(path): path for path in tree.paths if re.match(r"tests/.+/CMakeLists\.txt$", path)}
    for folder, path in lists.items():
        text = cmake_text(tree, path)
        of_tests = folder.removeprefix("tests/")
        while of_tests and of_tests not in labels_of:
            of_tests = os.path.dirname(of_tests)
        if not of_tests:
            yield path, 1, "the table in tests/README.md has no row for this folder"
            continue
        allowed = labels_of[of_tests]
        for match in re.finditer(r"\bLABELS[ \t\n]+((?:[a-z]+\b[ \t\n]*)+)", text):
            found = set(match.group(1).split())
            if not (found & allowed and found <= allowed | {"deep"}):
                yield path, line_of(text, match.start()), (
                    f"a test with the labels {', '.join(sorted(found))}; tests/README.md gives the folder {of_tests}: "
                    f"{', '.join(sorted(allowed))}"
                )
        for match in re.finditer(r"\badd_test\([ \t\n]*NAME[ \t\n]+(\S+)", text):
            if f"numacre_set_test_properties({match.group(1)} " not in text:
                what = f"{match.group(1)} has no label: call numacre_set_test_properties for it"
                yield path, line_of(text, match.start()), what
    for path in tree.paths:
        if not re.match(r"tests/.+_test\.(cpp|c|py|sh)$", path):
            continue
        folder = os.path.dirname(path)
        while folder and folder not in lists:
            folder = os.path.dirname(folder)
        words = set(re.findall(r"[\w*.]+", cmake_text(tree, lists[folder]))) - {"*"} if folder else set()
        if not is_registered(path, words):
            yield path, 1, "no CMakeLists.txt of its folder adds this test: it has no label, and nobody runs it"


METRIC_NAMES_HOME = "daemon/src/metrics/names.hpp"
LITERAL = re.compile(r'"((?:\\.|[^"\\\n])*)"')
METRIC_LIKE = re.compile(r"\bnumacre_[a-z_]+")


def metric_names_in_one_place(tree):
    # A test may spell a name: it pins what dashboards rely on. The command line tool and the C ABI have names of their
    # own.
    abi = set()
    for _, text in tree.text_files(("client/include/numacre/",)):
        abi.update(METRIC_LIKE.findall(text))
    for path, text in tree.text_files(("shm/", "client/", "daemon/", "proto/"), CXX_SUFFIXES):
        if path == METRIC_NAMES_HOME or path.startswith("client/cli/"):
            continue
        code = without_comments(text)
        for match in INCLUDE.finditer(code):
            code = code[: match.start()] + re.sub(r"[^\n]", " ", match.group(0)) + code[match.end() :]
        for literal in LITERAL.finditer(code):
            for name in METRIC_LIKE.findall(literal.group(1)):
                if name not in abi:
                    what = f'"{name}" looks like a metric; its name belongs in {METRIC_NAMES_HOME}'
                    yield path, line_of(code, literal.start()), what


# Spelled in pieces, or this file would break its own rules.
MACHINE_PATHS = re.compile("(?<![A-Za-z0-9_.}])/(?:%s)(?:/|-)" % "|".join(("wo" + "rk", "ro" + "ot", "fa" + "rm",
                                                                           "tmp/" + "build", "home/" + "[a-z]+")))
REGISTRY_HOSTS = re.compile(
    "|".join(
        re.escape(host)
        for host in (
            "pypi." + "org",
            "python" + "hosted.org",
            "registry." + "npmjs.org",
            "crates." + "io",
            "proxy." + "golang.org",
            "docker." + "io/",
            "ghcr." + "io",
            "quay." + "io",
            "gcr." + "io",
            "deb." + "debian.org",
            "archive." + "ubuntu.com",
            "apt." + "llvm.org",
        )
    )
    + "|arti" + "factory|nexus[.-]"
)


def no_machine_paths(tree):
    for path, text in tree.text_files():
        for match in MACHINE_PATHS.finditer(text):
            what = f"'{match.group(0)}...' is a path of one machine; derive it or take it as an argument"
            yield path, line_of(text, match.start()), what


def no_registry_hosts(tree):
    for path, text in tree.text_files():
        for match in REGISTRY_HOSTS.finditer(text):
            what = f"'{match.group(0)}' names a package registry; leave the choice to the machine's settings"
            yield path, line_of(text, match.start()), what


def scripts_are_clean(tree):
    shellcheck = subprocess.run(["sh", "-c", "command -v shellcheck"], capture_output=True).returncode == 0
    for path, text in tree.text_files():
        if re.match(r"#!.*\b(ba|da)?sh\b", text) or path.endswith(".sh"):
            full = os.path.join(tree.root, path)
            result = subprocess.run(["bash", "-n", full], capture_output=True, text=True)
            if result.returncode != 0:
                yield path, 1, "bash -n: " + result.stderr.strip().replace("\n", "; ")
            elif shellcheck:
                command = ["shellcheck", "-x", "-P", tree.root, "-S", "warning", "-f", "gcc", full]
                result = subprocess.run(command, capture_output=True, text=True, cwd=tree.root)
                for found in result.stdout.splitlines():
                    line, what = re.match(r".*?:(\d+):\d+: (.*)", found).groups()
                    yield path, int(line), "shellcheck: " + what
        elif re.match(r"#!.*\bpython3?\b", text) or path.endswith(".py"):
            try:
                compile(text, path, "exec")
            except SyntaxError as error:
                yield path, error.lineno or 1, f"python: {error.msg}"


# Comments and prose of these files are in plain English; a folder that is rewritten is added here.
PLAIN_ENGLISH = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "shm/*",
    "os/*",
    "client/*",
    "proto/*",
    "daemon/*",
    "deploy/*",
    "dashboards/*",
    "tests/README.md",
    "tests/*/README.md",
)
# Files of these folders that are not rewritten yet: path -> reason. A file without a finding has to leave this list.
NOT_YET_PLAIN = {}


def sentences_begin_with_a_subject(tree, not_yet_plain=NOT_YET_PLAIN):
    with_findings = set()
    for path, text in tree.text_files():
        if not any(fnmatch.fnmatch(path, pattern) for pattern in PLAIN_ENGLISH):
            continue
        for line, sentence in plain_english.findings(path, text):
            with_findings.add(path)
            if path not in not_yet_plain:
                yield path, line, f"name the subject first: {sentence}"
    # A planted tree of the self-test has none of the files that are listed.
    for path in not_yet_plain if "CMakeLists.txt" in tree.paths else ():
        if path not in with_findings:
            yield path, 1, "no sentence of this file breaks the rule: remove its line from NOT_YET_PLAIN"


def python_lines_are_short(tree):
    for path, text in tree.text_files():
        if path.endswith(".py") or re.match(r"#!.*\bpython3?\b", text):
            for number, line in enumerate(text.splitlines(), 1):
                if len(line) > PYTHON_COLUMNS:
                    yield path, number, f"{len(line)} columns; a line of Python has at most {PYTHON_COLUMNS}"


# rule -> (function, files that break it, files that look alike and are fine)
RULES = {
    "shm-depends-on-nothing": (
        shm_depends_on_nothing,
        [
            {"shm/include/numacre/shm/a.hpp": "#include <unistd.h>\n"},
            {"shm/include/numacre/shm/a.hpp": "#include <mutex>\n"},
            {"shm/include/numacre/shm/a.hpp": "#include <numacre/numacre.h>\n"},
            {"shm/include/numacre/shm/a.hpp": "#include <numacre/os/kernel.hpp>\n"},
            {"shm/include/numacre/shm/a.hpp": '#  include "../../../../client/src/x.hpp"\n', "client/src/x.hpp": ""},
        ],
        [
            {"shm/include/numacre/shm/a.hpp": '#include <atomic>\n#include "numacre/shm/b.hpp"\n'
                                              '// #include <unistd.h>\n'},
            {"shm/include/numacre/shm/a.h": "#include <stdint.h>\n"},
            {"shm/include/numacre/shm/a.hpp": '#include "numacre/error.hpp"\n#include "numacre/result.hpp"\n'},
        ],
    ),
    "os-is-a-thin-seam": (
        os_is_a_thin_seam,
        [
            {"os/include/numacre/os/kernel.hpp": "#include <string>\n"},
            {"os/include/numacre/os/kernel.hpp": "#include <numacre/shm/layout.hpp>\n"},
            {"os/include/numacre/os/kernel.hpp": '#include "../../../../daemon/src/log.h"\n', "daemon/src/log.h": ""},
        ],
        [
            {"os/include/numacre/os/kernel.hpp": "#include <sys/mman.h>\n#include <linux/futex.h>\n"},
            {"client/src/a.cpp": '#include "numacre/os/kernel.hpp"\n',
             "daemon/src/a.cpp": '#include "numacre/os/kernel.hpp"\n'},
        ],
    ),
    "client-library-is-light": (
        client_library_is_light,
        [
            {"client/src/a.cpp": "#include <grpcpp/grpcpp.h>\n"},
            {"client/src/a.cpp": '#include "numacre/v1/control.pb.h"\n'},
            {"client/include/numacre/numacre.hpp": "#include <prometheus/counter.h>\n"},
            {"client/src/a.cpp": '#include "../../daemon/src/pool.hpp"\n'},
            {"client/src/a.cpp": "#include <numa.h>\n"},
            {"client/include/numacre/adaptors/io_uring.h": "#include <numa.h>\n"},
        ],
        [
            {"client/include/numacre/adaptors/io_uring.h": "#include <liburing.h>\n#include <numacre/numacre.h>\n"},
            {"client/src/a.cpp": "#include <numacre/numacre.h>\n#include <numacre/shm/layout.hpp>\n"
                                 "#include <sys/mman.h>\n"},
            {"client/cli/a.cpp": "#include <grpcpp/grpcpp.h>\n"},
        ],
    ),
    "daemon-does-not-use-client": (
        daemon_does_not_use_client,
        [
            {"daemon/src/a.cpp": "#include <numacre/numacre.h>\n"},
            {"daemon/src/a.cpp": "#include <numacre/numacre.hpp>\n"},
            {"daemon/src/a.cpp": "#include <numacre/inline.h>\n"},
            {"daemon/src/a.cpp": '#include "../../client/src/pool.hpp"\n'},
        ],
        [{"daemon/src/a.cpp": '#include <numacre/shm/layout.hpp>\n#include "numacre/v1/control.grpc.pb.h"\n'}],
    ),
    "daemon-folders-have-an-order": (
        daemon_folders_have_an_order,
        [
            {"daemon/src/os/a.cpp": '#include "pool/registry.hpp"\n'},
            {"daemon/src/memory/a.hpp": '#include "pool/pool_manager.hpp"\n'},
            {"daemon/src/pool/a.cpp": '#include "daemon.hpp"\n'},
            {"daemon/src/misc/a.cpp": '#include "base/failure.hpp"\n'},
        ],
        [
            {"daemon/src/pool/a.cpp": '#include "pool/a.hpp"\n#include "memory/region.hpp"\n#include "engine.hpp"\n'},
            {"daemon/src/daemon.cpp": '#include "attach/attach_server.hpp"\n'},
        ],
    ),
    "libnuma-only-in-topology": (
        libnuma_only_in_topology,
        [{"daemon/src/pool/sizing.cpp": "#include <numa.h>\n"}, {"client/cli/a.cpp": "#include <numaif.h>\n"}],
        [{"daemon/src/memory/topology_libnuma.cpp": "#include <numa.h>\n#include <numaif.h>\n"}],
    ),
    "liburing-only-in-event-loop": (
        liburing_only_in_event_loop,
        [{"daemon/src/pool/sizing.cpp": "#include <liburing.h>\n"},
         {"client/include/numacre/numacre.h": "#include <liburing.h>\n"}],
        [{"daemon/src/os/event_loop.cpp": "#include <liburing.h>\n"},
         {"client/include/numacre/adaptors/io_uring.h": "#include <liburing.h>\n"}],
    ),
    "nothing-includes-tests": (
        nothing_includes_tests,
        [
            {"daemon/src/a.cpp": '#include "../../tests/support/x.hpp"\n', "tests/support/x.hpp": ""},
            {"client/src/a.cpp": '#include "support/x.hpp"\n'},
            {"shm/include/numacre/shm/a.hpp": '#include "tests/x.hpp"\n'},
        ],
        [{"tests/unit/a_test.cpp": '#include "support/x.hpp"\n'}],
    ),
    "no-test-imports-a-test": (
        no_test_imports_a_test,
        [
            {"tests/crash/a_test.py": "from b_test import Client  # noqa: E402\n"},
            {"tests/crash/a_test.py": "import os, b_test\n"},
            {"tests/crash/a_test.py": "def f():\n    import crash.b_test as b\n"},
            {"tests/crash/a_test.py": "from crash import (\n    c,\n    b_test,\n)\n"},
            {"tests/support/a.py": "from b_test import Client\n"},
            {"tests/unit/a_test.cpp": '#include "unit/b_test.cpp"\n'},
        ],
        [
            {"tests/crash/a_test.py": "import unittest\nfrom support.chaos_client import ChaosClient\n"
                                      "from support.x import has_b_test_y\n"},
            {"tests/crash/a_test.py": 'run("b_test.py")  # import b_test\n'},
            {"tests/unit/a_test.cpp": '#include "unit/test_pool.hpp"\n#include "support/actor.hpp"\n'},
        ],
    ),
    "tests-have-labels-of-their-folder": (
        tests_have_labels_of_their_folder,
        [
            {"tests/README.md": "| `crash` | a |\n",
             "tests/crash/CMakeLists.txt": "numacre_add_gtest(a LABELS stress)\n"},
            {"tests/README.md": "| `crash` | a |\n",
             "tests/crash/CMakeLists.txt": "numacre_add_gtest(a LABELS crash stress)\n"},
            {"tests/README.md": "| `crash` | a |\n",
             "tests/crash/CMakeLists.txt": "numacre_add_gtest(a LABELS\n  deep TIMEOUT 3)\n"},
            {"tests/README.md": "| `crash` | a |\n", "tests/unit/CMakeLists.txt": "numacre_add_gtest(a LABELS unit)\n"},
            {"tests/README.md": "| `bench` | a |\n| `bench/b` (`unit`) | a |\n",
             "tests/bench/b/CMakeLists.txt": "f(a LABELS bench)\n"},
            {"tests/README.md": "| `crash` | a |\n", "tests/crash/CMakeLists.txt": "add_test(NAME a COMMAND a)\n"},
            {"tests/README.md": "| `crash` | a |\n", "tests/crash/CMakeLists.txt": "# a_test.py\n",
             "tests/crash/a_test.py": ""},
            {"tests/README.md": "| `crash` | a |\n", "tests/crash/a_test.py": ""},
        ],
        [
            {
                "tests/README.md": "| folder |\n| `crash` (`crash`, `stress`) | a |\n",
                "tests/crash/CMakeLists.txt": "f(a_test.py LABELS crash deep TIMEOUT 3)\nf(b\n LABELS stress)\n"
                                              "f(c LABELS ${arg_LABELS})\nadd(x/d_*_test.cpp)\n",
                "tests/crash/a_test.py": "",
                "tests/crash/b_test.py": "",
                "tests/crash/d_e_test.cpp": "",
            },
            {
                "tests/README.md": "| `bench` | a |\n",
                "tests/bench/c/CMakeLists.txt": "add_test(NAME a COMMAND a)\n"
                                                "numacre_set_test_properties(a LABELS bench)\n",
            },
        ],
    ),
    "metric-names-in-one-place": (
        metric_names_in_one_place,
        [
            {"daemon/src/metrics/scan.cpp": 'auto n = "numacre_free_blocks";\n'},
            {"client/src/a.cpp": 'auto n = "help numacre_frees_total";\n'},
        ],
        [
            {"daemon/src/metrics/names.hpp": 'auto n = "numacre_free_blocks";\n'},
            {"daemon/src/a.cpp": '// "numacre_free_blocks" is in names.hpp\n#include "numacre_x.hpp"\n'},
            {"client/cli/a.cpp": 'auto n = "numacre_free_blocks";\n'},
            {
                "client/include/numacre/numacre.h": "int numacre_alloc(void);\n",
                "client/src/a.cpp": 'auto n = "numacre_alloc: size 0";\n',
            },
        ],
    ),
    "no-machine-paths": (
        no_machine_paths,
        [
            {"README.md": "cd /wo" + "rk/main\n"},
            {"deploy/a": "ls /ro" + "ot/x\n"},
            {"CMakeLists.txt": "set(x /tmp/bu" + "ild-me)\n"},
        ],
        [{"README.md": "a framework/main, net" + "work/x, ${here}/wo" + "rk/x, /run/numacre, /tmp/x\n"}],
    ),
    "no-registry-hosts": (
        no_registry_hosts,
        [{"deploy/a": "pip install -i https://pypi." + "org/simple x\n"}, {"deploy/b": "FROM docker." + "io/debian\n"}],
        [{"README.md": "Debian 12, https://www.debian.org/\n"}],
    ),
    "sentences-begin-with-a-subject": (
        sentences_begin_with_a_subject,
        [
            {"shm/a.hpp": "// The frames.\n// Who frees a block\n// names it.\n"},
            {"shm/a.hpp": "// It is not\n// free. What is free has no owner.\n"},
            {"shm/a.hpp": "int frames;  // what the owner holds\n"},
            {"shm/a.hpp": "/** Takes a block.\n *  Whoever dies here\n *  holds it. */\n"},
            {"shm/a.hpp": "/// @param order at most 9\n/// @return What is left.\n"},
            {"shm/a.hpp": "const char *a = R\"(// fine)\"; // Whose block it is.\nauto b = 1'000; // the owner's\n"},
            {"proto/a.proto": "// The same, of a pool.\nmessage A {}\n"},
            {"proto/a.proto": "// A pool. The same for clients.\nmessage A {}\n"},
            {"daemon/a.py": 'def f():\n    """One without an owner."""\n'},
            {"daemon/a.py": "# A daemon. One that is\n# stopped answers nothing.\n"},
            {"deploy/a": "#!/bin/sh\necho '# fine'  # what the shell prints\n"},
            {"deploy/CMakeLists.txt": "set(a [[# fine]])\n# Whom it serves.\n"},
            {"deploy/a.toml": 'a = "#"  # So often it is tried.\n'},
            {"deploy/a.yml": "a: it's  # One of it is enough.\n"},
            {"deploy/a.scd": "a(1)\n\n# NAME\n\na - a command\n\n\tWhat it prints is\n\tJSON.\n"},
            {"README.md": "# Pools\n\nA pool `a\nb` has\nframes. **What** they hold is data.\n"},
            {"README.md": "- The first.\n- Who frees it.\n"},
            {"tests/a/README.md": "| name | what it is |\n|---|---|\n| a | the same |\n"},
        ],
        [
            {"shm/a.hpp": "// A caller that frees a block names\n// who holds it. The same caller does what it "
                          "likes.\n"},
            {"shm/a.hpp": "// What is free?\n// --- who waits -----\nauto a = \"// What is free.\";\n"},
            {"shm/a.hpp": "// So, often; one thread, one of its blocks. The same\n// two blocks again.\n"},
            {"shm/a.hpp": 'auto a = R"x(\n// What is free.\n)x";\nchar b = \'"\'; auto c = "// Who.";\n'},
            {"daemon/a.py": 'a = "# What is free."\n"""Runs it:\n\n    what is free\n\n    The end."""\n'},
            {"deploy/a.sh": "#!/bin/sh\ncat <<END\n# What is free.\nEND\necho '\n# Who.\n'\n"},
            {"deploy/CMakeLists.txt": "set(a [[\n# What is free.\n]])\nset(b \"\n# Who.\n\")\n"},
            {"deploy/a.toml": '# A pool.\na = "# Who."\n'},
            {"README.md": "# What it is\n\n```sh\n# What is free.\n```\n\n    what is free\n\n"
                          "`What is free` is a command.\n"},
            {"README.md": "| who | what it does |\n|---|---|\n| Who frees it? | the same thread |\n"},
            {"deploy/a.scd": "what(1)\n\n# WHAT IT DOES\n\n```\nwhat is free\n```\n"},
            {"tests/unit/a.cpp": "// What is free: not looked at yet.\n"},
        ],
    ),
    "python-lines-are-short": (
        python_lines_are_short,
        [{"tests/a.py": "a = 1\n" + "b" * 121 + "\n"}, {"deploy/a": "#!/usr/bin/env python3\n# " + "b" * 119 + "\n"}],
        [{"tests/a.py": "b" * 120 + "\n", "README.md": "b" * 121 + "\n", "deploy/a": "#!/bin/sh\n" + "b" * 121 + "\n"}],
    ),
    "scripts-are-clean": (
        scripts_are_clean,
        [
            {"deploy/a": "#!/bin/bash\nif true; then\n"},
            {"deploy/a.py": "#!/usr/bin/env python3\ndef f(:\n"},
        ],
        [{"deploy/a": "#!/bin/bash\necho ok\n", "deploy/b.py": "print(1)\n"}],
    ),
}


def check(tree, names):
    violations = 0
    for name in names:
        for path, line, what in RULES[name][0](tree):
            print(f"{path}:{line}: {name}: {what}")
            violations += 1
    return violations


def self_test():
    failures = 0

    def try_one(rule, files, must_find):
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w") as file:
                    file.write(text)
            found = list(RULES[rule][0](Tree(root)))
        if bool(found) != must_find:
            print(f"{rule}: {'missed the violation in' if must_find else 'false alarm on'} {files}: {found}")
            return 1
        return 0

    tried = 0
    for rule, (_, planted, clean) in RULES.items():
        assert planted and clean, f"{rule} needs a planted violation and a look-alike"
        for files in planted:
            failures += try_one(rule, files, True)
        for files in clean:
            failures += try_one(rule, files, False)
        tried += len(planted) + len(clean)
    with tempfile.TemporaryDirectory() as root:
        for path, text in (("CMakeLists.txt", ""), ("shm/a.hpp", "// Who frees it.\n"), ("shm/b.hpp", "// A block.\n")):
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w") as file:
                file.write(text)
        found = list(sentences_begin_with_a_subject(Tree(root), {"shm/a.hpp": "", "shm/b.hpp": "", "shm/gone.hpp": ""}))
        if [path for path, _, _ in found] != ["shm/b.hpp", "shm/gone.hpp"]:
            print(f"sentences-begin-with-a-subject: wrong exceptions: {found}")
            failures += 1
    print(f"self-test: {len(RULES)} rules, {tried} planted trees, {failures} wrong")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rule", choices=sorted(RULES))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("tree", nargs="?", default=".")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(RULES))
        return 0
    if arguments.self_test:
        return 1 if self_test() else 0
    tree = Tree(arguments.tree)
    if "CMakeLists.txt" not in tree.paths:
        parser.error(f"{arguments.tree} is not the top of the tree (no CMakeLists.txt); nothing would be checked")
    violations = check(tree, [arguments.rule] if arguments.rule else list(RULES))
    print(f"{len(tree.paths)} files, {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
