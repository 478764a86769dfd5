"""Verilog emission and yosys scripts, run by the yosys library in the `pyosys` wheel."""

import gc
import re
import subprocess
import sys
import tempfile
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import ClockSignal, Instance, Module, ResetSignal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

__all__ = ["YOSYS_DRIVER", "SharedModule", "YosysError", "run_yosys", "verilog"]

# Runs in a process of its own: yosys ends the process that it runs in when it meets an error.
YOSYS_DRIVER = "import sys; from pyosys import libyosys as ys; ys.run_pass('script ' + sys.argv[1], ys.Design())"

# The attributes that would carry source paths of the machine into the output.
_STRIPPED = ("generator", "top", "src", "amaranth.hierarchy", "amaranth.decoding")

# Drives bits of a vector with a constant, where a process drives others: the block reads nothing.
_CONSTANT_BLOCK = re.compile(r"^  always @\*\n    (\S.* = \d+'h[0-9a-fx]+;)$", re.MULTILINE)
# What yosys has its processes read, so that they run at the start.
_START = re.compile(r"^  reg (\\\$auto\$verilog_backend\S+ ) = 0;$", re.MULTILINE)


class YosysError(RuntimeError):
    """yosys ended with an error; the message is its last output."""


def run_yosys(script: str, directory: Path | str | None = None) -> str:
    """Run a yosys script (one command per line) and return its log.

    Parameters
    ----------
    script : str
        Commands; file names in them are relative to `directory`.
    directory : Path, optional
        Working directory; a temporary one by default.
    """
    with tempfile.TemporaryDirectory(prefix="kvo-yosys-") as scratch:
        path = Path(scratch) / "script.ys"
        path.write_text(script)
        result = subprocess.run(
            [sys.executable, "-c", YOSYS_DRIVER, str(path)],
            cwd=directory or scratch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if result.returncode != 0:
        errors = re.findall(r"^ERROR: .*", result.stdout, re.MULTILINE)
        raise YosysError(errors[-1] if errors else result.stdout[-2000:])
    return result.stdout


class SharedModule:
    """A component of which a design has several: emitted once, as a module that all of them are instances of."""

    def __init__(self, component: wiring.Component, name: str) -> None:
        self.component, self.name = component, name

    def create(self) -> "_SharedInstance":
        """One of them; it has the members of the component, and ``reset``, which resets it as ``rst`` does."""
        return _SharedInstance(self)


#: name of the design that is being emitted, and what it shares
_design: ContextVar[tuple[str, dict[str, SharedModule]]] = ContextVar("_design")


class _SharedInstance(wiring.Component):
    def __init__(self, shared: SharedModule) -> None:
        self._shared = shared
        super().__init__({**dict(shared.component.signature.members.items()), "reset": In(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        design, found = _design.get()
        module = f"{design}.{self._shared.name}"
        assert found.setdefault(module, self._shared) is self._shared, module
        ports = {"i_clk": ClockSignal(), "i_rst": ResetSignal() | self.reset}
        for path, member, value in self.signature.flatten(self):
            if path != ("reset",):
                way = "i" if member.flow is In else "o"
                ports[f"{way}_{'__'.join(map(str, path))}"] = value
        m.submodules.instance = Instance(module, **ports)
        return m


def _modules(component: wiring.Component, name: str) -> list[str]:
    """RTLIL of a component, and of what it shares."""
    token = _design.set((name, {}))
    collects = gc.isenabled()
    gc.disable()  # it would go through millions of objects again and again, none of which is garbage
    try:
        texts, done = [rtlil.convert(component, name=name)], set[str]()
        shared = _design.get()[1]
        while waiting := [module for module in shared if module not in done]:
            texts += [rtlil.convert(shared[module].component, name=module) for module in waiting]
            done.update(waiting)
        return texts
    finally:
        _design.reset(token)
        if collects:
            gc.enable()


def verilog(component: wiring.Component, name: str = "top") -> str:
    """Return the Verilog of `component` as a module called `name`.

    The text holds no source paths. With `PYTHONHASHSEED=0` it is the same, byte for byte, in every run. Streams become
    ports `<stream>__payload`, `<stream>__valid`, `<stream>__ready`; a payload of several fields is one packed vector.
    """
    texts = _modules(component, name)
    with tempfile.TemporaryDirectory(prefix="kvo-emit-") as scratch:
        for number, text in enumerate(texts):
            (Path(scratch) / f"design{number}.il").write_text(text)
        attributes = " ".join(f"-remove {attribute}" for attribute in _STRIPPED)
        run_yosys(
            "\n".join(
                [
                    *(f"read_rtlil design{number}.il" for number in range(len(texts))),
                    "proc -nomux -norom",
                    "memory_collect",
                    f"attrmap {attributes}",
                    f"attrmap -modattr {attributes}",
                    "write_verilog -norename design.v",
                ]
            ),
            directory=scratch,
        )
        made = (Path(scratch) / "design.v").read_text()
    # The first line names the yosys build (and a path of the machine that built it).
    lines = (line for line in made.splitlines(keepends=True) if not line.startswith("/* Generated by Yosys"))
    return "endmodule\n".join(_starting(module) for module in "".join(lines).split("endmodule\n"))


def _starting(module: str) -> str:
    """A module whose blocks all run at the start; Icarus Verilog never runs one that reads nothing."""
    start = _START.search(module)
    if start is None:
        return module
    head = f"  always @* begin\n    if ({start[1]}) begin end\n    "
    return _CONSTANT_BLOCK.sub(lambda block: f"{head}{block[1]}\n  end", module)
