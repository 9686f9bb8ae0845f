"""The frameworks: how each is started to publish, to work and to be waited for, and what is measured of it."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from brokers import HERE
from outside import resident, tree, used

PROGRAM, RUSTY = (os.path.abspath(path) for path in sys.argv[1:3])
HAS_RUSTY = os.path.exists(RUSTY)
BIN = pathlib.Path(sys.executable).parent
PATIENCE = 240  # seconds


class Side:
    """A framework in one of its forms."""

    def __init__(self, name, queue, publish, work, environment=None, kind=None):
        self.name, self.queue, self.publish, self.work = name, queue, publish, work
        self.environment, self.kind = environment or {}, kind

    def start(self, broker, command, count=0):
        values = dict(url=broker.url, host=broker.host, port=broker.port, count=count)
        command = [str(part).format(**values) for part in command]
        environment = dict(os.environ, BENCH_URL=broker.url, PYTHONDONTWRITEBYTECODE="1", **self.environment)
        return subprocess.Popen(
            command, cwd=HERE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,
        )

    def ask(self, broker, command, count=0):
        said, _ = self.start(broker, command, count).communicate(timeout=PATIENCE)
        return json.loads(said)

    def stop(self, worker):
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def throughput(self, broker, count):
        """What the publisher said; jobs per second, and microseconds per job of the worker and the broker."""
        broker.fresh(self.kind)
        sent = self.ask(broker, self.publish, count)
        time.sleep(1)
        full = broker.ready(self.queue)
        assert full > 0, f"{self.name}: the queue does not tell how long it is"
        worker = self.start(broker, self.work)
        try:
            since = time.monotonic()
            while broker.ready(self.queue) == full:
                assert worker.poll() is None and time.monotonic() - since < PATIENCE, self.name
                time.sleep(broker.POLL)
            begun, processes = time.monotonic(), tree(worker.pid)
            before, theirs, first = used(processes), used(broker.processes), broker.ready(self.queue)
            while broker.ready(self.queue) > 0:
                assert worker.poll() is None and time.monotonic() - begun < PATIENCE, self.name
                time.sleep(broker.POLL)
            seconds = time.monotonic() - begun
            cpu, theirs = used(processes) - before, used(broker.processes) - theirs
            return sent, first / seconds, cpu / first, theirs / first
        finally:
            self.stop(worker)

    def busy(self, broker, count=300):
        """Connections and memory of a worker that has done some jobs."""
        broker.fresh(self.kind)
        worker = self.start(broker, self.work)
        try:
            time.sleep(3)
            self.ask(broker, self.publish, count)
            time.sleep(2)
            processes = tree(worker.pid)
            return broker.connections(), len(processes), resident(processes, "Rss"), resident(processes, "Pss")
        finally:
            self.stop(worker)

    def latency(self, broker, command, count):
        broker.fresh(self.kind)
        worker = self.start(broker, self.work)
        try:
            time.sleep(3)
            return self.ask(broker, command, count)
        finally:
            self.stop(worker)


def pikake(kind, concurrency):
    publish = [PROGRAM, "publish", "{url}", kind, "{count}"]
    work = [PROGRAM, "work", "{url}", kind, concurrency]
    return Side(f"pikake, {kind} queue, {concurrency} at a time", "bench", publish, work)


def pikake_sqlite(concurrency):
    publish = [PROGRAM, "publish", "{url}", "classic", "{count}"]
    work = [PROGRAM, "work", "{url}", "classic", concurrency]
    return Side(f"pikake, SQLite, {concurrency} at a time", "message", publish, work)


def amqprs(kind):
    publish = [PROGRAM, "bare-publish", "{port}", "{host}", "{count}"]
    work = [PROGRAM, "bare-work", "{port}", "{host}", 200]
    return Side(f"amqprs, bare, {kind} queue", "bench", publish, work, kind=kind)


def amqprs_answering(kind):
    work = [PROGRAM, "bare-answer", "{port}", "{host}", 40]
    return Side(f"amqprs, bare, {kind} queue", "bench", [], work, kind=kind)


def rusty(threads):
    """Its jobs are sent by pikake, into the queue that it declares."""
    publish = [PROGRAM, "publish", "{url}", "classic", "{count}"]
    work = [RUSTY, "work-1" if threads == 1 else "work", "{url}", 200]
    return Side(f"rusty-celery, {threads} thread" + "s" * (threads > 1), "bench", publish, work)


def celery(pool, concurrency, kind="classic"):
    publish = [sys.executable, "peers.py", "publish", "celery", "{count}", "0"]
    work = [sys.executable, "-m", "celery", "-A", "peers", "worker", "-P", pool, "-c", concurrency, "-l", "error"]
    work += ["--without-gossip", "--without-mingle"]
    environment = {"BENCH_PREFETCH": str(max(1, 100 // concurrency)), "BENCH_KIND": kind}
    name = f"celery {pool} -c {concurrency}" + (f", {kind} queue" if kind != "classic" else "")
    return Side(name, "bench", publish, work, environment)


def dramatiq(processes, threads):
    publish = [sys.executable, "peers.py", "publish", "dramatiq", "{count}", "0"]
    work = [BIN / "dramatiq", "peers", "-p", processes, "-t", threads]
    return Side(f"dramatiq -p {processes} -t {threads}", "bench-dramatiq", publish, work)


def huey(kind, workers):
    publish = [sys.executable, "-c", "import huey_peer; huey_peer.publish({count})"]
    work = [BIN / "huey_consumer", "huey_peer.app", "-k", kind, "-w", workers, "-q", "-n"]
    return Side(f"huey -k {kind} -w {workers}", "task", publish, work)
