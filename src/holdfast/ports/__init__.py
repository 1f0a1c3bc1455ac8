"""The protocols through which the core reaches everything outside. Each one states what an implementation guarantees."""
