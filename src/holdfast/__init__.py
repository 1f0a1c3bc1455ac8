"""Fleets of warm workers: one holder each, never killed while busy, never leaked while idle."""

__version__ = "0.1.0"
