# Kiln's commands. `make help` lists them.
#
# Builds go where CARGO_TARGET_DIR says, or to ./target. The virtual environment for LibTorch goes where KILN_VENV says.

KILN_VENV ?= .venv
CARGO ?= cargo
SUDO := $(shell test "$$(id -u)" = 0 || echo sudo)
# What bench-gpu packs. Others stand in where there is no GPU, as in: make bench-gpu GPU_BACKENDS="wgpu tch"
GPU_BACKENDS ?= cuda tch
# Arguments for the program or the tests: make run ARGS="--epochs 3"
ARGS ?=

# LibTorch 2.9.0: the one LIBTORCH names, or that of the PyTorch in KILN_VENV or in the python3 at hand.
PYTHON := $(shell test -x $(KILN_VENV)/bin/python && echo $(KILN_VENV)/bin/python || echo python3)
FIND_TORCH = $(PYTHON) -c 'import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec("torch").origin).parent)' 2>/dev/null
TORCH = dir="$${LIBTORCH:-$$($(FIND_TORCH))}"; \
	test -n "$$dir" || { echo "LibTorch 2.9.0 not found: run 'make setup-tch', or set LIBTORCH to its directory"; exit 1; }; \
	export LIBTORCH="$$dir" LIBTORCH_CXX11_ABI=1 LD_LIBRARY_PATH="$$dir/lib:$$LD_LIBRARY_PATH";

# $(call TESTS,ARGUMENTS) runs tests and says behind everything else how many of which rooms were skipped, and why; their
# names stand where they ran. What has a comma in it must come from a variable.
ALL := tch,gloo,parquet,remote
BY_REASON = sort -u $$list | awk -F ': ' '{ reason = substr($$0, length($$1) + 3); sub(/::.*/, "", $$1); count[reason]++ } \
	!seen[reason, $$1]++ { rooms[reason] = rooms[reason] " " $$1 } \
	END { for (reason in count) print "  " count[reason] " of" rooms[reason] ": " reason }'
TESTS = { list=$$(mktemp); KILN_TEST_SKIPPED=$$list $(CARGO) test $(1); code=$$?; \
	test ! -s $$list || { echo "skipped:"; $(BY_REASON); }; rm -f $$list; (exit $$code); }

# Without examples, which clippy compiles and which tests have in them.
OURS := --tests

# The rooms whose tests have several processes.
OF_PROCESSES := collective:: distributed:: divergence:: elastic:: mesh:: overlap:: own_model:: parity:: placement:: \
	planning:: recomputation:: recomputed_runs:: sharding:: staged_runs:: stages:: verify::

# Rooms whose tests have the same names without other features, and other subjects with them.
OF_FEATURES := config|doctor|guide|limits|refusals|resume

# $(call NEW,FEATURES) names the tests that the default build lacks, and those of the rooms above.
NEW = { all=$$(mktemp) && old=$$(mktemp) && \
	$(CARGO) test $(OURS) -- --list --format=terse > $$old && \
	$(CARGO) test $(OURS) --features $(1) -- --list --format=terse > $$all && \
	grep -vE '^($(OF_FEATURES))::' $$old | grep -vxFf - $$all | sed -n 's/: test$$//p'; rm -f $$all $$old; }

# The readers of `make fuzz` that not every build has.
READERS := gloo,parquet

.DEFAULT_GOAL := help
.PHONY: help run run-2 run-tch test test-tch test-cuda test-wgpu test-wgpu-ops test-dist test-nccl test-all test-features check check-features check-package fmt lint docs pictures bench bench-peer bench-gpu simulate fuzz mutants clean setup-tch setup-wgpu setup-dist setup-peer

help: ## list the commands
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

run: ## quickstart: two replicas learn to tell drawn shapes apart, on the CPU, without any files
	$(CARGO) run --release -- experiment=quickstart $(ARGS)

run-2: ## the sample data of this repository on two replicas with the usual flags
	$(CARGO) run --release -- --epochs 2 --batch-size 32 --gpu-ids 0,1 --world-size 2 --width 16 $(ARGS)

run-tch: ## the quickstart on LibTorch
	@$(TORCH) $(CARGO) run --release --features tch -- experiment=quickstart --backend tch $(ARGS)

test: ## all tests on the flex backend
	@$(call TESTS,$(OURS))

test-tch: ## all tests on the flex and LibTorch backends
	@$(TORCH) $(call TESTS,$(OURS) --features tch)

test-cuda: ## what every backend must do, on CUDA in full f32, and what is said without a driver or a device
	@export NVIDIA_TF32_OVERRIDE=0; $(call TESTS,$(OURS) --features cuda -- cuda:: driver::)

test-wgpu: test-wgpu-ops ## what every backend must do, on wgpu: on a GPU, or after `make setup-wgpu` without one
	@export NODEVICE_SELECT=1; $(call TESTS,--test engine --test models --features wgpu -- ::wgpu::)

# Without the engine's and the application's code, and not optimised: the device computes.
test-wgpu-ops: ## the primitives alone on wgpu, which is built in half of the time
	@export NODEVICE_SELECT=1; $(call TESTS,--config profile.dev.package.kiln-ops.opt-level=0 \
		--package kiln-ops --package kiln-engine --features kiln-engine/wgpu --test ops -- wgpu)

test-dist: ## all tests, and those of several processes over Gloo
	@$(call TESTS,$(OURS) --features gloo)

test-nccl: ## tests of several processes whose tensors go over a stand-in for NCCL
	@export KILN_TEST_ENGINE=nccl; $(call TESTS,--features gloo --test kiln --test engine --test models -- $(OF_PROCESSES))

