"""Plan a pool: simulate several warm settings with the real matching and scaling code on a trace of claims, and compare them."""
