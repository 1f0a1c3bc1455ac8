"""What we decide, all of one shape: observe, then a pure plan. Nothing here has an effect."""
