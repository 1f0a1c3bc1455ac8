"""A real Kubernetes control plane with a small kubelet, as plain processes on loopback, for tests."""
