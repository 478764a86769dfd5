"""FPGA builds and reports."""
