"""Audit log: intents and outcomes of calls in a hash chain that makes tampering detectable."""
