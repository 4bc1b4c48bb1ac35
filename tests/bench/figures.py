# SPDX-License-Identifier: Apache-2.0
"""Computes and prints the figures of the benchmark: ratios of two measurements that alternated, with an estimate of the error.

A figure consists of pairs of short measurements (slices), one of the daemon and one of a yardstick such as fio. The figure's value is the median
of the pairs' ratios, so that a disturbed slice does not change it. Its bounds are the 95 % confidence interval of the median (by order
statistics, which assume nothing about the distribution). Its spread is the distance of the quartiles, divided by the median.
"""

import json
import math
import pathlib
import statistics

UNSTEADY = 0.15
LEFT_OUT = "left out: --only"


def median_bounds(values):
    """Returns the 95 % confidence interval of the median, or the smallest and largest of fewer than six values."""
    ordered, n = sorted(values), len(values)
    k, below = 0, 0.0
    while True:
        below += math.comb(n, k) / 2.0 ** n
        if below > 0.025:
            break
        k += 1
    k = max(k, 1)
    return ordered[k - 1], ordered[n - k]


def spread(values):
    if len(values) < 2:
        return 0.0
    quartiles = statistics.quantiles(values, n=4, method="inclusive")
    middle = statistics.median(values)
    return (quartiles[2] - quartiles[0]) / middle if middle else 0.0


def missing(reason):
    return {"value": None, "reason": reason}


