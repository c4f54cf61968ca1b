"""Three gateways as one, with real NATS and PostgreSQL, and what is done to them."""
