"""The limits of failed activations, per claim and per pool (decision 0018)."""

MAX_ACTIVATIONS = 5  # failures after which a claim is refused, as the failure table promises
FAILING_CLAIMS = 3  # different claims that fail in a row; fewer may have bad payloads while the hook works
FIRST_BACKOFF = 2  # seconds after the first failure, as after a failed start; doubles with each failure in a row
LONGEST_BACKOFF = 300  # seconds, so that a pool whose hook works again is noticed within 5 min
