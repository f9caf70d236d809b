#!/usr/bin/env python3
"""Finds sentences in comments and prose that do not begin with a subject: "What is free ...", "Whoever frees ...",
"The same without ...", "One that ...", "So often ...". tidy.py applies it to the tree.

usage: plain_english.py FILE...
Exit status: 0 no finding, 1 findings (one line each: path:line: sentence).
"""
import ast
import io
import re
import sys
import tokenize

C_LIKE = (".h", ".hpp", ".c", ".cpp", ".cc", ".inc", ".proto", ".dox")
HASH_LIKE = (".sh", ".bash", ".cmake", ".toml", ".yml", ".yaml", ".service")


def kind_of(path, text):
    """Which of the readers below fits a file: None for a file without comments or prose of ours."""
    name = path.rsplit("/", 1)[-1].removesuffix(".in")
    if name.endswith(C_LIKE):
        return "c"
    if name.endswith(".py") or re.match(r"#!.*\bpython3?\b", text):
        return "python"
    if name == "CMakeLists.txt" or name.endswith(".cmake"):
        return "cmake"
    if name.endswith(HASH_LIKE) or re.match(r"#!.*\b(ba|da)?sh\b", text):
        return "hash"
    if name.endswith(".md"):
        return "markdown"
    return "man" if name.endswith(".scd") else None


# Readers. A block is a list of (line number, text): lines that read on, such as a paragraph or a run of comment lines.

C_TOKEN = re.compile(
    r'(?P<raw>R"(?P<mark>[^()\\\s]*)\(.*?\)(?P=mark)")|(?P<string>"(?:\\.|[^"\\\n])*")'
    r"|(?P<number>\b[0-9][0-9a-fA-FxX'.]*)|(?P<char>'(?:\\.|[^'\\\n])*')|(?P<line>//(?:\\\n|[^\n])*)"
    r"|(?P<block>/\*.*?\*/)",
    re.DOTALL,
)


def _comment_blocks(comments):
    """Joins comments of consecutive lines. `comments` holds (line, column, stands alone on its line, text)."""
    block, last_line, last_column = [], None, None
    for line, column, alone, text in comments:
        reads_on = block and line == last_line + 1 and alone and column == last_column
        if block and not reads_on:
            yield block
            block = []
        block.append((line, text))
        last_line, last_column = line, column
    if block:
        yield block


def c_blocks(text):
    comments = []
    for match in C_TOKEN.finditer(text):
        if match.lastgroup not in ("line", "block"):
            continue
        start = match.start()
        line = text.count("\n", 0, start) + 1
        line_start = text.rfind("\n", 0, start) + 1
        alone = not text[line_start:start].strip()
        if match.lastgroup == "line":
            comments.append((line, start - line_start, alone, re.sub(r"^//[/!]?<?", "", match.group(0))))
            continue
        lines = re.sub(r"^/\*[*!]?<?|\*/$", "", match.group(0)).split("\n")
        lines = lines[:1] + [re.sub(r"^\s*\*(?!\*)", "", rest) for rest in lines[1:]]
        yield from _comment_blocks((line + i, 0, alone or i, rest) for i, rest in enumerate(lines))
    yield from _comment_blocks(comments)


def python_blocks(text):
    comments = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            alone = not token.line[: token.start[1]].strip()
            comments.append((token.start[0], token.start[1], alone, token.string[1:]))
    yield from _comment_blocks(comments)
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if ast.get_docstring(node, clean=False) is None:
            continue
        first = node.body[0].value
        lines = first.value.split("\n")
        margins = [len(rest) - len(rest.lstrip()) for rest in lines[1:] if rest.strip()]
        margin = min(margins, default=0)
        yield [(first.lineno + i, rest if i == 0 else rest[margin:]) for i, rest in enumerate(lines)]


HEREDOC = re.compile(r"<<-?\s*([\"']?)(\w+)\1")


def hash_blocks(text, brackets=False):
    """Comments of shell, TOML, YAML and (with bracket arguments) CMake."""
    comments, end, quote = [], None, None
    if brackets:
        text = re.sub(r"\[(=*)\[.*?\]\1\]", lambda match: re.sub(r"[^\n]", " ", match.group(0)), text, flags=re.DOTALL)
    for number, line in enumerate(text.split("\n"), 1):
        if end is not None:
            end = None if line.strip() == end else end
            continue
        position = 0
        while position < len(line):
            c = line[position]
            if quote:
                if c == "\\" and quote != "'":
                    position += 1
                elif c == quote:
                    quote = None
            elif c == "\\":
                position += 1
            elif c == '"' or (c == "'" and not brackets):
                # An apostrophe within a word of YAML opens nothing.
                quote = None if c == "'" and position and line[position - 1].isalpha() else c
            elif c == "#" and (position == 0 or line[position - 1] in " \t;(") and not line.startswith("#!"):
                comments.append((number, position, not line[:position].strip(), line[position + 1 :]))
                break
            position += 1
        if quote == "'" and line.count("'") % 2 and not brackets and not re.search(r"[=(\s]'[^']*$", line):
            quote = None
        heredoc = None if brackets else HEREDOC.search(line)
        if heredoc and quote is None:
            end = heredoc.group(2)
    yield from _comment_blocks(comments)


def markdown_blocks(text):
    yield list(enumerate(re.sub(r"<!--|-->", "    ", text).split("\n"), 1))


def man_blocks(text):
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        if number == 1 or line.startswith(";"):
            lines.append((number, ""))
            continue
        # A tab indents text here; `:- text` and `|- text` are cells of a table.
        lines.append((number, re.sub(r"^[\[|\]:][\[\-\]]\s*", "- ", line.lstrip("\t"))))
    yield lines


