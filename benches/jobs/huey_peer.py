"""huey's side on SQLite: the same no-op jobs. A job that it takes is deleted at once (at most once), a value is not kept.

    python -c 'import huey_peer; huey_peer.publish(<number>)'

The worker is started by `huey_consumer huey_peer.app`. A job's name begins with its module's, so this is imported by both.
"""

import json
import os
import time

from huey import SqliteHuey

# Its own settings: WAL, and SQLite's default for `synchronous`, which is FULL, as in pikake.
app = SqliteHuey(filename=os.environ["BENCH_URL"].removeprefix("sqlite://"), results=False)


@app.task()
def noop(number):
    return number


def publish(number):
    begun, used = time.perf_counter(), time.process_time()
    for count in range(number):
        noop(count)
    seconds, used = time.perf_counter() - begun, time.process_time() - used
    print(json.dumps({"rate": number / seconds, "cpu_us": used * 1e6 / number}))
