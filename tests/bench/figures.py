# SPDX-License-Identifier: Apache-2.0
"""Figures: the ratio of two things that were measured in turn, with what is known of its error; and how they are printed.

A figure is made of pairs, each one slice of ours and one of the yardstick's, right after one another. Its value is the
median of the pairs' ratios, so a slice that something else disturbed does not move it. Its bounds are those of the
median at 95 % (order statistics; they assume nothing about the distribution), its spread is the distance of the
quartiles over the median.
"""

import math
import statistics

UNSTEADY = 0.15


def median_bounds(values):
    """The 95 % confidence interval of the median; of less than six values the least and the largest."""
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
    """`pairs`: (ours, yardstick) of each pair, in `unit`; `ours`, `yardstick`: what they are, in words."""
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
    """A quotient of counters for each size; its value is that of the worst one."""
    known = {size: value for size, value in by_size.items() if value is not None}
    if not known:
        return missing("nothing was counted")
    return {"value": worst(known.values()), "what": what, "by_size": by_size, "notes": []}


# --- for people ---

def amount(value, unit):
    if unit == "B/s":
        return f"{value / 1e9:.2f} GB/s"
    return f"{value / 1000:.1f} µs" if unit == "ns" else f"{value:.3g} {unit}"


def lines(name, figure):
    if figure["value"] is None:
        yield f"{name:<34} {'-':>6}   {figure['reason']}"
        return
    if "ours" in figure:
        bounds = f"{figure['low']:.2f} .. {figure['high']:.2f}"
        cpu = figure.get("cpu_seconds_per_gib") or {}
        yield (f"{name:<34} {figure['value']:>6.2f}   {bounds:<14} {amount(figure['ours']['median'], figure['unit']):>11}"
               f"  {amount(figure['yardstick']['median'], figure['unit']):>11}  {figure['yardstick']['what']:<22}"
               + (f"  CPU {cpu['ours']:.2f} : {cpu['fio']:.2f} s/GiB" if cpu.get("fio") and cpu.get("ours") else "").rstrip())
    else:
        by_size = "  ".join(f"{size} {value:.3f}" if value is not None else f"{size} -" for size, value in figure["by_size"].items())
        yield f"{name:<34} {figure['value']:>6.2f}   {by_size}"
    for note in figure["notes"]:
        yield f"{'':<34}          ! {note}"


def walk(report, prefix=""):
    """(dotted name, figure) of all in the report."""
    for key, value in report.items():
        if not isinstance(value, dict):
            continue
        if "value" in value:
            yield prefix + key, value
        elif prefix or key.startswith(("disk_", "cpu_")):
            yield from walk(value, prefix + key + ".")


def print_report(report):
    machine, daemon = report["machine"], report.get("daemon") or {}
    print(f"machine: {machine['cores']} cores, {machine['cpu']}, Linux {machine['kernel']}, {machine['memory_bytes'] / 2**30:.0f} GiB, "
          f"L3 {machine['l3_bytes'] / 2**20:.0f} MiB; {machine['file_system']} on {machine['device']}")
    if daemon:
        print(f"daemon:  {daemon['backend']}, depth {daemon['depth']}, {daemon['workers']} worker, "
              f"{'O_DIRECT' if daemon['direct'] else 'buffered'}, {'registered' if daemon['registered'] else 'unregistered'} buffers"
              f"{', huge pages ' + daemon['huge_pages'] if daemon.get('huge_pages') else ''}")
    if report["yardsticks"].get("fio"):
        print(f"fio:     {report['yardsticks']['fio']}")
    print(f"\n{'figure':<34} {'ratio':>6}   {'95 % bounds':<14} {'ours':>11}  {'yardstick':>11}")
    for name, figure in walk(report):
        for line in lines(name, figure):
            print(line)
    for note in report["notes"]:
        print(f"! {note}")
    print(f"\n{report['seconds']:.0f} s. How to read this: tests/bench/README.md")
