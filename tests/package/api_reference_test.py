#!/usr/bin/env python3
"""The API reference (deploy/handbook/api) builds without a warning. Its text for a function is the comment above the
function in the header.

filter.py makes doxygen's comments of the headers' plain ones. A mistake in filter.py gives a comment to another
declaration, or loses a part of the comment. So the words of the pages are compared with the words of the headers, which
are read here without filter.py.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.parse
import xml.etree.ElementTree

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.html_page import Page  # noqa: E402
from support.runner import main  # noqa: E402

WORK = pathlib.Path(os.environ.get("NUMACRE_BUILD_DIR", SOURCE / "build" / "release")) / "api_reference"
API = pathlib.Path("deploy", "handbook", "api")
CLIENT = pathlib.Path("client", "include", "numacre")
SHM = pathlib.Path("shm", "include", "numacre")
BUILD_SECONDS = 120
C_HEADERS = (CLIENT / "numacre.h", CLIENT / "inline.h")
CPP_HEADERS = (CLIENT / "numacre.hpp", SHM / "error.hpp", SHM / "result.hpp")
NOT_FOR_PROGRAMS = {"NUMACRE_API", "NUMACRE_NUMACRE_H"}
COMMENT = r"/\*((?:(?!\*/).)*)\*/"


def build(tree, output):
    """Runs doxygen in a tree. What it prints are warnings."""
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    options = f"@INCLUDE = Doxyfile\nOUTPUT_DIRECTORY = {output}\nHTML_OUTPUT = html\nGENERATE_XML = YES\n"
    return subprocess.run(
        ["doxygen", "-"],
        input=options,
        cwd=tree / API,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_SECONDS,
    )


def words(text):
    """What is compared: marks of comments, of lists and of links are not."""
    return re.findall(r"\w+", text.lower())


def text_of(*elements):
    return " ".join(text for element in elements if element is not None for text in element.itertext())


class Entry:
    """A member or a compound of doxygen's XML."""

    def __init__(self, element):
        self.id = element.get("id")
        self.kind = element.get("kind")
        self.name = (element.findtext("name") or element.findtext("compoundname")).split("::")[-1]
        self.is_deleted = (element.findtext("argsstring") or "").endswith("=delete")
        self.words = words(text_of(element.find("briefdescription"), element.find("detaileddescription")))


class Reference:
    """The entries of a reference that is built."""

    def __init__(self, output):
        self.members, self.enumerators, self.compounds, self.headings, self.main_page = [], [], [], [], None
        for path in sorted((output / "xml").glob("*.xml")):
            for compound in xml.etree.ElementTree.parse(path).getroot().findall("compounddef"):
                if compound.get("id") == "indexpage":
                    self.main_page = compound
                elif compound.get("kind") in ("class", "struct"):
                    self.compounds.append(Entry(compound))
                for section in compound.findall("sectiondef"):
                    if section.get("kind") == "user-defined":
                        self.headings.append(words(text_of(section.find("header"), section.find("description"))))
                    for member in section.findall("memberdef"):
                        # A class's own page has its members; a namespace has them once more in its header's page.
                        if member.get("prot") == "public":
                            self.members.append(Entry(member))
                            self.enumerators += [Entry(value) for value in member.findall("enumvalue")]

    def described(self, name, kinds=("function", "define", "typedef", "variable", "friend", "enum")):
        """The words of every member of that name."""
        return [member.words for member in self.members if member.name == name and member.kind in kinds]


def requires_doxygen():
    if shutil.which("doxygen") is None:
        raise unittest.SkipTest("the API reference was not built, for there is no doxygen (package doxygen)")


