#!/usr/bin/env python3
"""numacred and its clients on a real kernel with several numa nodes: every page is where it should be.

usage: multinode_test.py kernel [SECONDS]   downloads the guests' kernel, if it is not there yet
       multinode_test.py 2|4|8 [SECONDS]    the number of numa nodes that have memory
       multinode_test.py rseq [SECONDS]     two, on a newer kernel, which tells a thread's numa node in its rseq area
SECONDS: all of it has ended by then, one way or another.

The guest is QEMU without KVM, on the small kernel of Debian's cloud images, which is downloaded into the build folder
and never installed; so is a newer one, without which the case rseq alone is skipped. Its root is an initramfs of
busybox, the built programs and their libraries; guest_init says what happens in it. Exit status 77: QEMU, busybox or
the kernel cannot be had.
"""

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from support import guest  # noqa: E402
from support.guest import BIN, BUILD, KERNEL, NEWER_KERNEL, deadline  # noqa: E402

# From so many bytes of it on, the rseq area has the numa node (Linux 6.3).
RSEQ_WITH_NODE = 24
MIB = 1 << 20
# Those that are resized, and their backing.
MAIN_POOLS = {"huge": "hugetlb", "thp": "thp", "small": "small"}
BACKINGS = {**MAIN_POOLS, "gig": "hugetlb-1g", "fine": "small", "near": "small"}


class Case:
    """One machine. memory: MiB by node, 0 for a node of CPUs alone. without_cpu: nodes of memory alone. pools: as
    guest_init knows them. resize: which of their numa nodes are resized (the last in all pools, the others in one).
    gigantic: hugepages of 1 GiB, by node, that the kernel sets aside when it boots: later its memory has things in it
    that do not move. With them no more than 1 GiB lies below the hole for devices: all from 4 GiB on is free to be cut
    up."""

    def __init__(self, memory, pools, resize, without_cpu=(), distance=lambda a, b: 21, kernel=KERNEL, gigantic=()):
        self.kernel = kernel
        self.gigantic = gigantic
        self.pools = pools
        self.resize = resize
        self.memory = memory
        self.cpu_nodes = [node for node in range(len(memory)) if node not in without_cpu]
        self.distances = [[10 if a == b else distance(a, b) for b in range(len(memory))] for a in range(len(memory))]
        self.memory_nodes = [node for node, mib in enumerate(memory) if mib != 0]

    def qemu_arguments(self):
        arguments = ["-machine", "max-ram-below-4g=1G"] if self.gigantic else []
        arguments += ["-smp", str(len(self.cpu_nodes)), "-m", f"{sum(self.memory)}M"]
        for node, mib in enumerate(self.memory):
            words = [f"node,nodeid={node}"]
            if node in self.cpu_nodes:
                words.append(f"cpus={self.cpu_nodes.index(node)}")
            if mib != 0:
                arguments += ["-object", f"memory-backend-ram,id=m{node},size={mib}M"]
                words.append(f"memdev=m{node}")
            arguments += ["-numa", ",".join(words)]
        for a, row in enumerate(self.distances):
            for b, distance in enumerate(row):
                arguments += ["-numa", f"dist,src={a},dst={b},val={distance}"]
        return arguments

    def kernel_words(self):
        counts = ",".join(f"{node}:{count}" for node, count in enumerate(self.gigantic))
        # The kernel itself not in the middle of it, by chance.
        return f"nokaslr default_hugepagesz=2M hugepagesz=1G hugepages={counts}" if counts else ""

    def shell_words(self):
        far = self.memory_nodes[-1]
        cpus = range(len(self.cpu_nodes))
        words = {
            "cpus": " ".join(map(str, cpus)),
            "pools": self.pools,
            "resize": " ".join(map(str, self.resize)),
            "far_mems": far,
            "far_cpu": cpus[-1],
            # One line of the log a pool and numa node, but for the one where they are allowed to be.
            "to_move_back": sum(pool in MAIN_POOLS for pool in self.pools.split()) * (len(self.memory_nodes) - 1),
        }
        return "".join(f"{name}='{value}'\n" for name, value in words.items())

    def gigantic_checks(self, step, count, then):
        return {step: count, **then} if self.gigantic else {}

    def least_checks(self):
        """How many "ok" lines each step of guest_init has, if none of its loops was over nothing."""
        pools = self.pools.split()
        main_pools = [pool for pool in pools if pool in MAIN_POOLS]
        nodes, cpus = len(self.memory_nodes), len(self.cpu_nodes)

        def pages(pools, when, without_frames=0):
            # Frames and metadata. without_frames: numa nodes where nothing is online.
            return {f"pages of {' '.join(pools)} {when}": 2 * nodes * len(pools) - without_frames}

        has_gig = 1 if self.gigantic else 0

        return {
            "start": 1,
            **pages(pools, "after create", has_gig),
            "first touch from every cpu": cpus + len(main_pools),
            **pages(pools, "after first touch", has_gig),
            "first touch by a client that may not have memory of the other nodes": len(main_pools),
            **pages(main_pools, "after the confined client"),
            "resize": 1 + len(self.resize) + len(main_pools) - 1,
            **pages(main_pools, "after growing"),
            "resize again": len(self.resize) + len(main_pools) - 1,
            **pages(main_pools, "after shrinking"),
            **self.gigantic_checks("resize by a page of 1 GiB", 1, pages(["gig"], "after growing by 1 GiB")),
            "restart": 1 + len(self.resize),
            **pages(pools, "after adoption"),
            **self.gigantic_checks("give a page of 1 GiB back", 2, pages(["gig"], "after shrinking by 1 GiB", 1)),
            "let go": 1,
            "nearest": 2 * cpus,
            "the thread, its mempolicy and its handle choose": 11,
            "nothing from outside of the cpuset": 2 * len(main_pools),
            "clients whose cpuset is narrowed": 1 + 2 * len(main_pools),
            **pages(main_pools, "after the kernel moved them"),
            "stop": 1 + (2 if self.gigantic else 1) * len(self.memory),
        }


