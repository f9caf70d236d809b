#!/usr/bin/env python3
"""Writes grafana/numacre.json. Needs the package that requirements.txt pins:

    python3 -m venv VENV && VENV/bin/pip install -r dashboards/requirements.txt
    VENV/bin/python dashboards/build.py            # writes the file beside this script
    VENV/bin/python dashboards/build.py -o FILE    # or another one; - is standard output

The result is checked in, so that the dashboard can be used without Python. tests/tidy/dashboard_stale_test.py compares
the checked-in file with the output of this script.
"""

import argparse
import json
import pathlib
import sys

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as dashboard_model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = dashboard_model.DataSourceRef(type_val="prometheus", uid="${datasource}")

DAEMON = 'instance="$instance"'
POOL = DAEMON + ',pool="$pool"'
NODE = POOL + ',node=~"$node"'

GREEN, YELLOW, ORANGE, RED, BLUE = "green", "yellow", "orange", "red", "blue"


def padded_order(expression):
    """Gives orders two digits, so that text order is number order wherever Grafana sorts labels (orders end at 24)."""
    return f'label_replace({expression}, "order", "0$1", "order", "([0-9])")'


def rate(metric, selector, by, window="$__rate_interval"):
    return f"sum by ({by}) (rate({metric}{{{selector}}}[{window}]))"


def ranged(expression, legend):
    return prometheus.Dataquery().expr(expression).legend_format(legend).range()


def instant(expression, legend="__auto"):
    return prometheus.Dataquery().expr(expression).legend_format(legend).instant()


def tabled(expression):
    return prometheus.Dataquery().expr(expression).format(PromQueryFormat.TABLE).instant()


