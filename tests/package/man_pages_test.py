#!/usr/bin/env python3
"""The man pages say what is there: each option, command, key and function occurs in its page, and no page invents one.
Each function of the C headers has a page, by itself or with its family.

What is there is asked of the programs (--help, the daemon's list of keys, --check-config) and read in the headers. The
pages are read in their sources, deploy/man/*.scd. scdoc and mandoc are needed only to render them.
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.daemon import Daemon, program  # noqa: E402
from support.runner import main  # noqa: E402

TOP = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR") or pathlib.Path(__file__).resolve().parents[2])
MAN = TOP / "deploy" / "man"
INCLUDE = TOP / "client" / "include"
PAGES = ("numacre.1", "libnumacre.3", "numacred.toml.5", "numacred.8", "numacre_dpdk.7")
# The page of a call, or of a family of calls, is called after the first.
# {page: header} of the adaptors, which have one page each.
ADAPTOR_PAGES = {"numacre_af_xdp.3": "af_xdp.h", "numacre_io_uring.3": "io_uring.h", "numacre_packet.3": "packet.h"}
# The libraries that the headers are over, if any, by pkg-config's names, and Debian's packages.
ADAPTOR_LIBRARIES = {"numacre_af_xdp.3": ("libxdp", "libxdp-dev"), "numacre_io_uring.3": ("liburing", "liburing-dev")}
CALL_PAGES = tuple(
    sorted({path.name.removesuffix(".scd") for path in MAN.glob("numacre_*.3.scd")}.difference(ADAPTOR_PAGES))
)
ALL_PAGES = PAGES + CALL_PAGES + tuple(ADAPTOR_PAGES)
LONG_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


class Page:
    """The source of a page, by its headings."""

    def __init__(self, name):
        self.name = name
        self.text = (MAN / f"{name}.scd").read_text()
        self.sections, self.subsections = {}, {}
        # A line of C that begins with # is no heading.
        section, where, literal = None, None, False
        for line in self.text.splitlines(keepends=True):
            literal ^= line == "```\n"
            if not literal and line.startswith("# "):
                section = where = line[2:].strip()
                self.sections[section] = ""
                continue
            if not literal and line.startswith("## "):
                where = (section, line[3:].strip())
                self.subsections[where] = ""
                continue
            if section is not None:
                self.sections[section] += line
                if where != section:
                    self.subsections[where] += line

    def names(self):
        """Those that `man` finds the page by."""
        return self.sections["NAME"].strip().partition(" - ")[0].split(", ")

    def literal_blocks(self, section):
        """As the reader sees them: scdoc's backslash escapes the next character."""
        found = re.findall(r"^```\n(.*?)^```\n", self.sections[section], re.M | re.S)
        return [re.sub(r"\\(.)", r"\1", block) for block in found]


def entries(text):
    """{term: description} of a definition list: a tab begins each line of a description, and none of a term."""
    found = re.findall(r"^(\*[^\n]*(?:\n[^\t\n][^\n]*)*)\n((?:\t[^\n]*\n|\n(?=\t))+)", text, re.M)
    return {re.sub(r"\s+", " ", term): description for term, description in found}


def terms(text, pattern):
    """What `pattern` finds in bold in the terms of a definition list."""
    return sorted(word for term in entries(text) for word in re.findall(rf"\*({pattern})\*", term))


