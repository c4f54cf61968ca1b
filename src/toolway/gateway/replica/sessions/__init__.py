"""Sessions of the handshake era whose client comes to any gateway, and what gateways bring each other for them."""
