"""The command line: `holdfast`."""
