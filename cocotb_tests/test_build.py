"""Verilog generation and area reports: files, manifest, reproducibility, lint, messages."""

import json
import os
import re
import subprocess
import sys

import pytest

import rtl.build
from fpga import synth
from fpga.boards import board_names
from golden.errors import UserError
from rtl.build import BLOCKS, block_named, emit
from rtl.config import PRESETS, preset
from sim.simulators import ROOT

NAMES = [block.name for block in BLOCKS]
PAGE = ROOT / "docs" / "build.md"


def command(*arguments: str, hash_seed: str = "random", module: str = "rtl.build") -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", module, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done


@pytest.fixture(scope="module", params=["tiny", "smollm2"])
def built(request, tmp_path_factory):
    """A directory with the files of a preset, and its name."""
    directory = tmp_path_factory.mktemp(request.param)
    done = command("--preset", request.param, "--all", "-o", str(directory))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return request.param, directory


def manifest(directory):
    return json.loads((directory / "manifest.json").read_text())


def test_files_are_those_of_the_manifest(built):
    name, directory = built
    described = manifest(directory)
    others = ["manifest.json", "kvo_registers.h", "registers"]
    assert sorted(path.name for path in directory.iterdir()) == sorted([*(f"{n}.v" for n in NAMES), *others])
    assert (directory / "registers" / "index.html").is_file()
    assert list(described["blocks"]) == NAMES
    assert described["config"] == preset(name).to_dict()
    assert set(described["tools"]) == {"amaranth", "pyosys"}


def test_verilog_has_the_ports_of_the_manifest(built):
    _, directory = built
    for name, block in manifest(directory)["blocks"].items():
        text = (directory / block["file"]).read_text()
        body = text[text.index(f"module {block['module']}(") :]
        body = body[: body.index("endmodule")]
        found = re.findall(r"^  (input|output) (?:\[(\d+):0\] )?(\S+) ?;", body, re.MULTILINE)
        ports = {(port["name"], port["direction"], port["width"]) for port in block["ports"]}
        assert {(port, way, int(top or 0) + 1) for way, top, port in found} == ports, name


def test_fields_fill_their_payloads(built):
    _, directory = built
    for block in manifest(directory)["blocks"].values():
        widths = {port["name"]: port["width"] for port in block["ports"]}
        for name, described in block["streams"].items():
            end = 0
            for field in described["fields"]:
                assert field["offset"] == end, (name, field)
                end += field["width"] * field.get("count", 1)
            assert end == described["payload_bits"] == widths[f"{name}__payload"]


def test_manifest_tells_the_cycles(built):
    name, directory = built
    dsq = preset(name).dsq
    blocks = manifest(directory)["blocks"]
    for block in ("dsq_quantizer", "dsq_dequantizer"):
        counts = blocks[block]["cycles"]["salient_tokens"]
        assert list(counts) == [str(n) for n in (*range(1, dsq.max_salient + 1), dsq.group_tokens)]
        assert all(value > 0 for figures in counts.values() for value in figures.values())
    assert set(blocks["hcap_history"]["cycles"]) == {"list_latency"}
    assert set(blocks["mha_core"]["cycles"]) == {
        "query_cycles",
        "score_latency",
        "selection_latency",
        "softmax_latency",
        "row_latency",
        "mass_latency",
    }
    layout, word = preset(name).memory_map, dsq.bus_bits // 8
    assert blocks["kv_cache"]["cycles"]["record_page_bytes"] == layout.stride(False) * word
    both = set(blocks["mha_core"]["cycles"]) | set(blocks["kv_cache"]["cycles"])
    assert set(blocks["cached_attention"]["cycles"]) == both
    assert set(blocks["accelerator"]["cycles"]) == both | {"gemm_latency", "command_latency"}
    others = ("hcap_history", "mha_core", "kv_cache", "cached_attention", "accelerator")
    assert all(value > 0 for block in others for value in blocks[block]["cycles"].values())


def test_modules_have_plain_names(built):
    _, directory = built
    for block in BLOCKS:
        modules = re.findall(r"^module ([^( ]+)", (directory / f"{block.name}.v").read_text(), re.MULTILINE)
        assert modules[0] == block.module
        assert all(re.fullmatch(rf"{block.module}\w*", module) for module in modules)
        assert len(set(modules)) == len(modules)


