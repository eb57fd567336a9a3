"""The codes of findings as a page, from the catalogues of sources and of v3.0 datasets."""

from __future__ import annotations

from leconvert.dataset.findings import SOURCE_CATALOGUE, V3_CATALOGUE, Kind

__all__ = ["findings_page"]

_HEAD = """\
# Codes of findings

<!-- Written by scripts/make_reference.py from the catalogues; changes here are lost. -->

What severities mean and what repairs do: [findings](../findings.md) for the source of a
conversion, [check](../check.md) for a v3.0 dataset by itself.

## In a source

What `plan` and `convert` find before any work, and `check` in a v2.x dataset. The last column says
what helps: first what loses nothing, then the options of `convert`, the one that loses least first.

| code | severity | what was seen | what helps |
|---|---|---|---|
"""

_V30 = """
## In a v3.0 dataset

What `leconvert check` finds in a v3.0 dataset.

| code | severity | what was seen |
|---|---|---|
"""


def findings_page() -> str:
    """Return the page."""
    v2 = "".join(_row(kind) for kind in SOURCE_CATALOGUE.values())
    v3 = "".join(
        f"| `{code}` | {kind.severity} | {kind.meaning} |\n" for code, kind in V3_CATALOGUE.items()
    )
    return _HEAD + v2 + _V30 + v3


def _row(kind: Kind) -> str:
    flags = [*kind.repairs, *([f"--accept {kind.code}"] if kind.acceptable else [])]
    helps = ", ".join(f"`{flag}`" for flag in flags)
    helps = " Or ".join(filter(None, (kind.remedy, helps)))
    return f"| `{kind.code}` | {kind.severity} | {kind.meaning} | {helps} |\n"
