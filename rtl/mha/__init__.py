"""Multi-head attention on compressed KV: scores, softmax, value sum."""