CASES = {
    "2": Case([2304, 2048], pools="huge thp small fine near gig", resize=[0, 1], gigantic=[1, 1]),
    "rseq": Case([576, 576], pools="huge near", resize=[1], kernel=NEWER_KERNEL),
    # Node 3 has no CPU, as memory that is not DRAM (the kernel numbers such nodes last); it is far from all. No two
    # nodes are of one size.
    "4": Case(
        [576, 384, 448, 512],
        pools="huge thp near",
        resize=[0, 2, 3],
        without_cpu=[3],
        distance=lambda a, b: 40 if 3 in (a, b) else 12 + 4 * abs(a - b),
    ),
    # A ring, half of it memory alone. In it node 3 that has CPUs alone and is nearest to node 4: the pools' numbers
    # have a gap there.
    "8": Case(
        [448, 320, 320, 0, 320, 320, 320, 320, 320],
        pools="huge small near",
        resize=[3, 7],
        without_cpu=[5, 6, 7, 8],
        distance=lambda a, b: 11 if {a, b} == {3, 4} else 16 + 2 * min(abs(a - b), 9 - abs(a - b)),
    ),
}


# --- what the guest is made of ---------------------------------------------------------------------------------------


def write_root(archive, case):
    for folder in ("dev", "proc", "sys", "run", "tmp"):
        archive.add(folder, mode=guest.FOLDER_MODE)
    archive.add("init", (HERE / "guest_init").read_bytes())
    archive.add("case", case.shell_words().encode(), mode=guest.TEXT)
    archive.add("etc/passwd", b"root:x:0:0::/:/bin/sh\n", mode=guest.TEXT)
    archive.add("etc/group", b"root:x:0:\n", mode=guest.TEXT)
    archive.add_shell()
    archive.add_programs([BIN / "numacred", BIN / "numacre", BIN / "numacre-holder", BUILD / "test-bin" / "placement"])


# --- what it says ----------------------------------------------------------------------------------------------------


def missing_checks(case, lines):
    """Steps in which the guest looked at less than there is."""
    good = {}
    step = None
    for line in lines:
        if match := re.fullmatch(r"step \S+ s: (.*)", line):
            step = " ".join(match.group(1).split())
        elif line.startswith("ok"):
            good[step] = good.get(step, 0) + 1
    for step, least in case.least_checks().items():
        if good.get(step, 0) < least:
            yield f"step '{step}': {good.get(step, 0)} checks instead of at least {least}"


