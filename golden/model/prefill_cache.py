"""KV caches of long texts, computed once with exact attention and kept on disk.

Layout of a cache folder: `prefill/<key>/` holds a complete prefill, `prefill/<key>.partial/` one in the making, where
`hidden-<n>.npy` is the residual after the first n layers and the other files hold these layers and perhaps some more.
"""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import platformdirs
from tqdm import tqdm

from golden.errors import UserError
from golden.model import texts
from golden.model.attention import BLOCK_TOKENS, causal_attention
from golden.model.llama import Model
from golden.model.tokenizer import ModelTokenizer

__all__ = ["Prefill", "cache_folder", "prefill"]

FORMAT = "kvo prefill 1"


@dataclass(frozen=True, kw_only=True)
class Prefill:
    """What exact attention over the first `context` tokens of a text leaves behind; arrays are mapped, read-only.

    tokens int32 [context + 1]: the context and the token that follows it.
    k, v float16 [layers, kv_heads, context, head_dim]: keys (rotary applied) and values.
    hidden float32 [context, hidden]: residual after the last layer, before the final norm.
    block_mass float16 [layers, kv_heads, context / 64, context]: attention probability that each token receives from
    the queries of each block of 64, summed over them and over the query heads of the KV head.
    """

    tokens: npt.NDArray[np.int32]
    k: npt.NDArray[np.float16]
    v: npt.NDArray[np.float16]
    hidden: npt.NDArray[np.float32]
    block_mass: npt.NDArray[np.float16]


def cache_folder() -> Path:
    """Folder of everything that can be computed again: $KVO_CACHE, or `kvo` in the user's cache folder."""
    return Path(os.environ.get("KVO_CACHE") or platformdirs.user_cache_dir("kvo"))


def prefill(
    model: Model, text: str | Path | Sequence[int] | npt.NDArray[np.integer], context: int, progress: bool = True
) -> Prefill:
    """The prefill of the first `context` tokens of `text`, from the cache folder when it is there.

    text: name of a shipped text, path of a UTF-8 file, or token ids. context: tokens, a multiple of 64.
    progress: show a bar on stderr while computing. An interrupted computation goes on after its last finished layer;
    of two processes that want the same prefill the second waits for the first.
    Raises `UserError` when the text is too short, the context does not suit the model, or the disk cannot be written.
    """
    if context < BLOCK_TOKENS or context % BLOCK_TOKENS or context > model.config.context_length:
        raise UserError(
            f"a context of {context} tokens is not possible: a multiple of {BLOCK_TOKENS} up to the model's "
            f"{model.config.context_length} is needed"
        )
    name = str(text) if isinstance(text, (str, Path)) else "token ids"
    ids = ModelTokenizer(model.file).encode(texts.read(text)) if isinstance(text, (str, Path)) else list(text)
    if len(ids) < context + 1:
        raise UserError(
            f"text {name!r} has {len(ids)} tokens, {context + 1} are needed: give a longer text or less context"
        )
    tokens = np.asarray(ids[: context + 1], dtype=np.int32)
    root = cache_folder()
    try:
        digest = _model_digest(root, model.path)
        key = hashlib.sha256(f"{FORMAT} {digest} {context} ".encode() + tokens.astype("<i4").tobytes()).hexdigest()[:32]
        done, partial = root / "prefill" / key, root / "prefill" / f"{key}.partial"
        with _lock(root / "prefill" / f"{key}.lock"):
            if not done.is_dir():
                about = {"format": FORMAT, "model": model.config.name, "text": name, "context": context}
                _compute(model, tokens, partial, about, progress)
                partial.rename(done)
    except OSError as error:
        raise UserError(
            f"cannot use the cache folder {root}: {error.strerror or error}; KVO_CACHE names another one"
        ) from error
    arrays = {part: np.load(done / f"{part}.npy", mmap_mode="r") for part in _layer_arrays(model, context)}
    hidden = np.load(done / _hidden_name(model.config.layers), mmap_mode="r")
    return Prefill(tokens=np.load(done / "tokens.npy"), hidden=hidden, **arrays)


def _hidden_name(layers: int) -> str:
    """File of the residual after `layers` layers."""
    return f"hidden-{layers}.npy"


def _layer_arrays(model: Model, context: int) -> dict[str, tuple[int, ...]]:
    """Name and shape, without the layer, of the float16 arrays that grow by one row per layer."""
    c = model.config
    rows = (c.kv_heads, context, c.head_dim)
    return {"k": rows, "v": rows, "block_mass": (c.kv_heads, context // BLOCK_TOKENS, context)}


def _compute(
    model: Model, tokens: npt.NDArray[np.int32], folder: Path, about: dict[str, object], progress: bool
) -> None:
    """Fill `folder`, going on after the last layer that is completely there."""
    layers, context = model.config.layers, len(tokens) - 1
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "about.json").write_text(json.dumps(about) + "\n", encoding="utf-8")
    np.save(folder / "tokens.npy", tokens)
    first = max((n for n in range(1, layers + 1) if (folder / _hidden_name(n)).exists()), default=0)
    x = np.load(folder / _hidden_name(first)) if first else model.embed(tokens[:-1])
    positions = np.arange(context)
    shapes = _layer_arrays(model, context)
    mass = np.empty(shapes["block_mass"], np.float32)
    bar = tqdm(total=layers, initial=first, desc=f"prefill {about['text']}", unit="layer", disable=not progress)
    with bar, contextlib.ExitStack() as stack:
        files = {
            part: stack.enter_context(_LayerFile(folder / f"{part}.npy", layers, shapes[part], first))
            for part in shapes
        }
        for layer in range(first, layers):
            q, k, v = model.qkv(layer, x, positions)
            x = model.finish(layer, x, causal_attention(q, k, v, mass=mass))
            for part, rows in (("k", k), ("v", v), ("block_mass", mass)):
                files[part].append(rows)
            _save(folder / _hidden_name(layer + 1), x)
            (folder / _hidden_name(layer)).unlink(missing_ok=True)
            bar.update()


class _LayerFile:
    """A `.npy` file of float16 [layers, *shape] that is written layer by layer and kept up to layer `first`.

    It is written as a plain file, not through a mapping, so that a full disk shows as an error.
    """

    def __init__(self, path: Path, layers: int, shape: tuple[int, ...], first: int) -> None:
        self._file = path.open("r+b" if first else "wb")
        header = {"descr": "<f2", "fortran_order": False, "shape": (layers, *shape)}
        np.lib.format.write_array_header_1_0(self._file, header)
        self._file.seek(first * 2 * math.prod(shape), os.SEEK_CUR)
        self._file.truncate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, rows: npt.NDArray[np.float32]) -> None:
        """Write the next layer's `rows`, onto the disk."""
        self._file.write(rows.astype("<f2").tobytes())
        self._file.flush()
        os.fsync(self._file.fileno())


def _save(path: Path, values: npt.NDArray[np.float32]) -> None:
    """Write `values` so that `path` appears only when it is complete."""
    draft = path.with_suffix(".tmp")
    with draft.open("wb") as file:
        np.save(file, values)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`; the system frees it when the process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another process that computes the same prefill", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _model_digest(root: Path, path: Path) -> str:
    """SHA-256 of the model file, remembered for as long as its path, size and time of change stay the same."""
    status = path.stat()
    identity = hashlib.sha256(f"{path} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:32]
    memo = root / "models" / identity
    if not memo.exists():
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        memo.parent.mkdir(parents=True, exist_ok=True)
        draft = memo.with_suffix(f".{os.getpid()}")
        draft.write_text(digest)
        draft.rename(memo)
    return memo.read_text()
