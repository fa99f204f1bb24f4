"""The report in a real browser, at the width of a phone and of a desktop, in light and dark, and printed."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Page, installed_browser
from report_results import layers_json, nothing_json, results_json, write

from qcompile.bench.report import write_report

SCREENS = {"phone": (360, 780), "desktop": (1280, 900)}
A4_BETWEEN_MARGINS = 680  # 180 mm in CSS pixels
REPORTS = ("full", "one", "thirty", "nothing", "names")

# Elements that reach beyond the page, unless they are in a box that scrolls.
OVERFLOWS = """
[...document.querySelectorAll('body *')].filter(element => {
  if (element.closest('.scroll, pre') && !element.matches('.scroll, pre')) return false;
  const box = element.getBoundingClientRect();
  const inside = element.closest('svg') && !element.matches('svg');
  return box.width > 0 && !inside
    && (box.right > document.documentElement.clientWidth + 0.5 || box.left < -0.5);
}).map(element => element.outerHTML.slice(0, 120))
"""
# Words of charts that stand outside their figure, or are cut off.
CUT = """
[...document.querySelectorAll('.chart > div')].flatMap(svg => {
  const figure = svg.closest('figure').getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter(text => {
    const box = text.getBoundingClientRect();
    return box.width > 0 && (box.right > figure.right + 0.5 || box.left < figure.left - 0.5
      || box.top < figure.top - 0.5 || box.bottom > figure.bottom + 0.5);
  }).map(text => svg.getAttribute('aria-label').slice(0, 30) + ': ' + text.textContent);
})
"""
# In charts with one row per artifact, names and values that cover each other.
COVERED = """
[...document.querySelectorAll('.rows')].flatMap(rows => {
  const texts = [...rows.querySelectorAll('text, .name, .value, .no')].filter(text => text.textContent)
    .map(text => [text.textContent, text.getBoundingClientRect()]);
  return texts.flatMap(([a, one], i) => texts.slice(i + 1).filter(([b, other]) =>
    Math.min(one.right, other.right) - Math.max(one.left, other.left) > 1 &&
    Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 4).map(([b]) => a + ' | ' + b));
})
"""
CHARTS = """
[...document.querySelectorAll('figure')].map(figure => {
  const shown = [...figure.querySelectorAll('.chart > div')];
  const boxes = shown.flatMap(svg => [...svg.querySelectorAll('path, circle, rect')])
    .map(mark => mark.getBoundingClientRect()).filter(box => box.width + box.height > 0);
  return [shown.length, Math.round(shown[0]?.getBoundingClientRect().width ?? 0),
          Math.round(shown[0]?.getBoundingClientRect().height ?? 0), boxes.length];
})
"""
# Text whose contrast with what is behind it is below that of WCAG 2.2, 1.4.3: 4.5.
PALE = """
(() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(v => v / 255)
      .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * x + .7152 * y + .0722 * z;
  };
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    if (![...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue;
    const style = getComputedStyle(element);
    const chart = element.matches('svg text');
    if (element.closest('svg') && !chart) continue;
    if (chart && element.getAttribute('style').includes('--surface')) continue;  // on bars: below
    const back = behind(element.closest('svg') ?? element);
    const front = parse(chart ? style.fill : style.color);
    const [a, b] = [light(front), light(back)];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) found.push([element.textContent.slice(0, 40), ratio]);
  }
  const probe = document.body.appendChild(document.createElement('i'));
  const colour = name => {
    probe.style.color = `var(--${name})`;
    return light(parse(getComputedStyle(probe).color));
  };
  for (const name of ['float', 'half', 'int8', 'low', 'mixed']) {
    const [a, b] = [colour(name), colour('surface')];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) found.push([name, ratio]);
  }
  probe.remove();
  return found;
})()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with installed_browser(tmp_path_factory.mktemp("browser") / "profile") as page:
        yield page


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports from everything to nothing, with names of every kind."""
    folder = tmp_path_factory.mktemp("reports")
    names = results_json(6)
    odd = ["<script>alert(1)</script>", "x" * 300, "層/" * 60, "many words " * 20, r"$x_1$ \foo", "🦆" * 40]
    for entry, name in zip(names["artifacts"], odd, strict=False):
        entry["name"] = name
    names["baseline"] = odd[0]
    names["settings"]["command"] = ["qcompile", "bench", *("x" * 200 for _ in range(5))]
    values = {
        "full": results_json(), "one": results_json(1), "thirty": results_json(30),
        "nothing": nothing_json(), "names": names,
    }  # fmt: skip
    layers = write(folder / "layers.json", layers_json())
    return {
        name: write_report(write(folder / f"{name}.json", value), folder / f"{name}.html", layers=[layers])
        for name, value in values.items()
    }


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_drawn_whole_on(
    browser: Page, reports: dict[str, Path], name: str, screen: str, dark: bool
) -> None:
    width, height = SCREENS[screen]
    browser.show(reports[name], width=width, height=height, dark=dark)
    browser.run("document.querySelectorAll('details').forEach(details => details.open = true)")

    background = str(browser.run("getComputedStyle(document.body).backgroundColor"))
    colour = [int(value) for value in background[4:-1].split(",")]
    assert max(colour) < 40 if dark else min(colour) > 230
    assert browser.complaints == []
    assert browser.requests == [reports[name].as_uri()]
    scrolled: Any = browser.run(
        "document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth"
    )
    assert scrolled <= 0
    assert browser.run(OVERFLOWS) == []
    assert browser.run(CUT) == []
    assert browser.run(COVERED) == []
    assert browser.run(PALE) == []

    charts = browser.run(CHARTS)
    least = {"full": 9, "one": 5, "thirty": 9, "nothing": 1, "names": 8}
    assert len(charts) >= least[name]
    for shown, wide, high, marks in charts:
        assert shown == 1
        assert wide >= (300 if screen == "phone" else 400)
        assert high >= 70
        assert marks >= 1


def test_paper_is_white_and_shows_charts_within_its_width(browser: Page, reports: dict[str, Path]) -> None:
    browser.show(reports["full"], width=A4_BETWEEN_MARGINS, height=1000, dark=True)
    browser.send("Emulation.setEmulatedMedia", media="print")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run("document.scrollingElement.scrollWidth") == A4_BETWEEN_MARGINS
    assert browser.run(OVERFLOWS) == []
    assert browser.run(CUT) == []
    printed = browser.send("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=True)
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")


def test_the_page_forbids_itself_to_load_or_run_anything(
    browser: Page, reports: dict[str, Path], tmp_path: Path
) -> None:
    """What the tests above would catch, and the policy: a page into which something was smuggled."""
    text = reports["one"].read_text(encoding="utf-8")
    smuggled = tmp_path / "smuggled.html"
    picture = "<img src='https://example.invalid/a.png'><script>document.title = 'ran'</script>"
    smuggled.write_text(text.replace("<main>", f"<main>{picture}"), encoding="utf-8")
    browser.show(smuggled, width=800, height=600)
    assert browser.run("document.title") != "ran"
    assert any("Content Security Policy" in complaint for complaint in browser.complaints)


ORDER = """
[...document.querySelectorAll('#results table:not(.values)')[0].tBodies[0].rows].map(row => [
  row.querySelector('.who').title, row.cells[COLUMN].firstChild?.data?.trim() ?? ''])
