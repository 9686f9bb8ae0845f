"""Measures workers from outside, all in the same way: their queue is filled, they are started, and from the first job
that leaves the queue to the last, the processor time of all their processes is counted, and the broker's.

    measure.py <program> <rusty-celery's, or -> [scale] [workers|publishers|latency|memory|embedded|growth|soak ...]
"""

import os
import statistics
import sys
import time

import sides
from brokers import Database, RabbitMq, write_through
from growth import growth, soak
from sides import PROGRAM, RUSTY, HAS_RUSTY, Side, celery, dramatiq, pikake, rusty
from table import head, row

SCALE = float(sys.argv[3]) if len(sys.argv) > 3 else 1.0
FAST, SLOW, SINGLE = int(60_000 * SCALE), int(6_000 * SCALE), int(1_000 * SCALE)
TURNS = 3


def workers(broker):
    """And what their publishers said, for the next table."""
    head("worker", "jobs/s", "worker CPU µs", "broker CPU µs", "jobs per worker CPU second, to pikake")
    fast = [pikake("quorum", 100), sides.amqprs("quorum"), pikake("classic", 100), sides.amqprs("classic")]
    fast += HAS_RUSTY and [rusty(1), rusty(2)]
    slow = [celery("solo", 1), celery("prefork", 2), celery("threads", 2), dramatiq(1, 8), dramatiq(2, 8)]
    published, pikakes = [], None
    for side in fast + slow:
        sent, rate, cpu, theirs = side.throughput(broker, SLOW if side in slow else FAST)
        pikakes = pikakes or cpu
        row(side.name, f"{rate:,.0f}", f"{cpu:.1f}", f"{theirs:.1f}", f"1 : {cpu / pikakes:.1f}")
        if side in fast and "rusty" not in side.name:
            published.append((side.name, sent))
    return published


def publishers(broker, published):
    for name in ["celery", "dramatiq"]:
        broker.fresh()
        command = [sys.executable, "peers.py", "publish", name, "{count}", "1"]
        side = Side(name, "", command, [], {"BENCH_CONFIRM": "1"})
        published.append((name, side.ask(broker, command, SLOW // 3)))
    if HAS_RUSTY:
        broker.fresh()
        told = rusty(1).ask(broker, [RUSTY, "publish", "{url}", "{count}"], FAST)
        published.append(("rusty-celery, without confirms: it has none", told))
    head("publisher, with confirms", "messages/s", "CPU µs", "pikake to it")
    first = published[0][1]["rate"]
    for name, told in published:
        row(name, f"{told['rate']:,.0f}", f"{told['cpu_us']:.1f}", f"{first / told['rate']:.2f}")


def latency(broker):
    """In turns, since what else writes to the disk is another thing from second to second."""
    asked = []
    for kind in ["quorum", "classic"]:
        asked.append((pikake(kind, 20), [PROGRAM, "latency", "{url}", kind, "{count}"]))
        asked.append((sides.amqprs_answering(kind), [PROGRAM, "bare-latency", "{port}", "{host}", "{count}"]))
    for side in [celery("solo", 1), celery("solo", 1, "quorum"), celery("prefork", 1), celery("threads", 2)]:
        asked.append((side, [sys.executable, "peers.py", "latency", "{count}"]))
    times = {side.name: ([], []) for side, _ in asked}
    written = []
    for _ in range(TURNS):
        for side, command in asked:
            told = side.latency(broker, command, SINGLE // TURNS)
            times[side.name][0].extend(told["answered"])
            times[side.name][1].extend(told["confirmed"])
            written += write_through(SINGLE // TURNS // len(asked))
    head("one job and its value", "p50 ms", "p99 ms", "until confirmed: p50 ms", "p99 ms")
    for name, (answered, confirmed) in times.items():
        row(name, *percentiles(answered), *percentiles(confirmed))
    row("512 bytes written through to the disk, by nobody of these", *percentiles(written), "-", "-")


def percentiles(times):
    times = sorted(times)
    return [f"{times[len(times) * part // 100]:.2f}" if times else "-" for part in (50, 99)]


def memory(broker):
    head("after 300 jobs", "connections", "processes", "RSS MiB", "PSS MiB")
    all_sides = [pikake("quorum", 1), pikake("quorum", 20), pikake("quorum", 100)]
    all_sides += HAS_RUSTY and [rusty(2)]
    all_sides += [celery("prefork", 20), celery("threads", 20), dramatiq(1, 20), dramatiq(20, 1)]
    for side in all_sides:
        connections, processes, rss, pss = side.busy(broker)
        row(side.name, connections, processes, f"{rss:.1f}", f"{pss:.1f}")


def embedded(database):
    """In turns, too; medians."""
    all_sides = [sides.pikake_sqlite(100), sides.huey("thread", 1), sides.huey("thread", 8), sides.huey("process", 2)]
    found = {side.name: [] for side in all_sides}
    alone = {f"pikake, {name}, one process": [] for name in ("SQLite", "memory")}
    for _ in range(TURNS):
        for side in all_sides:
            sent, rate, cpu, _ = side.throughput(database, SLOW // 2 if "huey" in side.name else FAST)
            found[side.name].append((rate, cpu, sent["rate"], sent["cpu_us"]))
        for name, rows in alone.items():
            database.fresh()
            command = [PROGRAM, "alone", "memory://" if "memory" in name else database.url, "classic", "{count}"]
            told = Side(name, "", [], []).ask(database, command, FAST)
            sent, done = told["published"], told["worked"]
            rows.append((done["rate"], done["cpu_us"], sent["rate"], sent["cpu_us"]))
    head("embedded", "jobs/s", "worker CPU µs", "published/s", "CPU µs")
    for name, rows in (found | alone).items():
        rate, cpu, sent, sent_cpu = (statistics.median(column) for column in zip(*rows))
        row(name, f"{rate:,.0f}", f"{cpu:.1f}", f"{sent:,.0f}", f"{sent_cpu:.1f}")


def main():
    tables = sys.argv[4:] or ["workers", "publishers", "latency", "memory", "embedded", "growth", "soak"]
    begun, broker, database = time.monotonic(), RabbitMq(), Database()
    print(f"load average {os.getloadavg()[0]:.1f}, scale {SCALE}")
    try:
        published = workers(broker) if "workers" in tables else []
        if "publishers" in tables and published:
            publishers(broker, published)
        if "latency" in tables:
            latency(broker)
        if "memory" in tables:
            memory(broker)
        if "embedded" in tables:
            embedded(database)
        if "growth" in tables:
            growth(broker, database, int(1_000_000 * SCALE))
        if "soak" in tables:
            soak(broker, 300 * SCALE)
        print(f"\n{time.monotonic() - begun:.0f} s; load average {os.getloadavg()[0]:.1f}")
    finally:
        broker.end()
        database.end()


main()
