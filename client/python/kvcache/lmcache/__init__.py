# SPDX-License-Identifier: Apache-2.0
"""kvcache-daemon as a second level (L2) of LMCache's server; README.md beside this file has the line of configuration.

Importing this imports nothing of LMCache, which loads kvcache.lmcache.adapter itself.
"""
