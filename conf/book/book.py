#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the documents of this tree as a site, with MkDocs and its theme Material.

    python3 conf/book/book.py [--out DIR] [--source-url URL] [--pages-only | --guides]

Each document stays where its subject is, and is a page of the book: CHAPTERS is the index, in the order in which a user needs
them. The manual pages belong to the chapter Reference. DIR/pages gets the pages and DIR/site the site, which needs no network to be read.

Links to files outside the book, such as sources, lead to URL/FILE (for example https://HOST/PROJECT/blob/main), or
become plain text without --source-url.

--guides writes what the Debian packages install: the pages for users, which need no site, and no manual pages.
"""

import argparse
import importlib.metadata
import json
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

CHAPTERS = {
    "What it is": {
        "kvcache-daemon": "README.md",
        "Comparison": "conf/comparison.md",
    },
    "Install": {
        "Packages, source, containers": "conf/install.md",
        "Coming from another tool": "conf/coming-from.md",
    },
    "First hit": {
        "vLLM": "client/python/kvcache/vllm/README.md",
        "SGLang": "client/python/kvcache/sglang/README.md",
        "LMCache": "client/python/kvcache/lmcache/README.md",
        "Python, transformers": "client/python/README.md",
        "llama.cpp": "client/examples/llama.md",
        "C, and a tutorial of measuring": "client/TUTORIAL.md",
    },
    "Size it": "conf/sizing.md",
    "Run it": {
        "What to do when": "conf/operations.md",
        "Upgrade and downgrade": "conf/upgrade.md",
        "Kubernetes": "conf/kubernetes/README.md",
        "When it is slower than the disk": "conf/tuning.md",
    },
    "Watch it": "conf/monitoring.md",
    "GPUDirect Storage": {
        "Requirements and fallbacks": "conf/gds.md",
        "Blocks of GPU memory": "client/gpu/README.md",
    },
    "Several hosts": "conf/remote.md",
    "Benchmarks": {
        "KVBench": "client/bench/kvbench/README.md",
        "Sessions": "client/bench/session/README.md",
        "The daemon against the hardware": "tests/bench/README.md",
    },
    "Security": "SECURITY.md",
    "Reference": {
        "The protocol": "proto/README.md",
        "Changes": "CHANGELOG.md",
    },
    "Inside": {
        "Contribute": "CONTRIBUTING.md",
        "The daemon": "daemon/README.md",
        "Memory": "daemon/cache/README.md",
        "Puts from files of clients": "daemon/cache/client-puts.md",
        "The store": "daemon/store/README.md",
        "A volume": "daemon/store/volume/README.md",
        "Input and output": "daemon/io/README.md",
        "Events": "daemon/events/README.md",
        "Tests": "tests/README.md",
        "Mutants": "tests/mutants/README.md",
        "Figures of the benchmark": "tests/bench/figures.md",
        "Records of measurements": "tests/bench/measured.md",
    },
}
MANUALS = ("client", "daemon")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
MATERIAL = """site_name: kvcache-daemon
site_description: A cache of KV blocks for the LLM inference engines of a host
docs_dir: pages
site_dir: site
use_directory_urls: false
theme:
  name: material
  font: false
  features: [navigation.top, navigation.footer, toc.follow, content.code.copy]
  palette:
    - media: "(prefers-color-scheme: light)"
      scheme: default
      toggle: {icon: material/brightness-7, name: "Dark"}
    - media: "(prefers-color-scheme: dark)"
      scheme: slate
      toggle: {icon: material/brightness-4, name: "Light"}
plugins: [search]
extra_css: [book.css]
markdown_extensions:
  - tables
  - sane_lists
  - pymdownx.superfences
  - toc:
      permalink: true
      slugify: !!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}
