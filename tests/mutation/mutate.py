#!/usr/bin/env python3
"""Are the tests awake? Breaks the allocator in one place at a time (mutations.py) and requires that the named test
notices.

For each mutation: copies shm's headers, applies it, compiles the one test program against them with the flags of the
build, links it with the libraries as they are, runs it. Caught means that the program ran to its end and said what is
wrong. What does not compile, crashes, hangs, is cut off by a limit or runs no test proves nothing and is an error, like
a mutation whose old text is not found exactly once. The same programs must pass with nothing changed.

usage: mutate.py --check SOURCE                      are all old texts there, is the table of the model tests' README
                                                     right?
       mutate.py --table                             that table
       mutate.py --build BUILD [--only NAME ...] [--all-tests] SOURCE

--all-tests runs each program without its filter and lists every test that notices: for choosing the quickest.
Exit status: 0 all caught, 1 otherwise.
"""
import argparse
import concurrent.futures
import dataclasses
import datetime
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time

from mutations import MUTATIONS, PROGRAMS

HEADERS = os.path.join("shm", "include")
README = os.path.join("tests", "model", "README.md")
TABLE_BEGIN = "<!-- made by: tests/mutation/mutate.py --table -->\n"
TABLE_END = "<!-- end of the table -->\n"
COMPILE_SECONDS_MAX = 300


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class Mistake(Exception):
    """The list or its surroundings are wrong: nothing was learnt about the tests."""


def pattern_of(old):
    # Indentation, the ends of lines and comments between words may change without the loss of a mutation.
    return re.compile(r"\s(?:\s|//[^\n]*\n)*".join(re.escape(word) for word in old.split()))


def mutated(mutation, text):
    found = pattern_of(mutation.old).findall(text)
    if len(found) != 1:
        raise Mistake(f"{mutation.name}: its old text is in {mutation.file} {len(found)} times instead of once; the "
                      "code has changed: say anew what is to be broken")
    return pattern_of(mutation.old).sub(lambda _: mutation.new.strip("\n"), text)


def path_of(source, mutation):
    return os.path.join(source, HEADERS, "numacre", "shm", mutation.file)


def table():
    rows = ["| mutation | why it is fatal | noticed by |", "|---|---|---|"]
    for mutation in MUTATIONS:
        program = "" if mutation.program == "model_engine" else mutation.program + ": "
        rows.append(f"| {mutation.name.replace('_', ' ')} | {mutation.why} | {program}{mutation.filter} |")
    return "\n".join(rows) + "\n"


def check(source):
    mistakes = []
    names = [mutation.name for mutation in MUTATIONS]
    mistakes += [f"{name}: the name is there twice" for name in sorted(set(names)) if names.count(name) > 1]
    for mutation in MUTATIONS:
        try:
            mutated(mutation, read(path_of(source, mutation)))
        except Mistake as mistake:
            mistakes.append(str(mistake))
        test_source = os.path.join(source, PROGRAMS[mutation.program])
        for test in mutation.filter.split(":"):
            if not re.search(rf"\b{re.escape(re.split(r'[./*]', test)[-1] or 'TEST')}\b", read(test_source)):
                mistakes.append(f"{mutation.name}: {PROGRAMS[mutation.program]} has no test {test}")
    readme = read(os.path.join(source, README))
    if TABLE_BEGIN + table() + TABLE_END not in readme:
        mistakes.append(f"{README}: its table is not what mutate.py --table prints")
    for mistake in mistakes:
        print(mistake)
    print(f"{len(MUTATIONS)} mutations, {len(mistakes)} mistakes in the list")
    return 1 if mistakes else 0


@dataclasses.dataclass
class Outcome:
    what: str  # caught | passed | or what went wrong
    detail: str
    compile_seconds: float = 0
    run_seconds: float = 0
    output: str = ""


