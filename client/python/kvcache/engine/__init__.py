# SPDX-License-Identifier: Apache-2.0
"""The identity of KV bytes, which the adapters of all engines share.

Layers: `weights` reads files and knows no engine. `identity` composes a fingerprint from facts and reads nothing. The folder of an engine
collects that engine's facts and chooses their names. A fact that cannot be established is an `Unknown`, which carries its reason, so
that no collector decides what a missing fact means: `identity.compose()` does, in one place, for all of them.
"""
