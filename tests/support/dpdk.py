"""What tests of the DPDK driver share."""

import os
import pathlib

from support.daemon import bin_dir

BUILD = bin_dir().parent
DRIVER = pathlib.Path(os.environ.get("NUMACRE_LIB_DIR", BUILD / "lib")) / "librte_mempool_numacre.so"
DEVICE = DRIVER.with_name("librte_net_numacre.so")

NO_HUGEPAGES = ("--no-huge", "--no-shconf", "-m", "600")
OPTIONS = ("--no-pci", "--no-telemetry", "-l", "0,1", "-d", str(DRIVER), "--mbuf-pool-ops-name=numacre",
           "--log-level=4")


def client_command(mode, *options):
    return [str(BUILD / "test-bin" / "dpdk_client"), mode, *options]


def environment(runtime_dir, **variables):
    return {**os.environ, "NUMACRE_RUNTIME_DIR": str(runtime_dir), **variables}
