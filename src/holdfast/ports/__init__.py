"""What the core needs from outside, as protocols that state guarantees."""
