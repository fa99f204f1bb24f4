"""Charts as inline SVG: drawn by matplotlib, once for a wide page and once for a phone.

Colours are drawn as fixed tokens and become CSS variables, so that a chart follows light, dark and print;
words stay text in the page's own font. A point that has a tip shows it as its `<title>`.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any

from ..errors import EngineUnavailable
from ..figures import clean, shortened
from ..progress import quiet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, NARROW = 860, 336  # CSS pixels, of a page and of a phone
FONT = 12.0
_POINTS = 72.0  # of an inch; an SVG's unit is then one point of matplotlib

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_NAMES = (
    "ink", "muted", "rule", "surface", "accent", "bad", "good",
    "float", "half", "int8", "low", "mixed",
    "minmax", "percentile", "entropy", "mse", "auto",
)  # fmt: skip
COLOURS = {name: f"#fe00{index:02x}" for index, name in enumerate(_NAMES, 1)}
_TOKENS = {token: f"var(--{name})" for name, token in COLOURS.items()}
_TOKEN = re.compile("|".join(_TOKENS))
_FONT_FAMILY = re.compile(r"\s*font-family:[^;]*;?")
_LONG_NUMBER = re.compile(r"(-?\d+\.\d{2})\d+")
_TIP = "tip-"


@dataclass
class Canvas:
    """What a chart is drawn on.

    Attributes:
        width: In CSS pixels.
        tips: Text of each artist that has one, by its id.
    """

    width: int
    tips: dict[str, str] = field(default_factory=dict)

    @property
    def is_narrow(self) -> bool:
        """Whether it is for a phone."""
        return self.width == NARROW

    def figure(self, height: float) -> Figure:
        """Return an empty figure, `height` in CSS pixels."""
        from matplotlib.figure import Figure

        return Figure(figsize=(self.width / _POINTS, height / _POINTS), facecolor="none")

    def axes(
        self, figure: Figure, *, left: float, right: float, top: float, bottom: float, frame: bool = False
    ) -> Axes:
        """Return axes within margins of CSS pixels, with a light grid below everything."""
        width, height = figure.get_figwidth() * _POINTS, figure.get_figheight() * _POINTS
        axes: Axes = figure.add_axes((
            left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height,
        ))  # fmt: skip
        axes.set_facecolor("none")
        axes.set_axisbelow(True)
        axes.grid(color=COLOURS["rule"], linewidth=1)
        axes.tick_params(length=0, labelsize=FONT - 1, labelcolor=COLOURS["muted"], pad=6)
        axes.tick_params(which="minor", length=0, labelsize=0)
        for side in axes.spines.values():
            side.set_visible(frame)
            side.set_edgecolor(COLOURS["rule"])
        return axes

    def tip(self, artist: Any, text: str) -> None:
        """Show `text` where a pointer rests on the artist."""
        name = f"{_TIP}{len(self.tips)}"
        artist.set_gid(name)
        self.tips[name] = text


@dataclass(frozen=True)
class Chart:
    """A drawn chart: SVG for wide pages, empty where it is not needed, and for phones."""

    wide: str
    narrow: str


def draw(name: str, label: str, paint: Callable[[Canvas], Figure], *, wide: bool = True) -> Chart:
    """Draw a chart at both widths.

    Args:
        name: Unique in the page; ids within the SVG begin with it.
        label: What a reader who does not see it is told.
        paint: Draws on a canvas.
        wide: Whether for wide pages too.

    Raises:
        EngineUnavailable: If matplotlib is missing.
    """
    return Chart(
        _draw(f"{name}-w", label, paint, WIDE) if wide else "", _draw(f"{name}-n", label, paint, NARROW)
    )


def require_matplotlib() -> None:
    """Look first.

    Raises:
        EngineUnavailable: If matplotlib is missing.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise EngineUnavailable(
            f"matplotlib cannot be imported ({error})", hint="pip install 'qcompile[report]'", engine="report"
        ) from error


def write(axes: Any, x: float, y: float, text: str, *, colour: str = "ink", **options: Any) -> Any:
    """Write plain text: a `$` or `_` in a name is no mathematics."""
    options.setdefault("fontsize", FONT)
    options.setdefault("va", "center")
    return axes.text(x, y, clean(text), color=COLOURS[colour], parse_math=False, **options)


def fitting(name: str, pixels: float, size: float = FONT) -> str:
    """Return a name that fits into a width."""
    return shortened(clean(name), max(int(pixels / (0.56 * size)), 8))


def _draw(name: str, label: str, paint: Callable[[Canvas], Figure], width: int) -> str:
    import matplotlib

    canvas = Canvas(width)
    settings = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": FONT, "path.simplify": True}
    with matplotlib.rc_context(settings), quiet():  # of letters that matplotlib's own font lacks
        written = BytesIO()
        paint(canvas).savefig(written, format="svg", metadata={"Date": None}, transparent=True)
    return _inline(written.getvalue(), name, label, canvas)


def _inline(svg: bytes, name: str, label: str, canvas: Canvas) -> str:
    """An SVG file becomes a part of a page: no styles or ids that reach beyond it, colours by variable."""
    root = ElementTree.fromstring(svg)
    _remove(root, {f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"})
    used = set(re.findall(r"(?:href=\"#|url\(#)([\w-]+)", svg.decode()))
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
        element.text = element.text if element.tag in ("text", "tspan", "title") else None
        element.tail = None
        own = element.attrib.pop("id", None)
        if own in canvas.tips:
            title = ElementTree.Element("title")
            title.text = clean(canvas.tips[own])
            element.insert(0, title)
            element.set("class", "tip")
        elif own in used:
            element.set("id", f"{name}-{own}")
        reference = element.attrib.pop(f"{{{_XLINK}}}href", None)
        if reference:
            element.set("href", f"#{name}-{reference[1:]}")
        if "clip-path" in element.attrib:
            element.set("clip-path", element.attrib["clip-path"].replace("url(#", f"url(#{name}-"))
        if "d" in element.attrib:
            # A hundredth of a pixel is enough.
            element.set("d", _LONG_NUMBER.sub(r"\1", " ".join(element.attrib["d"].split())))
        if "style" in element.attrib:
            style = _FONT_FAMILY.sub("", element.attrib["style"])
            element.set("style", _TOKEN.sub(lambda match: _TOKENS[match[0]], style))
    box = root.get("viewBox", "").split()
    root.attrib.clear()
    root.attrib.update({
        "viewBox": " ".join(box), "width": box[2], "height": box[3],
        "role": "img", "aria-label": clean(label),
    })  # fmt: skip
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)


def _remove(element: ElementTree.Element, tags: set[str]) -> None:
    for child in list(element):
        if child.tag in tags:
            element.remove(child)
        else:
            _remove(child, tags)
