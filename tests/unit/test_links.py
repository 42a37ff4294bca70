"""Every relative link and anchor in README.md, CONTRIBUTING.md and docs/ leads somewhere; every page is in the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+)$", re.MULTILINE)


def prose(page: Path) -> str:
    """A page without its blocks of code, in which a # is a comment."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings: lower case, punctuation dropped, blanks as hyphens."""
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in HEADING.findall(prose(page))}


def broken(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere."""
    found = []
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" not in link and (not target.exists() or (anchor and anchor not in anchors(target))):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_every_relative_link_leads_somewhere(page):
    assert broken(page) == []


def test_a_missing_file_and_a_missing_anchor_are_found(tmp_path):
    (tmp_path / "other.md").write_text("# What is it, then?\n```\n# a comment\n```\n")
    page = tmp_path / "page.md"
    page.write_text("[a](other.md#what-is-it-then) [b](other.md#a-comment) [c](gone.md) [d](https://example.org) [e](#nowhere)")
    assert broken(page) == ["other.md#a-comment", "gone.md", "#nowhere"]


def test_the_index_names_every_page():
    index = {link for link in LINK.findall(prose(REPOSITORY / "docs" / "README.md")) if "/" not in link}
    assert index == {page.name for page in PAGES if page.parent.name == "docs"} - {"README.md"}


def test_the_readme_is_short():
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").split()) <= 1500
