"""What becomes of pikake's worker when there is much to do, and when it goes on for long."""

import os
import time

from outside import resident, tree, used
from sides import PROGRAM, Side, pikake
from table import head, row

SAMPLES = 10


def growth(broker, database, count):
    """A long queue: how fast its tenths are worked off."""
    head(f"{count:,} jobs in the queue", *(f"{tenth}." for tenth in range(1, SAMPLES + 1)), "RSS MiB")
    side = pikake("quorum", 100)
    broker.fresh()
    side.ask(broker, side.publish, count)
    time.sleep(2)
    worker = side.start(broker, side.work)
    try:
        rates, most, full = [], 0, broker.ready(side.queue)
        assert full > 0, "the queue does not tell how long it is"
        before = left = full
        while left == full:
            left = broker.ready(side.queue)
        begun = time.monotonic()
        while left > 0:
            time.sleep(broker.POLL)
            left = broker.ready(side.queue)
            if before - left >= full / SAMPLES or left == 0:
                now = time.monotonic()
                rates.append((before - left) / (now - begun))
                before, begun, most = left, now, max(most, resident(tree(worker.pid), "Rss"))
        row("RabbitMQ, jobs/s", *(f"{rate:,.0f}" for rate in rates[:SAMPLES]), f"{most:.1f}")
    finally:
        side.stop(worker)
    database.fresh()
    told = Side("memory", "", [], []).ask(database, [PROGRAM, "alone", "memory://", "classic", "{count}"], count)
    row("memory, jobs/s", *(f"{rate:,.0f}" for rate in told["tenths"][:SAMPLES]), "(with all jobs)")


def soak(broker, seconds):
    """A worker and a publisher at full rate, for a while."""
    head(f"{seconds:.0f} s at full rate", "jobs/s", "worker CPU µs", "left in the queue", "worker RSS MiB", "publisher RSS MiB")
    side = pikake("quorum", 100)
    broker.fresh()
    worker = side.start(broker, side.work)
    time.sleep(1)
    publisher = side.start(broker, [PROGRAM, "endless", "{url}", "quorum", 200])
    try:
        begun = last = time.monotonic()
        done_before = cpu_before = 0
        for sample in range(1, SAMPLES + 1):
            time.sleep(max(0, begun + sample * seconds / SAMPLES - time.monotonic()))
            assert worker.poll() is None and publisher.poll() is None, "one of them has ended"
            left = broker.ready(side.queue)
            now, done, cpu = time.monotonic(), sent(publisher) - left, used([worker.pid])
            jobs = done - done_before
            rate, each = jobs / (now - last), (cpu - cpu_before) / max(1, jobs)
            rss = [f"{resident([process.pid], 'Rss'):.2f}" for process in (worker, publisher)]
            row(f"{now - begun:.0f} s", f"{rate:,.0f}", f"{each:.1f}", left, *rss)
            last, done_before, cpu_before = now, done, cpu
    finally:
        side.stop(publisher)
        side.stop(worker)


def sent(publisher):
    """How many messages it has sent, to a second."""
    return int(os.read(publisher.stdout.fileno(), 65536).split()[-1])
