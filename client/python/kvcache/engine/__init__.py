# SPDX-License-Identifier: Apache-2.0
"""Modules that the adapters of all engines share: the identity of KV bytes, and the canary that verifies stored chunks.

`identity` composes a namespace's fingerprint from facts. `weights` identifies a model's weights by their content, with `formats` and `digests`.
`verification` and `canary` compare stored chunks with computed ones. `options` checks the values of options, `former` recognises options of
the tools that kvcache replaces, and `private` removes private namespaces. None of these modules imports an engine; the folder of an engine
collects that engine's facts. A fact that cannot be established is an `Unknown`, which has the reason as an attribute; only
`identity.compose()` decides what unknown facts mean.
"""
