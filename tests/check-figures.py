#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that pages state the figures of tests/bench/figures.json, and that the defaults which these depend on have not changed since.

    check-figures.py [ROOT]        prints what differs, and what to do
    check-figures.py --write ROOT  writes the file's values into the pages
    check-figures.py --self-test

README.md states no rate, time or share that is not in the file, except those in NO_FIGURES."""

import datetime
import json
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "bench"))
import recorded  # noqa: E402

FILE = "tests/bench/figures.json"
FACTS = ("date", "machine", "commit", "command", "settings", "defaults")
MEASURED = re.compile(r"\d[\d.,]*(?: to \d[\d.,]*)? (?:[KMGT]i?B/s|[µnm]s\b|million a second|%|bytes \|)")
# Times and shares in README.md that no one measures: bounds, goals, and the product of a load and its prefill.
NO_FIGURES = ()


def one_line(text):
    return re.sub(r"\s+", " ", text)


def wrong_runs(root, known):
    keys = recorded.configured(root)
    used = {figure["run"] for figure in known["figures"].values()}
    for name in sorted(used - set(known["runs"])):
        yield f"{FILE}: figures name the run {name}, which is not there"
    for name, run in known["runs"].items():
        missing = [fact for fact in FACTS if fact not in run or (not run[fact] and fact not in ("settings", "defaults"))]
        if missing:
            yield f"{FILE}: the run {name} lacks {', '.join(missing)}"
            continue
        try:
            datetime.date.fromisoformat(run["date"])
        except ValueError:
            yield f"{FILE}: the run {name} has the date {run['date']}; write YYYY-MM-DD"
        if not re.fullmatch(r"[0-9a-f]{7,40}", run["commit"]):
            yield f"{FILE}: the run {name} has the commit {run['commit']}; write its hash"
        for key, value in run["defaults"].items():
            now = recorded.present(root, key, keys)
            if now != value:
                figures = ", ".join(name_of for name_of, figure in known["figures"].items() if figure["run"] == name)
                yield (f"{FILE}: {key} was {value} when {figures} were measured, and is "
                       f"{'missing' if now is None else now} now: measure again ({run['command']})")
        for key in run["settings"]:
            if key not in keys:
                yield f"{FILE}: the run {name} set {key}, which is no key of the configuration: measure again ({run['command']})"


def wrong_pages(root, known):
    named = set()
    for stated in known["stated"]:
        page = one_line((root / stated["page"]).read_text())
        for line in stated["lines"]:
            names = re.findall(r"\{(\w+)\}", line)
            named.update(names)
            unknown = [name for name in names if name not in known["figures"]]
            if unknown:
                yield f"{FILE}: a line of {stated['page']} names {', '.join(unknown)}, which is no figure"
            elif one_line(recorded.render(line, known["figures"])) not in page:
                yield f"{stated['page']}: has no \"{recorded.render(line, known['figures'])}\": run check-figures.py --write, or change the line in {FILE}"
            else:
                page = page.replace(one_line(recorded.render(line, known["figures"])), " ", 1)
        if stated["page"] == "README.md":
            for allowed in NO_FIGURES:
                page = page.replace(allowed, " ")
            for found in MEASURED.finditer(page):
                around = page[max(0, found.start() - 40):found.end() + 20]
                yield f"README.md: \"{found[0]}\" in \"... {around} ...\" is no figure of {FILE}: add it with its run, or leave it out"
    for name in sorted(set(known["figures"]) - named):
        yield f"{FILE}: no page states {name}"


def check(root):
    known = json.loads((root / FILE).read_text())
    return len(known["figures"]), [*wrong_runs(root, known), *wrong_pages(root, known)]


def rewritten(page, lines, figures):
    """Returns the page with the values of its lines replaced; the words between them stay as they are."""
    for line in lines:
        parts = re.split(r"\{(\w+)\}", line)
        words = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in parts[::2]]
        found = re.search("".join(f"({part})" if i == len(words) - 1 else rf"({part})(?:[\d.]+(?:\s+to\s+[\d.]+)?)" for i, part in enumerate(words)), page)
        if found:
            values = [recorded.plain(figures[name]) for name in parts[1::2]] + [""]
            page = page[:found.start()] + "".join(text + value for text, value in zip(found.groups(), values)) + page[found.end():]
    return page


def write_pages(root):
    known = json.loads((root / FILE).read_text())
    for stated in known["stated"]:
        path = root / stated["page"]
        path.write_text(rewritten(path.read_text(), stated["lines"], known["figures"]))


def self_test():
    """Plants one difference of each kind in a small tree."""
    run = {"date": "2026-01-02", "machine": "two cores", "commit": "0123abc", "command": "run.sh", "settings": {"io.depth": "16"},
           "defaults": {"eviction.policy": "cq", "a.h:MOST": "8"}}
    figures = {"rate": {"run": "disk", "value": 2.3, "unit": "GB/s"}, "time": {"run": "disk", "value": 2, "unit": "ns"}}
    known = {"runs": {"disk": run}, "figures": figures, "stated": [{"page": "README.md", "lines": ["get {rate} GB/s", "in {time} ns"]}]}
    files = {"README.md": "A get 2.3\nGB/s comes in 2.0 ns.\n", "a.h": "enum { MOST = 8 };\n",
             "daemon/config/config.def": 'ROW(CHOICE, eviction, policy, policy, "cq", 0)\nROW(COUNT, io, depth, depth,\n    "32", 1)\n'}

    def found(changed_files=(), change=lambda known: None):
        copy = json.loads(json.dumps(known))
        change(copy)
        with tempfile.TemporaryDirectory() as at:
            root = pathlib.Path(at)
            for name, text in {**files, FILE: json.dumps(copy), **dict(changed_files)}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return check(root)[1]

    config = "daemon/config/config.def"
    planted = [
        ("README.md: has no", {"README.md": files["README.md"].replace("2.3", "2.4")}, None),
        ("is no figure of", {"README.md": files["README.md"] + "A put takes 12 µs.\n"}, None),
        ("eviction.policy was cq", {config: files[config].replace('"cq"', '"lru"')}, None),
        ("eviction.policy was cq", {config: files[config].replace("policy", "kind")}, None),
        ("a.h:MOST was 8", {"a.h": "#define MOST 9\n"}, None),
        ("io.depth, which is no key", {config: files[config].replace("depth", "width")}, None),
        ("README.md: has no", {}, lambda known: known["figures"]["rate"].update(value=2.2)),
        ("the run cpu, which is not there", {}, lambda known: known["figures"]["rate"].update(run="cpu")),
        ("lacks machine", {}, lambda known: known["runs"]["disk"].update(machine="")),
        ("lacks defaults", {}, lambda known: known["runs"]["disk"].pop("defaults")),
        ("has the date", {}, lambda known: known["runs"]["disk"].update(date="yesterday")),
        ("has the commit", {}, lambda known: known["runs"]["disk"].update(commit="0123abc-dirty")),
        ("which is no figure", {}, lambda known: known["stated"][0]["lines"].append("{size}")),
        ("no page states time", {"README.md": "A get 2.3 GB/s"}, lambda known: known["stated"][0]["lines"].pop()),
    ]
    failed = found()
    for text in failed:
        print(f"self-test: nothing was planted, and it says: {text}")
    page = rewritten("A get 2.3\nGB/s; get 7 GB/s; in 9 to 10\nns", known["stated"][0]["lines"], figures | {"rate": {"value": "4 to 5"}})
    if page != "A get 4 to 5\nGB/s; get 7 GB/s; in 2.0\nns":
        print(f"self-test: the page is rewritten to {page!r}")
        failed.append(page)
    for expected, changed, change in planted:
        said = found(changed, change or (lambda known: None))
        if not any(expected in one for one in said):
            print(f"self-test: not found: {expected}; it says {said}")
            failed.append(expected)
    return bool(failed)


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:2] == ["--write"] and len(sys.argv) == 3:
        del sys.argv[1]
        write_pages(pathlib.Path(sys.argv[1]))
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    n, wrong = check(root)
    print("\n".join(wrong + [f"{n} figures, {len(wrong)} wrong"]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
