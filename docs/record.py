"""`python -m docs.record`: records the failing acts of the demo into `docs/pictures/recovery.svg`.

What is drawn has run, a moment ago, with every claim checked; otherwise nothing is written. The
picture is the same each time: no times, ports, paths or session ids are in it. It asks for no font
from anywhere, and has a background of its own, so that it reads the same on any page.
"""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from examples import demo
from examples.demo.acts import PICTURED
from examples.demo.screen import WIDTH, Painted

PICTURE = Path(__file__).resolve().parent / "pictures" / "recovery.svg"

THEME = TerminalTheme(
    background=(24, 28, 36),
    foreground=(216, 222, 233),
    normal=[
        *((46, 52, 64), (240, 113, 120), (126, 201, 138), (229, 192, 123)),
        *((122, 162, 247), (187, 154, 247), (125, 207, 255), (216, 222, 233)),
    ],
)

# In place of rich's own frame, which fetches its font from another host.
FRAME = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" \
aria-label="A terminal: the toolkeep demo, and what each recovery cost">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; \
font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-family: sans-serif; font-size: 16px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" \
width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def recorded() -> str:
    # What can be drawn depends on the encoding of what is written to.
    nowhere = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    console = Console(
        file=nowhere, record=True, width=WIDTH, force_terminal=True, color_system="standard"
    )
    screen = Painted(console)
    claims = asyncio.run(demo.perform(screen, PICTURED))
    screen.closing(held=sum(claim.holds for claim in claims), made=len(claims))
    if demo.verdict(claims):
        sys.exit(console.export_text())
    return console.export_svg(
        title="toolkeep demo", theme=THEME, code_format=FRAME, unique_id="recovery"
    )


def main(path: Path = PICTURE) -> None:
    picture = recorded()
    path.parent.mkdir(exist_ok=True)
    path.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
