#!/usr/bin/env python3
"""Bounded UDP and TCP traffic on 127.0.0.1, for something to capture.

usage: loopback_traffic.py [--seconds S] [--rate PACKETS_PER_SECOND] [--udp-flows N] [--tcp-flows N]
Prints what was sent. Nothing leaves the loopback interface.
"""
import argparse
import random
import socket
import threading
import time

HOST = "127.0.0.1"
TICK_SECONDS = 0.005
# Sizes far below the 64 KiB of a loopback packet: no datagram is fragmented. A capture that keeps 2 KiB of each packet
# cuts some datagrams short.
UDP_BYTES_MIN, UDP_BYTES_MAX = 18, 4000
TCP_REQUEST_BYTES_MAX = 8000


class Sent:
    def __init__(self):
        self.lock = threading.Lock()
        self.messages = 0
        self.bytes = 0

    def add(self, messages, size):
        with self.lock:
            self.messages += messages
            self.bytes += size


def paced(seconds, rate):
    """Yields the number of messages to send now. The average is `rate` messages a second, however late a tick is."""
    started = time.monotonic()
    done = 0
    while (elapsed := time.monotonic() - started) < seconds:
        due = int(elapsed * rate) - done
        if due > 0:
            done += due
            yield due
        time.sleep(TICK_SECONDS)


def udp_flow(sink_port, seconds, rate, seed, sent):
    sizes = random.Random(seed)
    payload = bytes(UDP_BYTES_MAX)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect((HOST, sink_port))
        for due in paced(seconds, rate):
            total = 0
            for _ in range(due):
                total += sender.send(payload[: sizes.randint(UDP_BYTES_MIN, UDP_BYTES_MAX)])
            sent.add(due, total)


def udp_sink(sink, stop):
    # A socket must be bound to the port: a closed port answers each datagram with an ICMP error.
    sink.settimeout(0.1)
    while not stop.is_set():
        try:
            sink.recv(UDP_BYTES_MAX)
        except socket.timeout:
            pass


def tcp_server(listener, flows):
    def serve(connection):
        with connection:
            while data := connection.recv(TCP_REQUEST_BYTES_MAX):
                connection.sendall(data)

    servers = []
    for _ in range(flows):
        connection, _ = listener.accept()
        servers.append(threading.Thread(target=serve, args=(connection,)))
        servers[-1].start()
    for server in servers:
        server.join()


def tcp_flow(port, seconds, rate, seed, sent):
    sizes = random.Random(seed)
    payload = bytes(TCP_REQUEST_BYTES_MAX)
    with socket.create_connection((HOST, port)) as connection:
        for due in paced(seconds, rate):
            for _ in range(due):
                size = sizes.randint(1, TCP_REQUEST_BYTES_MAX)
                connection.sendall(payload[:size])
                left = size
                while left > 0:
                    data = connection.recv(left)
                    if not data:
                        return
                    left -= len(data)
                sent.add(1, size)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rate", type=int, default=20000, help="messages a second, over all flows (default 20000)")
    parser.add_argument("--udp-flows", type=int, default=12)
    parser.add_argument("--tcp-flows", type=int, default=4)
    arguments = parser.parse_args()
    if not 0 < arguments.seconds <= 60:
        parser.error(f"--seconds {arguments.seconds}: give more than 0 and at most 60")
    if not 1 <= arguments.rate <= 200000:
        parser.error(f"--rate {arguments.rate}: give 1 to 200000")
    if not 1 <= arguments.udp_flows <= 256 or not 1 <= arguments.tcp_flows <= 256:
        parser.error("--udp-flows and --tcp-flows: give 1 to 256")
    rate = arguments.rate / (arguments.udp_flows + arguments.tcp_flows)

    stop = threading.Event()
    udp, tcp = Sent(), Sent()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink, socket.socket() as listener:
        sink.bind((HOST, 0))
        listener.bind((HOST, 0))
        listener.listen(arguments.tcp_flows)
        helpers = [
            threading.Thread(target=udp_sink, args=(sink, stop)),
            threading.Thread(target=tcp_server, args=(listener, arguments.tcp_flows)),
        ]
        flows = [
            threading.Thread(target=udp_flow, args=(sink.getsockname()[1], arguments.seconds, rate, seed, udp))
            for seed in range(arguments.udp_flows)
        ] + [
            threading.Thread(target=tcp_flow, args=(listener.getsockname()[1], arguments.seconds, rate, seed, tcp))
            for seed in range(arguments.tcp_flows)
        ]
        for thread in helpers + flows:
            thread.start()
        for thread in flows:
            thread.join()
        stop.set()
        for thread in helpers:
            thread.join()
    print(f"sent {udp.messages} UDP datagrams ({udp.bytes} bytes) in {arguments.udp_flows} flows and "
          f"{tcp.messages} TCP requests ({tcp.bytes} bytes, echoed) in {arguments.tcp_flows} connections")


if __name__ == "__main__":
    main()
