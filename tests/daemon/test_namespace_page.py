# SPDX-License-Identifier: Apache-2.0
"""The page of a namespace at "/namespace", and `kvcachectl namespace show`: they agree with the daemon's counters and with what it evicts next,
show names as text, and reveal nothing of another tenant. tests/unit/test-namespace-history.c has the samples."""

import concurrent.futures
import json
import os
import re
import urllib.parse

import pytest

import harness
import kvwire
from harness import ctl, get_all, items, key_of, put_all, wait_until
from kvwire import Ack, Op, Report
from test_page import FAINT, HOSTILE, WIDE, Page, browser, start, traffic  # noqa: F401 (fixtures)
from test_tenants import ALICE, BOB, make  # noqa: F401 (make: a fixture)
from users import client_as

MISSING, USAGE = 404, 2
NAME = "meta-llama/Llama-3.1-70B + tp8"


def path_of(name, more=""):
    return "/namespace?name=" + urllib.parse.quote(name, safe="") + more


def page_of(daemon, name, more=""):
    status, headers, body = daemon.http(path_of(name, more))
    assert status == 200 and headers["content-type"] == "text/html; charset=utf-8"
    return Page(body.decode())


def report(client):
    return {(n["tenant"], n["name"]): n for n in json.loads(client.report(Report.NAMESPACES))["namespaces"]}


def test_the_page_has_the_figures_of_the_namespace(start):
    daemon = start()
    with daemon.client() as c:
        traffic(c, NAME)
        traffic(c, "another", 20)
        page = page_of(daemon, NAME)
        namespace, = [n for n in json.loads(daemon.http("/status")[2])["namespaces"] if n["name"] == NAME]
        assert namespace["bytes"] == 50 * 20000
        for value in (namespace["bytes"], namespace["chunks"], 0.5, 1):
            assert value in page.values, value
        assert f"Namespace {NAME}" in page.text and "of lookups" in page.text and "last used now" in page.text
        plots = [a["aria-label"] for tag, a in page.elements if tag == "svg" and a.get("class") == "plot"]
        assert len(plots) == 3
        # All chunks of the tenant are visited, because there are few.
        text = page.text.replace("\u202f", "")
        assert "Of the 70 chunks that leave the disk next when room is needed, 50 are of this namespace" in text
    assert ("a", {"href": "namespace?name=meta-llama/Llama-3.1-70B%20%2B%20tp8"}) in Page(daemon.http("/")[2].decode()).elements


def test_the_page_loads_nothing_and_shows_no_key(start):
    daemon = start()
    with daemon.client() as c:
        traffic(c, NAME)
        keys = [k for k, _ in items(NAME, 50, 20000)]
        for more in ("", "&paused"):
            status, headers, body = daemon.http(path_of(NAME, more))
            assert headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
            assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")
            assert not any(k.hex() in body.decode() for k in keys)
            elements = Page(body.decode()).elements
            assert not [tag for tag, a in elements if tag in ("script", "img", "iframe", "link", "form", "object")]
            reload = ("meta", {"http-equiv": "refresh", "content": "10"})
            assert (reload in elements) == (more == "")


def test_the_next_to_be_evicted_are_evicted_first(start):
    """With LRU the order is that of the last uses: the report, the page and the evictions that follow agree."""
    daemon = start(**{"eviction.policy": "lru", "store.limit": "16MiB", "store.segment": "1MiB", "memory.pool": "16MiB"})
    with daemon.client() as c:
        ns = c.namespace("llama")
        pairs = items("llama", 100, 60000)
        for pair in pairs:
            put_all(c, ns, [pair], ack=Ack.WRITTEN)
        get_all(c, ns, [pairs[0][0]])   # a use moves it back
        page_of(daemon, "llama")        # begins its samples, in case the regular ones have not
        wait_until(lambda: ("default", "llama") in report(c), "it is sampled", 20)
        evicted = report(c)["default", "llama"]["evicted_next"]
        assert (evicted["of"], evicted["chunks"], evicted["bytes"]) == (100, 100, 100 * 60000)
        assert [bytes.fromhex(e["key"]) for e in evicted["first"]] == [k for k, _ in pairs[1:21]]
        assert [e["place"] for e in evicted["first"]] == list(range(1, 21))
        assert [e["bytes"] for e in evicted["first"]] == [60000] * 20

        def is_there(key):
            return c.exists(ns, [key])[0]
        at = 0
        while is_there(pairs[1][0]):
            put_all(c, ns, items(f"more{at}", 1, 60000), ack=Ack.WRITTEN)
            at += 1
            assert at < 1000
        assert is_there(pairs[21][0]) and is_there(pairs[0][0])


