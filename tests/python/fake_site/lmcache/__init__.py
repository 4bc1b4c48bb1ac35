# SPDX-License-Identifier: Apache-2.0
"""Stands in for LMCache under the traffic benchmark."""
