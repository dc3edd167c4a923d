"""Whether the numbers are right: the backend-generic tests, each kernel by shape, PyTorch's trajectory, a run that was
killed, two processes on one card, NCCL on each card."""
import hashlib
import json
import re
import time
from pathlib import Path

from course import LeftOut, TooLong, Wrong, kill, last_line

# Runs of which every bit is compared. Their images are drawn; one step takes a moment.
SMALL = ["data=synthetic", "data.train_size=512", "data.val_size=64", "--width", "16", "--batch-size", "16"]
SMALL += ["--epochs", "1", "--warmup-epochs", "0", "--progress", "none", "--deterministic"]
FILES = ["model.safetensors", "optimizer.safetensors"]


def tested(course, backend, *filters, **variables):
    """Runs tests of the backend and returns their numbers; a test that fails is named."""
    skipped = course.work / "skipped"
    skipped.write_text("")
    # In full f32: without it, LibTorch's convolutions round to TF32.
    home = backend.home("tests")
    home["env"].update(NVIDIA_TF32_OVERRIDE="0", KILN_TEST_SKIPPED=str(skipped), **variables)
    output = course.run([backend.place / "tests", *filters], backend, check=False, **home)
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
    rooms = ["ops::relu", "ops::conv", "shards"] if course.stand_in else [""]
    filters = [f"{room}::{backend.module}::" for room in rooms]
    elsewhere = [word for part in ("trajectories", "kernels_picked", "nccl::") for word in ("--skip", part)]
    return judged(tested(course, backend, *filters, *elsewhere))


def kernels(course, backend):
    report = course.work / f"kernels-{backend.name}.jsonl"
    variables = {"KILN_KERNEL_REPORT": str(report), **({} if course.stand_in else {"KILN_KERNEL_BATCH": "64,256"})}
    why = None
    try:
        counts = tested(course, backend, f"ops::kernels::{backend.module}::", **variables)
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
        if wrong:
            text += f", {len(wrong)} wrong, first {wrong[0]['product']} of {wrong[0]['shape']}"
        rows.append({"state": "wrong" if wrong else "ok", "text": text, "kernels": group})
    if why or not rows:
        # What was measured until then is worth the more.
        rows.append({"state": "too long" if isinstance(why, TooLong) else "wrong", "text": str(why or counts)})
    return sorted(rows, key=lambda row: row["state"] == "ok")


def trajectory(course, backend):
    return judged(tested(course, backend, f"parity::{backend.module}::trajectories"))


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


def nccl(course, backend):
    """What Kiln relies on, of NVIDIA's library with one rank on each card; without a card, of the tests' stand-in."""
    if backend.name == "wgpu":
        raise LeftOut("NCCL does not reach the memory of wgpu")
    variables, found = {}, course.machine["torch"]
    wheel = found and Path(found["place"]).parent / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    if wheel and wheel.exists() and not course.stand_in:
        variables["KILN_NCCL"] = str(wheel)
    counts = tested(course, backend, f"nccl::conformance::{backend.module}::", **variables)
    if not counts["passed"] and not counts["failed"]:
        raise LeftOut(counts["skipped"][0].split(": ", 1)[-1])
    return judged(counts)
