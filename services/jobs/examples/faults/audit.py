"""What came of a run, from its files and the broker itself: without any code of pikake.

`sent` has a line for each piece of work that was sent, and `done.*` what jobs have appended when they ended: the kind, the
number, and what came out. Standard input says where the rest is, as JSON:

    dead     {"file": database}, {"port": port, "host": virtual host}, or null while the run lasts
    queues   the lines of `rabbitmqctl list_queues name messages`

Prints one line of JSON. `open` are the pieces of work of which nothing came, `wrong` are sentences about what is wrong.
"""

import json
import sqlite3
import sys
from collections import Counter
from pathlib import Path

CHORDS = "pikake.chord."
REASON = "for good"


def lines(pattern):
    for file in sorted(Path(sys.argv[1]).glob(pattern)):
        # A killed process may have been writing its last line.
        for line in file.read_text().split("\n")[:-1]:
            kind, number, *rest = line.split()
            yield kind, int(number), [int(word) for word in rest]


def dead_of_sqlite(file):
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
        return database.execute("SELECT job, reason FROM dead").fetchall()


def dead_of_rabbitmq(port, host):
    import amqp

    with amqp.Connection(f"127.0.0.1:{port}", virtual_host=host) as connection:
        channel = connection.channel()
        while message := channel.basic_get("pikake.dead"):
            headers = message.headers
            yield message.properties["correlation_id"], headers.get("pikake_reason", "")


def left_in_sqlite(file):
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
        (count,) = database.execute("SELECT count(*) FROM message").fetchone()
        names = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'chord'").fetchall()
        (members,) = database.execute("SELECT count(*) FROM chord").fetchone() if names else (0,)
        return count, members


def left_in_rabbitmq(queues):
    pairs = (line.rsplit(None, 1) for line in queues)
    counts = {name: int(count) for name, count in pairs if name != "pikake.dead"}
    members = sum(count for name, count in counts.items() if name.startswith(CHORDS))
    return sum(counts.values()) - members, members


def main():
    told = json.load(sys.stdin)
    sent = {(kind, number): rest for kind, number, rest in lines("sent")}
    done, wrong = Counter(), []
    for kind, number, rest in lines("done.*"):
        done[kind, number] += 1
        wanted = sent.get((kind, number))
        if wanted is None:
            wrong.append(f"{kind} {number} was never sent")
        elif rest != wanted:
            wrong.append(f"{kind} {number} came to {rest} and not to {wanted}")
    dead, left, members = [], 0, 0
    match told["dead"]:
        case {"file": file}:
            dead = dead_of_sqlite(file)
            left, members = left_in_sqlite(file)
        case {"port": port, "host": host}:
            dead = list(dead_of_rabbitmq(port, host))
            left, members = left_in_rabbitmq(told["queues"])
    died = Counter()
    for job, reason in dead:
        number = int(job.removeprefix("job-")) if job.startswith("job-") else -1
        died[number] += 1
        if ("fails", number) not in sent or REASON not in reason:
            wrong.append(f"{job} is dead: {reason}")
    if told["dead"] is not None:
        for kind, number in sent:
            if kind == "fails" and not died[number]:
                wrong.append(f"job {number} has failed for good, and is not dead")
    # A revoked job may have ended before it was revoked.
    revoked = [key for key in sent if key[0] == "revoked" and not done[key]]
    open_ = [key for key in sent if key[0] != "revoked" and not done[key]]
    print(json.dumps({
        "sent": len(sent),
        "open": len(open_),
        "examples": [f"{kind} {number}" for kind, number in open_[:20]],
        "revoked": len(revoked),
        "repeated": sum(count - 1 for count in done.values()),
        "kinds": Counter(kind for kind, _ in sent),
        "dead": len(died),
        "left": left,
        "members": members,
        "wrong": wrong[:20],
    }))


main()
