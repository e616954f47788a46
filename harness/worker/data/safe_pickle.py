"""Read pickles of plain values and byte arrays without executing anything they name.

A pickle can call any importable function. Here the few NumPy names that a pickled array needs map to stand-ins that
only record their arguments; all other names are rejected. Neither foreign code nor NumPy's state setters, which trust
their input, see the file, and NumPy's private module names do not matter.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, Dict, Tuple

import numpy as np


def load_plain(content: bytes) -> Any:
    """Return the pickled dict, list or scalar; uint8 arrays directly inside a dict or list become NumPy arrays.

    Byte strings of Python 2 stay bytes. Raises ValueError with the reason if the content is not such a pickle.
    """
    try:
        value = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except _Refused as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # arbitrary files fail in many ways, including MemoryError
        raise ValueError(f"it cannot be unpickled ({type(error).__name__}: {error})") from None
    return _with_arrays(value)


class _Refused(Exception):
    pass


class _PickledDtype:
    """Stand-in for numpy.dtype that records the name; other state (byte order, alignment) is irrelevant for bytes."""

    def __init__(self, name: Any = None, *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        pass


class _PickledArray:
    """Stand-in for numpy.ndarray that records the state (version, shape, dtype, is_fortran, raw bytes)."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> np.ndarray:
        try:
            _, shape, dtype, is_fortran, raw = self.state
            if dtype.name not in (b"u1", "u1"):
                raise ValueError(f"array of type {dtype.name!r}")
            return np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if is_fortran else "C")
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"an array in it is not a whole uint8 array ({error})") from None


def _reconstruct(*_: Any) -> _PickledArray:
    return _PickledArray()


def _encode(text: Any, encoding: Any = None) -> bytes:
    # Python 3 writes bytes this way in pickle protocols up to 2.
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise _Refused(f"it asks for the encoding {encoding!r}, which no data set needs")
    return text.encode("latin1")


_ALLOWED: Dict[Tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _PickledArray,
    ("numpy", "dtype"): _PickledDtype,
    ("_codecs", "encode"): _encode,
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise _Refused(f"it asks for {module}.{name}, which no data set needs; do not trust its source") from None


def _with_arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: item.array() if isinstance(item, _PickledArray) else item for key, item in value.items()}
    if isinstance(value, list):
        return [item.array() if isinstance(item, _PickledArray) else item for item in value]
    return value
