# SPDX-License-Identifier: Apache-2.0
"""The page at "/", as HTTP returns it and as a browser shows it: it agrees with /status and /history, is well-formed and short, shows names of
clients as text, and loads and runs nothing. tests/unit/test-page.c tests what depends on the status alone."""

import base64
import hashlib
import html.parser
import json
import re
import urllib.request

import pytest

import harness
from browser import Browser, why_not
from harness import get_all, items, key_of, put_all, wait_until
from kvwire import Ack, Op
from kvwire_messages import NAMESPACE

HOSTILE = "<script>alert(1)</script><b onclick='x'>&amp;\"</b></table></main>"
VOID = {"meta", "link", "br"}


class Page(html.parser.HTMLParser):
    """Parses the page, checks that elements are closed in the order in which they were opened, and counts them."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.texts, self.values = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"
        self.text = "".join(self.texts)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "data":
            self.values.append(float(dict(attrs)["value"]))

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> where {self.open} are open"
        self.open.pop()

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)


def page_of(daemon, path="/"):
    status, _, body = daemon.http(path)
    assert status == 200
    return Page(body.decode())


@pytest.fixture
def start(make_daemon):
    def start(**settings):
        daemon = make_daemon(settings=settings)
        daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"
        return daemon.start()
    return start


def traffic(client, name="llama", count=50):
    """Puts, lookups of which some miss, and gets."""
    ns = client.namespace(name)
    pairs = items(name, count, 20000)
    keys = [k for k, _ in pairs]
    put_all(client, ns, pairs, ack=Ack.WRITTEN)
    client.exists(ns, keys + [key_of("none", i) for i in range(count)])
    get_all(client, ns, keys)


def test_headers_permit_nothing_but_the_style(start):
    daemon = start()
    for path in ("/", "/?paused"):
        status, headers, body = daemon.http(path)
        style = re.search(rb"<style>(.*?)</style>", body, re.S)[1]
        digest = base64.b64encode(hashlib.sha256(style).digest()).decode()
        assert status == 200 and headers["content-security-policy"] == (
            f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"), (
            f"STYLE_HASH of daemon/report/style.h is sha256-{digest}")
        assert headers["content-type"] == "text/html; charset=utf-8"
        elements = Page(body.decode()).elements
        assert not [(tag, a) for tag, a in elements if tag in ("script", "img", "iframe", "link", "form", "object") or
                    any(name in ("style", "src") or name.startswith("on") for name in a)]
        assert {a["href"] for tag, a in elements if "href" in a} <= {"status", "history", "metrics", "healthz", "readyz", "?paused",
                                                                     "./"}
    for path in ("/", "/status", "/history", "/metrics", "/healthz", "/nothing"):
        _, headers, _ = daemon.http(path)
        assert (headers["cache-control"], headers["x-content-type-options"], headers["referrer-policy"]) == (
            "no-store", "nosniff", "no-referrer"), path


def test_the_page_reloads_unless_paused(start):
    daemon = start()
    reload = ("meta", {"http-equiv": "refresh", "content": "10"})
    assert reload in page_of(daemon).elements and ("details", {}) in page_of(daemon).elements
    paused = page_of(daemon, "/?paused")
    assert reload not in paused.elements and ("details", {"open": None}) in paused.elements


def test_the_pages_values_equal_those_of_the_status(start):
    daemon = start()
    daemon.populated_status()
    with daemon.client() as c:
        traffic(c)
        c.evict(c.namespace("llama"), [k for k, _ in items("llama", 20, 20000)])

        def of_one_moment():
            """Returns a page and the status before it, if no figure changed meanwhile: an idle daemon still preformats segments."""
            before, page, after = (json.loads(daemon.http("/status")[2]), page_of(daemon), json.loads(daemon.http("/status")[2]))
            return before["store"] == after["store"] and before["pool"] == after["pool"] and (before, page)

        status, page = wait_until(of_one_moment, "a page and a status of one moment")
    volume, pool, namespace = status["store"]["volumes"][0], status["pool"], status["namespaces"][0]
    assert status["store"]["chunks"] == 30 and namespace["lookup_found_keys"] == 50
    for value in (status["store"]["chunks"], pool["chunks"], pool["live_bytes"], pool["used_bytes"], pool["bytes"],
                  volume["live_bytes"], volume["reserved_bytes"], volume["limit_bytes"], namespace["bytes"], 0.5):
        assert value in page.values, value
    bars = [a["aria-label"] for tag, a in page.elements if a.get("class") == "bar"]
    assert len(bars) == 2 and bars[0].startswith("live ") and bars[0].endswith(" of 32 MiB") and bars[1].endswith(" of 128 MiB")
    assert volume["volume"] in page.text and "llama" in page.text


def test_the_history_counts_operations(start):
    daemon = start()
    with daemon.client() as c:
        traffic(c)

        def samples():
            history = json.loads(daemon.http("/history")[2])
            assert (history["interval_seconds"], history["span_seconds"]) == (5, 900)
            return history["samples"]

        def total(name):
            return sum(sample[name] for sample in samples())

        wait_until(lambda: total("put_bytes") == 50 * 20000 and total("get_keys") == 50, "a sample has been taken", 15)
        totals = daemon.status()["totals"]
        assert (total("lookup_keys"), total("lookup_found_keys")) == (totals["lookup_keys"], totals["lookup_found_keys"]) == (100, 50)
        assert (total("get_found_keys"), total("get_bytes")) == (50, totals["bytes_got"]) == (50, 50 * 20000)
        assert total("disk_written_bytes") >= 50 * 20000
        with_gets = [s for s in samples() if s["get_keys"]]
        assert all(0 < s["get_p50_seconds"] <= s["get_p99_seconds"] < 60 for s in with_gets)
        for sample, later in zip(samples(), samples()[1:]):
            assert sample["age_seconds"] > later["age_seconds"] and 4 < later["span_seconds"]
        text = page_of(daemon).text
        assert "Hit ratio, 15 min50.0" in text
        # A quantile is the edge of its bucket, which is up to 12.5 % wide.
        assert len(re.findall(r"p(?:50|99)\s*(?:–|≤[\d.]+\s[µm]?s)\s*highest\s≤[\d.]+\s[µm]?s", text)) == 4, text


def test_names_from_clients_are_text(start):
    daemon = start()
    with daemon.client() as c:
        put_all(c, c.namespace(HOSTILE, fingerprint=f"model={HOSTILE}\n"), items("x", 1, 1000), ack=Ack.WRITTEN)
        for path in ("/", "/?paused"):
            page = page_of(daemon, path)
            assert HOSTILE in page.text
            assert not [tag for tag, attributes in page.elements if tag in ("script", "img") or "onclick" in attributes]


def test_a_suspended_volume_is_reported_first(start, directory):
    paths = [directory / "v0", directory / "v1"]
    daemon = start(**{"store.path": ",".join(map(str, paths))})
    harness.ctl("device", "suspend", paths[1], daemon=daemon, check=0)
    page = page_of(daemon)
    assert page.text.index(f"volume {paths[1]} is suspended by an admin") < page.text.index("Hit ratio")
    assert "Resume it when the work on it is done." in page.text
    assert f"kvcachectl device resume {paths[1]}" in page.text and f"resume {paths[0]}" not in page.text
    assert "✓ up" in page.text and "⚠ suspended" in page.text


def test_thousands_of_namespaces_make_the_page_neither_long_nor_slow(start):
    daemon = start(**{"limits.uid_namespaces": 4096})
    count = 2000
    names = [f"{i:04}-{'&' * 100}" for i in range(count)]
    fingerprint = f"model={'m' * 1000}\n".encode()
    for low in range(0, count, 200):
        with daemon.client() as c:
            for at in range(low, low + 200, 40):
                tags = [c.submit(Op.NAMESPACE, NAMESPACE.pack(0, len(n), len(fingerprint), 0) + n.encode() + fingerprint)
                        for n in names[at:at + 40]]
                for tag in tags:
                    c.wait(tag)
    with daemon.client() as c:
        c.staging()
        for i, name in enumerate(names[-25:]):
            c.put(c.namespace(name, fingerprint), items(f"n{i}", i + 1, 1000), ack=Ack.WRITTEN)
    body = daemon.http("/")[2]
    page = Page(body.decode())
    assert len(body) < 128 << 10
    assert re.findall(r"(\d{4})-&{75}…", page.text) == [f"{i:04}" for i in range(count - 1, count - 21, -1)]
    assert "and 1980 more" in page.text.replace("\u202f", "")

    before = daemon.cpu_seconds()
    for _ in range(25):
        daemon.http("/")
    used = (daemon.cpu_seconds() - before) / 25
    assert used < 0.02 * harness.slow(), f"making a page takes {used * 1e3:.1f} ms of processor time"


def test_several_tenants_are_listed_and_their_namespaces_are_not(make_daemon, directory):
    config = directory / "tenants.yaml"
    config.write_text("tenants:\n  - {name: red, users: [20001], pool: 16MiB}\n")
    daemon = make_daemon(config=config)
    daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"
    daemon.start()
    with daemon.client() as c:
        put_all(c, c.namespace("secret-project"), items("x", 1, 1000), ack=Ack.WRITTEN)
    page = page_of(daemon)
    assert "red" in page.text and "secret-project" not in page.text
    assert "Their names are not shown over HTTP" in page.text


# --- in a browser ---

# Finds text whose contrast to its background is below 4.5, the limit of WCAG's AA.
FAINT = """(() => {
    const channel = v => (v /= 255, v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const parse = c => c.match(/[\\d.]+/g).map(Number);
    const light = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
    const behind = e => {
        for (; e; e = e.parentElement) {
            const c = parse(getComputedStyle(e).backgroundColor);
            if (c.length < 4 || c[3] == 1) return c;
        }
        return [255, 255, 255];
    };
    const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const e = walk.currentNode.parentElement;
        if (!walk.currentNode.data.trim() || e.closest('style')) continue;
        const style = getComputedStyle(e), back = behind(e);
        const front = parse(e.closest('svg') ? style.fill : style.color);
        const a = light(front), b = light(back), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) found.push([walk.currentNode.data.trim().slice(0, 40), ratio]);
    }
    return found;
})()"""

# Finds elements that extend beyond the edge of the page, except those within a scrolling box.
WIDE = """[...document.querySelectorAll('body *')].filter(e => !e.closest('.wide') && !e.closest('.defs')
    && e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5).map(e => e.outerHTML.slice(0, 120))"""

TILES = "Object.fromEntries([...document.querySelectorAll('.tiles div')].map(d => [d.querySelector('dt').textContent," \
        " d.querySelector('data') && +d.querySelector('data').value]))"


@pytest.fixture
def browser(directory):
    reason = why_not()
    if reason:
        pytest.skip(reason)
    browser = Browser(directory)
    yield browser
    browser.close()


@pytest.fixture
def seen(start, directory):
    """Provides a daemon over TCP with traffic, a suspended volume, and a namespace with a hostile name; and its address."""
    daemon = start(**{"store.path": f"{directory / 'v0'},{directory / 'v1'}"})
    daemon.stop()
    daemon.settings["listen.http"] = "127.0.0.1:0"
    daemon.start().populated_status()
    with daemon.client() as c:
        traffic(c, "meta-llama/Llama-3.1-70B-Instruct")
        traffic(c, HOSTILE)
        traffic(c, "x" * 200)
    harness.ctl("device", "suspend", directory / "v1", daemon=daemon, check=0)
    daemon.url = daemon.status()["http"] + "/"
    return daemon


@pytest.mark.documents
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_the_page_without_errors(seen, browser, width, dark):
    for path in ("", "?paused"):
        browser.open(seen.url + path, width=width, dark=dark)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.evaluate(WIDE) == [] and browser.evaluate(FAINT) == []
        assert browser.evaluate("getComputedStyle(document.querySelector('.health')).borderLeftWidth") == "5px", "the style is applied"
        assert browser.evaluate("document.querySelectorAll('figure svg.plot[aria-label]').length") == 6
        assert browser.evaluate("document.querySelectorAll('script, [onclick]').length") == 0
        assert HOSTILE in browser.evaluate("[...document.querySelectorAll('bdi')].map(e => e.textContent)")
    assert browser.evaluate("document.querySelector('details').open")
    assert browser.complaints == []


@pytest.mark.documents
def test_a_browser_shows_the_status(seen, browser):
    def get_status():
        return json.loads(urllib.request.urlopen(seen.url + "status", timeout=20).read())

    wait_until(lambda: get_status()["sessions"]["connections"] == 0, "the clients before have left")
    browser.open(seen.url)
    tiles, status = browser.evaluate(TILES), get_status()
    assert tiles["Chunks on disk"] == status["store"]["chunks"]
    assert tiles["Chunks in memory"] == status["pool"]["chunks"] == 150
    assert tiles["Clients"] == status["sessions"]["connections"] == 0
    assert tiles["Not on disk yet"] == status["pool"]["unwritten_bytes"] == 0
    live, reserved = (browser.evaluate(f"[...document.querySelectorAll('.bar .{part}')].map(e => e.getBoundingClientRect().width /"
                                       f" e.parentElement.getBoundingClientRect().width)") for part in ("live", "reserved"))
    pool = status["pool"]
    assert live[0] == pytest.approx(pool["live_bytes"] / pool["bytes"], abs=0.01)
    assert reserved[0] == pytest.approx(pool["used_bytes"] / pool["bytes"], abs=0.01)


@pytest.mark.documents
def test_reloading_keeps_the_scroll_position(seen, browser):
    browser.open(seen.url, height=300)
    browser.evaluate("window.scrollTo(0, 400); window.first = true")
    browser.wait_for("Page.loadEventFired", 30)
    assert browser.evaluate("window.first") is None, "it is another one"
    wait_until(lambda: browser.evaluate("window.scrollY") == 400, "it is scrolled to the same place", 5)
    assert browser.complaints == []
