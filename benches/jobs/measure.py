"""Measures workers from outside, all in the same way: their queue is filled, they are started, and from the first job
that leaves the queue to the last, the processor time of all their processes is counted, and the broker's.

    measure.py <program> [scale]
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import amqp

PROGRAM, SCALE = os.path.abspath(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
HERE = pathlib.Path(__file__).resolve().parent
TICK = 1e6 / os.sysconf("SC_CLK_TCK")  # microseconds
BIN = pathlib.Path(sys.executable).parent
FAST, SLOW, SINGLE = int(60_000 * SCALE), int(6_000 * SCALE), int(500 * SCALE)
PATIENCE = 120


class Broker:
    def __init__(self):
        script = HERE.parent.parent / "scripts" / "real-server"
        self.script = subprocess.Popen(
            [script, "rabbitmq"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.port = int(self.script.stdout.readline().split()[1])
        self.hosts = 0
        below = tree(self.script.pid)
        self.process = next(pid for pid in below if b"beam.smp" in read(pathlib.Path(f"/proc/{pid}/cmdline")))

    def command(self, command):
        self.script.stdin.write(command + "\n")
        self.script.stdin.flush()
        said = []
        for line in self.script.stdout:
            if line in ("done\n", "failed\n"):
                assert line == "done\n", (command, said)
                return said
            said.append(line.rstrip("\n"))

    def fresh(self):
        """A virtual host in which there is nothing."""
        self.hosts += 1
        self.host = f"run{self.hosts}"
        self.command(f"ctl add_vhost {self.host}")
        self.command(f"ctl set_permissions -p {self.host} guest .* .* .*")
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/{self.host}"
        self.connection = amqp.Connection(f"127.0.0.1:{self.port}", virtual_host=self.host)
        self.connection.connect()
        self.channel = self.connection.channel()

    def ready(self, queue):
        return self.channel.queue_declare(queue, passive=True).message_count

    def connections(self):
        """Without the one that looks."""
        return self.command("ctl list_connections vhost --no-table-headers").count(self.host) - 1

    def end(self):
        self.script.stdin.close()
        self.script.wait()


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def tree(root):
    """A process and all below it."""
    parents = {}
    for path in pathlib.Path("/proc").iterdir():
        if path.name.isdigit():
            stat = read(path / "stat").rpartition(b")")[2].split()
            if stat:
                parents.setdefault(int(stat[1]), []).append(int(path.name))
    found, left = [], [root]
    while left:
        process = left.pop()
        found.append(process)
        left += parents.get(process, [])
    return found


def used(processes):
    """Microseconds of processor time."""
    total = 0
    for process in processes:
        stat = read(pathlib.Path(f"/proc/{process}/stat")).rpartition(b")")[2].split()
        total += sum(int(ticks) for ticks in stat[11:13])
    return total * TICK


def resident(processes, kind):
    """MiB: what is resident (Rss), or with what is shared divided up (Pss)."""
    total = 0
    for process in processes:
        for line in read(pathlib.Path(f"/proc/{process}/smaps_rollup")).decode().splitlines():
            if line.startswith(kind + ":"):
                total += int(line.split()[1])
    return total / 1024


class Side:
    """A framework in one of its forms."""

    def __init__(self, name, queue, publish, work, count, environment=None):
        self.name, self.queue, self.publish, self.work, self.count = name, queue, publish, work, count
        self.environment = environment or {}

    def start(self, broker, command):
        values = dict(url=broker.url, host=broker.host, port=broker.port, count=self.count)
        command = [str(part).format(**values) for part in command]
        environment = dict(os.environ, BENCH_URL=broker.url, PYTHONDONTWRITEBYTECODE="1", **self.environment)
        return subprocess.Popen(
            command, cwd=HERE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,
        )

    def ask(self, broker, command):
        said, _ = self.start(broker, command).communicate(timeout=PATIENCE)
        return json.loads(said)

    def stop(self, worker):
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def throughput(self, broker):
        """Jobs per second, and microseconds per job of the worker and the broker."""
        broker.fresh()
        if self.name.startswith("amqprs"):
            # It declares nothing itself.
            broker.channel.queue_declare(
                "bench", durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"}
            )
        sent = self.ask(broker, self.publish)
        time.sleep(1)
        full = broker.ready(self.queue)
        worker = self.start(broker, self.work)
        try:
            since = time.monotonic()
            while broker.ready(self.queue) == full:
                assert worker.poll() is None and time.monotonic() - since < PATIENCE, self.name
                time.sleep(0.002)
            begun, processes = time.monotonic(), tree(worker.pid)
            before, theirs, first = used(processes), used([broker.process]), broker.ready(self.queue)
            while broker.ready(self.queue) > 0:
                assert worker.poll() is None and time.monotonic() - begun < PATIENCE, self.name
                time.sleep(0.002)
            seconds = time.monotonic() - begun
            cpu, theirs = used(processes) - before, used([broker.process]) - theirs
            return sent, first / seconds, cpu / first, theirs / first
        finally:
            self.stop(worker)

    def busy(self, broker):
        """Connections and memory of a worker that has done some jobs."""
        broker.fresh()
        worker = self.start(broker, self.work)
        try:
            time.sleep(3)
            few = [str(part).replace("{count}", "300") for part in self.publish]
            self.ask(broker, few)
            time.sleep(2)
            processes = tree(worker.pid)
            return broker.connections(), len(processes), resident(processes, "Rss"), resident(processes, "Pss")
        finally:
            self.stop(worker)

    def latency(self, broker, command):
        broker.fresh()
        worker = self.start(broker, self.work)
        try:
            time.sleep(3)
            return self.ask(broker, command)
        finally:
            self.stop(worker)


def pikake(kind, concurrency):
    publish = [PROGRAM, "publish", "{url}", kind, "{count}"]
    return Side(f"pikake, {kind} queue, {concurrency} at a time", "bench", publish, [PROGRAM, "work", "{url}", kind, concurrency], FAST)


def celery(pool, concurrency):
    publish = [sys.executable, "peers.py", "publish", "celery", "{count}", "0"]
    work = [sys.executable, "-m", "celery", "-A", "peers", "worker", "-P", pool, "-c", concurrency, "-l", "error"]
    work += ["--without-gossip", "--without-mingle"]
    prefetch = str(max(1, 100 // concurrency))
    return Side(f"celery {pool} -c {concurrency}", "bench", publish, work, SLOW, {"BENCH_PREFETCH": prefetch})


def dramatiq(processes, threads):
    publish = [sys.executable, "peers.py", "publish", "dramatiq", "{count}", "0"]
    work = [BIN / "dramatiq", "peers", "-p", processes, "-t", threads]
    return Side(f"dramatiq -p {processes} -t {threads}", "bench-dramatiq", publish, work, SLOW)


def main():
    begun, broker = time.monotonic(), Broker()
    print(f"load average {os.getloadavg()[0]:.1f}, scale {SCALE}\n")
    try:
        bare = [PROGRAM, "bare-publish", "{port}", "{host}", "{count}"]
        amqprs = Side("amqprs, bare, quorum queue", "bench", bare, [PROGRAM, "bare-work", "{port}", "{host}", 200], FAST)
        sides = [pikake("quorum", 100), amqprs, pikake("classic", 100)]
        sides += [celery("solo", 1), celery("prefork", 2), celery("threads", 2), dramatiq(1, 8), dramatiq(2, 8)]
        print("| worker | jobs/s | worker CPU µs | broker CPU µs | jobs per worker CPU second, to pikake |")
        print("| --- | --- | --- | --- | --- |", flush=True)
        published, pikakes = [], None
        for side in sides:
            sent, rate, cpu, theirs = side.throughput(broker)
            pikakes = pikakes or cpu
            print(f"| {side.name} | {rate:,.0f} | {cpu:.1f} | {theirs:.1f} | 1 : {cpu / pikakes:.1f} |", flush=True)
            if "celery" not in side.name and "dramatiq" not in side.name:
                published.append((side.name, sent))
        for name in ["celery", "dramatiq"]:
            broker.fresh()
            command = [sys.executable, "peers.py", "publish", name, "{count}", "1"]
            side = Side(name, "", command, [], SLOW // 3, {"BENCH_CONFIRM": "1"})
            published.append((f"{name}, confirmed", side.ask(broker, command)))
        print("\n| publisher, with confirms | messages/s | CPU µs | pikake to it |\n| --- | --- | --- | --- |")
        first = published[0][1]["rate"]
        for name, told in published:
            print(f"| {name} | {told['rate']:,.0f} | {told['cpu_us']:.1f} | {first / told['rate']:.2f} |", flush=True)
        print("\n| one job and its value | p50 ms | p99 ms |\n| --- | --- | --- |")
        for kind in ["quorum", "classic"]:
            side = pikake(kind, 20)
            told = side.latency(broker, [PROGRAM, "latency", "{url}", kind, SINGLE])
            print(f"| pikake, {kind} queue | {told['p50']:.2f} | {told['p99']:.2f} |", flush=True)
        for side in [celery("solo", 1), celery("prefork", 1), celery("threads", 2)]:
            told = side.latency(broker, [sys.executable, "peers.py", "latency", SINGLE])
            print(f"| {side.name} | {told['p50']:.2f} | {told['p99']:.2f} |", flush=True)
        print("\n| 20 at a time, after 300 jobs | connections | processes | RSS MiB | PSS MiB |\n| --- | --- | --- | --- | --- |")
        for side in [pikake("quorum", 20), celery("prefork", 20), celery("threads", 20), dramatiq(1, 20), dramatiq(20, 1)]:
            connections, processes, rss, pss = side.busy(broker)
            print(f"| {side.name} | {connections} | {processes} | {rss:.1f} | {pss:.1f} |", flush=True)
        print(f"\n{time.monotonic() - begun:.0f} s; load average {os.getloadavg()[0]:.1f}")
    finally:
        broker.end()


main()
