"""``leconvert fleet find``."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.options import add_json, path_or_url
from leconvert.model.versions import V3_VERSION
from leconvert.support.errors import UsageError
from leconvert.support.text import amount, count

if TYPE_CHECKING:
    from leconvert.fleet import FoundDataset
    from leconvert.remote.source import HubGroup


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "root", type=path_or_url, metavar="FOLDER",
        help="where to look for datasets: a folder, hf://ORG for those of a user or an "
        "organisation on the Hub, hf://collections/ORG/SLUG or the address of such a page",
    )  # fmt: skip
    parser.add_argument(
        "--no-scan", action="store_false", dest="scan",
        help="go by info.json alone, as on the Hub always; by default the files of each dataset "
        "are looked at, as check does",
    )  # fmt: skip
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print a list that `leconvert fleet` takes; what is no line of it is a comment."""
    from leconvert.fleet import find_datasets, find_on_hub, look_at_datasets

    if isinstance(options.root, str):
        datasets = find_on_hub(_group(options.root))
    else:
        root = options.root.resolve()
        datasets = look_at_datasets(root, find_datasets(root), scan=options.scan)
    if options.json:
        print(json.dumps({"datasets": [found.as_record() for found in datasets]}, indent=2))
        return 0
    number = left_out = size_bytes = 0
    for found in datasets:
        number, size_bytes = number + 1, size_bytes + found.size_bytes
        left_out += _is_left_out(found)
        print("\n".join(_lines(found)), flush=True)
    also = f"; {left_out} of them left out, as comments" if left_out else ""
    print(f"# {count(number, 'dataset')}, {amount(size_bytes)}{also}")
    return 0


def _group(url: str) -> HubGroup:
    from leconvert.remote.source import parse_group

    group = parse_group(url)
    if group is None:
        raise UsageError(
            f"{url} names no datasets on the Hub.",
            path=url,
            next_step="Pass hf://ORG, hf://collections/ORG/SLUG, or the address of such a page.",
        )
    return group


def _is_left_out(found: FoundDataset) -> bool:
    return found.problem is not None or found.version == V3_VERSION


def _lines(found: FoundDataset) -> list[str]:
    """Return the dataset's line, and below it what was seen.

    The name in the fleet is the path below the folder, which is that of no other dataset.
    """
    from leconvert.dataset.findings import lossless_remedy

    words = [found.name]
    if isinstance(found.source, Path):
        words = [str(found.source)]
        if found.name != found.source.name:
            words += ["--name", found.name]
    line = shlex.join(words)
    if _is_left_out(found):
        line = f"# {line}"
    episodes = "" if found.episodes is None else f"{count(found.episodes, 'episode')}, "
    lines = [f"{line}  # {found.version or 'no version'}, {episodes}{amount(found.size_bytes)}"]
    if found.problem is not None:
        lines.append(f"#   {found.problem}")
    elif _is_left_out(found):
        lines.append(f"#   is {found.version} already")
    for severity, codes in (("error", found.errors), ("warning", found.warnings)):
        if codes:
            said = ", ".join(f"{code} ({times})" for code, times in codes.items())
            lines.append(f"#   {count(sum(codes.values()), severity)}: {said}")
    helps = list(found.remedies)
    if found.version != V3_VERSION:  # of v3.0 the remedies are sentences that say it themselves
        helps = [*filter(None, map(lossless_remedy, found.errors)), *helps]
    lines += [f"#   helps: {remedy}" for remedy in dict.fromkeys(helps)]
    return [" ".join(line.splitlines()) for line in lines]
