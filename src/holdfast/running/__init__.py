"""What runs the duties of one replica: its loops, terms and passes, and `apply`, the only place where actions take effect."""
