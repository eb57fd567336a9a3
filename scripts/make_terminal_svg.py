"""Record leconvert in a terminal and draw what the terminal showed.

    python scripts/make_terminal_svg.py

writes ``docs/images/terminal.svg``. The commands below run in a pseudo-terminal, one after the
other, in a new folder; what they wrote is drawn as they wrote it, progress bars in their last
state. Nothing is edited: to renew the picture, run this again.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import shlex
import shutil
import struct
import sys
import termios
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


def recorded(command: str, folder: Path) -> str:
    """Run a command in a pseudo-terminal and return all that it wrote there.

    Raises:
        SystemExit: It failed.
    """
    words = [sys.executable, "-m", *shlex.split(command)]
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.chdir(folder)
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS))
        os.execv(sys.executable, words)
    written = bytearray()
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux says EIO when the last process closed its side
            break
        if not piece:
            break
        written += piece
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    text = written.decode("utf-8")
    if code != 0:
        raise SystemExit(f"{command} ended with {code}:\n{text}")
    return text.replace("\r\n", "\n")


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
        parts = [(command, recorded(command, FOLDER)) for command in COMMANDS]
    finally:
        shutil.rmtree(FOLDER)
    PICTURE.write_text(drawn(parts, "leconvert"), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
