"""Record leconvert in a terminal and draw what the terminal showed.

    python scripts/make_terminal_svg.py

writes ``docs/images/terminal.svg``. The commands below run in a pseudo-terminal, one after the
other, in a new folder; what they wrote is drawn as they wrote it, progress bars in their last
state. Nothing is edited: to renew the picture, run this again.
"""

from __future__ import annotations

import io
import os
import pty
import shlex
import shutil
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COMMANDS = (
    "leconvert demo",
    "leconvert convert leconvert-demo/demo_v21 arm_v30 --verify bytes",
    "leconvert check arm_v30",
)
COLUMNS, ROWS = 108, 40
FOLDER = Path("/tmp/robots")  # which the picture shows
PICTURE = Path(__file__).resolve().parents[1] / "docs/images/terminal.svg"
_FONTS = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"


def recorded(command: str) -> str:
    """Run a command in a pseudo-terminal and return all that it wrote there."""
    written = bytearray()

    def read(terminal: int) -> bytes:
        piece = os.read(terminal, 65536)
        written.extend(piece)
        return piece

    environment = f"TERM=xterm-256color COLUMNS={COLUMNS}"
    program = f"{environment} exec {shlex.quote(sys.executable)} -m {command}"
    status = pty.spawn(
        ["sh", "-c", f"stty rows {ROWS} cols {COLUMNS}; cd {FOLDER}; {program}"], read
    )
    if status != 0:
        raise SystemExit(f"{command} ended with {os.waitstatus_to_exitcode(status)}")
    return written.decode("utf-8").replace("\r\n", "\n")


def drawn(parts: list[tuple[str, str]], title: str) -> str:
    """Return commands and what they wrote as an SVG picture that loads nothing from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for i, (command, said) in enumerate(parts):
        if i:
            console.print()
        console.print(Text("$ ", style="bold green") + Text(command, style="bold"))
        for line in said.rstrip("\n").split("\n"):
            shown = Text.from_ansi(line.rstrip("\r").rsplit("\r", 1)[-1])
            if shown.plain.strip() or "\r" not in line:
                # A terminal breaks a long line at its edge.
                for part in shown.divide(range(COLUMNS, len(shown), COLUMNS)):
                    console.print(part, soft_wrap=True)
    console.print()  # rich cuts the last line's descenders off
    start = CONSOLE_SVG_FORMAT.index("@font-face")
    end = CONSOLE_SVG_FORMAT.index(".{unique_id}-matrix")
    frame = CONSOLE_SVG_FORMAT[:start] + CONSOLE_SVG_FORMAT[end:]
    frame = frame.replace("Fira Code", _FONTS).replace(
        "font-family: arial", "font-family: sans-serif"
    )
    return (
        console.export_svg(
            title=title, theme=MONOKAI, code_format=frame, unique_id="terminal"
        ).rstrip()
        + "\n"
    )


def main() -> int:
    """Record and draw."""
    FOLDER.mkdir(parents=True)
    try:
        parts = [(command, recorded(command)) for command in COMMANDS]
    finally:
        shutil.rmtree(FOLDER)
    PICTURE.write_text(drawn(parts, "leconvert"), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
