# SPDX-License-Identifier: Apache-2.0
"""kvcache-daemon as a storage backend of SGLang's HiCache; README.md beside this file has the line of configuration.

Importing this imports nothing of SGLang, which loads kvcache.sglang.storage itself.
"""
