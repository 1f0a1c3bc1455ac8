"""A guided minute: a real fleet under jobs and sessions, a killed replica, a stopped Postgres, and what is counted meanwhile."""
