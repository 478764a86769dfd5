"""The commands of golden.model and the guard around them."""

import importlib
import os
import subprocess
import sys

import pytest

from cocotb_tests.golden.gguf_variants import write_gguf
from golden.errors import UserError, main_guard
from golden.model import __main__ as cli
from golden.model import crosscheck


def run(main, *arguments: str) -> int:
    """Exit code of a command."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return caught.value.code


def test_info_shows_the_configuration(tmp_path, capsys):
    path = write_gguf(tmp_path / "m.gguf")
    assert run(cli.main, "--info", "--model", str(path)) == 0
    shown = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    shown = {label: value.strip() for label, value in shown.items()}
    assert shown["query heads"] == "4, 2 to a KV head" and shown["head_dim"] == "8"
    assert shown["vocabulary"] == "259 tokens, byte-level BPE, pre-tokenizer smollm"
    assert shown["KV cache in FP16"] == "0.1 KiB per token"


def test_generate_prints_prompt_and_text(tmp_path, capsys):
    path = write_gguf(tmp_path / "m.gguf")
    assert run(cli.main, "--generate", "the", "--count", "5", "--model", str(path)) == 0
    assert capsys.readouterr().out.startswith("the")


def test_generate_rejects_an_empty_prompt_and_a_full_context(tmp_path, capsys):
    path = str(write_gguf(tmp_path / "m.gguf"))
    assert run(cli.main, "--generate", "", "--model", path) == 2
    assert capsys.readouterr().err == "error: the prompt is empty; give at least one character\n"
    assert run(cli.main, "--generate", "the", "--count", "512", "--model", path) == 2
    assert capsys.readouterr().err == (
        "error: 1 tokens of prompt and 512 to generate do not fit: at least 1 must be generated, and the model's "
        "context holds 512\n"
    )


def test_a_missing_model_ends_with_one_sentence():
    result = subprocess.run(
        [sys.executable, "-m", "golden.model", "--info", "--model", "no.gguf"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: cannot read the model no.gguf: No such file or directory\n"


def test_crosscheck_says_what_it_lacks(tmp_path, capsys, monkeypatch):
    path = write_gguf(tmp_path / "m.gguf")

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert run(crosscheck.main, "--model", str(path)) == 2
    assert capsys.readouterr().err == "error: the comparison needs llama.cpp: pip install llama-cpp-python\n"


@pytest.mark.parametrize(
    ("raised", "code", "shown"),
    [
        (UserError("found a\n   b, c is needed"), 2, "error: found a b, c is needed\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_guard_turns_errors_into_exit_codes(capsys, raised, code, shown):
    @main_guard
    def main(arguments):
        raise raised

    assert run(main) == code
    assert capsys.readouterr().err == shown


def test_guard_passes_on_the_exit_code():
    assert run(main_guard(lambda arguments: None)) == 0
    assert run(main_guard(lambda arguments: 3)) == 3


def test_guard_lets_other_errors_through():
    @main_guard
    def main():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        main()


def test_guard_is_silent_when_the_reader_of_a_pipe_has_gone():
    program = "from golden.errors import main_guard\n@main_guard\ndef main():\n    print('x' * 100000)\nmain()"
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run([sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, b"")
