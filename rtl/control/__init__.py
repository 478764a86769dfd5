"""Control of the accelerator: registers, commands, scratchpad, and what drives each core."""
