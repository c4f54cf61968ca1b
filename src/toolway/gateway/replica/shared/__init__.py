"""What all gateways of a tenant have in common, and how each keeps up with it (decision 0023)."""
