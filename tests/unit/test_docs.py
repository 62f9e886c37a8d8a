"""Links of the documentation lead somewhere, and the modules that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMES_A_PAGE = re.compile(r"\bdocs/[a-z-]+\.md\b")
NAMING = ["src/**/*.py", "tests/**/*.py", "bench/**/*.py", "bench/*.md", "docker/*", "Makefile", "*.toml", "*.yaml"]


def prose(page: Path) -> str:
    """A page without its fenced code, in which `#` begins a comment and brackets are code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub names them: lower case, spaces as hyphens, no other punctuation."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    plain = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def broken_links(page: Path) -> list[str]:
    """The relative links of a page that lead to no file, to no heading, or out of the repository."""
    broken = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        to = (page.parent / path).resolve() if path else page
        inside = to.is_relative_to(ROOT) and to.exists()
        if not inside or (anchor and anchor not in anchors(to)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_relative_link_leads_to_a_file_and_each_anchor_to_a_heading(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_module_that_the_docs_name_exists(page: Path) -> None:
    """Those in backticks with a folder: `replay/log/cut.py`."""
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)[`:]", prose(page)))
    folders = (ROOT, ROOT / "src", ROOT / "src" / "walferry")
    assert [name for name in sorted(named) if not any((folder / name).is_file() for folder in folders)] == []


def test_a_link_to_nowhere_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "other.md").write_text("# The *other*, `one`\n\n```\n# no heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#the-other-one) [c](#here) [d](https://example.org/x)\n"
        "[e](none.md) [f](other.md#no-heading) [g](#there) [h](../..)\n"
    )
    assert broken_links(page) == ["none.md", "other.md#no-heading", "#there", "../.."]


def test_each_page_that_code_and_comments_name_exists() -> None:
    files = [path for pattern in NAMING for path in ROOT.glob(pattern) if path.is_file()]
    named = {name for path in files for name in NAMES_A_PAGE.findall(path.read_text(encoding="utf-8"))}
    assert len(named) >= 5
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
