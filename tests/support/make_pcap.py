#!/usr/bin/env python3
"""Writes a capture file of made-up but realistic traffic, and knows what is in it.

usage: make_pcap.py FILE [--packets N] [--flows N] [--seed N]

TCP and UDP over IPv4 and IPv6, some with VLAN tags, options and extension headers, some fragments, ARP, packets whose
payload was cut by the capture (fine) and packets whose headers were (malformed). The same seed gives the same file. The
totals come from what was put in, not from reading it back: count_pcap.py does that, and knows nothing of this file.
Prints the totals as one JSON object.
"""

import argparse
import ipaddress
import json
import random
import struct
from collections import defaultdict

TCP, UDP, ICMP = 6, 17, 1
SNAP_BYTES = 256  # the capture keeps so much of each packet, as `tcpdump -s 256` does


class Flow:
    def __init__(self, rng, number):
        self.version = 6 if rng.random() < 0.3 else 4
        self.protocol = rng.choices([TCP, UDP, ICMP], [0.6, 0.37, 0.03])[0]
        if self.version == 6 and self.protocol == ICMP:
            self.protocol = UDP
        if self.version == 4:
            self.source = ipaddress.IPv4Address(0x0A000000 | number)
            self.destination = ipaddress.IPv4Address(0xC0A80000 | rng.randrange(1 << 16))
        else:
            self.source = ipaddress.IPv6Address((0xFD00 << 112) | number)
            self.destination = ipaddress.IPv6Address((0x20010DB8 << 96) | rng.randrange(1 << 48))
        self.ports = (0, 0)
        if self.protocol != ICMP:
            self.ports = (rng.randrange(1024, 65536), rng.choice([53, 80, 123, 443, 4789, 8080]))
        self.vlan_tags = rng.choices([0, 1, 2], [0.8, 0.15, 0.05])[0]

    def key(self, ports=None):
        ports = self.ports if ports is None else ports
        return (self.protocol, str(self.source), ports[0], str(self.destination), ports[1])


class Totals:
    """What any correct reader of the file has to find."""

    def __init__(self):
        self.packets = self.bytes = self.malformed = self.not_ip = self.vlan = self.fragments = 0
        self.flows = defaultdict(lambda: [0, 0])  # key -> packets, bytes on the wire

    def as_json(self):
        counts = {name: value for name, value in vars(self).items() if name != "flows"}
        return {**counts, "flows": len(self.flows)}


def transport(flow, rng, payload_bytes):
    payload = bytes(payload_bytes)
    if flow.protocol == TCP:
        option_words = rng.choice([0, 0, 3, 8])
        header = struct.pack(">HHIIBBHHH", *flow.ports, rng.getrandbits(32), 0, (5 + option_words) << 4, 0x18, 512, 0,
                             0)
        return header + bytes([1]) * (option_words * 4) + payload
    if flow.protocol == UDP:
        return struct.pack(">HHHH", *flow.ports, 8 + payload_bytes, 0) + payload
    return struct.pack(">BBHI", 8, 0, 0, 1) + payload


def ip(flow, rng, segment, fragment=0):
    if flow.version == 4:
        option_words = rng.choice([0, 0, 0, 0, 0, 2])
        header = struct.pack(
            ">BBHHHBBH4s4s", 0x40 | (5 + option_words), 0, 20 + option_words * 4 + len(segment), rng.getrandbits(16),
            fragment, 64, flow.protocol, 0, flow.source.packed, flow.destination.packed,
        )  # fmt: skip
        return header + bytes([1]) * (option_words * 4) + segment
    next_header = flow.protocol
    if fragment:
        # IPv4 counts in 8 bytes with "more" above, IPv6 with "more" below.
        offset = (fragment & 0x1FFF) << 3 | (1 if fragment & 0x2000 else 0)
        segment = struct.pack(">BBHI", next_header, 0, offset, rng.getrandbits(32)) + segment
        next_header = 44
    if rng.random() < 0.1:  # hop-by-hop options, padded
        segment = struct.pack(">BBBB", next_header, 0, 1, 4) + bytes(4) + segment
        next_header = 0
    return struct.pack(">IHBB16s16s", 6 << 28, len(segment), next_header, 64, flow.source.packed,
                       flow.destination.packed) + segment


