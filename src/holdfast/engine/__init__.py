"""How decisions become effects: terms, ticks, take-over, and the claim path."""
