"""Query the NVIDIA driver about one GPU, through its library NVML (libnvidia-ml.so.1). Standard library only.

Signatures and constants are those of nvml.h (NVML API reference: "Device Queries", "Clocks Event Reasons"). A query
that a GPU or MIG device does not support returns None, never 0.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional, Tuple

LIBRARY = "libnvidia-ml.so.1"
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_SENSOR_GPU = 0
_TEXT_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE, the longest used here
# nvmlClocksEventReason*, by bit, without 0x1 (idle GPU) and 0x2 (clocks set by the user).
THROTTLE = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


class _Utilisation(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Gpu:
    """One GPU. name: its UUID, as NVML expects it."""

    def __init__(self, nvml: Any, handle: ctypes.c_void_p, name: str) -> None:
        self._nvml, self._handle, self.name = nvml, handle, name
        self.clocks_sm_max_mhz = self._unsigned("nvmlDeviceGetMaxClockInfo", _CLOCK_SM)

    @property
    def product(self) -> Optional[str]:
        """Product name, such as 'Tesla V100-SXM2-16GB'."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        return _text(text) if self._ask("nvmlDeviceGetName", text, ctypes.c_uint(_TEXT_BYTES)) else None

    @property
    def driver(self) -> Optional[str]:
        """Driver version, such as '535.104.05'."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        call = getattr(self._nvml, "nvmlSystemGetDriverVersion", None)
        return _text(text) if call is not None and call(text, ctypes.c_uint(_TEXT_BYTES)) == 0 else None

    @property
    def capability(self) -> Optional[Tuple[int, int]]:
        """CUDA compute capability, such as (7, 0) for a V100."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        known = self._ask("nvmlDeviceGetCudaComputeCapability", ctypes.byref(major), ctypes.byref(minor))
        return (major.value, minor.value) if known else None

    def millijoules(self) -> Optional[int]:
        """Return the energy used since the driver was loaded; Volta and newer."""
        found = ctypes.c_ulonglong()
        return found.value if self._ask("nvmlDeviceGetTotalEnergyConsumption", ctypes.byref(found)) else None

    def watts(self) -> Optional[float]:
        """Return the power of the board: from Ampere on (except GA100) a mean over the last second, before that the
        current value."""
        milliwatts = self._unsigned("nvmlDeviceGetPowerUsage")
        return None if milliwatts is None else milliwatts / 1e3

    def state(self) -> Dict[str, Any]:
        """Return the fields of a `device` event (harness/schemas/events.schema.json)."""
        utilisation, memory = _Utilisation(), _Memory()
        busy = self._ask("nvmlDeviceGetUtilizationRates", ctypes.byref(utilisation))
        used = self._ask("nvmlDeviceGetMemoryInfo", ctypes.byref(memory))
        return {
            "gpu_utilisation": utilisation.gpu / 100 if busy else None,
            "memory_used_bytes": memory.used if used else None,
            "clocks_sm_mhz": self._unsigned("nvmlDeviceGetClockInfo", _CLOCK_SM),
            "clocks_sm_max_mhz": self.clocks_sm_max_mhz,
            "clocks_memory_mhz": self._unsigned("nvmlDeviceGetClockInfo", _CLOCK_MEMORY),
            "power_w": self.watts(),
            "temperature_c": self._unsigned("nvmlDeviceGetTemperature", _SENSOR_GPU),
            "throttle": self._throttle(),
        }

    def _throttle(self) -> Optional[List[str]]:
        bits = ctypes.c_ulonglong()
        # Two names of one function: the first since driver 535, the second deprecated.
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        if not any(self._ask(name, ctypes.byref(bits)) for name in names):
            return None
        return [name for bit, name in THROTTLE.items() if bits.value & bit]

    def _unsigned(self, function: str, *which: int) -> Optional[int]:
        found = ctypes.c_uint()
        return found.value if self._ask(function, *map(ctypes.c_uint, which), ctypes.byref(found)) else None

    def _ask(self, function: str, *arguments: Any) -> bool:
        """Call a function; return False if it fails or an older driver lacks it."""
        call = getattr(self._nvml, function, None)
        return call is not None and call(self._handle, *arguments) == 0


def _text(buffer: Any) -> str:
    return str(buffer.value.decode("utf-8", "replace"))


def find(device_id: Optional[str], library: str = LIBRARY) -> Optional[Gpu]:
    """Return the GPU with this UUID; None without such a GPU or a driver. Never raises: recording is optional."""
    if not device_id:
        return None
    name = device_id if device_id.startswith(("GPU-", "MIG-")) else f"GPU-{device_id}"
    try:
        nvml = ctypes.CDLL(library)
        handle = ctypes.c_void_p()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(name.encode("ascii"), ctypes.byref(handle)):
            return None
    except (OSError, ValueError, AttributeError):
        return None
    return Gpu(nvml, handle, name)


def board(visible: Optional[str], library: str = LIBRARY) -> Optional[str]:
    """Return the UUID of the first GPU in CUDA_VISIBLE_DEVICES, or of the GPU of the first MIG device; None without a
    driver or such a GPU. Never raises."""
    name = "0" if visible is None else visible.split(",")[0].strip()
    handle, whole, uuid = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.create_string_buffer(96)
    try:
        nvml = ctypes.CDLL(library)
        if nvml.nvmlInit_v2():
            return None
        if name.isdigit():
            missing = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle))
        else:
            missing = nvml.nvmlDeviceGetHandleByUUID(name.encode("ascii"), ctypes.byref(handle))
        if missing:
            return None
        if name.startswith("MIG-"):
            if nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle, ctypes.byref(whole)):
                return None
            handle = whole
        if nvml.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(len(uuid))):
            return None
    except (OSError, ValueError, AttributeError):
        return None
    return uuid.value.decode("ascii", errors="replace")
