"""The duties, which make all decisions. Each one observes and then makes a pure plan; nothing here has an effect."""
