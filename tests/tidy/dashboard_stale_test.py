#!/usr/bin/env python3
"""The checked-in Grafana dashboard is what dashboards/build.py writes.

Makes a virtual environment of its own under $NUMACRE_BUILD_DIR (kept for the next run) with the pinned package. Without
a package index to get it from the test is skipped, and says so.
"""

import difflib
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
DASHBOARDS = SOURCE / "dashboards"
SKIPPED = 77


def environment(requirements):
    """The Python of a virtual environment that has exactly these requirements, or None if they cannot be had."""
    build = os.environ.get("NUMACRE_BUILD_DIR")
    parent = pathlib.Path(build) if build else pathlib.Path(tempfile.gettempdir())
    # Another pin is another folder: an environment is either complete or not there.
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    venv = parent / f"dashboard-venv-{digest}"
    python = venv / "bin" / "python"
    complete = venv / "complete"
    if complete.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--retries", "1", "-r", str(requirements)]
    outcome = subprocess.run(install, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if outcome.returncode != 0:
        print(outcome.stdout)
        return None
    complete.touch()
    return python


def main():
    if sys.version_info < (3, 11):
        print(f"SKIPPED: grafana-foundation-sdk needs Python 3.11, this is {sys.version.split()[0]}")
        return SKIPPED
    requirements = DASHBOARDS / "requirements.txt"
    try:
        python = environment(requirements)
    except subprocess.CalledProcessError as error:
        print(f"SKIPPED: no virtual environment (apt-get install python3-venv): {error}")
        return SKIPPED
    if python is None:
        pin = requirements.read_text().strip()
        print(f"SKIPPED: {pin} cannot be installed here, so nobody knows if numacre.json is stale")
        return SKIPPED

    checked_in = (DASHBOARDS / "grafana" / "numacre.json").read_text(encoding="utf-8")
    built = subprocess.run(
        [str(python), str(DASHBOARDS / "build.py"), "--output", "-"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    if built == checked_in:
        print("dashboards/grafana/numacre.json is what dashboards/build.py writes")
        return 0
    difference = difflib.unified_diff(
        checked_in.splitlines(), built.splitlines(), "dashboards/grafana/numacre.json", "build.py's output", lineterm=""
    )
    print("\n".join(list(difference)[:60]))
    print(f"FAILED: dashboards/grafana/numacre.json is stale; run: {python} {DASHBOARDS / 'build.py'}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