def thresholds(base, *steps):
    """base: the colour below the first step; then (value, colour)."""
    built = [dashboard_model.Threshold(value=None, color=base)]
    built += [dashboard_model.Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(dashboard_model.ThresholdsMode.ABSOLUTE).steps(built)


def by_thresholds():
    return dashboard.FieldColor().mode(dashboard_model.FieldColorModeId.THRESHOLDS)


def transformation(name, **options):
    return dashboard_model.DataTransformerConfig(id_val=name, options=options)


def properties(**values):
    return [dashboard_model.DynamicConfigValue(id_val=name, value=value) for name, value in values.items()]


def coloured_cells():
    return common_model.TableColoredBackgroundCellOptions(mode=common_model.TableCellBackgroundDisplayMode.BASIC)


class Page:
    """A dashboard that numbers its panels and their queries, and refuses a panel without a description."""

    def __init__(self, builder):
        self.builder = builder
        self.panels = 0

    def row(self, title):
        self.panels += 1
        self.builder.with_row(dashboard.Row(title).id(self.panels))

    def add(self, panel, title, description, queries, width, height):
        assert description and queries, title
        self.panels += 1
        panel.id(self.panels).title(title).description(description).datasource(DATASOURCE).span(width).height(height)
        for index, query in enumerate(queries):
            panel.with_target(query.ref_id(chr(ord("A") + index)).datasource(DATASOURCE))
        self.builder.with_panel(panel)

    def stat(self, title, description, query, unit, width=3, colours=None, mappings=None, text=None, height=4):
        panel = (
            stat.Panel()
            .unit(unit)
            .color_scheme(by_thresholds())
            .thresholds(colours or thresholds(BLUE))
            .color_mode(common_model.BigValueColorMode.VALUE)
            .graph_mode(common_model.BigValueGraphMode.NONE)
            .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        )
        if mappings:
            panel.mappings(mappings)
        if text:
            panel.text_mode(text)
        self.add(panel, title, description, [query], width, height)

    def series(self, title, description, queries, unit, width=12, height=8, low=0, high=None, stacked=False):
        panel = (
            timeseries.Panel()
            .unit(unit)
            .line_width(1)
            .fill_opacity(30 if stacked else 8)
            .show_points(common_model.VisibilityMode.NEVER)
            .legend(
                common.VizLegendOptions()
                .show_legend(True)
                .display_mode(common_model.LegendDisplayMode.TABLE)
                .placement(common_model.LegendPlacement.RIGHT)
                .calcs(["lastNotNull", "max"])
            )
            .tooltip(
                common.VizTooltipOptions()
                .mode(common_model.TooltipDisplayMode.MULTI)
                .sort(common_model.SortOrder.DESCENDING)
            )
        )
        if low is not None:
            panel.min(low)
        if high is not None:
            panel.max(high)
        if stacked:
            panel.stacking(common.StackingConfig().mode(common_model.StackingMode.NORMAL).group("A"))
        self.add(panel, title, description, queries, width, height)

    def order_by_node(self, title, description, expression, unit, colours, low, high, width=12, height=12):
        """A matrix with one line for each order and one column for each numa node."""
        expression = f'label_replace({padded_order(expression)}, "node", "node $1", "node", "(.*)")'
        panel = (
            table.Panel()
            .unit(unit)
            .decimals(2)
            .min(low)
            .max(high)
            .color_scheme(by_thresholds())
            .thresholds(colours)
            .cell_options(coloured_cells())
            .with_transformation(transformation("sortBy", sort=[{"field": "order", "desc": False}]))
            .with_transformation(
                transformation("groupingToMatrix", columnField="node", rowField="order", valueField="Value")
            )
            .override_by_name(
                "order\\node", properties(**{"displayName": "order", "custom.cellOptions": {"type": "auto"}})
            )
        )
        self.add(panel, title, description, [tabled(expression)], width, height)

    def merged_table(self, title, description, columns, keys, width, height, sort_by=None):
        """columns: (name, expression, field properties). Each expression gives one row for each combination of keys."""
        panel = table.Panel().with_transformation(transformation("merge"))
        names = {"Value": columns[0][0]} if len(columns) == 1 else {}
        for index, (name, _, _) in enumerate(columns):
            names[f"Value #{chr(ord('A') + index)}"] = name
        order = {key: index for index, key in enumerate(keys + list(names))}
        panel.with_transformation(
            transformation("organize", excludeByName={"Time": True}, indexByName=order, renameByName=names)
        )
        if sort_by:
            panel.with_transformation(transformation("sortBy", sort=[{"field": sort_by, "desc": True}]))
        for name, _, fields in columns:
            panel.override_by_name(name, properties(**fields))
        self.add(panel, title, description, [tabled(expression) for _, expression, _ in columns], width, height)


def overview(page):
    page.row("Overview: $pool")
    page.stat(
        "State",
        "SERVING, or CORRUPT: the daemon found damaged metadata and has stopped serving the pool. Do not restart "
        "the clients first: keep the region and follow runbooks/NumacrePoolCorrupt.md.",
        instant(f"max(numacre_pool_corrupt{{{POOL}}})"),
        "none",
        colours=thresholds(GREEN, (1, RED)),
        mappings=[
            dashboard_model.ValueMap(
                options={
                    "0": dashboard_model.ValueMappingResult(text="SERVING", color=GREEN, index=0),
                    "1": dashboard_model.ValueMappingResult(text="CORRUPT", color=RED, index=1),
                }
            )
        ],
    )
    page.stat(
        "Used of online",
        "Share of the online memory that clients own. Above 90 %: grow the pool with `numacre resize` while the "
        "machine still has hugepages, or find the holder below under Clients.",
        instant(f"sum(numacre_pool_used_bytes{{{NODE}}}) / sum(numacre_pool_online_bytes{{{NODE}}})"),
        "percentunit",
        colours=thresholds(GREEN, (0.8, YELLOW), (0.9, RED)),
    )
    page.stat(
        "Used",
        "Bytes in blocks that clients own, in whole frames. `numacre clients` says who.",
        instant(f"sum(numacre_pool_used_bytes{{{NODE}}})"),
        "bytes",
    )
    page.stat(
        "Free",
        "Online bytes that nobody owns. Plenty free and allocations failing all the same: see Fragmentation.",
        instant(f"sum(numacre_pool_free_bytes{{{NODE}}})"),
        "bytes",
    )
    page.stat(
        "Largest free block",
        "The largest request that would succeed right now on some node. Far below Free: the pool is fragmented; "
        "`numacre extfrag` says at which order, `numacre map` where.",
        instant(f"max(numacre_pool_largest_free_block_bytes{{{NODE}}})"),
        "bytes",
    )
    page.stat(
        "Online",
        "Bytes backed by memory now. `numacre resize` moves this, up to the capacity.",
        instant(f"sum(numacre_pool_online_bytes{{{NODE}}})"),
        "bytes",
    )
    page.stat(
        "Capacity",
        "Bytes that the pool can ever have online; fixed when the pool is made. Online close to it and the pool "
        "full: make a larger pool.",
        instant(f"sum(numacre_pool_capacity_bytes{{{NODE}}})"),
        "bytes",
    )
    page.stat(
        "Version",
        "The daemon's version. Clients of another layout version are refused at attach: upgrade the older side.",
        instant(f"max by (version) (numacre_build_info{{{DAEMON}}})", "{{version}}"),
        "none",
        text=common_model.BigValueTextMode.NAME,
    )
    page.series(
        "Pool memory",
        "Used against online against capacity, summed over the chosen nodes. Used near online: grow with `numacre "
        "resize`. Cached and quarantined are part of used: cached lies in clients' thread caches, quarantined was "
        "taken back and is held before its next use.",
        [
            ranged(f"sum(numacre_pool_{what}_bytes{{{NODE}}})", what)
            for what in ("used", "free", "cached", "quarantined", "online", "capacity")
        ],
        "bytes",
        width=14,
    )
    page.merged_table(
        "All pools of this daemon",
        "One line a pool, whatever is chosen above. A pool is the unit of trust and of sizing: memory does not move "
        "between pools, only back to the machine and from there (`numacre resize`).",
        [
            ("Used", f"sum by (pool) (numacre_pool_used_bytes{{{DAEMON}}})", {"unit": "bytes"}),
            ("Online", f"sum by (pool) (numacre_pool_online_bytes{{{DAEMON}}})", {"unit": "bytes"}),
            ("Capacity", f"sum by (pool) (numacre_pool_capacity_bytes{{{DAEMON}}})", {"unit": "bytes"}),
            (
                "Largest free block",
                f"max by (pool) (numacre_pool_largest_free_block_bytes{{{DAEMON}}})",
                {"unit": "bytes"},
            ),
            ("Corrupt", f"max by (pool) (numacre_pool_corrupt{{{DAEMON}}})", {"unit": "bool_yes_no"}),
        ],
        keys=["pool"],
        width=10,
        height=8,
    )


def capacity(page):
    page.row("Capacity by NUMA node")
    page.series(
        "Used of online, by node",
        "One node full while another is empty: its clients' allocations spill to remote memory. Bind clients to the "
        "emptier node, or grow the full one (`numacre resize POOL SIZE --node N`).",
        [
            ranged(
                f"sum by (node) (numacre_pool_used_bytes{{{NODE}}})"
                f" / sum by (node) (numacre_pool_online_bytes{{{NODE}}})",
                "node {{node}}",
            )
        ],
        "percentunit",
        high=1,
    )
    page.merged_table(
        "Memory and backing, by node",
        "backing: hugetlb or hugetlb-1g is what you want; thp or small mean that the machine had no free hugepages "
        "when the pool was made, and clients pay in TLB misses: `numacre doctor` prints the command that reserves "
        "them.",
        [
            (
                "Online",
                f"numacre_pool_online_bytes{{{NODE}}} * on (instance, pool, node) group_left (backing) "
                f"(numacre_pool_backing_info{{{NODE}}} == 1)",
                {"unit": "bytes"},
            ),
        ],
        keys=["node", "backing"],
        width=12,
        height=8,
    )
    page.series(
        "Online and capacity, by node",
        "Online moves with `numacre resize`; a step that you did not make is somebody else's resize (Daemon, below).",
        [
            ranged(f"sum by (node) (numacre_pool_online_bytes{{{NODE}}})", "online, node {{node}}"),
            ranged(f"sum by (node) (numacre_pool_capacity_bytes{{{NODE}}})", "capacity, node {{node}}"),
        ],
        "bytes",
        width=8,
    )
    page.series(
        "NUMA imbalance",
        "Largest used share of a node less the smallest: 0 is even, 1 is one node full and one empty. High and NUMA "
        "misses rising (Allocations, below): spread the clients over the nodes, or resize by node.",
        [ranged(f"max by (pool) (numacre_numa_imbalance{{{POOL}}})", "{{pool}}")],
        "percentunit",
        width=8,
        high=1,
    )
    page.series(
        "Metadata, by node",
        "The allocator's own metadata: its address space follows from the geometry (larger frames, less of it), but "
        "only what was touched is resident and takes memory.",
        [
            ranged(f"sum by (node) (numacre_pool_metadata_resident_bytes{{{NODE}}})", "resident, node {{node}}"),
            ranged(f"sum by (node) (numacre_pool_metadata_bytes{{{NODE}}})", "address space, node {{node}}"),
        ],
        "bytes",
        width=8,
    )


def fragmentation(page):
    page.row("Fragmentation by NUMA node and order (order k is a block of 2^k frames)")
    page.order_by_node(
        "Unusable free ratio",
        "Share of the free memory that a request of this order cannot use. 0: all of it would do; 1: none (or "
        "nothing is free). Red at orders that you allocate: drain a chunk (`numacre drain`), restart the client "
        "that holds scattered blocks (`numacre map`, `numacre clients`), or grow.",
        f"max by (order, node) (numacre_unusable_free_ratio{{{NODE}}})",
        "percentunit",
        thresholds(GREEN, (0.5, YELLOW), (0.8, ORANGE), (0.95, RED)),
        0,
        1,
    )
    page.order_by_node(
        "External fragmentation index",
        "-1: a request of this order would succeed. Otherwise why it would fail: towards 0 for lack of memory (grow "
        "the pool), towards 1 for fragmentation (growing helps less than draining).",
        f"max by (order, node) (numacre_external_fragmentation_index{{{NODE}}})",
        "none",
        thresholds(GREEN, (0, YELLOW), (0.5, ORANGE), (0.75, RED)),
        -1,
        1,
    )
    page.add(
        heatmap.Panel()
        .unit("short")
        .calculate(False)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_model.HeatmapColorMode.SCHEME)
            .scheme("Spectral")
            .scale(heatmap_model.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
            .fill("dark-blue")
            .reverse(True)
        )
        .cell_gap(1)
        .y_axis(heatmap.YAxisConfig().axis_label("order"))
        .show_value(common_model.VisibilityMode.NEVER)
        .mode(common_model.TooltipDisplayMode.SINGLE)
        .show_legend()
        .max_per_row(2)
        .repeat("node")
        .repeat_direction("h"),
        "Free blocks by order, node $node",
        "How many maximal free blocks of each order there are over time. Healthy: few at low orders, the mass at "
        "the top. The mass sinking to low orders while Free stays: fragmentation is building up; see who allocates "
        "small blocks for long under Clients.",
        [ranged(padded_order(f"sum by (order) (numacre_free_blocks{{{NODE}}})"), "{{order}}")],
        24,
        9,
    )
    page.series(
        "Free memory that the largest block cannot use",
        "The unusable free ratio at the pool's largest order, which is the first to suffer. NumacreFragmented fires "
        "on it when there is plenty of free memory all the same.",
        [ranged(f"max by (node) (numacre_unusable_free_ratio{{{NODE}}})", "node {{node}}")],
        "percentunit",
        width=8,
        high=1,
    )
    page.series(
        "Quadratic fragmentation",
        "0: all free memory is one block; towards 1: many small ones. It has no order to choose, so watch its "
        "trend: a steady climb over days says that long-lived blocks scatter.",
        [ranged(f"max by (node) (numacre_quadratic_fragmentation{{{NODE}}})", "node {{node}}")],
        "percentunit",
        width=8,
        high=1,
    )
    page.series(
        "Internal fragmentation",
        "Share of the granted bytes that nobody asked for: requests are rounded up to a power of two of frames. "
        "High: request sizes just above a power of two; change them, or make a pool with a smaller frame.",
        [ranged(f"max by (node) (numacre_internal_fragmentation_ratio{{{NODE}}})", "node {{node}}")],
        "percentunit",
        width=8,
        high=1,
    )


