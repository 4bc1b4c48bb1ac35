# SPDX-License-Identifier: Apache-2.0
"""Stands in for SGLang under the traffic benchmark. tests/engines/sglang_arguments.py compares its interface with that of the real versions."""

__version__ = "fake"
