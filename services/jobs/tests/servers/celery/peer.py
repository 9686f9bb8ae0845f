"""The other side: real Celery, as a worker (`celery -A peer worker`) or as who sends (`peer.py`).

As who sends, it reads a JSON list of calls, sends them all, waits for each, and prints a JSON list of outcomes.
"""

import json
import os
import sys
import time

from celery import Celery, chain, chord, group

app = Celery("peer", broker=os.environ["PEER_URL"], backend=os.environ.get("PEER_RESULTS", "rpc://"))
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_default_queue=os.environ.get("PEER_QUEUE", "celery"),
    worker_prefetch_multiplier=1,
)
if os.environ.get("PEER_QUORUM"):
    # Celery delays messages at the broker if its queues are quorum queues and its exchanges are of
    # topics.
    app.conf.update(task_default_queue_type="quorum", task_default_exchange_type="topic")


@app.task(name="tests.add")
def add(a, b=0):
    return a + b


@app.task(name="tests.sum_named")
def sum_named(*args, **kwargs):
    return {"args": list(args), "kwargs": kwargs}


@app.task(name="tests.fail")
def fail(text, *more):
    raise ValueError(text, *more)


@app.task(name="tests.flaky", bind=True, max_retries=3)
def flaky(self, failures):
    if self.request.retries < failures:
        raise self.retry(countdown=0.2)
    return self.request.retries


@app.task(name="tests.now")
def now():
    return time.time()


@app.task(name="tests.nap")
def nap(seconds):
    time.sleep(seconds)
    return seconds


def signature(spec):
    """A signature of a task, or of a workflow of those in `chain`, `group`, or `chord` and `body`."""
    if "chain" in spec:
        made = chain(*map(signature, spec["chain"]))
    elif "group" in spec:
        made = group([signature(part) for part in spec["group"]])
    elif "chord" in spec:
        made = chord([signature(part) for part in spec["chord"]], signature(spec["body"]))
    else:
        made = app.signature(
            spec["task"],
            args=spec.get("args", []),
            kwargs=spec.get("kwargs", {}),
            options=spec.get("options", {}),
            immutable=spec.get("immutable", False),
        )
    for callback in links(spec, "link"):
        made.link(callback)
    for callback in links(spec, "link_error"):
        made.link_error(callback)
    return made


def links(spec, name):
    for part in spec.get(name, []):
        callback = signature(part)
        callback.freeze()
        LINKED.append(callback.id)
        yield callback


LINKED = []


def outcome(sent, result, timeout, watches):
    if isinstance(result, list):
        return {"value": [link.get(timeout=timeout) for link in result]}
    if hasattr(result, "children") and not hasattr(result, "state"):
        return {"state": "SUCCESS", "value": result.get(timeout=timeout)}
    try:
        seen = []
        watch = {"on_message": lambda meta: seen.append([meta["status"], meta["result"]])}
        value = result.get(timeout=timeout, propagate=False, **(watch if watches else {}))
    except Exception as error:  # no result in time
        return {"state": "NONE", "kind": type(error).__name__, "text": str(error)}
    told = {"state": result.state, "sent": sent, "id": result.id}
    if watches:
        told["seen"] = seen
    if isinstance(value, BaseException):
        told.update(
            kind=type(value).__name__,
            module=type(value).__module__,
            text=" ".join(str(argument) for argument in value.args),
            traceback=result.traceback,
        )
    else:
        told["value"] = value
    return told


def main():
    results = []
    for call in json.load(sys.stdin):
        name, args, kwargs = call.get("task"), call.get("args", []), call.get("kwargs", {})
        options, sent = call.get("options", {}), time.time()
        if "app_id" in options:
            options["app_id"] = options["app_id"].encode("latin-1")
        if {"chain", "group", "chord", "link", "link_error"} & call.keys():
            LINKED.clear()
            result = signature(call).apply_async()
            if call.get("waits_for_link"):
                result = [app.AsyncResult(linked) for linked in LINKED]
        elif name in app.tasks and not options:
            result = app.tasks[name].delay(*args, **kwargs)
        else:
            result = app.send_task(name, args, kwargs, **options)
        results.append((sent, result, call.get("timeout", 90), call.get("watches")))
    json.dump([outcome(*result) for result in results], sys.stdout)


if __name__ == "__main__":
    main()