class Interface:
    """The functions of numacre.h, and of inline.h those that are for use."""

    FUNCTION = r"(?:NUMACRE_API (?!extern)|NUMACRE_INLINE_FUNCTION )([^;{]*?\b(numacre_\w+)\([^)]*\))(?:;| {)"

    def __init__(self):
        self.prototypes, self.comments = {}, {}
        for header in ("numacre.h", "inline.h"):
            text = (INCLUDE / "numacre" / header).read_text()
            for comment, prototype, name in re.findall(rf"/\*((?:(?!\*/).)*)\*/\s+{self.FUNCTION}", text, re.S):
                # Names that end so are for use; what else inline.h has is between it and the library.
                if header == "inline.h" and not name.endswith("_inline"):
                    continue
                self.prototypes[name] = re.sub(r"\s+", " ", prototype)
                self.comments[name] = re.sub(r"\s+(\* )?", " ", comment).strip()

    def errors(self, name):
        """The errno values in the comment, with those of the functions that the comment refers to."""
        comment = self.comments[name]
        found = set(re.findall(r"(?<![A-Z_])-(E[A-Z0-9]+)\b", comment))
        for others in re.findall(r"(?:Errors: as|^As) (numacre_\w+(?: and numacre_\w+)*)", comment):
            found = found.union(*(self.errors(other) for other in others.split(" and ")))
        return found


def run(name, *arguments, cwd=None):
    environment = {key: value for key, value in os.environ.items() if key != "NUMACRE_RUNTIME_DIR"}
    return subprocess.run(
        [program(name), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        cwd=cwd,
    )


class Help:
    """What --help of a program or of one of its commands lists."""

    def __init__(self, *command):
        done = run(command[0], *command[1:], "--help")
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} --help ended with {done.returncode}: {done.stderr}")
        self.options = re.findall(r"^  (?:-\w,)?(--[a-z-]+)", done.stdout, re.M)
        groups = dict(re.findall(r"^([A-Z]\w+):\n((?:  .*\n)+)", done.stdout, re.M))
        self.commands = re.findall(r"^  ([a-z]+)\s", groups.get("Subcommands", ""), re.M)
        self.positionals = re.findall(r"^  ([A-Z]+)\s", groups.get("Positionals", ""), re.M)


def commands_of_numacre():
    """{"status": Help, ..., "bench replay": Help}"""
    found = {}
    for command in Help("numacre").commands:
        found[command] = Help("numacre", command)
        for below in found[command].commands:
            found[f"{command} {below}"] = Help("numacre", command, below)
    return found


