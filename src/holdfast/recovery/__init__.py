"""Recovery after lost commits: notice the loss, compare pods and agents with the rows, adopt what has no row, then resume
(decision 0016)."""
