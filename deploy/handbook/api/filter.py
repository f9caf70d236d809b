#!/usr/bin/env python3
"""doxygen's INPUT_FILTER: the headers keep plain comments, and doxygen reads them in its own form.

usage: filter.py FILE    (prints the text for doxygen)

A comment documents the declaration on the next line, or the declaration before the comment on the same line. A comment
that a blank line follows documents nothing. Comments in function bodies stay as they are.
- The first comment of a file describes the file. The first comment of numacre.h goes to the main page: \\from_header in
  main_page.dox marks the place.
- A comment above `#define`s that have comments of their own becomes the heading of these macros up to the next blank
  line.
- "Errors: -EINVAL ...; -ENOMEM ..." becomes a list.
- Names of public functions, macros and types become links.
- An overload without a comment gets the comment of the overload on the line above.
- An enumerator without a comment links to the macro that is its value. An enumerator of Errc shows its row of kErrors.
The lines of a header keep their numbers, so that doxygen's warnings name the right ones.
"""

import os
import pathlib
import re
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[3]
C_HEADER = SOURCE / "client" / "include" / "numacre" / "numacre.h"
INLINE_HEADER = C_HEADER.with_name("inline.h")
ERROR_HEADER = SOURCE / "shm" / "include" / "numacre" / "error.hpp"