def online(document):
    """MiB online, by pool, by numa node."""
    return {
        pool["name"]: [node["online_bytes"] // MIB for node in pool["nodes"]]
        for pool in document["pools"]
        if pool["name"] in MAIN_POOLS
    }


def differences(case, lines):
    """What the control plane said that is not so."""
    said = guest.documents(lines)
    nodes = said["machine"]["nodes"]
    os_nodes = [node["os_numa_node"] for node in nodes]
    if os_nodes != case.memory_nodes:
        yield f"the daemon sees numa nodes {os_nodes} instead of {case.memory_nodes}"
    for node in nodes:
        os_node = node["os_numa_node"]
        distances = [case.distances[os_node][other] for other in case.memory_nodes]
        if node["distances"] != distances:
            yield f"distances of numa node {os_node} are {node['distances']} instead of {distances}"
        cpus = str(case.cpu_nodes.index(os_node)) if os_node in case.cpu_nodes else ""
        if node["cpus"] != cpus:
            yield f"cpus of numa node {os_node} are '{node['cpus']}' instead of '{cpus}'"

    def sizes(more):
        found = {pool: [8] * len(nodes) for pool in case.pools.split() if pool in MAIN_POOLS}
        for pool, each in found.items():
            for node in case.resize if pool == "huge" else case.resize[-1:]:
                each[node] += more
        return found

    for name, wanted in (("grown", sizes(8)), ("adopted", sizes(4))):
        if online(said[name]) != wanted:
            yield f"{name}: {online(said[name])} MiB online instead of {wanted}"
    for pool in said["grown"]["pools"]:
        for node in pool["nodes"]:
            if node["backing"] != BACKINGS[pool["name"]]:
                yield f"pool {pool['name']} is backed by {node['backing']}: {node['backing_note']}"

    (rseq_bytes,) = [int(line.split()[1]) for line in lines if line.startswith("rseq-bytes ")]
    if case.kernel is NEWER_KERNEL and rseq_bytes < RSEQ_WITH_NODE:
        yield f"the kernel's rseq area has {rseq_bytes} bytes: no numa node"
    misses = sum(int(line.split()[1]) for line in lines if line.startswith("misses "))
    others = sum(int(line.split()[1]) for line in lines if line.startswith("others "))
    numa_nodes = said["stats"]["pools"][0]["nodes"]
    allocations = sum(node["allocations"] for node in numa_nodes)
    for counter, wanted in (
        ("numa_miss", misses),
        ("numa_foreign", misses),
        ("other_node", others),
        ("local_node", allocations - others),
        ("numa_hit", allocations - misses),
    ):
        counted = sum(node[counter] for node in numa_nodes)
        if counted != wanted or wanted == 0:
            yield f"{counter} is {counted}, the clients had {wanted} such blocks"


def main():
    if not 2 <= len(sys.argv) <= 3 or sys.argv[1] not in ("kernel", *CASES):
        sys.exit(__doc__)
    if len(sys.argv) == 3:
        deadline.seconds = float(sys.argv[2])
    guest.end_on_sigterm()
    try:
        if sys.argv[1] == "kernel":
            guest.fetch_kernel(KERNEL)
            try:
                guest.fetch_kernel(NEWER_KERNEL)
            except guest.Skip as reason:
                print(f"SKIPPED: the case rseq: {reason}")
            return
        case = CASES[sys.argv[1]]
        lines = guest.boot(case.kernel, lambda archive: write_root(archive, case), case.qemu_arguments(),
                           case.kernel_words())
    except guest.Skip as reason:
        print(f"SKIPPED: {reason}")
        sys.exit(77)
    failures = [line for line in lines if line.startswith("FAIL")]
    if "done" not in lines:
        failures.append("the guest did not come to its end")
    if not failures:
        failures = [*missing_checks(case, lines), *differences(case, lines)]
    if failures:
        print("\n".join(lines))
    else:
        print("\n".join(line for line in lines if line.startswith(("kernel", "rseq-bytes", "step", "ok nearest"))))
    good = sum(line.startswith("ok") for line in lines)
    least = sum(case.least_checks().values())
    print(f"{good} checks passed, {least} at least are wanted, {len(failures)} failed, {deadline.passed():.0f} s")
    for failure in failures:
        print(failure)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