READERS = {
    "c": c_blocks,
    "python": python_blocks,
    "hash": hash_blocks,
    "cmake": lambda text: hash_blocks(text, brackets=True),
    "markdown": markdown_blocks,
    "man": man_blocks,
}

LIST_ITEM = re.compile(r"(?:[-*+]|\d+[.)])\s+(?=\S)")
TABLE_RULE = re.compile(r"\|?[\s:|-]*-[\s:|-]*\|?")
DOXYGEN = re.compile(r"[@\\](?:(?:param|retval|tparam)(?:\[\w+\])?\s+\S+|[a-z]+\b)\s*")


def paragraphs(block):
    """Splits a block into (is heading, [(line, text)]): paragraphs, list items, headings, table cells; skips code."""
    current, fenced, in_list, after_blank = [], False, False, True
    margin = min((len(text) - len(text.lstrip()) for _, text in block if text.strip()), default=0)
    lines = [(number, text.rstrip()) for number, text in block]

    def flush():
        nonlocal current
        done, current = current, []
        return [(False, done)] if done else []

    for index, (number, raw) in enumerate(lines):
        text = raw.strip()
        if text.startswith(("```", "~~~")) or (DOXYGEN.match(text) and re.match(r"[@\\](end)?(code|verbatim)\b", text)):
            yield from flush()
            fenced = not fenced
        elif fenced:
            pass
        elif not text:
            yield from flush()
            after_blank = True
            continue
        elif re.match(r"#{1,6}\s|--+\s.*\s---+$", text):
            yield from flush()
            yield True, [(number, text.strip("-# "))]
            in_list = False
        elif re.search(r"\S {4,}\S", text) and not text.startswith("|"):
            yield from flush()  # a table or a picture of plain text
        elif text.startswith("|") and text.count("|") > 1:
            yield from flush()
            header = index + 1 < len(lines) and TABLE_RULE.fullmatch(lines[index + 1][1].strip())
            if not header and not TABLE_RULE.fullmatch(text):
                for cell in re.split(r"(?<!\\)\|", text.strip("|")):
                    yield False, [(number, cell)]
        elif LIST_ITEM.match(text):
            yield from flush()
            current = [(number, LIST_ITEM.sub("", text, count=1))]
            in_list = True
        else:
            indent = len(raw) - len(raw.lstrip()) - margin
            if indent >= 4 and after_blank and not in_list:
                yield from flush()  # an indented command
                continue
            if indent == 0 and after_blank:
                in_list = False
            if DOXYGEN.match(text):
                yield from flush()
                text = DOXYGEN.sub("", text, count=1)
            current.append((number, text))
        after_blank = False
    yield from flush()


def plain_text(text):
    """The text without marks: a code span becomes a noun, a link its words. The length of the text may change."""
    text = re.sub(r"(`+).+?\1", lambda match: "Code" + "\0" * match.group(0).count("\0"), text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)\s]*\)", r"\1", text)
    return re.sub(r"\*+|(?<!\w)_+|_+(?!\w)", "", text)


SENTENCE_END = re.compile(r"(?<!\b[A-Z]\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9])")


def sentences(paragraph):
    """(line, sentence) of one paragraph."""
    # A code span may go over the end of a line, so the marks go after the lines are joined; \0 marks the ends.
    marked = plain_text("\0 ".join(text for _, text in paragraph))
    text = marked.replace("\0", "")
    ends_of_lines = [match.start() - before for before, match in enumerate(re.finditer("\0", marked))]
    start = 0
    for end in [match.end() for match in SENTENCE_END.finditer(text)] + [len(text)]:
        line = sum(1 for offset in ends_of_lines if offset < start)
        yield paragraph[line][0], text[start:end].strip()
        start = end


# After "the same" these words are no noun, nor the adjective of one.
NO_NOUN = (
    "a an the and or but nor so than then that this these those it its they he she we you as at by for from in into "
    "of off on onto out over per since through to toward under until up upon via with within without is are was were "
    "be been has have had does do did can could may might must shall should will would if when whenever where while "
    "who whom whose which what why how because before after again once twice also too both only not even here there "
    "holds goes applies happens means works counts stands comes"
).split()
FAULTS = (
    re.compile(r"(?i:who|whoever|whom|whomever|whose)\b(?!.*\?$)"),
    re.compile(r"(?i:what)\b(?![':])(?!.*\?$)"),
    re.compile(r"(?i:the same)(?:\s*(?:$|[.,;:!?()\u2013\u2014-])|\s+(?i:%s)\b)" % "|".join(NO_NOUN)),
    re.compile(r"(?i:one) (?:without|that|of it)\b"),
    re.compile(r"(?i:so often)\b"),
)


def findings(path, text):
    """(line, sentence) for each sentence of the file that begins without a subject."""
    kind = kind_of(path, text)
    if kind is None:
        return
    found = []
    try:
        blocks = list(READERS[kind](text))
    except (SyntaxError, tokenize.TokenError):
        return  # another rule says so
    for block in blocks:
        for heading, paragraph in paragraphs(block):
            for line, sentence in sentences(paragraph):
                opening = sentence.lstrip(" \"'([-")
                if not heading and any(fault.match(opening) for fault in FAULTS):
                    found.append((line, sentence))
    yield from sorted(found)


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    count = 0
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        for line, sentence in findings(path, text):
            print(f"{path}:{line}: {sentence}")
            count += 1
    print(f"{len(sys.argv) - 1} files, {count} findings")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
