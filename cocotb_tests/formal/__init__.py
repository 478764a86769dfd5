"""Proofs of properties by yosys-smtbmc; the properties lie outside of the hardware."""
