"""Check the built site: ``python -m docs.generator.links`` finds dead links, and names of files that are gone."""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "site"
ROOMS = "embodyflow|flows|pipelines|tasks|envs|deployments|configs|tests|benchmarks|examples"
SOURCE = re.compile(rf"`((?:{ROOMS})/[\w./*-]*)`")


class _Page(HTMLParser):
    """Collects a page's anchors, what it links to and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif value and (tag, name) == ("a", "href"):
                self.links.append(value)
            elif value and (name == "src" or (tag, name) == ("link", "href")):
                self.loads.append(value)


def main() -> int:
    """Print what is wrong, one line each; return 1 if anything is."""
    problems = sorted({*_dead_links(), *_missing_sources(), *_unlisted_pages()})
    print("\n".join(problems) or f"{len(list(SITE.rglob('*.html')))} pages, no dead link")
    return 1 if problems else 0


def _dead_links() -> Iterator[str]:
    pages = {path: _Page(path.read_text()) for path in SITE.rglob("*.html")}
    for path, page in pages.items():
        if path.name == "404.html":  # its links begin at the root of wherever it is served
            continue
        yield from (f"{path.relative_to(SITE)}: loads {each}" for each in page.loads if re.match(r"https?:|//", each))
        for target in (*page.links, *page.loads):
            if re.match(r"[a-z]+:|//", target):
                continue
            address, anchor = urldefrag(unquote(target))
            found = (path.parent / address).resolve() if address else path
            found = found / "index.html" if found.is_dir() else found
            if not found.exists():
                yield f"{path.relative_to(SITE)}: no {target}"
            elif anchor and found in pages and anchor not in pages[found].anchors:
                yield f"{path.relative_to(SITE)}: no anchor {target}"


def _missing_sources() -> Iterator[str]:
    """Yield the files of the repository that a page names and that do not exist."""
    for path in (ROOT / "docs").rglob("*.md"):
        for name in SOURCE.findall(path.read_text()):
            if not list(ROOT.glob(name.rstrip("/"))):
                yield f"{path.relative_to(ROOT)}: no {name}"


def _unlisted_pages() -> Iterator[str]:
    """Yield the pages that the navigation does not list, and its entries without a page."""
    listed = set(re.findall(r'"([\w/-]+\.md)"', (ROOT / "zensical.toml").read_text()))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    yield from (f"zensical.toml: nav lists no {page}" for page in pages - listed)
    yield from (f"zensical.toml: there is no {page}" for page in listed - pages)


if __name__ == "__main__":
    sys.exit(main())
