#!/usr/bin/env python3
"""Finds out on a machine with a GPU whether Kiln is right and fast there: unattended, in twenty minutes at most.

Run it where `make bench-gpu`'s bundle was unpacked. It needs the GPU's driver, Python, and PyTorch to compare with and
to take libraries from; no registry and no Rust. Each part has a limit of its own, and one that fails does not stop the
others. A table goes to the terminal, results.json and accept.log to --out. The exit code is 0 only if all numbers that
were due are there and right; that something is slow or was left out is said in the table.
"""
import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True

import correct
import machine
import speed
import table
from course import Backend, Course

# In seconds, on each backend. What matters most comes first: the time of all parts may be over before the last one.
PARTS = [
    ("machine", 60, machine.part),
    ("trajectory", 90, correct.trajectory),
    ("kernels", 180, correct.kernels),
    ("resume", 90, correct.resume),
    ("processes", 60, correct.processes),
    ("steps", 300, speed.steps),
    ("nccl", 45, correct.nccl),
    ("ranks", 120, correct.ranks),
    ("tests", 120, correct.tests),
    ("start", 90, speed.start),
    ("replicas", 90, speed.replicas),
    ("traffic", 120, speed.traffic),
]


def options(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="cuda,tch", help="those to look at, of the directories of the bundle")
    parser.add_argument("--minutes", type=float, default=20.0, help="all parts together take no longer")
    parser.add_argument("--only", default="", help="the parts to run, with commas; the machine is always looked at")
    parser.add_argument("--limit", action="append", default=[], metavar="PART=SECONDS", help="another limit for a part")
    parser.add_argument("--out", type=Path, default=Path("accept-results"))
    parser.add_argument("--stand-in", action="store_true", help="no GPU: the processor in its place, and small sizes")
    return parser.parse_args(arguments)


def main(arguments=None):
    asked = options(arguments)
    limits = {name: limit for name, limit, _ in PARTS}
    limits.update((name, float(seconds)) for name, seconds in (limit.split("=") for limit in asked.limit))
    only = set(asked.only.split(",")) - {""}
    unknown = sorted((only | set(limits)) - {name for name, *_ in PARTS})
    if unknown:
        sys.exit(f"there is no part '{unknown[0]}'; the parts are {', '.join(name for name, *_ in PARTS)}")
    asked.out.mkdir(parents=True, exist_ok=True)
    bundle = Path(__file__).resolve().parent
    work = Path(tempfile.mkdtemp(prefix="kiln-accept-"))
    names = asked.backends.split(",")
    backends = [Backend(name, bundle / name, asked.stand_in, work / name) for name in names]
    course = Course(bundle, asked.out.resolve(), work, time.monotonic() + 60 * asked.minutes, asked.stand_in)
    for name, _, part in PARTS:
        if name == "machine" or not only or name in only:
            # What is of one backend alone does not lose its time to another one.
            course.take(name, limits[name], part, backends if name not in ("machine", "steps") else [backends])
    shutil.rmtree(work, ignore_errors=True)
    return table.conclude(course)


if __name__ == "__main__":
    sys.exit(main())
