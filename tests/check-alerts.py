#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks conf/prometheus/alerts.yaml: its rules must be well formed, complete, name existing metrics, and be right for made-up series.

    check-alerts.py [ROOT]      prints what is wrong
    check-alerts.py --self-test

Without promtool, the checks that need it are skipped: other faults are still printed, and the exit status is 77 (skipped) if there are none.
tests/daemon/test_alerts.py tests the rules with a real daemon.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

RULES = "conf/prometheus/alerts.yaml"
CASES = "tests/prometheus/alerts-test.yaml"
GUIDE = "conf/monitoring.md"
PARTS = ("summary", "description", "action")


def metrics_of(root):
    """Returns the names of all samples, and of histograms as a whole, which prose may name."""
    rows = re.findall(r'^METRICS_(\w+)\(\w+, "(\w+)"', (root / "daemon/report/metrics.def").read_text(), re.M)
    names, families = set(), set()
    for kind, name in rows:
        prefix = "process_" if kind.startswith("PROCESS_") else "kvcache_"
        kind = kind.removeprefix("PROCESS_")
        ends = {"COUNTER": ["_total"], "COUNTER_BY": ["_total"], "INFO": ["_info"]}.get(
            kind, ["_bucket", "_count", "_sum"] if kind.startswith(("HISTOGRAM", "AGES")) else [""])
        names.update(prefix + name + end for end in ends)
        families.add(prefix + name)
    return names, families - names


def keys_of(root):
    return {f"{a}.{b}" for name in ("config.def", "tenant.def")
            for a, b in re.findall(r"^ROW\(\w+, (\w+), (\w+),", (root / "daemon/config" / name).read_text(), re.M)}


def alerts_of(rules):
    """Returns {name: the text of the rule}."""
    return {m[1]: m[0] for m in re.finditer(r"^ *- alert: (\w+)\n(?:(?! *- (?:alert|record):).*\n?)*", rules, re.M)}


def problems(root, rules, cases, guide):
    """Yields the faults that can be found without promtool."""
    (samples, families), keys = metrics_of(root), keys_of(root)
    alerts = alerts_of(rules)
    if not alerts:
        yield f"{RULES}: no alert"
    for quote, name in sorted(set(re.findall(r"(?<![\w:])(`?)((?:kvcache|process)_\w+)", rules))):
        if name not in samples and not (quote and name in families):
            yield f"{RULES}: no metric {name}"
    sections = {key.split(".")[0] for key in keys}
    for name in sorted(set(re.findall(r"(?<![\w.`/-])([a-z]+\.[a-z_]+)\b(?!\()", rules))):
        if name.split(".")[0] in sections and name not in keys:
            yield f"{RULES}: no key {name} of the configuration"
    for name, text in alerts.items():
        for part in PARTS:
            if not re.search(rf"^ *{part}: *\S", text, re.M):
                yield f"{RULES}: {name} has no {part}"
        if not re.search(r"^ *severity: (critical|warning)$", text, re.M):
            yield f"{RULES}: {name} has no severity, or another one than critical and warning"
        if f'alertname="{name}"' not in cases:
            yield f"{CASES}: {name} never fires"
        if f"`{name}`" not in guide:
            yield f"{GUIDE}: no {name}"
    for name in sorted(set(re.findall(r"`(Kvcache\w+)`", guide)) - alerts.keys()):
        yield f"{GUIDE}: {name} is no alert"


def promtool_says(promtool, root):
    """Yields the faults that promtool finds in the rules and their cases."""
    with tempfile.TemporaryDirectory() as folder:
        rules = root / RULES
        cases = pathlib.Path(folder) / "cases.yaml"
        cases.write_text((root / CASES).read_text().replace("RULES", str(rules.resolve())))
        for command in (["check", "rules", str(rules)], ["test", "rules", str(cases)]):
            done = subprocess.run([promtool, *command], capture_output=True, text=True, timeout=120)
            if done.returncode != 0:
                yield f"promtool {command[0]} {command[1]}: {done.stdout}{done.stderr}"


def self_test(root):
    """Plants each kind of mistake, and checks that it alone is reported."""
    rules, cases, guide = ((root / name).read_text() for name in (RULES, CASES, GUIDE))
    assert list(problems(root, rules, cases, guide)) == []
    wrong = [(rules.replace("kvcache_volume_hung", "kvcache_volume_hangs"), cases, guide, "no metric kvcache_volume_hangs"),
             (rules.replace("kvcache_gets_total", "kvcache_gets"), cases, guide, "no metric kvcache_gets"),
             (rules.replace("store.reserve ", "store.reserved "), cases, guide, "no key store.reserved"),
             (rules.replace("action:", "todo:", 1), cases, guide, "KvcacheDown has no action"),
             (rules.replace("severity: warning", "severity: page", 1), cases, guide, "has no severity"),
             (rules.replace("KvcacheMemlock", "KvcacheLocked"), cases, guide, "KvcacheLocked never fires"),
             (rules, cases, guide.replace("`KvcacheDown`", ""), "no KvcacheDown"),
             (rules, cases, guide + "`KvcacheUp`", "KvcacheUp is no alert")]
    for changed_rules, changed_cases, changed_guide, what in wrong:
        found = list(problems(root, changed_rules, changed_cases, changed_guide))
        assert found and any(what in line for line in found), (what, found)


def main():
    root = pathlib.Path(__file__).resolve().parents[1]
    if sys.argv[1:] == ["--self-test"]:
        self_test(root)
        return 0
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root
    found = list(problems(root, *((root / name).read_text() for name in (RULES, CASES, GUIDE))))
    promtool = shutil.which("promtool")
    if promtool:
        found += promtool_says(promtool, root)
    for line in found:
        print(line)
    if found:
        return 1
    if not promtool:
        print("skipped: no promtool")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
