"""A claim's way from its request to its holder: submit, match, protect, offer, acknowledged, told. Start in `path.py`."""
