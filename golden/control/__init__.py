"""What the control of the accelerator is told: commands and their faults."""
