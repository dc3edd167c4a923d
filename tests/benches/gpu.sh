#!/usr/bin/env bash
# Kiln's CUDA backend and PyTorch in turns on one GPU: what `make bench-gpu` packs beside a binary and two scripts.
#
# CubeCL compiles and tunes its kernels in the first runs, which are reported by themselves; it keeps them in this
# directory for the others.
set -euo pipefail
cd "$(dirname "$0")"

printf '[autotune]\ncache = "local"\n[compilation]\ncache = "local"\n' > cubecl.toml
chmod +x train
python3 -c 'import torch, torchvision; assert torch.cuda.is_available(), "PyTorch sees no CUDA device"'
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
echo "compiling and tuning kernels"
for batch in 256 1024; do
    time ./train --data synthetic data.train_size=16384 --backend cuda --precision bf16 --batch-size "$batch" --max-steps 5 \
        --progress none --checkpoint-every never --limit-val-batches 1 --output-dir "$(mktemp -d)/run"
done
python3 compare.py --kiln ./train --backend cuda --gpu --images 65536 --steps 30 --out results.json "$@"
