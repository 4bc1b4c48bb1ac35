#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that names in the pages of this tree exist: targets of links, files, functions, metrics, and keys of the configuration.
Checks that a reader who runs the commands of several pages in one checkout is not surprised: git ignores the folders that they
make, and all pages set up a build folder with the same options, since meson ignores those of a second setup.

    check-docs.py [ROOT]        prints PAGE:LINE: each name that does not exist
    check-docs.py --self-test

Pages are README.md and all other *.md files, and for keys of the configuration the man pages, too. Names are those in code
style: `function()`, `folder/file.c`, `kvcache_metric`; a key of the configuration is recognized wherever it stands.
"""

import fnmatch
import pathlib
import re
import subprocess
import sys
import tempfile

FILE = r"[\w./*-]+\.(?:c|h|def|py|sh|md|yaml|map)"


def slug(heading):
    """Returns the anchor of a heading, as GitHub computes it."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower()).replace(" ", "-")


class Tree:
    def __init__(self, root):
        self.root = root
        try:
            listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True,
                                    check=True).stdout.split("\n")
            self.files = [pathlib.Path(f) for f in listed if f and (root / f).is_file()]
        except (OSError, subprocess.CalledProcessError):  # a tarball
            self.files = [f.relative_to(root) for f in root.rglob("*") if f.is_file() and not f.match("build*/*")]
        self.names = {f.name for f in self.files}
        product = [f for f in self.files if f.parts[0] in ("daemon", "client", "proto") and f.suffix in (".c", ".h", ".py")]
        self.code = "\n".join((root / f).read_text() for f in product)
        self.functions = set(re.findall(r"\b(\w+)\(", self.code))
        self.words = set(re.findall(r"\bkvcache_\w+", self.code)) | {"kvcache_test"}
        metrics = root / "daemon/report/metrics.def"
        self.metrics = set(re.findall(r'^METRICS_(?!PROCESS)\w+\(\w+, "(\w+)"', metrics.read_text(), re.M)) if metrics.exists() else set()
        rows = [root / "daemon/config" / name for name in ("config.def", "tenant.def")]
        self.keys = {f"{a}.{b}" for row in rows if row.exists()
                     for a, b in re.findall(r"^ROW\(\w+, (\w+), (\w+),", row.read_text(), re.M)}
        self.sections = {key.split(".")[0] for key in self.keys}

    def is_file(self, page, name):
        """Returns whether a name exists beside the page, or in the root, daemon/ or tests/. NAME stands for any text."""
        name = name.replace("NAME", "*")
        if "/" not in name:
            return name in self.names
        places = [page.parent / name, pathlib.Path(name), pathlib.Path("daemon") / name, pathlib.Path("tests") / name]
        return any(list(self.root.glob(str(p))) if "*" in name else (self.root / p).exists() for p in places if not p.is_absolute())

    def is_metric(self, name):
        name = name[len("kvcache_"):]
        return any(name in (m, f"{m}_total", f"{m}_bucket", f"{m}_count", f"{m}_sum") for m in self.metrics)


def wrong_links(tree, page, text):
    for m in re.finditer(r"\]\(([^)\s]+)\)", text):
        target, _, anchor = m[1].partition("#")
        if re.match(r"\w+:", target):
            continue
        file = tree.root / page.parent / target if target else tree.root / page
        if not file.exists():
            yield m.start(), f"no file {target}"
        elif anchor and anchor not in {slug(h) for h in re.findall(r"^#+ (.*)$", file.read_text(), re.M)}:
            yield m.start(), f"no heading #{anchor} in {target or page}"


def wrong_names(tree, page, text):
    for m in re.finditer(r"`([^`\n]+)`", text):
        name = m[1]
        if re.fullmatch(r"\w+\(\)", name):
            if name[:-2] not in tree.functions and not re.search(rf"\b{name[:-2]}\b", LIBC):
                yield m.start(), f"no function {name}"
        elif re.fullmatch(FILE, name) and page.parts[0] in ("daemon", "proto", "tests", "README.md"):
            if not tree.is_file(page, name) and not name.startswith("/"):
                yield m.start(), f"no file {name}"
        elif re.fullmatch(r"kvcache_\w+", name):
            if not tree.is_metric(name) and name not in tree.words:
                yield m.start(), f"no metric and no name {name}"


LIBC = "recv mmap epoll_create1 recvmsg sendmsg poll fallocate memfd_create flock fdatasync"


