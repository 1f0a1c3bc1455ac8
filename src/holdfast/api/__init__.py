"""The HTTP API: one table of routes, from which requests are served and the OpenAPI document is generated."""
