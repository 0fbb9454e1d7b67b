"""Refuse prose against the house style: words of hack/docs/prose.txt, and sentences of more than 25 words.

It checks handwritten pages, the chart's comments and notes, and comments and docstrings of the package; in the package
only some words. Code in the text is not checked.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 25
PAGES = ("*.md", "docs/**/*.md", "charts/*/CHANGELOG.md", "examples/**/*.md", "localcluster/*.md")
GENERATED = re.compile(
    r"docs/reference/(?!glossary)|docs/project/((fields|mechanisms|test-tiers)|benchmarks/(.*-figures|campaign))\.md"
)
OTHERS = ("charts/pstraining/values.yaml", "charts/pstraining/templates/NOTES.txt", "operator/pstraining/**/*.py")
_SENTENCE = re.compile(r"(?:[^.?!\n]|[.?!](?!\s|$)|\n(?!\n))+")
# In values.yaml and NOTES.txt: templates, keys, commands, and the mark of a comment.
_NO_PROSE = re.compile(r"{{.*?}}|^ *[\w.\"']+:( .*)?$|^    .*$|^ *# ?(?:-- )?", re.MULTILINE)


class Rule(NamedTuple):
    """A line of hack/docs/prose.txt: `pattern | docs or all | reason`."""

    pattern: re.Pattern[str]
    scope: str
    reason: str


def rules(text: str) -> list[Rule]:
    """Return the rules of a word list."""
    rows = [line.split(" | ", 2) for line in text.splitlines() if line and not line.startswith("#")]
    patterns = (re.compile(rf"\b(?:{row[0]})\b".replace(" ", r"\s"), re.IGNORECASE) for row in rows)
    return [Rule(pattern, *row[1:]) for pattern, row in zip(patterns, rows, strict=True)]


def paragraphs(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield a file's pieces of prose without the code in them, each with its first line."""
    if path.suffix == ".md":
        line, kept = 1, {"softbreak": "\n", "code_inline": "x"}
        for token in MarkdownIt("commonmark").enable("table").parse(text):
            line = token.map[0] + 1 if token.map else line  # a cell of a table has its row's line
            inside = token.children or [] if token.type == "inline" else []
            yield line, "".join(child.content if child.type == "text" else kept.get(child.type, "") for child in inside)
    elif path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                yield node.lineno, re.sub(r"`[^`]*`", "x", str(node.value.value))
        for found in tokenize.generate_tokens(io.StringIO(text).readline):
            if found.type == tokenize.COMMENT:
                yield found.start[0], re.sub(r"`[^`]*`", "x", found.string)
    else:
        yield 1, re.sub(r"`[^`]*`", "x", _NO_PROSE.sub("", text))


def check(root: Path) -> Iterator[str]:
    """Yield all problems below a folder; in the package sentences may have any length."""
    known = rules((ROOT / "hack" / "docs" / "prose.txt").read_text(encoding="utf-8"))
    for path in sorted({path for pattern in (*PAGES, *OTHERS) for path in root.glob(pattern)}):
        where, is_code = path.relative_to(root).as_posix(), path.suffix == ".py"
        for line, text in () if GENERATED.match(where) else paragraphs(path, path.read_text(encoding="utf-8")):
            for rule in (rule for rule in known if not is_code or rule.scope == "all"):
                for found in rule.pattern.finditer(text):
                    yield f"{where}:{line + text.count(chr(10), 0, found.start())}: {found[0]!r}: {rule.reason}"
            for found in () if is_code else _SENTENCE.finditer(text):
                if (count := len(words := found[0].split())) > LIMIT:
                    at = line + text.count("\n", 0, found.start())
                    yield f"{where}:{at}: {count} words in one sentence: {' '.join(words[:9])}..."


if __name__ == "__main__":
    problems = list(check(ROOT))
    print("\n".join(problems))
    sys.exit(bool(problems))
