"""A Llama-type language model in NumPy, its tokenizer, the texts it is evaluated on, and prefills of these on disk."""

from golden.model import texts
from golden.model.gguf_file import default_model_path
from golden.model.llama import KvCache, LanguageModel, Model, ModelConfig, load_model
from golden.model.prefill_cache import Prefill, prefill
from golden.model.tokenizer import ModelTokenizer, load_tokenizer

__all__ = [
    "KvCache",
    "LanguageModel",
    "Model",
    "ModelConfig",
    "ModelTokenizer",
    "Prefill",
    "default_model_path",
    "load_model",
    "load_tokenizer",
    "prefill",
    "texts",
]
