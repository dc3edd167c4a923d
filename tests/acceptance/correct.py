"""Whether the numbers are right: the backend-generic tests, each kernel by shape, PyTorch's trajectory, a run that was
killed, two processes on one card, NCCL on each card and between two ranks."""
import hashlib
import json
import re
import socket
import subprocess
import time
from pathlib import Path

from course import LeftOut, TooLong, Wrong, kill, last_line

# Runs of which every bit is compared. Their images are drawn; one step takes a moment.
SMALL = ["data=synthetic", "data.train_size=512", "data.val_size=64", "--width", "16", "--batch-size", "16"]
SMALL += ["--epochs", "1", "--warmup-epochs", "0", "--progress", "none", "--deterministic"]
FILES = ["model.safetensors", "optimizer.safetensors"]


def tested(course, backend, program, *filters, **variables):
    """Runs tests of one program of the backend and returns their numbers; a test that fails is named."""
    skipped = course.work / "skipped"
    skipped.write_text("")
    # In full f32: without it, LibTorch's convolutions round to TF32.
    home = backend.home("tests")
    home["env"].update(NVIDIA_TF32_OVERRIDE="0", KILN_TEST_SKIPPED=str(skipped), **variables)
    output = course.run([backend.place / program, *filters], backend, check=False, **home)
    course.log.write(skipped.read_text())
    counts = re.search(r"test result: .*?(\d+) passed; (\d+) failed", output)
    if not counts:
        raise Wrong(f"the tests did not end: {last_line(output)}")
    passed, failed = map(int, counts.groups())
    reasons = sorted(set(skipped.read_text().splitlines()))
    names = re.findall(r"^test (\S+) \.\.\. FAILED", output, re.M)
    if passed + failed == 0:
        raise Wrong(f"there is no test {' '.join(filters)}")
    return {"passed": passed - len(reasons), "skipped": reasons, "failed": names}


def judged(counts):
    text = f"{counts['passed']} passed, {len(counts['skipped'])} skipped"
    if counts["failed"]:
        text = f"{len(counts['failed'])} failed: {', '.join(counts['failed'])}; {text}"
    return [{**counts, "state": "wrong" if counts["failed"] else "ok", "text": text}]


def tests(course, backend):
    """All that are not parts of their own; a processor takes too long for more than a few."""
    elsewhere = [word for part in ("trajectories", "kernels_picked", "nccl::") for word in ("--skip", part)]
    rows = []
    for program, room in ("ops", "conv"), ("engine", "shards"):
        filtered = f"{room if course.stand_in else ''}::{backend.module}::"
        rows += judged(tested(course, backend, program, filtered, *elsewhere))
    return rows


def kernels(course, backend):
    report = course.work / f"kernels-{backend.name}.jsonl"
    variables = {"KILN_KERNEL_REPORT": str(report), **({} if course.stand_in else {"KILN_KERNEL_BATCH": "64,256"})}
    why = None
    try:
        counts = tested(course, backend, "ops", f"kernels::{backend.module}::", **variables)
    except (TooLong, Wrong) as error:
        why = error
    found = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    groups = {}
    for row in found:
        groups.setdefault((row["kernel"], row["precision"]), []).append(row)
    rows = []
    for (kernel, precision), group in groups.items():
        wrong = [row for row in group if not row["right"]]
        worst = max((row["error"] if row["error"] is not None else float("inf") for row in group))
        text = f"{kernel} {precision}: {len(group)} products, error up to {worst:.0e}"
        slow = max(group, key=lambda row: row.get("milliseconds") or 0)
        if slow.get("milliseconds"):
            text += f", {slow['milliseconds']:.2g} ms for the slowest, {slow['product']} of {slow['shape']}"
        if wrong:
            text += f", {len(wrong)} wrong, first {wrong[0]['product']} of {wrong[0]['shape']}"
        rows.append({"state": "wrong" if wrong else "ok", "text": text, "kernels": group})
    if why or not rows:
        # What was measured until then is worth the more.
        rows.append({"state": "too long" if isinstance(why, TooLong) else "wrong", "text": str(why or counts)})
    return sorted(rows, key=lambda row: row["state"] == "ok")


def trajectory(course, backend):
    return judged(tested(course, backend, "engine", f"parity::{backend.module}::trajectories"))


def bits(run):
    return [hashlib.sha256((run / "checkpoints" / "latest" / name).read_bytes()).hexdigest() for name in FILES]


def train(course, backend, name, *more):
    """A command that trains, what it is run with, and the directory of its run."""
    home = backend.home("runs")
    run = home["cwd"] / name
    return [backend.train, "--backend", backend.name, *SMALL, "--output-dir", run, *more], home, run