def ratio(pairs, unit, ours, yardstick, notes=(), **more):
    """Returns a figure. `pairs` are (ours, yardstick) in `unit`; `ours` and `yardstick` describe the two sides."""
    if not pairs or any(theirs <= 0 for _, theirs in pairs):
        return missing("nothing was measured")
    ratios = [a / b for a, b in pairs]
    low, high = median_bounds(ratios)
    figure = {
        "value": round(statistics.median(ratios), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "spread": round(spread(ratios), 4),
        "pairs": len(pairs),
        "unit": unit,
        "ours": {"what": ours, "median": statistics.median(a for a, _ in pairs), "spread": round(spread([a for a, _ in pairs]), 4)},
        "yardstick": {"what": yardstick, "median": statistics.median(b for _, b in pairs),
                      "spread": round(spread([b for _, b in pairs]), 4)},
        "ratios": [round(r, 4) for r in ratios],
        "notes": list(notes),
    }
    if figure["spread"] > UNSTEADY:
        shaky = "the yardstick itself varies" if figure["yardstick"]["spread"] > UNSTEADY else "ours varies, the yardstick does not"
        figure["notes"].append(f"unsteady: the middle half of the ratios lies {figure['spread']:.0%} apart ({shaky}); "
                               "look at the bounds, and at what else runs here")
    figure.update(more)
    return figure


def count(by_size, worst, what):
    """Returns a figure of counters: a quotient for each size, of which the worst is the value."""
    known = {size: value for size, value in by_size.items() if value is not None}
    if not known:
        return missing("nothing was counted")
    return {"value": worst(known.values()), "what": what, "by_size": by_size, "notes": []}


def measured(values, unit, what, notes=(), digits=3, **more):
    """Returns a figure without a yardstick: its median, with bounds and spread like those of a ratio."""
    if not values:
        return missing("nothing was measured")
    low, high = median_bounds(values) if len(values) > 1 else (values[0], values[0])
    figure = {"value": round(statistics.median(values), digits), "low": round(low, digits), "high": round(high, digits),
              "spread": round(spread(values), 4), "unit": unit, "what": what, "values": [round(v, digits) for v in values],
              "notes": list(notes)}
    figure.update(more)
    return figure


# --- goals ---

# Bytes that an entry takes with the index, the lookup index and the policy's state, as recorded with 5,000,000 entries.
ENTRY_BYTES = json.loads((pathlib.Path(__file__).parent / "figures.json").read_text())["figures"]["entry_bytes"]["value"]

# The goals: a bound, a comparison and a value for each name. The whole name has precedence over its part up to a dot.
GOALS = {
    "disk_read_vs_fio": ("high", ">=", 0.95),
    "disk_write_vs_fio": ("high", ">=", 0.95),
    "disk_write_vs_fio.full.64KiB": ("high", ">=", 0.85),
    "ios_per_put": ("value", "<=", 1.2),
    "bytes_written_per_byte_put": ("value", "<=", 1.1),
    "ios_per_cold_get": ("value", "<=", 1),
    "inflight_vs_depth": ("value", ">=", 0.95),
    "batch_get_vs_bare.64KiB": ("value", ">=", 0.9),
    "batch_put_vs_bare.64KiB": ("value", ">=", 0.85),
    "batch_get_vs_bare.576KiB": ("value", ">=", 0.97),
    "batch_put_vs_bare.576KiB": ("value", ">=", 0.97),
    "batch_hot_vs_files": ("value", ">=", 1.5),
    "cpu_per_gib_vs_fio": ("value", "<=", 1.3),
    "hit_rtt_vs_echo": ("value", "<=", 1.25),
    "asked_rtt_vs_echo": ("value", "<=", 1.25),
    "hit_cpu_vs_echo": ("value", "<=", 1.5),
    "hit_batch128_vs_echo": ("value", "<=", 2),
    "hit_spread_vs_near": ("value", "<=", 1.8),
    "hits_per_second": ("value", ">=", 1_200_000),
    "match_ns_per_key": ("value", "<=", 40),
    "match32_us": ("value", "<=", 5),
    "put_vs_memcpy": ("value", ">=", 0.8),
    "put_registered_vs_memcpy": ("value", ">=", 0.8),
    "into_vs_memcpy": ("value", ">=", 0.85),
    "recording_2MiB": ("high", ">=", 0.99),
    "recording_4KiB": ("high", ">=", 0.97),
    # The bound of the documented figure, so that an entry does not grow unseen. An entry ought to be smaller than that.
    "bytes_per_entry": ("value", "<=", ENTRY_BYTES + 1),
    "ready_seconds_5M": ("value", "<=", 2),
    "idle_cpu": ("value", "<", 0.1),
}


def add_goals(report):
    """Adds `goal` and `reached` to each figure. A missed goal is reported and fails nothing."""
    for name, figure in walk(report):
        goal = GOALS.get(name) or GOALS.get(name.split(".")[0])
        if not goal:
            figure["goal"], figure["reached"] = None, None
            continue
        part, how, bound = goal
        figure["goal"] = f"{'upper bound ' if part == 'high' else ''}{how} {bound}"
        figure["reached"] = reached(figure.get(part), how, bound) if figure["value"] is not None else None


def reached(value, how, bound):
    if value is None:
        return None
    return {">=": value >= bound, "<=": value <= bound, "<": value < bound}[how]


# --- for people ---

def amount(value, unit):
    if unit == "B/s":
        return f"{value / 1e9:.2f} GB/s"
    return f"{value / 1000:.1f} µs" if unit == "ns" else f"{value:.3g} {unit}"


def plain(value):
    """Formats a number with three or four digits, without a power of ten."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}" if value >= 100 else f"{value:.3g}"


def lines(name, figure):
    goal = f"{figure['goal'].replace('upper bound ', '')}: {WORDS[figure['reached']]}" if figure.get("goal") else ""
    if figure["value"] is None:
        yield f"{name:<34} {'-':>9}   {figure['reason']}   {goal}".rstrip()
        return
    bounds = f"{plain(figure['low'])} .. {plain(figure['high'])}" if "low" in figure else ""
    start = f"{name:<34} {plain(figure['value']):>9}   {bounds:<20} {goal:<18}"
    ways = ", ".join(f"{way} {plain(value)}" if value is not None else way for way, value in figure.get("by_way", {}).items())
    if "ours" in figure:
        cpu = figure.get("cpu_seconds_per_gib") or {}
        ours, theirs = (amount(figure[side]["median"], figure["unit"]) for side in ("ours", "yardstick"))
        more = f"{ours:>11}  {theirs:>11}  {figure['yardstick']['what']}" + (f"; {ways}" if ways else "")
        if cpu.get("fio") and cpu.get("ours"):
            more += f", CPU {cpu['ours']:.2f} : {cpu['fio']:.2f} s/GiB"
    elif "by_size" in figure:
        more = "  ".join(f"{size} {'-' if value is None else format(value, '.3f')}" for size, value in figure["by_size"].items())
    else:
        more = f"{figure['unit']}{': ' + ways if ways else ''}; {figure['what']}"
    yield (start + " " + more).rstrip()
    for note in figure["notes"]:
        yield f"{'':<34}             ! {note}"


WORDS = {True: "yes", False: "no", None: "-"}


def walk(report, prefix=""):
    """Yields (dotted name, figure) for all figures of the report."""
    for key, value in report.items():
        if not isinstance(value, dict):
            continue
        if "value" in value:
            yield prefix + key, value
        elif prefix or key.startswith(("disk_", "batch_")):
            yield from walk(value, prefix + key + ".")


def print_table(name, table):
    print(f"\n{name}: {table['what']}")
    if table.get("reason"):
        print(f"  - {table['reason']}")
    if not table["rows"]:
        return
    columns = list(table["rows"][0])
    cells = [columns] + [[cell(row.get(column)) for column in columns] for row in table["rows"]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for row in cells:
        print("  " + "  ".join(text.rjust(width) for text, width in zip(row, widths)))
    for key, kept in table.get("kept", {}).items():
        value = "-" if kept["value"] is None else f"{kept['value']:.2f}"
        print(f"  {key}: {value} (goal {kept['goal']}: {WORDS[kept['reached']]})")


def cell(value):
    if value is None:
        return "-"
    return value if isinstance(value, str) else plain(value)


def print_report(report):
    machine, daemon = report["machine"], report.get("daemon") or {}
    print(f"machine: {machine['cores']} cores, {machine['cpu']}, Linux {machine['kernel']}, {machine['memory_bytes'] / 2**30:.0f} GiB, "
          f"L3 {machine['l3_bytes'] / 2**20:.0f} MiB; {machine['file_system']} on {machine['device']}"
          f"{', which has a volatile write cache' if machine['volatile_cache'] else ''}")
    if daemon:
        print(f"daemon:  {daemon['backend']}, depth {daemon['depth']}, {daemon['workers']} worker, "
              f"{'O_DIRECT' if daemon['direct'] else 'buffered'}, {'registered' if daemon['registered'] else 'unregistered'} buffers"
              f"{', huge pages ' + daemon['huge_pages'] if daemon.get('huge_pages') else ''}"
              f"{', io.spin ' + daemon['spin'] if daemon.get('spin', 'auto') != 'auto' else ''}")
    if report["yardsticks"].get("fio"):
        print(f"fio:     {report['yardsticks']['fio']}")
    shown = [(name, figure) for name, figure in walk(report) if figure.get("reason") != LEFT_OUT]
    if shown:
        print(f"\n{'figure':<34} {'value':>9}   {'95 % bounds':<20} {'goal':<18} {'ours':>11}  {'yardstick':>11}")
    for name, figure in shown:
        for line in lines(name, figure):
            print(line)
    for name, table in report.get("scaling", {}).items():
        print_table(name, table)
    for note in report["notes"]:
        print(f"! {note}")
    print(f"\n{report['seconds']:.0f} s. How to read this: tests/bench/README.md")
