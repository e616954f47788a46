"""Fake nvidia-smi and NVML of machines with GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

# Output of real drivers, in the layout of NVIDIA's MIG user guide ("Listing MIG devices"): the first with the names of
# driver 470 and newer, the second with those of drivers 450 to 460.
PLAIN = """\
GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-4a8f6d8e-aaaa-bbbb-cccc-000000000001)
GPU 1: Tesla V100-SXM2-32GB (UUID: GPU-5b8f6d8e-aaaa-bbbb-cccc-000000000002)
"""
MIG = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1c.2g.10gb  Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-0e2ba0d6-d33d-2b2c-524d-9e3d8d2b8a78)
"""
MIG_BEFORE_470 = """\
GPU 0: A100-SXM4-40GB (UUID: GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0)
  MIG 3g.20gb Device 0: (UUID: MIG-GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0/1/0)
  MIG 3g.20gb Device 1: (UUID: MIG-GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0/2/0)
"""


def machine_of(folder: Path, listing: str, visible: str | None = None) -> dict[str, str]:
    """Return the environment of a machine whose fake nvidia-smi lists these GPUs."""
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n[ \"$1\" = -L ] && cat <<'END'\n{listing}END\n")
    program.chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    given = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return {**kept, **given, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}


# Replaces the driver's library: NVML's signatures (nvml.h), with a GPU that has one MIG device.
NVML = r"""
#include <string.h>
typedef void *handle;
static int whole, part;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned n, handle *found) { *found = &whole; return n > 1 ? 6 : 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, handle *found) {
  *found = strncmp(uuid, "MIG-", 4) ? &whole : &part;
  return !uuid[0] || strstr(uuid, "gone") ? 6 : 0;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle of, handle *found) {
  *found = &whole;
  return of == &part ? 0 : 2;
}
int nvmlDeviceGetUUID(handle of, char *uuid, unsigned length) {
  strncpy(uuid, of == &whole ? "GPU-whole" : "MIG-part", length);
  return 0;
}
"""


def nvml_of_one_gpu(folder: Path) -> Path:
    """Build that library in a folder; skips the test if there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = folder / "nvml.c", folder / "libnvidia-ml.so.1"
    source.write_text(NVML)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library