def test_samples_count_what_was_asked(start):
    daemon = start()
    with daemon.client() as c:
        traffic(c, "llama", 10)
        page_of(daemon, "llama")
        traffic(c, "other", 5)

        def sampled():
            samples = report(c).get(("default", "llama"), {}).get("samples")
            return samples and sum(samples["lookup_keys"]) > 0 and samples
        c.exists(c.namespace("llama"), [k for k, _ in items("llama", 10, 20000)] + [key_of("none", i) for i in range(30)])
        samples = wait_until(sampled, "a sample is taken", 35)
        assert (sum(samples["lookup_keys"]), sum(samples["lookup_found_keys"])) == (40, 10)
        assert samples["bytes"][-1] == 10 * 20000 and samples["chunks"][-1] == 10 and sum(samples["get_keys"]) == 0
        assert len({len(column) for column in samples.values()}) == 1
        assert "25.0" in page_of(daemon, "llama").text
        out = ctl("namespace", "show", "llama", daemon=daemon, check=0).stdout
        assert re.search(r"^ +0 +25.0 % +40 +0 +10 +195 KiB$", out, re.M), out
        assert "evicted next: 10 of the 15 chunks that leave the disk first, 195 KiB" in out
        said = json.loads(ctl("namespace", "show", "--json", "llama", daemon=daemon, check=0).stdout)
        assert said["name"] == "llama" and sum(said["samples"]["lookup_keys"]) == 40 and len(said["evicted_next"]["first"]) == 10


WRONG = ["", "?", "?name=", "?name=absent", "?name=llama&name=llama", "?name=llama&x", "?x=llama", "?paused", "?name=llama%00",
         "?name=llama%0a", "?name=llam%", "?name=%zz", "?name=../llama", "?name=LLAMA", "?name=" + "x" * 256, "?name=" + "%6c" * 1000,
         "?name=llama&paused&pause", "?name=ll+ama", "?name=<script>"]


def test_queries_without_a_namespace_are_answered_404(start):
    daemon = start(**{"limits.http_rate": 0})
    with daemon.client() as c:
        c.namespace("llama")
        answers = {daemon.http("/namespace" + query)[::2] for query in WRONG}
        assert len(answers) == 1, "the answer repeats nothing of the question"
        status, body = answers.pop()
        assert status == MISSING and b"no such namespace; ask with /namespace?name=NAME" in body
        assert daemon.http("/namespace?name=llama")[0] == daemon.http("/namespace?name=%6clama&paused")[0] == 200
        assert daemon.http("/namespaces?name=llama")[0] == daemon.http("/namespace/llama")[0] == MISSING


def test_names_and_fingerprints_from_clients_are_text(start):
    daemon = start()
    with daemon.client() as c:
        put_all(c, c.namespace(HOSTILE, fingerprint=f"model={HOSTILE}\nz={'x' * 2000}\n"), items("x", 1, 1000), ack=Ack.WRITTEN)
        page = page_of(daemon, HOSTILE)
        assert page.text.count(HOSTILE) >= 2 and not [tag for tag, a in page.elements if tag == "script" or "onclick" in a]
        links = [a["href"] for tag, a in page.elements if "href" in a]
        assert all(re.fullmatch(r"[\w./?=%&~-]+", link) for link in links), links
        assert [daemon.http("/" + link)[0] for link in links if link.startswith("namespace")] == [200]
        link, = [a["href"] for tag, a in Page(daemon.http("/")[2].decode()).elements if a.get("href", "").startswith("namespace?")]
        assert daemon.http("/" + link)[0] == 200
        assert len(daemon.http(path_of(HOSTILE))[2]) < 64 << 10


def test_each_request_gets_the_page_that_it_asks_for(start):
    """Requests that wait for the same page share its text."""
    daemon = start(**{"limits.http_rate": 0})
    with daemon.client() as c:
        for i in range(3):
            c.namespace(f"model-{i}")
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            wanted = [f"model-{i % 3}" for i in range(48)]
            texts = list(pool.map(lambda name: daemon.http(path_of(name))[2].decode(), wanted))
        assert [re.search(r"<bdi>(.*?)</bdi>", text)[1] for text in texts] == wanted


def test_a_removed_namespace_has_no_page(start):
    daemon = start()
    with daemon.client() as c:
        c.namespace("llama")
        assert daemon.http(path_of("llama"))[0] == 200
    wait_until(lambda: json.loads(daemon.http("/status")[2])["sessions"]["connections"] == 0, "the client has left")
    ctl("namespace", "rm", "llama", daemon=daemon, check=0)
    assert daemon.http(path_of("llama"))[0] == MISSING
    with daemon.client() as c:
        assert ("default", "llama") not in report(c)
        c.namespace("llama")
        assert daemon.http(path_of("llama"))[0] == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become other users")
