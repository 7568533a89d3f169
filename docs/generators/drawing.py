"""Small SVG drawings that are readable on light and on dark pages. What they show is in `diagrams`."""

from html import escape

_STYLE = """\
<style>
  .page { fill: #ffffff; stroke: #d8dee4 }
  text { font: 14px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1f2a30 }
  .note { font-size: 12px; fill: #5b6870 }
  .head { font-weight: 600 }
  .label { font-size: 12px; fill: #5b6870; paint-order: stroke; stroke: #ffffff; stroke-width: 5px }
  .box { fill: #f3f6f8; stroke: #8b9aa5 }
  .good { fill: #eeedfd; stroke: #4f46e5 }
  .bad { fill: #fde4e1; stroke: #b42318 }
  .warn { fill: #fdf0d0; stroke: #b07503 }
  .line { stroke: #6b7a84; fill: none }
  .strong { stroke: #4f46e5; stroke-width: 2; fill: none }
  .dashed { stroke: #6b7a84; stroke-dasharray: 4 4; fill: none }
  .tip { fill: #6b7a84 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #161c20; stroke: #323c43 }
    text { fill: #e3e9ec }
    .note { fill: #9fb0ba }
    .label { fill: #9fb0ba; stroke: #161c20 }
    .box { fill: #222b31; stroke: #6d7d88 }
    .good { fill: #26254a; stroke: #8b85f5 }
    .bad { fill: #4b1d1a; stroke: #f97066 }
    .warn { fill: #45340c; stroke: #eab308 }
    .line, .dashed { stroke: #8b9aa5 }
    .strong { stroke: #8b85f5 }
    .tip { fill: #8b9aa5 }
  }
</style>
<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto"
  markerUnits="userSpaceOnUse"><path class="tip" d="M0 0L10 5L0 10z"/></marker></defs>"""


class Drawing:
    """A canvas with a title for screen readers. Coordinates are pixels, from the top left."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self._size = width, height
        self._title = title
        self._parts: list[str] = []

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> None:
        self._parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, text: str = "", kind: str = "box") -> None:
        self._parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5"/>')
        lines = text.split("\n") if text else []
        top = y + height / 2 + 5 - 8 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + 16 * number, line, "note" if number else "")

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "line") -> None:
        self._parts.append(f'<path class="{kind}" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/>')

    def arrow(self, *points: float, kind: str = "line") -> None:
        """A line through points, each as x and y, with a tip at its end."""
        pairs = [f"{x:g} {y:g}" for x, y in zip(points[::2], points[1::2], strict=True)]
        self._parts.append(f'<path class="{kind}" d="M{"L".join(pairs)}" marker-end="url(#tip)"/>')

    def svg(self) -> str:
        width, height = self._size
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">'
        page = f'<rect class="page" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>'
        return "\n".join([head, f"<title>{escape(self._title)}</title>", _STYLE, page, *self._parts, "</svg>"]) + "\n"