class Workshop:
    """Compiles and runs test programs against headers that are not the tree's."""

    def __init__(self, source, build, libraries, launcher):
        self.source = source
        self.build = build
        self.libraries = libraries
        self.launcher = [launcher] if launcher else []
        self.scratch = os.path.join(build, "tests", "mutation", "scratch")
        with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
            entries = json.load(file)
        self.commands = {os.path.realpath(os.path.join(entry["directory"], entry["file"])): entry for entry in entries}

    def try_one(self, name, program, test_filter, mutation, seconds_max):
        folder = os.path.join(self.scratch, name)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(os.path.join(self.source, HEADERS), os.path.join(folder, "include"))
        if mutation is not None:
            changed = os.path.join(folder, "include", "numacre", "shm", mutation.file)
            text = mutated(mutation, read(changed))
            with open(changed, "w", encoding="utf-8") as file:
                file.write(text)
        try:
            return self.compile_and_run(folder, program, test_filter, seconds_max)
        finally:
            if mutation is None or not os.environ.get("NUMACRE_MUTATION_KEEP"):
                shutil.rmtree(folder, ignore_errors=True)

    def compile_and_run(self, folder, program, test_filter, seconds_max):
        test_source = os.path.realpath(os.path.join(self.source, PROGRAMS[program]))
        if test_source not in self.commands:
            raise Mistake(f"{PROGRAMS[program]} is not in compile_commands.json of {self.build}")
        flags, compiler = self.flags_of(self.commands[test_source], os.path.join(folder, "include"))
        object_file = os.path.join(folder, program + ".o")
        binary = os.path.join(folder, program)
        outcome = Outcome("", "")
        began = time.monotonic()
        for command in (self.launcher + [compiler] + flags + ["-c", test_source, "-o", object_file],
                        [compiler, object_file, "-o", binary, "-pthread"] + self.libraries):
            try:
                result = subprocess.run(command, capture_output=True, text=True, errors="replace",
                                        timeout=COMPILE_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                return Outcome("the compiler hangs", " ".join(command))
            if result.returncode != 0:
                return Outcome("does not compile", result.stderr[-3000:])
        outcome.compile_seconds = time.monotonic() - began
        # The shortest schedule is of no interest here.
        environment = dict(os.environ, NUMACRE_MODEL_SHORTEN="0")
        environment.pop("NUMACRE_MODEL_LONG", None)
        command = [binary] + (["--gtest_filter=" + test_filter] if test_filter else [])
        began = time.monotonic()
        try:
            result = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment,
                                    timeout=seconds_max)
        except subprocess.TimeoutExpired:
            outcome.what = f"hangs (more than {seconds_max} s)"
            return outcome
        outcome.run_seconds = time.monotonic() - began
        outcome.output = result.stdout
        outcome.what, outcome.detail = verdict(result)
        return outcome

    def flags_of(self, entry, include):
        """The test's own flags, with the changed headers in place of the tree's; without debug information."""
        words = shlex.split(entry["command"])
        flags = []
        own = os.path.realpath(os.path.join(self.source, HEADERS))
        replaced = 0
        skip = False
        for word in words[1:]:
            if skip or word in ("-c", entry["file"]) or re.fullmatch(r"-g[0-9]?|-Werror|-W[a-z].*", word):
                skip = False
                continue
            if word == "-o":
                skip = True
                continue
            if word.startswith("-I") and os.path.realpath(os.path.join(entry["directory"], word[2:])) == own:
                word = "-I" + include
                replaced += 1
            flags.append(word)
        if replaced != 1:
            raise Mistake(f"the compile command of {entry['file']} names shm/include {replaced} times; nothing would "
                          "be changed")
        return flags + ["-w"], words[0]