def wrong_keys(tree, page, text):
    sections = "|".join(sorted(tree.sections))
    for m in re.finditer(rf"(?<![\w./$-])({sections})\.([a-z]\w+)\b(?![./(])", text) if sections else ():
        if m[0] not in tree.keys and not re.fullmatch(FILE, m[0]):
            yield m.start(), f"no key {m[0]} of the configuration"


MAKES_FOLDER = re.compile(r"(meson setup|python3 -m venv)((?: +[^\s|`;#>&)]+)*)")


def folders(text):
    """Yields the place, the name and the options of each folder that a command of a page makes in the checkout."""
    for m in MAKES_FOLDER.finditer(text):
        words = m[2].split()
        names = [w for w in words if re.fullmatch(r"[\w.-]+", w) and not w.startswith("-")]
        if names:
            yield m.start(), names[0], " ".join(w for w in words if w != names[0])


def wrong_folders(tree, pages):
    """Finds folders that git does not ignore, and build folders that pages set up in different ways."""
    ignore = tree.root / ".gitignore"
    ignored = [line.strip("/") for line in ignore.read_text().split()] if ignore.exists() else []
    first = {}
    for page in pages:
        text = (tree.root / page).read_text()
        for at, name, options in folders(text):
            line = f"{page}:{text[:at].count(chr(10)) + 1}"
            if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored):
                yield f"{line}: git does not ignore the folder {name}"
            other, theirs = first.setdefault(name, (line, options))
            if theirs != options:
                yield f"{line}: {other} sets up the folder {name} with other options"


def without_head(tree):
    """Files of daemon/ whose licence is not followed by a comment."""
    for file in sorted(tree.files):
        if file.parts[0] == "daemon" and file.suffix in (".c", ".h") and \
                not re.match(r"/\* SPDX.*\*/\n/\*", (tree.root / file).read_text()):
            yield f"{file}:2: no head: what it is, which thread runs it, what it owns, how it fails"


def check(root):
    tree = Tree(root)
    wrong = []
    pages = [f for f in tree.files if f.suffix == ".md" and "corpus" not in f.parts]
    manual = [f for f in tree.files if re.fullmatch(r"\.[1-8]", f.suffix)]
    for page in pages + manual:
        text = (root / page).read_text()
        found = list(wrong_keys(tree, page, text.replace("\\-", "-")))
        if page in pages:
            found += list(wrong_links(tree, page, text)) + list(wrong_names(tree, page, text))
        wrong += [f"{page}:{text[:at].count(chr(10)) + 1}: {what}" for at, what in found]
    wrong += wrong_folders(tree, pages)
    wrong += without_head(tree)
    return len(pages) + len(manual), wrong


def self_test():
    page = ("# A page\n[good](#a-page) [good](daemon/a.c) [bad](b.md) [bad](#nothing)\n`run()` `walk()` `daemon/a.c` `daemon/b.c`\n"
            "`kvcache_hits_total` `kvcache_misses` store.limit store.limits\n"
            "    meson setup build && ninja -C build\n`meson setup build --prefix=/usr && ninja`\n    python3 -m venv env\n")
    expected = ["no file b.md", "no heading #nothing", "no function walk()", "no file daemon/b.c", "no metric", "no key store.limits", "c.c:2: no head",
                "README.md:6: README.md:5 sets up the folder build with other options", "README.md:7: git does not ignore the folder env"]
    with tempfile.TemporaryDirectory() as at:
        root = pathlib.Path(at)
        for name, text in (("README.md", page), (".gitignore", "/build*/\n"), ("daemon/a.c", "/* SPDX */\n/* A. */\nint run(void)\n{\n}\n"),
                           ("daemon/c.c", "/* SPDX */\n#include <a.h>\n"),
                           ("daemon/report/metrics.def", 'METRICS_COUNTER(A, "hits", "x")\n'),
                           ("daemon/config/config.def", "ROW(SIZE, store, limit, 1)\n")):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        _, wrong = check(root)
    missing = [e for e in expected if not any(e in w for w in wrong)]
    for w in wrong if len(wrong) != len(expected) else ():
        print(f"self-test: {w}")
    for e in missing:
        print(f"self-test: not found: {e}")
    return 1 if missing or len(wrong) != len(expected) else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    n, wrong = check(root)
    print("\n".join(wrong + [f"{n} pages, {len(wrong)} wrong"]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
