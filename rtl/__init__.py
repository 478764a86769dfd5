"""KVO hardware generator (Amaranth HDL)."""
