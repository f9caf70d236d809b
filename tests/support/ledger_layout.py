"""Where a pool's ledger has its parts (daemon/src/memory/ledger.cpp), for a pool of one numa node."""

import os
import pathlib
import re

_SOURCE = pathlib.Path(os.environ.get("NUMACRE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
_NODE_BYTES, _ACCOUNT_BYTES, _ACCOUNTS, _PIN_BYTES, _PINS = 24, 40, 64, 32, 512
_CHANNEL_BYTES, _CHANNELS = 88, 16

HEADER_BYTES = int(
    re.search(r"kHeaderRoom = (\d+);", (_SOURCE / "daemon/src/memory/ledger.cpp").read_text()).group(1)
)
CLIENTS_AT, CLIENT_BYTES = HEADER_BYTES + _NODE_BYTES, 136
UNIT_BYTES = 2


def units_at(max_clients=256):
    return (CLIENTS_AT + (max_clients + 1) * CLIENT_BYTES + _ACCOUNTS * _ACCOUNT_BYTES + _PINS * _PIN_BYTES +
            _CHANNELS * _CHANNEL_BYTES)
