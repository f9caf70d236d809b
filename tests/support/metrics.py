"""What a daemon's metrics say."""

import urllib.request

from support.daemon import PATIENCE_SECONDS


def gauge(daemon, name, **labels):
    """The value of the only series of that name that has these labels."""
    with urllib.request.urlopen(f"http://{daemon.metrics_address}/metrics", timeout=PATIENCE_SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    wanted = {f'{key}="{value}"' for key, value in labels.items()}
    (value,) = (
        line.rsplit(" ", 1)[1]
        for line in lines
        if line.startswith(name + "{") and wanted <= set(line[len(name) + 1 : line.rindex("}")].split(","))
    )
    return float(value)
