# SPDX-License-Identifier: Apache-2.0
"""The SGLang adapter: a storage backend of SGLang's HiCache that keeps pages in kvcache-daemon.

README.md beside this file shows the configuration, which names kvcache.sglang.storage; SGLang loads that module itself. Importing this package
imports nothing of SGLang.
"""
