"""Registers: the start of the simulations, C header and reference."""

import subprocess
from typing import Any

import pytest
from systemrdl.node import RegNode

from cocotb_tests.control.rings import geometry
from cocotb_tests.lib import launch
from rtl.config import PRESETS, preset
from rtl.control.registers import Registers, addresses, register_tree, write_header, write_html

MOST = {"bus_bits": 256, "cores": 8, "queue_depth": 16, "semaphores": 256}


def run(simulator: str, sizes: dict[str, Any], *, accesses: int) -> None:
    launch.run(
        Registers(geometry(**sizes)),
        name="control_registers",
        tb="cocotb_tests.control.tb_registers",
        parameters={"geometry": sizes, "accesses": accesses},
        simulators=simulator,
    )


@launch.simulators("icarus")
def test_follow_their_description(simulator):
    run(simulator, {}, accesses=150)


@launch.simulators("verilator")
def test_follow_their_description_with_most_queues(simulator):
    run(simulator, MOST, accesses=400)


@pytest.mark.parametrize("name", PRESETS)
def test_header_compiles_and_has_the_addresses(tmp_path, name):
    config = preset(name)
    write_header(config, tmp_path / "kvo.h")
    lines = ["#include <stddef.h>", '#include "kvo.h"']
    for register, address in addresses(config).items():
        lines.append(f'_Static_assert(offsetof(kvo_t, {register}) == {address:#x}, "{register}");')
    lines.append("int main(void) { return KVO__CONTROL__SOFT_RESET_bm == 2 ? 0 : 1; }")
    (tmp_path / "main.c").write_text("\n".join(lines) + "\n")
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "main.c", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    subprocess.run([tmp_path / "main"], check=True)


def test_html_describes_every_register(tmp_path):
    config = preset("tiny")
    write_html(config, tmp_path)
    assert (tmp_path / "index.html").is_file()
    pages = "".join(path.read_text(encoding="utf-8") for path in sorted(tmp_path.rglob("*.html")))
    for node in register_tree(config).descendants():
        if isinstance(node, RegNode):
            assert node.get_property("name") != node.inst_name, f"{node.inst_name} has no name"
            assert node.get_property("name") in pages, node.inst_name


def test_header_and_html_are_the_same_every_time(tmp_path):
    config = preset("tiny")
    for directory in (tmp_path / "a", tmp_path / "b"):
        directory.mkdir()
        write_header(config, directory / "kvo.h")
        write_html(config, directory / "html")
    first, second = (
        {p.relative_to(d): p.read_bytes() for p in d.rglob("*") if p.is_file()}
        for d in (tmp_path / "a", tmp_path / "b")
    )
    assert first == second


@pytest.mark.parametrize("name", PRESETS)
def test_constants_fit(name):
    config = preset(name)
    values = {
        "config.queues": 3 + config.gemm.cores,
        "config.bus_log2": (config.dsq.bus_bits // 8).bit_length() - 1,
        "config.semaphores": config.control.semaphores,
        "config.queue_depth": config.control.queue_depth,
        "geometry.head_dim": config.dsq.head_dim,
        "geometry.group_tokens": config.dsq.group_tokens,
        "geometry.max_salient": config.dsq.max_salient,
        "geometry.q_heads": config.mha.q_heads,
        "geometry.delta_bits": config.dsq.delta_bits,
    }
    tree = register_tree(config)
    for path, value in values.items():
        field = tree.find_by_path(path)
        assert field.get_property("reset") == value < 1 << field.width, path
