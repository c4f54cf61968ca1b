"""The audit log: what was intended, what became of it, and proof that nobody changed it afterwards."""