def allocations(page):
    page.row("Allocations")
    page.series(
        "Allocations by order",
        "Successful allocations a second by block order. Read it beside the unusable free ratio: only orders that "
        "are asked for matter.",
        [ranged(padded_order(rate("numacre_allocations_total", NODE, "order")), "order {{order}}")],
        "ops",
        stacked=True,
    )
    page.series(
        "Frees by order",
        "Frees a second by block order. Below the allocations for long: memory is being kept; see Clients for who.",
        [ranged(padded_order(rate("numacre_frees_total", NODE, "order")), "order {{order}}")],
        "ops",
        stacked=True,
    )
    page.series(
        "Failed allocations by reason",
        "out_of_frames: grow the pool or free. fragmented: enough is free but not in one piece, see Fragmentation. "
        "quota: `numacre clients` shows used against quota. argument: a client asks for an impossible size; fix the "
        "program.",
        [ranged(rate("numacre_allocation_failures_total", NODE, "reason"), "{{reason}}")],
        "ops",
        width=8,
    )
    page.series(
        "CAS retries per allocation",
        "How often a thread lost a race for a shared word, per successful allocation. Well below 1 is healthy; "
        "rising with load: too many threads on one node's pool at the same order; use thread caches or bulk calls.",
        [
            ranged(
                f"{rate('numacre_cas_retries_total', NODE, 'node')}"
                f" / ({rate('numacre_allocations_total', NODE, 'node')} > 0)",
                "node {{node}}",
            )
        ],
        "none",
        width=8,
    )
    page.series(
        "NUMA hit, miss, foreign",
        "numastat's meaning. hit: got the node that was wanted. miss: this node served a request meant for another. "
        "foreign: a request meant for this node went elsewhere. Misses: the wanted node is full; see Capacity by "
        "node. interleave_hit: by a policy that interleaves, as its turn was. local_node, other_node: for a thread "
        "that ran there, or elsewhere.",
        [
            ranged(rate(f"numacre_numa_{what}_total", NODE, "node"), what + ", node {{node}}")
            for what in ("hit", "miss", "foreign", "interleave_hit", "local_node", "other_node")
        ],
        "ops",
        width=8,
    )
    page.series(
        "Waiting for memory",
        "Threads in an allocation with NUMACRE_WAIT, and how many a second are given a block as it is released. "
        "Waiting, and nothing handed off: nobody frees what they want; see Fragmentation, and grow the pool.",
        [
            ranged(f"sum by (node) (numacre_waiting_threads{{{NODE}}})", "waiting, node {{node}}"),
            ranged(rate("numacre_hand_offs_total", NODE, "node"), "hand-offs a second, node {{node}}"),
        ],
        "short",
        width=8,
    )


