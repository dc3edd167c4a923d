"""How fast it is, beside PyTorch on the same card: Kiln and PyTorch in turns, each run in a process of its own.

A run of Kiln includes its loader, its metrics and its log; PyTorch's batch lies ready in memory. In f32, LibTorch and
PyTorch compute convolutions in TF32 on a card that has it, which is the default of both.
"""
import json
import statistics
import sys

from course import LeftOut, Memory, TooLong, Wrong

# The first steps compile and tune kernels.
WARM_UP = 6
# A step that takes longer than this times PyTorch's is called slow.
SLOW = 1.5

# Stem, pixels, batch, precision; the ones that matter most come first, for time may run out.
CASES = [
    ("cifar", 32, 64, "bf16"),
    ("cifar", 32, 256, "bf16"),
    ("cifar", 32, 1024, "bf16"),
    ("cifar", 32, 256, "f32"),
    ("imagenet", 224, 64, "bf16"),
    ("cifar", 32, 1024, "f32"),
    ("cifar", 32, 64, "f32"),
    ("imagenet", 224, 64, "f32"),
]
SMALL_CASES = [("cifar", 32, 8, "f32"), ("cifar", 32, 16, "f32")]
ROUNDS = 3
# Most bytes of losses, counts and norm that come from a replica in a step.
OUTCOME = 64


def steps_of(course):
    return 4 if course.stand_in else 20


def longest(course):
    """Seconds that one run may take; a processor in the place of a GPU has all the time of the part."""
    return None if course.stand_in else 90


def records(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == "step"]


def kiln(course, backend, case, *more, home="runs"):
    """Seconds of each step, and the card's peak memory."""
    stem, pixels, batch, precision = case
    count = WARM_UP + steps_of(course)
    home = backend.home(home)
    run = home["cwd"] / f"speed-{len(list(home['cwd'].glob('speed-*')))}"
    # Images of another size are resized while it trains: few of them suffice.
    images = 512 if pixels != 32 else min(count * batch, 32768)
    command = [backend.train, "--backend", backend.name, "data=synthetic", f"data.train_size={images}"]
    command += ["--stem", stem, "--batch-size", batch, "--precision", precision, "--max-steps", count]
    command += ["--epochs", "100", "--limit-val-batches", "1", "--checkpoint-every", "never", "--progress", "none"]
    command += [*(["--image-size", pixels] if pixels != 32 else []), "--output-dir", run, *more]
    with Memory() as memory:
        course.run(command, backend, limit=longest(course), **home)
    seconds = [record["step_seconds"] for record in records(run)]
    return {"seconds": seconds[WARM_UP:], "first": seconds[0], "memory": memory.peak, "run": run}


def peer(course, case, *way):
    stem, pixels, batch, precision = case
    command = [sys.executable, course.bundle / "peer.py", "step", "--stem", stem, "--image-size", pixels]
    command += ["--batch", batch, "--precision", precision, "--channels-last", "--steps", steps_of(course)]
    command += ["--device", "cpu" if course.stand_in else "cuda", *way]
    with Memory() as memory:
        output = course.run(command, limit=longest(course))
    return {"seconds": json.loads(output.strip().splitlines()[-1])["seconds"], "memory": memory.peak}


def contestants(course, backends):
    found = {}
    for it in [it for it in backends if not it.missing]:
        found["kiln " + it.name] = lambda case, it=it: kiln(course, it, case)
        way = {"tch": ("recorded", "--cuda-graph", "on"), "cuda": ("cudnn", "--cudnn")}.get(it.name)
        if way and not course.stand_in:
            found[f"kiln {it.name} {way[0]}"] = lambda case, it=it, way=way: kiln(course, it, case, *way[1:])
    if course.machine["torch"] and course.machine["torch"]["torchvision"]:
        found["eager"] = lambda case: peer(course, case)
        if not course.stand_in:
            found["eager recorded"] = lambda case: peer(course, case, "--cuda-graph")
            found["torch.compile"] = lambda case: peer(course, case, "--compile")
    return found


def steps(course, backends):
    """Every case once with all contestants, then again while there is time."""
    cases = SMALL_CASES if course.stand_in else CASES
    rows = [{"case": case, "runs": {}, "said": {}} for case in cases]
    found = contestants(course, backends)
    if not any(name.startswith("kiln") for name in found):
        raise LeftOut("none of Kiln's programs runs")
    for _ in range(1 if course.stand_in else ROUNDS):
        for row in rows:
            for name, run in found.items():
                if name in row["said"] or course.left() < 5:
                    continue
                try:
                    done = run(row["case"])
                    row["runs"].setdefault(name, []).append({key: done[key] for key in ("seconds", "memory")})
                except (TooLong, Wrong) as error:
                    row["said"][name] = str(error)
    return [concluded(row) for row in rows]


