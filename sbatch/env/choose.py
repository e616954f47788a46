"""Choose the build of a framework's environment.

`choose.py pytorch` prints VARIANT, CUDA and the compute capabilities of the target GPUs, such as `cuda cu126 7.0`. On
failure it prints one sentence on stderr and exits with code 1. Standard library and Python 3.8 only: it runs before any
environment exists.

The rules (docs/frameworks.md):

1. VARIANT=cpu selects the CPU build and excludes GPU= and CUDA=.
2. The GPUs are given by GPU=, else by CLUSTER=<name> (cluster.gpu_type), else by nvidia-smi.
3. cu126 for GPUs before Turing (7.5) or a driver before 580, otherwise cu130. CUDA= can select the other one if the
   GPUs support it, and suffices if the GPUs are unknown.
4. If neither is known: the CPU build on a machine without Slurm GPUs; an error on a cluster's login node, and with
   VARIANT=cuda.
"""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))
from harness.core.gpu_types import CAPABILITIES, OLDEST_DRIVER, OLDEST_OF_CUDA, capability, written  # noqa: E402

CONTAINER = "run the ranks in a container that suits it (docs/sites.md, Containers)"
SETTINGS = "GPU=v100 (or a100, h100, ...), CLUSTER=<a file of conf/cluster>, or CUDA=cu126 or cu130"
SECONDS = 30

# Compute capabilities that each build has kernels for (PYTORCH_RELEASES_CODE_CC in torch/cuda/__init__.py; a kernel for
# 8.0 also runs on 8.6 and 8.9), and its oldest driver ("minor version compatibility" in NVIDIA's CUDA compatibility
# guide).
OLDEST, DRIVER = dict(OLDEST_OF_CUDA), dict(OLDEST_DRIVER)
BUILDS = {
    "cu126": {"oldest": OLDEST[12], "newest": (9, 0), "driver": DRIVER[12]},
    "cu130": {"oldest": OLDEST[13], "newest": (12, 1), "driver": DRIVER[13]},
}
# Only one CUDA build each, so CUDA= is ignored: TensorFlow 2.15 uses CUDA 12.2 and runs up to Hopper (through PTX for
# 8.0); MXNet 1.9 uses CUDA 11.7 and runs up to Ampere, without PTX.
ONLY = {
    "tensorflow": {"name": "cu122", "oldest": OLDEST[12], "newest": (9, 0), "driver": DRIVER[12]},
    "mxnet": {"name": "cu117", "oldest": (5, 0), "newest": (8, 9), "driver": DRIVER[11]},
}


class Refused(Exception):
    """One sentence for the user."""


def main(framework):
    check_machine(platform.machine(), platform.libc_ver())
    variant, asked = os.environ.get("VARIANT", ""), os.environ.get("CUDA", "")
    if asked and asked not in BUILDS:
        raise Refused(f"CUDA={asked}: take one of: {' '.join(BUILDS)}")
    if variant == "cpu":
        for name in ("GPU", "CUDA"):
            if os.environ.get(name):
                raise Refused(f"VARIANT=cpu and {name}={os.environ[name]} contradict each other: leave one out")
        return "cpu - -"
    whose, gpus, driver = find_gpus(variant)
    if gpus is None and not asked:
        if variant == "cuda":
            raise Refused(f"VARIANT=cuda on a machine without a GPU: say which GPUs it is for, by {SETTINGS}")
        if slurm_has_gpus():
            raise Refused(
                "this looks like the login node of a cluster with GPUs, and has none itself: say which ones the "
                f"environment is for, by {SETTINGS}; or take VARIANT=cpu"
            )
        return "cpu - -"
    if whose == "cpu":
        return "cpu - -"
    cuda = choose(framework, gpus or [], driver, asked, whose)
    return f"cuda {cuda} {','.join(written(gpu) for gpu in gpus or []) or '-'}"


def choose(framework, gpus, driver, asked, whose):
    """Return the CUDA version for these GPUs. gpus: [(major, minor)], empty if unknown. driver: 535, or None."""
    only = ONLY.get(framework)
    oldest_driver = (only or BUILDS["cu126"])["driver"]
    if driver is not None and driver < oldest_driver:
        raise Refused(
            f"{whose}'s driver {driver} is older than {oldest_driver}, the oldest that {framework} runs on; update it, "
            f"or {CONTAINER}"
        )
    if only:
        must_have_kernels(framework, only, gpus, whose)
        return only["name"]
    usable = [name for name, build in BUILDS.items() if has_kernels(build, gpus) and (driver or 999) >= build["driver"]]
    if asked:
        if asked not in usable:
            instead = f"leave CUDA out, or take CUDA={usable[0]}" if usable else CONTAINER
            raise Refused(f"CUDA={asked} does not run on {whose} ({described(gpus, driver)}); {instead}")
        return asked
    if not usable:
        raise Refused(f"no build of {framework} runs on {whose} ({described(gpus, driver)}); {CONTAINER}")
    return usable[-1]


