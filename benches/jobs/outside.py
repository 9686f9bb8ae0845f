"""Processes as the system sees them: who belongs to whom, processor time, memory."""

import os
import pathlib

TICK = 1e6 / os.sysconf("SC_CLK_TCK")  # microseconds


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