def verdict(result):
    out = result.stdout
    if result.returncode < 0:
        return f"crashes (signal {-result.returncode})", (out + result.stderr)[-2000:]
    ran = re.search(r"^\[==========\] Running (\d+) tests?", out, re.MULTILINE)
    if ran is None or ran.group(1) == "0":
        return "runs no test", out[-2000:]
    if result.returncode == 0:
        if re.search(r"^\[  SKIPPED \]", out, re.MULTILINE) and not re.search(r"^\[       OK \]", out, re.MULTILINE):
            return "runs no test", out[-2000:]
        return "passed", ""
    if result.returncode != 1 or not re.search(r"^\[  FAILED  \]", out, re.MULTILINE):
        return f"ends oddly (status {result.returncode})", (out + result.stderr)[-2000:]
    # A model says what it found; anything else (CAPPED: a limit was reached) is no finding. A unit test names its line.
    found = re.search(r"STOPPED(?:, histories cut)?: (.*)", out)
    if found is None and "CAPPED" not in out:
        found = re.search(r": Failure\n((?:.*\n){0,4})", out)
    if found is None:
        return "fails without a finding", out[-2000:]
    return "caught", " ".join(found.group(1).split())


def failed_tests(outcome):
    return [
        f"{name} ({milliseconds} ms)"
        for name, milliseconds in re.findall(r"^\[  FAILED  \] (\S+?),? .*?\((\d+) ms\)$", outcome.output, re.MULTILINE)
    ]


def run(arguments):
    libraries = arguments.link or [os.path.join(arguments.build, "lib", "libnumacre_model_explorer.a"), "-lgtest_main",
                                   "-lgtest"]
    workshop = Workshop(os.path.abspath(arguments.source), os.path.abspath(arguments.build), libraries,
                        arguments.launcher)
    chosen = [m for m in MUTATIONS if not arguments.only or m.name in arguments.only]
    if arguments.only and len(chosen) != len(set(arguments.only)):
        raise Mistake("no such mutation: " + ", ".join(set(arguments.only) - {m.name for m in chosen}))
    if arguments.share > 1:
        part = datetime.date.today().toordinal() % arguments.share
        chosen = chosen[part :: arguments.share]
        print(f"today part {part + 1} of {arguments.share} of the list; all of it: without --share")
    for mutation in MUTATIONS:
        mutated(mutation, read(path_of(workshop.source, mutation)))
    jobs = []
    for program in sorted({m.program for m in chosen}):
        filters = sorted({m.filter for m in chosen if m.program == program})
        jobs.append(("unchanged_" + program, program, None if arguments.all_tests else ":".join(filters), None))
    jobs += [(m.name, m.program, None if arguments.all_tests else m.filter, m) for m in chosen]
    wrong = 0
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        futures = [(job, pool.submit(workshop.try_one, *job, arguments.seconds_max)) for job in jobs]
        for (name, program, _, mutation), future in futures:
            outcome = future.result()
            wanted = "passed" if mutation is None else "caught"
            good = outcome.what == wanted
            what = outcome.what if good or outcome.what != "passed" else "SURVIVED: no test notices"
            print(f"{'ok  ' if good else 'FAIL'} {name}: {what} [{program}, compiled in {outcome.compile_seconds:.1f} "
                  f"s, ran {outcome.run_seconds:.1f} s]{' ' + outcome.detail if outcome.detail else ''}")
            if arguments.all_tests:
                for test in failed_tests(outcome):
                    print("       ", test)
            sys.stdout.flush()
            wrong += not good
    print(f"{len(chosen)} mutations, {wrong} wrong, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--all-tests", action="store_true")
    parser.add_argument("--build")
    parser.add_argument("--launcher", help="put before the compiler: ccache")
    parser.add_argument("--link", action="append", metavar="LIB", help="default: the explorer in BUILD, and gtest")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--share", type=int, default=1, metavar="N", help="only every Nth of the list, others each day")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds-max", type=int, default=600, help="that one run of a program may take")
    parser.add_argument("source", nargs="?", default=".", help="the top of the tree")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(), end="")
        return 0
    if arguments.check:
        return check(arguments.source)
    if not arguments.build:
        parser.error("--build is needed")
    try:
        return run(arguments)
    except Mistake as mistake:
        print(mistake)
        return 1


if __name__ == "__main__":
    sys.exit(main())
