#!/usr/bin/env python3
"""The handbook (deploy/handbook) builds, its links lead somewhere, and what it tells the reader to type exists.

The build needs the Python packages of deploy/handbook/requirements.txt. They go into a virtual environment below the
build folder, which is made once, and again when the list changes. Where pip cannot get the packages, the tests of the
build are skipped. Commands are compared with the --help of the programs, so a renamed flag is found in the handbook.
"""

import hashlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.parse

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import program  # noqa: E402
from support.html_page import Page  # noqa: E402
from support.runner import main  # noqa: E402

HANDBOOK = SOURCE / "deploy" / "handbook"
DOCS = HANDBOOK / "docs"
WORK = pathlib.Path(os.environ.get("NUMACRE_BUILD_DIR", SOURCE / "build" / "release")) / "handbook"
PIP_SECONDS, BUILD_SECONDS = 400, 120
PROGRAMS = ("numacre", "numacred")


class NoPackages(Exception):
    """pip could not get the packages: no network, or a registry that does not have them."""


def environment():
    """The virtual environment's folder. A folder whose stamp is not the list's is made anew: it may be half done."""
    folder, stamp = WORK / "venv", WORK / "venv.stamp"
    wanted = (HANDBOOK / "requirements.txt").read_bytes() + sys.version.encode()
    digest = hashlib.sha256(wanted).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return folder
    stamp.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    WORK.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True)
    command = [folder / "bin" / "python", "-m", "pip", "install", "--no-input", "-r", HANDBOOK / "requirements.txt"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS)
    except subprocess.TimeoutExpired:
        raise NoPackages(f"pip took more than {PIP_SECONDS} s") from None
    if done.returncode != 0:
        # Pins that contradict each other, or a line that is none, are our fault and no reason to skip.
        if re.search(r"ResolutionImpossible|Invalid requirement", done.stderr):
            raise AssertionError(f"requirements.txt cannot be installed:\n{done.stderr}")
        raise NoPackages(done.stderr.strip().splitlines()[-1])
    stamp.write_text(digest)
    return folder


class Built(unittest.TestCase):
    """The site, built once."""

    @classmethod
    def setUpClass(cls):
        try:
            folder = environment()
        except NoPackages as why:
            raise unittest.SkipTest(f"the handbook was not built, for pip cannot get its packages: {why}") from None
        cls.site = WORK / "site"
        cls.build = subprocess.run(
            [folder / "bin" / "mkdocs", "build", "--strict", "--clean", "-f", HANDBOOK / "mkdocs.yml", "-d", cls.site],
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        )

    def pages(self):
        self.assertEqual(self.build.returncode, 0, f"mkdocs build --strict:\n{self.build.stdout}{self.build.stderr}")
        # 404.html is served for any path, so its links begin at the site's root.
        return {path: Page(path) for path in sorted(self.site.rglob("*.html")) if path.name != "404.html"}

    def test_every_page_and_every_runbook_is_built(self):
        pages = {str(path.relative_to(self.site)) for path in self.pages()}
        wanted = {str(path.relative_to(DOCS).with_suffix(".html")) for path in DOCS.rglob("*.md")}
        wanted |= {f"runbooks/{path.stem}.html" for path in (SOURCE / "dashboards" / "runbooks").glob("*.md")}
        self.assertEqual(wanted - pages, set())

    def test_internal_links_resolve_and_nothing_is_loaded_from_elsewhere(self):
        pages = self.pages()
        wrong = []
        for path, page in pages.items():
            # Markdown leaves a [text][name] as it is if there is no line [name]: for it.
            for unknown in re.findall(r"\]\[[\w-]+\]", "".join(page.text)):
                wrong.append(f"{path.relative_to(self.site)}: {unknown[1:]} is defined nowhere")
            for link in page.links + page.loads:
                parts = urllib.parse.urlsplit(link)
                if parts.scheme or parts.netloc:
                    if link in page.loads:
                        wrong.append(f"{path.relative_to(self.site)} loads {link} from the network")
                    continue
                target = path
                if parts.path:
                    target = (path.parent / urllib.parse.unquote(parts.path)).resolve()
                if target.is_dir():
                    target /= "index.html"
                if not target.is_file():
                    wrong.append(f"{path.relative_to(self.site)} links to {link}: no such file")
                elif parts.fragment and target in pages:
                    if urllib.parse.unquote(parts.fragment) not in pages[target].ids:
                        wrong.append(f"{path.relative_to(self.site)} links to {link}: no such heading")
        self.assertEqual(wrong, [], "\n".join(wrong))


