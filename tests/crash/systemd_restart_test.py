#!/usr/bin/env python3
"""numacred under a real systemd, as its own unit file has it: restarted, killed, stopped; its pools and clients outlive
that.

usage: systemd_restart_test.py [SECONDS]      all of it has ended by then, one way or another

A guest of QEMU (support/guest.py) whose init is the systemd that is installed on this machine; systemd_guest_checks
says what happens in it. Exit status 77: QEMU, systemd, busybox or the kernel (`multinode_test.py kernel`) cannot be
had.
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from support import guest  # noqa: E402
from support.guest import BIN, BUILD, KERNEL, deadline  # noqa: E402

UNIT = HERE.parents[1] / "deploy" / "systemd" / "numacred.service.in"
SYSTEMD = pathlib.Path("/lib/systemd/systemd")
# What is between nothing and multi-user.target.
TARGETS = "sysinit basic multi-user local-fs local-fs-pre sockets timers paths slices shutdown umount final".split()
MIB = 1 << 20
# Lines "ok ..." of systemd_guest_checks.
LEAST_CHECKS = 60
MACHINE = ["-smp", "2", "-m", "768M"]

CONFIGURATION = """
[[pool]]
name = "huge"
capacity = "64M"
online = "32M"
frame = "4K"
largest = "4M"
[[pool]]
name = "open"
capacity = "16M"
online = "16M"
mode = "0666"
"""

CHECKS_UNIT = """
[Unit]
Description=what is done to numacred
[Service]
Type=simple
ExecStart=/bin/guest_checks
KillMode=process
"""

# The only thing that the product's unit is not asked to do as it is: there is no journal.
LOG_TO_FILE = """
[Service]
StandardOutput=append:/run/numacred.log
StandardError=append:/run/numacred.log
"""


def write_root(archive):
    for folder in ("dev", "proc", "sys", "run", "tmp", "var/tmp", "root", "home", "mnt"):
        archive.add(folder, mode=guest.FOLDER_MODE)
    archive.add_shell()
    archive.add_programs([BIN / "numacred", BIN / "numacre", BUILD / "test-bin" / "steady_client",
                          pathlib.Path(guest.wanted_program("systemctl"))])
    archive.add_programs([SYSTEMD], folder="lib/systemd")
    archive.add("init", (HERE / "systemd_guest_init").read_bytes())
    archive.add("bin/guest_checks", (HERE / "systemd_guest_checks").read_bytes())
    texts = {
        "etc/passwd": "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
        "etc/group": "root:x:0:\nnobody:x:65534:\n",
        "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
        "etc/os-release": "ID=guest\n",
        "etc/numacre/numacred.toml": CONFIGURATION,
        "lib/systemd/system/numacred.service": UNIT.read_text().replace("@NUMACRE_BINDIR@", "/bin"),
        "etc/systemd/system/numacred.service.d/log.conf": LOG_TO_FILE,
        "etc/systemd/system/checks.service": CHECKS_UNIT,
    }
    for target in TARGETS:
        texts[f"lib/systemd/system/{target}.target"] = (SYSTEMD.parent / "system" / f"{target}.target").read_text()
    for name, text in texts.items():
        archive.add(name, text.encode(), mode=guest.TEXT)
    archive.add("etc/systemd/system/multi-user.target.wants/checks.service", b"../checks.service", mode=guest.LINK)


def seats(document):
    return {each["client_id"]: (each["pool"], each["pid"], each["used_bytes"]) for each in document["clients"]}


def pool(document, name):
    (found,) = [each for each in document["pools"] if each["name"] == name]
    return found


def differences(lines):
    """What the control plane said that is not so."""
    said = guest.documents(lines)
    before = seats(said["attached"])
    if sorted(each[0] for each in before.values()) != ["huge", "huge", "open"]:
        yield f"attached: {before}"
    survivors = {client: seat for client, seat in before.items() if client != 2}
    for name, wanted in (("restarted", before), ("killed", survivors), ("guarded", survivors), ("clean", {})):
        if seats(said[name]) != wanted:
            yield f"{name}: clients {seats(said[name])} instead of {wanted}"
    # Pool huge: what is online, and what is used of that.
    one = before[1][2]
    for name, online_mib, used in (
        ("grown", 40, 2 * one),
        ("shrunk", 36, 2 * one),
        ("restarted_pools", 36, 2 * one),
        ("killed_pools", 36, one),
        ("clean_pools", 32, 0),
    ):
        found = pool(said[name], "huge")
        if (found["online_bytes"], found["used_bytes"]) != (online_mib * MIB, used):
            yield (f"{name}: {found['online_bytes']} bytes online, {found['used_bytes']} used; "
                   f"not {online_mib} MiB, {used}")
        if found["nodes"][0]["backing"] != "hugetlb" or found["state"] != "serving":
            yield f"{name}: {found['state']}, on {found['nodes'][0]['backing']} memory"


def run():
    """(lines of the guest, failures)"""
    lines = guest.boot(KERNEL, write_root, MACHINE, "systemd.unit=multi-user.target systemd.log_target=console "
                       "systemd.log_level=notice systemd.show_status=0 "
                       "systemd.machine_id=0123456789abcdef0123456789abcdef")
    failures = [line for line in lines if line.startswith("FAIL")]
    if "done" not in lines:
        failures.append("the guest did not come to its end")
    good = sum(line.startswith("ok") for line in lines)
    if not failures:
        failures = list(differences(lines))
        if good < LEAST_CHECKS:
            failures.append("less was looked at than there is")
    print("\n".join(line for line in lines if failures or not line.startswith(("log", "json", "\33"))))
    print(f"{good} checks passed, {LEAST_CHECKS} at least are wanted, {len(failures)} failed, "
          f"{deadline.passed():.0f} s")
    for failure in failures:
        print(failure)
    return lines, failures


def main():
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    if len(sys.argv) == 2:
        deadline.seconds = float(sys.argv[1])
    guest.end_on_sigterm()
    try:
        if not SYSTEMD.exists():
            raise guest.Skip("systemd is not installed (Debian package systemd)")
        lines, failures = run()
        # The watchdog takes a daemon for hung after 30 s without processor, and is right by its clock. What was found
        # out in such a guest is about the machine below.
        if failures and any(line.startswith("stall of ") for line in lines):
            print("the machine stood still under the guest: once more")
            _, failures = run()
    except guest.Skip as reason:
        print(f"SKIPPED: {reason}")
        sys.exit(77)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
