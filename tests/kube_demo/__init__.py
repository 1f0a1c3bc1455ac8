"""A guided minute on a test cluster: a real control plane, a killed replica, a drained node, and what is counted meanwhile."""
