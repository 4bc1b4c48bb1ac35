# SPDX-License-Identifier: Apache-2.0
"""The package converts arguments before it calls the library: timeouts, fingerprints and buffers, without a daemon."""

import array
import mmap

import kvcache
import pytest
from kvcache import _arguments, _memory


@pytest.mark.parametrize("seconds, ms", [(0.0000001, 1), (0.0004, 1), (0.001, 1), (0.0011, 2), (1, 1000), (1e12, _arguments.MOST_MS),
                                         (float("inf"), _arguments.MOST_MS)])
def test_a_timeout_is_never_shorter_than_asked_for(seconds, ms):
    """0 ms would select the client's timeout instead, so short timeouts are rounded up."""
    assert _arguments.milliseconds(seconds) == ms
    assert _arguments.milliseconds(None) == 0


def test_a_fingerprint_does_not_depend_on_the_order_of_its_fields():
    fields = {"model": "m", "dtype": "bf16", "block_tokens": 16}
    backwards = dict(reversed(fields.items()))
    assert list(fields) != list(backwards)
    assert _arguments.fingerprint_text(fields) == _arguments.fingerprint_text(backwards) == b"block_tokens=16\ndtype=bf16\nmodel=m\n\0"


def test_a_fingerprint_has_an_end():
    assert len(_arguments.fingerprint_text({"k": "v" * 4093})) == 4097
    with pytest.raises(kvcache.ArgumentError):
        _arguments.fingerprint_text({"k": "v" * 4094})


def test_an_unusable_buffer_is_refused_with_every_possible_reason():
    closed, released = mmap.mmap(-1, 4096), memoryview(bytearray(8))
    closed.close()
    released.release()
    for buffer in (closed, released, memoryview(bytearray(8))[::2]):
        with pytest.raises(kvcache.ArgumentError, match="it is closed or released, or its memory is not contiguous: "):
            _memory.pin(buffer)


def test_a_wrong_key_or_number_of_pieces_is_described():
    for key, said in ((array.array("Q", [1, 2, 3, 4]), "has 4 items"), (b"x" * 31, "has 31 bytes, not 32")):
        with pytest.raises(kvcache.ArgumentError, match=said):
            kvcache.Keys([key])
    with pytest.raises(kvcache.ArgumentError, match="1 or more, not 0"):
        kvcache.Places([bytearray(3)], 0)
