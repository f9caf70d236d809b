#!/usr/bin/env python3
"""Rules, alerts and runbooks as files: promtool accepts them, its unit tests pass, and they fit together.

Each alert has a severity, a summary, a description, a runbook with the four sections, a unit test in which it fires and
one in which it does not. Each metric that a rule or a panel names is one that the daemon has. Each `numacre` command
that a runbook or a panel tells people to run is one that the command line tool has.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tests"))

from support.daemon import program  # noqa: E402

DASHBOARDS = SOURCE / "dashboards"
RULES = [DASHBOARDS / "rules" / "numacre.recording.yml", DASHBOARDS / "rules" / "numacre.alerts.yml"]
RULE_TESTS = sorted((DASHBOARDS / "tests").glob("*.yml"))
DASHBOARD = DASHBOARDS / "grafana" / "numacre.json"
NAMES = SOURCE / "daemon" / "src" / "metrics" / "names.hpp"
SECTIONS = ["## Meaning", "## Impact", "## Diagnosis", "## Mitigation"]
SKIPPED = 77

faults = []


def check(good, message):
    if not good:
        faults.append(message)
        print(f"FAILED: {message}")


def promtool(*arguments):
    command = ["promtool", *map(str, arguments)]
    outcome = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check(outcome.returncode == 0, f"{' '.join(command)}\n{outcome.stdout}")


def alerts():
    """name -> the text of its rule. Our files have one rule an item of the list at this indentation."""
    text = (DASHBOARDS / "rules" / "numacre.alerts.yml").read_text()
    found = {}
    for rule in re.split(r"^      - ", text, flags=re.MULTILINE)[1:]:
        name = re.match(r"alert: (\w+)\n", rule)
        check(name, f"numacre.alerts.yml has a rule that is no alert: {rule.splitlines()[0]}")
        if name:
            found[name.group(1)] = rule
    return found


def rules_fit_together(found):
    tests = "\n".join(path.read_text() for path in RULE_TESTS)
    # A case is "alertname: X", its time, and then either the alerts that must fire or [].
    cases = re.findall(r"- alertname: (\w+)\n\s+eval_time: \S+\n\s+exp_alerts:( \[\])?", tests)
    for name, rule in found.items():
        severity = re.search(r"^          severity: (\w+)$", rule, re.MULTILINE)
        check(severity and severity.group(1) in ("critical", "warning", "info"), f"{name}: no severity")
        for annotation in ("summary", "description"):
            check(re.search(rf"^          {annotation}: \S", rule, re.MULTILINE), f"{name}: no {annotation}")
        runbook_line = f"          runbook_url: dashboards/runbooks/{name}.md\n"
        check(runbook_line in rule + "\n", f"{name}: runbook_url is not its runbook")
        runbook = DASHBOARDS / "runbooks" / f"{name}.md"
        check(runbook.exists(), f"{name}: {runbook} is missing")
        if runbook.exists():
            lines = runbook.read_text().splitlines()
            check(lines[0] == f"# {name}", f"{runbook} does not begin with the alert's name")
            check([line for line in lines if line.startswith("## ")] == SECTIONS, f"{runbook} must have {SECTIONS}")
        check((name, "") in cases, f"{name}: no unit test in which it fires")
        check((name, " []") in cases, f"{name}: no unit test in which it does not fire")
    for runbook in (DASHBOARDS / "runbooks").glob("*.md"):
        check(runbook.stem in found, f"{runbook} belongs to no alert")
        for target in re.findall(r"\]\((\w+\.md)\)", runbook.read_text()):
            check((runbook.parent / target).exists(), f"{runbook} refers to {target}, which is not there")


def panels():
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def metrics_are_the_daemons():
    declared = set(re.findall(r'"(numacre_[a-z0-9_]+)"', NAMES.read_text()))
    check(declared, f"{NAMES} declares no metric")
    texts = {path.name: path.read_text() for path in RULES + RULE_TESTS}
    texts.update({f"panel {panel['title']}": json.dumps(panel["targets"]) for panel in panels()})
    for where, text in texts.items():
        # Recorded series have colons in their names and alerts no underscore after numacre: neither matches.
        for metric in set(re.findall(r"(?<![\w:])numacre_[a-z0-9_]+(?![\w:])", text)):
            base = re.sub(r"_(bucket|sum|count)$", "", metric)
            check(metric in declared or base in declared, f"{where} names {metric}, which is not in names.hpp")


def commands_are_the_tools():
    texts = {path.name: path.read_text() for path in (DASHBOARDS / "runbooks").glob("*.md")}
    texts.update({f"panel {panel['title']}": panel.get("description", "") for panel in panels()})
    used = {}
    for where, text in texts.items():
        for command in re.findall(r"`numacre ([a-z][^`]*)`", text):
            used.setdefault(tuple(command.split()), []).append(where)
    check(used, "no runbook names a numacre command")
    helps = {}
    for command, where in used.items():
        verb = command[0]
        if verb not in helps:
            helps[verb] = subprocess.run(
                [program("numacre"), verb, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        # The help of an unknown verb is the general one, with status 0.
        known = helps[verb].returncode == 0 and f"Usage: numacre {verb} " in helps[verb].stdout
        check(known, f"{where[0]}: there is no `numacre {verb}`")
        for flag in (word for word in command[1:] if word.startswith("--")):
            check(flag in helps[verb].stdout, f"{where[0]}: `numacre {verb}` has no {flag}")


def main():
    if not shutil.which("promtool"):
        print("SKIPPED: no promtool (apt-get install prometheus)")
        return SKIPPED
    promtool("check", "config", DASHBOARDS / "prometheus.yml")
    promtool("check", "rules", *RULES)
    check(RULE_TESTS, "no unit tests of the rules")
    promtool("test", "rules", *RULE_TESTS)
    found = alerts()
    check(found, "no alerts")
    rules_fit_together(found)
    for panel in panels():
        check(panel.get("description"), f"panel {panel['title']} has no description")
    metrics_are_the_daemons()
    commands_are_the_tools()
    if not faults:
        print(f"{len(found)} alerts, {len(panels())} panels")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
