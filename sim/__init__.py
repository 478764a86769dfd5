"""Simulation of the RTL: building and running simulators."""
