#!/usr/bin/env python3
"""The PyTorch side of `make bench-peer` and `make bench-gpu`: one case in one process, its result as one line of JSON.

A training step is zero_grad, forward, cross-entropy, backward and SGD with momentum and weight decay, in eager mode
unless told otherwise, on random images that lie ready in memory; ResNet-18 is torchvision's. The first steps are not
timed.
"""
import argparse
import json
import os
import resource
import socket
import time

WARM_UP = 3


def network(arch, stem):
    import torchvision
    from torch import nn

    model = getattr(torchvision.models, arch)(num_classes=10)
    if stem == "cifar":
        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    return model


def timed(body, case, settle=lambda: None):
    """Seconds of each call of `body`: at least three, at most `steps`, within `budget` seconds or so."""
    for _ in range(WARM_UP):
        body()
    times, end = [], time.perf_counter() + case.budget
    while len(times) < case.steps and (len(times) < 3 or time.perf_counter() < end):
        settle()
        start = time.perf_counter()
        body()
        settle()
        times.append(time.perf_counter() - start)
    return times


def setting(case):
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(case.threads)
    device = "cuda" if torch.cuda.is_available() and case.device == "cuda" else "cpu"
    torch.backends.cudnn.benchmark = True
    layout = torch.channels_last if case.channels_last else torch.contiguous_format
    model = network(case.arch, case.stem).to(device, memory_format=layout)
    if case.compile:
        model = torch.compile(model)
    images = torch.randn(case.batch, 3, case.image_size, case.image_size, device=device).contiguous(memory_format=layout)
    labels = torch.randint(0, 10, (case.batch,), device=device)
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    return model, images, labels, device, settle


def train_step(model, images, labels, device, precision):
    import torch
    from torch.nn.functional import cross_entropy

    fused = {"fused": True} if device == "cuda" else {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, **fused)
    half = {"bf16": torch.bfloat16, "f16": torch.float16}.get(precision)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=half, enabled=half is not None):
            loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def recorded(step):
    """The step as a CUDA graph: as PyTorch's notes on CUDA say, after some steps on a stream beside the default one."""
    import torch

    beside = torch.cuda.Stream()
    with torch.cuda.stream(beside):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def step(case):
    model, images, labels, device, settle = setting(case)
    case.step = train_step(model.train(), images, labels, device, case.precision)
    return timed(recorded(case.step) if case.cuda_graph else case.step, case, settle)


def convolution_share(step):
    """The part of a step's time on the calling thread that convolutions and their gradients take."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(3):
            step()
    times = [(event.key, event.self_cpu_time_total) for event in recorded.key_averages()]
    return sum(spent for name, spent in times if "conv" in name) / sum(spent for _, spent in times)


def first(case):
    model, images, labels, device, settle = setting(case)
    train_step(model.train(), images, labels, device, case.precision)()
    settle()
    return [0.0]


def evaluate(case):
    import torch

    model, images, _, _, settle = setting(case)
    model.eval()
    with torch.inference_mode():
        return timed(lambda: model(images), case, settle)


def replica(rank, case, port, results):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=case.world_size)
    model, images, labels, device, _ = setting(case)
    step = train_step(DistributedDataParallel(model.train()), images, labels, device, case.precision)
    times = timed(step, argparse.Namespace(**{**vars(case), "budget": 1e9}), dist.barrier)
    if rank == 0:
        results.put(times)
    dist.destroy_process_group()


def ddp(case, work=replica):
    import torch.multiprocessing as mp

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(work, (case, port, results), nprocs=case.world_size)
    return results.get()


def reducer(rank, case, port, results):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=case.world_size)
    values = torch.ones(11_173_962)
    times = timed(lambda: dist.all_reduce(values), argparse.Namespace(**{**vars(case), "budget": 1e9}), dist.barrier)
    if rank == 0:
        results.put(times)
    dist.destroy_process_group()


def loader(case):
    """Batches of 128 images with crop, flip and normalisation, by torchvision and a DataLoader with two workers."""
    import torch
    from torchvision import transforms

    steps = [
        transforms.ToPILImage(),
        transforms.RandomCrop(32, padding=4),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ]
    images = torch.randint(0, 256, (10_000, 3, 32, 32), dtype=torch.uint8)
    change = transforms.Compose(steps)

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return len(images)

        def __getitem__(self, index):
            return change(images[index]), index % 10

    start = time.perf_counter()
    batches = torch.utils.data.DataLoader(Images(), batch_size=128, shuffle=True, num_workers=2)
    count = sum(len(batch) for batch, _ in batches)
    return [(time.perf_counter() - start) * 128 / count]


def all_reduce(case):
    """The gradient of ResNet-18, summed over processes by Gloo."""
    return ddp(case, reducer)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["step", "first", "evaluate", "ddp", "all-reduce", "loader"])
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--stem", default="cifar")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--compile", action="store_true", help="torch.compile instead of eager mode")
    parser.add_argument("--cuda-graph", action="store_true", help="a step is recorded and replayed")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--budget", type=float, default=8.0)
    case = parser.parse_args()
    kinds = {"step": step, "first": first, "evaluate": evaluate, "ddp": ddp, "all-reduce": all_reduce, "loader": loader}
    times = kinds[case.kind](case)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if case.kind == "ddp":
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 * case.world_size
    # After the memory has been read, since the profiler needs some, too.
    share = convolution_share(case.step) if case.kind == "step" and case.device == "cpu" else None
    print(json.dumps({"seconds": times, "peak_memory": memory, "convolution": share}))


if __name__ == "__main__":
    main()
