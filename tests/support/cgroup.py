"""A cgroup of the test's own, v2 or v1, with one limit."""

import os
import pathlib

from support.daemon import wait_until


class Cgroup:
    """what: "memory", "hugetlb.2MB" ..., as the limit's file begins. OSError: there cannot be one here."""

    restore = None

    def __init__(self, controller, limit_bytes, what):
        for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
            _, where, kind, options, *_ = line.split()
            where = pathlib.Path(where)
            if kind == "cgroup2" and controller in (where / "cgroup.controllers").read_text():
                if controller not in (where / "cgroup.subtree_control").read_text():
                    (where / "cgroup.subtree_control").write_text(f"+{controller}")
                    self.restore = (where / "cgroup.subtree_control", f"-{controller}")
                limit = f"{what}.max"
            elif kind == "cgroup" and controller in options.split(","):
                limit = f"{what}.limit_in_bytes"
            else:
                continue
            self.path = where / f"numacre-test-{os.getpid()}"
            self.path.mkdir()
            self.limit = self.path / limit
            self.limit.write_text(str(limit_bytes))
            return
        raise OSError(f"no hierarchy with a {controller} controller is mounted")

    def used_bytes(self):
        used = self.limit.name.replace(".max", ".current").replace("limit_in_bytes", "usage_in_bytes")
        return int((self.path / used).read_text())

    # A command that goes into the cgroup first.
    def prefix(self):
        return ("sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh")

    def remove(self):
        wait_until("the cgroup is empty", lambda: not (self.path / "cgroup.procs").read_text())
        self.path.rmdir()
        if self.restore:
            self.restore[0].write_text(self.restore[1])
