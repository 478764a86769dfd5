"""History-current attention pruning (HCAP): history of groups, selection of runs."""
