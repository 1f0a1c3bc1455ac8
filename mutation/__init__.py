"""Mutation tests: they put in small bugs, one at a time, and check that a test fails for each."""
