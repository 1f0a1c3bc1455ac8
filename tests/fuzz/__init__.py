"""Sends mutated requests to everything of Holdfast that listens, and checks that each listener survives them (`make fuzz`)."""
