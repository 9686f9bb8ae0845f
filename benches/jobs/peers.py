"""Celery's and dramatiq's side: the same no-op jobs, published, worked off and waited for.

    peers.py publish celery|dramatiq <number> <confirm: 0 or 1>
    peers.py latency <number>

Workers are started by `celery -A peers worker` and `dramatiq peers`. Prints one line of JSON.
"""

import json
import os
import sys
import time

URL = os.environ["BENCH_URL"]

from celery import Celery  # noqa: E402

app = Celery("peers", broker=URL, backend="rpc://")
app.conf.update(
    task_default_queue="bench",
    task_default_queue_type=os.environ.get("BENCH_KIND", "classic"),
    worker_prefetch_multiplier=int(os.environ.get("BENCH_PREFETCH", "100")),
    broker_connection_retry_on_startup=True,
)


@app.task(name="bench.noop", ignore_result=True)
def noop(number):
    return number


@app.task(name="bench.valued")
def valued(number):
    return number


try:
    import dramatiq
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    dramatiq.set_broker(RabbitmqBroker(url=URL, confirm_delivery=os.environ.get("BENCH_CONFIRM") == "1"))

    @dramatiq.actor(queue_name="bench-dramatiq")
    def idle(number):
        return number

except ImportError:
    dramatiq = None


def publish(framework, number, confirm):
    app.conf.broker_transport_options = {"confirm_publish": confirm}
    send = noop.delay if framework == "celery" else idle.send
    send(0)  # connects
    begun, used = time.perf_counter(), time.process_time()
    for count in range(number):
        send(count)
    seconds, used = time.perf_counter() - begun, time.process_time() - used
    print(json.dumps({"rate": number / seconds, "cpu_us": used * 1e6 / number}))


def latency(number):
    times = []
    for count in range(number + 20):
        begun = time.perf_counter()
        assert valued.delay(count).get(timeout=30) == count
        times.append((time.perf_counter() - begun) * 1e3)
    print(json.dumps({"answered": times[20:], "confirmed": []}))


if __name__ == "__main__":
    if sys.argv[1] == "publish":
        publish(sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1")
    else:
        latency(int(sys.argv[2]))
