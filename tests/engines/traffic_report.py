# SPDX-License-Identifier: Apache-2.0
"""The tables of the traffic benchmark: a row for each run, medians and ratios for each arm, as Markdown and JSON."""

import json
import statistics


def percentile(values, q):
    """Returns the value below which a share q of the values lies; None without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))] if ordered else None


def figures_of(answers, longest_wait_s):
    """Returns the figures of the answered requests of a run."""
    first = [a["first_ms"] for a in answers if a["first_ms"] is not None and a["turn"] == 0]
    later = [a["first_ms"] for a in answers if a["first_ms"] is not None and a["turn"] > 0]
    gaps = [gap for a in answers for gap in a["gaps_ms"]]
    return dict(requests=len(answers), failed=sum(not a["ok"] for a in answers), prompt_tokens=sum(a["prompt"] for a in answers),
                cached_tokens=sum(a["cached"] for a in answers), first_p50_ms=percentile(first, 0.5), first_p99_ms=percentile(first, 0.99),
                later_p50_ms=percentile(later, 0.5), later_p90_ms=percentile(later, 0.9), later_p99_ms=percentile(later, 0.99),
                between_p50_ms=percentile(gaps, 0.5), between_p99_ms=percentile(gaps, 0.99),
                longest_ms=max((a["longest_ms"] for a in answers), default=None), over_limit=sum(a["longest_ms"] > longest_wait_s * 1e3 for a in answers))


# Column titles, keys of a row, decimal places. A column that is empty in all rows is left out.
COLUMNS = [("arm", "arm", 0), ("round", "round", 0), ("variant", "variant", 0), ("outcome", "outcome", 0), ("start, s", "start_s", 1),
           ("all, s", "seconds", 2), ("down, s", "down_s", 1), ("requests", "requests", 0), ("failed", "failed", 0),
           ("unanswered", "unanswered", 0), ("asked again", "asked_again", 0), ("cached tokens", "cached_tokens", 0),
           ("later turns p50, ms", "later_p50_ms", 0), ("p90, ms", "later_p90_ms", 0), ("p99, ms", "later_p99_ms", 0), ("first turns p50, ms", "first_p50_ms", 0),
           ("between p50, ms", "between_p50_ms", 1), ("p99, ms", "between_p99_ms", 1), ("longest wait, ms", "longest_ms", 0),
           ("waits over limit", "over_limit", 0), ("longest wait in fault, ms", "fault_longest_ms", 0),
           ("longest step, ms", "longest_step_ms", 0), ("disk read, MB", "disk_read_mb", 0), ("written, MB", "disk_written_mb", 0),
           ("memory, MB", "memory_mb", 0)]
SHORT = [("start", "start_s", 1), ("all", "seconds", 2), ("cached", "cached_tokens", 0), ("later p50", "later_p50_ms", 0),
         ("p99", "later_p99_ms", 0), ("between p99", "between_p99_ms", 1), ("longest wait", "longest_ms", 0), ("failed", "failed", 0)]
COMPARED = [("all, s", "seconds", 2), ("later turns p50, ms", "later_p50_ms", 0), ("p90, ms", "later_p90_ms", 0),
            ("p99, ms", "later_p99_ms", 0), ("between p99, ms", "between_p99_ms", 1), ("cached tokens", "cached_tokens", 0),
            ("disk read, MB", "disk_read_mb", 0)]


def cell(value, digits):
    if value is None:
        return ""
    return f"{value:,.{digits}f}" if isinstance(value, (int, float)) else str(value).replace("|", "/").replace("\n", " ")


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def runs_table(rows):
    columns = [c for c in COLUMNS if any(row.get(c[1]) not in (None, "") for row in rows)]
    return table([c[0] for c in columns], [[cell(row.get(key), digits) for _, key, digits in columns] for row in rows])


def complete(rows):
    """Returns the rows of each arm and variant whose runs ended as they should, in the order of their first run. Starts are none."""
    groups = {}
    for row in rows:
        if row["outcome"] == "ok" and row.get("seconds") is not None and row.get("variant") != "start":
            groups.setdefault((row["arm"], row.get("variant") or ""), []).append(row)
    return groups


def medians_table(rows, reference):
    """Returns medians, the spread of the seconds, and multiples of the reference arm, in the same variant if it has it (ratio_of())."""
    groups = complete(rows)
    first = next((g for (arm, _), g in groups.items() if arm == reference), None)
    heads = ["arm", "runs", "spread of all, s"]
    for head, _, _ in COMPARED:
        heads += [head] + ([f"× {reference}"] if first else [])
    lines = []
    for (arm, variant), group in groups.items():
        base = groups.get((reference, variant), first) if variant == "again" else first
        seconds = [row["seconds"] for row in group]
        line = [f"{arm} {variant}".strip(), str(len(group)), f"{(max(seconds) - min(seconds)) / statistics.median(seconds):.1%}"]
        for _, key, digits in COMPARED:
            middle = middle_of(group, key)
            line.append(cell(middle, digits))
            if base:
                ratio = ratio_of(group, base, key)
                line.append("" if ratio is None else f"{ratio:.3f}")
        lines.append(line)
    return table(heads, lines) if lines else ""


def middle_of(group, key):
    values = [row[key] for row in group if row.get(key) is not None]
    return statistics.median(values) if values else None


def ratio_of(group, base, key):
    """Returns the median of the ratios of runs of one round, whose arms serve the same prompts one after another, so that what slows the
    machine or the prompts of a round slows both. Returns the ratio of the medians if the groups have no round in common, and None if
    there is nothing to compare."""
    by_round = {row["round"]: row[key] for row in base if row.get(key)}
    ratios = [row[key] / by_round[row["round"]] for row in group if row.get(key) is not None and row["round"] in by_round]
    if ratios:
        return statistics.median(ratios)
    middle, of_base = middle_of(group, key), middle_of(base, key)
    return middle / of_base if middle is not None and of_base else None


def learned_lines(rows):
    """Returns a line for each run with the reports of its policies and its connector."""
    lines = []
    for row in rows:
        known = {k: v for k, v in (row.get("learned") or {}).items() if k.startswith(("kvcache_", "polic", "metrics")) or row["engine"] == "stub"}
        if known and row.get("variant") != "start":
            lines.append(" ".join(filter(None, ["-", row["arm"], row.get("variant"), f"round {row['round']}: "])) +
                         ", ".join(f"{k.removeprefix('kvcache_')} {v}" for k, v in sorted(known.items())))
    return "\n".join(lines)


def markdown(title, rows, reference, remarks, statuses=True):
    """Returns the whole report."""
    parts = [f"# {title}\n", runs_table(rows) if rows else "No run.\n"]
    medians = medians_table(rows, reference)
    if medians:
        parts += ["Medians of complete runs, and medians of the ratios of each round:\n", medians]
    if remarks:
        parts.append("\n".join(f"- {remark}" for remark in remarks) + "\n")
    learned = learned_lines(rows)
    if learned:
        parts += ["Learned and counted:\n", learned + "\n"]
    return "\n".join(parts + (status_parts(rows) if statuses else []))


def status_parts(rows):
    """Returns the daemon's status at the end of the last run of each arm and variant."""
    last = {(row["arm"], row.get("variant") or ""): row for row in rows if row.get("status")}
    parts = []
    for (arm, variant), row in last.items():
        parts += [" ".join(filter(None, ["The daemon's status at the end of", arm, variant])) + f", round {row['round']}:\n",
                  "```\n" + row["status"].rstrip() + "\n```\n"]
    return parts


def write(folder, title, options, rows, reference, remarks):
    """Writes table.md and figures.json. A run that is cut off leaves the files of its last complete row."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("table.md", markdown(title, rows, reference, remarks)),
                       ("figures.json", json.dumps(dict(title=title, options=options, rows=rows, remarks=remarks), indent=1) + "\n")):
        unfinished = folder / f".{name}"
        unfinished.write_text(text)
        unfinished.rename(folder / name)