test-all: ## all tests on flex and LibTorch, and those of several processes
	@$(TORCH) $(call TESTS,$(OURS) --features $(ALL) -- $(ARGS))

test-features: ## lints, documentation and the tests that other features add, once `make check` has passed
	@$(TORCH) $(CARGO) clippy --workspace --all-targets --features $(ALL) -- -D warnings && \
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --document-private-items --features $(ALL) && \
	new=$$($(call NEW,$(ALL))) && test -n "$$new" && $(call TESTS,$(OURS) --features $(ALL) -- --exact $$new)

simulate: ## elastic runs in virtual time, as SEEDS=10000 says; SEED=7 replays one with its log of events
	@KILN_SEEDS=$(or $(SEEDS),10000) KILN_SEED=$(SEED) KILN_MEMBERS=$(MEMBERS) $(CARGO) test -p kiln-membership --test simulation -- --nocapture

fuzz: ## damaged files and messages: SECONDS=600 for each target or that in TARGET; TARGET=images::jpeg SEED=7 repeats an input
	@KILN_SECONDS=$(SECONDS) KILN_SEED=$(SEED) $(CARGO) test --features $(READERS) --test fuzz -- --nocapture $(TARGET)

mutants: ## changes in the policy of membership, which a test should notice: FILE=placement.rs (needs cargo-mutants)
	$(CARGO) mutants --package kiln-membership --features rendezvous $(addprefix --file=,$(FILE))

check: fmt lint docs test ## what must hold before a commit: format, lints, documentation, tests

fmt: ## check the format
	$(CARGO) fmt --check

lint: ## clippy, warnings are errors
	$(CARGO) clippy --workspace --all-targets -- -D warnings

docs: ## build the guide and the interface as pages, warnings are errors, and try its code
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --document-private-items
	$(CARGO) test --doc

pictures: ## draw the pictures of the README from a real run (needs tmux and chromium)
	$(CARGO) build --release
	test -x $(KILN_VENV)/bin/python || python3 -m venv $(KILN_VENV)
	$(KILN_VENV)/bin/pip install --quiet rich==15.0.0 pillow
	tests/pictures/draw.sh "$${CARGO_TARGET_DIR:-target}/release/train" $(KILN_VENV)/bin/python src/guide

check-features: ## clippy for the GPU backends, which need no GPU for that, and for each crate without the others' features
	$(CARGO) clippy --features cuda -- -D warnings
	$(CARGO) clippy --features wgpu -- -D warnings
	@for crate in data kernels membership objects system "engine --features flex" "ops --features flex" \
		"training --features flex"; do $(CARGO) clippy --package kiln-$$crate -- -D warnings || exit 1; done

# Unpacked files are as old as now (m): all files in packages have one time, by which cargo would not build them again.
check-package: export CARGO_TARGET_DIR ?= $(CURDIR)/target
check-package: ## the crate as it would be published builds and trains
	rm -rf "$$CARGO_TARGET_DIR/package"
	$(CARGO) package --no-verify --allow-dirty --quiet
	cd "$$CARGO_TARGET_DIR/package" && mkdir .cargo && echo '[patch.crates-io]' > .cargo/config.toml && \
	for crate in *.crate; do \
		tar xzmf $$crate && folder=$${crate%.crate}; \
		case $$folder in kiln-0*) ;; *) echo "$${folder%-*}.path = \"$$PWD/$$folder\"" >> .cargo/config.toml ;; esac; \
	done
	cd "$$CARGO_TARGET_DIR"/package/kiln-0*/ && $(CARGO) run --quiet -- experiment=quickstart --max-steps 4 --output-dir run

bench: ## time a step and what it is made of
	$(CARGO) bench

bench-peer: ## Kiln on LibTorch and PyTorch in turns, as a table of ratios; BENCH="--rounds 5 --only cifar" chooses
	@$(PYTHON) -c 'import torchvision' || { echo "PyTorch with torchvision not found: run 'make setup-peer'"; exit 1; }
	@$(TORCH) $(CARGO) build --release --features tch,gloo && \
	$(PYTHON) tests/benches/compare.py --kiln "$${CARGO_TARGET_DIR:-target}/release/train" $(BENCH)

bench-gpu: ## a bundle without needs that finds out on a machine with a GPU whether Kiln is right and fast there
	@$(TORCH) CARGO="$(CARGO)" tests/acceptance/pack.sh bench-gpu $(GPU_BACKENDS)
	@echo "carry bench-gpu.tar.xz to a machine with CUDA's driver, Python and PyTorch; unpack it, run bench-gpu/accept.py"

setup-tch: ## PyTorch 2.9.0, which brings LibTorch, and what tests compare with, into a virtual environment
	python3 -m venv $(KILN_VENV)
	$(KILN_VENV)/bin/pip install --quiet torch==2.9.0 torchvision==0.24.0 numpy tensorboard==2.21.0 onnx==1.23.2 onnxruntime==1.31.1 webdataset==1.0.2 pyarrow==25.0.1 datasets==5.2.0 timm==1.0.31 mlflow==3.17.2

setup-wgpu: ## a Vulkan driver that computes on the processor (Debian, Ubuntu)
	$(SUDO) apt-get update --quiet
	$(SUDO) apt-get install --yes --quiet --no-install-recommends mesa-vulkan-drivers libvulkan1

setup-dist: ## Gloo, the assembler for the decoder of JPEGs, and what the tests of launchers use where it is there (Debian, Ubuntu)
	$(SUDO) apt-get update --quiet
	$(SUDO) apt-get install --yes --quiet --no-install-recommends libgloo-dev nasm g++ openmpi-bin slurm-wlm munge iproute2 iptables

setup-peer: setup-tch setup-dist ## what bench-peer measures against

clean: ## remove what was built
	$(CARGO) clean
