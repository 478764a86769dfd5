"""From a decoder layer and a batch to the commands of the accelerator and what memory holds."""

from sim.compiler.layer import SCHEDULES, compile_layer
from sim.compiler.places import expected_memory
from sim.compiler.program import Program, Region, Tag

__all__ = ["SCHEDULES", "Program", "Region", "Tag", "compile_layer", "expected_memory"]