def must_have_kernels(framework, build, gpus, whose):
    if not has_kernels(build, gpus):
        raise Refused(
            f"{framework} is for compute capability {written(build['oldest'])} to {written(build['newest'])}, and "
            f"{whose} has {described(gpus, None)}; {CONTAINER}, or give make the ENVS to build, without {framework}"
        )


def has_kernels(build, gpus):
    return all(build["oldest"] <= gpu <= build["newest"] for gpu in gpus)


def find_gpus(variant):
    """Return (where they were found, [(major, minor)] or None if unknown, major version of the driver or None)."""
    named = os.environ.get("GPU", "")
    if named:
        return "GPU=" + named, [named_gpu(named, "GPU")], None
    cluster = os.environ.get("CLUSTER", "")
    if cluster:
        device, kind = described_cluster(cluster)
        if device == "cpu":
            if variant == "cuda" or os.environ.get("CUDA"):
                raise Refused(f"CLUSTER={cluster} has no GPUs (device: cpu): leave CLUSTER out, or VARIANT and CUDA")
            return "cpu", [], None
        if kind is None:
            raise Refused(
                f"CLUSTER={cluster} does not say which GPUs it has (gpu_type: null): set gpu_type there, or give GPU="
            )
        return "CLUSTER=" + cluster, [named_gpu(kind, "gpu_type of CLUSTER=" + cluster)], None
    drivers = nvidia_smi("driver_version")
    if not drivers:
        return "", None, None
    found = nvidia_smi("compute_cap")  # empty with old drivers, which lack this query
    return "this machine", sorted({version(line) for line in found}), version(drivers[0])[0]


def named_gpu(name, setting):
    """(7, 0) for `v100`, `volta`, `Tesla-V100-SXM2-32GB`."""
    found = capability(name)
    if found is None:
        known = " ".join(sorted(names[0] for names, _ in CAPABILITIES))
        raise Refused(
            f"{setting}={name}: not a GPU that is known here, such as {known}; name another one of its kind, or give "
            "only CUDA=cu126 (GPUs before Turing, or a driver before 580) or CUDA=cu130"
        )
    return found


def described_cluster(cluster):
    """(device, gpu_type or None) of conf/cluster/<cluster>.yaml, or of a file of that kind elsewhere."""
    file = Path(cluster) if cluster.endswith(".yaml") else PROJECT / "conf" / "cluster" / (cluster + ".yaml")
    try:
        text = file.read_text()
    except OSError as error:
        raise Refused(
            f"CLUSTER={cluster}: {file}: {error.strerror}; take a name of conf/cluster, or a file.yaml"
        ) from None
    keys = dict(re.findall(r"^(device|gpu_type):[ \t]*([^\s#]+)", text, re.MULTILINE))
    kind = keys.get("gpu_type", "null").strip("'\"")
    return keys.get("device"), None if kind in ("null", "~", "") else kind


def nvidia_smi(query):
    """One line for each GPU; [] where it, a driver or a GPU is missing, or it does not know the query."""
    lines = output("nvidia-smi", "--query-gpu=" + query, "--format=csv,noheader")
    return [line for line in lines if re.match(r"\d+\.\d+", line)]


def slurm_has_gpus():
    return any("gpu" in line for line in output("sinfo", "--noheader", "--format=%G"))


def output(*argv):
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line.strip() for line in done.stdout.decode(errors="replace").splitlines()]
    return lines if done.returncode == 0 else []


def check_machine(machine, libc):
    if machine not in ("x86_64", "aarch64"):
        raise Refused(f"the frameworks' packages are for x86_64, and this machine is {machine}; {CONTAINER}")
    name, number = libc
    if name == "glibc" and version(number) < (2, 28):
        raise Refused(f"the frameworks' packages need glibc 2.28 or newer, and this system has {number}; {CONTAINER}")


def described(gpus, driver):
    kind = "compute capability " + " and ".join(written(gpu) for gpu in gpus) if gpus else "unknown GPUs"
    return kind + (f", driver {driver}" if driver else "")


def version(text):
    """(7, 0) for "7.0"; (535, 161) for "535.161.08"."""
    major, minor = re.match(r"(\d+)\.(\d+)", text).groups()
    return int(major), int(minor)


if __name__ == "__main__":
    try:
        print(main(sys.argv[1]))
    except Refused as refused:
        sys.exit(f"error: {refused}")