class Rendering(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for tool in ("scdoc", "mandoc"):
            if shutil.which(tool) is None:
                raise unittest.SkipTest(f"{tool} is not installed (Debian package {tool}): the pages are not rendered")

    def test_every_page_renders_and_mandoc_has_no_warning(self):
        with tempfile.TemporaryDirectory() as scratch:
            for name in ALL_PAGES:
                with self.subTest(page=name):
                    output = pathlib.Path(scratch) / name
                    done = self.run_tool(MAN / "render", "scdoc", "1.2.3", MAN / f"{name}.scd", output)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    lint = self.run_tool("mandoc", "-T", "lint", "-W", "warning", output)
                    self.assertEqual((lint.returncode, lint.stdout + lint.stderr), (0, ""))
                    shown = self.run_tool("mandoc", "-T", "ascii", output).stdout
                    self.assertIn("numacre 1.2.3", shown)
                    self.assertNotIn("@VERSION@", shown)

    @staticmethod
    def run_tool(*command):
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


class EveryPage(unittest.TestCase):
    def test_the_pages_are_those_that_are_there(self):
        self.assertEqual(sorted(path.name for path in MAN.glob("*.scd")), sorted(f"{name}.scd" for name in ALL_PAGES))

    def test_no_line_is_too_long(self):
        for name in ALL_PAGES:
            lines = (MAN / f"{name}.scd").read_text().splitlines()
            self.assertEqual([line for line in lines if len(line) > 120], [], name)

    def test_a_page_refers_to_pages_that_exist(self):
        by_name = {f"{alias}.3" for name in CALL_PAGES for alias in Page(name).names()}.union(PAGES, ADAPTOR_PAGES)
        for name in ALL_PAGES:
            for page, section in re.findall(r"\*((?:lib)?numacre[\w.]*)\*\((\d)\)", Page(name).text):
                self.assertIn(f"{page}.{section}", by_name, name)

    def test_commands_that_are_spelled_out_are_understood(self):
        """`numacre resize default --dry-run` in bold or in an example: the command exists, and has these options."""
        commands, everywhere = commands_of_numacre(), Help("numacre").options
        seen = 0
        for name in ALL_PAGES:
            for line in re.findall(r"(?:\*|^\$ |^\$ \w+=\S+ )numacre ([^*\n]+)", Page(name).text, re.M):
                words = [word for word in line.split() if re.fullmatch(r"[a-z]+", word)]
                options = LONG_OPTION.findall(line)
                if not words:  # numacre --version
                    self.assertLessEqual(set(options), set(everywhere), f"{name}: numacre {line}")
                    continue
                command = " ".join(words[:2]) if " ".join(words[:2]) in commands else words[0]
                self.assertIn(command, commands, f"{name}: numacre {line}")
                known = set(everywhere + commands[command].options)
                self.assertLessEqual(set(options), known, f"{name}: numacre {line}")
                seen += 1
        self.assertGreater(seen, len(commands))

    def test_no_option_is_invented(self):
        commands = commands_of_numacre()
        of_numacre = set(Help("numacre").options).union(*(help.options for help in commands.values()))
        of_numacred = set(Help("numacred").options)
        of_eal = {"--iova-mode", "--mbuf-pool-ops-name", "--vdev"}
        allowed = dict(zip(PAGES, (of_numacre, set(), of_numacred, of_numacred, of_eal)))
        for name in ALL_PAGES:
            # Those behind a command are looked at above.
            text = re.sub(r"(\*|\$ )numacre [^*\n]+|\$\(pkg-config [^)]*\)", "", Page(name).text)
            self.assertLessEqual(set(LONG_OPTION.findall(text)), allowed.get(name, set()), name)

    def test_environment_variables_are_those_that_are_asked_for(self):
        def asked_for(*folders):
            files = [path for folder in folders for path in (TOP / folder).rglob("*.cpp")]
            names = {name for path in files for name in re.findall(r"getenv\(\"(\w+)\"\)", path.read_text())}
            names |= {name for path in files for name in re.findall(r"envname\(\"(\w+)\"\)", path.read_text())}
            return names

        for name, variables in (
            ("libnumacre.3", asked_for("client/src")),
            # TERM and systemd's variables that the daemon leaves to libsystemd stand in the text.
            ("numacre.1", asked_for("client/cli") - {"TERM"}),
            ("numacred.8", asked_for("daemon/src") | {"WATCHDOG_USEC", "LISTEN_FDS"}),
        ):
            page = Page(name)
            self.assertEqual(terms(page.sections["ENVIRONMENT"], "[A-Z_]+"), sorted(variables), name)


class PageOfNumacre(unittest.TestCase):
    def setUp(self):
        self.page = Page("numacre.1")

    def test_options_are_those_of_help(self):
        self.assertEqual(terms(self.page.sections["OPTIONS"], "--[a-z-]+"), sorted(Help("numacre").options))

    def test_commands_are_those_of_help(self):
        named = [name for section, name in self.page.subsections if section.startswith("COMMANDS THAT ")]
        self.assertEqual(sorted(named), sorted(commands_of_numacre()))

    def test_each_command_has_its_options_and_arguments(self):
        for command, help in commands_of_numacre().items():
            with self.subTest(command=command):
                (text,) = [text for (section, name), text in self.page.subsections.items() if name == command]
                self.assertEqual(terms(text, "--[a-z-]+"), sorted(set(help.options) - {"--help"}))
                synopsis = text.strip().split("\n\n")[0]
                self.assertTrue(synopsis.startswith(f"*numacre {command}*"), synopsis)
                self.assertLessEqual(set(help.positionals), set(re.findall(r"_([A-Z]+)_", synopsis)))
                # What `create` calls [OPTIONS] is listed below it.
                if "_OPTIONS_" not in synopsis:
                    self.assertEqual(set(LONG_OPTION.findall(synopsis)), set(help.options) - {"--help"})

    def test_exit_statuses_are_those_of_help(self):
        listed = re.search(r"Exit codes: (.*)", run("numacre", "--help").stdout).group(1)
        self.assertEqual(terms(self.page.sections["EXIT STATUS"], r"\d"), re.findall(r"(\d) [a-z]", listed))


class PageOfNumacred(unittest.TestCase):
    def setUp(self):
        self.page = Page("numacred.8")

    def test_options_are_those_of_help(self):
        self.assertEqual(terms(self.page.sections["OPTIONS"], "--[a-z-]+"), sorted(Help("numacred").options))

    def test_example_commands_are_accepted(self):
        checked = 0
        for block in self.page.literal_blocks("EXAMPLES"):
            command, _, printed = block.replace("\\\n", "").partition("\n")
            _prompt, name, *arguments = shlex.split(command)
            self.assertEqual(name, "numacred")
            with tempfile.TemporaryDirectory() as scratch:
                if printed:  # the example of a file with a mistake
                    (pathlib.Path(scratch) / "f").write_text("max-conections = 3\n")
                done = run("numacred", *arguments, "--check-config", cwd=scratch)
            self.assertEqual((done.returncode, done.stderr), (2, printed) if printed else (0, ""), command)
            checked += 1
        self.assertGreater(checked, 1)


def check_config(text):
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "numacred.toml"
        path.write_text(text)
        return run("numacred", "--config", path, "--check-config")


class PageOfTheConfiguration(unittest.TestCase):
    KINDS = {"DAEMON KEYS": "", "POOL KEYS": "[[pool]]\n"}
    # {what the page calls a type: how the daemon asks for one}
    TYPES = {
        "string": "a string in quotes",
        "size": "a byte count",
        "number": "a whole number",
        "boolean": "true or false",
    }

    def setUp(self):
        self.page = Page("numacred.toml.5")

    def test_keys_are_those_of_the_daemon(self):
        for section, begin in self.KINDS.items():
            refusal = check_config(f"{begin}there-is-no-such-key = 1\n").stderr
            keys = re.search(r"the keys are ([a-z, -]+)", refusal).group(1).split(", ")
            self.assertEqual(terms(self.page.sections[section], "[a-z-]+"), sorted(keys), section)

    def test_create_has_an_option_for_each_pool_key(self):
        """Whatever the file can say, `numacre create` can say too; the name is its argument."""
        refusal = check_config("[[pool]]\nthere-is-no-such-key = 1\n").stderr
        keys = re.search(r"the keys are ([a-z, -]+)", refusal).group(1).split(", ")
        options = {option.removeprefix("--") for option in Help("numacre", "create").options}
        self.assertEqual(sorted(options - {"help"}), sorted(set(keys) - {"name"}))

    def test_types_are_those_of_the_daemon(self):
        for section, begin in self.KINDS.items():
            for term, text in entries(self.page.sections[section]).items():
                key = term.strip("*")
                with self.subTest(key=key):
                    wanted = re.search(r"Type: (\w+)\.", text).group(1)
                    refusal = check_config(f"{begin}{key} = [1]\n").stderr
                    self.assertIn(f"wrong type: use {self.TYPES[wanted]}", refusal)

    def test_defaults_are_those_of_the_daemon(self):
        printed = check_config("[[pool]]\n").stdout
        compared = 0
        for section in self.KINDS:
            for term, text in entries(self.page.sections[section]).items():
                key = term.strip("*")
                with self.subTest(key=key):
                    text = re.sub(r"\s+", " ", text)
                    default = re.search(r"Default: (.+?)\. (?:Range|Run time): ", text).group(1)
                    self.assertRegex(text, r"Run time: \S")
                    (value,) = re.findall(rf"^{key} = \"?(.*?)\"?$", printed, re.M)
                    literal = re.fullmatch(r"\*([^*]+)\*", default)
                    if literal:  # else a sentence: it depends on the user or on another key
                        self.assertEqual(literal.group(1), value)
                        compared += 1
        self.assertGreater(compared, 20)

    def test_examples_are_accepted(self):
        examples = self.page.literal_blocks("EXAMPLES")
        self.assertEqual(len(examples), 3)
        for example in examples:
            done = check_config(example)
            self.assertEqual((done.returncode, done.stderr), (0, ""), example)


class PageOfTheLibrary(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.page = Page("libnumacre.3")
        cls.header = (INCLUDE / "numacre" / "numacre.h").read_text()
        cls.code = re.sub(r"/\*.*?\*/", "", cls.header, flags=re.S)
        cls.interface = Interface()
        cls.hpp = re.sub(r"//.*", "", (INCLUDE / "numacre" / "numacre.hpp").read_text())

    def macros(self):
        return set(re.findall(r"^#define (NUMACRE_\w+)", self.code, re.M)) - {"NUMACRE_API", "NUMACRE_NUMACRE_H"}

    def test_functions_are_those_of_the_headers(self):
        shown = [term.strip("*").replace("\\*", "*") for term in entries(self.page.sections["FUNCTIONS"])]
        self.assertEqual(sorted(shown), sorted(self.interface.prototypes.values()))

    def test_each_function_has_its_errors(self):
        for term, text in entries(self.page.sections["FUNCTIONS"]).items():
            if not term.startswith("*void "):
                self.assertRegex(text, r"\tErrors(, nothing is changed by any)?: ", term)

    def test_errors_are_those_of_the_list_and_explained(self):
        (error_list,) = TOP.glob("*/include/numacre/error.hpp")
        known = set(re.findall(r"\{Errc::\w+, (E[A-Z]+),", error_list.read_text()))
        named = set(re.findall(r"(?<![A-Z_])-(E[A-Z]+)\b", self.page.text))
        self.assertLessEqual(named, known)
        self.assertEqual(set(terms(self.page.sections["ERRORS"], "E[A-Z]+")), named)

    def test_every_constant_is_there_and_no_other(self):
        shown = set(re.findall(r"\bNUMACRE_[A-Z0-9_]+\b", self.page.text))
        variables = set(terms(self.page.sections["ENVIRONMENT"], "[A-Z_]+"))
        self.assertEqual(self.macros() - shown, set())
        # Not defined but asked for by the header.
        asked_for = set(re.findall(r"defined\((NUMACRE_\w+)\)", self.code))
        self.assertEqual(shown - self.macros() - variables, asked_for)

    def test_no_name_is_invented(self):
        types = set(re.findall(r"^(?:typedef .* |\} )(numacre_\w+);", self.code, re.M))
        text = self.page.text.replace("\\_", "_")
        others = {path.name.split(".")[0] for path in MAN.glob("numacre_*.scd")}  # pages of no function of that name
        self.assertLessEqual(set(re.findall(r"\bnumacre_\w+", text)), types.union(self.interface.prototypes, others))

    def test_see_also_has_the_page_of_each_call(self):
        found = re.findall(r"\*(numacre_\w+)\*\((3)\)", self.page.sections["SEE ALSO"])
        self.assertEqual(sorted(".".join(page) for page in found), sorted([*CALL_PAGES, *ADAPTOR_PAGES]))

    def test_the_classes_of_the_cpp_face(self):
        faces = re.sub(r"^namespace detail {.*?^}", "", self.hpp, flags=re.M | re.S)
        classes = re.findall(r"^(?:class |struct |enum class |using )(\w+)", faces, re.M)
        text = self.page.sections["C++"]
        for name in classes:
            self.assertRegex(text, rf"\*{name}\*|\*{name}::", f"{name} of numacre.hpp")
        members = set()
        for name in ("Pool", "Block", "Hold", "Channel", "TypedChannel", "Message"):
            face = rf"^class {name} {{\n(?:    [^\n]*\n|\n)*?public:\n(.*?)^private:"
            body = re.search(face, self.hpp, re.M | re.S).group(1)
            found = re.findall(r"^    (?:[\w:<>&*,]+ )+?[*&]?(\w+)\([^)]*\)[^;{]*(?:\{|;)", body, re.M)
            # Without constructors, and operator bool.
            members |= {f"{name}::{member}" for member in found if member not in (name, "bool")}
        self.assertEqual(set(re.findall(r"\*(\w+::\w+)\*", text)), members)

    def test_the_example_compiles_and_prints_what_the_page_says(self):
        source, printed, without_daemon = self.page.literal_blocks("EXAMPLES")
        library = pathlib.Path(os.environ.get("NUMACRE_LIB_DIR") or TOP / "build" / "release" / "lib")
        with tempfile.TemporaryDirectory(prefix="numacre-", dir="/tmp") as scratch:
            path = pathlib.Path(scratch) / "example.c"
            path.write_text(source)
            compiler = ["cc", "-std=c11", "-pedantic-errors", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}"]
            linking = [f"-L{library}", "-lnumacre", f"-Wl,-rpath,{library}", "-o", path.with_suffix("")]
            built = subprocess.run([*compiler, path, *linking], capture_output=True, text=True)
            self.assertEqual((built.returncode, built.stderr), (0, ""))

            def example(runtime_dir):
                environment = {**os.environ, "NUMACRE_RUNTIME_DIR": str(runtime_dir)}
                command = [path.with_suffix("")]
                return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)

            with Daemon("--pool", "name=default,capacity=16M,online=16M,frame=4K,largest=4M,backing=small") as daemon:
                done = example(daemon.runtime_dir)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, printed, ""))
            nobody = pathlib.Path(scratch) / "nobody"
            done = example(nobody)
            self.assertEqual((done.returncode, done.stderr), (1, without_daemon.replace("/run/numacre", str(nobody))))


