"""Recovery after lost commits: notice it, compare pods and agents with the rows, adopt, and only then go on (decision 0016)."""
