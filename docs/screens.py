"""Make the pictures and the screens of the pages by running the commands: `python docs/screens.py`.

Each screen is a real run on a terminal with 80 columns and 24 lines, with a local backend in the folder /tmp/ada. The
programs are pyte and pexpect, of the extra `test`.
"""

from __future__ import annotations

import getpass
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

ROOT = Path(__file__).parent.parent
COLUMNS, LINES = 80, 24
#: The screens that are also pictures.
PICTURES = ("follow", "top", "ls", "plot")
#: Names of colors in pyte → different names in rich.
_COLORS = {"brown": "yellow", "default": None}
#: An SVG template without the web fonts that the template of rich loads.
_TEMPLATE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
font-size: {char_height}px; line-height: {line_height}px }}
.{unique_id}-title {{ font-size: 18px; font-family: system-ui, sans-serif }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class Terminal:
    """A command on a terminal, whose screen can be read while it runs."""

    def __init__(self, command: str, environment: dict[str, str], folder: Path) -> None:
        self.screen = pyte.Screen(COLUMNS, LINES)
        self.stream = pyte.ByteStream(self.screen)
        self.command = command
        self.process = pexpect.spawn("/bin/sh", ["-c", command], env=environment, cwd=str(folder),
                                     dimensions=(LINES, COLUMNS), timeout=5)

    def until(self, seen: Callable[[str], object] | None = None) -> Terminal:
        """Read until `seen` accepts the screen, or without `seen` until the command ends.

        Raises TimeoutError when the command ends before.
        """
        while True:
            try:
                self.stream.feed(self.process.read_nonblocking(65536, timeout=120))
            except pexpect.EOF:
                self.process.close()
                if seen is None or seen(self.text()):
                    return self
                raise TimeoutError(f"{self.command} ended without the expected screen:\n{self.text()}") from None
            if seen is not None and seen(self.text()):
                return self

    def end(self) -> None:
        """End the command, if it runs."""
        self.process.close(force=True)

    def text(self) -> str:
        """Return the lines of the screen."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def picture(self, path: Path) -> None:
        """Write the screen as an SVG."""
        text = Text()
        for row in range(len(self.text().splitlines())):
            for column in range(COLUMNS):
                cell = self.screen.buffer[row][column]
                text.append(cell.data, Style(color=_color(cell.fg), bgcolor=_color(cell.bg), bold=cell.bold,
                                             reverse=cell.reverse, italic=cell.italics, underline=cell.underscore))
            text.append("\n")
        console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
        console.print(text, end="", soft_wrap=True)
        drawn = console.export_svg(title=self.command, theme=SVG_EXPORT_THEME, code_format=_TEMPLATE, unique_id="s")
        path.write_text(re.sub(r"[ \t]+$", "", drawn, flags=re.MULTILINE), encoding="utf-8")


def _color(name: str) -> str | None:
    """Return the name in rich of a color of pyte."""
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    name = _COLORS.get(name, name) or ""
    return re.sub("^bright", "bright_", name.replace("bright_", "bright")) or None


def screens(folder: Path) -> dict[str, Terminal]:
    """Run the commands and return their screens by name. `folder` is the home of the server and of the user."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder), "TERM": "xterm-256color",
        "DLICMD_HOME": str(folder / "state"), "DLI_SLOTS": "4", "LANG": "C.UTF-8", "USER": getpass.getuser(),
        "XDG_CONFIG_HOME": str(folder / ".config"),
    }
    for name in ("digits", "single"):
        shutil.copytree(ROOT / "samples" / name, folder / name)
    data = "--data digits/data"

    def done(command: str) -> None:
        subprocess.run(command, shell=True, env=environment, cwd=folder, check=True, capture_output=True)

    def shown(command: str, seen: Callable[[str], object] | None = None) -> Terminal:
        return Terminal(command, environment, folder).until(seen)

    taken = {}
    try:
        for rate in ("0.01", "0.001", "0.0001"):
            done(f"dlicmd run single/train.py --name 'lr {rate}' {data} --wait -- --epochs 30 --lr {rate}")
        done(f"dlicmd run digits/train.py --name long {data} --workers 4 --no-follow -- --engines 4 --epochs 1000")
        done("until dlicmd get last -o json | grep -q samplesPerSecond; do sleep 0.3; done")
        taken["follow"] = shown(f"dlicmd run digits/train.py --workers 2 {data} -- --epochs 12",
                                lambda text: re.search(r"epoch [5-9]/12.*s left", text))
        taken["follow"].end()
        taken["top"] = shown("dlicmd top", lambda text: "long" in text and "train" in text and "% busy" in text)
        taken["top"].end()
        taken["ls"] = shown("dlicmd ls")
        done("dlicmd wait local-5; dlicmd stop local-4")
        taken["get"] = shown("dlicmd get local-5")
        taken["plot"] = shown("dlicmd plot local-1 local-2 local-3")
    finally:
        done("local-backend stop --jobs")
    return taken


def main() -> None:
    """Write every picture, and the screens between their marks in the pages."""
    home = Path("/tmp/ada")  # a short path: screens show it
    home.mkdir(mode=0o700)
    try:
        taken = screens(home)
        for which in PICTURES:
            taken[which].picture(ROOT / "docs" / "pictures" / f"{which}.svg")
        blocks = {
            which: "```\n" + re.sub("\n{3,}", "\n\n", terminal.text()).replace(str(home), "~") + "\n```\n"
            for which, terminal in taken.items()
        }
        for page in (ROOT / "README.md", ROOT / "docs" / "watch-jobs.md"):
            text = re.sub(r"(<!-- screen (\w+) -->\n).*?(<!-- /screen -->)",
                          lambda found: found[1] + blocks[found[2]] + found[3],
                          page.read_text(encoding="utf-8"), flags=re.DOTALL)
            page.write_text(text, encoding="utf-8")
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