class PagesOfCalls(unittest.TestCase):
    SECTIONS = (
        "NAME",
        "SYNOPSIS",
        "DESCRIPTION",
        "RETURN VALUE",
        "ERRORS",
        "THREADS AND SIGNALS",
        "EXAMPLE",
        "SEE ALSO",
    )
    THREADS_AND_SIGNALS = ("Blocking", "Thread safety", "Signal handlers", "Fork", "Death of the caller")

    @classmethod
    def setUpClass(cls):
        cls.interface = Interface()
        cls.pages = [Page(name) for name in CALL_PAGES]

    def test_every_function_of_the_headers_has_one_page(self):
        api = re.findall(r"^NUMACRE_API ", (INCLUDE / "numacre" / "numacre.h").read_text(), re.M)
        self.assertEqual(len([name for name in self.interface.prototypes if not name.endswith("_inline")]), len(api))
        named = sorted(name for page in self.pages for name in page.names())
        self.assertEqual(named, sorted(self.interface.prototypes))
        for page in self.pages:
            self.assertEqual(f"{page.names()[0]}.3", page.name)

    def test_every_page_has_all_sections(self):
        for page in self.pages:
            with self.subTest(page=page.name):
                self.assertEqual(tuple(page.sections), self.SECTIONS)
                for section, text in page.sections.items():
                    self.assertTrue(text.strip(), section)
                found = entries(page.sections["THREADS AND SIGNALS"])
                self.assertEqual(tuple(term.strip("*") for term in found), self.THREADS_AND_SIGNALS)

    def test_the_synopsis_is_what_the_headers_declare(self):
        for page in self.pages:
            with self.subTest(page=page.name):
                (synopsis,) = page.literal_blocks("SYNOPSIS")
                includes, _, prototypes = synopsis.partition("\n\n")
                wanted = ["#include <numacre/numacre.h>"]
                if any(name.endswith("_inline") for name in page.names()):
                    wanted.append("#include <numacre/inline.h>")
                self.assertEqual(includes.splitlines(), wanted)
                shown = [re.sub(r"\s+", " ", prototype).strip() for prototype in prototypes.split(";")]
                self.assertEqual(shown, [self.interface.prototypes[name] for name in page.names()] + [""])

    def test_errors_are_those_of_the_headers(self):
        for name, comment in self.interface.comments.items():
            if "Errors: " in comment:
                self.assertTrue(self.interface.errors(name), f"{name}: this test cannot read the errors in its comment")
        for page in self.pages:
            with self.subTest(page=page.name):
                wanted = set().union(*(self.interface.errors(name) for name in page.names()))
                shown = entries(page.sections["ERRORS"])
                self.assertEqual(sorted(term.strip("*-") for term in shown), sorted(wanted))
                for term, text in shown.items():
                    self.assertRegex(re.sub(r"\s+", " ", text), r"[\w)]\. Remedy: \w", f"{term}: cause and remedy")

    def test_no_name_is_invented(self):
        code = (INCLUDE / "numacre" / "numacre.h").read_text()
        known = set(self.interface.prototypes).union(re.findall(r"^(?:typedef .* |\} )(numacre_\w+);", code, re.M))
        known.update(re.findall(r"^#define (NUMACRE_\w+)", code, re.M))
        known.update(terms(Page("libnumacre.3").sections["ENVIRONMENT"], "[A-Z_]+"))
        for page in self.pages:
            text = page.text.replace("\\_", "_")
            self.assertEqual(set(re.findall(r"\b(?:numacre|NUMACRE)_\w+", text)) - known, set(), page.name)

    def test_the_examples_compile_and_call_the_functions(self):
        # The headers where the tree has them; an installed numacre has all in one folder.
        folders = (f"-I{INCLUDE}", f"-I{TOP / 'shm' / 'include'}")
        strict = ("-std=c11", "-pedantic-errors", "-Wall", "-Wextra", "-Werror")
        for page in self.pages:
            with self.subTest(page=page.name):
                (source,) = page.literal_blocks("EXAMPLE")
                for name in page.names():
                    self.assertIn(f"{name}(", source)
                command = ["cc", *strict, *folders, "-fsyntax-only", "-x", "c", "-"]
                done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=60)
                self.assertEqual((done.returncode, done.stderr), (0, ""))