def clients(page):
    page.row("Clients")
    info = f"numacre_client_info{{{DAEMON}}}"

    def named(metric):
        """The metric per client, with the name of the client's process. A daemon does not use a client id twice."""
        joined = f"numacre_client_{metric}{{{POOL}}} * on (instance, client) group_left (comm, pid, cgroup) {info}"
        return f"sum by (client, comm, pid, cgroup) ({joined})"

    page.merged_table(
        "Who holds the memory",
        "Bytes owned by each attached client, its quota, its soft quota and what it is promised (0: none). To take "
        "memory back: ask the "
        "program to free; else `numacre evict` ends it and the daemon gives its blocks back. To bound it: `numacre "
        "quota`.",
        [
            ("Used", named("used_bytes"), {"unit": "bytes"}),
            ("Quota", named("quota_bytes"), {"unit": "bytes"}),
            ("Soft quota", named("soft_quota_bytes"), {"unit": "bytes"}),
            ("Reserved", named("reserved_bytes"), {"unit": "bytes"}),
        ],
        keys=["client", "comm", "pid", "cgroup"],
        width=10,
        height=9,
        sort_by="Used",
    )
    page.series(
        "Largest clients",
        "The ten clients that hold the most. A line that only climbs is a leak: note the client's id and look at "
        "the program.",
        [ranged(f"topk(10, {named('used_bytes')})", "{{comm}} (client {{client}}, pid {{pid}})")],
        "bytes",
        width=14,
        height=9,
    )
    page.series(
        "Oldest block of each client",
        "How long each client has held the oldest of its blocks, at least; the ten longest. A line that climbs for as "
        "long as its client lives may be what the program keeps by design, or a block that it has forgotten: `numacre "
        "clients --blocks --client ID` lists its blocks, those held longest first. Many of one size that only become "
        "older are a leak.",
        [ranged(f"topk(10, {named('oldest_block_seconds')})", "{{comm}} (client {{client}}, pid {{pid}})")],
        "s",
    )

    def of_user(metric):
        return f"sum by (pool, uid) (numacre_user_{metric}{{{POOL}}})"

    page.merged_table(
        "Users",
        "Bytes that the clients of each user hold together, in one pool; its quota, its soft quota and what it is "
        "promised (0: none). To bound it: `numacre quota --user`; to promise it memory: `numacre reserve --user`.",
        [
            ("Used", of_user("used_bytes"), {"unit": "bytes"}),
            ("Quota", of_user("quota_bytes"), {"unit": "bytes"}),
            ("Soft quota", of_user("soft_quota_bytes"), {"unit": "bytes"}),
            ("Reserved", of_user("reserved_bytes"), {"unit": "bytes"}),
        ],
        keys=["pool", "uid"],
        width=12,
        height=8,
        sort_by="Used",
    )
    page.series(
        "Clients reaped, by cause",
        "Clients that ended, by how. detached: the polite way. killed: the process died while attached. lost: its "
        "connection went first. The blocks came back, but look at the kernel log (OOM killer?) and the program's "
        "own.",
        [
            ranged(
                f"sum by (cause) (increase(numacre_clients_reaped_total{{{DAEMON}}}[$__rate_interval]))", "{{cause}}"
            )
        ],
        "short",
    )
    page.series(
        "Memory taken back from dead clients",
        "Bytes a second that recovery returned to the pool after clients had ended with blocks in hand.",
        [ranged(f"sum(rate(numacre_reclaimed_bytes_total{{{POOL}}}[$__rate_interval]))", "reclaimed")],
        "Bps",
    )


