"""Several gateways as one: who owns what, and what nodes tell each other. Loaded only by `toolway serve --cluster`."""
