#!/usr/bin/env python3
"""Counts what is in a capture file (classic pcap, little-endian, Ethernet): a second opinion on client/relay.

usage: count_pcap.py FILE

Written against the protocols' formats, by slices and exceptions, and shares no line with what it checks. Prints the
totals as one JSON object.
"""

import ipaddress
import json
import struct
import sys
from collections import defaultdict

VLAN_TYPES = {b"\x81\x00", b"\x88\xa8", b"\x91\x00"}
EXTENSIONS = {0, 43, 44, 51, 60}


class Malformed(Exception):
    pass


def cut(data, size):
    """(the first size bytes, the rest)"""
    if len(data) < size:
        raise Malformed
    return data[:size], data[size:]


def ports_of(protocol, captured, wire_left, fragment):
    if protocol == 6:
        header, _ = cut(captured, 20)
        if not 20 <= header[12] // 16 * 4 <= wire_left:
            raise Malformed
    elif protocol == 17:
        header, _ = cut(captured, 8)
        length = int.from_bytes(header[4:6], "big")
        if length and (length < 8 or (length > wire_left and not fragment)):
            raise Malformed
    else:
        return 0, 0
    return struct.unpack(">HH", header[:4])


def flow4(captured, wire_left):
    first, _ = cut(captured, 20)
    header_bytes = (first[0] % 16) * 4
    if first[0] // 16 != 4 or header_bytes < 20:
        raise Malformed
    total = int.from_bytes(first[2:4], "big") or wire_left
    if not header_bytes <= total <= wire_left:
        raise Malformed
    _, rest = cut(captured[:total], header_bytes)
    flags = int.from_bytes(first[6:8], "big")
    fragment = bool(flags & 0x3FFF)
    ports = (0, 0) if flags & 0x1FFF else ports_of(first[9], rest, total - header_bytes, fragment)
    return (first[9], ipaddress.IPv4Address(first[12:16]), ports[0], ipaddress.IPv4Address(first[16:20]),
            ports[1]), fragment


def flow6(captured, wire_left):
    fixed, rest = cut(captured, 40)
    if fixed[0] // 16 != 6:
        raise Malformed
    left = int.from_bytes(fixed[4:6], "big") or wire_left - 40
    if 40 + left > wire_left:
        raise Malformed
    rest = rest[:left]
    protocol, fragment, later = fixed[6], False, False
    for _ in range(9):
        if protocol not in EXTENSIONS or later:
            break
        header, _ = cut(rest, 8)
        size = {44: 8, 51: (header[1] + 2) * 4}.get(protocol, (header[1] + 1) * 8)
        if protocol == 44:
            field = int.from_bytes(header[2:4], "big")
            fragment, later = fragment or bool(field & 0xFFF9), bool(field & 0xFFF8)
        protocol = header[0]
        if not later:
            _, rest = cut(rest, size)
            left -= size
    else:
        raise Malformed
    ports = (0, 0) if later else ports_of(protocol, rest, left, fragment)
    return (protocol, ipaddress.IPv6Address(fixed[8:24]), ports[0], ipaddress.IPv6Address(fixed[24:40]),
            ports[1]), fragment


def count_pcap(path):
    """A dictionary of counts; under "flows" another: (protocol, source, port, destination, port) -> [packets,
    bytes]."""
    with open(path, "rb") as file:
        data = file.read()
    magic, _, _, _, _, _, link_type = struct.unpack_from("<IHHiIII", data)
    if magic != 0xA1B2C3D4 or link_type != 1:
        raise ValueError(f"{path}: not a little-endian Ethernet pcap file with microseconds")
    counts = dict.fromkeys(("packets", "bytes", "malformed", "not_ip", "vlan", "fragments"), 0)
    flows = defaultdict(lambda: [0, 0])
    at = 24
    while at < len(data):
        _, _, captured_bytes, wire_bytes = struct.unpack_from("<IIII", data, at)
        frame = data[at + 16 : at + 16 + captured_bytes]
        at += 16 + captured_bytes
        counts["packets"] += 1
        counts["bytes"] += wire_bytes
        tags = 0
        try:
            addresses, rest = cut(frame, 12)
            ether_type, rest = cut(rest, 2)
            while ether_type in VLAN_TYPES:
                tag, rest = cut(rest, 4)
                ether_type = tag[2:]
                tags += 1
            wire_left = wire_bytes - 14 - 4 * tags
            reader = {b"\x08\x00": flow4, b"\x86\xdd": flow6}.get(ether_type)
            if reader is None:
                counts["not_ip"] += 1
            else:
                (protocol, source, source_port, destination, destination_port), fragment = reader(rest, wire_left)
                counts["fragments"] += fragment
                flow = flows[(protocol, str(source), source_port, str(destination), destination_port)]
                flow[0] += 1
                flow[1] += wire_bytes
        except Malformed:
            counts["malformed"] += 1
        counts["vlan"] += tags > 0
    return {**counts, "flows": dict(flows)}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    counts = count_pcap(sys.argv[1])
    print(json.dumps({**counts, "flows": len(counts["flows"])}))


if __name__ == "__main__":
    main()
