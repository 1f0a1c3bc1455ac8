"""Mutation tests: small bugs put in one at a time, to see whether a test notices each."""
