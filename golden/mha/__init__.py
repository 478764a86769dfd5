"""Multi-head attention on compressed KV: exact integer functions."""