def test_R9_another_tenants_namespace_is_not_there(make):
    """HTTP, which knows no tenant, has no pages where there are several; a client gets its own tenant's only, and an admin all."""
    daemon = make(settings={"listen.http": None})
    daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"
    daemon.restart()
    with client_as(daemon, ALICE) as red, client_as(daemon, BOB) as blue, daemon.client() as admin:
        for c, name in ((red, "secret-project"), (blue, "blue-project"), (admin, "of-default")):
            put_all(c, c.namespace(name), items(name, 5, 1000), ack=Ack.WRITTEN)
        answers = {daemon.http(path_of(name))[::2] for name in ("secret-project", "blue-project", "of-default", "absent")}
        assert len(answers) == 1 and answers.pop()[0] == MISSING, "it tells nothing about which exist"
        wait_until(lambda: len(report(admin)) == 3, "all are sampled", 20)
        assert report(admin).keys() == {("red", "secret-project"), ("blue", "blue-project"), ("default", "of-default")}
        assert report(blue).keys() == {("blue", "blue-project")}
        evicted = report(blue)["blue", "blue-project"]["evicted_next"]
        assert {bytes.fromhex(e["key"]) for e in evicted["first"]} == {k for k, _ in items("blue-project", 5, 1000)} and evicted["of"] == 5
        assert "secret" not in blue.report(Report.NAMESPACES)
    out = ctl("namespace", "show", "--tenant", "red", "secret-project", daemon=daemon, check=0).stdout
    assert "evicted next: 5 of the 5 chunks" in out


def test_a_report_of_namespaces_is_refused_with_a_reserved_field(start):
    daemon = start()
    with daemon.client() as c:
        assert c.features & kvwire.FEATURE_NAMESPACE_REPORT
        assert json.loads(c.report(Report.NAMESPACES)) == {"namespaces": [], "sample_seconds": 15, "left_out": 0}
    with daemon.client() as c, pytest.raises((kvwire.Refused, kvwire.SessionEnded)):
        c.call(Op.REPORT, (5).to_bytes(4, "little") + (1).to_bytes(4, "little"), n_fds=1)


def test_work_for_a_page_is_bounded(start):
    """A thousand chunks are visited, however many there are; and pages of a hundred namespaces keep no memory."""
    daemon = start(**{"store.limit": "256MiB", "limits.http_rate": 0})
    with daemon.client() as c:
        ns = c.namespace("llama")
        c.staging()
        for at in range(0, 6000, 500):
            put_all(c, ns, items(f"i{at}", 500, 4096), ack=Ack.WRITTEN)
        for i in range(100):
            c.namespace(f"small-{i}")
        page_of(daemon, "llama")
        assert "Of the 1024 chunks" in page_of(daemon, "llama").text.replace("\u202f", "")
        before = daemon.cpu_seconds()
        for i in range(25):
            page_of(daemon, "llama")
        used = (daemon.cpu_seconds() - before) / 25
        print(f"a page takes {used * 1e3:.2f} ms of processor time")
        assert used < 0.01 * harness.slow(), f"making a page takes {used * 1e3:.1f} ms of processor time"
        for i in range(100):
            assert daemon.http(path_of(f"small-{i}"))[0] == 200
        assert len(report(c)) <= 32 and len(c.report(Report.NAMESPACES)) < 256 << 10


def test_kvcachectl_namespace_show(start):
    daemon = start()
    with daemon.client() as c:
        traffic(c, "llama", 3)
    assert "no namespace 'absent'" in ctl("namespace", "show", "absent", daemon=daemon, check=1).stderr
    assert ctl("namespace", "show", check=USAGE).stderr and ctl("namespace", "show", "a", "b", check=USAGE).stderr
    out = ctl("namespace", "show", "llama", daemon=daemon, check=0).stdout
    assert re.search(r"^chunks +3$", out, re.M)
    assert any(text in out for text in ("There are no samples yet", "The first sample", "minutes ago")), out


@pytest.mark.documents
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_the_page_without_errors(start, browser, width, dark):
    daemon = start()
    daemon.stop()
    daemon.settings["listen.http"] = "127.0.0.1:0"
    daemon.start()
    with daemon.client() as c:
        traffic(c, HOSTILE)
        traffic(c, "x" * 200)
        for name in (HOSTILE, "x" * 200):
            browser.open(daemon.status()["http"] + path_of(name, "&paused"), width=width, dark=dark)
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
            assert browser.evaluate(WIDE) == [] and browser.evaluate(FAINT) == []
            assert browser.evaluate("document.querySelectorAll('figure svg.plot[aria-label]').length") == 3
            assert name[:60] in browser.evaluate("document.querySelector('h1').textContent")
            assert browser.evaluate("document.querySelectorAll('script, [onclick]').length") == 0
    assert browser.complaints == []
