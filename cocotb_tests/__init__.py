"""Tests: pytest files that start the simulators, and the cocotb modules that run inside them."""