"""
# Lines of commands and the drawing of README.md fit a window of 1,280 pixels.
STYLE = """.md-grid { max-width: 70rem; }
.md-typeset pre > code { font-size: .62rem; }
"""


def pages(chapters=None):
    """Returns the pages of the book in order."""
    found = []
    for below in (CHAPTERS if chapters is None else chapters).values():
        found += pages(below) if isinstance(below, dict) else [below]
    return found


def manuals():
    """Returns the manual pages; those of one line only refer to another page."""
    files = [f for folder in MANUALS for f in (ROOT / folder).rglob("*.[1-8]")]
    return sorted((f for f in files if not f.read_text().startswith(".so ")), key=lambda f: (f.suffix, f.name))


class Book:
    def __init__(self, out, source_url, chapters=CHAPTERS):
        self.out, self.source_url, self.chapters = out, source_url.rstrip("/"), chapters
        self.pages = set(pages(chapters))

    def link(self, page, m):
        """Keeps a link within the book, copies pictures, and redirects what is outside."""
        picture, text, target = m.groups()
        if re.match(r"\w+:|#", target):
            return m[0]
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if path in self.pages:
            return m[0]
        if picture:
            (self.out / "pages" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, self.out / "pages" / path)
            return m[0]
        if (ROOT / path / "README.md").exists() and f"{path}/README.md" in self.pages:
            return f"[{text}]({posixpath.relpath(f'{path}/README.md', posixpath.dirname(page) or '.')})"
        return f"[{text}]({self.source_url}/{path})" if self.source_url else text

    def text(self, page):
        """Returns a page with the links of the book."""
        blocks = re.split(r"(^```.*?^```)", (ROOT / page).read_text(), flags=re.M | re.S)
        return "".join(b if b.startswith("```") else LINK.sub(lambda m: self.link(page, m), b) for b in blocks)

    def manual(self, file):
        command = ["groff", "-Kutf8", "-man", "-t", "-Tutf8", "-P-cbou", "-rLL=100n", str(file)]
        shown = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
        name = f"{file.stem}({file.suffix[1:]})"
        return name, f"---\nhide: [toc]\n---\n# {name}\n\n```text\n{shown.stdout.strip()}\n```\n"

    def write_pages(self):
        shutil.rmtree(self.out / "pages", ignore_errors=True)
        for page in pages(self.chapters):
            to = self.out / "pages" / page
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(self.text(page))

    def assemble(self):
        self.write_pages()
        chapters = dict(self.chapters, Reference=dict(self.chapters["Reference"]))
        (self.out / "pages/book.css").write_text(STYLE)
        (self.out / "pages/reference").mkdir()
        for file in manuals():
            name, text = self.manual(file)
            page = f"reference/{file.name}.md"
            (self.out / "pages" / page).write_text(text)
            chapters["Reference"][name] = page
        return chapters

    def settings(self, chapters):
        """Returns MkDocs' configuration. Since 1.5 it also finds wrong anchors."""
        def entries(part):
            return [{name: entries(below) if isinstance(below, dict) else below} for name, below in part.items()]

        checks = "validation: {anchors: warn, unrecognized_links: warn}\n" if mkdocs_version() >= (1, 5) else ""
        return f"{MATERIAL}{checks}nav: {json.dumps(entries(chapters))}\n"


def mkdocs_version():
    """Returns (major, minor), or (0, 0) if MkDocs or its theme is missing."""
    try:
        importlib.metadata.version("mkdocs-material")
        return tuple(int(n) for n in importlib.metadata.version("mkdocs").split(".")[:2])
    except importlib.metadata.PackageNotFoundError:
        return 0, 0


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Builds the documents of this tree as a site.")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build-book", metavar="DIR", help="folder of the book (build-book)")
    parser.add_argument("--source-url", default="", metavar="URL", help="where the files of the tree can be read, for links to sources")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--pages-only", action="store_true", help="write the pages, and build no site")
    kind.add_argument("--guides", action="store_true", help="write the pages for users, without manual pages")
    options = parser.parse_args(arguments)
    if options.guides:
        Book(options.out.resolve(), options.source_url, {name: part for name, part in CHAPTERS.items() if name != "Inside"}).write_pages()
        return
    if not shutil.which("groff"):
        sys.exit("book: groff is missing, which renders the manual pages: apt-get install groff")
    if not options.pages_only and mkdocs_version() < (1, 4):
        sys.exit("book: MkDocs 1.4 or later and its theme Material are missing: apt-get install mkdocs-material, or pip install mkdocs-material; "
                 "--pages-only does without")
    book = Book(options.out.resolve(), options.source_url)
    chapters = book.assemble()
    (book.out / "mkdocs.yml").write_text(book.settings(chapters))
    if options.pages_only:
        print(f"{len(pages()) + len(manuals())} pages are in {options.out / 'pages'}")
        return
    built = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(book.out / "mkdocs.yml")])
    if built.returncode != 0:
        sys.exit("book: MkDocs has found faults in the pages, see above")
    print(f"the site is in {options.out / 'site'}: open index.html, or search it, too, with: python3 -m http.server -d '{options.out / 'site'}'")


if __name__ == "__main__":
    main()
