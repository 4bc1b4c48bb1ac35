# SPDX-License-Identifier: Apache-2.0
"""The documents as a book (conf/book/book.py): all pages are in it, and its links lead somewhere."""

import html.parser
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "conf/book"))
import book  # noqa: E402
import harness  # noqa: E402

pytestmark = pytest.mark.skipif(not shutil.which("groff"), reason="groff is not installed, which renders the manual pages")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    out = tmp_path_factory.mktemp("book")
    book.main(["--out", str(out), "--pages-only", "--source-url", "https://example.org/blob/main/"])
    return out / "pages"


def links(text):
    blocks = re.split(r"^```.*?^```", text, flags=re.M | re.S)
    return [m[1] for b in blocks for m in re.finditer(r"\]\(([^)\s]+)\)", b)]


def test_each_document_is_in_one_chapter():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a checkout")
    assert sorted(book.pages()) == sorted(f for f in set(listed.stdout.split()) if (ROOT / f).is_file())


def test_links_lead_to_pages_pictures_and_sources_that_exist(pages):
    checked = 0
    for page in pages.rglob("*.md"):
        for target in links(page.read_text()):
            if target.startswith("https://example.org/blob/main/"):
                assert (ROOT / target[len("https://example.org/blob/main/"):].partition("#")[0]).exists(), f"{page}: {target}"
            elif not re.match(r"\w+:|#", target):
                assert (page.parent / target.partition("#")[0]).is_file(), f"{page}: {target}"
            checked += 1
    assert checked > 100


def test_guides_of_the_packages_link_to_each_other(tmp_path):
    book.main(["--out", str(tmp_path), "--guides"])
    written = list((tmp_path / "pages").rglob("*.md"))
    assert {"README.md", "conf/upgrade.md", "conf/operations.md"} <= {str(p.relative_to(tmp_path / "pages")) for p in written}
    assert not (tmp_path / "pages/CONTRIBUTING.md").exists() and not (tmp_path / "pages/reference").exists()
    for page in written:
        for target in links(page.read_text()):
            assert re.match(r"\w+:|#", target) or (page.parent / target.partition("#")[0]).is_file(), f"{page}: {target}"


def test_without_a_url_links_to_sources_become_text(tmp_path):
    text = book.Book(tmp_path, "").text("README.md")
    assert "LICENSE)" not in text and "Apache License 2.0" in text
    assert all(re.match(r"\w+:|#", t) or t.partition("#")[0] in book.pages() or t.endswith(".svg") for t in links(text))


def test_manual_pages_are_text(pages):
    names = {f.name for f in book.manuals()}
    assert {"kvcachectl.1", "kvcache-daemon.8", "kvcache.yaml.5", "kvcache_submit.3"} <= names
    text = (pages / "reference/kvcachectl.1.md").read_text()
    assert text.startswith("---\nhide: [toc]\n---\n"), "its lines need the room of the table of contents"
    assert "SYNOPSIS" in text and "\x1b" not in text and not re.search(r"^\.[A-Z]", text, re.M)


def test_each_manual_page_is_in_the_book():
    listed = subprocess.run(["git", "ls-files", "*.[1-8]"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a checkout")
    pages = {f for f in listed.stdout.split() if not (ROOT / f).read_text().startswith(".so ")}
    assert {str(f.relative_to(ROOT)) for f in book.manuals()} == pages


def test_manual_pages_keep_their_characters(pages):
    for file in book.manuals():
        used = {c for c in re.sub(r"^\.\\\".*", "", file.read_text(), flags=re.M) if ord(c) > 127}
        assert used <= set((pages / f"reference/{file.name}.md").read_text()), file.name


def test_the_index_has_all_pages(pages):
    settings = (pages.parent / "mkdocs.yml").read_text()
    written = {str(p.relative_to(pages)) for p in pages.rglob("*.md")}
    assert written == set(re.findall(r'"([\w./-]+\.md)"', settings))


def test_a_link_to_a_page_that_is_not_there_is_no_link_of_the_book(tmp_path, monkeypatch):
    monkeypatch.setattr(book, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text("See [`a`](src/a.c#x), [b](conf/sizing.md#c), ![d](d.svg).\n```\n[e](f)\n```\n")
    (tmp_path / "d.svg").write_text("<svg/>")
    made = book.Book(tmp_path / "out", "https://example.org/")
    assert made.text("README.md") == ("See [`a`](https://example.org/src/a.c), [b](conf/sizing.md#c), ![d](d.svg).\n```\n[e](f)\n```\n")
    assert (tmp_path / "out/pages/d.svg").is_file()


def test_what_is_missing_is_named(tmp_path):
    if book.mkdocs_version() >= (1, 4):
        pytest.skip("MkDocs is installed")
    run = subprocess.run([sys.executable, str(ROOT / "conf/book/book.py"), "--out", str(tmp_path / "b")], capture_output=True, text=True)
    assert run.returncode == 1 and "mkdocs-material" in run.stderr and not (tmp_path / "b").exists()


class Anchors(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if attributes.get("id"):
            self.ids.add(attributes["id"])
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])


def test_the_site_has_no_dead_link_and_needs_no_network(tmp_path, monkeypatch):
    tools = harness.BUILD / "tools/book"  # tests/run.sh puts MkDocs there
    monkeypatch.syspath_prepend(str(tools))
    monkeypatch.setenv("PYTHONPATH", str(tools))
    if book.mkdocs_version() < (1, 4):
        pytest.skip("MkDocs and its theme Material are not installed")
    book.main(["--out", str(tmp_path)])
    assert (tmp_path / "site/book.css").is_file() and "book.css" in (tmp_path / "site/index.html").read_text()
    site = {p: Anchors(p.read_text()) for p in (tmp_path / "site").rglob("*.html") if p.name != "404.html"}
    assert len(site) > len(book.pages())
    for page, found in site.items():
        assert not re.search(r'(?:src|href)="https?://[^"]+\.(?:js|css|woff2?)"', page.read_text())
        for link in found.links:
            if re.match(r"\w+:", link):
                continue
            path, _, anchor = link.partition("#")
            to = pathlib.Path(posixpath.normpath(page.parent / path)) if path else page
            assert to.exists(), f"{page}: {link}"
            assert not anchor or to.suffix != ".html" or anchor in site[to].ids, f"{page}: {link}"
