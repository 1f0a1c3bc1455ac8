"""The domain model: frozen values, transition tables and pure functions. It imports no other package of Holdfast."""
