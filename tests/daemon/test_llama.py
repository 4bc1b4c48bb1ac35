# SPDX-License-Identifier: Apache-2.0
"""The example for llama.cpp with a substitute for llama.cpp, in which each cell affects the generated text.

tests/engines runs the same example with the real library.
"""

import os
import pathlib
import re
import subprocess

import pytest

from harness import BUILD

PROGRAM = pathlib.Path(BUILD) / "tests/lib/llama/example-llama-prefix"
TEXT = "a prompt of which a part is that of others, and which is a few blocks of sixteen tokens long. " * 2


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(b"pthe weights")
    return path


def run(daemon, model, prompt, *options, **environment):
    """Returns the generated text, the number of tokens, of restored tokens, and of blocks put."""
    done = subprocess.run([PROGRAM, "-s", str(daemon.socket), "-b", "16", "-n", "24", *options, model, prompt],
                          capture_output=True, text=True, timeout=60, env={**os.environ, **environment})
    assert done.returncode == 0, done
    counts = re.search(r"(\d+) tokens, (\d+) restored, (\d+) blocks kept", done.stderr)
    return (done.stdout, *map(int, counts.groups()), done.stderr)


def test_a_prompt_continues_with_the_same_tokens(daemon, model):
    first, n, restored, put, _ = run(daemon, model, TEXT)
    assert restored == 0 and put == n // 16 == (len(TEXT) + 24) // 16
    again, _, restored, put, _ = run(daemon, model, TEXT)
    assert again == first and restored == (len(TEXT) - 1) // 16 * 16 and put == 0


def test_prompts_share_the_blocks_they_have_in_common(daemon, model, tmp_path):
    run(daemon, model, TEXT)
    other = TEXT[:70] + "!" + TEXT[71:]
    shared, _, restored, put, _ = run(daemon, model, other)
    assert restored == 64 and put == (len(other) + 24) // 16 - 4
    assert shared == run(daemon, model, other, "-s", str(tmp_path / "none"))[0]


def test_the_answer_is_kept_too(daemon, model):
    first = run(daemon, model, ",".join(str(ord(c)) for c in TEXT), "-t")
    prompt = [ord(c) for c in TEXT] + [int(i) for i in first[0].split()] + [7]
    longer = run(daemon, model, ",".join(map(str, prompt)), "-t")
    assert longer[2] == (len(prompt) - 1) // 16 * 16 > len(TEXT)


def test_a_prompt_of_whole_blocks_leaves_one_to_decode(daemon, model):
    first = run(daemon, model, TEXT[:64])
    again = run(daemon, model, TEXT[:64])
    assert again[2] == 48 and again[0] == first[0]


def test_another_model_or_size_of_block_finds_nothing(daemon, model, tmp_path):
    run(daemon, model, TEXT)
    other = tmp_path / "other"
    other.write_bytes(b"pother weights")
    found = run(daemon, other, TEXT)
    assert found[2] == 0 and found[0] != run(daemon, model, TEXT)[0]
    assert run(daemon, model, TEXT, "-b", "8")[2] == 0
    assert run(daemon, model, TEXT, "-m", "name")[2] == 0
    assert run(daemon, model, TEXT)[2] > 0


@pytest.mark.parametrize("nth", [1, 3, 9])
def test_a_state_that_llama_refuses_is_computed(daemon, model, nth):
    first = run(daemon, model, TEXT)[0]
    found = run(daemon, model, TEXT, LLAMA_STUB_DAMAGE=str(nth))
    assert found[2] == (nth - 1) * 16 and found[0] == first


def test_a_sliding_window_keeps_and_uses_only_whole_blocks(daemon, tmp_path):
    model = tmp_path / "window"
    model.write_bytes(b"wthe weights")
    first, n, _, put, _ = run(daemon, model, TEXT)
    assert put == 0  # the first block has lost cells, so no block of the chain is usable
    short, n, _, put, _ = run(daemon, model, TEXT[:60])
    assert put == n // 16
    again = run(daemon, model, TEXT[:60])
    assert again[2] == 48 and again[0] == short
    assert run(daemon, model, TEXT)[0] == first


def test_a_context_for_which_the_model_has_other_factors_finds_nothing(daemon, tmp_path):
    model = tmp_path / "long"
    model.write_bytes(b"lthe weights")
    short = run(daemon, model, TEXT[:180], "-c", "256")
    assert short[3] == (180 + 24) // 16
    found = run(daemon, model, TEXT[:180], "-c", "257")
    assert found[2] == 0 and found[0] != short[0]
    assert run(daemon, model, TEXT[:180], "-c", "8192")[2] == 176  # the factors are the same, so are the cells
    assert run(daemon, model, TEXT[:180], "-c", "255")[2] == 176


def test_a_refused_put_is_not_counted_and_ends_storing(daemon, model):
    found = run(daemon, model, TEXT, LLAMA_STUB_REFUSE="3")
    assert found[3] == 2
    again = run(daemon, model, TEXT)
    assert again[2] == 32 and again[0] == found[0] and again[3] == (len(TEXT) + 24) // 16 - 2


def test_a_recurrent_model_is_computed(daemon, tmp_path):
    model = tmp_path / "recurrent"
    model.write_bytes(b"rthe weights")
    for _ in range(2):
        found = run(daemon, model, TEXT)
        assert found[2:4] == (0, 0) and "cannot be divided into blocks of tokens" in found[4]


def test_a_daemon_that_dies_or_is_away_costs_nothing_but_time(daemon, model, tmp_path):
    first = run(daemon, model, TEXT)[0]
    daemon.kill()
    found = run(daemon, model, TEXT)
    assert found[0] == first and found[2] == 0 and "cannot connect to the daemon, so the whole prompt is computed" in found[4]
    daemon.start()
    assert run(daemon, model, TEXT)[0] == first


def test_a_block_too_large_for_the_daemon_says_so(daemon, model):
    prompt = TEXT * 30
    found = run(daemon, model, prompt, "-b", "5000", "-c", "8192")
    assert found[3] == 0 and "too large for the daemon" in found[4]


@pytest.mark.parametrize("arguments", [["-b", "0"], ["-b", "x"], ["-c", "0"], ["-n", "x"], ["-n", "-1"], ["-j", ""], ["-c", "99999999999"]])
def test_bad_options(model, arguments):
    done = subprocess.run([PROGRAM, *arguments, model, "x"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("usage: ")


@pytest.mark.parametrize("prompt", ["", "1,x", "1,-4", "1,1000", "9" * 30])
def test_prompts_that_are_no_tokens(daemon, model, prompt):
    done = subprocess.run([PROGRAM, "-s", str(daemon.socket), "-t", model, prompt], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "is no list of the model's token ids" in done.stderr
