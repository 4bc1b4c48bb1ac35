# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over its debugging pipe: opens a page on a screen of a given width, in light or dark, and collects the browser's
complaints."""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import time

import harness

BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless=new", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check", "--disable-gpu",
         "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--disable-extensions",
         "--disable-sync", "--hide-scrollbars", "--no-sandbox", "--mute-audio", "about:blank"]


def why_not():
    return None if BINARY else "no Chromium is installed (Debian's package chromium)"


class Browser:
    """A browser. `complaints` has the messages of its console, log and audits: errors of scripts and of loading, and violations of the
    Content-Security-Policy."""

    def __init__(self, directory):
        self.complaints = []
        self._events, self._id, self._left = [], 0, b""
        spare = [os.open("/dev/null", os.O_RDONLY)]
        while spare[-1] <= 4:  # 3 and 4 are the browser's ends
            spare.append(os.open("/dev/null", os.O_RDONLY))
        child_in, self._in = os.pipe()
        self._out, child_out = os.pipe()

        def become_3_and_4():
            os.dup2(child_in, 3)
            os.dup2(child_out, 4)

        directory = pathlib.Path(directory)
        with open(directory / "chromium.log", "ab") as log:
            self.process = harness.spawn([BINARY, f"--user-data-dir={directory / 'chromium'}", *FLAGS], stdin=subprocess.DEVNULL,
                                         stdout=log, stderr=log, preexec_fn=become_3_and_4, pass_fds=(3, 4),
                                         env={**os.environ, "HOME": str(directory)})
        for fd in [*spare, child_in, child_out]:
            os.close(fd)
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Audits", "Network"):
            self.call(f"{domain}.enable")

    def _read(self, timeout):
        """Returns one message, or None."""
        deadline = time.monotonic() + timeout
        while b"\0" not in self._left:
            if not select.select([self._out], [], [], max(0, deadline - time.monotonic()))[0]:
                return None
            more = os.read(self._out, 1 << 20)
            if not more:
                raise AssertionError("the browser has ended")
            self._left += more
        message, self._left = self._left.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event):
        method, params = event.get("method"), event.get("params", {})
        if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Audits.issueAdded":
            self.complaints.append(json.dumps(params["issue"]))
        self._events.append(event)

    def call(self, method, **params):
        self._id += 1
        message = {"id": self._id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._in, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60 * harness.slow()
        while (left := deadline - time.monotonic()) > 0:
            reply = self._read(left)
            if reply and reply.get("id") == self._id:
                assert "error" not in reply, f"{method}: {reply['error']}"
                return reply["result"]
            if reply:
                self._note(reply)
        raise AssertionError(f"the browser does not answer {method}")

    def wait_for(self, method, timeout=60):
        """Returns the next event of that name since the previous wait for it."""
        deadline = time.monotonic() + timeout * harness.slow()
        while True:
            for i, event in enumerate(self._events):
                if event.get("method") == method:
                    self._events = self._events[i + 1:]
                    return event["params"]
            event = self._read(max(0, deadline - time.monotonic()))
            assert event, f"{method} within {timeout} s"
            self._note(event)

    def open(self, url, *, width=1280, height=800, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self._events.clear()
        self.call("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired")

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def screenshot(self, path):
        """Takes a picture of the whole page, however long it is."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True,
                         clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1})
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        try:
            self._session = None
            self.call("Browser.close")
            self.process.wait(20 * harness.slow())
        except (OSError, AssertionError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self._in)
        os.close(self._out)
