"""Pages of reports as a browser shows them: rows, filters, dots, and pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nnstretch.report.documents.document import Cell, Document
from nnstretch.report.documents.readers import read_document
from nnstretch.report.documents.writers import html
from tests.kits.browser import needs_browser, opened
from tests.kits.made_up_study import small_study

pytestmark = needs_browser
COUNT = """
const shown = (selector) => [...document.querySelectorAll(selector)].filter((one) => one.checkVisibility()).length;
const cells = (column) => [...document.querySelectorAll(".live tbody tr")].map((row) => row.cells[column].textContent);
"""


def titled(document: Document, path: Path, script: str, **more: object) -> str:
    """What a script in the page writes into its title."""
    page = html(document).replace("</body>", f"<script>{{{{{COUNT}{script}}}}}</script></body>")
    path.write_text(page)
    return opened(path, **more).partition("<title>")[2].partition("</title>")[0]  # type: ignore[arg-type]


@pytest.fixture
def document(tmp_path: Path) -> Document:
    small_study(tmp_path / "study.log", 2)
    return read_document(str(tmp_path / "study.log"))


def test_a_range_narrows_rows_and_dots_and_a_title_sorts(document: Document, tmp_path: Path) -> None:
    (trials,) = (section.table for section in document.sections if section.filters)
    assert trials is not None
    column = list(trials.titles).index("depth")
    kept = [row for row in trials.rows if 3 <= float(str(row[column])) <= 5]
    assert 0 < len(kept) < len(trials.rows)
    script = f"""
    const input = document.querySelector('input[data-column="{column}"]');
    input.value = "3..5"; input.dispatchEvent(new Event("input", {{bubbles: true}}));
    document.querySelectorAll(".live thead button")[{column}].click();
    const dot = document.querySelector("circle[data-row]:not(:has(title))");
    dot.dispatchEvent(new Event("pointerover", {{bubbles: true}}));
    document.title = shown(".live tbody tr") + " rows, " + shown("circle[data-row]") + " dots, " + cells({column}) + ", "
      + dot.textContent.split("\\n")[0];
    """
    depths = sorted(int(str(row[column])) for row in kept)
    title = titled(document, tmp_path / "page.html", script)
    start = f"{len(kept)} rows, {len(kept)} dots, {','.join(map(str, depths))}, trial: "
    assert title.startswith(start)
    assert title.removeprefix(start).isdigit()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_screenshot_shows_a_page_in_the_colours_that_the_reader_prefers(
    document: Document, tmp_path: Path, dark: bool
) -> None:
    shot = tmp_path / "shot.png"
    title = titled(document, tmp_path / "page.html", "", screenshot=shot, dark=dark)
    assert title == "Study designs"
    pixels = np.asarray(Image.open(shot).convert("RGB")).astype(int)
    assert pixels.shape == (1800, 1100, 3)
    paper = np.array([0x15, 0x18, 0x1C] if dark else [0xFF, 0xFF, 0xFF])
    drawn = (np.abs(pixels - paper).sum(axis=2) > 60).mean()
    assert 0.005 < drawn < 0.5
    dots = np.abs(pixels - ([0xE5, 0x84, 0x72] if dark else [0xC2, 0x51, 0x3F])).sum(axis=2) < 20
    assert dots.sum() > 50  # the front in its colour


def test_charts_of_a_narrow_page_scroll_and_keep_a_size_that_can_be_read(document: Document, tmp_path: Path) -> None:
    """As on a phone: the page itself is no wider than the screen."""
    script = """
    const screen = document.documentElement.clientWidth;
    const heights = [...document.querySelectorAll("svg text")].map((one) => one.getBoundingClientRect().height);
    const charts = [...document.querySelectorAll("svg")];
    const scrolls = (one) => one.scrollWidth > one.clientWidth && getComputedStyle(one).overflowX === "auto";
    const wide = charts.filter((one) => one.clientWidth > screen && scrolls(one.parentElement));
    document.title = [screen, document.documentElement.scrollWidth, charts.length - wide.length, Math.min(...heights) >= 10];
    """
    title = titled(document, tmp_path / "page.html", script, size=(500, 900))
    screen, page, shrunk, readable = title.split(",")
    assert (page, shrunk, readable) == (screen, "0", "true")


def test_large_figures_do_not_overlap(tmp_path: Path) -> None:
    """Words that are too long for it stand in a table."""
    figures: dict[str, Cell] = {
        "× the best": 0.753,
        "a way": "branched, together",
        "device": "cpu:0",
        "none": None,
        "ms of all": 123.4,
    }
    script = """
    const large = [...document.querySelectorAll(".figures b")];
    const inside = large.every((one) => one.scrollWidth <= one.clientWidth);
    document.title = [large.map((one) => one.textContent).join(" | "), inside];
    """
    title = titled(Document("ways", "", figures, ()), tmp_path / "page.html", script)
    assert title == "0.753× | cpu:0 | 123&nbsp;ms,true"
