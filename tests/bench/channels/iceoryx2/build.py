#!/usr/bin/env python3
"""Builds iceoryx2's part of channel_bench.   usage: build.py TARGET_DIRECTORY

Exit status: 0 built; 77 there is no cargo, or the sources of iceoryx2 cannot be had; 1 the build failed.
"""

import pathlib
import shutil
import subprocess
import sys

SKIPPED = 77


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    cargo = shutil.which("cargo")
    if cargo is None:
        print("SKIP of iceoryx2 in channel_bench: there is no cargo")
        return SKIPPED
    # cargo writes its lock file beside the manifest: into the build, not into the tree.
    target = pathlib.Path(sys.argv[1])
    crate = target / "crate"
    shutil.copytree(pathlib.Path(__file__).resolve().parent, crate, dirs_exist_ok=True)
    manifest = ["--manifest-path", str(crate / "Cargo.toml")]
    fetched = subprocess.run([cargo, "fetch", *manifest], stderr=subprocess.PIPE, text=True)
    if fetched.returncode != 0:
        print(f"SKIP of iceoryx2 in channel_bench: its sources cannot be had:\n{fetched.stderr}")
        return SKIPPED
    return subprocess.run([cargo, "build", "--release", "--offline", *manifest, "--target-dir", str(target)]).returncode


if __name__ == "__main__":
    sys.exit(main())
