"""The KV cache in memory: pages, addresses, bursts."""