TOKEN = re.compile(
    r"""/\*.*?\*/ | //[^\n]* | "(?:\\.|[^"\\\n])*" | (?<!\w)'(?:\\.|[^'\\\n])*' | ^[ \t]*\#(?:\\\n|[^\n/]|/(?![*/]))*
    | [{};]""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
# The code before a brace that opens a scope in which comments are documentation. Code with a parenthesis is a function.
SCOPE = re.compile(r'[^(]*(?:\b(?:namespace|class|struct|union|enum)\b|extern\s+"C")[^(]*')


class Names:
    """The names that the C headers declare for programs, and the names that can be linked to."""

    def __init__(self):
        text = C_HEADER.read_text()
        code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        macros = re.findall(r"^#define (NUMACRE_\w+)", code, re.MULTILINE)
        self.macros = [name for name in macros if name not in ("NUMACRE_API", "NUMACRE_NUMACRE_H")]
        functions = re.findall(r"^NUMACRE_API [^;(]*?(\w+)\(", code, re.MULTILINE)
        functions += re.findall(r"^NUMACRE_INLINE_FUNCTION \w+ (\w+_inline)\(", INLINE_HEADER.read_text(), re.MULTILINE)
        types = re.findall(r"^(?:typedef .* |\} )(numacre_\w+);", code, re.MULTILINE)
        self.linked = {*self.macros, *functions, *types}
        opening = text[: text.index("*/")]
        self.environment = set(re.findall(r"^ \* (NUMACRE_\w+)=", opening, re.MULTILINE))

    def link(self, name):
        """The name as a doxygen link to its target, or unchanged without a target."""
        if name.partition("::")[0] in self.linked:
            return rf'\ref {name} "{name}"'
        if name in self.environment:
            return rf'\ref environment "{name}"'
        if name.endswith("_"):  # NUMACRE_POLICY_... links to the first macro of this prefix
            first = next((macro for macro in self.macros if macro.startswith(name) and name != "NUMACRE_"), None)
            if first:
                return rf'\ref {first} "{name}"'
        return name


NAMES = Names()


def plain(comment):
    """The text of a comment without its marks. The number of lines and the indentation stay."""
    if comment.startswith("//"):
        return re.sub(r"^[ \t]*// ?", "", comment, flags=re.MULTILINE)
    return re.sub(r"^[ \t]*\* ?", "", comment[2:-2], flags=re.MULTILINE).strip(" ")


def escaped(text):
    return re.sub(r"[\\@<>&#%\"]", r"\\\g<0>", text)


def linked(text):
    """A text with code and names marked for doxygen."""
    parts = text.split("`")
    for i, part in enumerate(parts):
        if i % 2 == 1:
            parts[i] = f"<code>{escaped(part)}</code>"
        else:
            part = re.sub(r"\b(?:numacre|NUMACRE)_\w+(?:::\w+)?", lambda name: NAMES.link(name[0]), escaped(part))
            parts[i] = re.sub(r"\(see Signals\)", r'(see \\ref signals "Signals")', part)
    return "".join(parts)


SENTENCE_END = re.compile(r"(?<!\.)[.?!](?=\s|$)|\n(?=[ \t]*\n)")


def end_of_sentence(text, begin=0):
    """The position behind the first sentence from `begin`. A full stop in parentheses or in an ellipsis ends no
    sentence. The end of a paragraph ends a sentence."""
    depth = 0
    for i in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth <= 0 and SENTENCE_END.match(text, i):
            return i + 1
    return len(text)


ERRNO = re.compile(r"-E[A-Z]+")
ERRORS = re.compile(r"(?:(?<=\s)|^)((?:Further errors?|Errors)(?:, [^:.;]*)?)(?::|\s+(?=as\s))")


def with_lists(text):
    """The escaped text with each "Errors: ..." as a list, up to the end of the sentence."""
    done, at = "", 0
    while found := ERRORS.search(text, at):
        end = end_of_sentence(text, found.end())
        items = re.split(r"[;,](?=\s+-E)", text[found.end() : end].removesuffix("."))
        shown = "".join(f"<li>{ERRNO.sub(lambda name: f'<code>{name[0]}</code>', item)}</li>" for item in items)
        done += f'{text[at : found.start()]}<dl class="errors"><dt>{found[1]}</dt><dd><ul>{shown}</ul></dd></dl>'
        at = end
    return done + text[at:]


def with_code(text):
    """The text with indented lines as code. The marks of the code go into the blank lines around it."""
    return re.sub(r"\n\n((?:(?: {4,}.*)\n)+)\n", lambda code: f"\n\\code{{.c}}\n{code[1]}\\endcode\n", text)


def described(text):
    """A comment's text for doxygen: the brief part, and the rest."""
    end = end_of_sentence(text)
    brief, rest = text[:end], text[end:]
    return rf"\brief {linked(brief)}" + (rf" \details{with_lists(linked(rest))}" if rest.strip() else "")


def described_file(name, text):
    """The first comment of a file, for doxygen."""
    if name == C_HEADER.name:
        brief = linked(text[: end_of_sentence(text)])
        return rf'\file {name} \brief {brief} \details The \ref index "main page" has the rules for all calls.'
    text = with_code(text)
    code = text.find("\\code")
    if code < 0:
        return rf"\file {name} {described(text)}"
    end = text.index("\\endcode") + len("\\endcode")
    return rf"\file {name} {described(text[:code])}{text[code:end]}{linked(text[end:])}"


def same_height(text, comment):
    """The text with as many lines as the comment that it replaces."""
    return text + "\n" * (comment.count("\n") - text.count("\n"))


def declared_name(line):
    """The name of the function that a line declares, or None."""
    found = re.match(r"[^;{}()#=]*?(\boperator\s*[^\s\w(]+|\w+)\(", line)
    return found and found[1]


class Header:
    """A header and the replacements in its text."""

    def __init__(self, path):
        self.path, self.text = path, path.read_text()
        self.comments = []  # (from, to) of the comments that may be documentation
        self.code = self.without_bodies()
        self.replaced = []  # (from, to, by)

    def without_bodies(self):
        """The text with spaces in place of comments and function bodies. Notes the comments outside function bodies."""
        shown, scopes, head, at = list(self.text), [], "", 0

        def blank(begin, end):
            shown[begin:end] = ["\n" if c == "\n" else " " for c in self.text[begin:end]]

        while token := TOKEN.search(self.text, at):
            begin, end, what = token.start(), token.end(), token[0]
            code = self.text[at:begin]
            if not all(scopes):
                blank(at, end)
            if what.startswith(("/*", "//")):
                if what.startswith("//") and not self.before(begin).strip():
                    end = re.compile(r"[^\n]*(?:\n[ \t]*//[^\n]*)*").match(self.text, begin).end()
                if all(scopes):
                    self.comments.append((begin, end))
                blank(begin, end)
                head += code
            elif what == "{":
                scopes.append(bool(SCOPE.fullmatch(head + code)))
                head = ""
            elif what in "};":
                if what == "}" and scopes:
                    scopes.pop()
                head = ""
            else:
                head += code if what.lstrip().startswith("#") else code + what
            at = end
        return "".join(shown)

    def before(self, position):
        """The text before a position, from the beginning of the line."""
        return self.text[self.text.rfind("\n", 0, position) + 1 : position]

    def replace(self, begin, end, by):
        self.replaced.append((begin, end, by))

    def filtered(self):
        for begin, end in self.comments:
            self.comment(begin, end)
        self.overloads()
        self.enumerators()
        for found in re.finditer(r"(?<=\blocal) (?==)", self.code):
            # doxygen would take "local " for a keyword of IDL, and the type for the name.
            self.replace(found.start(), found.end(), "")
        text = self.text
        for begin, end, by in sorted(self.replaced, reverse=True):
            text = text[:begin] + by + text[end:]
        return text

    def comment(self, begin, end):
        comment = self.text[begin:end]
        text = plain(comment)
        if begin == 0:
            self.replace(begin, end, f"/** {same_height(described_file(self.path.name, text), comment)} */")
        elif before := self.before(begin).strip():
            if before != "}":  # a comment behind a brace names the scope that ends there
                self.replace(begin, end, f"/**< {described(text)} */")
        elif re.compile(r"[ \t]*\n[ \t]*\S").match(self.text, end):
            names = self.headed(end)
            if names:
                self.heading(begin, end, text, names)
            else:
                self.replace(begin, end, f"/** {described(text)} */")

    def headed(self, end):
        """The macros below the comment that ends at `end`, if the comment is their heading. The list is empty if the
        next line is not a macro with a comment of its own."""
        stretch = self.text[end : self.end_of_stretch(end)]
        if not re.match(r"[ \t]*\n#define \w+[^\n]*/\*", stretch):
            return []
        return re.findall(r"^#define (\w+)", stretch, re.MULTILINE)

    def end_of_stretch(self, begin):
        """The position of the next blank line."""
        found = self.text.find("\n\n", begin)
        return len(self.text) if found < 0 else found + 1

    def heading(self, begin, end, text, names):
        """The common prefix of the names becomes the title; without a prefix, the text becomes the title. The marks go
        into blank lines."""
        prefix = os.path.commonprefix(names)
        prefix = prefix[: prefix.rfind("_") + 1]
        title, shown = f"{prefix}...", linked(text)
        if prefix == "NUMACRE_":
            title, shown = text.removesuffix("."), ""  # a title has no links
        self.replace(begin - 1, begin - 1, f"/** \\name {title}")
        self.replace(begin, end, f"{shown} */ /**@{{*/")
        closing = self.end_of_stretch(end)
        self.replace(closing, closing, "/**@}*/")

    def overloads(self):
        """Gives an overload the comment of the overload on the line above."""
        lines = self.code.split("\n")
        ends = {self.text.count("\n", 0, end): (begin, end) for begin, end in self.comments}
        above, name, at = None, None, 0
        for number, line in enumerate(lines):
            own = declared_name(line)
            if number - 1 in ends:
                above = ends[number - 1]
            elif own is None or own != name:
                above = None
            elif above and number not in ends:
                text = described(re.sub(r"\s+", " ", plain(self.text[slice(*above)])))
                self.replace(at, at, f"/** {text} */ ")
            name, at = own, at + len(line) + 1

    def enumerators(self):
        """Gives an enumerator without a comment a link to its macro, or the enumerator's row of kErrors."""
        commented = {self.text.count("\n", 0, begin) for begin, _ in self.comments if self.before(begin).strip()}
        rows = {row["code"]: row for row in error_rows()}
        for enum in re.finditer(r"\benum class (\w+)[^{;]*\{([^}]*)\}", self.code):
            for found in re.finditer(r"^ +(\w+)(?: = (\w+))?,", enum[2], re.MULTILINE):
                at = enum.start(2) + found.end()
                if self.text.count("\n", 0, at) in commented:
                    continue
                if enum[1] == "Errc" and found[1] in rows:
                    row = rows[found[1]]
                    number = "0" if row["errno"] == "0" else "-" + row["errno"]
                    self.replace(at, at, f" /**< <code>{number}</code>: {linked(row['remedy'])} */")
                elif found[2] in NAMES.linked:
                    self.replace(at, at, f" /**< {NAMES.link(found[2])} */")


def error_rows():
    """The rows of kErrors."""
    row = re.compile(r'\{Errc::(?P<code>\w+), (?P<errno>\w+), "(?P<grpc>\w+)", "\w+",\s*"(?P<remedy>[^}]*)"\}')
    rows = [found.groupdict() for found in row.finditer(ERROR_HEADER.read_text())]
    return [{**found, "remedy": re.sub(r'"\s*"', "", found["remedy"])} for found in rows]


def error_table():
    rows = "".join(
        f"<tr><td>{'0' if row['errno'] == '0' else '-' + row['errno']}</td>"
        f"<td>\\ref numacre::Errc::{row['code']} \"{row['code']}\"</td>"
        f"<td>{row['grpc']}</td><td>{linked(row['remedy'])}</td></tr>\n"
        for row in error_rows()
    )
    return f"<table>\n<tr><th>C</th><th>C++: Errc</th><th>gRPC</th><th>what to do</th></tr>\n{rows}</table>\n"


def opening_paragraphs():
    """The paragraphs of the opening comment of numacre.h."""
    comment = re.match(r"/\*.*?\*/", C_HEADER.read_text(), re.DOTALL)[0]
    return [paragraph.strip() for paragraph in re.split(r"\n[ \t]*\n", plain(comment))]


SECTION = re.compile(r"(\w+): +|Environment ")


def introduction():
    """The paragraphs before the first section, in one line, so that the lines below keep their numbers."""
    paragraphs = opening_paragraphs()
    first = next(i for i, paragraph in enumerate(paragraphs) if SECTION.match(paragraph) and i > 0)
    return " <p> ".join(linked(re.sub(r"\s+", " ", paragraph)) for paragraph in paragraphs[:first])


def sections():
    """A section for each paragraph that begins with "Word: ", and one section for the paragraphs on the environment."""
    shown = ""
    for paragraph in opening_paragraphs()[1:]:
        if found := SECTION.match(paragraph):
            title = found[1] or "Environment"
            shown += f"\n\\section {title.lower()} {title}\n"
            paragraph = paragraph[found.end() :] if found[1] else paragraph
            paragraph = paragraph[0].upper() + paragraph[1:]
        if shown:
            shown += f"\n{linked(paragraph)}\n"
    return shown


def filtered_page(text):
    made = {"introduction": introduction, "sections": sections, "errors": error_table}
    return re.sub(r"\\from_header (\w+)", lambda command: made[command[1]](), text)


def main():
    path = pathlib.Path(sys.argv[1])
    if path.suffix == ".dox":
        sys.stdout.write(filtered_page(path.read_text()))
    else:
        sys.stdout.write(Header(path).filtered())


if __name__ == "__main__":
    main()
