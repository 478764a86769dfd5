"""Parts shared by the blocks: streams, memories, fixed-point arithmetic."""
