"""Where jobs wait: a RabbitMQ of our own, or a SQLite database. Both are asked in the same way how many there are."""

import os
import pathlib
import shutil
import sqlite3
import subprocess
import tempfile
import time

import amqp

from outside import read, tree

HERE = pathlib.Path(__file__).resolve().parent


class RabbitMq:
    POLL = 0.002  # seconds

    def __init__(self):
        command = ["cargo", "xtask", "server", "rabbitmq"]
        self.script = subprocess.Popen(
            command,
            cwd=HERE.parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = int(self.script.stdout.readline().split()[1])
        self.hosts = 0
        below = tree(self.script.pid)
        self.processes = [
            next(pid for pid in below if b"beam.smp" in read(pathlib.Path(f"/proc/{pid}/cmdline")))
        ]

    def command(self, command):
        self.script.stdin.write(command + "\n")
        self.script.stdin.flush()
        said = []
        for line in self.script.stdout:
            if line in ("done\n", "failed\n"):
                assert line == "done\n", (command, said)
                return said
            said.append(line.rstrip("\n"))

    def fresh(self, kind=None):
        """A virtual host in which there is nothing, or a queue for those who declare none themselves."""
        self.hosts += 1
        self.host = f"run{self.hosts}"
        self.command(f"ctl add_vhost {self.host}")
        self.command(f"ctl set_permissions -p {self.host} guest .* .* .*")
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/{self.host}"
        self.connection = amqp.Connection(f"127.0.0.1:{self.port}", virtual_host=self.host)
        self.connection.connect()
        self.channel = self.connection.channel()
        if kind:
            arguments = {"x-queue-type": kind}
            self.channel.queue_declare("bench", durable=True, auto_delete=False, arguments=arguments)

    def ready(self, queue):
        """RabbitMQ says 0 also when a quorum queue has not told it within a quarter of a second."""
        ask = lambda: self.channel.queue_declare(queue, passive=True).message_count  # noqa: E731
        return ask() or ask() or ask()

    def connections(self):
        """Without the one that looks."""
        return self.command("ctl list_connections vhost --no-table-headers").count(self.host) - 1

    def end(self):
        self.script.stdin.close()
        self.script.wait()


class Database:
    """A file; a queue's name is that of the table with its messages."""

    POLL = 0.02  # seconds: to count rows takes about one millisecond
    host = port = ""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="pikake-bench.")
        self.files = 0
        self.processes = []

    def fresh(self, kind=None):
        self.files += 1
        self.path = f"{self.folder}/{self.files}.db"
        self.url = f"sqlite://{self.path}"

    def ready(self, queue):
        database = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=10)
        try:
            return database.execute(f"SELECT count(*) FROM {queue}").fetchone()[0]
        finally:
            database.close()

    def end(self):
        shutil.rmtree(self.folder)


def write_through(count):
    """Milliseconds that the disk takes for small writes that are to stay (fdatasync)."""
    times = []
    with tempfile.NamedTemporaryFile() as file:
        for number in range(count):
            os.pwrite(file.fileno(), b"." * 512, number * 512)
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - begun) * 1e3)
    return times
