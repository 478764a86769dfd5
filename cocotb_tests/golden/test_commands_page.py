"""docs/commands.md tells the operands as `golden.control.commands` defines them."""

from golden.control.commands import FIELDS, HEADER_WORDS, Opcode, field_places
from sim.simulators import ROOT

PAGE = ROOT / "docs" / "commands.md"
BEGIN, END = "<!-- operands:begin -->\n", "<!-- operands:end -->"


def table() -> str:
    """The operands of every opcode that has any: names with their word and bits."""
    lines = ["| opcode | number | operands: word, bits |", "|---|---|---|"]
    for opcode in Opcode:
        parts = []
        for name, (bit, width) in field_places(opcode).items():
            first = bit % 32
            bits = f"{first}" if width == 1 else f"{first}-{first + width - 1}"
            sign = " signed" if FIELDS[opcode][name] < 0 else ""
            parts.append(f"`{name}` {HEADER_WORDS + bit // 32}, {bits}{sign}")
        lines.append(f"| {opcode.name} | {opcode.value} | {'; '.join(parts)} |")
    return "\n".join(lines) + "\n"


def test_page_tells_the_operands():
    text = PAGE.read_text()
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == table()
