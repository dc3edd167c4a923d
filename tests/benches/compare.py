#!/usr/bin/env python3
"""`make bench-peer`: Kiln and PyTorch in turns (A B A B), each case in processes of its own, on the same machine.

Each round runs Kiln, then PyTorch with contiguous tensors, then with channels innermost, and if asked for compiled; the
round's ratio is Kiln's median time over the best of PyTorch's. The table gives the median ratio over the rounds and its range; below 1
Kiln is faster. Kiln's steps include its data loader, its metrics and its log; PyTorch's batch lies ready in memory. The last
column is the part of PyTorch's step that its convolutions take.
"""
import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PEER = Path(__file__).with_name("peer.py")
WARM_UP = 3


class Bench:
    def __init__(self, options):
        self.options = options
        self.rows = []

    def kiln(self, *arguments, threads, steps=None, processes=None, backend=None):
        """The seconds of each step of a run, in one process or several, and the peak memory of all, which are alike."""
        steps = steps or self.options.steps
        with tempfile.TemporaryDirectory() as place:
            run = Path(place) / "run"
            command = [self.options.kiln, *(["launch", "--nproc", str(processes), "--"] if processes else [])]
            command += ["--data", "synthetic", "--epochs", "1", "--max-steps", str(WARM_UP + steps)]
            command += ["--progress", "none", "--checkpoint-every", "never", "--limit-val-batches", "1"]
            command += ["--backend", backend or self.options.backend, "--threads", str(threads), "--output-dir", str(run)]
            command += [f"data.train_size={self.options.images}", *arguments]
            environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
            records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            summary = json.loads((run / "summary.json").read_text())
        times = [record["step_seconds"] for record in records if record["kind"] == "step"]
        return {"seconds": times[WARM_UP:], "peak_memory": summary["peak_memory"] * (processes or 1)}

    def evaluation(self, *arguments, batch, threads, images):
        """The seconds of a batch, from the speed that `train evaluate` prints."""
        with tempfile.TemporaryDirectory() as place:
            run = Path(place) / "run"
            common = ["--data", "synthetic", "--backend", self.options.backend, "--threads", str(threads), *arguments]
            common += ["--batch-size", str(batch), f"data.val_size={images}", "data.train_size=64"]
            train = [self.options.kiln, *common, "--max-steps", "1", "--progress", "none", "--output-dir", str(run)]
            environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
            subprocess.run(train, check=True, env=environment, stdout=subprocess.DEVNULL)
            evaluate = [self.options.kiln, "evaluate", "--checkpoint", str(run), *common]
            output = subprocess.run(evaluate, check=True, env=environment, capture_output=True, text=True).stdout
        speed = next(line for line in output.splitlines() if line.startswith("speed"))
        return {"seconds": [batch / float(speed.split()[1])], "peak_memory": None}

    def peer(self, kind, *arguments, threads):
        command = [sys.executable, str(PEER), kind, "--threads", str(threads), *arguments]
        command += ["--steps", str(self.options.steps), "--budget", str(self.options.budget)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        output = subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout
        return json.loads(output.splitlines()[-1])

    def compare(self, name, kiln, peers):
        """Runs both sides in turns and adds a row; `kiln` and `peers` are functions that run one process."""
        if self.options.only and self.options.only not in name:
            return
        rounds = []
        for _ in range(self.options.rounds):
            ours, theirs = kiln(), [peer() for peer in peers]
            best = min(theirs, key=lambda result: statistics.median(result["seconds"]))
            rounds.append((ours, best))
        median = lambda side: [statistics.median(pair[side]["seconds"]) for pair in rounds]
        ours, theirs = median(0), median(1)
        ratios = [a / b for a, b in zip(ours, theirs)]
        memory = [pair[0]["peak_memory"] / pair[1]["peak_memory"] for pair in rounds if pair[0]["peak_memory"]]
        row = {
            "case": name,
            "rounds": len(rounds),
            "steps": len(rounds[0][0]["seconds"]),
            "kiln_ms": 1e3 * statistics.median(ours),
            "torch_ms": 1e3 * statistics.median(theirs),
            "ratio": statistics.median(ratios),
            "range": [min(ratios), max(ratios)],
            "memory_ratio": statistics.median(memory) if memory else None,
            "convolution": rounds[-1][1].get("convolution"),
        }
        self.rows.append(row)
        memory = f"{row['memory_ratio']:7.2f}" if memory else " " * 7
        share = f"{row['convolution']:5.0%}" if row["convolution"] else ""
        spread = f"{row['range'][0]:.2f}-{row['range'][1]:.2f}"
        times = f"{row['kiln_ms']:>9.1f} {row['torch_ms']:>9.1f}"
        print(f"{name:<60} {times} {row['ratio']:>6.2f} {spread:>10} {memory} {share}", flush=True)

    def peers(self, kind, *arguments, threads):
        """One for each way in which PyTorch may be fastest."""
        ways = [[], ["--channels-last"], *([["--channels-last", "--compile"]] if self.options.compile else [])]
        return [lambda way=way: self.peer(kind, *arguments, *way, threads=threads) for way in ways]

    def step(self, stem, batch, precision, threads, pixels=32, backend=None, arch=None):
        """Of large images few suffice, which Kiln resizes while it trains."""
        case = [*(["--arch", arch] if arch else []), "--stem", stem, "--precision", precision]
        case += [] if pixels == 32 else ["--image-size", str(pixels)]
        few = [] if pixels == 32 else ["data.train_size=512"]
        size = "" if pixels == 32 else f" {pixels} pixels,"
        on, network = f"{backend} " if backend else "", f"{arch}, " if arch else ""
        self.compare(
            f"{on}step, {network}{stem} stem,{size} batch {batch}, {precision}, {threads} threads",
            lambda: self.kiln(*case, "--batch-size", str(batch), *few, threads=threads, backend=backend),
            self.peers("step", *case, "--batch", str(batch), threads=threads),
        )

    def inference(self, stem, batch, threads, pixels=32):
        """Of so many images that the first batches, which compile kernels, do not count."""
        case = ["--stem", stem, *([] if pixels == 32 else ["--image-size", str(pixels)])]
        size = "" if pixels == 32 else f" {pixels} pixels,"
        images = 16384 if pixels == 32 else 512
        self.compare(
            f"inference, {stem} stem,{size} batch {batch}, f32, {threads} threads",
            lambda: self.evaluation(*case, batch=batch, threads=threads, images=images),
            self.peers("evaluate", *case, "--batch", str(batch), threads=threads),
        )

    def replicas(self, stem, batch, world_size, backend=None, alone=False):
        """In one process, with synchronised batch-norm, against as many by DDP, or one with all images and threads."""
        case = ["--stem", stem]
        slots = ",".join(map(str, range(world_size)))
        world = ["--world-size", str(world_size), "--gpu-ids", slots, "--batch-size", str(batch)]
        ddp = [lambda: self.peer("ddp", *case, "--batch", str(batch), "--world-size", str(world_size), threads=1)]
        all_images = [*case, "--batch", str(batch * world_size)]
        on = f"{backend} " if backend else ""
        self.compare(
            f"{on}step, {stem} stem, {world_size} replicas x {batch}, 1 thread each, {'one process' if alone else 'DDP'}",
            lambda: self.kiln(*case, *world, threads=world_size, backend=backend),
            self.peers("step", *all_images, threads=world_size) if alone else ddp,
        )

    def processes(self, stem, batch, count):
        """Without synchronised batch-norm, which PyTorch does not have on a CPU."""
        case = ["--stem", stem]
        world = ["--world-size", str(count), "--batch-size", str(batch), "--no-sync-bn"]
        self.compare(
            f"step, {stem} stem, {count} processes x {batch}, 1 thread each",
            lambda: self.kiln(*case, *world, threads=1, processes=count),
            [lambda: self.peer("ddp", *case, "--batch", str(batch), "--world-size", str(count), threads=1)],
        )

    def criterion(self, case):
        """The seconds of a pass of one of `make bench`'s cases, beside which no memory is measured."""
        command = ["cargo", "bench", "--quiet", "--features", "tch,gloo", "--bench", "kiln", "--", case]
        command += ["--output-format", "bencher"]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return int(re.search(r"([\d,]+) ns/iter", output)[1].replace(",", "")) / 1e9

    def loader(self):
        """80 batches of 128 images, with two threads or two workers."""
        self.compare(
            "loader alone, batch 128, crop, flip, normalise",
            lambda: {"seconds": [self.criterion("loader") / 80], "peak_memory": None},
            [lambda: self.peer("loader", threads=2)],
        )

    def all_reduce(self, count):
        self.compare(
            f"all-reduce of 45 MB, {count} processes",
            lambda: {"seconds": [self.criterion(f"{count} processes over Gloo")], "peak_memory": None},
            [lambda: self.peer("all-reduce", "--world-size", str(count), threads=1)],
        )

    def start_up(self):
        """From the start of the process to the end of the first training step."""
        small = ["--data", "synthetic", "data.train_size=64", "data.val_size=32", "--stem", "imagenet", "--max-steps", "1"]

        def ours():
            with tempfile.TemporaryDirectory() as place:
                run = Path(place) / "run"
                command = [self.options.kiln, *small, "--backend", self.options.backend, "--progress", "none"]
                start = time.perf_counter()
                process = subprocess.Popen([*command, "--output-dir", str(run)], stdout=subprocess.DEVNULL)
                metrics = run / "metrics.jsonl"
                while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
                    time.sleep(0.001)
                seconds = time.perf_counter() - start
                process.wait()
                return {"seconds": [seconds], "peak_memory": None}

        def theirs():
            start = time.perf_counter()
            subprocess.run([sys.executable, str(PEER), "first", "--stem", "imagenet"], check=True, stdout=subprocess.DEVNULL)
            return {"seconds": [time.perf_counter() - start], "peak_memory": None}

        self.compare("process start to end of first step, imagenet", ours, [theirs])


def header():
    import torch

    names = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kiln", default=shutil.which("train") or "train", help="the binary to measure")
    parser.add_argument("--backend", default="tch")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--images", type=int, default=8192, help="drawn images that Kiln's runs train on")
    parser.add_argument("--budget", type=float, default=8.0, help="seconds of timed steps of a PyTorch process")
    parser.add_argument("--compile", action="store_true", help="PyTorch compiled (torch.compile) as well")
    parser.add_argument("--isa", help="restrict both sides: AVX2, or SSE41 (Kiln then uses plain Rust)")
    parser.add_argument("--only", help="run the cases whose name contains this")
    parser.add_argument("--out", help="write the results there as JSON")
    bench = Bench(parser.parse_args())
    if bench.options.isa:
        aten = "avx2" if bench.options.isa.startswith("AVX2") else "default"
        os.environ.update(ONEDNN_MAX_CPU_ISA=bench.options.isa, ATEN_CPU_CAPABILITY=aten)
    machine = {**header(), "instructions": bench.options.isa or "all"}
    print(", ".join(f"{key} {value}" for key, value in machine.items()), f"backend {bench.options.backend}", sep=", ")
    print(f"{'case':<60} {'kiln ms':>9} {'torch ms':>9} {'ratio':>6} {'range':>10} {'memory':>7} convolution")
    others = [] if bench.options.backend == "flex" else ["flex"]
    for stem in ("cifar", "imagenet"):
        for batch in (32, 64, 128):
            bench.step(stem, batch, "f32", bench.options.threads)
        for backend in others:
            for batch in (32, 64, 128):
                bench.step(stem, batch, "f32", bench.options.threads, backend=backend)
        for backend in (None, *others):
            bench.step(stem, 32, "bf16", bench.options.threads, backend=backend)
        bench.inference(stem, 64, bench.options.threads)
        bench.step(stem, 32, "f32", 1)
        for backend in (None, *others):
            for count in (2, 4):
                bench.replicas(stem, 32, count, backend)
            bench.replicas(stem, 64, 2, backend, alone=True)
        for count in (1, 2, 4):
            bench.processes(stem, 32, count)
    for precision in ("f32", "bf16"):
        for backend in (None, *others):
            bench.step("imagenet", 16, precision, bench.options.threads, pixels=224, backend=backend)
    for backend in (None, *others):
        bench.step("imagenet", 16, "f32", bench.options.threads, pixels=224, backend=backend, arch="resnet50")
        bench.step("cifar", 32, "f32", bench.options.threads, backend=backend, arch="resnet50")
    bench.inference("imagenet", 16, bench.options.threads, pixels=224)
    bench.start_up()
    bench.loader()
    for count in (2, 4):
        bench.all_reduce(count)
    if bench.options.out:
        Path(bench.options.out).write_text(json.dumps({"machine": machine, "rows": bench.rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
