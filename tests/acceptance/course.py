"""What parts run on: commands with a limit, a log of all they say, and what came of each part.

A part is a function of the course and a backend that returns rows, dictionaries with a `state`, or raises `Wrong` (the
numbers), `LeftOut` (something is missing that may be) or anything else, which is a failure of the part.
"""
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path


class Wrong(Exception):
    """Numbers that are not what they must be, or a program that fails."""


class LeftOut(Exception):
    """The machine lacks something that a part may do without."""


class TooLong(Exception):
    """No answer within the limit: it hangs, or it is too slow."""


@dataclass
class Backend:
    name: str
    place: Path
    stand_in: bool
    work: Path
    environment: dict = field(default_factory=dict)
    missing: str = ""

    def home(self, name):
        """A directory for runs, in which CubeCL and the driver keep what they compile and tune."""
        place = self.work / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "cubecl.toml").write_text('[autotune]\ncache = "local"\n')
        return {"cwd": place, "env": {"CUDA_CACHE_PATH": str(place / "driver"), "XDG_CACHE_HOME": str(place)}}

    @property
    def train(self):
        return str(self.place / "train")

    @property
    def module(self):
        """The tests' name for it."""
        return "tch_cuda" if self.name == "tch" and not self.stand_in else self.name


class Course:
    def __init__(self, bundle, out, work, deadline, stand_in):
        self.bundle, self.out, self.work, self.deadline, self.stand_in = bundle, out, work, deadline, stand_in
        self.machine, self.parts = {}, []
        self.part_end = deadline
        self.log = open(out / "accept.log", "w", buffering=1, errors="replace")

    def take(self, name, limit, part, backends):
        """Runs a part on every backend, each with the limit."""
        for backend in backends:
            label = backend.name if isinstance(backend, Backend) else ""
            start = time.monotonic()
            self.part_end = min(self.deadline, start + limit)
            self.log.write(f"\n===== {name} {label}\n")
            state, why, rows = "ok", "", []
            try:
                if isinstance(backend, Backend) and backend.missing:
                    raise LeftOut("its program does not run; see machine")
                if self.left() <= 0:
                    raise TooLong("the time of all parts is over")
                rows = part(self, backend) or []
                states = [row.get("state", "ok") for row in rows]
                state = next((state for state in ("wrong", "too long", "slow", "left out") if state in states), "ok")
            except LeftOut as error:
                state, why = "left out", str(error)
            except TooLong as error:
                state, why = "too long", str(error)
            except Exception as error:
                state, why = "wrong", str(error) or repr(error)
                if not isinstance(error, Wrong):
                    self.log.write(f"{error!r}\n")
            seconds = time.monotonic() - start
            entry = {"part": name, "backend": label, "state": state, "why": why, "seconds": seconds, "rows": rows}
            self.parts.append(entry)
            self.save()
            line = f"{name:<11} {label:<5} {state:<9} {seconds:6.1f} s  {why or summary(rows)}"
            print(line[: shutil.get_terminal_size((200, 24)).columns - 1], flush=True)

    def left(self):
        return self.part_end - time.monotonic()

    def save(self):
        results = {"machine": self.machine, "parts": self.parts}
        (self.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")

    def start(self, command, backend=None, **more):
        """A process in a group of its own, with its output in the log or where `more` says."""
        environment = {**os.environ, **(backend.environment if backend else {}), **more.pop("env", {})}
        self.log.write("$ " + " ".join(map(str, command)) + "\n")
        more.setdefault("stdout", self.log)
        more.setdefault("cwd", self.work)
        more.setdefault("stderr", subprocess.STDOUT)
        return subprocess.Popen(
            list(map(str, command)), env=environment, stdin=subprocess.DEVNULL, start_new_session=True, **more
        )

    def run(self, command, backend=None, limit=None, check=True, **more):
        """The output of a command; it and all it started are killed at the end of its time."""
        limit = min(limit or self.left(), self.left())
        process = self.start(command, backend, stdout=subprocess.PIPE, **more)
        try:
            output = process.communicate(timeout=max(limit, 0.1))[0].decode(errors="replace")
        except subprocess.TimeoutExpired as late:
            self.log.write((late.output or b"").decode(errors="replace"))
            raise TooLong(f"no answer from '{Path(str(command[0])).name}' within {limit:.0f} s") from None
        finally:
            kill(process)
        self.log.write(output)
        if check and process.returncode != 0:
            raise Wrong(last_line(output) or f"'{command[0]}' ended with code {process.returncode}")
        return output


def kill(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def last_line(output):
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:400] if lines else ""


def summary(rows):
    return "; ".join(row["text"] for row in rows if row.get("text"))


class Memory:
    """The most memory of the first card that is in use, above what was before, in GiB; none without nvidia-smi."""

    COMMAND = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--loop-ms=200"]

    def __enter__(self):
        self.values = []
        try:
            self.process = subprocess.Popen(self.COMMAND, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            self.process = None
            return self
        threading.Thread(target=self.read, daemon=True).start()
        return self

    def read(self):
        for line in self.process.stdout:
            if line.strip().isdigit():
                self.values.append(int(line))

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()

    @property
    def peak(self):
        return (max(self.values) - self.values[0]) / 1024 if self.values else None
