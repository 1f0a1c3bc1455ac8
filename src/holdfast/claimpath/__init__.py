"""The path of a claim from its request to its holder: submit, match, protect, offer, acknowledge, answer. Start in `path.py`."""
