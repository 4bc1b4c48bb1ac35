# SPDX-License-Identifier: Apache-2.0
"""The mode --states of the traffic benchmark: compares an engine's tokens when its KV cache is computed, on the GPU, in memory, and on disk.

"On disk" means after kill -9 of engine and daemon. The right tokens are those of an engine without a connector. Its tokens with a prefix on the
GPU count as right, too, because a prompt that is computed in two parts may round differently from one that is computed at once.
"""

import time

import traffic_run

COLD, GPU, MEMORY, DISK = "cold", "gpu", "memory", "disk"


def run(driver):
    """Runs the engines of one shape after the other, and compares their tokens."""
    options, arm = driver.options, driver.options.arms[0]
    place = traffic_run.Place(driver.host, options, arm, f"{arm}-states")
    right = {}
    try:
        for kind, passes in (("none", [(COLD, False), (GPU, True)]), (arm, [(COLD, False), (GPU, True), (MEMORY, True)]),
                             (arm, [(DISK, True), (MEMORY, True)])):
            if passes[0][0] == DISK and not restart(driver, place.daemon):
                return
            label = f"{kind}-{passes[0][0]}"
            answers = driver.one(kind, 1, label, variant=options.shape, place=place, load=dict(kind="passes", passes=passes, turns=1))
            if answers is None or driver.rows[-1]["outcome"] != "ok":
                driver.remark(f"{options.shape}: tokens not shown, {label} did not run", wrong=True)
                return
            for name, _ in passes:
                compare(driver, label, name, [a for a in answers if a["name"].endswith(f"-{name}")], right, is_right=kind == "none")
            if kind == arm:
                driver.remark(f"{options.shape}: {place.daemon.stored()}")
    finally:
        place.close()


def compare(driver, label, name, answers, right, is_right):
    if is_right:
        for answer in answers:
            right.setdefault(answer["session"], {})[name] = answer["tokens"]
    as_cold = sum(a["tokens"] == right[a["session"]][COLD] for a in answers)
    differs = sum(a["tokens"] not in right[a["session"]].values() for a in answers)
    cached = sum(a["cached"] for a in answers)
    driver.remark(f"{driver.options.shape}, {label}, {name}: {len(answers)} answers, {as_cold} as computed, {differs} neither so nor as with the GPU's"
                  f" cache; {cached:,} of {sum(a['prompt'] for a in answers):,} tokens were cached",
                  wrong=differs > 0 or not answers or (name not in (COLD, GPU) and cached == 0))


def restart(driver, daemon):
    """Waits until the daemon has written what it was given, kills it, and starts it again, so that its memory is empty."""
    deadline = time.monotonic() + 30
    while (daemon.status() or {}).get("pool", {}).get("unwritten_bytes", 1) and time.monotonic() < deadline:
        time.sleep(0.05)
    daemon.kill()
    try:
        daemon.start()
    except RuntimeError as problem:
        driver.remark(f"{driver.options.shape}: {problem}", wrong=True)
        return False
    return True
