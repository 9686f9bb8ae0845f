"""A plugin of pytest for Celery's integration tests.

PIKAKE_CASES is a file that gets a line for each case: its name, a tab, and `passed`, `failed` or
`skipped`. A case passes if it does in one of its tries, also if its authors expect a failure. A
later line of a case replaces an earlier one; the last line is `end`.

PIKAKE_LEFT_OUT has the cases that are not run, a line each; a `*` at the end stands for any text.

With PIKAKE_WORKER, the worker that the tests share is that program, with the broker PIKAKE_BROKER.
Its output goes to PIKAKE_LOG.
"""
import os
import subprocess
import time
from contextlib import contextmanager

from celery.contrib.testing import worker
from celery.utils.nodenames import anon_nodename

# How long the worker has to answer, in seconds.
STARTS = 30


@contextmanager
def start_worker(app, **_):
    """Takes the place of `celery.contrib.testing.worker.start_worker`."""
    app.finalize()
    app.set_current()
    app.set_default()
    # The name by which the tests know the worker.
    name = anon_nodename()
    arguments = [os.environ[key] for key in ("PIKAKE_WORKER", "PIKAKE_BROKER", "TEST_BACKEND")]
    with open(os.environ["PIKAKE_LOG"], "ab") as log:
        process = subprocess.Popen([*arguments, name], stdout=log, stderr=log)
    try:
        inspect = app.control.inspect([name])
        end = time.monotonic() + STARTS
        while not inspect.ping():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the worker does not answer; its status is {process.poll()}")
        yield process
        if process.poll() is not None:
            raise RuntimeError(f"the worker has ended before the tests: {process.poll()}")
    finally:
        process.terminate()
        process.wait()


if "PIKAKE_WORKER" in os.environ:
    worker.start_worker = start_worker

cases = open(os.environ["PIKAKE_CASES"], "w", buffering=1)
# The outcomes of the parts of the case that runs: its fixtures, itself and its subtests.
outcomes = set()


def name_of(nodeid):
    return nodeid.removeprefix("t/integration/")


def pytest_collection_modifyitems(items):
    patterns = os.environ.get("PIKAKE_LEFT_OUT", "").split("\n")
    begins = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    names = ((item, name_of(item.nodeid)) for item in items)
    items[:] = [item for item, name in names
                if name not in patterns and not name.startswith(begins)]


def pytest_runtest_logreport(report):
    if report.outcome == "rerun":
        outcomes.clear()
    elif hasattr(report, "wasxfail"):
        outcomes.add("passed" if report.passed else "failed")
    elif str(report.longrepr).startswith("[XPASS(strict)]"):
        outcomes.add("passed")
    else:
        outcomes.add(report.outcome)


def pytest_runtest_logfinish(nodeid):
    worst = [outcome for outcome in ("failed", "skipped", "passed") if outcome in outcomes]
    cases.write(f"{name_of(nodeid)}\t{worst[0]}\n")
    outcomes.clear()


def pytest_sessionfinish():
    cases.write("end\n")
