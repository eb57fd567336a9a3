"""Do what the README says in a fresh clone with an environment of its own, and keep a transcript.

    python scripts/first_hour.py > FILE

Takes the blocks of the README's section "Try it" and then of the tutorial as they stand, those that
the tests leave out included, and gives them to one shell, as a newcomer would. Ends with 1 where
one fails. Only pip and uv are told to be quiet. The tutorial installs torch: 3 GB to download.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from markdown_it import MarkdownIt

from leconvert import __version__

ROOT = Path(__file__).resolve().parents[1]
# The shell says each command before it runs it, and what it ended with.
_STEP = """
printf '\\n$ %s\\n' {quoted}
{command}
"""


def commands_below(text: str, heading: str | None = None) -> list[str]:
    """Return the commands of a page, or of one section of it; a Python block is one command."""
    found: list[str] = []
    inside = heading is None
    tokens = MarkdownIt("commonmark").parse(text)
    for i, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == "h2":
            inside = heading in (None, tokens[i + 1].content)
        elif inside and token.type == "fence" and token.info.strip() == "sh":
            lines = token.content.replace("\\\n", " ").splitlines()
            found += [line for line in lines if line]
        elif inside and token.type == "fence" and token.info.strip() == "python":
            found.append(f"python - <<'END'\n{token.content}END")
    return found


def main() -> int:
    """Clone, run, and write down what happened."""
    # Temporary folders of an environment in use would be named in the transcript.
    with tempfile.TemporaryDirectory(prefix="first-hour-", dir="/tmp") as folder:
        clone = Path(folder) / "leconvert"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-e"],
            input="".join(
                _STEP.format(quoted=shlex.quote(command), command=command)
                for command in commands_below((clone / "README.md").read_text("utf-8"), "Try it")
                + commands_below((clone / "docs" / "tutorial.md").read_text("utf-8"))
            ),
            cwd=clone,
            env=_plain_environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - began
    said = done.stdout.replace(folder, "/home/newcomer")
    head = f"leconvert {__version__}, a fresh clone, Python {platform.python_version()}.\n"
    end = f"\nEnded with {done.returncode} after {seconds:.0f} s.\n"
    print(head + said + end)
    return 1 if done.returncode else 0


def _plain_environment(home: str) -> dict[str, str]:
    """Return the environment of somebody who has set up nothing; how to reach an index stays."""
    kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "LANG", "SSL_"))}
    # The Python that runs this may be one of an environment: its base makes the new one.
    base = Path(sys.base_prefix) / "bin"
    quiet = {"PIP_QUIET": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_NO_PROGRESS": "1"}
    return {**kept, **quiet, "HOME": home, "PATH": f"{base}{os.pathsep}/usr/bin{os.pathsep}/bin"}


if __name__ == "__main__":
    sys.exit(main())
