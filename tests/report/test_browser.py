"""The report as a reader's browser shows it: nothing missing, nothing fetched, nothing wider than the screen, light and dark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.paper.figures import FIGURES


def test_it_renders_without_an_error_or_a_missing_image(browser, page: Path):
    seen, console = browser.look(page)
    assert console == [] and seen["images"] == []
    assert len(seen["drawings"]) == len(FIGURES) and all(box > 300 and drawn > 100 for box, drawn in seen["drawings"])
    assert seen["height"] > 3000


def test_it_requests_nothing(browser, page: Path):
    assert browser.look(page)[0]["requests"] == []


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_nothing_is_wider_than_the_screen(browser, page: Path, width: int):
    """Wide tables and figures scroll inside their own frames; the page itself does not scroll sideways."""
    seen, _ = browser.look(page, width)
    assert seen["width"] == width
    assert seen["scroll"] <= width and seen["wide"] == []


def test_dark_turns_ink_and_paper_around(browser, page: Path):
    def brightness(colour: str) -> float:
        return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3

    light, dark = browser.look(page)[0], browser.look(page, dark=True)[0]
    assert brightness(light["paper"]) > 240 > 80 > brightness(light["ink"])
    assert brightness(dark["paper"]) < 40 < 200 < brightness(dark["ink"])
