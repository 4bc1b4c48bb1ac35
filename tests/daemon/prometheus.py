# SPDX-License-Identifier: Apache-2.0
"""Runs a real Prometheus that scrapes daemons under test, with scaled time: the rules' durations are divided by a factor, and scraping and
evaluation are as much more frequent, so that an hour of alerts takes seconds. Prometheus is a process with its own folder and port, and ends
with the block. It comes from the distribution; without it, tests skip."""

import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import pytest

import harness

UNITS_MS = {"ms": 1, "s": 1000, "m": 60000, "h": 3600000, "d": 86400000}
DURATION = re.compile(r"(\[|\bfor: )(\d+)(ms|s|m|h|d)\b")


def scale(text, factor):
    """Divides the ranges (`[5m]`) and waiting times (`for: 5m`) of rules or a query by the factor, and leaves names unchanged."""
    return DURATION.sub(lambda m: f"{m[1]}{max(int(m[2]) * UNITS_MS[m[3]] // factor, 1)}ms", text)


def free_port():
    """Returns a port that was free a moment ago."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Prometheus:
    """Scrapes {job: {instance: port}}. `rules` is the text of a rules file, already scaled; `token_file` is that of the daemons; `features` are
    Prometheus features to enable."""

    def __init__(self, directory, jobs, rules="", interval_ms=250, token_file=None, features=()):
        self.program = shutil.which("prometheus")
        if not self.program:
            pytest.skip("prometheus is not installed")
        self.directory, self.jobs, self.features = directory, jobs, features
        self.port = free_port()
        self.directory.mkdir()
        (self.directory / "rules.yaml").write_text(rules or "groups: []\n")
        authorization = {"authorization": {"credentials_file": str(token_file)}} if token_file else {}
        (self.directory / "prometheus.yaml").write_text(json.dumps({
            "global": {"scrape_interval": f"{interval_ms}ms", "scrape_timeout": f"{interval_ms}ms",
                       "evaluation_interval": f"{interval_ms}ms"},
            "rule_files": [str(self.directory / "rules.yaml")],
            "scrape_configs": [{"job_name": job, **authorization, "static_configs": [
                {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}} for name, port in targets.items()]}
                for job, targets in jobs.items()]}))

    def __enter__(self):
        while not self._start():
            self.__exit__()
            self.port = free_port()
        return self

    def _start(self):
        """Returns False if another process has taken the port meanwhile."""
        self.log = open(self.directory / "log", "wb")
        self.process = harness.spawn(
            [self.program, f"--config.file={self.directory}/prometheus.yaml", f"--storage.tsdb.path={self.directory}/data",
             f"--web.listen-address=127.0.0.1:{self.port}", "--query.lookback-delta=5s",
             *(f"--enable-feature={feature}" for feature in self.features)],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        try:
            count = sum(len(targets) for targets in self.jobs.values())
            harness.wait_until(lambda: self.has_no_port() or len(self.query("up == 1")) == count,
                               lambda: f"all daemons are scraped\n{self.said()}", 30)
        except BaseException:
            self.__exit__()
            raise
        return not self.has_no_port()

    def has_no_port(self):
        return self.process.poll() is not None and "address already in use" in self.said()

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def said(self):
        return (self.directory / "log").read_text()[-4000:]

    def query(self, expression):
        """Returns the result of an instant query: a list of (labels, value). Empty while Prometheus cannot be reached."""
        assert self.process.poll() is None, f"prometheus ended with {self.process.returncode}:\n{self.said()}"
        url = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(url, timeout=30) as reply:
                result = json.load(reply)["data"]["result"]
        except urllib.error.HTTPError as e:
            if e.code == 503:  # Prometheus is starting
                return []
            raise AssertionError(f"{expression}: {e.read().decode()}") from None
        except urllib.error.URLError:
            return []
        return [(r["metric"], float(r["value"][1])) for r in result]

    def value(self, expression):
        """Returns the value of a query that has one result, or None."""
        found = self.query(expression)
        return found[0][1] if len(found) == 1 else None

    def firing(self, over=None):
        """Returns {(alert, instance)} of the alerts that fire now, or fired at any time of the last `over`; an alert on a whole job has its name
        as the instance."""
        alerts = 'ALERTS{alertstate="firing"}'
        found = self.query(f"last_over_time({alerts}[{over}])" if over else alerts)
        return {(m["alertname"], m.get("instance", m["job"])) for m, _ in found}
