"""Print coverage a package, from what `coverage json` wrote; see scripts/coverage."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(report: Path, packages: list[str]) -> None:
    """Print a row a package, and below it the lines and branches that no test reached."""
    files: dict[str, Any] = json.loads(report.read_bytes())["files"]
    missing: list[str] = []
    print(f"| {'package':12} | lines | covered | branches | covered |")
    print(f"|{'-' * 14}|------:|--------:|---------:|--------:|")
    for package in packages:
        counts = [0, 0, 0, 0]
        for name, found in sorted(files.items()):
            inside = name.partition("leconvert/")[2]
            if not inside.startswith((f"{package}/", f"{package}.py")):
                continue
            summary = found["summary"]
            for place, key in enumerate(
                ("num_statements", "covered_lines", "num_branches", "covered_branches")
            ):
                counts[place] += summary[key]
            lines = ", ".join(_runs(found["missing_lines"]))
            branches = ", ".join(f"{start}→{stop}" for start, stop in found["missing_branches"])
            if lines or branches:
                missing.append(f"{inside}: lines {lines or 'none'}; branches {branches or 'none'}")
        print(
            f"| {package:12} | {counts[0]:5} | {_share(counts[1], counts[0]):>7} "
            f"| {counts[2]:8} | {_share(counts[3], counts[2]):>7} |"
        )
    print()
    print(*missing, sep="\n")


def _runs(lines: list[int]) -> list[str]:
    """Return numbers that follow each other as ``first-last``."""
    runs: list[list[int]] = []
    for line in lines:
        if runs and line == runs[-1][-1] + 1:
            runs[-1][1:] = [line]
        else:
            runs.append([line])
    return ["-".join(map(str, run)) for run in runs]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "none"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