def resume(course, backend):
    often = ["--checkpoint-every", "2steps"]
    command, home, calm = train(course, backend, "calm", *often)
    course.run(command, backend, **home)
    command, home, killed = train(course, backend, "killed", *often)
    process = course.start(command, backend, **home)
    try:
        while not (killed / "checkpoints" / "latest" / "model.safetensors").exists():
            if process.poll() is not None:
                raise Wrong("the run that was to be killed ended by itself")
            if course.left() <= 0:
                raise TooLong("no checkpoint came")
            time.sleep(0.005)
    finally:
        kill(process)
    done = sum('"kind":"step"' in line for line in (killed / "metrics.jsonl").read_text().splitlines())
    course.run([*command, "--resume"], backend, **home)
    if bits(killed) != bits(calm):
        raise Wrong(f"a run that was killed after {done} steps ends with other bits than an undisturbed one")
    return [{"text": f"killed after {done} steps, same bits at the end", "killed_after": done}]


def processes(course, backend):
    """Two replicas with synchronised batch-norm: in one process, and in one each."""
    # NCCL refuses two processes on one card.
    two = ["--world-size", "2", "--gpu-ids", "0", "--dist-backend", "gloo"]
    command, home, one = train(course, backend, "one-process", *two)
    course.run(command, backend, **home)
    command, home, each = train(course, backend, "two-processes", *two)
    course.run([command[0], "launch", "--nproc", "2", "--", *command[1:]], backend, **home)
    if bits(one) != bits(each):
        raise Wrong("two processes over Gloo end with other bits than one")
    return [{"text": "two processes over Gloo, same bits as one"}]


def library(course):
    """Where NVIDIA's library is, if it came with PyTorch."""
    found = course.machine["torch"]
    wheel = found and Path(found["place"]).parent / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    return {"KILN_NCCL": str(wheel)} if wheel and wheel.exists() and not course.stand_in else {}


def nccl(course, backend):
    """What Kiln relies on, of NVIDIA's library with one rank on each card; without a card, of the tests' stand-in."""
    if backend.name == "wgpu":
        raise LeftOut("NCCL does not reach the memory of wgpu")
    counts = tested(course, backend, "engine", f"nccl::conformance::{backend.module}::", **library(course))
    if not counts["passed"] and not counts["failed"]:
        raise LeftOut(counts["skipped"][0].split(": ", 1)[-1])
    return judged(counts)


def ranks(course, backend):
    """Two ranks of NVIDIA's library on one card; Gloo in its place without a card. NCCL refuses that on one host, so
    each process names a host of its own, and the network connects them."""
    if backend.name == "wgpu":
        raise LeftOut("NCCL does not reach the memory of wgpu")
    engine, rows = "gloo" if course.stand_in else "nccl", []
    kinds = {"replicas": ["--world-size", "2"], "stages": ["--world-size", "1", "--stages", "2"]}
    for kind, placed in kinds.items():
        command, home, one = train(course, backend, f"one-{kind}", *placed, "--gpu-ids", "0")
        course.run(command, backend, **home)
        command, home, run = train(course, backend, f"two-{kind}", *placed, "--gpu-ids", "0")
        command += ["--dist-backend", engine, "--timeout", "20"]
        start = time.monotonic()
        with Pair(course, backend, command, home) as pair:
            pair.end([0, 0])
        seconds = time.monotonic() - start
        if bits(run) != bits(one):
            raise Wrong(f"two processes over {engine} end with other bits than one: {kind}")
        rows.append({"text": f"two {kind} over {engine} in {seconds:.1f} s, same bits as in one process"})
    command, home, run = train(course, backend, "left", *kinds["replicas"], "--gpu-ids", "0")
    command += ["--dist-backend", engine, "--timeout", "5", "--epochs", "500"]
    with Pair(course, backend, command, home) as pair:
        while not (run / "metrics.jsonl").exists() or '"kind":"step"' not in (run / "metrics.jsonl").read_text():
            if course.left() <= 0:
                raise TooLong("no step came")
            time.sleep(0.01)
        kill(pair.processes[1])
        start = time.monotonic()
        pair.end([75])
    seconds = time.monotonic() - start
    return [*rows, {"text": f"a process that is left ends after {seconds:.1f} s: {last_line(pair.output(0))}"}]


class Pair:
    """The two processes of a run; both are killed at the end."""

    def __init__(self, course, backend, command, home):
        self.course, self.files, self.processes = course, [], []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            url = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        for rank in range(2):
            self.files.append(home["cwd"] / f"rank-{rank}.log")
            variables = {**home["env"], **library(course), "NCCL_HOSTID": f"host-{rank}"}
            more = {"cwd": home["cwd"], "env": variables, "stdout": self.files[rank].open("w")}
            self.processes.append(course.start([*command, "--rank", rank, "--dist-url", url], backend, **more))

    def output(self, rank):
        return self.files[rank].read_text(errors="replace")

    def end(self, codes):
        """Waits until the first processes end, with these codes."""
        for rank, (process, code) in enumerate(zip(self.processes, codes)):
            try:
                found = process.wait(timeout=max(self.course.left(), 0.1))
            except subprocess.TimeoutExpired:
                raise TooLong(f"rank {rank} does not end") from None
            if found != code:
                raise Wrong(f"rank {rank} ended with {found}, not {code}: {last_line(self.output(rank))}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank, process in enumerate(self.processes):
            kill(process)
            self.course.log.write(f"rank {rank}:\n{self.output(rank)}\n")