class Help:
    """What one `--help` says: {option: takes a value}, subcommands, how many arguments there may be (None: any)."""

    def __init__(self, command):
        done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60)
        text = done.stdout + done.stderr
        if done.returncode != 0 or "Usage:" not in text:
            raise AssertionError(f"{' '.join(command)} --help does not show a usage:\n{text}")
        self.text = text
        self.options, self.subcommands = {}, set()
        section = ""
        for line in text.splitlines():
            if re.match(r"\S.*:$", line):
                section = line
            elif section == "Options:" and (found := re.match(r"  (-\S+)(.*)$", line)):
                # A type in capitals or brackets follows the names of an option that takes a value.
                for name in found[1].split(","):
                    self.options[name] = bool(re.match(r" (?:[A-Z]{2,}|\[)", found[2]))
            elif section == "Subcommands:" and (found := re.match(r"  (\S+)", line)):
                self.subcommands.add(found[1])
        usage = re.search(r"^Usage: (.*)$", text, re.MULTILINE)[1]
        arguments = re.sub(r"\[?SUBCOMMAND\]?", "", usage.split("[OPTIONS]")[-1])
        places = re.findall(r"\[?\b[A-Z]+(?:\(\dx\))?\]?(?:\.\.\.)?", arguments)
        self.positionals_max = None if any("..." in place or "(" in place for place in places) else len(places)
        # numacred does not show which options take a value. It has no arguments: a word behind an option is its value.
        self.options_may_take_a_word = not places and not self.subcommands


def simple_commands(text):
    """The commands of a line of shell, as lists of words: what pipes, lists and $(...) consist of."""
    found = []

    def substituted(match):
        found.extend(simple_commands(match[1]))
        return "SUBSTITUTED"

    text = re.sub(r"\$\(([^()]*)\)", substituted, text.replace("\\\n", " "))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words, skip = [], False
    for word in [*lexer, ";"]:
        if set(word) <= set("();&|"):
            if words:
                found.append(words)
            words = []
        elif set(word) <= set("<>&"):
            skip = True  # the redirection's file
            if words and words[-1].isdigit():
                words.pop()
        elif skip:
            skip = False
        else:
            words.append(word)
    return found


def ours(words):
    """The command without what may stand before it (assignments, sudo), or None if it is not one of our programs."""
    words = list(words)
    while words and (words[0] == "sudo" or re.match(r"\w+=", words[0])):
        words.pop(0)
    return words if words and words[0] in PROGRAMS else None


