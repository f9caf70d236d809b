#!/usr/bin/env python3
"""Runs a program beside a numacred of its own.   usage: with_daemon.py POOL_SPEC PROGRAM [ARGUMENT ...]

The program finds the daemon by NUMACRE_RUNTIME_DIR; its exit status is ours, unless it left blocks behind.
"""

import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from support.daemon import Daemon, wait_until  # noqa: E402


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    with Daemon("--pool", sys.argv[1]) as daemon:
        status = subprocess.run(sys.argv[2:], env={**os.environ, "NUMACRE_RUNTIME_DIR": daemon.runtime_dir}).returncode
        if status != 0:
            print(f"numacred's log:\n{daemon.log()}", file=sys.stderr)
            sys.exit(status)
        wait_until("the program left no block behind", lambda: daemon.used_bytes() == 0)


if __name__ == "__main__":
    main()