"""


@pytest.mark.parametrize("title", ["latency, ms", "size", "method"])
def test_a_click_on_a_title_sorts_the_table(browser: Page, reports: dict[str, Path], title: str) -> None:
    browser.show(reports["full"], width=1280, height=900)
    titles = browser.run("[...document.querySelector('#results table').rows[0].cells].map(c => c.innerText)")
    column = titles.index(title)
    order = ORDER.replace("COLUMN", str(column))
    before = browser.run(order)

    def value(row: list[str]) -> Any:
        number, _, unit = row[1].partition(" ")
        return float(number) * {"": 1, "kB": 1e3, "MB": 1e6}[unit]

    def key(row: list[str]) -> Any:
        return row[0] if title == "method" else value(row)

    shown = [row for row in before if title == "method" or row[1] != "–"]
    missing = [row for row in before if row not in shown]
    button = f"document.querySelector('#results table').rows[0].cells[{column}]"
    for sort, is_reverse in (("ascending", False), ("descending", True)):
        browser.run(f"{button}.querySelector('button').click()")
        assert browser.run(f"{button}.getAttribute('aria-sort')") == sort
        after = browser.run(order)
        assert list(map(key, after[: len(shown)])) == sorted(map(key, shown), reverse=is_reverse)
        assert after[len(shown) :] == missing
    assert browser.complaints == []


def test_a_text_behind_a_point_is_its_tip(browser: Page, reports: dict[str, Path]) -> None:
    browser.show(reports["full"], width=1280, height=900)
    tips = browser.run(
        "[...document.querySelectorAll('#tradeoff svg .tip > title')].map(title => title.textContent)"
    )
    assert any(tip.startswith("onnx-int8-static, 4.2") and "11.3 MB" in tip for tip in tips)
