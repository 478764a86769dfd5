"""The repository is tidy: small files, no traces of one machine, commands with help, links that lead on."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("golden", "rtl", "sim", "fpga", "cocotb_tests")
LIMIT_BYTES = 1_000_000
TEXTS = "golden/model/texts/"  # prose by other authors, exempt from the rules for our own words
# Written in pieces, so that this file passes its own test.
FOLDERS = "|".join(["ho" + "me", "ro" + "ot", "wo" + "rk", "tm" + "p"])
MACHINE_PATH = re.compile(rf"(?<![\w.}}/-])/(?:{FOLDERS})/\w")
MARKS = re.compile("|".join([r"\bTO" + "DO", r"\bFIX" + "ME", r"\bX" + r"XX\b"]))
UNWRITTEN = re.compile("raise NotImplemented" + "Error")  # tests may play a library that raises it
SKIPS = re.compile(r"pytest\.(?:mark\.)?(?:" + "|".join(["sk" + "ip", "xf" + "ail"]) + r")\b|skip" + r"=True")


def tracked_files() -> list[Path]:
    """Return the files of the project, relative to its root: what git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [Path(name) for name in names if name and (ROOT / name).is_file()]


def own_texts() -> list[tuple[Path, str]]:
    """Return the text files that we write, with their content."""
    texts = []
    for path in tracked_files():
        if not path.as_posix().startswith(TEXTS):
            try:
                texts.append((path, (ROOT / path).read_text(encoding="utf-8")))
            except UnicodeDecodeError:
                continue
    return texts


def commands() -> list[str]:
    """Return the modules that are commands: those that run something when called by `python -m`."""
    names = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name == "__main__.py" or '\nif __name__ == "__main__":' in path.read_text():
                parts = path.relative_to(ROOT).with_suffix("").parts
                names.append(".".join(part for part in parts if part != "__main__"))
    return names


def run_command(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the project from its root."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def _offences(pattern: re.Pattern[str], texts: list[tuple[Path, str]]) -> list[str]:
    return [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
        for path, text in texts
        for match in pattern.finditer(text)
    ]


def test_files_are_small():
    large = [str(path) for path in tracked_files() if (ROOT / path).stat().st_size > LIMIT_BYTES]
    assert large == []


def test_names_no_machine_paths():
    assert _offences(MACHINE_PATH, own_texts()) == []


def test_has_no_marks_of_unfinished_work():
    assert _offences(MARKS, own_texts()) == []
    product = [(path, text) for path, text in own_texts() if path.suffix == ".py" and path.parts[0] != "cocotb_tests"]
    assert _offences(UNWRITTEN, product) == []


def test_skips_no_tests():
    assert _offences(SKIPS, [(path, text) for path, text in own_texts() if path.suffix == ".py"]) == []


@pytest.mark.parametrize("module", commands())
def test_command_explains_itself(module):
    result = run_command(module, "--help")
    assert result.returncode == 0, result.stderr
    assert "usage:" in result.stdout


@pytest.mark.parametrize("module", commands())
def test_command_rejects_unknown_options(module):
    result = run_command(module, "--no-such-option")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "error:" in result.stderr


def test_documented_commands_exist():
    known = set(commands())
    pattern = re.compile(r"(?:python3?|PYTHON_ENV\)) -m ((?:" + "|".join(PACKAGES) + r")(?:\.\w+)*)")
    for path, text in own_texts():
        if path.suffix == ".md" or path.name == "Makefile":
            assert set(pattern.findall(text)) - known == set(), path


def test_documented_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path, text in own_texts():
        if path.suffix == ".md":
            assert set(re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE)) - targets == set(), path


def test_documented_links_lead_somewhere():
    broken = [
        f"{path}: {target}"
        for path, text in own_texts()
        if path.suffix == ".md"
        for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", text)
        if "://" not in target and not target.startswith("mailto:") and not (ROOT / path.parent / target).exists()
    ]
    assert broken == []
