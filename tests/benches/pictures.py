#!/usr/bin/env python3
"""How fast images are read: Kiln from a folder, shards and packs, and torchvision's DataLoader, in turns.

    cargo build --release --example read_images --bin train
    python tests/benches/pictures.py target/release/examples/read_images target/release/train

Both read all images of a folder once, crop a random part, resize it to a square of 224 pixels and flip it, with two threads
or two workers, up to bytes. The images are drawn: noise whose amplitude falls with its frequency, as that of photographs does.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time


def draw(folder, count, width, height, quality):
    """Writes `count` JPEGs in ten classes; returns their mean size in bytes."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    rows, columns = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    fall = 1 / np.maximum(np.hypot(rows, columns), 1 / width)
    total = 0
    for number in range(count):
        planes = [np.fft.irfft2(fall * np.fft.rfft2(random.standard_normal((height, width))), (height, width)) for _ in range(2)]
        # One brightness, and little colour.
        image = np.stack([planes[0] + share * planes[1] for share in (-0.3, 0.0, 0.3)], axis=-1)
        image = np.clip(128 + 55 * image / image.std(), 0, 255).astype(np.uint8)
        split = "val" if number // 10 % 50 == 0 else "train"
        path = os.path.join(folder, split, f"class{number % 10}", f"{number:06}.jpg")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Image.fromarray(image).save(path, quality=quality)
        total += os.path.getsize(path)
    return total / count


def shards(folder, target):
    """The same images as shards of 500."""
    os.makedirs(target)
    for split in ["train", "val"]:
        paths = [os.path.join(at, name) for at, _, names in sorted(os.walk(os.path.join(folder, split))) for name in sorted(names)]
        for first in range(0, len(paths), 500):
            with tarfile.open(os.path.join(target, f"{split}-{first:06}.tar"), "w") as tar:
                for path in paths[first : first + 500]:
                    stem = os.path.splitext(os.path.basename(path))[0]
                    label = os.path.join(target, "label")
                    with open(label, "w") as file:
                        file.write(os.path.dirname(path)[-1])
                    tar.add(path, f"{stem}.jpg")
                    tar.add(label, f"{stem}.cls")


def peer(folder, side):
    """An epoch of torchvision's, in this process with two workers."""
    import torch
    from torchvision import datasets, transforms

    torch.set_num_threads(1)
    change = transforms.Compose(
        [transforms.RandomResizedCrop(side), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    )
    data = datasets.ImageFolder(os.path.join(folder, "train"), change)
    loader = torch.utils.data.DataLoader(data, batch_size=128, shuffle=True, num_workers=2)
    start = time.perf_counter()
    read = first = 0
    for _, labels in loader:
        first = first or time.perf_counter() - start
        read += len(labels)
    print(json.dumps({"first_batch_s": first, "images_per_s": read / (time.perf_counter() - start)}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("reader", nargs="?")
    parser.add_argument("train", nargs="?")
    parser.add_argument("--peer")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--size", default="500x375")
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.peer:
        return peer(arguments.peer, arguments.side)
    width, height = map(int, arguments.size.split("x"))
    with tempfile.TemporaryDirectory() as place:
        at = lambda name: os.path.join(place, name)
        mean = draw(at("folder"), arguments.images, width, height, 90)
        shards(at("folder"), at("shards"))
        packs = {"copies": [], "raw": ["--side", str(min(256, width)), "--jpeg", "0%"]}
        for name, recipe in packs.items():
            subprocess.run([arguments.train, "pack", at("folder"), "--output", at(name), *recipe], check=True, stdout=sys.stderr)
        side = str(arguments.side)
        read = lambda source, name, decode="whole": [arguments.reader, source, at(name), "2", side, decode]
        cases = {
            "torchvision": [sys.executable, __file__, "--peer", at("folder"), "--side", side],
            "folder": read("folder", "folder"),
            "folder, parts": read("folder", "folder", "part"),
            "shards": read("webdataset", "shards"),
            "shards, parts": read("webdataset", "shards", "part"),
            "pack": read("pack", "copies"),
            "pack, parts": read("pack", "copies", "part"),
            "pack, plain pixels": read("pack", "raw"),
        }
        rates = {name: [] for name in cases}
        for _ in range(arguments.rounds):
            for name, command in cases.items():
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                rates[name].append(json.loads(output.splitlines()[-1])["images_per_s"])
    print(f"{arguments.images} JPEGs of {arguments.size}, {mean / 1000:.0f} kB on average; median, lowest, highest of {arguments.rounds}")
    for name, values in rates.items():
        print(f"{name:28} {statistics.median(values):8.0f} {min(values):8.0f} {max(values):8.0f}")


main()