class Built(unittest.TestCase):
    """The reference of this tree, built once."""

    @classmethod
    def setUpClass(cls):
        requires_doxygen()
        cls.done = build(SOURCE, WORK)
        cls.reference = Reference(WORK)

    def test_doxygen_warns_of_nothing(self):
        self.assertEqual((self.done.returncode, self.done.stdout), (0, ""), f"doxygen:\n{self.done.stdout}")

    def assert_described(self, name, comment):
        """One entry of that name has the comment's words."""
        found = self.reference.described(name)
        self.assertIn(words(comment), found, f"{name}: the reference does not have the comment of the header")

    def test_every_function_of_c_has_its_comment(self):
        for header in C_HEADERS:
            text = (SOURCE / header).read_text()
            begin = r"^(?:NUMACRE_API (?!extern)|NUMACRE_INLINE_FUNCTION (?=\w+ \w+_inline\())[^;{(]*?(\w+)\("
            functions = re.findall(begin, re.sub(COMMENT, "", text, flags=re.DOTALL), re.MULTILINE)
            self.assertGreater(len(functions), 1)
            comments = {name: comment for comment, name in re.findall(COMMENT + r"\n" + begin[1:], text, re.DOTALL)}
            for name in functions:
                with self.subTest(function=name):
                    self.assertIn(name, comments, "no comment above it")
                    self.assert_described(name, comments[name].replace("\n *", "\n"))

    def test_every_macro_has_its_comment_and_no_heading(self):
        text = (SOURCE / CLIENT / "numacre.h").read_text()
        checked = 0
        for line in re.finditer(r"^#define (NUMACRE_\w+)(.*)$", text, re.MULTILINE):
            if line[1] in NOT_FOR_PROGRAMS:
                continue
            with self.subTest(macro=line[1]):
                own = re.search(COMMENT + "$", line[2])
                above = re.search("^" + COMMENT + r"\n\Z", text[: line.start()], re.DOTALL | re.MULTILINE)
                if above and own:
                    heading = words(above[1].replace("\n *", "\n"))
                    ends = [shown[-len(heading) :] for shown in self.reference.headings]
                    self.assertIn(heading, ends)
                self.assertTrue(own or above, "no comment")
                self.assert_described(line[1], (own or above)[1].replace("\n *", "\n"))
                checked += 1
        self.assertGreater(checked, 20)

    def test_every_class_and_type_has_its_comment(self):
        for header in CPP_HEADERS:
            text = (SOURCE / header).read_text()
            text = re.sub(r"^namespace detail {.*?^}", "", text, flags=re.MULTILINE | re.DOTALL)
            begin = r"^(?:template .*\n)?(?:class|struct|enum class|using) (?:\[\[nodiscard\]\] )?(\w+)"
            comments = {}
            for found in re.finditer(r"((?:^//.*\n)*)" + begin, text, re.MULTILINE):
                comments.setdefault(found[2], []).append(re.sub("^//", "", found[1], flags=re.MULTILINE))
            self.assertGreater(len(comments), 0)
            for name, all_of_them in comments.items():
                compounds = [found for found in self.reference.compounds if re.match(rf"{name}\b", found.name)]
                shown = [compound.words for compound in compounds]
                shown += self.reference.described(name, kinds=("typedef", "enum"))
                for comment in all_of_them:
                    with self.subTest(name=name):
                        self.assertNotEqual(words(comment), [], "no comment above it")
                        self.assertIn(words(comment), shown)

    def test_every_member_function_has_its_comment(self):
        checked = 0
        for header in CPP_HEADERS:
            text = (SOURCE / header).read_text()
            public = re.findall(
                r"^(?:class [^\n]*\{\npublic:|struct [^\n]*\{)\n(.*?)^(?:private:|\};)", text, re.MULTILINE | re.DOTALL
            )
            begin = r"^ {4}(?![ /])(?:[\w:<>&*, ]+?[ *&])??(operator (?:bool|[=*>-]+)|operator[=*>-]+|~?\w+)\("
            for body in public:
                for found in re.finditer(r"((?:^ {4}//.*\n)*)" + begin, body, re.MULTILINE):
                    comment = re.sub("^ *//", "", found[1], flags=re.MULTILINE)
                    with self.subTest(header=header.name, member=found[2]):
                        self.assertNotEqual(self.reference.described(found[2]), [], "it has no entry")
                        if comment:
                            self.assert_described(found[2], comment)
                            checked += 1
        self.assertGreater(checked, 20)
        # Which of them has no comment is known best by doxygen.
        for member in self.reference.members:
            if not member.is_deleted:
                self.assertNotEqual(member.words, [], f"{member.kind} {member.name} has no description")

    def test_every_field_has_an_entry(self):
        checked = 0
        for header in (CLIENT / "numacre.h", *CPP_HEADERS):
            text = (SOURCE / header).read_text()
            for body in re.findall(r"^(?:typedef )?struct[^\n;]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
                for name in re.findall(r"^ {4}[\w:]+ (?:char \*|\*)?(\w+)(?: = [\w:-]+|\{\d\})?;", body, re.MULTILINE):
                    with self.subTest(header=header.name, field=name):
                        self.assertNotEqual(self.reference.described(name, kinds=("variable",)), [])
                        checked += 1
        self.assertGreater(checked, 25)

    def test_every_enumerator_has_a_description(self):
        enumerators = {enumerator.name: enumerator.words for enumerator in self.reference.enumerators}
        text = (SOURCE / SHM / "error.hpp").read_text()
        rows = re.findall(r"\{Errc::(\w+), (\w+),(.*?)\},\n", text, re.DOTALL)
        self.assertGreater(len(rows), 10)
        shown = " ".join(words(text_of(self.reference.main_page)))
        for name, errno, row in rows:
            grpc, _, *remedy = re.findall('"(.*?)"', row)
            self.assertEqual(enumerators.get(name), words(f"{errno} {' '.join(remedy)}"))
            self.assertIn(" ".join(words(f"{errno} {name} {grpc} {' '.join(remedy)}")), shown)
        for name, description in enumerators.items():
            self.assertNotEqual(description, [], name)

    def test_the_main_page_has_the_opening_comment_and_links_to_all_calls(self):
        page = self.reference.main_page
        shown = " ".join(words(text_of(page)))
        opening = re.match(COMMENT, (SOURCE / CLIENT / "numacre.h").read_text(), re.DOTALL)[1].replace("\n *", "\n")
        for paragraph in re.split(r"\n\s*\n", opening):
            self.assertIn(" ".join(words(paragraph)), shown)
        lists = [section for section in page.iter("sect1") if section.get("id") in ("index_1c", "index_1cpp")]
        self.assertEqual(len(lists), 2)
        linked = {reference.get("refid") for section in lists for reference in section.iter("ref")}
        calls = [member for member in self.reference.members if re.match(r"numacre_\w+$", member.name, re.IGNORECASE)]
        self.assertGreater(len(calls), 40)
        missing = {entry.name for entry in (*calls, *self.reference.compounds) if entry.id not in linked}
        self.assertEqual(missing - {"ErrorRow", "Unexpected", "Result< void, E >"}, set())

    def test_links_resolve_and_nothing_is_loaded_from_elsewhere(self):
        pages = {path: Page(path) for path in (WORK / "html").glob("*.html")}
        self.assertGreater(len(pages), 10)
        wrong = []
        for path, page in pages.items():
            for link in page.links + page.loads:
                parts = urllib.parse.urlsplit(link)
                target = path.parent / urllib.parse.unquote(parts.path) if parts.path else path
                if parts.scheme or parts.netloc:
                    wrong.append(f"{path.name} leads out: {link}")
                elif not target.is_file():
                    wrong.append(f"{path.name} links to {link}: no such file")
                elif parts.fragment and urllib.parse.unquote(parts.fragment) not in pages[target].ids:
                    wrong.append(f"{path.name} links to {link}: no such entry")
            wrong += [f"{path.name} has a script: {link}" for link in page.loads if link.endswith(".js")]
        self.assertEqual(wrong, [], "\n".join(wrong))


class Noticed(unittest.TestCase):
    """Mistakes in a copy of the tree end the build, and doxygen names the right line."""

    def setUp(self):
        requires_doxygen()
        scratch = tempfile.TemporaryDirectory(prefix="numacre-api-", dir="/tmp")
        self.addCleanup(scratch.cleanup)
        self.tree = pathlib.Path(scratch.name)
        shutil.copytree(SOURCE / API, self.tree / API)
        for header in (*C_HEADERS, *CPP_HEADERS):
            (self.tree / header).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / header, self.tree / header)

    def warnings_after(self, path, before, added):
        """Adds text before the last `before` of a file. Returns the file's line of it and what doxygen prints."""
        text = (self.tree / path).read_text()
        at = text.rindex(before)
        (self.tree / path).write_text(text[:at] + added + text[at:])
        done = build(self.tree, self.tree / "output")
        self.assertNotEqual(done.returncode, 0)
        return text.count("\n", 0, at) + 1, done.stdout

    def test_a_function_without_a_comment(self):
        header = CLIENT / "numacre.h"
        line, printed = self.warnings_after(
            header, "#ifdef __cplusplus", "NUMACRE_API int numacre_bare(numacre_pool *pool);\n\n"
        )
        self.assertRegex(printed, rf"{header}:{line}: .*Member numacre_bare.* is not documented")

    def test_a_member_function_without_a_comment(self):
        header = CLIENT / "numacre.hpp"
        line, printed = self.warnings_after(
            header, "private:\n    explicit Pool", "    int bare() const noexcept { return 0; }\n\n"
        )
        self.assertRegex(printed, rf"{header}:{line}: .*Member bare.* of class numacre::Pool is not documented")

    def test_a_comment_that_a_blank_line_follows_is_nobodys(self):
        _, printed = self.warnings_after(
            CLIENT / "numacre.h",
            "#ifdef __cplusplus",
            "/* Stands alone. */\n\nNUMACRE_API int numacre_bare(numacre_pool *pool);\n\n",
        )
        self.assertIn("Member numacre_bare", printed)

    def test_a_link_to_nothing(self):
        line, printed = self.warnings_after(API / "main_page.dox", "\\section c ", "\\ref numacre_nothing\n\n")
        self.assertRegex(printed, rf"main_page.dox:{line}: .*unable to resolve reference to 'numacre_nothing'")

    def test_a_name_of_the_main_page_that_the_header_has_no_more(self):
        header = self.tree / CLIENT / "numacre.h"
        header.write_text(header.read_text().replace("numacre_free_bulk", "numacre_free_all"))
        done = build(self.tree, self.tree / "output")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stdout, "main_page.dox:.*unable to resolve reference to 'numacre_free_bulk'")


if __name__ == "__main__":
    main()
