"""What runs the duties of one replica: its loops, its terms, its passes, and `apply`, the one place where actions take effect."""
