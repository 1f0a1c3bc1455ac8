"""A demo on a test cluster: a real control plane, a killed replica, a drained node, and a count of everything that goes wrong."""
