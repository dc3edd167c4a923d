#!/usr/bin/env python3
"""The convolutions of ResNet-18 one by one, on one thread: Kiln's (`flex`) beside oneDNN's, in turns.

    python tests/benches/layers.py target/release/examples/layers [--rounds 5]

For each layer and product: the least time of all rounds, oneDNN's in the better of its two layouts, and the error against
f64 (root mean square and largest, each over the largest value). Inputs are normal, kernels as He et al. draw them.
"""
import argparse
import json
import os
import subprocess
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = "1"
import numpy
import torch

# batch, inputs, outputs, side, kernel, stride
STAGES = [(64, 32), (128, 16), (256, 8), (512, 4)]
SAME = [(32, c, c, side, 3, 1) for c, side in STAGES] + [(16, c, c, 7 * side // 4, 3, 1) for c, side in STAGES]
HALVED = [(32, c // 2, c, 2 * side, k, 2) for c, side in STAGES[1:] for k in (3, 1)]
STEMS = [(32, 3, 64, 32, 3, 1), (32, 3, 64, 32, 7, 2), (16, 3, 64, 224, 7, 2)]
# As in src/main.rs.
ALLOCATOR = {**os.environ, "MALLOC_CONF": "retain:false,dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0,thp:always"}
NAMES = ["output", "input_gradient", "weight_gradient"]


def onednn(x, weight, gradient, stride, padding):
    """The three products as functions."""
    backward = torch.ops.aten.convolution_backward
    both = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1)
    return [
        lambda: torch.conv2d(x, weight, None, stride, padding),
        lambda: backward(gradient, x, weight, None, *both, [True, False, False])[0],
        lambda: backward(gradient, x, weight, None, *both, [False, True, False])[1],
    ]


def least(product, rounds):
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        product()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


def errors(found, exact):
    apart, largest = (found.double() - exact).abs(), exact.abs().max()
    return [float(apart.square().mean().sqrt() / largest), float(apart.max() / largest)]


def measure(binary, shape, rounds):
    batch, inputs, outputs, side, kernel, stride = shape
    padding = kernel // 2
    out = (side + 2 * padding - kernel) // stride + 1
    generator = torch.Generator().manual_seed(0)
    normal = lambda *size: torch.randn(*size, generator=generator)
    x, gradient = normal(batch, inputs, side, side), normal(batch, outputs, out, out)
    weight = normal(outputs, inputs, kernel, kernel) * (2 / (inputs * kernel * kernel)) ** 0.5
    exact = [product() for product in onednn(x.double(), weight.double(), gradient.double(), stride, padding)]
    layouts = [[tensor.contiguous(memory_format=layout) for tensor in (x, weight, gradient)]
               for layout in (torch.contiguous_format, torch.channels_last)]
    peers = [onednn(*layout, stride, padding) for layout in layouts]
    ours, theirs = [1e9] * 3, [1e9] * 3
    with tempfile.TemporaryDirectory() as place:
        for name, tensor in [("x", x), ("weight", weight), ("gradient", gradient)]:
            tensor.numpy().tofile(f"{place}/{name}")
        for _ in range(rounds):
            command = [binary, place, *map(str, shape), "4"]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=ALLOCATOR).stdout)
            ours = [min(pair) for pair in zip(ours, found)]
            for peer in peers:
                theirs = [min(old, least(product, 4)) for old, product in zip(theirs, peer)]
        read = lambda name, like: torch.from_numpy(numpy.fromfile(f"{place}/{name}", numpy.float32)).reshape(like.shape)
        our_errors = [errors(read(name, like), like) for name, like in zip(NAMES, exact)]
    # Of the layout with the smaller errors.
    their_errors = [min(errors(peer[i](), exact[i]) for peer in peers) for i in range(3)]
    return ours, theirs, our_errors, their_errors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for title, shapes in [("3x3, stride 1", SAME), ("stride 2", HALVED), ("stems", STEMS)]:
        print(f"\n{title}\n\n| layer | oneDNN, ms | Kiln, ms | oneDNN / Kiln | rms error, Kiln / oneDNN | largest error, Kiln / oneDNN |")
        print("|---|---|---|---|---|---|")
        sums = [0.0, 0.0]
        for shape in shapes:
            ours, theirs, our_errors, their_errors = measure(options.binary, shape, options.rounds)
            # No step computes the gradient of the images.
            parts = [0, 2] if shape[1] == 3 else [0, 1, 2]
            pick = lambda values, text: " / ".join(text.format(values[part]) for part in parts)
            ratios = [theirs[i] / ours[i] for i in range(3)]
            of = lambda which: " / ".join(f"{our_errors[i][which]:.1e} ({our_errors[i][which] / their_errors[i][which]:.1f})" for i in parts)
            batch, inputs, outputs, side, kernel, stride = shape
            name = f"{inputs} to {outputs}, {kernel}x{kernel}, {side}x{side}, batch {batch}"
            print(f"| {name} | {pick(theirs, '{:.1f}')} | {pick(ours, '{:.1f}')} | {pick(ratios, '{:.2f}')} | {of(0)} | {of(1)} |", flush=True)
            sums = [sums[0] + sum(ours[i] for i in parts), sums[1] + sum(theirs[i] for i in parts)]
        print(f"\nsum: Kiln {sums[0]:.1f} ms, oneDNN {sums[1]:.1f} ms, {sums[0] / sums[1]:.2f}")


main()
