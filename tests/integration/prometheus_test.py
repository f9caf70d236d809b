#!/usr/bin/env python3
"""A real Prometheus scrapes a live numacred, and every expression of every panel and rule gives data there.

Starts numacred (two synthetic numa nodes), clients that allocate, fail, detach and are killed, and Debian's prometheus
with our rule files. An expression without data is a metric that does not exist, a label that is spelled differently or
a join that matches nothing: each fails the test with the panel's or rule's name.
"""

import json
import math
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.channels import BROADCAST, Client  # noqa: E402
from support.daemon import PATIENCE_SECONDS, Daemon, wait_until  # noqa: E402
from support.numacre_client import STRICT, ClientProcess  # noqa: E402

DASHBOARDS = SOURCE / "dashboards"
SKIPPED = 77
# What is wrong on purpose here. Their `for` is longer than the test, so they are pending.
EXPECTED_ALERTS = ["NumacreAllocationFailures", "NumacreFallbackPages"]

faults = []


def check(good, message):
    if not good:
        faults.append(message)
        print(f"FAILED: {message}", flush=True)
    return good


def run(*command, **more):
    words = [str(word) for word in command]
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)


class Prometheus:
    """A Prometheus of its own: port, storage and end."""

    def __init__(self, folder, target):
        self.folder = folder
        text = (DASHBOARDS / "prometheus.yml").read_text()
        for pattern, replacement in (
            (r"scrape_interval: \S+", "scrape_interval: 1s"),
            (r"evaluation_interval: \S+", "evaluation_interval: 1s"),
            (r"- rules/", f"- {DASHBOARDS}/rules/"),
            (r'targets: \[".*"\]', f'targets: ["{target}"]'),
        ):
            text, replaced = re.subn(pattern, replacement, text)
            assert replaced, f"dashboards/prometheus.yml has no {pattern}"
        self.config = folder / "prometheus.yml"
        self.config.write_text(text)
        checked = run("promtool", "check", "config", self.config)
        check(checked.returncode == 0, f"promtool check config\n{checked.stdout}")
        self.log = open(folder / "prometheus.log", "w+")
        self.process = None
        self._start()

    def _start(self):
        # The port is free when we look and may be taken when Prometheus does: then it ends, and we try another.
        for _ in range(5):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self.config}",
                    f"--storage.tsdb.path={self.folder / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    "--log.level=warn",
                ],
                stdout=self.log,
                stderr=self.log,
            )

            def ready():
                if self.process.poll() is not None:
                    return "ended"
                try:
                    with urllib.request.urlopen(self.url + "/-/ready", timeout=5) as answer:
                        return "ready" if answer.status == 200 else None
                except (urllib.error.URLError, OSError):
                    return None

            if wait_until("Prometheus is ready", ready) == "ready":
                return
        self.log.seek(0)
        raise RuntimeError(f"prometheus does not start:\n{self.log.read()}")

    def get(self, path, **parameters):
        url = f"{self.url}{path}?{urllib.parse.urlencode(parameters, doseq=True)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error).get("error", str(error))) from error

    def query(self, expression):
        """The samples: [(labels, value)]."""
        data = self.get("/api/v1/query", query=expression)
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(sample["metric"], float(sample["value"][1])) for sample in data["result"]]

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE_SECONDS)
        self.log.close()


def gives_data(prometheus, where, expression):
    """The expression is valid and has at least one sample that is a number."""
    try:
        samples = prometheus.query(expression)
    except ValueError as error:
        return check(False, f"{where}: invalid expression: {error}\n    {expression}")
    if not check(samples, f"{where}: no data\n    {expression}"):
        return False
    return check(
        any(not math.isnan(value) for _, value in samples), f"{where}: nothing but NaN\n    {expression}"
    )


class Variables:
    """The dashboard's template variables, resolved as Grafana does it: in order, by their own queries."""

    def __init__(self, prometheus, dashboard):
        # What Grafana computes from the time range and the scrape interval: 4 scrapes at least.
        self.values = {"__rate_interval": "10s", "__interval": "1s", "__range": "60s"}
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "datasource":
                continue
            name = variable["name"]
            query = re.fullmatch(r"label_values\((.+), *(\w+)\)", variable["query"])
            assert query, f"variable {name}: this test knows label_values only, not {variable['query']}"
            selector = self.substitute(query.group(1))
            found = prometheus.get(f"/api/v1/label/{query.group(2)}/values", **{"match[]": selector})
            check(found, f"variable {name}: no values\n    {variable['query']} = {selector}")
            self.values[name] = "|".join(found) if variable["multi"] else (found or [""])[0]
            print(f"variable {name}: {self.values[name]}")

    def substitute(self, expression):
        def value(match):
            name = match.group(1) or match.group(2)
            # In the text of label_replace, $1 is a group of its regular expression.
            return self.values[name] if not name.isdigit() else match.group(0)

        return re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, expression)


def panels_give_data(prometheus, dashboard, variables):
    count = 0
    for panel in dashboard["panels"]:  # rows have no targets
        for target in panel.get("targets") or []:
            where = f"panel {panel['id']} \"{panel['title']}\" {target['refId']}"
            gives_data(prometheus, where, variables.substitute(target["expr"]))
            count += 1
    check(count > 0, "the dashboard has no expressions")
    return count


