"""Simulate a whole fleet in virtual time: the real code and the real SQL, with every fault that we know."""
