"""A whole fleet on virtual time: the real code and the real SQL, under every fault we can name."""
