# SPDX-License-Identifier: Apache-2.0
"""/metrics as protobuf, which a Prometheus with native histograms requests: the same samples as the text, and correct buckets."""

import math
import re
import struct

import pytest

import harness
import prometheus
from harness import wait_until
from test_http import traffic

ACCEPT = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
TYPES = {0: "counter", 1: "gauge", 4: "histogram"}


@pytest.fixture
def web(make_daemon):
    daemon = make_daemon()
    daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"
    return daemon.start()


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
        shift += 7


def zigzag(value):
    return value >> 1 if value % 2 == 0 else -(value + 1 >> 1)


def fields(data):
    """Returns {number: [values]} of a message."""
    found, at = {}, 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        elif tag & 7 == 1:
            value, at = struct.unpack("<d", data[at:at + 8])[0], at + 8
        else:
            assert tag & 7 == 2, f"wire type {tag & 7}"
            n, at = varint(data, at)
            value, at = data[at:at + n], at + n
            assert len(value) == n, "it is cut off"
        found.setdefault(tag >> 3, []).append(value)
    assert at == len(data)
    return found


def delimited(data):
    at = 0
    while at < len(data):
        n, at = varint(data, at)
        assert at + n <= len(data), "it is cut off"
        yield fields(data[at:at + n])
        at += n


class Histogram:
    def __init__(self, data):
        f = fields(data)
        self.count, self.sum, self.zero_count = f[1][0], f[2][0], f[7][0]
        assert zigzag(f[5][0]) == 3 and f[6][0] == 2.0 ** -128, "schema and threshold"
        self.classic = [(b[2][0], b[1][0]) for b in map(fields, f.get(3, []))]
        deltas, at = [], 0
        packed = b"".join(f.get(13, []))
        while at < len(packed):
            value, at = varint(packed, at)
            deltas.append(zigzag(value))
        self.native, index, count = {}, 0, 0
        for span in map(fields, f.get(12, [])):
            index += zigzag(span[1][0])
            assert span[2][0] > 0
            for _ in range(span[2][0]):
                count += deltas.pop(0)
                assert count >= 0 and index not in self.native
                self.native[index] = count
                index += 1
        assert not deltas


def families(daemon):
    status, headers, body = daemon.http("/metrics", headers={"Accept": ACCEPT})
    assert status == 200 and headers["content-type"] == ACCEPT.replace(";", "; ")
    found = {}
    for family in delimited(body):
        name, kind = family[1][0].decode(), TYPES[family.get(3, [0])[0]]
        assert name not in found and family[2][0]
        samples = {}
        for metric in map(fields, family.get(4, [])):
            labels = tuple((label[1][0].decode(), label.get(2, [b""])[0].decode()) for label in map(fields, metric.get(1, [])))
            assert labels not in samples
            value = metric[{"gauge": 2, "counter": 3, "histogram": 7}[kind]][0]
            samples[labels] = Histogram(value) if kind == "histogram" else fields(value)[1][0]
        found[name] = (kind, samples)
    return found


def in_text(name, labels):
    return name + ("{" + ",".join(f'{k}="{v}"' for k, v in labels) + "}" if labels else "")


def test_protobuf_has_the_same_metrics_as_the_text(web):
    traffic(web)
    text = web.http("/metrics")[2].decode()
    metrics, kinds = harness.parse_metrics(text), dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    found = families(web)
    assert {name: kind for name, (kind, _) in found.items()} == kinds
    names = set()
    for name, (kind, samples) in found.items():
        for labels, value in samples.items():
            if kind == "histogram":
                names |= {in_text(f"{name}_sum", labels), in_text(f"{name}_count", labels)}
                buckets = [re.sub(r"}$", f',le="', in_text(f"{name}_bucket", labels))]
                edges = [n for n in metrics if n.startswith(buckets[0])]
                assert [float(n.rsplit('"', 2)[1]) for n in edges] == [edge for edge, _ in value.classic]
                names |= set(edges)
                if name not in ("kvcache_loop_duration_seconds", "kvcache_request_duration_seconds"):  # which move meanwhile
                    assert metrics[in_text(f"{name}_count", labels)] <= value.count
            else:
                names.add(in_text(name, labels))
    assert names == metrics.keys()
    assert found["kvcache_puts_total"] == ("counter", {(): 20.0})
    assert found["kvcache_hits_total"][1][(("tier", "disk"),)] == 5.0
    assert found["kvcache_request_duration_seconds"][1][(("op", "PUT"),)].count == 3


def test_native_buckets_agree_with_the_classic_ones(web):
    traffic(web)
    seen = 0
    for name, (kind, samples) in families(web).items():
        for h in samples.values() if kind == "histogram" else ():
            assert h.zero_count + sum(h.native.values()) == h.count == h.classic[-1][1] and math.isinf(h.classic[-1][0])
            seen += h.count
            # The count below each classic edge equals that of the native buckets, except for buckets near the edge.
            for edge, count in h.classic[:-1]:
                below = h.zero_count + sum(n for i, n in h.native.items() if 2 ** (i / 8) <= edge / 1.26)
                above = h.count - sum(n for i, n in h.native.items() if 2 ** ((i - 1) / 8) >= edge * 1.26)
                assert below <= count <= above, (name, edge)
            if h.native and h.zero_count == 0:
                low, high = (sum(n * 2 ** ((i + shift) / 8) for i, n in h.native.items()) for shift in (-1, 0))
                assert low / 1.13 <= h.sum <= high * 1.13, name
    assert seen > 100


@pytest.mark.parametrize("accept, kind", [
    (ACCEPT, "application/vnd"), (f"{ACCEPT},text/plain;q=0.5", "application/vnd"), (f"{ACCEPT};q=0.3,text/plain;q=0.5", "text/plain"),
    (ACCEPT.replace("delimited", "text"), "text/plain"), ("application/vnd.google.protobuf", "text/plain"), ("*/*", "text/plain"),
    # The header that Prometheus sends with the feature, and without it.
    (f"{ACCEPT},application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,"
     "text/plain;version=0.0.4;q=0.5,*/*;q=0.1", "application/vnd"),
    ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,"
     "*/*;q=0.1", "application/openmetrics-text")])
def test_the_format_follows_the_accept_header(web, accept, kind):
    assert web.http("/metrics", headers={"Accept": accept})[1]["content-type"].startswith(kind)


def test_a_real_prometheus_has_native_histograms_of_it(make_daemon, directory):
    daemon = make_daemon(settings={"listen.http": "127.0.0.1:0"}).start()
    port = int(daemon.status()["http"].rsplit(":", 1)[1])
    traffic(daemon)
    with prometheus.Prometheus(directory / "prometheus", {"kvcache": {"a": port}}, features=["native-histograms"]) as p:
        query = 'histogram_count(kvcache_request_duration_seconds{op="PUT"})'
        wait_until(lambda: [v for _, v in p.query(query)] == [3], "the puts are in a native histogram", 30)
        sizes = p.query('histogram_quantile(0.5, sum(kvcache_transfer_size_bytes{path="host_to_disk"}))')
        assert 1000 < sizes[0][1] < 1 << 21
        assert p.query("kvcache_puts_total")[0][1] == 20
        assert p.query("kvcache_build_info")[0][0]["version"] == daemon.status()["version"]
