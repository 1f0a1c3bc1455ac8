"""What exists: frozen values, transition tables and pure functions. Imports nothing else of ours."""
