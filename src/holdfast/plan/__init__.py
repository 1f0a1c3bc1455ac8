"""Plan a pool: run the real matching and scaling over a trace of arrivals, for several warm settings, and compare them."""
