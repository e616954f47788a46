"""NVIDIA GPU names, and which framework builds run on which GPUs. Standard library only.

As a script it prints the compute capability of a GPU by name: `python -m harness.core.gpu_types v100` prints 7.0.
"""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Sequence, Tuple

Capability = Tuple[int, int]
# Tensor cores for bf16 and TF32 arrived with Ampere. Older GPUs emulate bf16 and ignore TF32.
AMPERE: Capability = (8, 0)
# Names used by sites and drivers -> compute capability (developer.nvidia.com/cuda-gpus). A space matches any or no
# separator, N a digit. The first match wins, so a name precedes the shorter names it contains. Messages use the first
# name of a row.
CAPABILITIES = (
    (("gb10",), (12, 1)),
    (("rtx5090", "rtx pro NNNN", "rtx 50NN"), (12, 0)),
    (("b300", "gb300"), (10, 3)),
    (("b200", "b100", "gb200"), (10, 0)),
    (("h100", "h200", "h800", "h20", "gh200", "hopper"), (9, 0)),
    (("l40", "l40s", "l20", "l4", "l2", "rtx 40NN", "rtx NNNN ada", "ada"), (8, 9)),
    (("a40", "a16", "a10", "a10g", "a2", "rtx aNNNN", "aN000", "rtx 30NN"), (8, 6)),
    (("a100", "a800", "a30", "ampere"), (8, 0)),
    (("t4", "t4g", "turing", "rtx 20NN", "rtx 8000", "quadro rtx NNNN", "titan rtx", "gtx 16NN"), (7, 5)),
    (("v100", "v100s", "titan v", "gv100", "volta", "voltaNN"), (7, 0)),
    (("p100", "gp100", "pascal"), (6, 0)),
    (("p40", "p4", "gtx 10NN", "titan xp", "titan"), (6, 1)),
    (("m40", "m60", "gtx 9NN", "maxwell"), (5, 2)),
    (("k80",), (3, 7)),
    (("k20", "k40"), (3, 5)),
)
# Suffixes that follow a name without a separator: a100sxm4, rtx2080ti, v10032gb.
SUFFIX = r"(?:ti|super|s|x|d|m|sxm\d?|pcie|nvl|nvlink|\d\dgb?)?"
# Oldest capability supported by each CUDA version (CUDA release notes, "Deprecated Architectures").
OLDEST_OF_CUDA = ((13, (7, 5)), (12, (5, 0)), (11, (3, 5)))
# cuDNN dropped GPUs older than Turing after 9.10 (cuDNN support matrix).
CUDNN_WITHOUT_VOLTA = (9, 11)
TURING: Capability = (7, 5)
# Oldest driver per CUDA major version (CUDA compatibility, minor-version compatibility).
OLDEST_DRIVER = ((13, 580), (12, 525), (11, 450))


@dataclass(frozen=True)
class Build:
    """What a framework was built for.

    Attributes:
        name: framework and version.
        cuda, cudnn: versions, such as '12.6' and '9.10.2'; None if unknown.
        architectures: those with kernels, such as 'sm_70' and 'compute_90' (PTX, compiled by the driver for newer
            GPUs); empty if unknown.
        last: whether there will be no build for newer GPUs.
    """

    name: str
    cuda: Optional[str] = None
    cudnn: Optional[str] = None
    architectures: Tuple[str, ...] = ()
    last: bool = False


@functools.lru_cache(maxsize=None)
def capability(gpu_type: Optional[str]) -> Optional[Capability]:
    """Compute capability of a GPU by name, such as v100, nvidia_a100_80gb_pcie or Tesla T4; None if unknown."""
    name = re.sub(r"[^a-z0-9]+", " ", (gpu_type or "").lower())
    name = re.sub(r"^(?:(?:nvidia|tesla|geforce|gpu) ?)+", "", name)
    for patterns, found in CAPABILITIES:
        if any(re.search(_expression(pattern), name) for pattern in patterns):
            return found
    return None


def written(found: Capability) -> str:
    """Format a capability: (7, 0) -> '7.0'."""
    return "{}.{}".format(*found)


def usual_name(found: Capability) -> Optional[str]:
    """Common name of GPUs with a capability: (7, 0) -> 'v100'; None if unknown."""
    return next((names[0] for names, of in CAPABILITIES if of == found), None)