def concluded(row):
    stem, pixels, batch, precision = row["case"]
    times = {name: [statistics.median(run["seconds"]) for run in runs] for name, runs in row["runs"].items()}
    row["ms"] = {name: 1e3 * statistics.median(all) for name, all in times.items()}
    row["spread"] = {name: [1e3 * min(all), 1e3 * max(all)] for name, all in times.items()}
    row["n"] = {name: len(all) for name, all in times.items()}
    row["memory"] = {name: max((run["memory"] or 0) for run in runs) or None for name, runs in row["runs"].items()}
    theirs = [ms for name, ms in row["ms"].items() if not name.startswith("kiln")]
    row["ratio"] = {name: ms / min(theirs) for name, ms in row["ms"].items() if theirs and name.startswith("kiln")}
    row["state"] = "slow" if any(ratio > SLOW for ratio in row["ratio"].values()) else "ok"
    failed = [f"{name}: {said}" for name, said in row["said"].items()]
    if any(name.startswith("kiln") for name in row["said"]):
        row["state"] = "wrong"
    elif not row["ms"]:
        row["state"] = "left out"
    parts = [f"{name} {ms:.1f} ms" for name, ms in row["ms"].items()] + failed
    row["text"] = f"{stem} stem, {pixels} pixels, batch {batch}, {precision}: " + (", ".join(parts) or "no time left")
    return row


def start(course, backend):
    """A process's first step, without kernels that an earlier one compiled and tuned, and with them."""
    case = ("cifar", 32, 8 if course.stand_in else 256, "f32" if course.stand_in else "bf16")
    cold, cached = (kiln(course, backend, case, home="cold")["first"] for _ in range(2))
    return [{"cold": cold, "cached": cached, "text": f"first step {cold:.1f} s cold, {cached:.1f} s cached"}]


def replicas(course, backend):
    """Two replicas on one card with synchronised batch-norm, beside one replica with the same global batch."""
    batch, precision = (8, "f32") if course.stand_in else (256, "bf16")
    one = statistics.median(kiln(course, backend, ("cifar", 32, batch, precision))["seconds"])
    two = ["--world-size", "2", "--gpu-ids", "0"]
    two = statistics.median(kiln(course, backend, ("cifar", 32, batch // 2, precision), *two)["seconds"])
    text = f"W = 1 x {batch}: {1e3 * one:.1f} ms, W = 2 x {batch // 2}: {1e3 * two:.1f} ms, {two / one:.2f} times as long"
    return [{"one": one, "two": two, "text": text}]


def traffic(course, backend):
    """How often a step waits for a copy from the card, which it must not, what is copied, how long the host is busy."""
    batch, precision = (8, "f32") if course.stand_in else (256, "bf16")
    rows = []
    for replicas in (1, 2):
        world = ["--world-size", replicas, "--gpu-ids", "0", "--profile"]
        run = kiln(course, backend, ("cifar", 32, batch // replicas, precision), *world)["run"]
        row = copied(json.loads((run / "trace.json").read_text())["traceEvents"])
        text = f"a step of W = {replicas} x {batch // replicas}: waits for {row['reads']:g} reads, {row['late']:g} come "
        text += f"beside the next step, {row['read'] / 1e6:.3g} MB; "
        text += f"{row['writes']:g} writes, {row['written'] / 1e6:.3g} MB; the host is busy for {row['host']:.3g} ms"
        if row["kernels"]:
            text += f"; {row['kernels']:g} kernels, {row['layout']:g} more that change a layout"
        # Without a GPU, LibTorch computes in the memory of the host.
        is_device = not course.stand_in or backend.name == "wgpu"
        stays = row["reads"] == 0 and row["read"] <= OUTCOME * replicas
        state = "ok" if stays or not is_device else "wrong"
        rows.append({**row, "replicas": replicas, "state": state, "text": text})
    return rows


def copied(events):
    """What the replicas copy in a step, by the spans of a profile; of each thread its steps after the first ones.

    `host` is the longest of their threads' milliseconds outside of waits for copies to the host.
    """
    counts = dict.fromkeys(("reads", "late", "read", "writes", "written", "kernels", "layout", "host"), 0)
    directions = {
        "copy to host": ("reads", "read"),
        "late copy to host": ("late", "read"),
        "copy to device": ("writes", "written"),
        # CubeCL's, counted where it launches them.
        "kernel": ("kernels", None),
        "layout copy": ("layout", None),
    }
    for thread in {event["tid"] for event in events}:
        spans = [event for event in events if event["ph"] == "X" and event["tid"] == thread]
        ends = sorted(span["ts"] + span["dur"] for span in spans if span["name"] == "optimizer")
        steps = len(ends) - WARM_UP
        busy = ends[-1] - ends[WARM_UP - 1] if steps > 0 else 0
        for span in spans:
            direction = directions.get(span["name"])
            if direction and steps > 0 and ends[WARM_UP - 1] <= span["ts"] < ends[-1]:
                counts[direction[0]] += 1 / steps
                busy -= span["dur"] if direction[1] == "read" else 0
                if direction[1]:
                    counts[direction[1]] += span["args"]["bytes"] / steps
        counts["host"] = max(counts["host"], busy / 1e3 / max(steps, 1))
    if not counts["reads"] + counts["late"]:
        raise Wrong("the profile of a run has no copy to the host: they are not counted")
    return {name: round(count, 2) for name, count in counts.items()}
