# SPDX-License-Identifier: Apache-2.0
"""Recorded figures: figures.json holds the figures that pages of this tree state, and the run that each comes from.

runs      by name: date, machine, commit, command, `settings` that differ from the defaults, and the `defaults` that the figures depend on;
          a key is one of the configuration, or FILE:NAME for a constant of a source file. The benchmark's own runs have the names
          of its parts: disk, memory, entries, start.
figures   by name: `run`, value and unit. `from` is the place of the value in the benchmark's report, which has it `scale` times as
          large; `digits` that count, 2 without it. A value without `from` is entered by hand; a range is a text.
stated    page, and lines of it, in which {NAME} is the figure's value. Line ends are spaces there.

`run.sh --figures` writes a run's facts and values here; check-figures.py compares pages and defaults with them."""

import datetime
import json
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROW = re.compile(r'^ROW\(\w+, (\w+), (\w+), \w+,\s*"([^"]*)"', re.M)
# Keys of these sections may change what the benchmark measures, except those that name places, or concern failures only.
SECTIONS = ("store", "memory", "io", "eviction")
NO_EFFECT = {"store.path", "store.error_budget", "store.rated_endurance", "memory.directory", "memory.keep", "io.hang"}


def configured(root):
    """Returns the default of each key of the configuration."""
    text = (pathlib.Path(root) / "daemon/config/config.def").read_text()
    return {f"{section}.{key}": default for section, key, default in ROW.findall(text)}


def present(root, name, keys):
    """Returns the present value of a default, or None if there is no such key or constant."""
    if ":" not in name:
        return keys.get(name)
    file, constant = name.split(":")
    path = pathlib.Path(root) / file
    found = re.search(rf"(?:#define {constant} |\b{constant} = )([^,;}}\n]+?)\s*(?:[,;}}\n]|/\*)", path.read_text()) if path.exists() else None
    return found[1] if found else None


def render(text, figures):
    """Returns the text with {NAME} replaced by values, as pages state them."""
    return re.sub(r"\{(\w+)\}", lambda m: plain(figures[m[1]]), text)


def plain(figure):
    value = figure["value"]
    if isinstance(value, str):  # a range
        return value
    text = f"{value:#.{figure.get('digits', 2)}g}"
    return f"{value:.0f}" if "e" in text else text.rstrip(".")


def commit_of(root):
    """Returns the commit, or None if files of the product differ from it, or git is missing."""
    def git(*words):
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)

    if git("diff", "--quiet", "HEAD", "--", "daemon", "client", "proto").returncode != 0:
        return None
    return git("rev-parse", "--short=10", "HEAD").stdout.strip() or None


def machine_in_words(machine):
    return (f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB, Linux {machine['kernel']}, "
            f"{machine['file_system']} on {machine['device']}; load {machine['load_before']:.1f} before the run")


def value_at(report, where):
    for part in where.split("."):
        report = report.get(part) if isinstance(report, dict) else None
    return report


def update(file, report, used, commit, command, root):
    """Enters values and facts of the runs of which the report has all figures; returns their names. `used` has the settings of each run."""
    known = json.loads(pathlib.Path(file).read_text())
    values = {name: value_at(report, figure["from"]) for name, figure in known["figures"].items() if "from" in figure and figure["run"] in used}
    # A run of which some figures are missing would give the others its date.
    partial = {known["figures"][name]["run"] for name, value in values.items() if value is None}
    entered = [name for name in values if known["figures"][name]["run"] not in partial]
    for name in entered:
        figure = known["figures"][name]
        figure["value"] = float(f"{values[name] / figure.get('scale', 1):.{figure.get('digits', 2)}g}")
    keys = configured(root)
    for run in sorted({known["figures"][name]["run"] for name in entered}):
        differ = {key: value for key, value in used[run].items() if value != keys.get(key)}
        depends = [key for key in keys if key.split(".")[0] in SECTIONS and key not in NO_EFFECT and key not in differ]
        known["runs"][run] = {"date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(), "commit": commit,
                              "machine": machine_in_words(report["machine"]), "command": command, "settings": differ,
                              "defaults": {key: keys[key] for key in depends}}
    write(file, known)
    return entered


def write(file, known):
    pathlib.Path(file).write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
