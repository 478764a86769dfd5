"""History-current attention pruning (HCAP): exact integer functions."""
