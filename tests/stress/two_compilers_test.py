#!/usr/bin/env python3
"""Processes of two builds, by two compilers, on one region at once (two_compilers.cpp).

usage: two_compilers_test.py [--expect-fault] THIS_BUILD OTHER_BUILD OTHER_COMPILER
OTHER_BUILD: none if there is no such compiler. --expect-fault: one build misplaces the leaf words, and the test must
notice: otherwise it would notice nothing else either. NUMACRE_SEED, NUMACRE_SECONDS in the environment.
"""
import os
import re
import subprocess
import sys
import tempfile

PROCESSES_EACH = 3
PATIENCE_SECONDS = 90  # a hang is a failure with a name


def run(command):
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    return result.returncode, result.stdout + result.stderr


def shared_memory():
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def work_together(builds, region, seconds, seed, fault):
    """What is wrong, one line each; and the workers' own lines."""
    total = PROCESSES_EACH * len(builds)
    workers = []
    for number in range(1, total + 1):
        build = builds[number % len(builds)]
        command = [build, "work", region, str(number), str(total), str(seconds), str(seed)]
        if fault and build == builds[1]:
            command.append("fault")
        workers.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    wrong, lines = [], []
    for worker in workers:
        try:
            output, _ = worker.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            worker.kill()
            output, _ = worker.communicate()
            wrong.append(f"{' '.join(worker.args)}: hangs")
            continue
        lines += output.splitlines()
        if worker.returncode != 0:
            said = output.strip() or f"ended with status {worker.returncode}"
            wrong.append(f"{os.path.basename(worker.args[0])}: {said}")
    return wrong, lines


def main():
    expect_fault = "--expect-fault" in sys.argv
    this_build, other_build, other_compiler = [a for a in sys.argv[1:] if a != "--expect-fault"]
    if other_build == "none":
        print(f"SKIPPED: {other_compiler} is not on this machine, so no second build works on the region; nothing was "
              "tested")
        return 77
    seed = int(os.environ.get("NUMACRE_SEED", "20261120"), 0)
    seconds = float(os.environ.get("NUMACRE_SECONDS", "2.5"))
    print(f"replay: NUMACRE_SEED={seed} NUMACRE_SECONDS={seconds}")
    builds = [this_build, other_build]
    with tempfile.TemporaryDirectory(dir=shared_memory()) as folder:
        region = os.path.join(folder, "region")
        status, output = run([this_build, "format", region])
        if status != 0:
            print(output)
            return 1
        wrong, lines = work_together(builds, region, seconds, seed, expect_fault)
        print("\n".join(lines))
        if not wrong:
            for build in builds + builds:  # each finds in order what the other leaves behind
                status, output = run([build, "check", region])
                if status != 0:
                    wrong.append(output.strip() or f"check: status {status}")
            for name in ("gcc", "clang"):
                taken = sum(int(count) for line in lines for count in
                            re.findall(rf"^{name} process .*?(\d+) blocks from the other build", line))
                if taken == 0:
                    wrong.append(f"no {name} process took a block of the other build: the hand-over was not tested")
    if expect_fault:
        print("noticed:" if wrong else "NOT NOTICED: one build's leaf words lie elsewhere", "; ".join(wrong))
        return 0 if wrong else 1
    for line in wrong:
        print("WRONG:", line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