class PagesOfAdaptors(unittest.TestCase):
    """Each function, type and flag of the header is in the page, with the prototype and the errors of the header."""

    def setUp(self):
        self.pages = [(Page(name), INCLUDE / "numacre" / "adaptors" / header) for name, header in ADAPTOR_PAGES.items()]

    def functions(self, header):
        """{name: (comment, prototype)} of those that are for programs."""
        found = re.findall(
            r"/\*((?:(?!\*/).)*)\*/\s+static inline ([^;{]*?\b(numacre_\w+)\([^)]*\)) {", header.read_text(), re.S
        )
        self.assertTrue(found, header)
        return {
            name: (comment, re.sub(r"\s+", " ", prototype))
            for comment, prototype, name in found
            if not comment.strip().startswith("Private")
        }

    def test_functions_are_those_of_the_header(self):
        for page, header in self.pages:
            with self.subTest(page=page.name):
                shown = [term.strip("*").replace("\\*", "*") for term in entries(page.sections["FUNCTIONS"])]
                self.assertEqual(shown, [prototype for _, prototype in self.functions(header).values()])

    def test_errors_are_those_of_the_header(self):
        for page, header in self.pages:
            texts = entries(page.sections["FUNCTIONS"]).values()
            for text, (name, (comment, _)) in zip(texts, self.functions(header).items(), strict=True):
                with self.subTest(page=page.name, function=name):
                    _, _, errors = comment.partition("Errors")
                    wanted = set(re.findall(r"(?<![A-Z_])-(E[A-Z0-9]+)\b", errors))
                    _, _, shown = text.partition("\tErrors")
                    self.assertEqual(set(re.findall(r"(?<![A-Z_])-(E[A-Z0-9]+)\b", shown)), wanted)

    def test_no_name_is_invented_and_every_flag_is_there(self):
        core = (INCLUDE / "numacre" / "numacre.h").read_text()
        for page, header in self.pages:
            with self.subTest(page=page.name):
                code = header.read_text()
                text = page.text.replace("\\_", "_")
                shown = set(re.findall(r"\b(?:numacre|NUMACRE)_\w+", text)) - {page.name.removesuffix(".3")}
                known = set(re.findall(r"\b(?:numacre|NUMACRE)_\w+", code + core))
                self.assertEqual(shown - known, set())
                # Flags and results.
                described = set(re.findall(r"^#define (NUMACRE_\w+) +(?:0x)?\d+u?(?: +/\*.*)?$", code, re.M))
                xdp = r"#define (NUMACRE_XDP_(?:CHUNK|HEADROOM|BATCH|WAIT|LOOK|MESSAGE)\w*)"
                described -= set(re.findall(xdp, code))
                uring = r"#define (NUMACRE_URING_(?:\w+_BYTES|\w+_MAX|FEED_BURST|REGISTER_\w+))"
                described -= set(re.findall(uring, code))
                self.assertGreaterEqual(len(described), 5)
                self.assertEqual(described - shown, set())

    def test_the_example_compiles(self):
        folders = (f"-I{INCLUDE}", f"-I{TOP / 'shm' / 'include'}")
        missing = []
        for page, _ in self.pages:
            library, package = ADAPTOR_LIBRARIES.get(page.name, (None, None))
            if library and subprocess.run(["pkg-config", "--exists", library]).returncode != 0:
                missing.append(f"{library} (Debian package {package})")
                continue
            for source in page.literal_blocks("EXAMPLE"):
                command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", *folders, "-fsyntax-only", "-x", "c", "-"]
                done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=60)
                self.assertEqual((done.returncode, done.stderr), (0, ""), page.name)
        if missing:
            self.skipTest(f"not installed: {', '.join(missing)}")


