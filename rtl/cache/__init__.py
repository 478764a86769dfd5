"""The KV cache in memory: page table, prefetch, arbiter, AXI4 master."""