def link(flow, packet):
    header = bytes([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2])
    for tag in range(flow.vlan_tags):
        header += struct.pack(">HH", 0x88A8 if tag == 0 and flow.vlan_tags == 2 else 0x8100, 100 + tag)
    header += struct.pack(">H", 0x0800 if flow.version == 4 else 0x86DD)
    return (header + packet).ljust(60, b"\0")  # Ethernet pads to 60 bytes


def make_packet(rng, flow, totals):
    """(bytes on the wire, how many of them were captured); counted in totals."""
    payload_bytes = rng.choices([rng.randrange(32), rng.randrange(200, 700), 1300], [0.5, 0.2, 0.3])[0]
    kind = rng.random()
    ports = flow.ports
    fragment = 0
    malformed = False
    if kind < 0.01:
        totals.not_ip += 1
        wire = bytes([255] * 6 + [2, 0, 0, 0, 0, 1]) + struct.pack(">HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1) + bytes(38)
        totals.packets += 1
        totals.bytes += len(wire)
        return wire, len(wire)
    if kind < 0.02 and flow.protocol == UDP:
        if rng.random() < 0.5:
            fragment = 0x2000  # the first: has the ports, and more is to come
            segment = transport(flow, rng, 1472)[:1000]
        else:
            fragment = 125  # the last: no ports, only payload
            segment = bytes([0xFF]) * 480
            ports = (0, 0)
    else:
        segment = transport(flow, rng, payload_bytes)
    wire = link(flow, ip(flow, rng, segment, fragment))
    captured = min(len(wire), SNAP_BYTES)
    ip_at = 14 + 4 * flow.vlan_tags
    if 0.02 <= kind < 0.03:
        malformed = True
        captured = ip_at + rng.randrange(1, 20)  # inside the IP header
    elif 0.03 <= kind < 0.035:
        malformed = True
        # The IP packet says that it is longer than the packet on the wire.
        length_at, length = (ip_at + 2, len(wire)) if flow.version == 4 else (ip_at + 4, len(wire))
        wire = wire[:length_at] + struct.pack(">H", length) + wire[length_at + 2 :]
    elif 0.035 <= kind < 0.04:
        malformed = True
        wire = wire[:ip_at] + bytes([0x10 | wire[ip_at] & 15]) + wire[ip_at + 1 :]  # IP version 1
    totals.packets += 1
    totals.bytes += len(wire)
    # Tags in front of a damaged header are tags all the same.
    totals.vlan += flow.vlan_tags != 0
    if malformed:
        totals.malformed += 1
    else:
        totals.fragments += fragment != 0
        counted = totals.flows[flow.key(ports)]
        counted[0] += 1
        counted[1] += len(wire)
    return wire, captured


def make_pcap(path, packets=20000, flows=500, seed=1):
    """Writes the file; its Totals."""
    rng = random.Random(seed)
    all_flows = [Flow(rng, number + 1) for number in range(flows)]
    # A few flows have most of the packets, as on a real link.
    weights = [1 / (rank + 1) for rank in range(flows)]
    totals = Totals()
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, SNAP_BYTES, 1))
        time_us = 1_700_000_000_000_000
        for flow in rng.choices(all_flows, weights, k=packets):
            wire, captured = make_packet(rng, flow, totals)
            time_us += rng.randrange(20)
            file.write(struct.pack("<IIII", time_us // 1_000_000, time_us % 1_000_000, captured, len(wire)))
            file.write(wire[:captured])
    return totals


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--packets", type=int, default=20000)
    parser.add_argument("--flows", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    totals = make_pcap(arguments.file, arguments.packets, arguments.flows, arguments.seed)
    print(json.dumps(totals.as_json()))


if __name__ == "__main__":
    main()
