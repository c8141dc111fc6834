"""Boxes, arrows and text as SVG, with the standard library alone.

A picture brings its own background and changes all of its colours together in dark mode, so that it can be read on any
page.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

FONT = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"

STYLE = """
  .page { fill: #ffffff }
  .box { fill: #f3f5f8; stroke: #8a94a3; stroke-width: 1.2 }
  .strong { fill: #dcebfb; stroke: #2f6fb3; stroke-width: 1.6 }
  .warm { fill: #fdf0d9; stroke: #b7791f; stroke-width: 1.2 }
  .good { fill: #dff3e4; stroke: #2c8a4b; stroke-width: 1.6 }
  .kill { fill: #d33a2c }
  .frame { fill: none; stroke: #8a94a3; stroke-width: 1.2; stroke-dasharray: 5 4 }
  .line { fill: none; stroke: #5b6675; stroke-width: 1.4 }
  .head { fill: #5b6675 }
  text { fill: #1b2430; font-family: FONT; font-size: 13px }
  text.title { font-size: 15px; font-weight: bold }
  text.bold { font-weight: bold }
  text.note { fill: #4a5563; font-size: 12px }
  text.killed { fill: #b3281c }
  @media (prefers-color-scheme: dark) {
    .page { fill: #14181f }
    .box { fill: #222936; stroke: #75808f }
    .strong { fill: #1c3a5a; stroke: #6cabee }
    .warm { fill: #43331a; stroke: #d9a441 }
    .good { fill: #1b3f29; stroke: #5cc27f }
    .kill { fill: #ff6b5c }
    .frame { stroke: #75808f }
    .line { stroke: #a3aebd }
    .head { fill: #a3aebd }
    text { fill: #e8edf4 }
    text.note { fill: #b4bfcd }
    text.killed { fill: #ff9a8f }
  }
""".replace("FONT", FONT)


class Drawing:
    """A picture of a fixed size, drawn from back to front."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{width}" height="{height}"/>',
        ]

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """One line, with its baseline at `y`."""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>')

    def box(
        self, x: float, y: float, width: float, height: float, lines: list[str], kind: str = "box", left: bool = False
    ) -> None:
        """A box with lines in it; the first one is bold."""
        self._parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>')
        top = y + height / 2 - 8 * (len(lines) - 1) + 4.5
        for number, line in enumerate(lines):
            place = x + 12 if left else x + width / 2
            self.text(place, top + 16 * number, line, "note" if number else "bold", "start" if left else "middle")

    def frame(self, x: float, y: float, width: float, height: float, title: str) -> None:
        """A dashed frame around what belongs together."""
        self._parts.append(f'<rect class="frame" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>')
        self.text(x + 12, y + 20, title, "bold")

    def shape(self, points: list[tuple[float, float]], kind: str) -> None:
        """A filled shape with these corners."""
        self._parts.append(f'<polygon class="{kind}" points="{" ".join(f"{x:g},{y:g}" for x, y in points)}"/>')

    def arrow(self, *points: tuple[float, float]) -> None:
        """A line through the points, with a head at its end."""
        (before_x, before_y), (x, y) = points[-2:]
        step_x, step_y = (x > before_x) - (x < before_x), (y > before_y) - (y < before_y)
        back_x, back_y = x - 8 * step_x, y - 8 * step_y
        path = " ".join(f"{a:g},{b:g}" for a, b in (*points[:-1], (back_x, back_y)))
        self._parts.append(f'<polyline class="line" points="{path}"/>')
        sides = f"{back_x + 4 * step_y:g},{back_y + 4 * step_x:g} {back_x - 4 * step_y:g},{back_y - 4 * step_x:g}"
        self._parts.append(f'<polygon class="head" points="{x:g},{y:g} {sides}"/>')

    def save(self, script: str) -> None:
        """Write the picture beside its script, under the name of the script without `draw_`."""
        path = Path(script)
        name = path.stem.removeprefix("draw_").replace("_", "-") + ".svg"
        path.with_name(name).write_text("\n".join([*self._parts, "</svg>", ""]))
