"""Every hardware block has its golden function, its test and its page; every testpoint names a test that exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Parts that blocks share, and sequencing that has no arithmetic to mirror.
UNMIRRORED = ("common", "control")
TEST_PLAN = ROOT / "docs" / "testplan.md"
REFERENCE = re.compile(r"`([\w/.-]+\.py)::(\w+)(?:\[[^`]*\])?`")


def blocks(root: Path) -> list[Path]:
    """Return the block files under `root/rtl`, relative to `rtl`. A leading underscore marks a part of a block."""
    found = [path.relative_to(root / "rtl") for path in sorted((root / "rtl").glob("*/*.py"))]
    return [path for path in found if path.parts[0] not in UNMIRRORED and not path.name.startswith("_")]


def counterparts(block: Path) -> list[str]:
    """Return the paths that a block file, such as `dsq/quantizer.py`, needs in the other trees."""
    directory, name = block.parent.as_posix(), block.stem
    return [
        f"golden/{directory}/{name}.py",
        f"cocotb_tests/{directory}/test_{name}.py",
        f"docs/blocks/{directory}-{name}.md",
    ]


def plan_rows(text: str) -> list[tuple[int, list[tuple[str, str]]]]:
    """Return the line number and the named tests of each row of the tables in a test plan."""
    rows: list[tuple[int, list[tuple[str, str]]]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        following = lines[number] if number < len(lines) else ""
        is_header = re.fullmatch(r"\|[\s|:-]+\|", following.strip()) is not None
        is_rule = re.fullmatch(r"\|[\s|:-]+\|", line.strip()) is not None
        if line.lstrip().startswith("|") and not is_header and not is_rule:
            last = re.split(r"(?<!\\)\|", line.strip().strip("|"))[-1]
            rows.append((number, REFERENCE.findall(last)))
    return rows


@cache
def functions(path: Path) -> frozenset[str]:
    """Return the names of the functions in a Python file."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds))


def missing_tests(text: str, root: Path) -> list[str]:
    """Return one sentence for each testpoint that names no test, or one that does not exist."""
    problems = []
    for number, tests in plan_rows(text):
        if not tests:
            problems.append(f"line {number} names no test")
        for file, name in tests:
            path = root / (file if file.startswith("cocotb_tests/") else f"cocotb_tests/{file}")
            if not path.is_file():
                problems.append(f"line {number} names {file}, which does not exist")
            elif name not in functions(path):
                problems.append(f"line {number} names {file}::{name}, which does not exist")
    return problems


@pytest.mark.parametrize("block", blocks(ROOT), ids=str)
def test_block_is_mirrored(block):
    missing = [path for path in counterparts(block) if not (ROOT / path).is_file()]
    assert not missing, f"rtl/{block} lacks {', '.join(missing)}"


def test_there_are_blocks():
    assert blocks(ROOT)


def test_testpoints_name_existing_tests():
    assert TEST_PLAN.is_file(), "docs/testplan.md is missing"
    text = TEST_PLAN.read_text()
    assert plan_rows(text), "docs/testplan.md has no table of testpoints"
    assert missing_tests(text, ROOT) == []


def test_missing_counterparts_are_noticed(tmp_path):
    for name in ("rtl/dsq/one.py", "rtl/dsq/__init__.py", "rtl/dsq/_part.py", "rtl/common/two.py", "rtl/top.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert blocks(tmp_path) == [Path("dsq/one.py")]
    assert counterparts(Path("dsq/one.py")) == [
        "golden/dsq/one.py",
        "cocotb_tests/dsq/test_one.py",
        "docs/blocks/dsq-one.md",
    ]


def test_wrong_testpoints_are_noticed(tmp_path):
    (tmp_path / "cocotb_tests").mkdir()
    (tmp_path / "cocotb_tests" / "test_a.py").write_text("def test_it(): pass\n")
    plan = """\
| testpoint | test |
|---|---|
| exists | `test_a.py::test_it`, `cocotb_tests/test_a.py::test_it[case]` |
| wrong name | `test_a.py::test_that` |
| wrong file | `test_b.py::test_it` |
| nothing | to come |
"""
    assert missing_tests(plan, tmp_path) == [
        "line 4 names test_a.py::test_that, which does not exist",
        "line 5 names test_b.py, which does not exist",
        "line 6 names no test",
    ]
