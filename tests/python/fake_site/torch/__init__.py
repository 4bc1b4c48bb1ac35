# SPDX-License-Identifier: Apache-2.0
"""Stands in for PyTorch where the traffic benchmark asks whether CUDA is initialized."""

import os
import types

cuda = types.SimpleNamespace(is_initialized=lambda: bool(os.environ.get("FAKE_CUDA_INITIALIZED")))