def channels(page):
    page.row("Channels")

    def of(metric, more=""):
        return f"max by (channel) (numacre_channel_{metric}{{{POOL}{more}}})"

    page.merged_table(
        "Channels",
        "One line a channel of the pool. Full, or an oldest message of minutes: the receivers are gone, stopped or too "
        "slow; `numacre channels` names them with their pids. Nobody has it open and messages wait: start a receiver, "
        "or remove the channel with what is in it.",
        [
            ("Waiting", of("waiting_messages"), {"unit": "short"}),
            ("Capacity", of("capacity_messages"), {"unit": "short"}),
            ("Oldest", of("oldest_seconds"), {"unit": "s"}),
            ("Senders", of("parties", ',role="sender"'), {"unit": "short"}),
            ("Receivers", of("parties", ',role="receiver"'), {"unit": "short"}),
        ],
        keys=["channel"],
        width=12,
        height=8,
        sort_by="Waiting",
    )
    page.series(
        "Fill",
        "Messages that wait, as a share of the channel's capacity. At 1 senders wait or are refused. A line that stays "
        "high: more receivers, or faster ones; a larger capacity only delays it.",
        [ranged(f"{of('waiting_messages')} / {of('capacity_messages')}", "{{channel}}")],
        "percentunit",
    )
    page.series(
        "Messages a second",
        "Sent and received, by channel. Received below sent for long: the channel fills.",
        [
            ranged(rate("numacre_channel_sent_total", POOL, "channel"), "sent, {{channel}}"),
            ranged(rate("numacre_channel_received_total", POOL, "channel"), "received, {{channel}}"),
        ],
        "ops",
        width=6,
    )
    page.series(
        "Oldest message",
        "How long the oldest message of each channel has waited, at least. A line that climbs by a second a second: "
        "nobody receives.",
        [ranged(of("oldest_seconds"), "{{channel}}")],
        "s",
        width=6,
    )
    page.series(
        "Redelivered messages",
        "Messages that a receiver had when it died, and that another one was given. Look for what ends receivers: "
        "Clients reaped, above.",
        [
            ranged(
                f"sum by (channel) (increase(numacre_channel_redelivered_total{{{POOL}}}[$__rate_interval]))",
                "{{channel}}",
            )
        ],
        "short",
        width=6,
    )
    page.series(
        "Dropped and overtaken",
        "Messages that senders dropped to make room (numacre_send_over), and those of broadcast channels that readers "
        "were too slow for; each reader counts. More capacity, or faster receivers.",
        [
            ranged(
                f"sum by (channel) (increase(numacre_channel_{metric}_total{{{POOL}}}[$__rate_interval]))",
                f"{metric}, {{{{channel}}}}",
            )
            for metric in ("dropped", "overtaken")
        ],
        "short",
        width=6,
    )


