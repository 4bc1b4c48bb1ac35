# SPDX-License-Identifier: Apache-2.0
"""Stands in for `lmcache server`: answers on both of its ports what it was started with."""

import argparse
import http.server
import json
import threading


def options_of_command():
    p = argparse.ArgumentParser()
    p.add_argument("command", choices=["server"])
    for name in ("host", "http-host", "eviction-policy"):
        p.add_argument(f"--{name}", required=True)
    for name in ("port", "http-port"):
        p.add_argument(f"--{name}", required=True, type=int)
    p.add_argument("--l1-size-gb", required=True, type=float)
    p.add_argument("--disable-metrics", required=True, action="store_true")
    p.add_argument("--no-l1-use-lazy", action="store_true")
    medium = p.add_mutually_exclusive_group(required=True)
    medium.add_argument("--shm-name")
    medium.add_argument("--gds-l1-path")
    p.add_argument("--l2-adapter", type=json.loads)
    return p.parse_args()


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        options = self.server.options
        memory = dict(total_object_count=5, memory_used_bytes=40960)
        known = dict(adapter=options.l2_adapter, l1_size_gb=options.l1_size_gb, storage_manager=dict(l1_manager=memory, l2_adapters=[]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(known).encode())


def main():
    options = options_of_command()
    servers = [http.server.ThreadingHTTPServer(address, Answer) for address in ((options.host, options.port), (options.http_host, options.http_port))]
    for server in servers:
        server.options = options
    threading.Thread(target=servers[0].serve_forever, daemon=True).start()
    servers[1].serve_forever()
