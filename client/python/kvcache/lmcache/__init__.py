# SPDX-License-Identifier: Apache-2.0
"""The LMCache adapter: a second level (L2) of LMCache's server that keeps objects in kvcache-daemon.

README.md beside this file shows the configuration, which names kvcache.lmcache.adapter; LMCache loads that module itself. Importing this
package imports nothing of LMCache.
"""