def daemon(page):
    page.row("Daemon")
    page.series(
        "Resize operations, by result",
        "partial: blocks in use or too few hugepages stopped it half way, `numacre resize --dry-run` names who is "
        "in the way. failed: the daemon's log has the reason. By policy: those of them that `autosize` has made.",
        [
            ranged(
                f"sum by (result) (increase(numacre_resize_operations_total{{{DAEMON}}}[$__rate_interval]))",
                "{{result}}",
            ),
            ranged(
                f"sum by (result) (increase(numacre_autosize_operations_total{{{DAEMON}}}[$__rate_interval]))",
                "by policy: {{result}}",
            ),
        ],
        "short",
        width=8,
    )
    page.series(
        "Recovery duration",
        "How long it took to give a dead client's blocks back. Other clients go on meanwhile, but the memory is not "
        "there for them. Seconds: the machine is overloaded or the client held very many small blocks.",
        [ranged(f"max by (pool) (numacre_recovery_duration_seconds{{{DAEMON}}})", "{{pool}}")],
        "s",
        width=8,
    )
    page.series(
        "Metrics scan duration",
        "How long it took to walk the metadata for one scrape. It grows with the online size; close to the scrape "
        "timeout: scrape less often.",
        [ranged(f"max by (pool) (numacre_scan_duration_seconds{{{DAEMON}}})", "{{pool}}")],
        "s",
        width=8,
    )


