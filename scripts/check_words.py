"""Find sentences in docstrings, comments and pages that must be read twice, by their shape.

    python scripts/check_words.py [PATH ...]    # without PATH: the package, the scripts, all pages

The script knows the worst shapes alone; a sentence that passes can still be a bad one. It prints
the place of each, then how many each folder has, and exits with 1 if there is any. It skips code,
quoted text, headings and questions.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATHS = ("src", "scripts", "docs", *sorted(path.name for path in ROOT.glob("*.md")))
SHAPES = {
    "begins with": re.compile(
        r"^(Of(?! course)|Where|What|Whatever|Those|Which|Whichever|Whether what)\b"
    ),
    "ends with": re.compile(
        r"\b(?!because|instead|out|copy|copies|part|parts|half|rest|all|each|every|one|none|some"
        r"|any|most|many|several|fewer|both|two|either|neither|number|independent|consists|front"
        r"|end|first|last|\d+)\w+"
        r" of (it|them|those|these|that|this)$"
    ),
    "says": re.compile(
        r"\b(what is no|that is no(?! longer)|no \w+ but|nothing but|that which|of such(?! an? )"
        r"|is such|are such|such ones?|save for|be it|said of|thrice|anew)\b",
        re.IGNORECASE,
    ),
}
SENTENCE_END = re.compile(r"(?<=[.!?:])[\"')*_]*\s+(?=[\"'(*_]*[A-Z0-9])")
LABEL = re.compile(r"\s*([-*+>] |\d+\. |\w+: )")  # a list item, a quotation, an argument
DIRECTIVE = re.compile(r"noqa|type:|pragma|fmt:|!")


def main() -> int:
    """Print the sentences and their numbers; return the exit code."""
    counts: Counter[str] = Counter()
    for path in _files(sys.argv[1:] or [str(ROOT / path) for path in PATHS]):
        for line, text in _texts(path):
            for sentence in SENTENCE_END.split(" ".join(text.split())):
                bare = sentence.rstrip(".:;,)*_ ").lstrip("\"'(*_ ")
                for shape, pattern in SHAPES.items():
                    found = None if sentence.endswith("?") else pattern.search(bare)
                    if found:
                        print(f"{path}:{line}: {shape} {found[0]!r}: {sentence[:100]}")
                        counts["/".join(path.parts[: 3 if path.parts[0] == "src" else 1])] += 1
    for folder, number in sorted(counts.items()):
        print(f"{number:5}  {folder}")
    return int(bool(counts))


def _files(names: list[str]) -> Iterator[Path]:
    for path in (Path(name).resolve() for name in names):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in {".py", ".md"}:
                yield file.relative_to(ROOT)


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what people read in a file, each piece with its line."""
    source = (ROOT / path).read_text()
    if path.suffix == ".md":
        yield from _pieces(source, 1)
        return
    for node in ast.walk(ast.parse(source)):
        match node:  # a docstring, or the text below a field
            case ast.Expr(ast.Constant(str() as text)):
                yield from _pieces(text, node.lineno)
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("# ")
        if token.type != tokenize.COMMENT or DIRECTIVE.match(text):
            continue
        if token.start[0] != last + 1 or token.line.lstrip()[0] != "#":
            yield from _pieces("\n".join(block), last - len(block) + 1)
            block = []
        block.append(text)
        last = token.start[0]
    yield from _pieces("\n".join(block), last - len(block) + 1)


def _pieces(text: str, line: int) -> Iterator[tuple[int, str]]:
    """Yield paragraphs, list items and cells of tables, without code, quoted text and headings."""
    text = re.sub(r"^( *)(```|~~~).*?^\1\2 *$|<!--.*?-->", _blank, text, flags=re.M | re.S)
    text = re.sub(r"`[^`]+`", lambda match: "X" + _blank(match), text)
    text = re.sub(r'(?<!\w)"[^"\n]+"', "X", text)
    piece, start = "", line
    for number, row in enumerate(text.split("\n"), line):
        if not row.strip() or row.lstrip().startswith(("#", "|")) or LABEL.match(row):
            yield start, piece
            piece, start = "", number + (not row.strip())
        if row.lstrip().startswith("|"):
            yield from ((number, cell) for cell in row.split("|"))
        elif not row.lstrip().startswith("#"):
            piece += LABEL.sub("", row, count=1) if LABEL.match(row) else f" {row}"
    yield start, piece


def _blank(match: re.Match[str]) -> str:
    """Return as many line ends as the text has, so that lines keep their numbers."""
    return "\n" * match[0].count("\n")


if __name__ == "__main__":
    sys.exit(main())
