"""The Python interface as a page: signatures and docstrings, read without importing anything."""

from __future__ import annotations

import re
from pathlib import Path

import griffe

# Modules and what of them is meant for others; None for all that ``__all__`` names.
PUBLIC: dict[str, tuple[str, ...] | None] = {
    "leconvert": None,
    "leconvert.model.repairs": ("RepairOptions",),
    "leconvert.run.conversion": ("Control", "LeaseOptions"),
    "leconvert.model.values": ("Finding",),
    "leconvert.run.engines": None,
    "leconvert.api": ("Submission", "submit_run"),
    "leconvert.remote.source": ("FetchedSource", "already_converted", "download", "fetch_sparse"),
    "leconvert.transfer.options": ("ScratchOptions",),
    "leconvert.remote.stores": None,
    "leconvert.loading": (
        *("EpisodeStream", "MixedStream", "SampleStream", "StreamFacts", "StreamLoader"),
        "UnreadableFrame",
        *("group_episodes_by_files", "partition_episodes"),
        *("Resampled", "ResampledDataset", "resample"),
    ),
    "leconvert.bench": ("Comparison", "compare_with_map"),
    "leconvert.media": ("JoinedFile", "LastIndex", "join_clips"),
    "leconvert.model.float32_tolerance": None,
    "leconvert.testing": None,
}

_HEAD = """\
# Python reference

This page describes the public modules. `leconvert` itself has the functions that most programs
need. The other modules start workers, load a result, or make datasets. [Exit codes](exit-codes.md)
lists the errors.
"""

# Sections whose entries have a name.
_NAMED = {"parameters": "Arguments", "attributes": "Attributes"}
_UNNAMED = {"returns": "Returns", "yields": "Yields", "raises": "Raises"}


def api_page(source: Path) -> str:
    """Return the page.

    Args:
        source: The folder that holds the package.
    """
    loader = griffe.GriffeLoader(search_paths=[source], allow_inspection=False)
    loader.load("leconvert")
    parts = [_HEAD]
    for module_name, chosen in PUBLIC.items():
        module = loader.modules_collection[module_name]
        names = chosen or [str(name) for name in module.exports or ()]
        parts += [f"## `{module_name}`", ""]
        if chosen is None and module.docstring is not None:
            parts += [_text(module.docstring.value.split("\n\n", 1)[0]), ""]
        for name in names:
            if not name.startswith("__"):
                parts += _entry(_target(module[name]), name)
    return "\n".join(parts)


def _target(found: griffe.Object | griffe.Alias) -> griffe.Object:
    return found.final_target if isinstance(found, griffe.Alias) else found


def _entry(found: griffe.Object, name: str) -> list[str]:
    parts = [f"### `{name}`", ""]
    if isinstance(found, griffe.Function):
        parts += [_signature(found), ""]
    elif isinstance(found, griffe.Class) and (constructor := _constructor(found, name)):
        parts += [constructor, ""]
    parts += _docstring(found)
    if isinstance(found, griffe.Class):
        for member in found.members.values():
            if member.is_alias or member.name.startswith("_"):
                continue
            if isinstance(member, griffe.Function) or "property" in member.labels:
                parts += _method(member)
    return parts


def _method(member: griffe.Object | griffe.Alias) -> list[str]:
    found = _target(member)
    parts = [f"#### `{found.parent.name if found.parent else ''}.{found.name}`", ""]
    if isinstance(found, griffe.Function):
        parts += [_signature(found), ""]
    return parts + _docstring(found)


def _constructor(found: griffe.Class, name: str) -> str:
    """Return the call that makes one; nothing for protocols and errors without their own."""
    if "dataclass" in found.labels:
        fields = [
            f"    {member.name}: {member.annotation}"
            + (f" = {member.value}" if member.value is not None else "")
            for member in found.members.values()
            if isinstance(member, griffe.Attribute)
            and member.annotation is not None
            and "property" not in member.labels
            and not member.name.startswith("_")
            and "ClassVar" not in str(member.annotation)
        ]
        return _fenced(f"{name}(\n" + "".join(f"{field},\n" for field in fields) + ")")
    own = found.members.get("__init__")
    if not isinstance(own, griffe.Function):
        return ""
    return _fenced(_call(own, name))


def _signature(function: griffe.Function) -> str:
    returns = f" -> {function.returns}" if function.returns is not None else ""
    return _fenced(_call(function, function.name) + returns)


def _call(function: griffe.Function, name: str) -> str:
    words: list[str] = []
    kinds = griffe.ParameterKind
    starred = False
    for parameter in function.parameters:
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is kinds.var_positional:
            starred = True
        elif parameter.kind is kinds.keyword_only and not starred:
            words.append("*")
            starred = True
        prefix = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(parameter.kind, "")
        word = prefix + parameter.name
        if parameter.annotation is not None:
            word += f": {parameter.annotation}"
        if parameter.default is not None and not prefix:
            word += f" = {parameter.default}"
        words.append(word)
    line = f"{name}({', '.join(words)})"
    if len(line) <= 90:
        return line
    return f"{name}(\n" + "".join(f"    {word},\n" for word in words) + ")"


def _docstring(found: griffe.Object) -> list[str]:
    if found.docstring is None:
        return []
    parts: list[str] = []
    for section in found.docstring.parse("google", warnings=False):
        kind = section.kind.value
        if kind == "text":
            parts += [_text(section.value), ""]
        elif kind in _NAMED:
            rows = [f"- `{entry.name}`: {_line(entry.description)}" for entry in section.value]
            parts += [f"{_NAMED[kind]}:", "", *rows, ""]
        elif kind in _UNNAMED:
            rows = [_unnamed(entry) for entry in section.value]
            parts += [f"{_UNNAMED[kind]}:", "", *rows, ""]
    return parts


def _unnamed(entry: griffe.DocstringElement) -> str:
    if isinstance(entry, griffe.DocstringRaise):
        return f"- `{entry.annotation}`: {_line(entry.description)}"
    return f"- {_line(entry.description)}"


def _line(text: str) -> str:
    return _text(" ".join(text.split()))


def _text(text: str) -> str:
    """Return a docstring's text as Markdown: one kind of code, and code blocks fenced."""
    parts = []
    for part in re.split(r"((?:^    .*\n?|^\n(?=    ))+)", text, flags=re.MULTILINE):
        if part.startswith("    "):
            lines = [line.removeprefix("    ") for line in part.strip("\n").split("\n")]
            parts.append(_fenced("\n".join(lines)) + "\n")
        else:
            plain = re.sub(r"``([^`]+)``", r"`\1`", part)
            pieces = re.split(r"(`[^`]*`)", plain)
            parts.append(
                "".join(p if p.startswith("`") else re.sub(r"([<>*])", r"\\\1", p) for p in pieces)
            )
    return "".join(parts).strip("\n")


def _fenced(code: str) -> str:
    return f"```text\n{code}\n```"
