"""What the machine is, and where the libraries are that a bundle does not carry.

LibTorch is the one inside PyTorch. CUDA's headers and NVRTC, with which CubeCL compiles its kernels, are those of an
installed toolkit, or those of the wheels that PyTorch came with.
"""
import ctypes
import json
import os
import platform
import sys
from pathlib import Path

from course import LeftOut, TooLong, Wrong

# What CubeCL's kernels include, and what those for TMA and clusters include besides.
HEADERS = ["cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h", "mma.h"]
CLUSTERS = ["cooperative_groups/memcpy_async.h", "cuda/barrier", "cuda/ptx"]

ASK_TORCH = """
import json, torch
from pathlib import Path
facts = {"torch": torch.__version__, "place": str(Path(torch.__file__).parent), "cuda": torch.version.cuda}
facts["cards"] = [torch.cuda.get_device_properties(i).name for i in range(torch.cuda.device_count())]
facts["cudnn"] = torch.backends.cudnn.version() if facts["cards"] else None
try:
    import torchvision
    facts["torchvision"] = torchvision.__version__
except ImportError:
    facts["torchvision"] = None
print(json.dumps(facts))
"""


def part(course, backends):
    facts = course.machine
    facts.update(system=platform.platform(), cores=os.cpu_count(), python=platform.python_version())
    rows = [card(course, facts), torch(course, facts)]
    for backend in backends:
        row = {"text": "", "state": "ok", "backend": backend.name}
        try:
            prepare(course, backend, facts)
            row["text"] = f"{backend.name}: {facts['train ' + backend.name]}"
            if backend.name == "cuda" and not facts["clusters"]:
                row["text"] += ", without kernels for TMA and clusters: CUDA's C++ headers (CCCL) are missing"
        except LeftOut as why:
            backend.missing = str(why)
            row.update(state="left out", text=f"{backend.name}: {why}")
        except (Wrong, TooLong) as why:
            backend.missing = str(why)
            row.update(state="wrong", text=f"{backend.name}: {why}")
        rows.append(row)
    return rows


def card(course, facts):
    if course.stand_in:
        return {"text": "the processor in the place of a GPU"}
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        facts["cards"] = [line for line in course.run(query, limit=20).splitlines() if line.strip()]
    except (OSError, Wrong) as error:
        return {"state": "wrong", "text": f"nvidia-smi does not run, which comes with the driver: {error}"}
    return {"text": "; ".join(facts["cards"])}


def torch(course, facts):
    facts["torch"] = None
    try:
        output = course.run([sys.executable, "-c", ASK_TORCH], limit=50)
        facts["torch"] = json.loads(output.strip().splitlines()[-1])
    except (Wrong, TooLong, ValueError) as error:
        return {"state": "left out", "text": f"no PyTorch to compare with: {error}"}
    found = facts["torch"]
    return {"text": f"PyTorch {found['torch']}, CUDA {found['cuda']}, cuDNN {found['cudnn']}"}


def prepare(course, backend, facts):
    """Finds a backend's libraries, and runs its program once."""
    libraries = [course.bundle / "lib"]
    if backend.name == "tch":
        libraries.append(libtorch(facts, (backend.place / "libtorch").read_text().strip()))
    if backend.name == "cuda":
        home, nvrtc = toolkit(facts)
        libraries.append(nvrtc.parent)
        if facts["torch"]:
            # cuDNN, and what it loads.
            libraries += sorted((Path(facts["torch"]["place"]).parent / "nvidia").glob("*/lib"))
        backend.environment["CUDA_PATH"] = str(home)
        facts.update(headers=str(home), nvrtc=str(nvrtc), clusters=complaint(nvrtc, home, CLUSTERS) == "")
    libraries += [Path(place) for place in os.environ.get("LD_LIBRARY_PATH", "").split(":") if place]
    backend.environment.update(
        LD_LIBRARY_PATH=":".join(map(str, libraries)), KILN_TEST_ROOT=str(course.bundle), KILN_VENV=sys.prefix
    )
    home = backend.home("runs")
    facts["train " + backend.name] = course.run([backend.train, "--version"], backend, limit=20).strip()
    plan = [backend.train, "--backend", backend.name, "--data", "synthetic", "data.train_size=64", "--dry-run"]
    facts["plan " + backend.name] = course.run(plan, backend, limit=40, **home)


def libtorch(facts, built):
    """Where LibTorch is; its interface changes between minor versions, and `built` is the one that it was built with."""
    found = facts["torch"]
    if not found:
        raise LeftOut("it uses the LibTorch inside PyTorch, and there is none")
    minor = ".".join(built.split(".")[:2])
    if not found["torch"].startswith(f"{minor}."):
        raise LeftOut(f"it was built with the LibTorch of PyTorch {minor}, here is {found['torch']}")
    return Path(found["place"]) / "lib"


def toolkit(facts):
    """The directory whose `include` holds CUDA's headers, and an NVRTC that compiles with them."""
    places = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda", "/opt/cuda"]
    pairs = [(Path(place), Path(place) / "lib64") for place in places if place]
    if facts["torch"]:
        site = Path(facts["torch"]["place"]).parent
        nvidia, triton = site / "nvidia", site / "triton" / "backends" / "nvidia"
        # The runtime's own wheel lacks crt/mma.h, Triton's has it.
        for libraries in [nvidia / "cuda_nvrtc" / "lib", *sorted(nvidia.glob("cu1*/lib"))]:
            pairs += [(libraries.parent, libraries), (triton, libraries)]
    complaints = []
    for home, libraries in pairs:
        for nvrtc in sorted(libraries.glob("libnvrtc.so*"))[:1]:
            why = complaint(nvrtc, home, HEADERS)
            if not why:
                return home, nvrtc
            complaints.append(f"{home}: {why}")
    looked = "; ".join(complaints) or ", ".join(str(libraries) for _, libraries in pairs)
    raise Wrong(f"no NVRTC with CUDA's headers: install CUDA's toolkit, or set CUDA_PATH ({looked})")


def complaint(nvrtc, home, headers):
    """What NVRTC says of a kernel with these headers, or nothing: that needs no driver."""
    library = ctypes.CDLL(str(nvrtc))
    source = "".join(f"#include <{header}>\n" for header in headers) + "__global__ void f() {}\n"
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"probe.cu", 0, None, None)
    options = [f"--include-path={home}/include".encode(), f"--include-path={home}/include/cccl".encode()]
    code = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return "" if code == 0 else log.value.decode(errors="replace").strip().splitlines()[0][:200]
