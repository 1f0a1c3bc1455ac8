"""Keep the state of the fleet in Postgres."""
