"""The HTTP door: one table of routes, from which requests are served and OpenAPI is written."""
