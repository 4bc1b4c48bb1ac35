# SPDX-License-Identifier: Apache-2.0
"""The tiers: the builds and tests of a stranger, of every submission, of everything, and of every night.

default: a gcc build, checks of the tree, unit tests, one test of the daemon per file. submission: see below. all: every test, with and
without a sanitizer. nightly: all, and long tests: serial tests, both optional parts left out, TSan on the daemon, delays, fuzzing, -O0,
mutants, campaigns. Code that a nightly test covers is also covered by a test of the submission tier."""

import os
import pathlib
import shutil
import subprocess
import tempfile

import builds
import fuzzers
import programs
import results

TIERS = ("default", "submission", "all", "nightly")
WARNINGS = "-Wno-maybe-uninitialized -Wno-format-truncation"    # gcc's are wrong about instrumented code and at -O1
QUICK = "-O1 -g1"
PYTHON, DAEMON = ["tests/python", "tests/kvbench", "tests/suite"], ["tests/daemon"]
# Runs of each campaign at night; the submission tier runs the counts of tests/campaigns/meson.build.
NIGHTLY_CAMPAIGNS = {"powerloss": 20000, "crashpoint": 10000, "succession": 5000, "misdirect": 5000, "bitflip": 30000, "nth-failure": 2000,
                     "succession-disk": 500, "kill": 200, "admin": 300, "clientkill": 1000, "settled": 60, "hostile": 280, "parity": 5,
                     "restart": 10, "filesystems": 14, "events": 300, "flood": 200, "fairness": 34, "slow": 60, "overload": 20, "cost": 60, "loop": 36,
                     "environment": 240}


def sanitizer_build(root, kind, folder=None, *, fuzz=False, targets=None):
    """Returns a build with ASan and UBSan (clang where there is one) or with TSan (gcc)."""
    folder = folder or root / f"build-test-{kind}"
    if kind == "tsan":
        return builds.Build("tsan", folder, (os.environ.get("CC") or "cc"), f"{QUICK} {WARNINGS}",
                            ("--werror", "-Db_sanitize=thread", "-Db_lundef=false"), targets)
    cc = os.environ.get("CC") or ("clang" if shutil.which("clang") else "cc")
    options = ["--werror", "-Db_sanitize=address,undefined", "-Db_lundef=false"]
    flags = QUICK if cc.endswith("clang") else f"{QUICK} {WARNINGS}"
    if fuzz:
        options.append("-Dfuzzers=true")
    return builds.Build("asan and ubsan", folder, cc, flags, tuple(options), targets)


def gcc_build(suite, root):
    options = ("--werror",) if suite.options.werror or suite.options.tier in ("submission", "nightly") else ()
    if suite.options.daemon_only:
        options += ("-Dunit_tests=false",)
    folder = suite.options.build_dir or root / "build-test"
    return builds.Build("gcc", folder.absolute(), (os.environ.get("CC") or "cc"), (os.environ.get("CFLAGS") or "-g1"), options)


def has_fuzzers(cc):
    """Returns whether the compiler has libFuzzer."""
    with tempfile.TemporaryDirectory() as work:
        source = "int LLVMFuzzerTestOneInput(const char *d, long n); int LLVMFuzzerTestOneInput(const char *d, long n) { return 0; }"
        return subprocess.run([*cc.split(), "-x", "c", "-fsanitize=fuzzer,address", "-o", f"{work}/probe", "-"], input=source, text=True,
                              capture_output=True).returncode == 0


def suites(all_programs, *names):
    return [program for program in all_programs if set(program.suites) & set(names)]


def rotation(root, parts=3):
    """Returns the part of tests/daemon whose turn it is: files go round with the number of commits."""
    counted = subprocess.run(["git", "-C", str(root), "rev-list", "--count", "HEAD"], capture_output=True, text=True)
    turn = int(counted.stdout) if counted.returncode == 0 else 0
    return part_of(sorted(path.relative_to(root) for path in (root / "tests/daemon").glob("test_*.py")), turn, parts)


def part_of(files, turn, parts=3):
    return [file for i, file in enumerate(files) if (turn + i) % parts == 0]


def pytest_processes(suite):
    """Tests of the daemon wait more than they compute: three processes per processor keep it busy."""
    return min(3 * suite.cpus, 48)


def delayed(suite, build):
    """Makes every thread of the daemon, the library and the tests sleep at random with --delays (tests/lib/delays.c)."""
    if suite.options.delays:
        suite.env = {"LD_PRELOAD": str(build.folder / "tests/delays.so")}


# --- the tiers ---

def default(suite, root):
    kind = suite.options.sanitize
    build = sanitizer_build(root, kind, suite.options.build_dir) if kind else gcc_build(suite, root)
    suite.builder = builds.Builder(root, [build])
    if not suite.built(build):
        return
    delayed(suite, build)
    if not suite.options.daemon_only:
        wanted = ("unit", "campaign", "campaign-threads") + (() if kind else ("tree",))
        suite.programs("unit tests" if kind else "unit tests and checks of the tree", suites(programs.of_build(build.folder), *wanted))
    suite.pytest("one test of the daemon per file", build, DAEMON, "smoke", at_once=pytest_processes(suite), sanitized=bool(kind))