class Installation(unittest.TestCase):
    """deploy/man/CMakeLists.txt by itself: what it installs is found under the name of each page and each function."""

    PROJECT = """cmake_minimum_required(VERSION 3.25)
project(pages VERSION 1.2.3 LANGUAGES NONE)
set(CMAKE_INSTALL_MANDIR man)
set(NUMACRE_DAEMON ON)
set(NUMACRE_DPDK ON)
add_subdirectory({man} man)
"""

    def setUp(self):
        for tool in ("cmake", "scdoc", "mandoc"):
            if shutil.which(tool) is None:
                raise unittest.SkipTest(f"{tool} is not installed: the pages are not installed")

    def test_every_page_and_every_function_is_found(self):
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            (folder / "CMakeLists.txt").write_text(self.PROJECT.format(man=MAN))
            for command in (
                ("-S", folder, "-B", folder / "build"),
                ("--build", folder / "build"),
                ("--install", folder / "build", "--prefix", folder / "prefix"),
            ):
                done = subprocess.run(["cmake", *command], capture_output=True, text=True, timeout=120)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            man = folder / "prefix" / "man"
            wanted = set(ALL_PAGES).union(f"{name}.3" for name in Interface().prototypes)
            found = {path.name: path for path in man.glob("man*/*")}
            self.assertEqual(sorted(found), sorted(wanted))
            for name, path in found.items():
                self.assertEqual(path.parent.name, f"man{name[-1]}")
                # The folder is what `.so` counts from.
                done = subprocess.run(
                    ["mandoc", "-T", "ascii", path.relative_to(man)],
                    cwd=man,
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
                self.assertEqual(done.returncode, 0, done.stderr)
                shown = re.sub(r".\x08", "", done.stdout)
                names = re.search(r"^NAME\n(.*?)\n\n", shown, re.M | re.S).group(1).partition(" - ")[0]
                self.assertIn(name[:-2], re.findall(r"[\w.]+", names))


if __name__ == "__main__":
    main()
