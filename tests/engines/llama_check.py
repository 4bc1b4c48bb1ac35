# SPDX-License-Identifier: Apache-2.0
"""Runs client/examples/llama-prefix.c with the real llama.cpp and a real daemon, on the CPU, with a small model of random weights. The generated
tokens must be the same, however much of the prompt's KV cache came from the daemon.

    KVCACHE_BUILD=... python llama_check.py PROGRAM
"""

import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[0] / "daemon"))

import harness  # noqa: E402

BLOCK = 32
draw = random.Random(14)
PROMPT = [draw.randrange(1024) for _ in range(300)]


class Bed:
    def __init__(self, program, folder):
        self.program, self.folder = program, pathlib.Path(folder)
        self.daemon = harness.Daemon(folder, settings={"memory.pool": "64MiB"}).start()
        self.model = self.make_model(1)

    def make_model(self, seed):
        path = self.folder / f"{seed}.gguf"
        subprocess.run([sys.executable, HERE / "llama_model.py", path, str(seed)], check=True)
        return path

    def run(self, prompt, *options, model=None):
        """Runs the program once. Returns the generated tokens, the number of tokens restored from the daemon, and the number of blocks put."""
        done = subprocess.run([self.program, "-s", str(self.daemon.socket), "-b", str(BLOCK), "-n", "16", "-j", "1", "-t", *options,
                               model or self.model, ",".join(map(str, prompt))],
                              capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done
        counts = re.search(r"\d+ tokens, (\d+) restored, (\d+) blocks kept", done.stderr)
        return [int(t) for t in done.stdout.split()], int(counts[1]), int(counts[2])


def the_same_tokens_follow(bed):
    first, restored, put = bed.run(PROMPT)
    assert len(first) == 16 and len(set(first)) > 1 and restored == 0 and put == 316 // BLOCK
    again, restored, put = bed.run(PROMPT)
    assert again == first and restored == 299 // BLOCK * BLOCK and put == 0


def the_state_is_what_makes_them(bed):
    """Two prompts that differ in their first token continue differently, so that cells of one would be wrong for the other."""
    assert bed.run(PROMPT)[0] != bed.run([PROMPT[0] ^ 1] + PROMPT[1:])[0]


def a_shared_beginning(bed):
    prompt = PROMPT[:100] + [(t + 1) % 1024 for t in PROMPT[100:]]
    alone = bed.run(prompt, "-s", str(bed.folder / "none"))[0]
    bed.run(PROMPT)
    shared, restored, _ = bed.run(prompt)
    assert restored == 100 // BLOCK * BLOCK and shared == alone
    assert bed.run(prompt)[:2] == (alone, 299 // BLOCK * BLOCK)


def an_answer_goes_on(bed):
    first = bed.run(PROMPT)[0]
    prompt = PROMPT + first + [5]
    assert bed.run(prompt)[1] == 316 // BLOCK * BLOCK
    assert bed.run(prompt)[0] == bed.run(prompt, "-s", str(bed.folder / "none"))[0]


def another_model_finds_nothing(bed):
    bed.run(PROMPT)
    assert bed.run(PROMPT, model=bed.make_model(2))[1] == 0


def a_daemon_that_is_killed_and_started(bed):
    first = bed.run(PROMPT)[0]
    bed.daemon.kill()
    assert bed.run(PROMPT)[:2] == (first, 0)
    bed.daemon.start()
    assert bed.run(PROMPT)[0] == bed.run(PROMPT)[0] == first


def main():
    failed = passed = 0
    for scenario in (the_same_tokens_follow, the_state_is_what_makes_them, a_shared_beginning, an_answer_goes_on,
                     another_model_finds_nothing, a_daemon_that_is_killed_and_started):
        folder = tempfile.mkdtemp(prefix="kvcache-engines-")
        started, bed, said = time.monotonic(), None, "ok"
        try:
            bed = Bed(sys.argv[1], folder)
            scenario(bed)
            passed += 1
        except Exception as e:
            import traceback
            traceback.print_exc()
            failed += 1
            said = f"FAILED: {e}"
        finally:
            if bed is not None and bed.daemon.process is not None:
                bed.daemon.kill()
            shutil.rmtree(folder, ignore_errors=True)
        print(f"llama.cpp: {scenario.__name__} {time.monotonic() - started:.1f} s {said}", flush=True)
    print(f"llama.cpp: {passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
