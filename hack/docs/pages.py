"""The links and the code in the pages of the documentation, parsed as CommonMark."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
PATTERNS = ("*.md", "docs/**/*.md", "charts/*/*.md", "examples/**/*.md", "localcluster/*.md")
"""Patterns of the pages' paths."""


@dataclass(frozen=True)
class Piece:
    """A link's target or a code span, and its line, counted from 1."""

    line: int
    text: str


@dataclass(frozen=True)
class Block:
    """A block of code, fenced or indented."""

    line: int
    """Number of the code's first line, counted from 1."""
    language: str
    """The first word after the fence; empty without one."""
    text: str


@dataclass(frozen=True)
class Page:
    """One page, which is parsed on demand: parsing the text outside of blocks of code takes most of the time."""

    path: Path
    text: str

    @cached_property
    def links(self) -> tuple[Piece, ...]:
        """Return the targets of links and images."""
        return tuple(
            Piece(line, str(token.attrs[name]))
            for line, token in self._children
            for name in ("href", "src")
            if name in token.attrs
        )

    @cached_property
    def spans(self) -> tuple[Piece, ...]:
        """Return the code spans."""
        return tuple(Piece(line, token.content) for line, token in self._children if token.type == "code_inline")

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Return the blocks of code."""
        return tuple(_blocks(_parser().disable("inline").parse(self.text)))

    @cached_property
    def _children(self) -> tuple[tuple[int, Token], ...]:
        return tuple(_inline(_parser().parse(self.text)))


@cache
def pages(root: Path = ROOT) -> dict[Path, Page]:
    """Return every page of the documentation by its path."""
    found = sorted({path for pattern in PATTERNS for path in root.glob(pattern)})
    return {path: Page(path, path.read_text(encoding="utf-8")) for path in found}


def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark").enable("table")


def _inline(tokens: Sequence[Token]) -> Iterator[tuple[int, Token]]:
    """Yield the inline tokens with their lines."""
    line = 0
    for token in tokens:
        if token.map is not None:
            line = token.map[0] + 1  # a cell of a table has its row's line
        at = line
        for child in token.children or ():
            yield at, child
            at += child.type in ("softbreak", "hardbreak")


def _blocks(tokens: Sequence[Token]) -> Iterator[Block]:
    for token in tokens:
        if token.type in ("fence", "code_block") and token.map is not None:
            fenced = token.type == "fence"
            language = token.info.split()[0] if token.info.strip() else ""
            yield Block(token.map[0] + 1 + fenced, language, token.content)