def rules_give_data(prometheus):
    groups = prometheus.get("/api/v1/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    check({rule["type"] for rule in rules} == {"recording", "alerting"}, "Prometheus has not loaded both rule files")
    for rule in rules:
        where = f"{rule['type']} rule {rule['name']}"
        check(rule["health"] == "ok", f"{where}: {rule['health']}: {rule.get('lastError', '')}")
        if rule["type"] == "recording":
            gives_data(prometheus, where, rule["query"])
            gives_data(prometheus, where, rule["name"])
            continue
        # An alert has no data while all is well: its comparison is false. What it compares must be there.
        selectors = re.findall(r"(?:(?<![\w:])(?:numacre[\w:]*)|\bup)(?:\{[^}]*\})?", rule["query"])
        check(selectors, f"{where}: names no metric: {rule['query']}")
        for selector in selectors:
            gives_data(prometheus, where, selector)
    return len(rules)


def settle(prometheus, killed):
    """Enough scrapes for rates, rules evaluated on top of them, and the dead client counted."""
    wait_until("the scrape works", lambda: prometheus.query('up{job="numacre"} == 1'))
    wait_until("ten scrapes", lambda: prometheus.query('count_over_time(up{job="numacre"}[5m]) > 10'))
    wait_until(
        f"client {killed} is gone from the metrics",
        lambda: not prometheus.query(f'numacre_client_info{{client="{killed}"}}'),
    )
    wait_until(
        "a client that did not detach is counted",
        lambda: prometheus.query('sum(numacre_clients_reaped_total{cause!="detached"}) >= 1'),
    )
    failing = "sum(rate(numacre_allocation_failures_total[10s])) > 0"
    wait_until("failed allocations are counted", lambda: prometheus.query(failing))
    # A rule is evaluated a second at most after what it reads has come.
    wait_until("recorded series", lambda: prometheus.query("numacre:cas_retries_per_allocation:rate5m"))
    wait_until("recorded series", lambda: prometheus.query("numacre:numa_miss:ratio_rate5m"))
    for alert in EXPECTED_ALERTS:
        wait_until(f"{alert} is pending", lambda: prometheus.query(f'ALERTS{{alertname="{alert}"}}'))


def main():
    missing = [program for program in ("prometheus", "promtool") if not shutil.which(program)]
    if missing:
        print(f"SKIPPED: no {' and no '.join(missing)} (apt-get install prometheus)")
        return SKIPPED
    dashboard = json.loads((DASHBOARDS / "grafana" / "numacre.json").read_text())
    with tempfile.TemporaryDirectory(prefix="numacre-prometheus-") as name:
        folder = pathlib.Path(name)
        prometheus = None
        channels = []
        clients = []
        # Small pages on purpose: the alert on them must see them, whatever hugepages the machine has.
        daemon = Daemon(
            "--topology", "synthetic:2x512M",
            "--pool", "name=default,capacity=64M,online=32M,frame=4K,largest=4M,backing=small",
            "--metrics-address", "127.0.0.1:0",
        )  # fmt: skip
        try:
            target = daemon.metrics_address
            victim = ClientProcess(daemon.runtime_dir)
            clients.append(victim)
            polite = ClientProcess(daemon.runtime_dir)
            clients.append(polite)
            worker = ClientProcess(daemon.runtime_dir)
            clients.append(worker)

            error, _ = victim.alloc(64 << 10, count=20)
            check(error == 0, f"client's allocation of 20 blocks of 64 KiB: {error} {victim.message}")
            error, _ = polite.alloc(4096, count=50, numa_node=1)
            check(error == 0, f"client's allocation of 50 frames on node 1: {error} {polite.message}")
            # Two failures that stay failures: above the largest block; and node 0 cannot hold a ninth block of 4 MiB.
            worker.fail(8 << 20, 0, 0)
            error, _ = worker.alloc(4 << 20, count=9, numa_node=0, flags=STRICT)
            check(error < 0, "nine blocks of 4 MiB fitted into 32 MiB")
            worker.fail(4 << 20, 0, STRICT)
            # Asked for node 0, which is full by now: served by node 1, a numa miss.
            worker.churn([4096, 8192, 64 << 10, 1 << 20], [0, 1])
            killed = victim.client_id
            # A queue and a broadcast channel, each with a client that may send and receive, and does neither.
            for name, flags in (("frames", 0), ("news", BROADCAST)):
                channels.append(client := Client(daemon, "open", flags, channel=name))
                said = client.line()
                check(said == "0 open", f"channel_client says {said!r}")
            victim.kill()
            polite.detach()

            prometheus = Prometheus(folder, target)
            settle(prometheus, killed)

            with urllib.request.urlopen(f"http://{target}/metrics", timeout=PATIENCE_SECONDS) as answer:
                scrape = answer.read().decode()
            linted = run("promtool", "check", "metrics", input=scrape)
            check(linted.returncode == 0, f"promtool check metrics\n{linted.stdout}")

            variables = Variables(prometheus, dashboard)
            expressions = panels_give_data(prometheus, dashboard, variables)
            rules = rules_give_data(prometheus)
            for alert in ("NumacreDown", "NumacrePoolCorrupt"):
                active = prometheus.query(f'ALERTS{{alertname="{alert}"}}')
                check(not active, f"{alert} is pending or firing though all is well: {active}")

            # The other half of NumacreDown, for real.
            status = daemon.stop()
            check(status == 0, f"numacred ended with {status} after SIGTERM")
            wait_until(
                "Prometheus sees that the daemon is away", lambda: prometheus.query('ALERTS{alertname="NumacreDown"}')
            )
            print(f"{expressions} panel expressions and {rules} rules evaluated")
        except Exception:
            print(f"numacred's log:\n{daemon.log()}")
            raise
        finally:
            for client in clients:
                client.close()
            for channel in channels:
                channel.kill()
            if prometheus:
                prometheus.stop()
            daemon.stop()
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