def submission(suite, root):
    gcc = gcc_build(suite, root)
    asan = sanitizer_build(root, "asan", fuzz=True)
    plain = builds.Build("plain", root / "build-plain", gcc.cc, gcc.cflags, ("--werror", "-Dio_uring=disabled", "-Dsystemd=disabled"),
                         ["daemon/kvcache-daemon"])
    threaded = []

    def threaded_targets():
        chosen = [p for p in suites(programs.of_build(gcc.folder), "unit", "campaign-threads") if programs.has_threads(p)]
        threaded.extend(p.name for p in chosen)
        return programs.targets_of(tsan.folder, chosen)

    tsan = sanitizer_build(root, "tsan", targets=threaded_targets)
    suite.builder = builds.Builder(root, [gcc, asan, plain, tsan])

    if suite.built(gcc, 150):
        delayed(suite, gcc)
        suite.programs("tree", suites(programs.of_build(gcc.folder), "tree"), 60)
        suite.pytest("python and daemon", gcc, PYTHON + DAEMON, "submission", 420, at_once=pytest_processes(suite))
        suite.env = {}
    if suite.built(asan, 120):
        all_programs = programs.of_build(asan.folder)
        with tempfile.TemporaryDirectory(prefix="kvcache-fuzz-") as work:
            suite.programs("sanitized", suites(all_programs, "unit", "campaign", "campaign-threads") +
                           fuzzers.of_programs(all_programs, 5, work), 300)
        files = rotation(root)
        suite.say("\nsanitized daemon, this time: " + " ".join(file.stem.removeprefix("test_") for file in files))
        suite.pytest("sanitized daemon", asan, files, "submission", 240, at_once=pytest_processes(suite), sanitized=True)
    if suite.built(plain, 30):
        suite.programs("plain", [programs.Program("daemon without io_uring and systemd", [plain.folder / "daemon/kvcache-daemon", "--version"],
                                                  {}, [], 60)])
    if gcc.name not in suite.failed_builds and suite.built(tsan, 60):
        chosen = [programs.with_share_of_seeds(p, 0.25) for p in programs.of_build(tsan.folder) if p.name in set(threaded)]
        if not chosen:
            suite.sum.add(results.Result("tsan", "failed", "no test program has a thread: nm failed, or pthread_create has another name", final=True))
        suite.programs("tsan", chosen, 240)


def everything(suite, root, kinds=(None, "asan")):
    """Runs all tests on each kind of build. Tests that measure run alone, and not with a sanitizer."""
    os.environ["KVCACHE_TEST_ALL"] = "1"
    by_kind = {kind: sanitizer_build(root, kind, fuzz=kind == "asan" and has_fuzzers("clang")) if kind else gcc_build(suite, root) for kind in kinds}
    suite.builder = builds.Builder(root, list(by_kind.values()))
    for kind, build in by_kind.items():
        if not suite.built(build):
            continue
        name = f"{build.name}: "
        wanted = ("unit", "campaign", "campaign-threads", "fuzz") + (() if kind else ("tree",))
        delayed(suite, build)
        if not suite.options.daemon_only:
            suite.programs(name + "programs", suites(programs.of_build(build.folder), *wanted))
        moved = build.folder / "moved-metrics"
        moved.write_text("")
        env = {"KVCACHE_TEST_MOVED": str(moved)}
        suite.pytest(name + "pytest", build, PYTHON + DAEMON, "nightly", at_once=pytest_processes(suite), sanitized=bool(kind), env=env)
        if not kind and not suite.options.delays:
            suite.pytest(name + "serial", build, PYTHON + DAEMON, "serial", env=env)


def nightly(suite, root):
    everything(suite, root, (None, "asan", "tsan"))
    plain = builds.Build("plain", root / "build-plain", "cc", "-g1", ("--werror", "-Dio_uring=disabled", "-Dsystemd=disabled"))
    unoptimized = builds.Build("-O0", root / "build-O0", "cc", "-O0 -g1", ("--werror", "--buildtype=plain"))
    suite.builder = builds.Builder(root, [plain, unoptimized])
    gcc = gcc_build(suite, root)
    for build in (plain, unoptimized):
        if suite.built(build):
            suite.programs(f"{build.name}: programs", suites(programs.of_build(build.folder), "unit"))
    asan = root / "build-test-asan"
    if (asan / "build.ninja").exists():
        with tempfile.TemporaryDirectory(prefix="kvcache-fuzz-") as work:
            suite.programs("fuzzing, ten minutes each", fuzzers.of_programs(programs.of_build(asan), 600, work), at_once=suite.cpus)
    campaigns = [programs.Program(f"campaign {name}", ["sh", root / "tests/campaigns/run.sh", name, "--build", gcc.folder, "--count", str(count)],
                                  {}, [], 7200) for name, count in NIGHTLY_CAMPAIGNS.items()]
    suite.programs("campaigns", campaigns, at_once=1)
    suite.env = {"LD_PRELOAD": str(gcc.folder / "tests/delays.so")}
    suite.programs("delays: programs", suites(programs.of_build(gcc.folder), "unit", "campaign-threads"))
    suite.pytest("delays: pytest", gcc, PYTHON + DAEMON, "submission", at_once=pytest_processes(suite))
    suite.env = {}
    suite.programs("mutants", [programs.Program("mutants", ["sh", root / "tests/mutants/run.sh"], {}, [], 4 * 3600)])


def run(suite, root):
    tier = suite.options.tier
    if tier == "submission":
        submission(suite, root)
    elif tier == "nightly":
        nightly(suite, root)
    elif tier == "all":
        everything(suite, root, (suite.options.sanitize,) if suite.options.sanitize else (None, "asan"))
    else:
        default(suite, root)