def misfit(build: Build, found: Capability) -> Optional[str]:
    """Return why a build has no kernels for a capability, as a clause about the build; None if it has, or unknown."""
    floor = _floor(OLDEST_OF_CUDA, build.cuda)
    if build.architectures and not any(_runs(architecture, found) for architecture in build.architectures):
        return f"{_with_cuda(build)} has kernels for {', '.join(build.architectures)} only"
    if floor is not None and found < floor:
        return f"{_with_cuda(build)} starts at {written(floor)}"
    if found < TURING and _numbers(build.cudnn) >= CUDNN_WITHOUT_VOLTA:
        return f"{build.name} with cuDNN {build.cudnn} starts at {written(TURING)} (cuDNN 9.10 is the last below it)"
    return None


def old_driver(build: Build, driver: Optional[str]) -> Optional[str]:
    """Return why the driver is too old for a build, as a sentence without full stop; None if it is recent enough."""
    needed = _floor(OLDEST_DRIVER, build.cuda)
    if needed is None or not _numbers(driver) or _numbers(driver) >= (needed,):
        return None
    return f"{_with_cuda(build)} needs NVIDIA driver {needed} or newer; this machine has {driver}"


def builder(environment: str) -> Optional[str]:
    """Return the script that builds an environment, as a user calls it; None if there is none."""
    project = Path(__file__).resolve().parents[2]
    script = project / "sbatch" / "env" / f"{environment}.sh"
    if "/" in environment or not script.is_file():
        return None
    return str(script if installed(project) else script.relative_to(project))


def completion(environment: str) -> str:
    """Return what to do about an environment that lacks a package."""
    script = builder(environment)
    how = f"rebuild it: `{script}`" if script else "install it there"
    return f"{how}, or set framework.environment to an interpreter with it"


def installed(project: Path) -> bool:
    """Return whether a folder with the project's packages was installed by pip, and is not a checkout."""
    return (project.parent / "scaling_harness.pth").is_file()


def advice(build: Build, found: Optional[Capability], environment: str) -> str:
    """Advise on an unsuitable build in an environment, such as 'pytorch' or a path."""
    if build.last and found is not None and not any(_of_architecture(a) >= found for a in build.architectures):
        return "no newer build of it exists: use another framework on this GPU"
    gpu = usual_name(found) if found else None
    script = builder(environment)
    if script and gpu:
        return f"build the environment for it: `GPU={gpu} {script}`"
    if script:
        return f"rebuild the environment on such a node: `{script}`"
    return f"install a compatible build in the environment '{environment}', or set framework.environment to one"


def _runs(architecture: str, found: Capability) -> bool:
    """Return whether code compiled for an architecture runs on a GPU.

    Binaries (sm_) run within a major version, PTX (compute_) on all newer GPUs. Architecture-specific code ('sm_90a')
    runs on that GPU only; family-specific code ('sm_100f') behaves like a binary.
    """
    of = _of_architecture(architecture)
    if architecture.endswith("a"):
        return found == of
    if architecture.startswith("compute_"):
        return found >= of
    return found[0] == of[0] and found >= of


def _of_architecture(architecture: str) -> Capability:
    digits = re.sub(r"\D", "", architecture)
    return int(digits[:-1] or 0), int(digits[-1:] or 0)


def _floor(table: Sequence[Tuple[int, Any]], version: Optional[str]) -> Any:
    """The table's entry for a CUDA version's major number; None if there is none."""
    return dict(table).get(_numbers(version)[0]) if _numbers(version) else None


def _numbers(version: Optional[str]) -> Tuple[int, ...]:
    """Parse a version: '9.10.2' -> (9, 10, 2); empty if unknown."""
    return tuple(int(number) for number in re.findall(r"\d+", version or ""))


def _with_cuda(build: Build) -> str:
    return f"{build.name} with CUDA {build.cuda}" if build.cuda else build.name


def _expression(pattern: str) -> str:
    return r"\b" + pattern.replace(" ", " ?").replace("N", r"\d") + SUFFIX + r"\b"


def main(arguments: Sequence[str]) -> int:
    found = capability(arguments[0]) if len(arguments) == 1 else None
    if found is None:
        print(f"error: no NVIDIA GPU of the name '{' '.join(arguments)}' is known here", file=sys.stderr)
        return 2
    print(written(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
