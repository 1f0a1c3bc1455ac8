"""A demo of one minute: a real fleet runs jobs and sessions, a replica is killed, Postgres is stopped, and errors are counted."""