def variables(builder):
    def query(name, label, expression):
        return (
            dashboard.QueryVariable(name)
            .label(label)
            .datasource(DATASOURCE)
            .query(expression)
            .refresh(dashboard_model.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(dashboard_model.VariableSort.NATURAL_ASC)
        )

    builder.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    builder.with_variable(query("instance", "Daemon", "label_values(numacre_build_info, instance)"))
    builder.with_variable(query("pool", "Pool", f"label_values(numacre_pool_capacity_bytes{{{DAEMON}}}, pool)"))
    builder.with_variable(
        query("node", "NUMA node", f"label_values(numacre_pool_capacity_bytes{{{POOL}}}, node)")
        .multi(True)
        .include_all(True)
        .current(dashboard_model.VariableOption(selected=True, text="All", value="$__all"))
    )


def build():
    builder = (
        dashboard.Dashboard("numacre")
        .uid("numacre")
        .description("Pools of hugepage frames: capacity, fragmentation by NUMA node and order, clients, failures.")
        .tags(["numacre", "memory", "numa"])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .readonly()
        .tooltip(dashboard_model.DashboardCursorSync.CROSSHAIR)
    )
    variables(builder)
    page = Page(builder)
    for section in (overview, capacity, fragmentation, allocations, clients, channels, daemon):
        section(page)
    return json.dumps(builder.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def main():
    parser = argparse.ArgumentParser(description="Write the numacre Grafana dashboard.")
    default = pathlib.Path(__file__).resolve().parent / "grafana" / "numacre.json"
    parser.add_argument("-o", "--output", default=str(default), help="file to write, - for standard output")
    arguments = parser.parse_args()
    text = build()
    if arguments.output == "-":
        sys.stdout.write(text)
    else:
        pathlib.Path(arguments.output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
