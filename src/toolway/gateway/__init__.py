"""The hub behind HTTP: one endpoint for every client, whatever its era."""