def test_lint_finds_nothing_but_the_waived(built):
    _, directory = built
    waivers = re.findall(r"^\| `([A-Z]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert waivers == sorted(waivers)
    for name in NAMES:
        done = subprocess.run(
            [ROOT / "sim" / "bin" / "verilator", "--lint-only", "-Wall"]
            + [f"-Wno-{waiver}" for waiver in waivers]
            + [f"{name}.v"],
            cwd=directory,
            env={**os.environ, "KVO_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[:2000]
        assert "%Warning" not in done.stderr


def test_icarus_compiles_as_verilog_2005(built):
    _, directory = built
    for name in NAMES:
        done = subprocess.run(
            ["iverilog", "-g2005", "-Wall", "-Wno-timescale", "-o", os.devnull, f"{name}.v"],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_bytes_do_not_depend_on_the_process(tmp_path):
    """Other hash seeds, another directory, the preset given as a file."""
    tables = preset("tiny").to_dict()
    config = tmp_path / "tiny.toml"
    written = (f"[{name}]\n" + "".join(f"{k} = {v}\n" for k, v in table.items()) for name, table in tables.items())
    config.write_text("".join(written))
    for directory, what, seed in (("a", ("--preset", "tiny"), "1"), ("b", ("--config", str(config)), "2")):
        done = command(*what, "-o", str(tmp_path / directory), hash_seed=seed)
        assert done.returncode == 0, done.stderr
    for path in sorted((tmp_path / "a").rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes(), path


def test_text_has_no_paths_and_attributes_of_sources(built):
    _, directory = built
    for path in [*directory.glob("*.v"), *directory.glob("*.h"), directory / "manifest.json"]:
        text = path.read_text()
        assert str(ROOT) not in text
        assert ".py" not in text
        assert "src =" not in text


def test_block_selects_files(tmp_path):
    done = command("--preset", "tiny", "--block", "dsq_dequantizer", "-o", str(tmp_path / "new" / "one"))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "new" / "one").iterdir()) == ["dsq_dequantizer.v", "manifest.json"]


def test_list_names_presets_and_blocks(capsys):
    assert rtl.build.main(["--list"]) == 0
    listing = capsys.readouterr().out
    assert all(f"  {name} " in listing for name in (*PRESETS, *NAMES))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "give --preset NAME or --config FILE, or --list to see the presets"),
        (["--preset", "tiny"], "give -o DIR, the directory to write to"),
        (["--preset", "huge", "-o", "x"], "preset must be one of tiny, smollm2, ulx3s, llama2-7b, dac25, not 'huge'"),
        (
            ["--preset", "tiny", "--block", "x", "-o", "x"],
            f"block must be one of {', '.join(NAMES)}, not 'x'",
        ),
        (["--config", "none.toml", "-o", "x"], "cannot read config 'none.toml': No such file or directory"),
        (["--what"], "unrecognized arguments: --what (see --help)"),
        (["--preset", "tiny", "--list"], "argument --list: not allowed with argument --preset (see --help)"),
    ],
    ids=str,
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        rtl.build.main(arguments)


def test_mistakes_end_with_one_line_and_code_2(tmp_path):
    file = tmp_path / "file"
    file.touch()
    done = command("--preset", "tiny", "-o", str(file))
    assert (done.returncode, done.stderr) == (2, f"error: cannot write to '{file}': File exists\n")
    done = command("--preset", "tiny", "--block", "x", module="fpga.synth")
    message = f"error: block must be one of {', '.join(NAMES)}, not 'x'\n"
    assert (done.returncode, done.stderr) == (2, message)


def test_synthesis_counts_cells(tmp_path, capsys):
    report = tmp_path / "tiny.json"
    assert synth.main(["--preset", "tiny", "--block", "dsq_dequantizer", "--json", str(report)]) == 0
    table = capsys.readouterr().out
    written = json.loads(report.read_text())
    counted = written["blocks"]["dsq_dequantizer"]
    assert written["config"] == preset("tiny").to_dict()
    assert re.fullmatch(r"0\.\d+.*", written["tools"]["yosys"])
    assert counted["tables"] == counted["LUT4"] + 2 * counted["CCU2C"] + 4 * counted["TRELLIS_DPR16X4"]
    assert counted["MULT18X18D"] == 12  # 8 lanes of base elements, 4 of steps
    assert all(re.search(rf"^{cell} +{count}\b", table, re.MULTILINE) for cell, count in counted.items())


def test_delta_lanes_of_the_core_take_no_multipliers():
    """All that the reports count belong to other parts, by their number."""
    for path in synth.RESULTS.glob("mha-*.json"):
        report = json.loads(path.read_text())
        parts = report["mha_core_multipliers"]
        assert sum(parts.values()) == report["blocks"]["mha_core"]["MULT18X18D"]
        assert parts["delta_lanes"] == 0 and parts["k_nibble_lanes"] > 0 and parts["v_int8_lanes"] > 0


def test_yosys_errors_are_passed_on(tmp_path):
    text = emit(block_named("dsq_dequantizer"), preset("tiny"))[0]
    with pytest.raises(synth.YosysError, match="not found"):
        synth.synthesize(text, "no_such_module")


def test_reports_belong_to_the_presets_of_today():
    boards = {"gemm-array-85f", *board_names()}
    reports = [path for path in sorted(synth.RESULTS.glob("*.json")) if path.stem not in boards]
    kept = {f"{family}-{name}.json" for family in synth.FAMILIES for name in ("smollm2", "ulx3s")}
    assert kept <= {path.name for path in reports}
    for path in reports:
        report = json.loads(path.read_text())
        family = path.name.split("-")[0]
        assert path.name == f"{family}-{report['preset']}.json"
        wanted = preset(report["preset"]).to_dict()
        assert report["config"] == {table: wanted[table] for table in synth.FAMILIES[family].tables}
        assert list(report["blocks"]) == list(synth.FAMILIES[family].blocks)