class Commands(unittest.TestCase):
    """Every command of ours in the handbook and the runbooks has verbs and options that the programs have."""

    @classmethod
    def setUpClass(cls):
        cls.helps = {}

    def help_of(self, *command):
        if command not in self.helps:
            self.helps[command] = Help([program(command[0]), *command[1:]])
        return self.helps[command]

    def complaint(self, words):
        """What is wrong with a command, or None. words: with the program's name."""
        verbs = [words[0]]
        options = dict(self.help_of(*verbs).options)
        positionals, rest = [], list(words[1:])
        while rest:
            word = rest.pop(0)
            if re.match(r"-\D", word):
                name, equals, _ = word.partition("=")
                if name not in options:
                    return f"{' '.join(verbs)} has no option {name}"
                is_value_next = bool(rest) and not rest[0].startswith("-")
                if options[name] and not equals:
                    if not rest:
                        return f"{name} wants a value"
                    rest.pop(0)
                elif len(verbs) == 1 and self.help_of(*verbs).options_may_take_a_word and is_value_next and not equals:
                    rest.pop(0)
            elif word in self.help_of(*verbs).subcommands:
                verbs.append(word)
                options.update(self.help_of(*verbs).options)
            elif len(verbs) == 1 and self.help_of(*verbs).subcommands:
                return f"{verbs[0]} has no verb {word}"
            else:
                positionals.append(word)
        asks = self.help_of(*verbs)
        if asks.positionals_max is not None and len(positionals) > asks.positionals_max:
            return f"{' '.join(verbs)} takes no argument {positionals[-1]}"
        return None

    def commands(self):
        """(where, command as words) of every command of ours: fenced blocks of the kind console, and `code` in text."""
        for path in [*sorted(DOCS.rglob("*.md")), *sorted((SOURCE / "dashboards" / "runbooks").glob("*.md"))]:
            kind, lines = None, path.read_text().splitlines()
            for number, line in enumerate(lines, 1):
                where = f"{path.relative_to(SOURCE)}:{number}"
                if fence := re.match(r"\s*```(\S*)", line):
                    kind = fence[1] if kind is None else None
                elif kind == "console" and line.startswith("$ "):
                    typed, further = line[2:], number
                    while typed.endswith("\\"):
                        typed += "\n" + lines[further]
                        further += 1
                    for words in simple_commands(typed):
                        if (words := ours(words)) is not None:
                            yield where, words
                elif kind is None:
                    for code in re.findall(r"`((?:numacre|numacred) [^`]+)`", line):
                        for words in simple_commands(code):
                            if (words := ours(words)) is not None:
                                yield where, words

    def test_verbs_and_options_exist(self):
        seen, wrong = 0, []
        for where, words in self.commands():
            seen += 1
            if (complaint := self.complaint(words)) is not None:
                wrong.append(f"{where}: {' '.join(words)}: {complaint}")
        self.assertGreater(seen, 50, "the commands of the handbook are not found any more: see commands()")
        self.assertEqual(wrong, [], "\n".join(wrong))

    def check_config(self, where, arguments):
        command = [program("numacred"), *arguments, "--check-config"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, f"{where}: numacred {' '.join(arguments)}: {done.stdout}{done.stderr}")

    def test_configurations_are_accepted(self):
        seen = 0
        with tempfile.TemporaryDirectory(prefix="numacre-handbook-") as folder:
            file = pathlib.Path(folder) / "numacred.toml"
            for path in sorted(DOCS.rglob("*.md")):
                for block in re.findall(r"^```toml\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
                    seen += 1
                    file.write_text(block)
                    self.check_config(path.name, ["--config", str(file)])
            file.write_text("")
            for where, words in self.commands():
                if words[0] == "numacred" and "--pool" in words:
                    seen += 1
                    arguments = [word for word in words[1:] if word != "--check-config"]
                    self.check_config(where, ["--config", str(file), *arguments])
        self.assertGreater(seen, 3, "the configurations of the handbook are not found any more")

    def test_programs_compile(self):
        compiler = shutil.which("cc")
        if compiler is None:
            self.skipTest("no cc: the programs of the handbook were not compiled")
        with tempfile.TemporaryDirectory(prefix="numacre-handbook-") as folder:
            sources = sorted((DOCS / "programs").glob("*.c"))
            for path in sorted(DOCS.rglob("*.md")):
                blocks = re.findall(r"^```c\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
                for number, block in enumerate(blocks):
                    sources.append(pathlib.Path(folder) / f"{path.stem}-{number}.c")
                    sources[-1].write_text(block)
            self.assertGreater(len(sources), 2)
            for source in sources:
                done = subprocess.run(
                    [compiler, "-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
                    + ["-I", SOURCE / "client" / "include", "-I", SOURCE / "shm" / "include", source],
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
                self.assertEqual(done.returncode, 0, f"{source.name}:\n{done.stderr}")

    def test_a_wrong_command_is_found(self):
        for text, why in (
            ("numacre frobnicate", "no verb"),
            ("numacre resize default 1G --shrink-hard", "no option --shrink-hard"),
            ("sudo numacred --pol name=a", "no option --pol"),
            ("x=$(numacre status --jsn | jq .)", "no option --jsn"),
            ("NUMACRE_RUNTIME_DIR=x numacre status | numacre bench replay a.csv --fram 4K", "no option --fram"),
            ("numacre status extra", "no argument extra"),
        ):
            found = [self.complaint(words) for words in map(ours, simple_commands(text)) if words]
            self.assertTrue(any(why in (complaint or "") for complaint in found), f"{text}: {found}")
        for text in (
            "numacre resize default --node 0 -256M",
            "numacre status --json --runtime-dir /run/numacre 2>&1 | fold -s",
            "numacred --config a.toml 2>daemon.log & daemon=$!",
            "numacre quota --user USER SIZE --soft SIZE",
        ):
            found = [self.complaint(words) for words in map(ours, simple_commands(text)) if words]
            self.assertEqual(found, [None] * len(found), text)
            self.assertNotEqual(found, [], text)


if __name__ == "__main__":
    main()
